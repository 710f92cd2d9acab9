"""Figures of quality against depth and against compute."""

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from diffeqformer.evaluation.depth import DepthCurve
from diffeqformer.evaluation.perplexity import Evaluation
from diffeqformer.report.figures import (
    WIDE,
    color,
    drawing,
    is_narrow,
    legend,
    log_axis,
    look,
    perplexity_scale,
    spaced,
    steps_axis,
)  # fmt: skip
from diffeqformer.report.text import finite
from diffeqformer.studies.depth import group_name, groups_of

Place = Callable[[float, Evaluation], float]
"""Maps a number of steps and its evaluation to a position on the horizontal axis."""
ADAPTIVE: dict[str, Any] = {"color": color(0), "linestyle": ":", "linewidth": 1.2}
"""Style of the line at the perplexity with adaptive steps."""


def field_evaluations(found: Evaluation) -> float:
    """Evaluations of the field for the whole text: evaluations per token (mean of its two halves) times tokens."""
    return (found.attention_evaluations + found.feed_forward_evaluations) / 2 * found.tokens


def quality_over_depth(curve: DepthCurve, *, width: float = WIDE) -> Figure:
    """Plot perplexity against the number of steps, without fine-tuning; other models are marks at their own depth."""
    with drawing(width, 3.3 + 0.2 * len(groups_of(curve)) if is_narrow(width) else 3.7) as (figure, axes):
        axis = axes[0, 0]
        drawn = _draw(axis, curve, lambda steps, found: float(steps))
        exits = sorted((curve.mean_steps(found), found.perplexity) for found in curve.exits.values())
        if line := [point for point in exits if finite(point[1])]:
            axis.plot(*zip(*line, strict=True), **_exit_look(curve))
            drawn += line
        steps = {*curve.points, *(mark.steps for mark in curve.marks)}
        steps_axis(axis, steps, {curve.own}, width, own="own depth")
        perplexity_scale(axis, [y for _, y in drawn], "perplexity")
        _legend(figure, curve, width)
    return figure


def quality_over_compute(curve: DepthCurve, *, width: float = WIDE) -> Figure:
    """Plot perplexity against speed, and against evaluations of the field; the numbers at the points are steps."""
    panels: dict[str, Place] = {
        "tokens per second": lambda steps, found: found.tokens_per_second,
        "evaluations of the field × tokens (millions)": lambda steps, found: field_evaluations(found) / 1e6,
    }
    stacked = is_narrow(width)
    height, shape = (6.2 + 0.2 * len(groups_of(curve)), (2, 1)) if stacked else (3.7, (1, 2))
    first = {curve.own, *curve.trained_at}  # where labels would overlap, trained depths take precedence
    written = spaced({*curve.points}, first, 0.3 / (width if stacked else width / 2), logarithmic=True)
    with drawing(width, height, *shape, sharey=not stacked) as (figure, axes):
        for axis, (label, place) in zip(axes.flat, panels.items(), strict=True):
            drawn = _draw(axis, curve, place, written)
            far = [x for x, _ in drawn]
            if far and max(far) > 3 * min(far) > 0:
                log_axis(axis, "x")
            else:
                axis.xaxis.set_major_locator(MaxNLocator(nbins=5))
            axis.margins(x=0.08)
            axis.set_xlabel(label)
            perplexity_scale(axis, [y for _, y in drawn], "perplexity" if axis in axes[:, 0] else "")
            axis.margins(y=0.17)  # room for the label below the lowest point
        _legend(figure, curve, width)
    return figure


def _exit_look(curve: DepthCurve) -> dict[str, Any]:
    return {"color": color(len(groups_of(curve)) + 1), "marker": "x", "linestyle": "--", "zorder": 2.5}


def _draw(
    axis: Axes, curve: DepthCurve, place: Place, written: Sequence[int] | None = None
) -> list[tuple[float, float]]:
    """Draw the curve and its marks; if `written` is given, with step numbers at those points and at all marks.

    **Returns:** the points that could be drawn.
    """
    drawn = []
    line = [(place(steps, found), found.perplexity, steps) for steps, found in curve.points.items()]
    line = [point for point in line if finite(point[1])]
    xs, ys = [x for x, _, _ in line], [y for _, y, _ in line]
    axis.plot(xs, ys, color=color(0), alpha=1.0 if written is None else 0.35)  # faint under the labels
    axis.plot(xs, ys, **look(0, linestyle="None"))
    for place_in_line, (x, y, steps) in enumerate(line):
        drawn.append((x, y))
        if steps in curve.trained_at:
            axis.plot([x], [y], "o", markersize=11, markerfacecolor="none", markeredgecolor=color(0))
        if steps in (written or ()):
            around = ys[max(0, place_in_line - 1) : place_in_line + 2]
            _write(axis, str(steps), (x, y), color(0), (0, -9) if y == min(around) else (0, 7))
    if curve.adaptive and finite(y := curve.reference.perplexity) and xs:
        drawn.append((xs[0], y))
        axis.axhline(y, **ADAPTIVE)
    for index, ((tuned, _), marks) in enumerate(groups_of(curve).items(), 1):
        for mark in marks:
            x, y = place(mark.steps, mark.found), mark.found.perplexity
            if finite(y):
                drawn.append((x, y))
                axis.plot([x], [y], linestyle="None", zorder=3, **_look(index, tuned))
                if written is not None:
                    _write(axis, str(mark.steps), (x, y), color(index), (7, 0))
    return drawn


def _look(index: int, tuned: bool) -> dict[str, Any]:
    """Marker style of a model: filled if it was fine-tuned, hollow for references."""
    return look(index, markersize=6, markerfacecolor=color(index) if tuned else "none", markeredgewidth=1.4)


def _write(axis: Axes, text: str, point: tuple[float, float], shade: str, offset: tuple[int, int]) -> None:
    """Write a short label next to a point, at an `offset` in typographic points."""
    sideways, up = offset
    axis.annotate(
        text, point, xytext=offset, textcoords="offset points", color=shade, fontsize=8,
        ha="left" if sideways else "center", va="center" if sideways else "bottom" if up > 0 else "top",
    )  # fmt: skip


def _legend(figure: Figure, curve: DepthCurve, width: float) -> None:
    shown = [(look(0), f"{curve.name}, not fine-tuned")]
    if curve.adaptive:
        shown.append((ADAPTIVE, curve.adaptive.name))
    for index, (tuned, group) in enumerate(groups_of(curve), 1):
        shown.append((_look(index, tuned) | {"linestyle": "None"}, group_name(tuned, group)))
    if curve.exits:
        shown.append((_exit_look(curve), f"early exit from {max(curve.points)} steps (mean taken)"))
    legend(figure, shown, width)
