"""Any one-step scheme made reversible by a second state."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from diffeqformer.errors import BadInput
from diffeqformer.nn.linear import wide
from diffeqformer.ode.grid import Nodes
from diffeqformer.ode.schemes.scheme import Evaluations, Length, OneStep, SplitField, State
from diffeqformer.ode.schemes.splitting import Residual


@dataclass(frozen=True)
class Reversible:
    """Any one-step scheme made reversible by a second state (McCallum & Foster 2024, arXiv:2410.11648).

    With `Psi_h(x)` the base scheme's increment over a step h, and `Psi_{-h}` its increment over a step back from the
    end:

        y' = lambda^h y + (1 - lambda^h) z + Psi_h(z)
        z' = z - Psi_{-h}(y')

    These can be solved for (y, z), so states need not be kept for the backward pass. The order is that of the base.

    The paper has lambda in place of lambda^h. With a factor per step, the difference y - z, to which both lines add
    O(h^2), is forgotten within 1 / (1 - lambda) steps, however short they are. As steps are added, the error then
    passes from one constant times h^k to another, so that no order is seen on the way, and rounding grows by
    lambda^(-steps) on the way back.

    **Raises:** `BadInput` for a base that carries more than the state or has no step back (`Residual`, whose steps have
    no length), a coupling out of range, or a subclass with a `step` of its own and no `pull_back` to undo it.
    """

    base: OneStep
    coupling: float
    """lambda, in (0, 1]: the fraction of the two states' difference that is left after one unit of integration time."""

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        definer = lambda name: next(one for one in cls.__mro__ if name in vars(one))
        if not issubclass(back := definer("pull_back"), definer("step")):
            raise BadInput(
                f"{cls.__name__} has a step of its own, but the pull_back of {back.__name__}, which undoes another "
                "step, so that gradients would be wrong; define `pull_back`, too."
            )

    def __post_init__(self) -> None:
        if not isinstance(self.base, OneStep) or isinstance(self.base, Residual):
            name = type(self.base).__name__
            raise BadInput(f"the base of Reversible is {name}, but must be a OneStep whose steps have a length.")
        if not 0 < self.coupling <= 1:
            raise BadInput(f"the coupling of Reversible is {self.coupling}, but must be above 0 and at most 1.")

    @property
    def nodes(self) -> Nodes:
        """The base's nodes and their mirror images, for the step back."""
        # `1.0 - c` must equal that of `_backward` to the bit: its nodes are looked up here by value.
        both = lambda nodes: tuple(sorted({*nodes, *(1.0 - c for c in nodes)}))
        return Nodes(both(self.base.nodes.attention), both(self.base.nodes.feed_forward))

    @property
    def order(self) -> int:
        """The base's order."""
        return self.base.order

    @property
    def evaluations(self) -> Evaluations:
        """Evaluations of two base steps."""
        return self.base.evaluations.times(2)

    def start(self, x: State) -> tuple[State, State]:
        """Return the state, twice, in float32 or better: in bfloat16 the way back loses the states."""
        x = x.astype(wide(x.dtype))
        return x, x

    def step(self, field: SplitField, carry: tuple[State, State], dt: Length) -> tuple[State, State]:
        """Take one step."""
        (y, z), kept = carry, self.coupling**dt
        y = kept * y + (1 - kept) * z + self._forward(field, z, dt)
        return y, z - self._backward(field, y, dt)

    def state(self, carry: tuple[State, State]) -> State:
        """Return the first of the two states."""
        return carry[0]

    def pull_back(
        self, field_of: Callable[[PyTree], SplitField], weights: PyTree, carry: PyTree, cotangent: PyTree, dt: Length
    ) -> tuple[tuple[State, State], tuple[State, State], PyTree]:
        """Undo a step, and pull a cotangent of its output back to its input.

        Each of the two increments is evaluated once, for both the states and the cotangents.

        **Arguments:** `field_of`, a function from weights to the field; `weights` of the step; `carry` and `cotangent`
        after the step; `dt`.

        **Returns:** `carry` and `cotangent` before the step, and the cotangent of the weights.
        """
        # The equation for z' is undone first, which needs y', then that for y', which needs z (docs/mathematics.md,
        # Schemes).
        (y, z), (y_bar, z_bar), kept = carry, cotangent, self.coupling**dt
        increment, pull = jax.vjp(lambda w, y: self._backward(field_of(w), y, dt), weights, y)
        z = z + increment
        first, through_y = pull(-z_bar)
        y_bar = y_bar + through_y
        increment, pull = jax.vjp(lambda w, z: self._forward(field_of(w), z, dt), weights, z)
        y = (y - (1 - kept) * z - increment) / kept
        second, through_z = pull(y_bar)
        cotangent = kept * y_bar, z_bar + (1 - kept) * y_bar + through_z
        return (y, z), cotangent, jax.tree.map(jnp.add, first, second)

    def _forward(self, field: SplitField, x: State, dt: Length) -> State:
        """`Psi_h(x)`."""
        return self._increment(field, x, dt, lambda c: c)

    def _backward(self, field: SplitField, x: State, dt: Length) -> State:
        """`Psi_{-h}(x)`: from the step's end, node c of the base lies at 1 - c."""
        return self._increment(field, x, -dt, lambda c: 1.0 - c)

    def _increment(self, field: SplitField, x: State, dt: Length, place: Callable[[float], float]) -> State:
        pick = lambda halves, all_, mine: [halves[all_.index(place(c))] for c in mine]
        mine = SplitField(
            pick(field.attention, self.nodes.attention, self.base.nodes.attention),
            pick(field.feed_forward, self.nodes.feed_forward, self.base.nodes.feed_forward),
        )
        return self.base.advance(mine, x, dt) - x
