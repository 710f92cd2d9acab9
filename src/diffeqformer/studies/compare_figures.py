"""Two models on the same tasks, as in the paper's figures 9 to 12: accuracies with standard errors, and differences."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from diffeqformer.evaluation.paired import Difference
from diffeqformer.interop.comparing import Comparison
from diffeqformer.report.figures import INK, MARKERS, WIDE, color, drawing, is_narrow, legend, look
from diffeqformer.report.text import signed
from diffeqformer.studies.compare import accuracies, label, stars


def task_figure(comparison: Comparison, *, width: float = WIDE) -> Figure:
    """Plot the accuracies of both models with ± one standard error, and their differences with 95 % intervals.

    A difference is filled if it is significant after Holm's correction. `width` in inches; below 5 panels are stacked.
    """
    rows = accuracies(comparison)
    places, height = list(range(len(rows)))[::-1], 1.5 + 0.34 * max(len(rows), 2)
    shape = (2 * height, 2, 1) if is_narrow(width) else (height, 1, 2)
    with drawing(width, *shape, sharey=not is_narrow(width)) as (figure, panels):
        axes = list(panels.flat)
        for side, lift in ((0, 0.14), (1, -0.14)):
            axes[0].errorbar(
                [100 * (row.values[side] or 0) for row in rows], [place + lift for place in places],
                xerr=[100 * (row.stderrs[side] or 0) for row in rows],
                fmt=MARKERS[side], color=color(side), elinewidth=1.2, capsize=2,
            )  # fmt: skip
        axes[0].set_xlabel("accuracy (%), ± standard error")
        axes[1].axvline(0, color=INK, linewidth=0.8)
        for place, row in zip(places, rows, strict=True):
            if row.difference is not None:
                _draw_difference(axes[1], place, row.difference, stars(row.holm))
        axes[1].set_xlabel("difference (points), 95 % interval")
        for axis in panels[:, 0]:  # a pair of dollar signs is not a formula here
            axis.set_yticks(places, [label(row) for row in rows], parse_math=False)
        for axis in axes:
            axis.set_ylim(-0.6, len(rows) - 0.4)
        legend(figure, [(look(i, linestyle="None"), side.name) for i, side in enumerate(comparison.sides)], width)
    return figure


def _draw_difference(axis: Axes, place: int, found: Difference, marks: str) -> None:
    """Draw the point, its interval and its stars, in the colour of the better model if that is significant."""
    shade = color(0 if found.value > 0 else 1) if marks else INK
    # In percentage points: 196 is 100 times 1.96 standard errors.
    axis.errorbar(
        [100 * found.value], [place], xerr=[196 * found.stderr], fmt="o", color=shade, elinewidth=1.2, capsize=2,
        markerfacecolor=shade if marks else "none",
    )  # fmt: skip
    axis.annotate(
        f"{signed(100 * found.value, 1)}{marks}", (100 * found.value, place),
        xytext=(0, 4), textcoords="offset points", ha="center", va="bottom", color=shade, fontsize=8,
    )  # fmt: skip
