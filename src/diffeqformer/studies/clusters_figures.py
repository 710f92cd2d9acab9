"""Figures of moving points: their trajectories in three dimensions, and measures of clustering."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from scipy.spatial.distance import pdist

from diffeqformer.analysis.clusters import SPHERES, Simulation
from diffeqformer.analysis.gathering import HiddenStates, Measures, members
from diffeqformer.report.figures import COLORS, INK, MARKERS, WIDE, band, color, drawing, is_narrow, legend, log_axis
from diffeqformer.report.page import Cloud, frame_of
from diffeqformer.studies.clusters import growth_name
from diffeqformer.studies.clusters_text import ALIGNED, ANGLES

PLACES = (4, 1, 3, 5, 0)
"""Colours of positions in a text from first to last, as indices into `COLORS`: from warm to cool."""
_AZIMUTH, _ELEVATION = 35.0, 20.0


def places_of(tokens: int) -> tuple[int, ...]:
    """Return the colour of every token of a text as an index into `COLORS`, from the first of `PLACES` to the last."""
    return tuple(PLACES[round(share * (len(PLACES) - 1))] for share in np.linspace(0, 1, tokens))


def cloud_of(simulation: Simulation, share: float) -> Cloud:
    """Make the panel of a simulation's first system; `share`, as for `Measures.clusters`, of the distance at the end.

    On the sphere, where points collapse into one, it is a share of the distance at the start.
    """
    reference, end = simulation.states[0 if simulation.variant in SPHERES else -1], simulation.states[-1]
    reach = share * pdist(reference).mean()
    labels = members(end, reach)
    sizes = np.bincount(labels)
    series = tuple(int(n) if n < len(COLORS) and sizes[n] > 1 else -1 for n in labels)
    count = len(sizes)
    return Cloud(f"{growth_name(simulation.order)}: {count} cluster{'s' * (count > 1)}", simulation.states, series)


def trajectories(panels: Sequence[Cloud], *, width: float = WIDE) -> Figure:
    """Plot the paths of points in parallel projection, with a ring at the start and a dot at the end."""
    columns = min(len(panels), 2 if is_narrow(width) else 3)
    rows = math.ceil(len(panels) / columns)
    with drawing(width, 1.08 * rows * width / columns, rows, columns, panels=len(panels)) as (figure, axes):
        for axis, panel in zip(axes.flat, panels, strict=False):
            middle, reach = frame_of(panel.states)
            every = max(1, len(panel.states) // (34 if is_narrow(width) else 67))  # finer than can be seen
            states = np.concatenate([panel.states[::every], panel.states[-1:]])
            colors = [COLORS[n] if n >= 0 else INK for n in panel.series]
            _paths(axis, _project((states - middle) / reach), colors, panel.title, 0.7 if is_narrow(width) else 1.0)
    return figure


def measures(simulations: Sequence[Simulation], share: float, *, width: float = WIDE) -> Figure:
    """Plot clusters, distance and energy over time for each order of `f`: medians over systems, bands of quartiles."""
    with drawing(width, *_four(width, len(simulations))) as (figure, grid):
        axes = list(grid.flat)
        for index, one in enumerate(simulations):
            for axis, (_, values) in zip(axes, _curves(one.measures, share), strict=True):
                band(axis, one.times, values, color(index))
        for axis, (title, _) in zip(axes, _curves(simulations[0].measures, share), strict=True):
            axis.set(title=title, xlabel="time")
            axis.margins(x=0.02)
        for axis in axes[:2]:
            axis.set_ylim(0, 1.05 * simulations[0].states.shape[1])
        log_axis(axes[2], "y")
        axes[3].axhline(math.e / 2, color=INK, linestyle=":", linewidth=1.0)
        legend(figure, [({"color": color(i)}, growth_name(one.order)) for i, one in enumerate(simulations)], width)
    return figure


def _curves(found: Measures, share: float) -> list[tuple[str, np.ndarray]]:
    percent = f"{100 * share:g} %"
    return [
        (f"clusters, at {percent} of the first mean distance", found.clusters(share)),
        (f"clusters, at {percent} of the present one", found.clusters(share, of="now")),
        ("mean distance of two points", found.distance),
        ("interaction energy", found.energy),
    ]


def state_measures(found: HiddenStates, shares: Sequence[float], *, width: float = WIDE) -> Figure:
    """Plot clusters, norm, distance and energy of a model's hidden states over depth.

    Clusters are counted at several shares of the present mean distance. All lines are in ink, fainter for larger
    shares, since colours on that page mean positions in the text.
    """
    few = len(found.times) <= 30
    looks = [{"color": INK, "alpha": alpha, "marker": MARKERS[i % len(MARKERS)] if few else "", "markersize": 3}
             for i, alpha in enumerate(np.linspace(1.0, 0.4, max(1, len(shares))))]  # fmt: skip
    seen, points, far = found.measures, found.measures.heights.shape[-1] + 1, math.sqrt(2)
    clusters, apart = [seen.clusters(share, of="now") for share in shares], seen.distance / found.norm
    panels = [  # title, lines, limits, and the known values for orthogonal or aligned states
        (f"clusters of {points} tokens", clusters, (0, 1.05 * points), ()),
        ("mean state norm", [found.norm], (0, 1.05 * float(found.norm.max())), ()),
        ("mean distance / length of states", [apart], (0, 1.05 * max(far, float(apart.max()))), (far,)),
        ("interaction energy", [seen.energy], (min(0.45, 0.95 * float(seen.energy.min())), 1.4), (ANGLES, ALIGNED)),
    ]
    with drawing(width, *_four(width, len(shares))) as (figure, grid):
        for axis, (title, lines, limits, known) in zip(grid.flat, panels, strict=True):
            for values, own in zip(lines, looks, strict=False):
                band(axis, found.times, values, **own)
            for level in known:
                axis.axhline(level, color=INK, linestyle=":", linewidth=1.0)
            axis.set(title=title, xlabel="depth", ylim=limits)
        names = (f"clusters at {100 * share:g} % of the mean distance" for share in shares)
        legend(figure, list(zip(looks, names, strict=False)), width)
    return figure


def state_trajectories(found: HiddenStates, *, width: float = WIDE) -> Figure:
    """Plot the first text's hidden states through depth in their principal directions, coloured by position."""
    states = found.projection
    middle, reach = frame_of(states)
    shades = [COLORS[place] for place in places_of(states.shape[1])]
    with drawing(width, min(width, 5.6)) as (figure, axes):
        axis = axes[0, 0]
        _paths(axis, _project((states - middle) / reach), shades, "", 1.1)
        mapped = ScalarMappable(Normalize(0, 1), ListedColormap([COLORS[place] for place in PLACES]))
        bar = figure.colorbar(mapped, ax=axis, location="bottom", shrink=0.45, aspect=24, pad=0.01)
        bar.set_ticks([0, 1], labels=["first token", "last token"])
        bar.outline.set_visible(False)
        bar.ax.tick_params(length=0)
    return figure


def _four(width: float, names: int) -> tuple[float, int, int]:
    """Height and shape of four panels below a legend of `names` entries, stacked on a phone."""
    return (4 * 2.1 + 0.25 * names, 4, 1) if is_narrow(width) else (5.6, 2, 2)


def _project(points: np.ndarray) -> np.ndarray:
    """Project points (..., 3) in parallel: (..., 2)."""
    around, up = np.radians(_AZIMUTH), np.radians(_ELEVATION)
    right = np.array([-np.sin(around), np.cos(around), 0.0])
    above = np.array([-np.cos(around) * np.sin(up), -np.sin(around) * np.sin(up), np.cos(up)])
    return points @ np.stack([right, above], 1)


def _paths(axis: Axes, flat: np.ndarray, shades: Sequence[Any], title: str, size: float) -> None:
    """Draw paths (time, point, 2) in a box, each from a ring to a dot."""
    corners = np.array(list(itertools.product((-1.0, 1.0), repeat=3)))
    edges = [(a, b) for a, b in itertools.combinations(corners, 2) if np.abs(a - b).sum() == 2]
    axis.add_collection(LineCollection(list(_project(np.array(edges))), colors=INK, linewidths=0.6, alpha=0.18))
    axis.add_collection(LineCollection(list(flat.swapaxes(0, 1)), colors=shades, linewidths=0.7 * size, alpha=0.55))
    axis.scatter(*flat[0].T, s=8 * size, facecolors="none", edgecolors=shades, linewidths=0.5)
    axis.scatter(*flat[-1].T, s=15 * size, color=shades, linewidths=0, zorder=3)
    axis.set(xlim=(-1.5, 1.5), ylim=(-1.5, 1.5), aspect="equal")
    axis.set_axis_off()
    axis.set_title(title, loc="center", y=0.97)
