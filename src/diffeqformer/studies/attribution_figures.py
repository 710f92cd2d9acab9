"""Figures of an explanation, and of the test of explanations."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from diffeqformer.analysis.faithfulness import RANDOM, Faithfulness, interval
from diffeqformer.report.figures import BOTH, INK, MARKERS, WIDE, color, drawing, is_narrow, legend, log_axis, look
from diffeqformer.studies.lyapunov_figures import MOST_LABELS, name_tokens


def occluded(tokens: Sequence[str], falls: np.ndarray, *, width: float = WIDE) -> Figure:
    """Plot the fall of the prediction's log-probability without each input, in the colours of the token map.

    **Arguments:** `falls`, nats, of shape (input,).
    """
    few = len(tokens) <= MOST_LABELS and not is_narrow(width)
    with drawing(width, 3.3 if few else 2.6) as (figure, axes):
        axis = axes[0, 0]
        axis.bar(range(len(tokens)), falls, color=[BOTH[5] if fall > 0 else BOTH[1] for fall in falls])
        axis.axhline(0.0, color=INK, linewidth=0.8)
        axis.set_ylabel("fall of log p (nats)")
        axis.margins(x=0.02)
        name_tokens(axis, tokens, few)
    return figure


def correlations(found: Faithfulness, *, width: float = WIDE) -> Figure:
    """Plot each method's rank correlation with the effect of replacing a token, the best on top; 95% intervals."""
    order = found.ranking("strength")[::-1]
    measures = {"strength": "of strengths, without signs", "direction": "of directions, with signs"}
    stacked = is_narrow(width)
    shape = (6.4, 2, 1) if stacked else (3.6, 1, 2)
    with drawing(width, *shape, sharex=stacked, sharey=not stacked) as (figure, axes):
        for index, (axis, (measure, title)) in enumerate(zip(axes.flat, measures.items(), strict=True)):
            estimates = found.estimates(measure)
            for row, method in enumerate(order):
                one = estimates[method]
                axis.plot([one.low, one.high], [row, row], color=color(index), linewidth=2.2, alpha=0.6)
                axis.plot([one.mean], [row], color=color(index), marker=MARKERS[index])
            axis.axvline(0.0, color=INK, linewidth=0.8)
            axis.set_yticks(range(len(order)), order)
            axis.set_title(title)
            if index == 1 or not stacked:
                axis.set_xlabel("rank correlation")
    return figure


def curves(found: Faithfulness, *, width: float = WIDE) -> Figure:
    """Plot deletion and insertion: change of the log-probability against the number of tokens, mean over contexts.

    There is a panel for every method, the most trusted first, with the curves of a random ranking in grey.
    """
    columns, chance = 2 if is_narrow(width) else 3, found.methods.index(RANDOM)
    methods = found.ranking("strength")
    rows = -(-len(methods) // columns)
    parts = {"deletion": found.deletion, "insertion": found.insertion}
    shape = {"panels": len(methods), "sharex": True, "sharey": True}
    with drawing(width, 0.5 + 1.6 * rows, rows, columns, **shape) as (figure, axes):
        for axis, method in zip(axes.flat, methods, strict=False):
            for index, values in enumerate(parts.values()):
                own = values[:, found.methods.index(method)]
                axis.plot(found.counts, values[:, chance].mean(0), color=INK, alpha=0.35, linewidth=1)
                axis.plot(found.counts, own.mean(0), **look(index))
                axis.fill_between(found.counts, *interval(own), color=color(index), alpha=0.15, linewidth=0)
            log_axis(axis, "x", found.counts.tolist(), base=2)
            axis.set_title(method)
        figure.supxlabel("tokens replaced, or put back", fontsize=9)
        figure.supylabel("fall, or rise, of log p (nats)", fontsize=9)
        legend(figure, [(look(index), name) for index, name in enumerate(parts)], width)
    return figure
