"""Schemes: how one step of depth goes.

A scheme says at which nodes of a step it needs weights (see `grid`) and how the next state follows from the field's
halves at those nodes, the state, and the step's length. Every explicit Runge-Kutta method is its tableau.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, NamedTuple, Protocol, runtime_checkable

import diffrax
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from diffeqformer.config import ModelConfig
from diffeqformer.errors import BadInput
from diffeqformer.nn.linear import wide
from diffeqformer.ode.grid import END_OF_STEP, Nodes

State = Float[Array, "*shape"]
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
        """Of the field's halves, a step."""
        ...

    def start(self, x: State) -> Any:
        """What is carried into the first step."""
        ...

    def step(self, field: SplitField, carry: Any, dt: Any) -> Any:
        """What is carried out of a step of length `dt`."""
        ...

    def state(self, carry: Any) -> State:
        """The state in what is carried."""
        ...


@dataclass(frozen=True)
class OneStep:
    """A scheme that carries nothing but the state."""

    nodes: Nodes
    order: int
    evaluations: Evaluations
    advance: Callable[[SplitField, State, Any], State]

    def start(self, x: State) -> State:
        """The state itself."""
        return x

    def step(self, field: SplitField, carry: State, dt: Any) -> State:
        """The state after a step of length `dt`."""
        return self.advance(field, carry, dt)

    def state(self, carry: State) -> State:
        """The state itself."""
        return carry


def _lie_trotter(field: SplitField, x: State, dt: Any) -> State:
    x = x + dt * field.attention[0](x)
    return x + dt * field.feed_forward[0](x)


def _macaron(field: SplitField, x: State, dt: Any) -> State:
    x = x + dt / 2 * field.feed_forward[0](x)
    x = x + dt * field.attention[0](x)
    return x + dt / 2 * field.feed_forward[1](x)


def _strang(field: SplitField, x: State, dt: Any) -> State:
    def flow(half: Half, x: State, dt: Any) -> State:
        return x + dt * half(x + dt / 2 * half(x))  # the midpoint method; an Euler step would cost the second order

    x = flow(field.feed_forward[0], x, dt / 2)
    x = flow(field.attention[0], x, dt)
    return flow(field.feed_forward[0], x, dt / 2)


def runge_kutta(a: Sequence[Sequence[float]], b: Sequence[float], c: Sequence[float], order: int) -> OneStep:
    """The explicit Runge-Kutta method `k_i = F(t + c_i dt, x + dt sum_j a_ij k_j)`, `x + dt sum_i b_i k_i`.

    **Arguments:** `a`, rows of lengths 0, 1, 2, ...; `b`; `c`; `order`. Stages behind the last with `b_i` other than
    zero (an error estimate's) are left out.

    Source: Butcher 2008, Numerical Methods for Ordinary Differential Equations.
    """
    stages = max(i for i, weight in enumerate(b) if weight) + 1
    nodes = sorted(set(c[:stages]))

    def advance(field: SplitField, x: State, dt: Any) -> State:
        slopes: list[State] = []
        combine = lambda weights: sum((dt * w * k for w, k in zip(weights, slopes, strict=False) if w), start=x)
        for i in range(stages):
            slopes.append(field.at(nodes.index(c[i]), combine(a[i])))
        return combine(b)

    return OneStep(Nodes.same(*nodes), order, Evaluations(stages, stages), advance)


def _of_tableau(solver: Any) -> OneStep:
    tableau = solver.tableau
    numbers = lambda row: tuple(float(x) for x in row)
    a = [(), *(numbers(row) for row in tableau.a_lower)]
    return runge_kutta(a, numbers(tableau.b_sol), (tableau.c1, *numbers(tableau.c)), solver.order(None))


@dataclass(frozen=True)
class LeapfrogMidpoint:
    """`x_{n+1} = x_{n-1} + 2 dt F(t_n, x_n)`, the first step Euler's: Diffrax's solver of that name."""

    nodes: Nodes = Nodes.same(0.0)
    order: int = 2
    evaluations: Evaluations = Evaluations(1, 1)

    def start(self, x: State) -> tuple[State, State, Array]:
        """The state, the one before it, and the length of the step between."""
        return x, x, jnp.zeros((), x.dtype)

    def step(self, field: SplitField, carry: tuple[State, State, Array], dt: Any) -> tuple[State, State, Array]:
        """One step on."""
        x, before, since = carry
        return before + (since + dt) * field.at(0, x), x, jnp.asarray(dt, x.dtype)

    def state(self, carry: tuple[State, State, Array]) -> State:
        """The newer state."""
        return carry[0]


@dataclass(frozen=True)
class ReversibleHeun:
    """Kidger et al. 2021: two states, `y' = 2x - y + dt F(t_n, y)`, `x' = x + dt/2 (F(t_n, y) + F(t_{n+1}, y'))`.

    Diffrax's solver of that name, except that the slope at the start of a step is computed again instead of kept.
    """

    nodes: Nodes = Nodes.same(0.0, 1.0)
    order: int = 2
    evaluations: Evaluations = Evaluations(2, 2)

    def start(self, x: State) -> tuple[State, State]:
        """The state, twice."""
        return x, x

    def step(self, field: SplitField, carry: tuple[State, State], dt: Any) -> tuple[State, State]:
        """One step on."""
        x, y = carry
        slope = field.at(0, y)
        y = 2 * x - y + dt * slope
        return x + dt / 2 * (slope + field.at(1, y)), y

    def state(self, carry: tuple[State, State]) -> State:
        """The first of the two."""
        return carry[0]


@dataclass(frozen=True)
class Reversible:
    """Any one-step scheme made reversible by a second state (McCallum & Foster 2024, arXiv:2410.11648).

    With `Psi_h(x)` the base scheme's increment over a step h, `Psi_{-h}` that of a step back from the end:

        y' = lambda y + (1 - lambda) z + Psi_h(z)
        z' = z - Psi_{-h}(y')

    which can be solved for (y, z): states need not be kept for the backward pass. Its order is the base's.
    """

    base: OneStep
    coupling: float

    @property
    def nodes(self) -> Nodes:
        """The base's nodes and their mirror images, for the step back."""
        both = lambda nodes: tuple(sorted({*nodes, *(1.0 - c for c in nodes)}))
        return Nodes(both(self.base.nodes.attention), both(self.base.nodes.feed_forward))

    @property
    def order(self) -> int:
        """The base's."""
        return self.base.order

    @property
    def evaluations(self) -> Evaluations:
        """Two base steps."""
        return self.base.evaluations.times(2)

    def start(self, x: State) -> tuple[State, State]:
        """The state, twice, in float32 or better: in bfloat16 the way back loses the states."""
        x = x.astype(wide(x.dtype))
        return x, x

    def step(self, field: SplitField, carry: tuple[State, State], dt: Any) -> tuple[State, State]:
        """One step on."""
        y, z = carry
        y = self.coupling * y + (1 - self.coupling) * z + self._forward(field, z, dt)
        return y, z - self._backward(field, y, dt)

    def state(self, carry: tuple[State, State]) -> State:
        """The first of the two."""
        return carry[0]

    def pull_back(
        self, field_of: Callable[[Any], SplitField], weights: Any, carry: Any, cotangent: Any, dt: Any
    ) -> tuple[tuple[State, State], tuple[State, State], Any]:
        """Undo a step, and pull a cotangent of what came out of it back to what went in.

        Each of the two increments is evaluated once, for the states and for the cotangents together.

        **Arguments:** `field_of`, the field that weights give; `weights`, the step's; `carry` and `cotangent` behind
        the step; `dt`.

        **Returns:** `carry` and `cotangent` before the step, and the cotangent of the weights.
        """
        (y, z), (y_bar, z_bar) = carry, cotangent
        increment, pull = jax.vjp(lambda w, y: self._backward(field_of(w), y, dt), weights, y)
        z = z + increment
        first, through_y = pull(-z_bar)
        y_bar = y_bar + through_y
        increment, pull = jax.vjp(lambda w, z: self._forward(field_of(w), z, dt), weights, z)
        y = (y - (1 - self.coupling) * z - increment) / self.coupling
        second, through_z = pull(y_bar)
        cotangent = self.coupling * y_bar, z_bar + (1 - self.coupling) * y_bar + through_z
        return (y, z), cotangent, jax.tree.map(jnp.add, first, second)

    def _forward(self, field: SplitField, x: State, dt: Any) -> State:
        """`Psi_h(x)`."""
        return self._increment(field, x, dt, lambda c: c)

    def _backward(self, field: SplitField, x: State, dt: Any) -> State:
        """`Psi_{-h}(x)`: from the step's end, node c of the base lies at 1 - c."""
        return self._increment(field, x, -dt, lambda c: 1.0 - c)

    def _increment(self, field: SplitField, x: State, dt: Any, place: Callable[[float], float]) -> State:
        pick = lambda halves, all_, mine: [halves[all_.index(place(c))] for c in mine]
        mine = SplitField(
            pick(field.attention, self.nodes.attention, self.base.nodes.attention),
            pick(field.feed_forward, self.nodes.feed_forward, self.base.nodes.feed_forward),
        )
        return self.base.advance(mine, x, dt) - x


ONE_STEP: dict[str, OneStep] = {
    # x + dt (A(x) + M(x)), weights at the end of the step: DiffEqFormer; parallel blocks (PaLM, GPT-J) at dt = 1.
    "euler": runge_kutta([()], [1.0], [1.0], order=1),
    # The same with weights at the middle of the step: sums over steps of different number differ by O(dt^2) only.
    "euler-middle": runge_kutta([()], [1.0], [0.5], order=1),
    # Attention, then feed-forward on its result: the vanilla transformer at dt = 1 (Lu et al. 2019).
    "lie-trotter": OneStep(END_OF_STEP, 1, Evaluations(1, 1), _lie_trotter),
    "lie-trotter-middle": OneStep(Nodes.same(0.5), 1, Evaluations(1, 1), _lie_trotter),
    # Half a feed-forward step, attention, half a feed-forward step: MacaronNet at dt = 1 (Lu et al. 2019).
    "macaron": OneStep(Nodes((0.5,), (0.25, 0.75)), 1, Evaluations(1, 2), _macaron),
    # The same splitting with flows of second order, weights frozen at the middle of the step (Strang 1968).
    "strang": OneStep(Nodes.same(0.5), 2, Evaluations(2, 4), _strang),
    "midpoint": _of_tableau(diffrax.Midpoint()),
    "heun": _of_tableau(diffrax.Heun()),
    # Kutta 1901, the classic one of four stages (the ODE Transformer's, Li et al. 2021); Diffrax has none.
    "rk4": runge_kutta(
        [(), (0.5,), (0.0, 0.5), (0.0, 0.0, 1.0)], [1 / 6, 1 / 3, 1 / 3, 1 / 6], [0.0, 0.5, 0.5, 1.0], order=4
    ),
}
_OTHERS: dict[str, Scheme] = {
    "diffrax:Euler": runge_kutta([()], [1.0], [0.0], order=1),  # weights at the start of the step
    "diffrax:LeapfrogMidpoint": LeapfrogMidpoint(),
    "diffrax:ReversibleHeun": ReversibleHeun(),
}


def _from_diffrax() -> dict[str, Scheme]:
    solvers = {n: s for n, s in vars(diffrax).items() if isinstance(s, type) and issubclass(s, diffrax.AbstractERK)}
    named: dict[str, Scheme] = {f"diffrax:{n}": _of_tableau(s()) for n, s in solvers.items() if hasattr(s, "tableau")}
    return dict(sorted({**named, **_OTHERS}.items()))


SCHEMES: dict[str, Scheme] = {**ONE_STEP, "reversible": Reversible(ONE_STEP["euler"], 0.99), **_from_diffrax()}
"""All schemes by name; a config chooses the base and the coupling of `reversible`."""


def scheme_of(config: ModelConfig) -> Scheme:
    """The scheme that a model config names.

    **Raises:** `BadInput` for a name that does not exist, with the list of those that do.
    """
    scheme = _named(config.scheme, SCHEMES, "model.scheme")
    if not isinstance(scheme, Reversible):
        return scheme
    bases = {name: scheme for name, scheme in SCHEMES.items() if isinstance(scheme, OneStep)}
    return Reversible(_named(config.reversible.base, bases, "model.reversible.base"), config.reversible.coupling)


def _named(name: str, schemes: dict[str, Any], setting: str) -> Any:
    if name in schemes:
        return schemes[name]
    near = [full] if (full := f"diffrax:{name}") in schemes else get_close_matches(name, schemes, n=1)
    advice = f"; did you mean {near[0]!r}?" if near else "."
    raise BadInput(f"{setting} is {name!r}, but must be one of {', '.join(schemes)}{advice}")
