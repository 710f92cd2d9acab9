"""Figures of induction heads next to their spectra."""

from typing import Any

import numpy as np
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from diffeqformer.analysis.inference import INFERENCE, Induction, estimate
from diffeqformer.report.figures import DEPTH, INK, SIGNED, UNSIGNED, WIDE, drawing, is_narrow


def darkest(found: Induction) -> float:
    """Upper end of the prefix-matching colour scale: the largest value, at least twice chance; 1 is rarely reached."""
    return max(float(found.behaviours["prefix matching"].max()), 2 * found.chance)


def induction_maps(found: Induction, *, width: float = WIDE) -> Figure:
    """Plot behaviours of every head at every step, next to the summaries of its spectra."""
    stacked = is_narrow(width)
    cells = [
        ("prefix matching", 0.0, darkest(found)), ("QK positive share", 0.0, 1.0), ("QK sum ratio", -1.0, 1.0),
        ("copying", -1.0, 1.0), ("OV positive share", 0.0, 1.0), ("OV sum ratio", -1.0, 1.0),
    ]  # fmt: skip
    heads = found.behaviours["copying"].shape[1]
    rows, columns = (3, 2) if stacked else (2, 3)
    height = 1.4 + rows * max(1.4, 0.14 * heads)
    with drawing(width, height, rows, columns, sharex=True, sharey=True) as (figure, grid):
        values = found.behaviours | found.summaries
        for axis, (name, low, high) in zip((grid.T if stacked else grid).flat, cells, strict=True):
            image = axis.imshow(
                values[name].T, cmap=SIGNED if low < 0 else UNSIGNED, vmin=low, vmax=high, aspect="auto",
                interpolation="nearest", extent=(0.5, len(found.times) + 0.5, heads - 0.5, -0.5),
            )  # fmt: skip
            axis.grid(visible=False)
            axis.set_title(name)
            bar = figure.colorbar(image, ax=axis, pad=0.02)
            if name == "prefix matching":
                bar.ax.axhline(found.chance, color=INK, linewidth=1.5)
        for axis in grid[-1]:
            axis.set_xlabel("step")
            axis.xaxis.get_major_locator().set_params(integer=True)
        for axis in grid[:, 0]:
            axis.set_ylabel("head")
            axis.yaxis.get_major_locator().set_params(integer=True)
    return figure


def induction_scatter(found: Induction, *, width: float = WIDE) -> Figure:
    """Plot the test of the paper's inference: each behaviour against the summary that should predict it, one point per
    head."""
    chosen = [("prefix matching", "QK positive share"), ("copying", "OV positive share"), INFERENCE]
    with drawing(width, *((7.8, len(chosen), 1) if is_narrow(width) else (3.2, 1, len(chosen)))) as (figure, axes):
        depth = np.broadcast_to(found.times[:, None], found.behaviours["copying"].shape)
        drawn: Any = None
        for axis, (behaviour, summary) in zip(axes.flat, chosen, strict=True):
            test = found.test(behaviour, summary)
            x, y = found.summaries[summary], found.behaviours[behaviour]
            drawn = axis.scatter(x.ravel(), y.ravel(), c=depth.ravel(), cmap=DEPTH, norm=Normalize(0, 1), s=16)
            if behaviour == "prefix matching":
                axis.axhline(found.chance, color=INK, linewidth=0.8, linestyle=":")
            among = f"\nwithin steps {estimate(test.within, test.within_interval)}" if x.shape[1] > 1 else ""
            axis.set(title=f"ρ = {estimate(test.rho, test.interval)}{among}", xlabel=summary)
            axis.set_ylabel(behaviour)
        below = {"location": "bottom", "aspect": 30} if is_narrow(width) else {}
        figure.colorbar(drawn, ax=list(axes.flat), pad=0.01, **below).set_label("depth t")
    return figure
