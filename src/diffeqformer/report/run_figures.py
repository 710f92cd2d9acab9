"""The figures of a run's report; each takes the entries of the results' `models` and returns a Matplotlib `Figure`."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from diffeqformer.report.figures import INK, WIDE, color, drawing, is_narrow, legend, log_axis, look, steps_axis, thin
from diffeqformer.report.run_text import Model, at_several, compute_at, depth_points, depths_trained_at, own_loss
from diffeqformer.report.text import counted_steps, finite, finite_points, ranges

Points = Sequence[tuple[float, float]]


def smooth_window(points: Sequence[object]) -> int:
    """Number of points in a curve's moving average: odd, about a thirtieth of the curve."""
    return 2 * (len(points) // 60) + 1


def smooth(points: Points) -> list[tuple[float, float]]:
    """Centred moving average over `smooth_window` points; the ends, where the window is incomplete, are left out."""
    if not points:
        return []
    x, y = np.transpose(points)
    window = smooth_window(points)
    means = np.convolve(y, np.full(window, 1 / window), "valid")
    return list(zip(x[window // 2 :][: len(means)].tolist(), means.tolist(), strict=True))


def loss_curves(models: Sequence[Model], *, width: float = WIDE, against_compute: bool = False) -> Figure:
    """Plot training and validation loss against updates: all of them and, in a second panel, the last third.

    Training losses are drawn raw (faint) and as a moving average; validation losses as points.

    **Arguments:** `width` in inches, panels are stacked below 5; `against_compute`, plot against the steps of depth
    summed over all updates so far instead of against the number of updates.
    """
    curves: list[tuple[list, list]] = []
    for m in models:
        place = (lambda x, m=m: compute_at(m, x)) if against_compute else float
        kinds = (finite_points(m["curve"][kind]) for kind in ("train", "validation"))
        train, validation = ([(place(x), y) for x, y in points] for points in kinds)
        curves.append((train, validation))
    late = (2 / 3) * max((x for both in curves for points in both for x, _ in points), default=0)
    detail = max((sum(x >= late for x, _ in train) for train, _ in curves), default=0) >= 5
    stacked = is_narrow(width)
    height = (2.7 if not detail else 4.9) + 0.2 * len(models) if stacked else 3.7
    shape = {} if not detail else {"rows": 2} if stacked else {"columns": 2, "width_ratios": (3, 2)}
    with drawing(width, height, **shape) as (figure, grid):
        axes = list(grid.flat)
        for axis, start in zip(axes, (-math.inf, late), strict=False):
            _draw_losses(axis, curves, start)
            axis.set_xlabel("compute (steps of depth, summed over updates)" if against_compute else "updates")
            axis.set_ylabel("loss (nats per token)")
            axis.xaxis.set_major_locator(MaxNLocator(nbins=4 if stacked or start > 0 else 6, integer=True))
            axis.margins(x=0.03)
        if detail:
            axes[0].set_title("all compute" if against_compute else "all updates")
            axes[1].set_title("the last third")
        legend(figure, [(look(i), m["name"]) for i, m in enumerate(models)], width)
    return figure


def _draw_losses(axis: Axes, curves: Sequence[tuple[Points, Points]], start: float) -> None:
    """Draw each model's curves in its colour, from `start` on."""
    for index, (train, validation) in enumerate(curves):
        # Averages are taken over the whole curve, so both panels show the same line.
        looks = [
            (train, {"color": color(index), "alpha": 0.25, "linewidth": 0.8}),
            (smooth(train), {"color": color(index)}),
            (validation, look(index, linestyle="None")),
        ]
        for points, own in looks:
            if shown := [p for p in points if p[0] >= start]:
                axis.plot(*zip(*thin(shown), strict=True), **own)


def uniform_loss(models: Sequence[Model], vocabulary: int | None) -> float | None:
    """`ln(vocabulary)`, the loss of uniform guessing, if some depth's loss comes near it or exceeds it; else `None`."""
    losses = [p["loss"] for m in models if at_several(m) for p in depth_points(m) if finite(p["loss"])]
    guess = math.log(vocabulary) if vocabulary else math.inf
    return guess if losses and max(losses) > 0.85 * guess else None


def depth_curve(models: Sequence[Model], vocabulary: int | None = None, *, width: float = WIDE) -> Figure:
    """Plot validation loss against the number of steps a model is run at, without fine-tuning.

    Models that were run only at their own depth are horizontal reference lines at their loss there. Depths that a
    model was trained at are ringed, and labelled on the axis if there is only one. The loss axis is logarithmic if the
    largest loss is more than four times the smallest.

    **Arguments:** `vocabulary`, to show the loss of guessing where `uniform_loss` returns it; `width` in inches.
    """
    shown, steps, losses, trained = [], set(), [], set()
    with drawing(width, 3.1 + 0.2 * len(models) if is_narrow(width) else 3.7) as (figure, axes):
        axis = axes[0, 0]
        for index, model in enumerate(models):
            if not at_several(model):
                if finite(level := own_loss(model)):
                    losses.append(level)
                    line = axis.axhline(level, color=color(index), linestyle=(0, (5, 2)), linewidth=1.3)
                    shown.append((line, f"{model['name']} ({counted_steps(model['steps'])})"))
                continue
            points = [(p["steps"], p["loss"]) for p in depth_points(model) if finite(p["loss"])]
            steps.update(p["steps"] for p in depth_points(model))
            losses += [loss for _, loss in points]
            own = depths_trained_at(model)
            trained |= {*own} if len(own) == 1 else set()
            if points:
                axis.plot(*zip(*points, strict=True), **look(index))
            for x, y in points:
                if x in own:
                    axis.plot([x], [y], "o", markersize=11, markerfacecolor="none", markeredgecolor=color(index))
            how = "not fine-tuned" if len(own) == 1 else f"trained at {ranges(own)} steps"
            shown.append((look(index), f"{model['name']}, {how}"))
        if (guess := uniform_loss(models, vocabulary)) is not None:
            line = axis.axhline(guess, color=INK, linestyle=":", linewidth=1.1)
            shown.append((line, f"guessing uniformly (ln {vocabulary:,})"))
        steps_axis(axis, steps, trained, width, own="trained")
        if losses and max(losses) > 4 * min(losses) > 0:
            log_axis(axis, "y")
        axis.margins(y=0.07)
        axis.set_ylabel("validation loss (nats per token)")
        legend(figure, shown, width)
    return figure
