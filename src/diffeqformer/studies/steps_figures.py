"""Figures of what each step does."""

import numpy as np
from matplotlib.figure import Figure

from diffeqformer.analysis.participation import Participation
from diffeqformer.report.figures import MARKERS, WIDE, color, drawing, legend


def loss_by_step(
    found: Participation, tuned: tuple[np.ndarray, np.ndarray] | None = None, *, width: float = WIDE
) -> Figure:
    """Loss and KL divergence of the prediction after every step, from depth 0; by a tuned lens, too, if given."""
    steps = np.arange(len(found.loss))
    with drawing(width, *((6.4, 2, 1) if width < 5 else (3.4, 1, 2))) as (figure, axes):
        names = ("loss (nats per token)", "KL to the last prediction (nats per token)")
        lines = []
        for index, (axis, values, name) in enumerate(zip(axes.flat, (found.loss, found.kl), names, strict=True)):
            lines = axis.plot(steps, values, color=color(0), marker=MARKERS[0])
            if tuned is not None:
                lines += axis.plot(steps, tuned[index], color=color(1), marker=MARKERS[1])
            axis.set_xlabel("steps taken")
            axis.set_ylabel(name)
            axis.set_ylim(bottom=0)
            axis.xaxis.get_major_locator().set_params(integer=True)
        if tuned is not None:
            legend(figure, lines, ["logit lens", "tuned lens"], width)
    return figure


def movement_by_step(found: Participation, *, width: float = WIDE) -> Figure:
    """Root mean square of what each half adds in each step, beside the length of the state after it."""
    steps = np.arange(1, len(found.loss))
    parts = {"attention": found.attention, "feed-forward": found.feed_forward, "state": found.length[1:]}
    with drawing(width, 3.7, 1, 1) as (figure, axes):
        (axis,) = axes.flat
        handles = []
        for index, values in enumerate(parts.values()):
            handles += axis.plot(steps, values, color=color(index), marker=MARKERS[index])
        axis.set_xlabel("step")
        axis.set_ylabel("root mean square")
        axis.set_ylim(bottom=0)
        axis.xaxis.get_major_locator().set_params(integer=True)
        legend(figure, handles, list(parts), width)
    return figure
