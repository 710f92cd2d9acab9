"""Early exit: tokens whose prediction has settled are integrated no further."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from diffeqformer.errors import BadInput
from diffeqformer.nn.linear import wide
from diffeqformer.ode import grid
from diffeqformer.ode.field import BlockWeights, Field
from diffeqformer.ode.grid import Steps
from diffeqformer.ode.schemes import Evaluations, OneStep, Scheme
from diffeqformer.ode.solve import Solution, row_of_step, split


class EarlyExit(NamedTuple):
    """A grid of which each token takes only as many steps as its prediction needs."""

    steps: int
    """Steps of the grid."""
    threshold: float
    """A prediction has settled when a step moves it by less than this (root mean square, after the final norm)."""


def solve_until_settled(
    field: Field,
    scheme: Scheme,
    table: BlockWeights,
    x: Float[Array, "batch position width"],
    *,
    steps: Steps,
    threshold: float,
    horizon: float,
    normalise: Callable[[Array], Array],
) -> Solution:
    """Integrate as `solve`, each token until its prediction has settled.

    After step l of L a token's prediction is where it would end if it went on in a straight line,
    `e_l = n(x_l + (1 - t_l) (x_l - x_{l-1}) / (t_l - t_{l-1}))`, n the final norm. It has settled
    when e_l is within the threshold of e_{l-1}; from then on the token does go on in a straight line, without
    evaluating the field, while other tokens still attend to it. The whole ends when all have settled.

    **Arguments:** `field`, `scheme`, `table`, `x`, `steps`, `horizon` as for `solve`; `threshold` as for `EarlyExit`;
    `normalise`, the final norm.

    **Returns:** a `Solution` whose evaluations are the mean over all tokens of those that each took.

    **Raises:** `BadInput` for a scheme that carries more than the state.

    Source: the criterion is this project's; states that are copied to later layers are Schuster et al. 2022,
    arXiv:2207.07061.
    """
    if not isinstance(scheme, OneStep):
        name = type(scheme).__name__
        raise BadInput(
            f"early exit needs a scheme that carries the state alone, such as euler, but {name} carries more."
        )
    number, lengths = grid.number(steps), jnp.asarray(grid.lengths(steps), x.dtype)
    left = jnp.asarray(1.0 - grid.edges(steps), x.dtype)

    def one(now: tuple) -> tuple:
        step, x, slope, end, settled, taken = now
        halves, length = split(field, scheme, row_of_step(table, step)), lengths[step]
        slope = jnp.where(settled, slope, (scheme.step(halves, x, horizon * length) - x) / length)
        x = x + length * slope
        before, end = end, normalise(x + left[step + 1] * slope)
        moved = jnp.sqrt(jnp.square((end - before).astype(wide(x.dtype))).mean(-1, keepdims=True))
        taken = taken + (~settled).astype(taken.dtype)
        return step + 1, x, slope, end, settled | ((moved < threshold) & (step > 0)), taken

    tokens = (*x.shape[:-1], 1)
    start = (jnp.zeros((), jnp.int32), x, jnp.zeros_like(x), normalise(x), jnp.zeros(tokens, bool))
    step, x, slope, *_, taken = jax.lax.while_loop(
        lambda now: (now[0] < number) & ~now[4].all(), one, (*start, jnp.zeros(tokens, jnp.int32))
    )
    evaluations = Evaluations(*scheme.evaluations).times(taken.astype(jnp.float32).mean())
    return Solution(x + left[step] * slope, evaluations)
