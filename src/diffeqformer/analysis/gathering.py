"""How gathered points on the move are, such as a model's hidden states over depth: clusters, distances, an energy."""

from dataclasses import dataclass
from typing import Literal

import equinox as eqx
import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import pdist

from diffeqformer.analysis.finite import require_finite
from diffeqformer.errors import BadInput
from diffeqformer.model.transformer import Transformer
from diffeqformer.nn.embedding import known_ids
from diffeqformer.ode.grid import Steps
from diffeqformer.progress import Progress, Silent
from diffeqformer.report.table import Table


@dataclass(frozen=True)
class Measures:
    """How gathered points are, at every time and in every system: arrays of leading axes (time, system)."""

    heights: np.ndarray
    """(time, system, points - 1): the distances at which single linkage joins two groups, the least first."""
    distance: np.ndarray
    """(time, system): mean distance of two points."""
    energy: np.ndarray
    """(time, system): `mean_ij exp(<u_i, u_j>) / 2` of directions `u = x / |x|`; `e / 2` if all are the same."""

    def clusters(self, share: float, *, of: Literal["start", "now"] = "start") -> np.ndarray:
        """Groups that no distance above `share` of the mean pairwise distance is needed to join, (time, system).

        **Arguments:** `of`: the mean distance at the `start` (a fixed distance: points that come near are one cluster)
        or `now` (a shape without a size: one cluster that shrinks as a whole keeps its count).
        """
        reach = share * (self.distance[:1] if of == "start" else self.distance)
        return 1 + (self.heights > reach[..., None]).sum(-1)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all results as arrays, by name."""
        return {"heights": self.heights, "distance": self.distance, "energy": self.energy}


@dataclass(frozen=True)
class HiddenStates:
    """A model's hidden states over depth, as points on the move."""

    times: np.ndarray
    """Depth between 0 and 1 of every state: (time,)"""
    measures: Measures
    """Every text is one system."""
    norm: np.ndarray
    """(time, text): mean length of a state."""
    projection: np.ndarray
    """(time, position, 3): the first text, at each depth in units of its states' mean length there, in the three
    directions in which it then varies most over all depths."""
    explained: np.ndarray
    """(3,): the share of the variance along each."""

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all results as arrays, by name."""
        own = {name: getattr(self, name) for name in ("times", "norm", "projection", "explained")}
        return own | self.measures.arrays()

    def _repr_html_(self) -> str:
        values = zip(self.times, self.norm, self.measures.distance, self.measures.energy, strict=True)
        rows = [(f"{time:.3g}", *(f"{one.mean():.4g}" for one in rest)) for time, *rest in values]
        columns = ("depth", "state norm", "mean distance", "energy")
        return Table(f"hidden states of {self.norm.shape[1]} texts", columns, rows).to_html()


def watch_states(
    model: Transformer, texts: np.ndarray, *, steps: Steps | None = None, progress: Progress | None = None
) -> HiddenStates:
    """The measures of a model's hidden states, before the final norm, at depth 0 and after every step.

    **Arguments:** `texts`, tokens of shape (text, position), at least two positions; `steps` of depth, those trained
    with if not given.

    **Raises:** `BadInput` for tokens that do not exist, and for fewer than two of a text; `RunFailed` if a state
    is not finite.
    """
    grid, ids = model.grid(steps), known_ids(texts, model.embedding.tokens.shape[0], 2)
    if ids.shape[1] < 2:
        raise BadInput(f"texts have {ids.shape[1]} token, but distances need at least two.")
    run = eqx.filter_jit(lambda model, ids: model.trajectory(ids, steps=grid))
    measures, norms, projection, explained = [], [], np.empty(0), np.empty(0)
    with (progress or Silent()).stage("Watching hidden states", len(ids)) as stage:
        for number, text in enumerate(ids):
            states = np.asarray(run(model, text[None]), np.float64)
            require_finite(states)
            measures.append(together([measure(now[None]) for now in states], 0))  # one depth's pairs at a time
            norms.append(np.linalg.norm(states, axis=-1).mean(-1))
            if number == 0:
                projection, explained = _principal(
                    states[:, 0] / np.maximum(norms[0], np.finfo(float).tiny)[:, :, None]
                )
            stage.advance()
    times = np.asarray(grid.edges)
    return HiddenStates(times, together(measures, 1), np.concatenate(norms, 1), projection, explained)


def measure(states: np.ndarray) -> Measures:
    """Every measure of points on the move, for `states` of shape (time, system, point, dimension)."""
    lead = states.shape[:2]
    pairs = np.stack([pdist(points) for points in states.reshape(-1, *states.shape[-2:])])
    heights = np.stack([linkage(distances, "single")[:, 2] for distances in pairs])
    energy = interaction_energy(directions(states))
    return Measures(heights.reshape(*lead, -1), pairs.mean(-1).reshape(lead), energy)


def members(x: np.ndarray, distance: float) -> np.ndarray:
    """The cluster of every point (n, d) by single linkage at `distance`: numbers from 0, the largest cluster first."""
    groups = fcluster(linkage(x, "single"), distance, "distance")
    _, first, label, sizes = np.unique(groups, return_index=True, return_inverse=True, return_counts=True)
    return np.argsort(np.lexsort((first, -sizes)))[label]  # of equal sizes the one that is met first


def interaction_energy(x: np.ndarray, beta: float = 1.0) -> np.ndarray:
    """`sum_ij exp(beta <x_i, x_j>) / (2 beta n^2)` of points (..., n, d) on the sphere.

    It only grows along `sphere` and `unnormed` with A = beta I and V = I, whose motion climbs it, and is largest,
    `exp(beta) / (2 beta)`, where all points are one. Source: Geshkovski et al. 2023b, section 3.
    """
    return np.asarray(np.exp(beta * (x @ np.swapaxes(x, -1, -2))).mean((-1, -2)) / (2 * beta))


def directions(x: np.ndarray) -> np.ndarray:
    """`x / |x|` of points (..., d); NaN where |x| is beyond the range of numbers."""
    size = np.linalg.norm(x, axis=-1, keepdims=True)
    return np.where(np.isfinite(size), x, np.nan) / np.maximum(size, np.finfo(x.dtype).tiny)


def together(parts: list[Measures], axis: int) -> Measures:
    """Measures of several times (axis 0) or systems (axis 1) as one."""
    arrays = [part.arrays() for part in parts]
    return Measures(**{name: np.concatenate([one[name] for one in arrays], axis) for name in arrays[0]})


def _principal(states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Points (time, n, d) in the three directions of largest variance over all times, and the shares of it."""
    flat = states.reshape(-1, states.shape[-1])
    flat = flat - flat.mean(0)
    values, vectors = np.linalg.eigh(flat.T @ flat)
    most = vectors[:, ::-1][:, :3]
    most = most * np.where(most[np.abs(most).argmax(0), np.arange(most.shape[1])] < 0, -1, 1)  # a sign for good
    return (flat @ most).reshape(*states.shape[:2], -1), values[::-1][:3] / max(values.sum(), np.finfo(float).tiny)
