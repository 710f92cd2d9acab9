"""Diffrax: our schemes as its solvers, and its adaptive solvers for our models."""

from collections.abc import Callable
from typing import Any, ClassVar

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree
from jaxtyping import Float, Key

from diffeqformer.config import ModelConfig
from diffeqformer.errors import BadInput
from diffeqformer.nn.linear import wide
from diffeqformer.ode.field import Field
from diffeqformer.ode.grid import edges, with_first
from diffeqformer.ode.schemes import SCHEMES, Evaluations, OneStep, Scheme, SplitField
from diffeqformer.ode.solve import Solution, split
from diffeqformer.ode.weights import WeightSource


class SchemeSolver(diffrax.AbstractSolver):
    """Any of our schemes as a solver of Diffrax, for fields that are sums of two halves and states that are PyTrees.

        terms = diffrax.MultiTerm(diffrax.ODETerm(attention), diffrax.ODETerm(feed_forward))
        diffrax.diffeqsolve(terms, SchemeSolver(scheme), t0=0.0, t1=1.0, dt0=0.1, y0=y0)

    The halves need not be those of a transformer: the first is what a splitting scheme steps as `attention`, the second
    what it steps as `feed_forward`.
    """

    scheme: Scheme = eqx.field(static=True)

    term_structure: ClassVar = diffrax.MultiTerm[tuple[diffrax.AbstractTerm, diffrax.AbstractTerm]]
    interpolation_cls: ClassVar[Callable] = diffrax.LocalLinearInterpolation

    def order(self, terms: Any) -> int:
        """The scheme's order of convergence."""
        return self.scheme.order

    def init(self, terms: Any, t0: Any, t1: Any, y0: Any, args: Any) -> Any:
        """What the scheme carries into its first step."""
        return self.scheme.start(ravel_pytree(y0)[0])

    def step(self, terms: Any, t0: Any, t1: Any, y0: Any, args: Any, solver_state: Any, made_jump: Any) -> tuple:
        """One step of the scheme from `t0` to `t1`."""
        flat, unravel = ravel_pytree(y0)

        def halves(term: Any, nodes: tuple[float, ...]) -> list[Callable]:
            at = lambda c: lambda x: ravel_pytree(term.vf(t0 + c * (t1 - t0), unravel(x), args))[0]
            return [at(c) for c in nodes]

        attention, feed_forward = terms.terms
        nodes = self.scheme.nodes
        field = SplitField(halves(attention, nodes.attention), halves(feed_forward, nodes.feed_forward))
        carry = flat if isinstance(self.scheme, OneStep) else solver_state
        carry = self.scheme.step(field, carry, t1 - t0)
        y1 = unravel(self.scheme.state(carry))
        return y1, None, {"y0": y0, "y1": y1}, carry, diffrax.RESULTS.successful

    def func(self, terms: Any, t0: Any, y0: Any, args: Any) -> Any:
        """The whole field."""
        attention, feed_forward = (term.vf(t0, y0, args) for term in terms.terms)
        return jax.tree.map(jnp.add, attention, feed_forward)


def LieTrotter() -> SchemeSolver:
    """Lie-Trotter splitting as a solver of Diffrax: the first half, then the second on its result; order 1."""
    return SchemeSolver(SCHEMES["lie-trotter"])


def Strang() -> SchemeSolver:
    """Strang splitting as a solver of Diffrax: half of the second, the first, half of the second; order 2."""
    return SchemeSolver(SCHEMES["strang"])


def adaptive_solvers() -> dict[str, diffrax.AbstractAdaptiveSolver]:
    """The solvers that choose steps, by the names of their schemes: those with an error estimate to choose by."""
    named = {"midpoint": diffrax.Midpoint(), "heun": diffrax.Heun()}
    named |= {name: getattr(diffrax, name.partition(":")[2])() for name in SCHEMES if name.startswith("diffrax:")}
    return {name: solver for name, solver in named.items() if isinstance(solver, diffrax.AbstractAdaptiveSolver)}


def adaptive_solver(scheme: str) -> diffrax.AbstractAdaptiveSolver:
    """The solver that chooses steps for a scheme's name.

    **Raises:** `BadInput` if that scheme has no error estimate to choose steps by.
    """
    adaptive = adaptive_solvers()
    if scheme not in adaptive:
        raise BadInput(
            f"model.tolerance.rtol is given, but model.scheme {scheme!r} has no error estimate to choose steps by; "
            f"{', '.join(adaptive)} have."
        )
    return adaptive[scheme]


def solve_adaptively(
    field: Field,
    weights: WeightSource,
    x: Float[Array, "batch position width"],
    config: ModelConfig,
    *,
    key: Key[Array, ""] | None = None,
    keep_states: bool = False,
) -> Solution:
    """Integrate `dx/dt = F(t, x)` by steps that a PID controller chooses for `config.tolerance`.

    With `config.first_step` s the first step is still a step: `x(s) = x(0) + s F(s/2, x(0))`, as `euler-middle` takes
    it; from there on it is a flow, which is solved.

    The weights are generated at each time that the solver asks for. All sequences of `x` take the same steps, chosen
    for the error over all of them together: so an answer depends, within the tolerance, on the whole batch, and on
    later tokens. The state is float32 or better.

    **Arguments:** as for `solve`; `config` with its scheme, interval, tolerance and gradient; `key` for dropout, with
    one mask for all times.

    **Returns:** a `Solution`; `states` are interpolated at the ends of the `config.steps` steps.
    """
    solver, wanted = adaptive_solver(config.scheme), config.tolerance
    keys = None if key is None else jax.random.split(key, 2)[None]
    anywhere = SCHEMES["diffrax:Euler"]  # one node: the field is wanted at one time

    def slope(t: Array, x: Array, weights: WeightSource) -> Array:
        row = jax.tree.map(lambda leaf: leaf.astype(precision), weights.at(t[None]))
        return config.interval * split(field, anywhere, row, keys).at(0, x)

    precision, state, start = x.dtype, x.astype(wide(x.dtype)), config.first_step or 0.0
    if start:
        state = state + start * slope(jnp.asarray(start / 2, state.dtype), x, weights).astype(state.dtype)
    ends = jnp.asarray(edges(with_first(config.steps, config.first_step))[1:], state.dtype)
    with jax.numpy_dtype_promotion("standard"):  # Diffrax is not written for strict promotion
        found = diffrax.diffeqsolve(
            diffrax.ODETerm(slope),  # pyright: ignore[reportArgumentType]
            solver,
            t0=start,
            t1=1.0,
            dt0=(1.0 - start) / config.steps,
            y0=state,
            args=weights,
            saveat=diffrax.SaveAt(t1=True, ts=ends if keep_states else None),
            stepsize_controller=diffrax.PIDController(wanted.rtol or 0.0, wanted.atol, pcoeff=0.3, icoeff=0.4),
            adjoint=_adjoint(config),
            max_steps=wanted.max_steps,
        )
    ys = found.ys.astype(precision)  # pyright: ignore[reportOptionalMemberAccess]
    own = evaluations_of(solver, found.stats["num_steps"])
    evaluations = Evaluations(*(number + int(start > 0) for number in own))
    return Solution(ys[-1], evaluations, ys[:-1] if keep_states else None)


def _adjoint(config: ModelConfig) -> diffrax.AbstractAdjoint:
    if config.gradient == "plain":
        return diffrax.DirectAdjoint()
    return diffrax.RecursiveCheckpointAdjoint(config.checkpoints if config.gradient == "recursive" else None)


def evaluations_of(solver: Any, steps: Array) -> Evaluations:
    """Evaluations of the field in `steps` steps, rejected ones included.

    A first stage that is the last one of the step before is not evaluated again, except, by Diffrax, after a rejection
    of the very first step, which it does not report: then it is one evaluation more than counted here.
    """
    if isinstance(solver, diffrax.ReversibleHeun):
        return Evaluations(steps + 1, steps + 1)
    kept = int(solver.tableau.fsal)
    number = steps * (solver.tableau.num_stages - kept) + kept
    return Evaluations(number, number)
