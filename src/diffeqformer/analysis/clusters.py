"""Do tokens cluster over depth? Particles that move by attention alone; `gathering.py` measures them.

Particles `x_i` in `d` dimensions, each of which sees all (no causal mask), one head, no feed-forward block:

    particles   x_i' = sum_j P_ij V(t) s(x_j)            P_ij = softmax_j( s(x_i)^T A(t) s(x_j) )
    sphere      x_i' = T_i sum_j P_ij V(t) x_j           P_ij = softmax_j( x_i^T A(t) x_j ),  |x_i| = 1
    unnormed    x_i' = T_i (1/n) sum_j exp(x_i^T A(t) x_j) V(t) x_j,  |x_i| = 1
    rescaled    z_i' = sum_j P_ij V(t) (z_j - z_i)       P_ij = softmax_j( (R z_i)^T A(t) (R z_j) ),  R = exp(int_0^t V)

with `A(t) = A f(t)`, `V(t) = V f(t)`, `f(t) = scale (t / unit)^order`: order 0 is weight sharing. `s` standardises the
coordinates of a token (LayerNorm without weights); `T_i = I - x_i x_i^T` keeps a particle on the sphere; `z = R^-1 x`
undoes the growth of `x_i' = sum_j P_ij V(t) x_j`.

Sources: `particles` is appendix C.8 of the paper; the others are Geshkovski et al. 2023, "The emergence of clusters in
self-attention dynamics" (rescaled) and "A mathematical perspective on transformers" (sphere, section 3; the energy).
Everything is NumPy in float64: these systems are small, and chaotic enough that lower precision would show.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, SupportsFloat, get_args

import numpy as np
from scipy.linalg import expm

from diffeqformer.analysis.gathering import Measures, directions, measure, together
from diffeqformer.analysis.tables import Summarised
from diffeqformer.config.bounds import whole
from diffeqformer.errors import BadInput, RunFailed
from diffeqformer.plain import shown
from diffeqformer.progress import Progress, Silent
from diffeqformer.report.table import Table

Variant = Literal["particles", "sphere", "unnormed", "rescaled"]
SPHERES: tuple[Variant, ...] = ("sphere", "unnormed")
"""Motions on a sphere. Points do merge there, so clusters are counted relative to the mean distance at the start; for
the others, relative to the current one."""
_LARGEST = 1e250
"""Bound at which factors of scores are cut: the softmax of scores this large is one at its maximum already."""


@dataclass(frozen=True)
class Weights:
    """Weights of one head: `A(t) = a f(t)` for scores, `V(t) = v f(t)` for values, `f(t) = scale (t / unit)^order`."""

    a: np.ndarray
    """A, (..., d, d); the leading axes are those of independent systems."""
    v: np.ndarray
    """V, (..., d, d)."""
    order: int = 0
    unit: float = 1.0
    scale: float = 1.0

    def growth(self, time: float) -> float:
        """Evaluate `f(t)`."""
        return self.scale * self._power(time, self.order)

    def integral(self, time: float) -> float:
        """Integrate f from 0 to t."""
        return self.scale * self.unit * self._power(time, self.order + 1) / (self.order + 1)

    def _power(self, time: float, order: int) -> float:
        """Compute `(t / unit)^order` by NumPy, which may return infinity where Python raises `OverflowError`."""
        return float(np.float64(time / self.unit) ** order)


@dataclass(frozen=True, repr=False)
class Simulation(Summarised):
    """Several systems of particles under one kind of motion."""

    variant: Variant
    order: int
    times: np.ndarray
    """Times of the states, (time,)."""
    states: np.ndarray
    """States of the first system, (time, point, dimension)."""
    measures: Measures

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all results as arrays, by name."""
        return {"times": self.times, "states": self.states, **self.measures.arrays()}

    def _repr_html_(self) -> str:
        ends = [(m[0].mean(), m[-1].mean()) for m in (self.measures.distance, self.measures.energy)]
        rows = [(name, f"{a:.4g}", f"{b:.4g}") for name, (a, b) in zip(("mean distance", "energy"), ends, strict=True)]
        about = f"{self.states.shape[1]} points, {self.measures.distance.shape[1]} systems"
        return Table(f"{self.variant}, f of order {self.order}: {about}", ("", "start", "end"), rows).to_html()


def draw(
    systems: int, points: int = 40, dimension: int = 3, *, reach: float = 2.0, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw points uniform in `[-reach, reach]^d` and two standard Gaussian matrices for each system.

    System k is drawn from (seed, k) alone, so more systems do not change the first ones.

    **Returns:** points of shape (system, points, d), and A and V of shape (system, d, d).
    """
    draws = []
    for system in range(systems):
        random = np.random.default_rng((seed, system))
        x = random.uniform(-reach, reach, (points, dimension))
        draws.append((x, *random.normal(size=(2, dimension, dimension))))
    x, a, v = (np.stack(each) for each in zip(*draws, strict=True))
    return x, a, v


def move(x: np.ndarray, weights: Weights, variant: Variant, *, steps: int, dt: float) -> Iterator[np.ndarray]:
    """Yield the points at the start and after every Euler step, each of the shape of `x`: steps + 1 of them.

    Weights are those at the end of a step, as in the library's forward pass. On the sphere, points are projected back
    onto it after every step.

    **Arguments:** `x`, points of shape (..., n, d); `weights`, leading axes as those of `x`.
    """
    on_sphere = variant in SPHERES
    x = directions(x) if on_sphere else x
    yield x
    for step in range(1, steps + 1):
        x = x + dt * speed(x, weights, step * dt, variant)
        x = directions(x) if on_sphere else x
        yield x


def speed(x: np.ndarray, weights: Weights, time: float, variant: Variant) -> np.ndarray:
    """Evaluate `dx/dt` of the module's equations, of the shape of `x`: (..., n, d)."""
    growth = weights.growth(time)
    v = np.swapaxes(weights.v, -1, -2) * growth  # for rows: V x_j is x_j V^T
    if variant == "rescaled":
        reading, size = _regrown(x, weights, time)
        attention = _softmax(_scores(reading, weights.a), growth * size)
        return (attention @ x - x) @ v
    if variant == "particles":
        x = _standardised(x)
        return _softmax(_scores(x, weights.a), growth) @ x @ v
    scores = _scores(x, weights.a)
    pull = _softmax(scores, growth) if variant == "sphere" else np.exp(growth * scores) / x.shape[-2]
    force = pull @ x @ v
    return force - (force * x).sum(-1, keepdims=True) * x


def simulate(
    variant: Variant,
    order: int,
    *,
    systems: int = 20,
    points: int = 40,
    dimension: int = 3,
    steps: int = 200,
    dt: float = 0.1,
    unit: float | None = None,
    identity: bool | None = None,
    level: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
) -> Simulation:
    """Draw systems, move them, and measure them.

    **Arguments:** `variant`; `order` of `f`; `systems` to draw, each of `points` in `dimension` dimensions; Euler
    `steps` of length `dt`; `unit` of the time of `f`, the whole duration if not given, so that `f` rises to 1 at the
    end; `identity`, whether A = V = I instead of Gaussian matrices (if not given, for all variants but `particles`, as
    in the theory); `level`, whether `f` is multiplied by order + 1, so that its integral over the whole duration, and
    with it how far points can go, is the same for all orders; `seed` of the draws; `progress`.

    **Returns:** a `Simulation`: states of the first system, measures of all.

    **Raises:** `BadInput` for an unknown variant or a number out of range; `RunFailed` if points overflow.
    """
    if variant not in get_args(Variant):
        raise BadInput(f"variant is {shown(variant)}, but must be one of {', '.join(map(repr, get_args(Variant)))}.")
    least = {"order": 0, "systems": 1, "points": 2, "dimension": 1, "steps": 1, "seed": 0}
    numbers = (order, systems, points, dimension, steps, seed)
    for (name, fewest), number in zip(least.items(), numbers, strict=True):
        whole(name, number, fewest)
    for name, number in (("dt", dt), ("unit", dt if unit is None else unit)):
        if not (isinstance(number, SupportsFloat) and 0 < float(number) < np.inf):
            raise BadInput(f"{name} is {shown(number)}, but must be a positive number.")
    unit = steps * dt if unit is None else unit
    x, a, v = draw(systems, points, dimension, seed=seed)
    if identity if identity is not None else variant != "particles":
        a = v = np.broadcast_to(np.eye(dimension), a.shape)
    weights = Weights(a, v, order, unit, order + 1.0 if level else 1.0)
    first, measures = [], []
    with (
        (progress or Silent()).stage(f"Moving {variant}, order {order}", steps + 1) as stage,
        # An overflow is reported below, with the step at which it happens.
        np.errstate(all="ignore"),
    ):
        for step, now in enumerate(move(x, weights, variant, steps=steps, dt=dt)):
            # Distances are computed from squares, which overflow beyond 1e154.
            if not np.isfinite(now).all() or np.abs(now).max() > 1e150:
                raise RunFailed(
                    f"{variant} with f of order {order} leave the range of numbers at step {step} of {steps}; "
                    "take smaller steps, a longer unit of time or another seed."
                )
            first.append(now[0])
            measures.append(measure(now[None]))
            stage.advance()
    return Simulation(variant, order, dt * np.arange(steps + 1), np.stack(first), together(measures, 0))


def _standardised(x: np.ndarray) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    # The epsilon of the models' own LayerNorms, `ModelConfig.norm_epsilon`.
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)


def _scores(x: np.ndarray, a: np.ndarray) -> np.ndarray:
    return x @ a @ np.swapaxes(x, -1, -2)


def _softmax(scores: np.ndarray, factor: float | np.ndarray) -> np.ndarray:
    # Shifted before the factor, which may be huge, is multiplied in: the difference of two infinities is NaN.
    scores = scores - scores.max(-1, keepdims=True)
    weights = np.exp(scores * factor)
    return weights / weights.sum(-1, keepdims=True)


def _regrown(z: np.ndarray, weights: Weights, time: float) -> tuple[np.ndarray, np.ndarray]:
    """Compute `R z` up to a factor, and the square of that factor, which alone may be huge; R = exp(V int f)."""
    total = weights.integral(time)
    fastest = np.linalg.eigvals(weights.v).real.max(-1)
    grown = expm(total * (weights.v - fastest[..., None, None] * np.eye(weights.v.shape[-1])))
    # Cut: an infinite factor times the score at the maximum, which is zero, would be NaN.
    size = np.exp(np.minimum(2 * total * fastest, np.log(_LARGEST)))
    return z @ np.swapaxes(grown, -1, -2), size[..., None, None]
