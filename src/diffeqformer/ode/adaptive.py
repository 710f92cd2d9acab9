"""Adaptive steps: Diffrax's solvers and controller on a model's vector field."""

import diffrax
import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Key

from diffeqformer.config import ToleranceConfig
from diffeqformer.errors import BadInput
from diffeqformer.nn.linear import wide
from diffeqformer.ode.adjoints import Adjoint, Plain, Recursive
from diffeqformer.ode.field import Field
from diffeqformer.ode.grid import Grid
from diffeqformer.ode.schemes import EULER_MIDDLE, EULER_START, SCHEMES, Evaluations, Scheme
from diffeqformer.ode.solve import Solution, split
from diffeqformer.ode.weights.source import WeightSource

USUAL = "Tsit5"
"""Diffrax's solver for schemes that have no error estimate, after a first step that is `euler-middle`'s."""


def has_error_estimate(scheme: Scheme) -> bool:
    """Whether Diffrax has a solver of the scheme's tableau that estimates its error."""
    # Euler, which has no error estimate, stands for schemes without a solver of Diffrax's.
    return issubclass(getattr(diffrax, getattr(scheme, "solver", "") or "Euler"), diffrax.AbstractAdaptiveSolver)


def can_adapt(scheme: Scheme) -> bool:
    """Whether steps can be chosen for a scheme: it has an error estimate, or is `euler-middle`, whose first step may
    have a length of its own before a solver that has one."""
    return scheme == EULER_MIDDLE or has_error_estimate(scheme)


def adaptive_solver(tolerance: ToleranceConfig, scheme: Scheme) -> diffrax.AbstractAdaptiveSolver:
    """The solver that chooses steps for a scheme.

    **Raises:** `BadInput` if that scheme has no error estimate to choose steps by.
    """
    if not can_adapt(scheme):
        name = next((name for name, one in SCHEMES.items() if one == scheme), type(scheme).__name__)
        raise BadInput(
            f"model.tolerance.rtol is given, but model.scheme {name!r} has no error estimate to choose steps by; "
            f"take one that has ({', '.join(name for name, one in SCHEMES.items() if has_error_estimate(one))}) or "
            f"'euler-middle', whose steps {USUAL} then takes."
        )
    return getattr(diffrax, getattr(scheme, "solver", "") or USUAL)()


def solve_adaptively(
    field: Field,
    weights: WeightSource,
    x: Float[Array, "batch position width"],
    *,
    scheme: Scheme,
    tolerance: ToleranceConfig,
    grid: Grid,
    horizon: float,
    adjoint: Adjoint,
    precision: DTypeLike,
    first_step: float | None,
    key: Key[Array, ""] | None,
    keep_states: bool,
) -> Solution:
    """Integrate `dx/dt = F(t, x)` by steps that a PID controller chooses for a tolerance.

    With a `first_step` s the first step is still a step: `x(s) = x(0) + s F(s/2, x(0))`, as `euler-middle` takes
    it; from there on it is a flow, which is solved.

    The weights are generated at each time that the solver asks for. All sequences of `x` take the same steps, chosen
    for the error over all of them together: so an answer depends, within the tolerance, on the whole batch, and on
    later tokens. The state is float32 or better.

    **Arguments:** as for `solve`; `grid`, whose steps are the first guess; `precision`, of the weights, and so of
    the field; `key` for dropout, with one mask for all times; `keep_states`, at the ends of the grid's steps.

    **Returns:** a `Solution`; the states that it `kept` are interpolated.
    """
    solver = adaptive_solver(tolerance, scheme)
    keys = None if key is None else jax.random.split(key, 2)[None]

    def slope(t: Array, x: Array, weights: WeightSource) -> Array:
        # The axis of one time serves as `split`'s axis of one node.
        row = jax.tree.map(lambda leaf: leaf.astype(precision), weights.at(t[None]))
        # Of the scheme `split` reads the number of nodes alone; the horizon, since t is a fraction of depth.
        return horizon * split(field, EULER_START, row, keys).at(0, x)

    state, start = x.astype(wide(x.dtype)), first_step or 0.0
    if start:
        state = state + start * slope(jnp.asarray(start / 2, state.dtype), x, weights).astype(state.dtype)
    ends = jnp.asarray(grid.edges[1:], state.dtype)
    with jax.numpy_dtype_promotion("standard"):  # Diffrax is not written for strict promotion
        found = diffrax.diffeqsolve(
            diffrax.ODETerm(slope),  # pyright: ignore[reportArgumentType]
            solver,
            t0=start,
            t1=1.0,
            dt0=(1.0 - start) / grid.steps,
            y0=state,
            args=weights,
            saveat=diffrax.SaveAt(t1=True, ts=ends if keep_states else None),
            # Diffrax's advice for moderately difficult problems: p >= 0.2, i >= 0.3, p + i <= 0.7.
            stepsize_controller=diffrax.PIDController(tolerance.rtol, tolerance.atol, pcoeff=0.3, icoeff=0.4),
            adjoint=_adjoint(adjoint),
            max_steps=tolerance.max_steps,
        )
    # The last is the state at t1 itself; those before it, at the ends of steps, are interpolated.
    ys = found.ys.astype(x.dtype)  # pyright: ignore[reportOptionalMemberAccess]
    own = evaluations_of(solver, found.stats["num_steps"])
    evaluations = Evaluations(*(number + int(start > 0) for number in own))
    return Solution(ys[-1], evaluations, ys[:-1] if keep_states else None)


def _adjoint(adjoint: Adjoint) -> diffrax.AbstractAdjoint:
    if isinstance(adjoint, Plain):
        return diffrax.DirectAdjoint()
    return diffrax.RecursiveCheckpointAdjoint(adjoint.checkpoints if isinstance(adjoint, Recursive) else None)


def evaluations_of(solver: diffrax.AbstractSolver, steps: Array) -> Evaluations:
    """Evaluations of the field in `steps` steps, rejected ones included.

    A first stage that is the last one of the step before is not evaluated again, except, by Diffrax, after a rejection
    of the very first step, which it does not report: for each of these it is one evaluation more than counted here.
    """
    if isinstance(solver, diffrax.ReversibleHeun):
        return Evaluations(steps + 1, steps + 1)
    assert isinstance(solver, diffrax.AbstractERK) and isinstance(solver.tableau, diffrax.ButcherTableau)
    # First same as last: a step's last stage is the first one of the next.
    kept = int(solver.tableau.fsal)
    number = steps * (solver.tableau.num_stages - kept) + kept
    return Evaluations(number, number)
