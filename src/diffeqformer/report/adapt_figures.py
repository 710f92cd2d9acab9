"""Figures of fine-tuning at other depths: the layout of the paper's figure 5.

A record is one fine-tuned, or newly trained, model as a dictionary:

    direction    "A -> B", the text of pretraining and that of fine-tuning
    method       "lora", "full", or "scratch": trained on B alone, drawn beside both
    system       "DiffEqFormer 6 -> 4", "GPT 8"
    steps, seed
    curve        [[update, nats], ...] of validation, from update 0
    final        {"loss", "perplexity"} of validation at the end
    before       the same before the first update; none from scratch
    parameters   {"stored", "effective", "trained"}

What is none, missing or not finite is left out of figures, and a dash in tables.
"""

import math
import statistics
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, MaxNLocator

from diffeqformer.report.figures import MARKERS, WIDE, color, finite_points, legend, perplexity_scale, style, thin
from diffeqformer.report.text import MISSING, clean, finite, number, perplexity

Record = dict[str, Any]
METHODS = {"lora": "LoRA", "full": "full", "scratch": "from scratch"}
"""The methods of records, in order, and how they are written."""
MOST = 5
"""Curves are cut where the perplexity is as many times the lowest: what matters is where they end."""


def systems_of(records: Sequence[Record]) -> list[tuple[str, bool]]:
    """Systems in the order of their first record, and whether they are trained from scratch: those come last."""
    found = dict.fromkeys((record["system"], record["method"] == "scratch") for record in records)
    return sorted(found, key=lambda one: one[1])


def system_name(system: str, scratch: bool) -> str:
    """A system in words."""
    return f"{system}, from scratch" if scratch else system


def mean_and_spread(values: Sequence[Any]) -> tuple[float, float | None] | None:
    """Mean and standard deviation over seeds of the numbers that are finite; the latter of two or more only."""
    known = [float(value) for value in values if finite(value)]
    if not known:
        return None
    return statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None


def with_spread(values: Sequence[Any]) -> str:
    """Perplexities over seeds as `21.40 ± 0.12`; a dash for none."""
    found = mean_and_spread(values)
    if found is None:
        return MISSING
    mean, spread = found
    if spread is None:
        return perplexity(mean)
    decimals = len(perplexity(mean).partition(".")[2]) if mean < 1e6 else 2
    return f"{perplexity(mean)} ± {number(spread, decimals)}"


def of_seeds(record: Record, key: str, name: str) -> Any:
    """A number of a record that may be missing."""
    return (record.get(key) or {}).get(name)


def adaptation(
    records: Sequence[Record], direction: str, systems: Sequence[tuple[str, bool]], *, width: float = WIDE
) -> Figure:
    """One direction: for each method the validation perplexity over updates, and where each system ends.

    Curves are means over seeds, dashed from scratch. Large points are means of the final perplexities, small ones
    seeds.

    **Arguments:** `records`, of all directions; `direction`, the one to draw; `systems`, as `systems_of` all records,
    so that a system has one colour everywhere; `width` in inches, panels are stacked below 5.
    """
    own = [record for record in records if record["direction"] == direction]
    methods = [m for m in METHODS if m != "scratch" and any(r["method"] == m for r in own)] or ["scratch"]
    here = [one for one in systems if any((r["system"], r["method"] == "scratch") == one for r in own)]
    stacked = width < 5
    with style():
        last = 0.7 + 0.24 * len(here)
        each = 2.5 + last if stacked else max(2.9, 0.9 + 0.34 * len(here))
        figure = Figure(figsize=(width, len(methods) * each + 0.3 + 0.2 * len(here) * stacked), layout="constrained")
        shape: dict[str, Any] = {"nrows": len(methods) * 2, "height_ratios": (2.5, last) * len(methods)}
        shape = shape if stacked else {"nrows": len(methods), "ncols": 2, "width_ratios": (3, 2)}
        axes: Any = figure.subplots(**shape, squeeze=False).reshape(len(methods), 2)
        for row, method in zip(axes, methods, strict=True):
            chosen = [record for record in own if record["method"] in (method, "scratch")]
            _curves(row[0], chosen, systems)
            _finals(row[1], chosen, systems, named=not stacked)
            row[0].set_title(METHODS[method] if method == "scratch" else f"fine-tuned: {METHODS[method]}")
        handles = [Line2D([], [], **_look(systems, one)) for one in here]
        legend(figure, handles, [system_name(*one) for one in here], width)
    return figure


def _curves(axis: Any, records: Sequence[Record], systems: Sequence[tuple[str, bool]]) -> None:
    drawn = []
    for one in systems:
        curves = [dict(finite_points(r.get("curve") or ())) for r in _of(records, one)]
        mean = [
            (update, statistics.fmean(math.exp(min(c[update], 700.0)) for c in curves if update in c))
            for update in sorted({update for curve in curves for update in curve})
        ]
        if mean:
            drawn += [y for _, y in mean]
            axis.plot(*zip(*thin(mean), strict=True), **_look(systems, one), markevery=max(1, len(thin(mean)) // 8))
    most = MOST * min(drawn, default=0)
    perplexity_scale(axis, [min(y, most) for y in drawn])
    if drawn and max(drawn) > most:
        axis.set_ylim(top=most)
    axis.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axis.set_xlabel("updates")
    axis.set_ylabel("validation perplexity")


def _finals(axis: Any, records: Sequence[Record], systems: Sequence[tuple[str, bool]], *, named: bool) -> None:
    """Final perplexities as points with their values, a row a system, the first on top; `named` where there is room."""
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
    axis.yaxis.set_major_locator(FixedLocator(list(range(len(here)))))
    names = [name if len(name) <= 30 else f"{name[:29]}…" for name in names] if named else [""] * len(here)
    for label in axis.set_yticklabels(names):
        label.set_parse_math(False)  # a pair of dollars is no formula here
    axis.xaxis.set_major_locator(MaxNLocator(nbins=4))
    if ends:
        room = (max(ends) - min(ends)) or 0.1 * max(ends)
        axis.set_xlim(min(ends) - 0.1 * room, max(ends) + 0.7 * room)  # the values stand to the right of the points
    axis.set_xlabel("final perplexity")


def _of(records: Sequence[Record], system: tuple[str, bool]) -> list[Record]:
    return [record for record in records if (record["system"], record["method"] == "scratch") == system]


def _look(systems: Sequence[tuple[str, bool]], one: tuple[str, bool]) -> dict[str, Any]:
    """A colour and marker for each system; from scratch the same, hollow and dashed."""
    (system, scratch), names = one, list(dict.fromkeys(name for name, _ in systems))
    index = names.index(system)
    marker = MARKERS[(index + index // len(MARKERS)) % len(MARKERS)]  # another one when the colours begin again
    hollow = {"markerfacecolor": "none", "linestyle": (0, (4, 2))} if scratch else {}
    return {"color": color(index), "marker": marker, **hollow}
