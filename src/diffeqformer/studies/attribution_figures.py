"""Figures of the test of explanations."""

from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

from diffeqformer.analysis.faithfulness import Faithfulness, interval
from diffeqformer.report.figures import INK, MARKERS, WIDE, color, legend, style

LINES: tuple[Any, ...] = ("-", (0, (4, 1.5)))
"""Styles that tell apart methods of the same colour."""


def correlations(found: Faithfulness, *, width: float = WIDE) -> Figure:
    """Rank correlation of every method with what replacing a token changes, the best on top; 95% intervals."""
    order = found.ranking("strength")[::-1]
    measures = {"strength": "of strengths, without signs", "direction": "of directions, with signs"}
    with style():
        stacked = width < 5
        figure = Figure(figsize=(width, (6.4 if stacked else 3.6)), layout="constrained")
        shape: dict[str, Any] = {"nrows": 2, "sharex": True} if stacked else {"ncols": 2, "sharey": True}
        axes: Any = figure.subplots(**shape)
        for index, (axis, (measure, title)) in enumerate(zip(axes, measures.items(), strict=True)):
            estimates = found.estimates(measure)
            for row, method in enumerate(order):
                one = estimates[method]
                axis.plot([one.low, one.high], [row, row], color=color(index), linewidth=2.2, alpha=0.6)
                axis.plot([one.mean], [row], color=color(index), marker=MARKERS[index])
            axis.axvline(0.0, color=INK, linewidth=0.8)
            axis.yaxis.set_major_locator(FixedLocator(list(range(len(order)))))
            axis.set_yticklabels(order)
            axis.set_title(title)
            if index == 1 or not stacked:
                axis.set_xlabel("rank correlation")
    return figure


def curves(found: Faithfulness, *, width: float = WIDE) -> Figure:
    """Deletion and insertion: change of the log-probability against the number of tokens, mean over contexts."""
    with style():
        stacked = width < 5
        figure = Figure(figsize=(width, 7.2 if stacked else 4.2), layout="constrained")
        axes: Any = figure.subplots(2, 1) if stacked else figure.subplots(1, 2)
        handles = []
        for index in range(len(found.methods)):
            look: dict[str, Any] = {
                "color": color(index), "linestyle": LINES[index // 6 % 2], "marker": MARKERS[index % len(MARKERS)],
            }  # fmt: skip
            handles.append(Line2D([], [], **look))
            for axis, values in zip(axes, (found.deletion, found.insertion), strict=True):
                low, high = interval(values[:, index])
                axis.plot(found.counts, values[:, index].mean(0), **look)
                axis.fill_between(found.counts, low, high, color=color(index), alpha=0.10, linewidth=0)
        titles = ("deletion: fall of log p (nats)", "insertion: rise of log p (nats)")
        for axis, title, label in zip(axes, titles, ("tokens replaced", "tokens put back"), strict=True):
            axis.set_xscale("log", base=2)
            axis.xaxis.set_major_locator(FixedLocator(found.counts.tolist()))
            axis.xaxis.set_minor_locator(NullLocator())
            axis.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axis.set_title(title)
            axis.set_xlabel(label)
        legend(figure, handles, list(found.methods), width)
    return figure
