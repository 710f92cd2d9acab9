"""Schemes: how one step of depth goes.

A scheme is a table entry: its nodes (where in the step it needs weights, see `grid`) and a function from the fields at
those nodes, the state and the step's length to the next state.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from jax import Array
from jaxtyping import Float

State = Float[Array, "batch position width"]


class SplitField(NamedTuple):
    """A vector field at a frozen time, as the sum of its attention and feed-forward halves."""

    attention: Callable[[Array], Array]
    feed_forward: Callable[[Array], Array]

    def __call__(self, x: Array) -> Array:
        """`F(x) = A(x) + M(x)`."""
        return self.attention(x) + self.feed_forward(x)


class Scheme(NamedTuple):
    """One explicit one-step method."""

    nodes: tuple[float, ...]
    step: Callable[[Sequence[SplitField], Array, float], Array]
    attention_evaluations: int = 1
    """Attention evaluations a step; each needs a key-value cache of its own."""


def _euler(fields: Sequence[SplitField], x: Array, dt: float) -> Array:
    """`x + dt (A(x) + M(x))`, weights at the end of the step: DiffEqFormer; parallel blocks (PaLM) at dt = 1."""
    (field,) = fields
    return x + dt * field(x)


def _lie_trotter(fields: Sequence[SplitField], x: Array, dt: float) -> Array:
    """`y = x + dt A(x)`, then `y + dt M(y)`: the vanilla transformer at dt = 1 (Lu et al. 2019)."""
    (field,) = fields
    x = x + dt * field.attention(x)
    return x + dt * field.feed_forward(x)


SCHEMES: dict[str, Scheme] = {
    "euler": Scheme(nodes=(1.0,), step=_euler),
    "lie-trotter": Scheme(nodes=(1.0,), step=_lie_trotter),
}
