"""The page and the table of fine-tuning at other depths; records are those of `adapt_figures`."""

from collections.abc import Sequence

import numpy as np

from diffeqformer.report.adapt_figures import (
    METHODS,
    MOST,
    Record,
    adaptation,
    mean_and_spread,
    of_seeds,
    systems_of,
    with_spread,
)
from diffeqformer.report.figures import NARROW
from diffeqformer.report.page import Figure, Page, Table
from diffeqformer.report.text import clean, compact, join, perplexity

COLUMNS = (
    "system", "method", "steps", "seeds", "final perplexity", "before tuning", "trained", "stored", "populated",
)  # fmt: skip


def adapt_page(records: Sequence[Record], says: Sequence[str] = ()) -> Page:
    """Sentences computed from the records, a figure and a table for each direction.

    **Arguments:** `records`, in the order in which systems are to be listed; `says`, what else is to be told, such as
    sizes and texts.
    """
    directions, systems = directions_of(records), systems_of(records)
    figures = (
        Figure(
            f"adaptation-{number}",
            f"{direction}: validation perplexity over updates (first; cut at {MOST} times the lowest) and at the end "
            "(second). Dashed: trained from scratch on the new text alone.",
            adaptation(records, direction, systems),
            adaptation(records, direction, systems, width=NARROW),
        )
        for number, direction in enumerate(directions, 1)
    )
    tables = (
        Table(direction, COLUMNS, tuple(tuple(row) for row in _rows(records, direction))) for direction in directions
    )
    return Page(
        "Fine-tuning at other depths",
        (*_overall(records), *findings(records), *says, _terms(records)),
        tuple(figures),
        tuple(tables),
    )


def adapt_markdown(records: Sequence[Record]) -> str:
    """The same tables in Markdown, one for each direction under its name."""
    parts = []
    for direction in directions_of(records):
        rows = [COLUMNS, ["---"] * len(COLUMNS), *_rows(records, direction)]
        lines = ["| " + " | ".join(map(_cell, row)) + " |" for row in rows]
        parts.append(f"**{_cell(direction)}**\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def adapt_arrays(records: Sequence[Record]) -> dict[str, np.ndarray]:
    """All numbers of the records by name, for `write_page`: one row a record, and the points of all curves in a row."""
    points = [(number, *point) for number, record in enumerate(records) for point in record.get("curve") or ()]
    numbers = {
        f"{key}_{name}": np.asarray([_number(of_seeds(record, key, name)) for record in records])
        for key, names in {
            "final": ("loss", "perplexity"),
            "before": ("loss", "perplexity"),
            "parameters": ("stored", "effective", "trained"),
        }.items()
        for name in names
    }
    return {
        **{key: np.asarray([record[key] for record in records]) for key in ("direction", "method", "system", "steps")},
        "seed": np.asarray([record["seed"] for record in records]),
        **numbers,
        "curve_record": np.asarray([number for number, _, _ in points], int),
        "curve_update": np.asarray([_number(update) for _, update, _ in points]),
        "curve_nats": np.asarray([_number(nats) for _, _, nats in points]),
    }


def directions_of(records: Sequence[Record]) -> list[str]:
    """The directions in the order of their first record."""
    return list(dict.fromkeys(record["direction"] for record in records))


def findings(records: Sequence[Record]) -> list[str]:
    """For each direction and method one sentence: the order in which the systems end, and what scratch reaches."""
    said = []
    for direction in directions_of(records):
        scratch = _finals(records, direction, "scratch")
        for method in ("lora", "full"):
            ranked = _finals(records, direction, method)
            if not ranked:
                continue
            (best, lowest), *rest = ranked
            line = f"{direction}, {METHODS[method]}: {best} ends lowest, at perplexity {perplexity(lowest)}"
            if rest:
                line += f", before {join([f'{system} ({perplexity(mean)})' for system, mean in rest])}"
            if scratch:
                line += f"; from scratch {join([f'{system} reaches {perplexity(mean)}' for system, mean in scratch])}"
            said.append(f"{line}.")
    return said


def _overall(records: Sequence[Record]) -> list[str]:
    """Which system ends lowest how often, if there are several comparisons."""
    pairs = [(direction, method) for direction in directions_of(records) for method in ("lora", "full")]
    best = [ranked[0][0] for pair in pairs if (ranked := _finals(records, *pair))]
    if len(best) < 2:
        return []
    counts = {system: best.count(system) for system in dict.fromkeys(best)}
    said = [f"{system} in {number}" for system, number in sorted(counts.items(), key=lambda one: -one[1])]
    return [f"Of {len(best)} comparisons (a text and a method), {join(said)} ends at the lowest perplexity."]


def _finals(records: Sequence[Record], direction: str, method: str) -> list[tuple[str, float]]:
    """Systems and their mean final perplexity, lowest first."""
    own = [record for record in records if (record["direction"], record["method"]) == (direction, method)]
    found = []
    for system in dict.fromkeys(record["system"] for record in own):
        ends = mean_and_spread([of_seeds(r, "final", "perplexity") for r in own if r["system"] == system])
        if ends is not None:
            found.append((system, ends[0]))
    return sorted(found, key=lambda one: one[1])


def _rows(records: Sequence[Record], direction: str) -> list[list[str]]:
    """A row for each method, system and number of steps of a direction; numbers are means and spreads over seeds."""
    groups: dict[tuple[str, str, int], list[Record]] = {}
    for method in METHODS:
        for record in records:
            if (record["direction"], record["method"]) == (direction, method):
                groups.setdefault((record["system"], method, record["steps"]), []).append(record)
    rows = []
    for (system, method, steps), own in groups.items():
        final, before = ([of_seeds(r, key, "perplexity") for r in own] for key in ("final", "before"))
        counts = [compact(of_seeds(own[0], "parameters", name)) for name in ("trained", "stored", "effective")]
        seeds = str(len({record["seed"] for record in own}))
        rows.append([system, METHODS[method], str(steps), seeds, with_spread(final), with_spread(before), *counts])
    return rows


def _terms(records: Sequence[Record]) -> str:
    several = len({record["seed"] for record in records}) > 1
    spread = (
        "Numbers are means over seeds and, behind ±, their standard deviation."
        if several
        else "Each was trained once, so a small difference can be chance."
    )
    return (
        f"Perplexities are those of the whole validation split of the new text. {spread} Trained, stored and "
        "populated are numbers of parameters: those that training changes, all, and those left once weights are "
        "written out for the steps."
    )


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")


def _cell(text: str) -> str:
    """Text that is one cell of a Markdown table and no markup."""
    line = " ".join(clean(text).split())
    return "".join(f"\\{c}" if c in "\\`*_[]<>|#$~&" else c for c in line)
