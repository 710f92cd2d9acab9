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
from diffeqformer.ode.schemes import EULER_MIDDLE, EULER_START, SCHEMES, Evaluations, ReversibleHeun, RungeKutta, Scheme
from diffeqformer.ode.solve import Solution, split
from diffeqformer.ode.weights.source import WeightSource

USUAL = "Tsit5"
"""Diffrax's solver for `euler-middle`, which has no error estimate; it follows a first step of given length, if any."""


def has_error_estimate(scheme: Scheme) -> bool:
    """Whether Diffrax has a solver with the scheme's tableau and an error estimate."""
    # Exactly these classes: a user's subclass inherits the solver's name, but may take other steps.
    solver = getattr(scheme, "solver", "") if type(scheme) in (RungeKutta, ReversibleHeun) else ""
    # Euler, which has no error estimate, stands in for schemes without a Diffrax solver.
    return issubclass(getattr(diffrax, solver or "Euler"), diffrax.AbstractAdaptiveSolver)


def can_adapt(scheme: Scheme) -> bool:
    """Whether steps can be adaptive: the scheme has an error estimate, or is `euler-middle`, whose first step may have
    a length of its own before a solver with an error estimate takes over."""
    return scheme == EULER_MIDDLE or has_error_estimate(scheme)


def adaptive_solver(tolerance: ToleranceConfig, scheme: Scheme) -> diffrax.AbstractAdaptiveSolver:
    """Return the Diffrax solver that chooses steps for a scheme.

    **Raises:** `BadInput` if the scheme has no error estimate to choose steps by.
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
    """Integrate `dx/dt = F(t, x)` with steps that a PID controller chooses for a tolerance.

    With a `first_step` s, the first step is a single fixed one, `x(s) = x(0) + s F(s/2, x(0))`, as in `euler-middle`;
    from s on, the flow is solved adaptively.

    Weights are generated at each time that the solver asks for. All sequences of `x` take the same steps, chosen for
    their joint error, so that a result depends, within the tolerance, on the whole batch and on later tokens. The state
    is in float32 or better.

    **Arguments:** as for `solve`; `grid`, whose number of steps gives the first guess of a step's length; `precision`
    of the weights, and thus of the field; `key` for dropout, with one mask for all times; `keep_states`, whether to
    keep the states at the ends of the grid's steps.

    **Returns:** a `Solution`, whose `kept` states are interpolated.
    """
    solver = adaptive_solver(tolerance, scheme)
    keys = None if key is None else jax.random.split(key, 2)[None]  # (node, half), as `split` takes them

    def slope(t: Array, x: Array, weights: WeightSource) -> Array:
        # The axis of one time serves as the axis of one node that `split` expects.
        row = jax.tree.map(lambda leaf: leaf.astype(precision), weights.at(t[None]))
        # `split` reads only the number of nodes from the scheme. Times `horizon`, since t is a fraction of depth.
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
    # The last entry is the state at t1 itself; those before it, at the ends of the grid's steps, are interpolated.
    ys = found.ys.astype(x.dtype)  # pyright: ignore[reportOptionalMemberAccess]
    own = evaluations_of(solver, found.stats["num_steps"])
    evaluations = Evaluations(*(number + int(start > 0) for number in own))
    return Solution(ys[-1], evaluations, ys[:-1] if keep_states else None)


def _adjoint(adjoint: Adjoint) -> diffrax.AbstractAdjoint:
    if isinstance(adjoint, Plain):
        return diffrax.DirectAdjoint()
    return diffrax.RecursiveCheckpointAdjoint(adjoint.checkpoints if isinstance(adjoint, Recursive) else None)


def evaluations_of(solver: diffrax.AbstractSolver, steps: Array) -> Evaluations:
    """Count the evaluations of the field in `steps` steps, including rejected ones.

    A first stage that equals the last stage of the step before is not evaluated again, except by Diffrax after a
    rejection of the very first step. Diffrax does not report these rejections: each is one evaluation more than counted
    here.
    """
    if isinstance(solver, diffrax.ReversibleHeun):
        return Evaluations(steps + 1, steps + 1)
    assert isinstance(solver, diffrax.AbstractERK) and isinstance(solver.tableau, diffrax.ButcherTableau)
    # First same as last: a step's last stage is the first stage of the next step.
    kept = int(solver.tableau.fsal)
    number = steps * (solver.tableau.num_stages - kept) + kept
    return Evaluations(number, number)
