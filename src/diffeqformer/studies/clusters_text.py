"""Sentences on hidden states over depth: whether they gather in direction, and whether groups merge."""

import math
from collections.abc import Sequence

from diffeqformer.plain import Values

ANGLES, ALIGNED = 0.5, math.e / 2
"""Interaction energy if all states are orthogonal, and if all are aligned."""
CLEAR = 0.1
"""Smallest clear change, as a share of the energy's range or of a number of clusters."""


def gathering(rows: Sequence[Values], tokens: int, different: float, texts: int) -> str:
    """State whether tokens gather in direction, by the energy, and how close and loose groups change.

    **Arguments:** `rows`, means at every depth; `tokens` per text, and how many of them are `different`: at depth 0
    there can be no more clusters than these, unless positions have embeddings.
    """
    energies = [row["energy"] for row in rows]
    read = "One text was used." if texts == 1 else f"{texts} texts were used."
    whose = f"{tokens} tokens, {different:.0f} of them distinct"
    return (
        f"Tokens {direction(energies)}: the interaction energy goes {_way(energies)} ({ANGLES:g} if all were at right "
        f"angles, {ALIGNED:.3f} if all had one direction). {groups(rows[0]['clusters'], rows[-1]['clusters'], whose)} "
        f"{read}"
    )


def direction(energies: Sequence[float]) -> str:
    """State whether tokens `gather in direction`, `scatter`, one after the other, or neither; a change counts if it
    exceeds a tenth of the energy's range."""
    steps, tenth = len(energies) - 1, CLEAR * (ALIGNED - ANGLES)
    highest, lowest = energies.index(max(energies)), energies.index(min(energies))
    first, last = energies[0], energies[-1]
    ways = []
    for turn, does, other, sign in ((highest, "gather", "scatter", 1), (lowest, "scatter", "gather", -1)):
        there, back = sign * (energies[turn] - first), sign * (energies[turn] - last)
        if there > tenth and back > tenth:
            return f"{does} in direction up to step {turn} of {steps}, and {other} after that"
        if there - back > tenth:
            little = f" up to step {turn} of {steps}, and {other} a little after that" if back > CLEAR * there else ""
            ways.append(f"{does} in direction{little}")
    return ways[0] if ways else "neither gather nor scatter clearly in direction"


def _way(energies: Sequence[float]) -> str:
    """Format the energies at both ends, `0.678 → 0.754 at step 3 → 0.650`, and the extremes between them that exceed
    the ends by half a clear change."""
    beyond = CLEAR / 2 * (ALIGNED - ANGLES)
    low, high = sorted((energies[0], energies[-1]))
    ends = {energies.index(max(energies)): max(energies) > high + beyond}
    ends |= {energies.index(min(energies)): min(energies) < low - beyond}
    between = [f"{energies[place]:.3f} at step {place}" for place in sorted(ends) if ends[place]]
    return " → ".join((f"{energies[0]:.3f}", *between, f"{energies[-1]:.3f}"))


def groups(start: Values, end: Values, whose: str) -> str:
    """State how the number of clusters changes, at the share of the mean distance where it changes most.

    If close groups (small shares) and loose ones (large shares) change in opposite ways, both are stated.
    """
    ratio = {share: end[share] / start[share] for share in start}
    fewest, most = min(ratio, key=ratio.__getitem__), max(ratio, key=ratio.__getitem__)
    merge, dissolve = ratio[fewest] < 1 - CLEAR, ratio[most] > 1 + CLEAR
    become = lambda count: "1 cluster becomes" if f"{count:.0f}" == "1" else f"{count:.0f} clusters become"
    goes = lambda share: f"at {100 * float(share):g} % of the mean distance, {become(start[share])} {end[share]:.0f}"
    if merge and dissolve:
        close, loose = sorted((fewest, most), key=float)
        does = ("merge", "dissolve") if close == fewest else ("dissolve", "merge")
        said = f"Close groups {does[0]} and loose ones {does[1]}: {goes(close)}, {goes(loose)}"
    elif merge or dissolve:
        said = f"Groups {'merge' if merge else 'dissolve'}: {goes(fewest if merge else most)}"
    else:
        said = f"Groups hardly change: {goes(most)}"
    return f"{said}, of {whose}."


def distances(start: Values, end: Values) -> str:
    """State how distances change relative to the states' own length, which grows over depth."""
    return (
        f"The mean distance between two states goes from {start['relative_distance']:.2f} to "
        f"{end['relative_distance']:.2f} of their length (0 if all were in one place, 1.41 if all were at right "
        "angles and equally long)"
    )
