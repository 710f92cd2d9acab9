"""Schemes converge at their order, agree with Diffrax, and are usable by it."""

import dataclasses
from functools import cache

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffeqformer.config import ModelConfig, ReversibleConfig, TimeConfig, ToleranceConfig
from diffeqformer.errors import BadInput
from diffeqformer.ode.adaptive import adaptive_solver, evaluations_of, has_error_estimate
from diffeqformer.ode.schemes import SCHEMES, Reversible, RungeKutta, SplitField
from diffeqformer.ode.solvers import SchemeSolver
from tests.cases import slow, slow_but
from tests.models import TINY, model_of, of_dtype, tokens

SMOOTH = dataclasses.replace(
    TINY, width=8, horizon=0.3, weights=TimeConfig(d_emb=6, frequencies=4, highest_frequency=4.0, lowest_frequency=0.5)
)
ORDERS = {
    "euler": 1, "euler-middle": 1, "lie-trotter": 1, "lie-trotter-middle": 1,
    "macaron": 1, "strang": 2, "midpoint": 2, "heun": 2, "rk4": 4,
    "diffrax:Bosh3": 3, "diffrax:LeapfrogMidpoint": 2, "diffrax:ReversibleHeun": 2,
}  # fmt: skip


def end_of(config: ModelConfig, steps: int, stretch: float = 1.0) -> np.ndarray:
    """The float64 state at depth 1 after `steps` steps, unequal ones if their ends are stretched to a power."""
    model = model_of(config)
    with jax.enable_x64(True):
        steps = steps if stretch == 1.0 else np.linspace(0, 1, steps + 1) ** stretch
        model = of_dtype(model, np.float64)
        return np.asarray(jax.jit(lambda model, ids: model.integrate(ids, steps=steps).state)(model, tokens()))


@cache
def reference() -> np.ndarray:
    """The state at depth 1, by Dopri8 in 64 steps: exact to about 1e-13."""
    return end_of(dataclasses.replace(SMOOTH, scheme="diffrax:Dopri8"), 64)


def order_of(config: ModelConfig, coarse: int, stretch: float = 1.0) -> float:
    """The order measured between `coarse` and twice as many steps."""
    errors = [np.linalg.norm(end_of(config, steps, stretch) - reference()) for steps in (coarse, 2 * coarse)]
    return float(np.log2(errors[0] / errors[1]))


OF_OTHERS = {"euler-middle", "lie-trotter-middle", "macaron", "midpoint", "diffrax:Bosh3"}
"""Whose way to step is that of another scheme."""


@pytest.mark.parametrize("scheme", slow_but(ORDERS.keys() - OF_OTHERS, ORDERS))
def test_schemes_converge_at_their_order_on_a_transformers_field(scheme):
    config = dataclasses.replace(SMOOTH, scheme=scheme)
    assert config.scheme.build().order == ORDERS[scheme]
    assert order_of(config, 16) == pytest.approx(ORDERS[scheme], abs=0.2)


@pytest.mark.parametrize("scheme", ["heun", "diffrax:LeapfrogMidpoint", *slow("euler", "lie-trotter-middle")])
def test_schemes_converge_at_their_order_over_unequal_steps(scheme):
    config = dataclasses.replace(SMOOTH, scheme=scheme)
    assert order_of(config, 16, stretch=1.3) == pytest.approx(ORDERS[scheme], abs=0.2)


def test_leapfrog_is_of_order_1_over_steps_of_alternating_lengths():
    scheme = SCHEMES["diffrax:LeapfrogMidpoint"]

    def error(pairs: int) -> float:
        """The error at 1 of `dx/dt = cos t` over steps of 1/2 and 3/2 of the mean length, in turns."""
        lengths = np.tile([0.25, 0.75], pairs) / pairs
        carry = scheme.start(jnp.zeros(()))
        for t, dt in zip(np.cumsum(lengths) - lengths, lengths, strict=True):
            half = lambda x, t=t: jnp.asarray(np.cos(t) / 2, x.dtype)
            carry = scheme.step(SplitField([half], [half]), carry, dt)
        return abs(float(scheme.state(carry)) - np.sin(1))

    assert np.log2(error(16) / error(32)) == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize(
    ("scheme", "gradient"),
    [("euler", "recursive"), (ReversibleConfig(coupling=1.0), "reversible"), *slow(("heun", "checkpointed"))],
)
def test_gradients_over_unequal_steps_are_those_of_plain_backpropagation(scheme, gradient):
    edges = jnp.array([0.0, 0.3, 0.45, 1.0])
    loss = lambda model: jnp.square(model.integrate(tokens(), steps=edges).state).sum()
    config = dataclasses.replace(SMOOTH, scheme=scheme)
    plain, other = (
        jax.tree.map(np.asarray, jax.jit(jax.grad(loss))(model_of(dataclasses.replace(config, gradient=one))))
        for one in ("plain", gradient)
    )
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * (np.abs(a).max() + 1e-9))


@pytest.mark.parametrize(
    ("base", "order", "steps"),
    [("euler", 1, 128), ("midpoint", 2, 16), ("rk4", 4, 32), *slow(("euler", 1, 512), ("strang", 2, 16))],
)
def test_a_reversible_scheme_has_its_bases_order(base, order, steps):
    config = dataclasses.replace(SMOOTH, scheme=ReversibleConfig(base))
    assert config.scheme.build().order == order
    assert order_of(config, steps) == pytest.approx(order, abs=0.2)


def oscillator(t, y, args):
    """A field with a state of two arrays that depends on time, in two halves."""
    return {"a": jnp.sin(3 * t) * y["b"], "b": -0.5 * y["a"]}


def damping(t, y, args):
    """The other half."""
    return {"a": -0.3 * y["a"] ** 3, "b": jnp.cos(t) * (y["a"] - y["b"])}


def both(t, y, args):
    """The whole field."""
    return jax.tree.map(jnp.add, oscillator(t, y, args), damping(t, y, args))


def by_diffrax(terms, solver, steps=20):
    """The state at time 1, float64, by Diffrax's own loop."""
    y0 = {"a": jnp.array([1.0, -0.5]), "b": jnp.array([0.2, 0.7])}
    found = diffrax.diffeqsolve(
        terms, solver, 0.0, 1.0, 1 / steps, y0, stepsize_controller=diffrax.ConstantStepSize(), max_steps=steps + 1
    )
    return np.concatenate([np.asarray(leaf[-1]) for leaf in jax.tree.leaves(found.ys)])


HALVES = diffrax.MultiTerm(diffrax.ODETerm(oscillator), diffrax.ODETerm(damping))


QUICK = ["Heun", "Dopri8", "ReversibleHeun", "LeapfrogMidpoint"]
"""Of one stage, of two, of fourteen, reversible, and of two steps; the others are slow."""


@pytest.mark.parametrize("name", slow_but([f"diffrax:{one}" for one in QUICK], [s for s in SCHEMES if ":" in s]))
def test_schemes_named_after_diffraxs_solvers_take_their_steps(name):
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        theirs = by_diffrax(diffrax.ODETerm(both), getattr(diffrax, name.partition(":")[2])())
        ours = by_diffrax(HALVES, SchemeSolver(SCHEMES[name]))
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)


@pytest.mark.parametrize(("scheme", "order"), [("lie-trotter", 1), ("strang", 2)])
def test_the_splitting_schemes_are_solvers_of_diffrax(scheme, order):
    solver = SchemeSolver(SCHEMES[scheme])
    assert solver.order(HALVES) == order
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        exact = by_diffrax(diffrax.ODETerm(both), diffrax.Dopri8(), 200)
        errors = [np.linalg.norm(by_diffrax(HALVES, solver, steps) - exact) for steps in (40, 80)]
    assert np.log2(errors[0] / errors[1]) == pytest.approx(order, abs=0.2)


def test_a_splitting_scheme_steps_its_halves_in_order_in_closed_form():
    """For `A = -x`, `M = 2`: Lie-Trotter gives `(1 - h) x + 2 h`."""
    terms = diffrax.MultiTerm(diffrax.ODETerm(lambda t, y, args: -y), diffrax.ODETerm(lambda t, y, args: y * 0 + 2.0))
    found = diffrax.diffeqsolve(terms, SchemeSolver(SCHEMES["lie-trotter"]), 0.0, 0.1, 0.1, jnp.array([3.0]))
    np.testing.assert_allclose(found.ys[-1], (1 - 0.1) * 3.0 + 2 * 0.1, rtol=1e-6)


def test_a_method_is_refused_by_name_with_the_list_of_those_that_exist():
    for name in ("rk5", "diffrax:Kvaerno5", "diffrax:Nonsense", "Tsit5"):
        with pytest.raises(BadInput, match=f"model.scheme is '{name}', but must be one of euler, .*diffrax:Tsit5"):
            dataclasses.replace(TINY, scheme=name).scheme.build()
    for base in ("reversible", "residual"):  # one carries more than the state, steps of the other have no length
        with pytest.raises(BadInput, match=rf"model\.scheme\.base is '{base}', but must be one of"):
            dataclasses.replace(TINY, scheme=ReversibleConfig(base)).scheme.build()


ADAPTIVE = ["diffrax:Tsit5", "diffrax:ReversibleHeun", *slow("heun", "midpoint", "diffrax:Bosh3", "diffrax:Dopri8")]
"""With an error estimate of one of Diffrax's tableaus, and one without a tableau; those of ours are slow."""


@pytest.mark.parametrize("scheme", ADAPTIVE)
def test_adaptive_steps_reach_the_tolerance_and_count_their_evaluations(scheme):
    order = SCHEMES[scheme].order
    errors, counts = [], []
    for rtol in (1e-3, 1e-5):
        model = model_of(dataclasses.replace(SMOOTH, scheme=scheme, tolerance=ToleranceConfig(rtol, rtol)))
        with jax.enable_x64(True):
            model = of_dtype(model, np.float64)
            found = jax.jit(lambda model: model.integrate(tokens()))(model)
        errors.append(np.abs(np.asarray(found.state) - reference()).max())
        counts.append(int(found.evaluations.attention))
    assert errors[1] < errors[0] or errors[0] < 1e-6
    assert errors[1] < 1e-3
    assert counts[1] > counts[0] or order > 4


@pytest.mark.parametrize(
    "solver", ["Bosh3", "ReversibleHeun", *slow("Heun", "Midpoint", "Ralston", "Tsit5", "Dopri5", "Dopri8")]
)
def test_counted_evaluations_are_those_that_happened(solver):
    happened = []

    def field(t, y, args):
        jax.debug.callback(lambda t: happened.append(float(t)), t)
        return jnp.sin(20 * t) * y

    solver = getattr(diffrax, solver)()
    controller = diffrax.PIDController(1e-4, 1e-6)
    found = diffrax.diffeqsolve(
        diffrax.ODETerm(field), solver, 0.0, 1.0, 0.5, jnp.ones(2), stepsize_controller=controller
    )
    jax.effects_barrier()
    assert found.stats["num_rejected_steps"] > 0
    again = happened.count(0.0) - 1 if getattr(getattr(solver, "tableau", None), "fsal", False) else 0
    assert int(evaluations_of(solver, found.stats["num_steps"]).attention) == len(happened) - again


def test_without_an_error_estimate_there_are_no_adaptive_steps():
    for scheme in ("euler", "rk4", "strang", "reversible", "diffrax:LeapfrogMidpoint"):
        with pytest.raises(BadInput, match=f"{scheme}.* has no error estimate.*Tsit5\\) or 'euler-middle', whose"):
            adaptive_solver(ToleranceConfig(), SCHEMES[scheme])


def test_a_subclass_is_not_solved_adaptively_by_the_solver_whose_name_it_inherits():
    """Diffrax's Heun took the place of the user's steps."""

    class Own(RungeKutta):
        """Steps of another kind."""

    assert has_error_estimate(SCHEMES["heun"])
    with pytest.raises(BadInput, match="model.scheme 'Own' has no error estimate"):
        adaptive_solver(ToleranceConfig(), Own(**vars(SCHEMES["heun"])))


@pytest.mark.parametrize(
    ("base", "coupling", "sentence"),
    [
        ("residual", 0.9, "the base of Reversible is Residual, but must be a OneStep whose steps have a length"),
        ("euler", 0.0, "the coupling of Reversible is 0.0, but must be above 0 and at most 1"),
    ],
)
def test_what_cannot_be_made_reversible_is_refused_from_python_too(base, coupling, sentence):
    """Residual layers were added again on the way back, and without coupling the way back divided by zero."""
    with pytest.raises(BadInput, match=sentence):
        Reversible(SCHEMES[base], coupling)


def test_a_reversible_step_of_ones_own_needs_a_way_back_of_its_own():
    """Without one its gradients were those of another step, and nothing said so."""
    step = lambda self, field, carry, dt: carry
    with pytest.raises(BadInput, match="Halted has a step of its own, but the pull_back of Reversible"):
        type("Halted", (Reversible,), {"step": step})
    both = type("Both", (Reversible,), {"step": step, "pull_back": lambda self, *given: given})
    with pytest.raises(BadInput, match="Again has a step of its own, but the pull_back of Both"):
        type("Again", (both,), {"step": step})
    assert type("Named", (Reversible,), {}).pull_back is Reversible.pull_back


def test_steps_that_are_asked_for_are_fixed_whatever_the_tolerance():
    config = dataclasses.replace(SMOOTH, scheme="heun", tolerance=ToleranceConfig(1e-4, 1e-4))
    fixed = dataclasses.replace(SMOOTH, scheme="heun")
    a, b = (jax.jit(lambda model: model(tokens(), steps=3))(model_of(c)) for c in (config, fixed))
    np.testing.assert_array_equal(a, b)


def test_states_of_an_adaptive_solve_are_those_of_the_flow():
    config = dataclasses.replace(SMOOTH, scheme="diffrax:Tsit5", tolerance=ToleranceConfig(1e-6, 1e-6))
    states = jax.jit(lambda model: model.trajectory(tokens()))(model_of(config))
    exact = dataclasses.replace(SMOOTH, scheme="rk4", steps=60)
    np.testing.assert_allclose(states, jax.jit(lambda m: m.trajectory(tokens()))(model_of(exact))[::20], atol=1e-4)
