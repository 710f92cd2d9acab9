"""Schemes after two of Diffrax's solvers that carry more than the state."""

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array

from diffeqformer.ode.grid import Nodes
from diffeqformer.ode.schemes.scheme import Evaluations, Length, SplitField, State


@dataclass(frozen=True)
class LeapfrogMidpoint:
    """`x_{n+1} = x_{n-1} + 2 dt F(t_n, x_n)`, with Euler's first step: Diffrax's solver of that name.

    Its order is 2 over steps that are equal or change slowly. Where lengths of neighbours differ, as with
    `depth.jitter`, two steps make an error of `(dt^2 - dt'^2) / 2` times the second derivative: over alternating
    lengths the order is 1.
    """

    nodes: Nodes = Nodes.same(0.0)
    order: int = 2
    evaluations: Evaluations = Evaluations(1, 1)

    def start(self, x: State) -> tuple[State, State, Array]:
        """Return the state, the state before it, and the length of the step between them."""
        # The step before the first has length 0, which makes the first step Euler's.
        return x, x, jnp.zeros((), x.dtype)

    def step(self, field: SplitField, carry: tuple[State, State, Length], dt: Length) -> tuple[State, State, Length]:
        """Take one step."""
        x, before, since = carry
        return before + (since + dt) * field.at(0, x), x, jnp.asarray(dt, x.dtype)

    def state(self, carry: tuple[State, State, Length]) -> State:
        """Return the newer state."""
        return carry[0]


@dataclass(frozen=True)
class ReversibleHeun:
    """Kidger et al. 2021: two states, `y' = 2x - y + dt F(t_n, y)`, `x' = x + dt/2 (F(t_n, y) + F(t_{n+1}, y'))`.

    Diffrax's solver of that name, except that the slope at the start of a step is recomputed instead of kept.
    """

    nodes: Nodes = Nodes.same(0.0, 1.0)
    order: int = 2
    evaluations: Evaluations = Evaluations(2, 2)
    solver: str = "ReversibleHeun"
    """Diffrax's solver of the same method, for adaptive steps."""

    def start(self, x: State) -> tuple[State, State]:
        """Return the state, twice."""
        return x, x

    def step(self, field: SplitField, carry: tuple[State, State], dt: Length) -> tuple[State, State]:
        """Take one step."""
        x, y = carry
        slope = field.at(0, y)
        y = 2 * x - y + dt * slope
        return x + dt / 2 * (slope + field.at(1, y)), y

    def state(self, carry: tuple[State, State]) -> State:
        """Return the first of the two states."""
        return carry[0]
