"""Figures of a sweep."""

import math
from collections.abc import Sequence

from matplotlib.figure import Figure as Drawing

from diffeqformer.plain import Values
from diffeqformer.report.figures import WIDE, color, drawing, plain_labels
from diffeqformer.report.page import Figure, both_widths


def losses_by_setting(name: str, rows: Sequence[Values]) -> Figure:
    """The loss of every trial over one of its settings."""
    return both_widths(name.replace(".", "-"), f"Validation loss of every trial by {name}.", _losses, name, rows)


def _losses(name: str, rows: Sequence[Values], *, width: float = WIDE) -> Drawing:
    known = [(row["settings"][name], row["loss"]) for row in rows if math.isfinite(row["loss"])]
    numeric = all(type(value) in (int, float) for value, _ in known)
    values = sorted({value for value, _ in known}) if numeric else list(dict.fromkeys(str(value) for value, _ in known))
    with drawing(width, 3.2) as (figure, axes):
        (axis,) = axes.flat
        places = [value if numeric else values.index(str(value)) for value, _ in known]
        axis.plot(places, [loss for _, loss in known], linestyle="", marker="o", color=color(0))
        if numeric and min(places) > 0 and max(places) > 5 * min(places):
            axis.set_xscale("log")
        if not numeric:
            axis.set_xticks(range(len(values)), values)
            plain_labels(axis.get_xticklabels())
        axis.set_xlabel(name)
        axis.set_ylabel("validation loss (nats per token)")
    return figure
