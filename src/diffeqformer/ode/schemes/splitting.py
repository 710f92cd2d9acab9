"""Splitting schemes: the halves of the field act one after the other, each from where the one before ended."""

from dataclasses import dataclass

import numpy as np

from diffeqformer.ode.grid import END_OF_STEP, Nodes
from diffeqformer.ode.schemes.scheme import Evaluations, Half, Length, OneStep, Scheme, SplitField, State


@dataclass(frozen=True)
class LieTrotter(OneStep):
    """Attention, then feed-forward on its result: the vanilla transformer at dt = 1 (Lu et al. 2019). Order 1."""

    nodes: Nodes = END_OF_STEP
    order: int = 1
    evaluations: Evaluations = Evaluations(1, 1)

    def advance(self, field: SplitField, x: State, dt: Length) -> State:
        """`y = x + dt A(x)`, then `y + dt M(y)`."""
        x = x + dt * field.attention[0](x)
        return x + dt * field.feed_forward[0](x)


@dataclass(frozen=True)
class Residual(LieTrotter):
    """Residual layers: each step has length 1, whatever its `dt` (He et al. 2016). Not a flow, hence of order 0.

    For models that run at fewer steps by leaving layers out; with `horizon: steps` it is `lie-trotter-middle`.
    """

    nodes: Nodes = Nodes.same(0.5)
    order: int = 0

    def advance(self, field: SplitField, x: State, dt: Length) -> State:
        """`y = x + A(x)`, then `y + M(y)`."""
        return super().advance(field, x, 1)


def length_taken(scheme: Scheme, dt: Length | np.ndarray) -> Length | np.ndarray:
    """Return the length, or lengths, by which a scheme scales a block's output in a step of `dt`: 1 for `Residual`."""
    return dt * 0 + 1 if isinstance(scheme, Residual) else dt


@dataclass(frozen=True)
class Macaron(OneStep):
    """Half a feed-forward step, attention, half a feed-forward step: MacaronNet at dt = 1 (Lu et al. 2019). Order 1."""

    # Each of the three Euler steps takes its weights at its own middle.
    nodes: Nodes = Nodes((0.5,), (0.25, 0.75))
    order: int = 1
    evaluations: Evaluations = Evaluations(1, 2)

    def advance(self, field: SplitField, x: State, dt: Length) -> State:
        """Three Euler steps: half of M, the whole of A, half of M."""
        x = x + dt / 2 * field.feed_forward[0](x)
        x = x + dt * field.attention[0](x)
        return x + dt / 2 * field.feed_forward[1](x)


@dataclass(frozen=True)
class Strang(OneStep):
    """Macaron's splitting with second-order flows, weights frozen at the middle of the step (Strang 1968). Order 2.

    With Euler's flows the whole would be of first order, which is why this is not MacaronNet.
    """

    nodes: Nodes = Nodes.same(0.5)
    order: int = 2
    evaluations: Evaluations = Evaluations(2, 4)

    def advance(self, field: SplitField, x: State, dt: Length) -> State:
        """Half of M, the whole of A, half of M, each a step of the midpoint method."""
        x = _midpoint(field.feed_forward[0], x, dt / 2)
        x = _midpoint(field.attention[0], x, dt)
        return _midpoint(field.feed_forward[0], x, dt / 2)


def _midpoint(half: Half, x: State, dt: Length) -> State:
    return x + dt * half(x + dt / 2 * half(x))
