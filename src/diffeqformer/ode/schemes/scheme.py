"""The interface of schemes, methods for one step in depth.

A scheme says at which nodes of a step it needs weights (see `grid`) and how the next state follows from the field's
halves at those nodes, the state, and the step's length. Schemes are small frozen dataclasses: anything with the members
of `Scheme` is one, and `OneStep` requires the fewest.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from jax import Array
from jaxtyping import Float, PyTree

from diffeqformer.ode.grid import Nodes

State = Float[Array, "*shape"]
Length = int | float | Array
"""Length of a step in integration time, which is `horizon` for the whole depth."""
Half = Callable[[State], State]
"""One half of a vector field at a frozen time."""


class SplitField(NamedTuple):
    """The halves of a vector field `F = A + M`, frozen at each of a scheme's nodes."""

    attention: Sequence[Half]
    feed_forward: Sequence[Half]

    def at(self, node: int, x: State) -> State:
        """`F(x) = A(x) + M(x)` at a node."""
        return self.attention[node](x) + self.feed_forward[node](x)


class Evaluations(NamedTuple):
    """How often each half of the vector field is evaluated."""

    attention: Any
    feed_forward: Any

    def times(self, number: Any) -> "Evaluations":
        """Return these evaluations `number` times over."""
        return Evaluations(self.attention * number, self.feed_forward * number)


@runtime_checkable
class Scheme(Protocol):
    """An integration method on a fixed grid. Its carry from step to step is the state, unless it says otherwise."""

    @property
    def nodes(self) -> Nodes:
        """Where in a step the scheme needs weights."""
        ...

    @property
    def order(self) -> int:
        """Order of convergence for smooth fields."""
        ...

    @property
    def evaluations(self) -> Evaluations:
        """Evaluations of each half of the field per step."""
        ...

    def start(self, x: State) -> PyTree:
        """Return the carry into the first step, from the state `x`."""
        ...

    def step(self, field: SplitField, carry: PyTree, dt: Length) -> PyTree:
        """Take a step of length `dt`; return the new carry."""
        ...

    def state(self, carry: PyTree) -> State:
        """Return the state in the carry."""
        ...


class OneStep(ABC):
    """A scheme that carries nothing but the state: a function `advance`, and what it needs."""

    nodes: Nodes
    order: int
    evaluations: Evaluations

    @abstractmethod
    def advance(self, field: SplitField, x: State, dt: Length) -> State:
        """Return the state after a step of length `dt`."""

    def start(self, x: State) -> State:
        """Return the state itself."""
        return x

    def step(self, field: SplitField, carry: State, dt: Length) -> State:
        """Call `advance`."""
        return self.advance(field, carry, dt)

    def state(self, carry: State) -> State:
        """Return the state itself."""
        return carry
