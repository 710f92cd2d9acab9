"""How clustered moving points are, such as a model's hidden states over depth: clusters, distances, an energy."""

from dataclasses import dataclass
from typing import Literal

import equinox as eqx
import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import pdist

from diffeqformer.analysis.finite import require_finite
from diffeqformer.analysis.tables import Summarised
from diffeqformer.errors import BadInput
from diffeqformer.model.transformer import Transformer
from diffeqformer.nn.embedding import known_ids
from diffeqformer.ode.grid import Steps
from diffeqformer.progress import Progress, Silent
from diffeqformer.report.table import Table


@dataclass(frozen=True, repr=False)
class Measures(Summarised):
    """How clustered points are, at every time and in every system: arrays with leading axes (time, system)."""

    heights: np.ndarray
    """Distances at which single linkage joins two groups, the least first, (time, system, points - 1)."""
    distance: np.ndarray
    """Mean distance between two points, (time, system)."""
    energy: np.ndarray
    """Energy `mean_ij exp(<u_i, u_j>) / 2` of directions `u = x / |x|`, (time, system); `e / 2` if all are the same."""

    def clusters(self, share: float, *, of: Literal["start", "now"] = "start") -> np.ndarray:
        """Count the clusters of single linkage at `share` of the mean pairwise distance, (time, system).

        **Arguments:** `of`, which mean distance: at the `start` (fixed: points that come near are one cluster) or `now`
        (shape without size: points that shrink as a whole keep their count).
        """
        reach = share * (self.distance[:1] if of == "start" else self.distance)
        return 1 + (self.heights > reach[..., None]).sum(-1)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all results as arrays, by name."""
        return {"heights": self.heights, "distance": self.distance, "energy": self.energy}


@dataclass(frozen=True, repr=False)
class HiddenStates(Summarised):
    """A model's hidden states over depth, as moving points."""

    times: np.ndarray
    """Depth of every state, 0 to 1, (time,)."""
    measures: Measures
    """Measures with each text as one system."""
    norm: np.ndarray
    """Mean length of a state, (time, text)."""
    projection: np.ndarray
    """Projection of the first text, (time, position, 3): states are divided by their mean length at each depth, and
    projected on the three directions of largest variance over all depths."""
    explained: np.ndarray
    """Share of the variance along each direction, (3,)."""

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
    """Measure a model's hidden states, before the final norm, at depth 0 and after every step.

    **Arguments:** `texts`, tokens of shape (text, position), at least two positions; `steps` of depth, those of
    training if not given.

    **Raises:** `BadInput` for tokens that do not exist, or texts of fewer than two tokens; `RunFailed` if a state is
    not finite.
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
    """Compute all measures of moving points, for `states` of shape (time, system, point, dimension)."""
    lead = states.shape[:2]
    pairs = np.stack([pdist(points) for points in states.reshape(-1, *states.shape[-2:])])
    heights = np.stack([linkage(distances, "single")[:, 2] for distances in pairs])
    energy = interaction_energy(directions(states))
    return Measures(heights.reshape(*lead, -1), pairs.mean(-1).reshape(lead), energy)


def members(x: np.ndarray, distance: float) -> np.ndarray:
    """Number the cluster of every point (n, d) by single linkage at `distance`: from 0, the largest cluster first."""
    groups = fcluster(linkage(x, "single"), distance, "distance")
    _, first, label, sizes = np.unique(groups, return_index=True, return_inverse=True, return_counts=True)
    return np.argsort(np.lexsort((first, -sizes)))[label]  # among equal sizes, the one met first


def interaction_energy(x: np.ndarray, beta: float = 1.0) -> np.ndarray:
    """Compute `sum_ij exp(beta <x_i, x_j>) / (2 beta n^2)` of points (..., n, d) on the sphere.

    It only grows along `sphere` and `unnormed` with A = beta I and V = I, whose motion ascends it, and is largest,
    `exp(beta) / (2 beta)`, if all points coincide. Source: Geshkovski et al. 2023b, section 3.
    """
    return np.asarray(np.exp(beta * (x @ np.swapaxes(x, -1, -2))).mean((-1, -2)) / (2 * beta))


def directions(x: np.ndarray) -> np.ndarray:
    """Normalise points (..., d) to `x / |x|`; NaN where |x| overflows."""
    size = np.linalg.norm(x, axis=-1, keepdims=True)
    return np.where(np.isfinite(size), x, np.nan) / np.maximum(size, np.finfo(x.dtype).tiny)


def together(parts: list[Measures], axis: int) -> Measures:
    """Join measures of several times (axis 0) or systems (axis 1)."""
    arrays = [part.arrays() for part in parts]
    return Measures(**{name: np.concatenate([one[name] for one in arrays], axis) for name in arrays[0]})


def _principal(states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Project points (time, n, d) on the three directions of largest variance over all times; return its shares too."""
    flat = states.reshape(-1, states.shape[-1])
    # A state narrower than three has no variance along what is left of the three directions.
    flat = np.pad(flat - flat.mean(0), ((0, 0), (0, max(0, 3 - flat.shape[1]))))
    values, vectors = np.linalg.eigh(flat.T @ flat)
    most = vectors[:, ::-1][:, :3]
    most = most * np.where(most[np.abs(most).argmax(0), range(3)] < 0, -1, 1)  # fixes the sign
    return (flat @ most).reshape(*states.shape[:2], 3), values[::-1][:3] / max(values.sum(), np.finfo(float).tiny)
