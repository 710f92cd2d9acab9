"""`diffeqformer analyze clusters`: do tokens gather as depth goes on, in simulations and in a model?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import tyro

from diffeqformer.config import Which
from diffeqformer.config.bounds import MOST_STEPS, SIZES, UINT32, require_bounds, setting
from diffeqformer.errors import BadInput
from diffeqformer.plain import Document, Values
from diffeqformer.progress import Progress
from diffeqformer.report.table import Table
from diffeqformer.report.text import counted, depths, digits, join
from diffeqformer.studies.clusters_text import distances, gathering
from diffeqformer.studies.inputs import Files, described, evaluation_windows, folder_for, ids_of, require_usual
from diffeqformer.studies.study import Result

if TYPE_CHECKING:
    from diffeqformer.analysis.clusters import Simulation
    from diffeqformer.analysis.gathering import HiddenStates

# Repeats `analysis.clusters.Variant`, whose import would load JAX for a `--help`.
Variant = Literal["particles", "sphere", "unnormed", "rescaled"]
DESCRIPTIONS: Mapping[Variant, str] = {
    "particles": "Particles as in the paper's appendix C.8: tokens are standardised before attention.",
    "sphere": "Particles that are projected back onto the sphere: the motion of a normalised transformer.",
    "unnormed": "Particles on the sphere with exp instead of softmax: the gradient flow of the interaction energy.",
    "rescaled": "Particles without norms, with their growth undone: z = exp(-∫V) x.",
}
USUAL = 16
"""Default number of texts whose hidden states are measured."""
_POWERS = ("", "", "²", "³", "⁴", "⁵", "⁶", "⁷", "⁸", "⁹")


@dataclass(frozen=True)
class Arguments:
    """Whether tokens gather as depth goes on: simulated particles or, with RUN, a model's hidden states.

    Example: diffeqformer analyze clusters runs/quickstart/diffeqformer
    """

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[RUN]")] = ""
    """Folder of a run whose hidden states are measured; without it, particles are simulated."""
    text: str | None = None
    """A text to run the model on; windows of --data if not given."""
    data: Files = ()
    """Text files or globs; the run's validation split if not given."""
    texts: int | None = setting(None, least=1, most=SIZES)
    """Number of windows; if not given, 16 or as many as there are."""
    steps: int | None = setting(None, least=1, most=MOST_STEPS)
    """Depth steps; if not given, the trained number, or 200 in a simulation."""
    checkpoint: Which = "latest"
    """Newest checkpoint, the one of lowest validation loss, or the newest that is not damaged."""
    variants: tuple[Variant, ...] = ("particles", "sphere", "rescaled")
    """Simulation: attention on standardised tokens, on the sphere (with or without softmax), with growth undone."""
    orders: tuple[int, ...] = setting((0, 1, 2, 3, 4), least=0, most=9)
    """Simulation: orders of f(t), by which the weights grow; 0 for shared weights."""
    systems: int = setting(20, least=1, most=10_000)
    """Simulation: draws of particles and weights; medians are over all, pictures show the first."""
    particles: int = setting(40, least=2, most=10_000)
    """Simulation: particles per system."""
    dt: float = setting(0.1, positive=True)
    """Simulation: time step."""
    unit: float | None = setting(None, positive=True)
    """Simulation: f(t) = (t / unit)^order; the whole duration if not given, so that f rises to 1."""
    level: bool = False
    """Simulation: multiply f by order + 1, so that all orders have the same integral."""
    weights: Literal["gaussian", "identity"] | None = None
    """Simulation: both matrices; if not given, Gaussian for `particles`, identity for the others."""
    share: float = setting(0.1, positive=True)
    """Points are one cluster if single linkage joins them within this share of the mean distance of two points."""
    seed: int = setting(0, least=0, most=UINT32)
    """Simulation: random seed."""
    to: str = ""
    """Folder for the files; RUN/analysis/clusters if not given, or analysis/clusters without a run."""


def study(arguments: Arguments, progress: Progress) -> Result:
    """Simulate particles, or measure a run's hidden states."""
    _check(arguments)
    return of_run(arguments, progress) if arguments.run else of_particles(arguments, progress)


SIMULATED = ("variants", "orders", "systems", "particles", "dt", "unit", "level", "weights", "seed")
"""Arguments that apply only to simulations."""


def _check(arguments: Arguments) -> None:
    require_bounds(arguments, "--")
    for name, given in (("variants", arguments.variants), ("orders", arguments.orders)):
        if not given:
            raise BadInput(f"--{name} is empty, but must name at least one.")
        if len({*given}) < len(given):
            raise BadInput(f"--{name} are {' '.join(map(str, given))}, but each must be named once.")
    if arguments.text is not None:
        require_usual(arguments, ("texts", "data"), "--text names the one to read; give one of them")
    if arguments.run:
        require_usual(arguments, SIMULATED, "it is of simulated particles, which are not made beside a RUN")
        return
    if arguments.text is not None:
        raise BadInput(f"--text is {arguments.text!r}, but no RUN is given whose model could read it.")
    require_usual(arguments, ("data", "texts", "checkpoint"), "no RUN is given that it would be of")


def of_particles(arguments: Arguments, progress: Progress) -> Result:
    """Simulate several systems of every motion and order of growth."""
    from diffeqformer.analysis.clusters import simulate
    from diffeqformer.report.page import Animation, both_widths
    from diffeqformer.studies import clusters_figures as draw

    folder, share = folder_for("clusters", arguments.to), arguments.share
    steps = 200 if arguments.steps is None else arguments.steps
    settings: dict[str, Any] = {
        "systems": arguments.systems, "points": arguments.particles, "steps": steps, "dt": arguments.dt,
        "unit": arguments.unit, "level": arguments.level, "seed": arguments.seed, "progress": progress,
        "identity": None if arguments.weights is None else arguments.weights == "identity",
    }  # fmt: skip
    found: dict[Variant, list[Simulation]] = {
        variant: [simulate(variant, order, **settings) for order in arguments.orders] for variant in arguments.variants
    }
    percent, systems = f"{100 * share:g} %", counted(arguments.systems, "system")
    colours = (
        f"Points of one colour end in one cluster ({percent} of the mean distance). Dark points end alone, or in one "
        "of the clusters beyond the number of colours."
    )
    figures, animations = [], []
    arrays: dict[str, np.ndarray] = {}
    ends = {variant: [ends_of(one, share) for one in several] for variant, several in found.items()}
    for variant, several in found.items():
        clouds = tuple(draw.cloud_of(one, share) for one in several)
        about = f"{DESCRIPTIONS[variant]} Time runs to {steps * arguments.dt:g} in {steps} steps."
        animations.append(Animation(f"{about} {colours}", clouds, several[0].times, "time"))
        titles = "; ".join(cloud.title for cloud in clouds)
        paths = f"{titles} at the end of the first system's paths, from ring to dot, {variant}. {colours}"
        gathered = (
            f"{finding(ends[variant])} Medians over {systems}, with bands between the quartiles. "
            "Dotted: the energy if all points had one direction."
        )
        figures.append(both_widths(f"{variant}-trajectories", paths, draw.trajectories, clouds))
        figures.append(both_widths(f"{variant}-measures", gathered, draw.measures, several, share))
        for one in several:
            kept = one.arrays() | {"heights": one.measures.heights.astype(np.float32)}
            arrays |= {f"{variant}_order{one.order}_{name}": value for name, value in kept.items()}
    rows = [row for several in ends.values() for row in several]
    unit = steps * arguments.dt if arguments.unit is None else arguments.unit
    return Result(
        "clusters",
        "Do particles that attend to each other gather?",
        (
            finding(rows),
            f"{arguments.particles} particles in three dimensions, uniform in [-2, 2], moved by attention alone: one "
            "head, no feed-forward block, no causal mask. Weights are A(t) = A f(t) and V(t) = V f(t) with "
            f"f = {'(order + 1) ' if arguments.level else ''}τ^order, τ = t / {unit:g}; order 0 is weight sharing. "
            f"Clusters are found by single linkage. {systems}, seed {arguments.seed}.",
        ),
        (particles_table(rows, systems, percent),),
        tuple(figures),
        animations=tuple(animations),
        arrays=arrays,
        document={"share": share, "simulations": rows},
        folder=folder,
    )


def ends_of(one: "Simulation", share: float) -> Document:
    """Return the medians over systems of each measure at the start and at the end."""
    ends = lambda values: [float(np.median(values[place])) for place in (0, -1)]
    return {
        "variant": one.variant,
        "order": one.order,
        "clusters": ends(one.measures.clusters(share)),
        "clusters_of_present": ends(one.measures.clusters(share, of="now")),
        "distance": ends(one.measures.distance),
        "energy": ends(one.measures.energy),
        # By more than rounding.
        "energy_fell": float((np.diff(one.measures.energy, axis=0) < -1e-12).mean()),
    }


def particles_table(rows: Sequence[Values], systems: str, percent: str) -> Table:
    """Tabulate every measure at the start and at the end; `systems` and `percent` in words, for the caption."""
    short = lambda value: f"{value:.3g}" if value >= 1e-3 or not value else f"{value:.0e}"
    ends = lambda row, name: " → ".join(map(short, row[name]))
    names = ("clusters", "clusters_of_present", "distance", "energy")
    cells = [
        (f"{row['variant']}, {growth_name(row['order'])}", *(ends(row, name) for name in names),
         f"{100 * row['energy_fell']:.0f} %")
        for row in rows
    ]  # fmt: skip
    caption = (
        f"Start → end of every measure: medians over {systems}. Clusters are counted within a share of the "
        "mean distance between two points, both the initial and the current one; the last column is the share of "
        "steps on which the energy fell."
    )
    columns = (
        "motion", f"clusters, {percent} of first", f"{percent} of present", "mean distance", "energy", "energy fell"
    )  # fmt: skip
    return Table(caption, columns, cells)


def growth_name(order: int) -> str:
    """Write `f` as in figures, with `τ` for time in its unit."""
    return f"f = τ{_POWERS[order]}" if order else "f = 1 (shared)"


def finding(rows: Sequence[Values]) -> str:
    """State for every motion which orders leave the fewest clusters, and which the most."""
    from diffeqformer.analysis.clusters import SPHERES

    said = []
    for variant in dict.fromkeys(row["variant"] for row in rows):
        own = [row for row in rows if row["variant"] == variant]
        name = "clusters" if variant in SPHERES else "clusters_of_present"
        least, most = (pick(row[name][1] for row in own) for pick in (min, max))
        leave = lambda left, own=own, name=name: join([growth_name(r["order"]) for r in own if r[name][1] == left])
        few = "for every f" if least == most and len(own) > 1 else f"with {leave(least)}"
        many = "" if least == most else f", {most:.3g} with {leave(most)}"
        said.append(f"{variant}, {least:.3g} of {own[0][name][0]:.3g} {few}{many}")
    return f"Clusters left at the end, out of those at the start: {'; '.join(said)}."


def of_run(arguments: Arguments, progress: Progress) -> Result:
    """Measure a model's hidden states at every depth."""
    from diffeqformer.analysis.gathering import watch_states
    from diffeqformer.report.page import Animation, Cloud, both_widths, visible
    from diffeqformer.runs.opening import load_run
    from diffeqformer.studies import clusters_figures as draw

    opened = load_run(arguments.run, arguments.checkpoint, progress)
    folder = folder_for("clusters", arguments.to, opened.folder)
    if arguments.text is not None:
        texts = ids_of(opened, arguments.text)[None]
        if texts.shape[1] < 2:
            raise BadInput(f"--text is {arguments.text!r}, a single token; distances need at least two.")
    else:
        if (context := opened.config.model.context) < 2:
            raise BadInput(f"the model's context is {context}, a single token; distances need at least two.")
        texts, _ = evaluation_windows(opened, arguments.data, arguments.texts, context, progress, USUAL)
    found = watch_states(opened.model, texts, steps=arguments.steps, progress=progress)
    # Shares are distinguished as written, since `means_of` uses that as their names.
    shares = tuple(sorted({f"{share:g}": share for share in (arguments.share, 0.25, 0.5, 0.75)}.values()))
    rows = means_of(found, shares)
    count, tokens = texts.shape
    first = opened.tokenizer.decode(texts[0].tolist(), skip_special_tokens=False)
    begin = visible(first if len(first) <= 60 else f"{first[:59]}…")
    paths = (
        f"Hidden states of the text “{begin}” in the three directions of largest variance, which hold "
        f"{100 * found.explained.sum():.0f} % of it: their paths from the embedding to the end of depth, at each "
        "depth in units of their mean length there. Colour shows the place in the text: amber for its first tokens, "
        "then vermilion, pink and light blue, and blue for its last."
    )
    change = distances(rows[0], rows[-1])
    spread = f" Medians over {count} texts, with bands from the first to the third quartile." if count > 1 else ""
    different = float(np.mean([len({*text}) for text in texts.tolist()]))
    gathered = (
        f"Clusters, lengths and distances of states, and their interaction energy.{spread} Dotted: the values for "
        "states all at right angles, and for states all in one direction."
    )
    cloud = Cloud("", found.projection, draw.places_of(tokens))
    return Result(
        "clusters",
        "Do tokens gather as depth goes on?",
        (
            gathering(rows, tokens, different, count),
            f"{change}. Clusters are chains of tokens, each with a neighbour within that share of the mean distance "
            "between two tokens.",
        ),
        (states_table(rows, shares, f"{f'Means over {count} texts' if count > 1 else 'A text'} of {tokens} tokens"),),
        (
            both_widths("states-measures", gathered, draw.state_measures, found, shares),
            both_widths("states-trajectories", f"{paths} Rings: the start.", draw.state_trajectories, found),
        ),
        animations=(Animation(paths, (cloud,), found.times, "depth"),),
        arrays=found.arrays() | {"texts": texts},
        document={**opened.which, "depths": rows},
        notes=(
            f"{described(opened)}: hidden states before the final norm of {count} text{'s' * (count > 1)} of {tokens} "
            "tokens, at depth 0 "
            f"and after {f'each of {len(rows) - 1} steps' if len(rows) > 2 else 'the one step'}. Clusters are found by "
            "single linkage at a share of the mean distance at the same depth; the energy is half the mean of exp(cos) "
            "over all pairs of states.",
        ),
        folder=folder,
    )


def means_of(found: "HiddenStates", shares: Sequence[float]) -> list[Document]:
    """Return one row per depth, each with the means over texts."""
    clusters = {f"{share:g}": found.measures.clusters(share, of="now") for share in shares}
    return [
        {
            "depth": float(depth),
            "clusters": {share: float(counts[place].mean()) for share, counts in clusters.items()},
            "length": float(found.norm[place].mean()),
            "distance": float(found.measures.distance[place].mean()),
            "relative_distance": float((found.measures.distance[place] / found.norm[place]).mean()),
            "energy": float(found.measures.energy[place].mean()),
        }
        for place, depth in enumerate(found.times)
    ]


def states_table(rows: Sequence[Values], shares: Sequence[float], caption: str) -> Table:
    """Tabulate the means over texts at every depth."""
    clusters = (f"clusters within {100 * share:g} %" for share in shares)
    cells = [
        (depth, *(f"{n:.0f}" for n in row["clusters"].values()), digits(row["length"]), digits(row["distance"]),
         f"{row['relative_distance']:.2f}", f"{row['energy']:.3f}")
        for depth, row in zip(depths([row["depth"] for row in rows]), rows, strict=True)
    ]  # fmt: skip
    columns = ("depth", *clusters, "state norm", "mean distance", "distance / length", "interaction energy")
    return Table(caption, columns, cells)
