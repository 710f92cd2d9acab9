"""Early exit: tokens whose prediction has settled are integrated no further."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.typing import DTypeLike
from jaxtyping import Bool, Float, Int, Key

from diffeqformer.errors import BadInput
from diffeqformer.nn.linear import wide
from diffeqformer.ode.field import BlockWeights, Field
from diffeqformer.ode.grid import Grid, Nodes, Steps
from diffeqformer.ode.schemes import Evaluations, Length, OneStep, Scheme, SplitField
from diffeqformer.ode.solve import Solution, solve
from diffeqformer.plain import shown


class EarlyExit(NamedTuple):
    """A grid on which each token takes only as many steps as its prediction needs."""

    steps: Steps
    """The grid."""
    threshold: float
    """A prediction has settled when a step moves it by less than this (root mean square, after the final norm)."""


class _Settled(NamedTuple):
    """The carry from step to step."""

    x: Float[Array, "batch position width"]
    slope: Float[Array, "batch position width"]
    """Slope over the last step, or over the step at which the token settled."""
    end: Float[Array, "batch position width"]
    """Where the straight line ends. For a settled token, this is kept from the step at which it settled, so that its
    last digit does not depend on how long other tokens go on."""
    settled: Bool[Array, "batch position 1"]
    taken: Int[Array, "batch position 1"]
    """Number of steps that the token took."""
    left: Float[Array, ""]
    """Remaining integration time, of `horizon` for the whole depth."""


@dataclass(frozen=True)
class _Settling:
    """A one-step scheme in which each token stops when it has settled; see `solve_until_settled`."""

    nodes: Nodes
    order: int
    evaluations: Evaluations
    base: OneStep
    threshold: float
    horizon: float
    normalise: Callable[[Array], Array]

    def start(self, x: Array) -> _Settled:
        tokens = (*x.shape[:-1], 1)
        none, left = jnp.zeros(tokens, jnp.int32), jnp.asarray(self.horizon, wide(x.dtype))
        return _Settled(x, jnp.zeros_like(x), x, jnp.zeros(tokens, bool), none, left)

    def step(self, field: SplitField, carry: _Settled, dt: Length) -> _Settled:
        x, slope, before, settled, taken, left = carry
        moves = jnp.asarray(dt) > 0  # a step of length 0 says nothing about where a token is going
        # As a slope, so that one formula moves all tokens, settled ones by the slope that they keep; 1 avoids 0 / 0.
        found = (self.base.advance(field, x, dt) - x) / jnp.where(moves, dt, 1)
        slope = jnp.where(settled | ~moves, slope, found)
        # `dt` of unequal steps has the precision of the state, which may be lower than that of the time that is left.
        x, left = x + dt * slope, left - jnp.asarray(dt, left.dtype)
        end = jnp.where(settled, before, x + left.astype(x.dtype) * slope)
        moved = (self.normalise(end) - self.normalise(before)).astype(wide(x.dtype))
        moved = jnp.sqrt(jnp.square(moved).mean(-1, keepdims=True))
        # `taken > 0`: before the first step there is no prediction to compare with; `before` is the embedding.
        now = settled | ((moved < self.threshold) & (taken > 0) & moves)
        return _Settled(x, slope, end, now, taken + (~settled).astype(taken.dtype), left)

    def state(self, carry: _Settled) -> Array:
        return carry.end


def solve_until_settled(
    field: Field,
    scheme: Scheme,
    table: BlockWeights,
    x: Float[Array, "batch position width"],
    *,
    grid: Grid,
    threshold: float,
    horizon: float,
    normalise: Callable[[Array], Array],
    precision: DTypeLike,
    key: Key[Array, ""] | None = None,
) -> Solution:
    """Integrate as `solve` does, but each token only until its prediction has settled.

    After step l of L, a token's prediction is where it would end if it went on in a straight line,
    `e_l = n(x_l + (1 - t_l) (x_l - x_{l-1}) / (t_l - t_{l-1}))`, with n the final norm. It has settled
    when e_l is within the threshold of e_{l-1}. From then on, the token does go on in a straight line, without
    evaluating the field, while other tokens still attend to it. The solve ends when all tokens have settled. As without
    early exit, a token's state depends only on itself and the tokens before it, bit for bit.

    **Arguments:** `field`, `scheme`, `table`, `x`, `grid`, `horizon`, `precision`, `key` as for `solve`; `threshold` as
    for `EarlyExit`; `normalise`, the final norm.

    **Returns:** a `Solution` whose `evaluations` are means over all tokens; its `carry.taken` is each token's number of
    steps.

    **Raises:** `BadInput` for a scheme that carries more than the state, or a threshold that is negative or no number.

    Source: the criterion is this project's; copying states to later layers is from Schuster et al. 2022,
    arXiv:2207.07061.
    """
    known = None if isinstance(threshold, Tracer) else np.asarray(threshold)  # JAX would trace the comparison
    if known is not None and not (known.ndim == 0 and jnp.issubdtype(known.dtype, jnp.number) and known >= 0):
        raise BadInput(f"the threshold of early exit is {shown(threshold)}, but must be a number, and not negative.")
    if not isinstance(scheme, OneStep):
        raise BadInput(
            f"early exit needs a scheme that carries the state alone, such as euler, but {type(scheme).__name__} "
            "carries more."
        )
    settling = _Settling(scheme.nodes, scheme.order, scheme.evaluations, scheme, threshold, horizon, normalise)
    ended = lambda carry: carry.settled.all()
    found = solve(field, settling, table, x, grid=grid, horizon=horizon, precision=precision, until=ended, key=key)
    taken = found.carry.taken.astype(jnp.float32).mean()
    return Solution(found.state, scheme.evaluations.times(taken), carry=found.carry)
