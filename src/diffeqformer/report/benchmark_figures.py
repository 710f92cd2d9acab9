"""The figures of the page of benchmarks."""

from collections.abc import Callable, Mapping
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, LogLocator

from diffeqformer.report.figures import INK, MARKERS, WIDE, color, gradient_memory, legend, plain_log, style


def scaling(found: Mapping[str, Any], *, width: float = WIDE) -> Figure:
    """Milliseconds an update against each size that grows, and, dashed, what the operations alone would make of it.

    A dashed line is as steep as the counted operations, and begins at the measured time of the largest size.

    **Arguments:** `found`, the document of `bench scaling`; `width` in inches.
    """
    axes_named = list(dict.fromkeys(row["axis"] for row in found["rows"]))
    models = list(dict.fromkeys(row["model"] for row in found["rows"]))
    with style():
        figure = Figure(figsize=(width, 3.2), layout="constrained", facecolor="white")
        panels: Any = figure.subplots(ncols=len(axes_named), sharey=True, squeeze=False)[0]
        for panel, name in zip(panels, axes_named, strict=True):
            own = [row for row in found["rows"] if row["axis"] == name]
            sizes = sorted({size for row in own for size in row["sizes"]})
            for row in own:
                index = models.index(row["model"])
                look = {"color": color(index)}
                times = [1e3 * one["median_seconds"] for one in row["seconds"]]
                panel.plot(row["sizes"], times, marker=MARKERS[index % len(MARKERS)], **look)
                counted = [times[-1] * operations / row["flops"][-1] for operations in row["flops"]]
                panel.plot(row["sizes"], counted, linestyle="--", linewidth=1, **look)
            panel.set_xscale("log", base=2)
            panel.set_yscale("log")
            panel.xaxis.set_major_locator(FixedLocator(sizes))
            plain_log(panel.xaxis)
            plain_log(panel.yaxis)
            panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            panel.set_xlabel(name)
        panels[0].set_ylabel("ms an update")
        handles = [Line2D([], [], color=color(i), marker=MARKERS[i % len(MARKERS)]) for i in range(len(models))]
        dashed = Line2D([], [], color=INK, linestyle="--", linewidth=1)
        legend(figure, [*handles, dashed], [*models, "as operations grow"], width)
    return figure


FIGURES: Mapping[str, Callable[[Mapping[str, Any]], Figure]] = {
    "memory": lambda found: gradient_memory(found["rows"]),
    "scaling": scaling,
}
"""By the name of the benchmark."""
