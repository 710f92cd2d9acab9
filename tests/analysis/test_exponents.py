"""The exponents of systems whose exponents are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffeqformer.analysis.exponents import flow_exponents, kaplan_yorke, orthonormalise
from diffeqformer.errors import BadInput
from tests.models import programs


def lorenz(t, x):
    """Lorenz 1963 with the usual parameters."""
    a, b, c = x
    return jnp.stack([10.0 * (b - a), a * (28.0 - c) - b, a * b - 8.0 / 3.0 * c])


def exponents(field, x, **settings):
    with jax.enable_x64(True):
        start = jnp.asarray(x, jnp.float64)
        return np.asarray(jax.jit(lambda x: flow_exponents(field, x, **settings))(start))


def test_lorenz():
    """Of finite time: over 12 starts the largest exponent has a standard deviation of 0.0043, of which these are five.

    The motion is chaotic, so that rounding alone makes another sample of it in every compiled program.
    """
    found = exponents(lorenz, [1.0, 1.0, 20.0], dt=0.01, steps=150_000, every=10, skip=1000)
    assert np.allclose(found, [0.906, 0.0, -14.572], atol=0.022)
    assert abs(found.sum() + 41 / 3) < 1e-3  # the divergence of the field, everywhere
    assert abs(kaplan_yorke(found, 3) - 2.062) < 0.002
    # In 10 + 15 units of time rounding grows by e^23 to 1e-6; the first tangents come together to e^-9 / 15 = 1e-5.
    short = {"dt": 0.01, "steps": 1500, "every": 10, "skip": 1000}
    few, all_three = (exponents(lorenz, [1.0, 1.0, 20.0], tangents=tangents, **short) for tangents in (1, 3))
    assert np.allclose(few, all_three[:1], rtol=0, atol=1e-4)


def test_linear_field_has_the_exponents_of_its_matrix():
    draw = np.random.default_rng(0).normal
    basis, _ = np.linalg.qr(draw(size=(5, 5)))
    rates = np.array([0.7, 0.3, 0.0, -0.4, -1.1])
    symmetric = basis * rates @ basis.T
    field = lambda t, x: jnp.asarray(symmetric) @ x
    found = exponents(field, draw(size=5), dt=0.02, steps=5000, every=5, skip=5000)
    assert np.allclose(found, rates, atol=1e-8)
    two = exponents(field, draw(size=5), dt=0.02, steps=5000, every=5, skip=5000, tangents=2)
    assert np.allclose(two, rates[:2], atol=1e-8)


def test_finite_time_exponents_of_a_matrix_that_is_not_normal():
    """One decomposition: the exponents are log |diag R| of the matrix exponential, whatever the matrix."""
    a = np.random.default_rng(1).normal(size=(4, 4))
    found = exponents(lambda t, x: jnp.asarray(a) @ x, np.ones(4), dt=0.005, steps=200, every=40)
    values, vectors = np.linalg.eig(a)
    flow = (vectors * np.exp(values) @ np.linalg.inv(vectors)).real
    assert np.allclose(found, np.log(abs(np.diag(np.linalg.qr(flow)[1]))), atol=1e-8)


def test_time_dependent_field():
    found = exponents(lambda t, x: jnp.stack([jnp.cos(t) * x[0], -2 * t * x[1]]), [1.0, 1.0], dt=0.01, steps=200)
    assert np.allclose(found, [np.sin(2.0) / 2, -2.0], atol=1e-8)


def test_orthonormalise_measures_volumes():
    tangents = np.random.default_rng(2).normal(size=(3, 6, 4)).astype(np.float32)
    q, growth = orthonormalise(jnp.asarray(tangents))
    assert np.allclose(q.mT @ q, np.eye(4), atol=1e-5)
    volume = np.linalg.slogdet(tangents.swapaxes(-1, -2).astype(float) @ tangents)[1] / 2
    assert np.allclose(growth.sum(-1), volume, atol=1e-5)


def test_kaplan_yorke():
    known = np.array([[0.5, 0.0, -2.0], [-0.1, -1.0, -2.0], [1.0, 2.0, 3.0], [-2.0, 0.0, 0.5], [1.0, np.nan, 0.0]])
    assert np.allclose(kaplan_yorke(known, 3), [2.25, 0.0, 3.0, 2.25, np.nan], equal_nan=True)
    assert np.isnan(kaplan_yorke(np.array([1.0, 0.5]), 3))
    assert kaplan_yorke(np.array([1.0, -2.0]), 3) == 1.5


@pytest.mark.parametrize(
    "wrong, names", [({"tangents": 4}, "tangents is 4"), ({"steps": 0}, "steps is 0"), ({"every": 0}, "every is 0")]
)
def test_bad_input(wrong, names):
    with pytest.raises(BadInput, match=names):
        flow_exponents(lorenz, jnp.ones(3), **{"dt": 0.1, "steps": 10, **wrong})


def test_a_numpy_step_keeps_the_precision_of_the_state():
    """With 64 bits it widened the state, which JAX's loop then refused to carry."""
    with jax.enable_x64(True):
        found = flow_exponents(lambda t, x: -x, jnp.ones(2, jnp.float32), dt=np.float64(0.1), steps=1)
    assert found.dtype == jnp.float32


def test_calls_outside_compiled_functions_leave_no_programs_behind():
    call = lambda: flow_exponents(lorenz, jnp.ones(3), dt=0.01, steps=4)
    found, before = call(), programs()
    assert np.array_equal(call(), found) and programs() == before
