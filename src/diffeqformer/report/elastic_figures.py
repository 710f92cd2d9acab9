"""The figure of one checkpoint for every depth, beside models of one depth each (`experiments.elastic`)."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator

from diffeqformer.report.adapt_figures import mean_and_spread
from diffeqformer.report.figures import MARKERS, WIDE, color, legend, perplexity_scale, plain_log, spaced, style
from diffeqformer.report.text import finite

Record = dict[str, Any]
KINDS = {
    "elastic": "one elastic checkpoint, read at every depth",
    "dedicated": "DiffEqFormer, trained at that depth alone",
    "vanilla": "GPT of that depth",
    "fixed": "DiffEqFormer of one depth, read elsewhere",
}
"""The kinds of records, in order, and how they are written."""
MOST = 3
"""The axis ends at as many times the highest perplexity of a model at a depth that it was trained at."""


def means(records: Sequence[Record], kind: str) -> dict[int, float]:
    """Mean perplexity over seeds by number of steps, where any is finite."""
    found = {}
    for steps in sorted({r["steps"] for r in records if r["kind"] == kind}):
        mean = mean_and_spread(values(records, kind, steps))
        if mean is not None:
            found[steps] = mean[0]
    return found


def values(records: Sequence[Record], kind: str, steps: int) -> list[Any]:
    """The perplexities of all seeds."""
    return [r["perplexity"] for r in records if (r["kind"], r["steps"]) == (kind, steps)]


def every_depth(records: Sequence[Record], *, width: float = WIDE) -> Figure:
    """Perplexity against the number of steps: lines for what one checkpoint reads, hollow marks for dedicated models.

    Points are means over seeds, small ones seeds. Readings above `MOST` times what any trained depth has leave the top.
    """
    with style():
        figure = Figure(figsize=(width, 4.0 if width >= 5 else 4.4), layout="constrained")
        axis: Any = figure.subplots()
        trained = [y for kind in ("elastic", "dedicated", "vanilla") for y in means(records, kind).values()]
        most = MOST * max(trained, default=1.0)
        handles, names, drawn = [], [], []
        for index, (kind, name) in enumerate(KINDS.items()):
            curve = means(records, kind)
            if not curve:
                continue
            if kind == "fixed":  # its own depth is one of the dedicated ones
                curve |= {s: y for s, y in means(records, "dedicated").items() if s in _middle(records)}
            look = _look(index, kind)
            line = sorted(curve.items())
            axis.plot(*zip(*line, strict=True), **look)
            for steps in curve:
                seeds = [y for y in values(records, kind, steps) if finite(y)]
                if len(seeds) > 1:
                    axis.plot([steps] * len(seeds), seeds, linestyle="None", marker=".", color=color(index), alpha=0.6)
            drawn += [min(y, most) for y in curve.values()]
            handles.append(Line2D([], [], **look))
            names.append(name)
        steps = {r["steps"] for r in records}
        axis.set_xscale("log", base=2)
        plain_log(axis.xaxis)
        axis.xaxis.set_major_locator(FixedLocator(spaced(steps, _middle(records), 0.25 / width, logarithmic=True)))
        perplexity_scale(axis, drawn)
        if any(y > most for y in means(records, "fixed").values()):
            axis.set_ylim(top=most)
        axis.set_xlabel("steps run (depth)")
        axis.set_ylabel("validation perplexity")
        legend(figure, handles, names, width)
    return figure


def _middle(records: Sequence[Record]) -> set[int]:
    """The depth of the dedicated model that was read elsewhere: the only reference that has no reading as fixed."""
    fixed = {r["steps"] for r in records if r["kind"] == "fixed"}
    elastic = {r["steps"] for r in records if r["kind"] == "elastic"}
    return elastic - fixed if fixed else set()


def _look(index: int, kind: str) -> dict[str, Any]:
    """What one checkpoint reads is a line, what was trained for a depth a hollow mark."""
    look = {"color": color(index), "marker": MARKERS[index % len(MARKERS)]}
    if kind in ("elastic", "fixed"):
        return look | ({"linestyle": "--", "markersize": 4} if kind == "fixed" else {"zorder": 3})
    return look | {"linestyle": "None", "markerfacecolor": "none", "markersize": 7, "markeredgewidth": 1.4}
