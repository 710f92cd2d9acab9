"""Figures of spectra over depth."""

from collections.abc import Sequence
from pathlib import PurePath
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.colors import CenteredNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import offset_copy

from diffeqformer.analysis.spectra import RADIUS, Spectra
from diffeqformer.plain import clean
from diffeqformer.report.figures import DEPTH, INK, SIGNED, WIDE, color, drawing, is_narrow, legend, log_axis, style
from diffeqformer.studies.spectra import Models


def real_parts(models: Models, pair: str, *, width: float = WIDE) -> Figure:
    """Plot the real parts of a pair's eigenvalues, sorted at each time, over depth: a heat map for every head.

    The layout is that of the paper's figure 2 and appendix E. Each model has its own colour scale, shared by its heads.
    It ends at the 99.5th percentile of |real part|, so that a single eigenvalue does not make all others pale. Marks
    above a map are the times of the forward pass's steps. Models are side by side, or stacked if `width` is below 5.
    """
    stacked, shown = is_narrow(width), display_names([name for name, _ in models])
    spectra = [(name, found, found.pairs[pair].eigenvalues) for name, found in models]
    most = 2 if stacked else 4 if len(models) > 1 else 6
    columns = [min(values.shape[1], most) for _, _, values in spectra]
    rows = [-(-values.shape[1] // c) for (_, _, values), c in zip(spectra, columns, strict=True)]
    heights = [0.9 + 1.45 * max(n, 2) for n in rows]
    with style():
        figure = Figure(figsize=(width, sum(heights) if stacked else max(heights) + 0.1), layout="constrained")
        beside: dict[str, Any] = {"nrows": len(models), "height_ratios": heights}
        beside = beside if stacked else {"ncols": len(models), "width_ratios": columns}
        parts: Any = figure.subfigures(**beside, squeeze=False)
        for part, (name, found, values), across, down in zip(parts.flat, spectra, columns, rows, strict=True):
            across_all = 1 if stacked else sum(columns) / across
            _title(part, f"{pair}: eigenvalues over depth ({shown[name]})", width / across_all)
            real = np.sort(np.real(values if found.continuous else values[found.steps(pair)]), axis=-1)[..., ::-1]
            end = float(np.quantile(np.abs(real), 0.995)) or 1.0
            axes = part.subplots(down if stacked else max(rows), across, sharex=True, sharey=True, squeeze=False)
            image: Any = None
            for axis in axes.flat[values.shape[1] :]:
                axis.set_visible(False)
            for head, axis in enumerate(axes.flat[: values.shape[1]]):
                image = axis.pcolormesh(
                    _edges(found, pair), np.arange(values.shape[-1] + 1) + 0.5, real[:, head].T,
                    cmap=SIGNED, norm=CenteredNorm(0.0, end), rasterized=True,
                )  # fmt: skip
                axis.grid(visible=False)
                axis.set_xticks((0.0, 0.5, 1.0), ("0", "½", "1"))
                axis.set_ylim(values.shape[-1] + 0.5, 0.5)
                axis.yaxis.get_major_locator().set_params(integer=True)
                if found.continuous:
                    at = found.times[found.steps(pair)]
                    above = offset_copy(axis.get_xaxis_transform(), figure, y=2.5, units="points")
                    axis.plot(at, np.ones_like(at), "v", color=INK, markersize=2.5, transform=above, clip_on=False)
                if values.shape[1] > 1:
                    axis.set_title(f"head {head}", pad=7)
            part.supxlabel("depth t", fontsize=9)
            for axis in axes[:, 0]:
                if axis.get_visible():
                    axis.set_ylabel("sorted")
            axes[0, 0].set_ylabel("eigenvalue, sorted" if down == 1 else "sorted")
            beyond = float(np.abs(real).max()) > end
            bar = part.colorbar(image, ax=list(axes.flat), extend="both" if beyond else "neither", shrink=0.8, pad=0.02)
            bar.set_label("real part")
    return figure


def summaries(models: Models, *, width: float = WIDE) -> Figure:
    """Plot summaries of the spectra over depth: a thin line for every head, a thick one for their mean.

    Each pair has a row, or a column if `width` is below 5.
    """
    stacked, pairs = is_narrow(width), ("QK", "OV", "FF")
    names = list(models[0][1].pairs["QK"].summaries())
    rows, columns = (len(names), len(pairs)) if stacked else (len(pairs), len(names))
    with drawing(width, 0.6 + 1.7 * rows, rows, columns, sharex=True) as (figure, grid):
        axes = grid.T if stacked else grid  # (pair, summary)
        for index, (_, found) in enumerate(models):
            for row, pair in enumerate(pairs):
                steps = found.steps(pair)
                for column, values in enumerate(found.pairs[pair].summaries().values()):
                    axis = axes[row, column]
                    chosen = slice(None) if found.continuous else steps
                    x, y = found.times[chosen], values[chosen]
                    marks = [i for i, is_step in enumerate(steps[chosen]) if is_step]
                    thin = {"color": color(index), "alpha": 0.4, "linewidth": 0.8}
                    axis.plot(x, y, **thin) if y.shape[1] > 1 else None
                    look = {"color": color(index), "marker": "o", "markersize": 3.5, "markevery": marks}
                    axis.plot(x, y.mean(1), **look, linewidth=1.1, linestyle="-" if found.continuous else ":")
        for row, pair in enumerate(pairs):
            axis = axes[row, names.index(RADIUS)]
            log_axis(axis, "y")  # one model's values may be many times the other's
            axes[row, 0].set_title(pair) if stacked else axes[row, 0].set_ylabel(pair)
        for column, name in enumerate(names):
            axes[0, column].set_ylabel(name, fontsize=8) if stacked else axes[0, column].set_title(name, fontsize=8)
        for axis in grid[-1]:
            axis.set_xlabel("depth t")
        for axis in grid.flat:
            axis.tick_params(labelsize=7 if stacked else 8)
        figure.align_ylabels(grid[:, 0])
        names_of = display_names([name for name, _ in models]).values()
        legend(figure, [({"color": color(index)}, name) for index, name in enumerate(names_of)], width)
    return figure


def flow(name: str, found: Spectra, pair: str, *, width: float = WIDE) -> Figure:
    """Plot all eigenvalues of a pair through depth in the complex plane, a panel for every head.

    Weights that are functions of time give curves, with dots at the times of the forward pass's steps; a table of
    layers gives only the dots. The frame, shared by all heads, holds zero and, on each axis, 99 % of the dots and of
    the curves. What lies outside is cut off; `beyond_frame` counts the dots outside.
    """
    values: Any = found.pairs[pair].eigenvalues
    times, steps = found.times, found.steps(pair)
    dots, moments = values[steps], times[steps]
    heads = values.shape[1]
    across, up = _frame(found, pair)
    shape = (up[1] - up[0]) / (across[1] - across[0])
    columns = min(heads, (2 if is_narrow(width) else 4) // (2 if shape < 0.4 else 1))  # flat panels are made wider
    rows = -(-heads // columns)
    height = 0.8 + (min(width * 0.82 / columns, 4.4) * min(shape, 1.3) + 0.4) * rows
    look: dict[str, Any] = {"cmap": DEPTH, "norm": Normalize(0.0, 1.0), "rasterized": True}
    with drawing(width, height, rows, columns, panels=heads, sharex=True, sharey=True) as (figure, axes):
        drawn: Any = None
        for head, axis in enumerate(axes.flat[:heads]):
            axis.axhline(0, color=INK, linewidth=0.5, alpha=0.4)
            axis.axvline(0, color=INK, linewidth=0.5, alpha=0.4)
            if found.continuous:
                curves = values[:, head]
                points = np.stack([curves.real, curves.imag], -1).swapaxes(0, 1)  # (number, time, 2)
                pieces = np.stack([points[:, :-1], points[:, 1:]], 2).reshape(-1, 2, 2)
                middle = np.tile((times[:-1] + times[1:]) / 2, len(points))
                axis.add_collection(LineCollection(list(pieces), array=middle, linewidths=0.5, alpha=0.45, **look))
            at = dots[:, head]
            colours = np.repeat(moments, at.shape[-1])
            drawn = axis.scatter(at.real.ravel(), at.imag.ravel(), c=colours, s=5, linewidths=0, **look)
            axis.set(aspect="equal", xlim=across, ylim=up)
            axis.yaxis.set_major_locator(MaxNLocator(nbins=5 if shape > 0.6 else 3))
            axis.xaxis.set_major_locator(MaxNLocator(nbins=4))
            if heads > 1:
                axis.set_title(f"head {head}", pad=2)
        for axis in axes[:, 0]:
            axis.set_ylabel("imaginary part" if shape > 0.5 else "imaginary")
        for axis in axes.flat[max(heads - columns, 0) : heads]:
            axis.set_xlabel("real part")
            axis.tick_params(labelbottom=True)
        figure.colorbar(drawn, ax=list(axes.flat), shrink=0.8, pad=0.02).set_label("depth t")
        _title(figure, f"{pair}: eigenvalues in the complex plane ({display_names([name])[name]})", width)
    return figure


def beyond_frame(found: Spectra, pair: str) -> str:
    """State how many of the steps' eigenvalues lie outside the frame of `flow`, and their largest absolute value."""
    dots: Any = found.pairs[pair].eigenvalues[found.steps(pair)]
    (left, right), (low, high) = _frame(found, pair)
    out = (dots.real < left) | (dots.real > right) | (dots.imag < low) | (dots.imag > high)
    if not out.any():
        return ""
    verb = "lies" if out.sum() == 1 else "lie"
    return (
        f" {out.sum()} of {out.size} {verb} outside the frame, with absolute values up to {abs(dots[out]).max():.3g}."
    )


def _frame(found: Spectra, pair: str) -> tuple[tuple[float, float], tuple[float, float]]:
    values = found.pairs[pair].eigenvalues
    dots = values[found.steps(pair)]
    return frame_of_plane(values if found.continuous else dots, dots)


def display_names(names: Sequence[str]) -> dict[str, str]:
    """Return the names of runs in figures: those of their folders, or the whole paths if two folders share a name."""
    short = {name: PurePath(name).name or name for name in names}
    return short if len({*short.values()}) == len(short) else {name: name for name in names}


def frame_of_plane(*values: np.ndarray) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return limits of the real and the imaginary axis that hold zero and, on each axis, 99 % of each set of numbers.

    Conjugate numbers stay symmetric; the longer side is at most about four times the shorter, so that neither is a
    sliver.
    """
    sides = []
    for part in (np.real, np.imag):
        ends = np.array([np.quantile(part(one), (0.005, 0.995)) for one in values])
        low, high = min(float(ends[:, 0].min()), 0.0), max(float(ends[:, 1].max()), 0.0)
        sides.append((low, high))
    least = max(high - low for low, high in sides) / 4 or 1.0
    limits = []
    for low, high in sides:
        more = max(0.08 * (high - low), (least - (high - low)) / 2)
        limits.append((low - more, high + more))
    return limits[0], limits[1]


def _edges(found: Spectra, pair: str) -> np.ndarray:
    """Borders of a heat map's columns: a layer's column spans its step, that of a time is centred around it."""
    steps = found.steps(pair)
    if not found.continuous and steps.sum() == len(found.edges) - 1:
        return found.edges
    times = found.times if found.continuous else found.times[steps]
    return np.concatenate([[0.0], (times[1:] + times[:-1]) / 2, [1.0]])


def _title(figure: Any, text: str, width: float) -> None:
    """Write the title above a part of a figure that is `width` inches wide, in as many lines as it needs."""
    letters = int(72 * width / 5.2)  # of 5.2 points each
    figure.suptitle(fill(clean(text), letters), x=0.01, ha="left", fontsize=9, parse_math=False)
