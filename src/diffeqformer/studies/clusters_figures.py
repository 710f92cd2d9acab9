"""Figures of points on the move: their trajectories in three dimensions, and how gathered they are."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator
from scipy.spatial.distance import pdist

from diffeqformer.analysis.clusters import Simulation
from diffeqformer.analysis.gathering import HiddenStates, Measures, members
from diffeqformer.report.figures import COLORS, INK, WIDE, color, legend, plain_log, style
from diffeqformer.report.page import Cloud, frame_of
from diffeqformer.studies.clusters import growth_name

_AZIMUTH, _ELEVATION = 35.0, 20.0


def cloud_of(simulation: Simulation, share: float) -> Cloud:
    """The panel of a simulation's first system; `share` as for `Measures.clusters`, of the distance at the end.

    On the sphere it is of the distance at the start: there points do become one.
    """
    on_sphere = simulation.variant in ("sphere", "unnormed")
    reference, end = simulation.states[0 if on_sphere else -1], simulation.states[-1]
    reach = share * pdist(reference).mean()
    labels = members(end, reach)
    sizes = np.bincount(labels)
    series = tuple(int(n) if n < len(COLORS) and sizes[n] > 1 else -1 for n in labels)
    return Cloud(growth_name(simulation.order), simulation.states, series)


def trajectories(panels: Sequence[Cloud], *, width: float = WIDE) -> Figure:
    """Where points go, in parallel projection: paths, with a ring at the start and a dot at the end."""
    columns = min(len(panels), 3 if width >= 5 else 2)
    rows = math.ceil(len(panels) / columns)
    with style():
        figure = Figure(figsize=(width, 1.08 * rows * width / columns), layout="constrained", facecolor="white")
        axes: Any = figure.subplots(rows, columns, squeeze=False).ravel()
        for axis, panel in zip(axes, panels, strict=False):
            middle, reach = frame_of(panel.states)
            every = max(1, len(panel.states) // (34 if width < 5 else 67))  # finer than can be seen
            states = np.concatenate([panel.states[::every], panel.states[-1:]])
            colors = [COLORS[n] if n >= 0 else INK for n in panel.series]
            flat = _project((states - middle) / reach, _AZIMUTH)
            _box(axis, _AZIMUTH)
            small = 0.7 if width < 5 else 1.0
            axis.add_collection(
                LineCollection(list(flat.swapaxes(0, 1)), colors=colors, linewidths=0.7 * small, alpha=0.55)
            )
            axis.scatter(*flat[0].T, s=7 * small, facecolors="none", edgecolors=colors, linewidths=0.5)
            axis.scatter(*flat[-1].T, s=15 * small, color=colors, linewidths=0, zorder=3)
            _bare(axis, panel.title)
        for axis in axes[len(panels) :]:
            axis.set_axis_off()
    return figure


def measures(simulations: Sequence[Simulation], share: float, *, width: float = WIDE) -> Figure:
    """Clusters, distance and energy over time for each order of `f`: medians over systems, and quartiles as bands."""
    with style():
        figure, axes = _four(width, len(simulations))
        for index, one in enumerate(simulations):
            for axis, (_, values) in zip(axes, _curves(one.measures, share), strict=True):
                low, middle, high = np.quantile(values, (0.25, 0.5, 0.75), axis=1)
                axis.plot(one.times, middle, color=color(index))
                axis.fill_between(one.times, low, high, color=color(index), alpha=0.13, linewidth=0)
        for axis, (title, _) in zip(axes, _curves(simulations[0].measures, share), strict=True):
            axis.set_title(title)
            axis.set_xlabel("time")
            axis.margins(x=0.02)
        for axis in axes[:2]:
            axis.set_ylim(0, 1.05 * simulations[0].states.shape[1])
        axes[2].set_yscale("log")
        axes[2].yaxis.set_major_locator(LogLocator(numticks=6))
        plain_log(axes[2].yaxis)
        axes[3].axhline(math.e / 2, color=INK, linestyle=":", linewidth=1.0)
        handles = [Line2D([], [], color=color(i)) for i in range(len(simulations))]
        legend(figure, handles, [growth_name(one.order) for one in simulations], width)
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
    """The same for a model's hidden states over depth, the clusters at several shares of the present mean distance."""
    points = found.measures.heights.shape[-1] + 1
    with style():
        figure, axes = _four(width, len(shares))
        lines = [
            *((axes[0], i, found.measures.clusters(share, of="now") / points) for i, share in enumerate(shares)),
            (axes[1], 0, found.norm), (axes[2], 0, found.measures.distance), (axes[3], 0, found.measures.energy),
        ]  # fmt: skip
        for axis, index, values in lines:
            low, middle, high = np.quantile(values, (0.25, 0.5, 0.75), axis=1)
            few = len(found.times) <= 30
            axis.plot(found.times, middle, color=color(index), marker="o" if few else None, markersize=3)
            axis.fill_between(found.times, low, high, color=color(index), alpha=0.13, linewidth=0)
        titles = ("clusters per token", "mean length of a state", "mean distance of two states", "interaction energy")
        for axis, title in zip(axes, titles, strict=True):
            axis.set_title(title)
            axis.set_xlabel("depth")
        axes[0].set_ylim(0, 1.05)
        axes[1].set_ylim(bottom=0)
        axes[2].set_ylim(bottom=0)
        axes[3].axhline(math.e / 2, color=INK, linestyle=":", linewidth=1.0)
        handles = [Line2D([], [], color=color(i)) for i in range(len(shares))]
        legend(figure, handles, [f"clusters at {100 * s:g} % of the mean distance" for s in shares], width)
    return figure


def state_trajectories(found: HiddenStates, *, width: float = WIDE) -> Figure:
    """The first text's hidden states through depth in their principal directions; colour is the place in the text."""
    states = found.projection
    if states.shape[-1] < 3:
        states = np.concatenate([states, np.zeros((*states.shape[:-1], 3 - states.shape[-1]))], -1)
    middle, reach = frame_of(states)
    flat = _project((states - middle) / reach, _AZIMUTH)
    side = min(width, 5.6)
    with style():
        figure = Figure(figsize=(width, side), layout="constrained", facecolor="white")
        axis: Any = figure.subplots()
        _box(axis, _AZIMUTH)
        shades = [
            _between("#e69f00", "#0072b2", place / max(states.shape[1] - 1, 1)) for place in range(states.shape[1])
        ]
        axis.add_collection(LineCollection(list(flat.swapaxes(0, 1)), colors=shades, linewidths=0.8, alpha=0.6))
        axis.scatter(*flat[0].T, s=9, facecolors="none", edgecolors=shades, linewidths=0.6)
        axis.scatter(*flat[-1].T, s=16, color=shades, linewidths=0, zorder=3)
        _bare(axis, "")
    return figure


def _four(width: float, names: int) -> tuple[Figure, list[Any]]:
    stacked = width < 5
    height = 4 * 2.1 + 0.25 * names if stacked else 5.6
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    return figure, list(figure.subplots(*((4, 1) if stacked else (2, 2))).ravel())


def _project(points: np.ndarray, azimuth: float) -> np.ndarray:
    """Points (..., 3) seen from afar: (..., 2)."""
    around, up = np.radians(azimuth), np.radians(_ELEVATION)
    right = np.array([-np.sin(around), np.cos(around), 0.0])
    above = np.array([-np.cos(around) * np.sin(up), -np.sin(around) * np.sin(up), np.cos(up)])
    return points @ np.stack([right, above], 1)


def _box(axis: Any, azimuth: float) -> None:
    corners = np.array(list(itertools.product((-1.0, 1.0), repeat=3)))
    edges = [(a, b) for a, b in itertools.combinations(corners, 2) if np.abs(a - b).sum() == 2]
    axis.add_collection(
        LineCollection(list(_project(np.array(edges), azimuth)), colors=INK, linewidths=0.6, alpha=0.18)
    )


def _bare(axis: Any, title: str) -> None:
    axis.set(xlim=(-1.5, 1.5), ylim=(-1.5, 1.5), aspect="equal")
    axis.set_axis_off()
    axis.set_title(title, loc="center", y=0.97)


def _between(first: str, second: str, share: float) -> tuple[float, ...]:
    a, b = np.array(to_rgba(first)), np.array(to_rgba(second))
    return tuple(a + share * (b - a))
