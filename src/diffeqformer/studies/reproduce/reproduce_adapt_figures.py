"""Records of `reproduce adapt` as figures in the layout of the paper's figure 5, tables and sentences.

A record is a dictionary for one model, fine-tuned or trained from scratch:

    direction    "A → B", the text of pretraining and that of fine-tuning
    method       "lora", "full", or "scratch": trained on B alone, drawn beside both
    system       "DiffEqFormer 6 → 4", "GPT 8"
    steps, seed
    curve        [[update, nats], ...] of validation, from update 0
    final        {"loss", "perplexity"} of validation at the end
    before       the same before the first update; `None` from scratch
    parameters   {"stored", "effective", "trained"}

What is `None`, missing or not finite is left out of figures, and a dash in tables.
"""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import MaxNLocator

from diffeqformer.plain import Document, clean
from diffeqformer.report.figures import MARKERS, WIDE, color, drawing, is_narrow, legend, perplexity_scale, thin
from diffeqformer.report.page import both_widths
from diffeqformer.report.table import Table
from diffeqformer.report.text import compact, finite, finite_points, join, perplexity, with_spread
from diffeqformer.studies.reproduce.experiments import Rates, rates_table
from diffeqformer.studies.study import Result

Record = Document
System = tuple[str, bool]
"""A system's name, and whether it was trained from scratch."""
METHODS = {"lora": "LoRA", "full": "full", "scratch": "from scratch"}
"""The methods of records, in order, and their names in words."""
TUNED = ("lora", "full")
MOST = 5
"""Curves are cut where the perplexity is this many times the lowest: what matters is where they end."""
COLUMNS = (
    "system", "method", "steps", "seeds", "final perplexity", "before tuning", "trained", "stored", "populated",
)  # fmt: skip


def result_of(
    records: Sequence[Record], about: Sequence[str] = (), folder: Path = Path(), rates: Rates | None = None
) -> Result:
    """Build sentences from the records, a figure and a table for each direction, and the learning rates.

    **Arguments:** `records`, in the order in which systems are to be listed; `about`, further sentences; `rates`, the
    learning rates that were searched.
    """
    directions, systems = list(dict.fromkeys(record["direction"] for record in records)), systems_of(records)
    caption = (
        f"validation perplexity over updates (first; cut at {MOST} times the lowest) and at the end (second). Dashed: "
        "trained from scratch on the new text alone."
    )
    figures = (
        both_widths(f"adaptation-{index}", f"{direction}: {caption}", adaptation, records, direction, systems)
        for index, direction in enumerate(directions, 1)
    )
    return Result(
        "adapt", "Fine-tuning at other depths", (*findings(records, directions), *about, _terms(records)),
        (*(Table(direction, COLUMNS, _rows(records, direction)) for direction in directions),
         *([rates_table(rates, records[0]["seed"])] if rates else [])), tuple(figures),
        arrays=_arrays(records), document=list(records), folder=folder,
    )  # fmt: skip


def systems_of(records: Sequence[Record]) -> list[System]:
    """List systems in the order of their first record, and whether they are trained from scratch: those come last."""
    return sorted(dict.fromkeys(map(_system_of, records)), key=lambda one: one[1])


def _system_of(record: Record) -> System:
    return record["system"], record["method"] == "scratch"


def system_name(system: str, scratch: bool) -> str:
    """Name a system in words."""
    return f"{system}, from scratch" if scratch else system


def of_seeds(record: Record, key: str, name: str) -> Any:
    """Return a number of a record, or `None` if it is missing."""
    return (record.get(key) or {}).get(name)


def adaptation(records: Sequence[Record], direction: str, systems: Sequence[System], *, width: float = WIDE) -> Drawing:
    """Draw one direction: for each method the validation perplexity over updates, and where each system ends.

    Curves are means over seeds, dashed from scratch. Large points are means of the final perplexities, small ones
    seeds.

    **Arguments:** `systems`, as from `systems_of` for all directions: a system has one colour everywhere.
    """
    own = [record for record in records if record["direction"] == direction]
    methods = [m for m in TUNED if any(r["method"] == m for r in own)] or ["scratch"]
    here = [one for one in systems if _of(own, one)]
    stacked, last = is_narrow(width), 0.7 + 0.24 * len(here)
    each = 2.5 + last if stacked else max(2.9, 0.9 + 0.34 * len(here))
    shape: dict[str, Any] = {"rows": len(methods) * 2, "height_ratios": (2.5, last) * len(methods)}
    shape = shape if stacked else {"rows": len(methods), "columns": 2, "width_ratios": (3, 2)}
    with drawing(width, len(methods) * each + 0.3 + 0.2 * len(here) * stacked, **shape) as (figure, axes):
        for row, method in zip(axes.reshape(len(methods), 2), methods, strict=True):
            chosen = [record for record in own if record["method"] in (method, "scratch")]
            _curves(row[0], chosen, systems)
            _finals(row[1], chosen, systems, named=not stacked)
            row[0].set_title(METHODS[method] if method == "scratch" else f"fine-tuned: {METHODS[method]}")
        legend(figure, [(_look(systems, one), system_name(*one)) for one in here], width)
    return figure


def _curves(axis: Axes, records: Sequence[Record], systems: Sequence[System]) -> None:
    drawn = []
    for one in systems:
        curves = [dict(finite_points(r.get("curve") or ())) for r in _of(records, one)]
        mean = [
            # `math.exp` raises beyond 709, and the margin of a logarithmic axis overflows before that.
            (update, statistics.fmean(math.exp(min(c[update], 300.0)) for c in curves if update in c))
            for update in sorted({update for curve in curves for update in curve})
        ]
        if mean:
            drawn += [y for _, y in mean]
            shown = thin(mean)
            axis.plot(*zip(*shown, strict=True), **_look(systems, one), markevery=max(1, len(shown) // 8))
    most = MOST * min(drawn, default=0)
    perplexity_scale(axis, [min(y, most) for y in drawn], "validation perplexity")
    if drawn and max(drawn) > most:
        axis.set_ylim(top=most)
    axis.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axis.set_xlabel("updates")


def _finals(axis: Axes, records: Sequence[Record], systems: Sequence[System], *, named: bool) -> None:
    """Draw final perplexities with their values, one row per system, the first on top; `named` where there is room."""
    here = [one for one in systems if _of(records, one)]
    names, ends = [], []
    for row, one in enumerate(here):
        values = [of_seeds(record, "final", "perplexity") for record in _of(records, one)]
        look = {**_look(systems, one), "linestyle": "None"}
        known = [float(value) for value in values if finite(value)]
        ends += known
        if len(known) > 1:
            axis.plot(known, [row] * len(known), **{**look, "markersize": 3, "alpha": 0.6})
        if known:
            mean = statistics.fmean(known)
            axis.plot([mean], [row], **{**look, "markersize": 7})
            axis.annotate(
                with_spread(values), (max(known), row), xytext=(8, 0), textcoords="offset points", va="center"
            )
        names.append(" ".join(clean(system_name(*one)).split()))
    axis.set_ylim(len(here) - 0.4, -0.6)
    names = [name if len(name) <= 30 else f"{name[:29]}…" for name in names] if named else [""] * len(here)
    axis.set_yticks(range(len(here)), names, parse_math=False)
    axis.xaxis.set_major_locator(MaxNLocator(nbins=4))
    if ends:
        room = (max(ends) - min(ends)) or 0.1 * max(ends)
        axis.set_xlim(min(ends) - 0.1 * room, max(ends) + 0.7 * room)  # the values stand to the right of the points
    axis.set_xlabel("final perplexity")


def _of(records: Sequence[Record], system: System) -> list[Record]:
    return [record for record in records if _system_of(record) == system]


def _look(systems: Sequence[System], one: System) -> dict[str, Any]:
    """Return a system's colour and marker; trained from scratch it has the same, hollow and dashed."""
    (system, scratch), names = one, list(dict.fromkeys(name for name, _ in systems))
    index = names.index(system)
    marker = MARKERS[(index + index // len(MARKERS)) % len(MARKERS)]  # another one when the colours begin again
    hollow = {"markerfacecolor": "none", "linestyle": (0, (4, 2))} if scratch else {}
    return {"color": color(index), "marker": marker, **hollow}


def findings(records: Sequence[Record], directions: Sequence[str]) -> list[str]:
    """Say how often each system ends lowest; then, by direction and method, how all end, and what scratch reaches."""
    best, said = [], []
    for direction in directions:
        reached = [f"{system} reaches {perplexity(mean)}" for system, mean in _ranked(records, direction, "scratch")]
        for method in TUNED:
            if not (ranked := _ranked(records, direction, method)):
                continue
            (first, lowest), *rest = ranked
            best.append(first)
            line = f"{direction}, {METHODS[method]}: {first} ends lowest, at perplexity {perplexity(lowest)}"
            if rest:
                line += f", ahead of {join([f'{system} ({perplexity(mean)})' for system, mean in rest])}"
            said.append(f"{line}; from scratch, {join(reached)}." if reached else f"{line}.")
    if len(best) < 2:
        return said
    counts = sorted(((best.count(system), system) for system in dict.fromkeys(best)), key=lambda one: -one[0])
    overall = join([f"{system} in {times}" for times, system in counts])
    return [f"Lowest final perplexity in {len(best)} comparisons (a text and a method each): {overall}.", *said]


def _ranked(records: Sequence[Record], direction: str, method: str) -> list[tuple[str, float]]:
    """Rank systems by their mean final perplexity, lowest first."""
    own = [record for record in records if (record["direction"], record["method"]) == (direction, method)]
    found = []
    for system in dict.fromkeys(record["system"] for record in own):
        ends = [of_seeds(r, "final", "perplexity") for r in own if r["system"] == system]
        if known := [end for end in ends if finite(end)]:
            found.append((system, statistics.fmean(known)))
    return sorted(found, key=lambda one: one[1])


def _rows(records: Sequence[Record], direction: str) -> tuple[tuple[str, ...], ...]:
    """Build a row for each method, system and number of steps of a direction, with means and spreads over seeds."""
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
        rows.append((system, METHODS[method], str(steps), seeds, with_spread(final), with_spread(before), *counts))
    return tuple(rows)


def _terms(records: Sequence[Record]) -> str:
    several = len({record["seed"] for record in records}) > 1
    spread = (
        "Numbers are means over seeds, with the standard deviation after ±."
        if several
        else "Each was trained once, so a small difference may be due to chance."
    )
    return (
        f"Perplexities are on the whole validation split of the new text. {spread} Trained, stored and populated "
        "are parameter counts: those that training changes, all of them, and those of the model once it is populated "
        "at its number of steps."
    )


def _arrays(records: Sequence[Record]) -> dict[str, np.ndarray]:
    """Return all numbers of the records by name: one row per record, and the points of all curves one after another."""
    points = [(number, *point) for number, record in enumerate(records) for point in record.get("curve") or ()]
    names = [(key, name) for key in ("final", "before") for name in ("loss", "perplexity")]
    names += [("parameters", name) for name in ("stored", "effective", "trained")]
    own = ("direction", "method", "system", "steps", "seed")
    return {
        **{key: np.asarray([record[key] for record in records]) for key in own},
        **{f"{k}_{n}": np.asarray([of_seeds(record, k, n) for record in records], float) for k, n in names},
        "curve_record": np.asarray([number for number, _, _ in points], int),
        "curve_update": np.asarray([update for _, update, _ in points], float),
        "curve_nats": np.asarray([nats for _, _, nats in points], float),
    }  # NaN for `None`
