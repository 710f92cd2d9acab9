"""What a scheme is: how one step of depth goes.

A scheme says at which nodes of a step it needs weights (see `grid`) and how the next state follows from the field's
halves at those nodes, the state, and the step's length. It is a small frozen dataclass: anything with these members is
one, and `OneStep` asks for the least.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from jax import Array
from jaxtyping import Float, PyTree

from diffeqformer.ode.grid import Nodes

State = Float[Array, "*shape"]
Length = int | float | Array
"""Of a step, in the state's clock."""
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
        """The same, `number` times."""
        return Evaluations(self.attention * number, self.feed_forward * number)


@runtime_checkable
class Scheme(Protocol):
    """A method on a fixed grid. What it carries from step to step is the state, unless it says otherwise."""

    @property
    def nodes(self) -> Nodes:
        """Where in a step it needs weights."""
        ...

    @property
    def order(self) -> int:
        """Of convergence, for smooth fields."""
        ...

    @property
    def evaluations(self) -> Evaluations:
        """Of the field's halves, per step."""
        ...

    def start(self, x: State) -> PyTree:
        """What is carried into the first step."""
        ...

    def step(self, field: SplitField, carry: PyTree, dt: Length) -> PyTree:
        """What is carried out of a step of length `dt`."""
        ...

    def state(self, carry: PyTree) -> State:
        """The state in what is carried."""
        ...


class OneStep(ABC):
    """A scheme that carries nothing but the state: one function, `advance`, and what it needs."""

    nodes: Nodes
    order: int
    evaluations: Evaluations

    @abstractmethod
    def advance(self, field: SplitField, x: State, dt: Length) -> State:
        """The state after a step of length `dt`."""

    def start(self, x: State) -> State:
        """The state itself."""
        return x

    def step(self, field: SplitField, carry: State, dt: Length) -> State:
        """As `advance`."""
        return self.advance(field, carry, dt)

    def state(self, carry: State) -> State:
        """The state itself."""
        return carry
