"""The state of a bfloat16 model is float32 at any depth; everything works where JAX's default is float64."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffeqformer.model.build import abstract, build
from diffeqformer.model.generate import generate
from diffeqformer.model.loss import next_token_loss
from diffeqformer.model.speculate import speculate
from diffeqformer.ode.weights import LayerWeights
from tests.cases import slow
from tests.models import KINDS, TINY, logits, model_of, of_dtype, states, tokens
from tests.tolerances import STATES

NARROW = dataclasses.replace(TINY, compute_dtype="bfloat16")


def test_states_and_logits_of_a_bfloat16_model_are_float32():
    model = model_of(NARROW)
    found = logits(model, tokens())
    assert states(model, tokens()).dtype == found.dtype == jnp.float32
    assert model.empty_cache(1, 4).keys.dtype.itemsize == 2
    exact = logits(model_of(TINY), tokens())
    error = jnp.abs(found - exact).max() / jnp.abs(exact).max()
    assert 0 < error < 0.05


def test_equal_steps_of_a_bfloat16_model_sum_to_one():
    """Where nothing is added but a constant: in bfloat16 its sum over 96 steps is off by 2e-3."""
    model = model_of(dataclasses.replace(NARROW, weights="shared", steps=96))
    weights = jax.tree.map(jnp.zeros_like, model.weights)
    one = lambda w: w.row.feed_forward.down.bias
    weights = eqx.tree_at(one, weights, jnp.ones_like(one(weights)))
    moved = states(model.replace(weights=weights), tokens())
    # 96 additions of 1/96 to a state of size 1, each rounded to float32.
    np.testing.assert_allclose(moved[-1] - moved[0], 1.0, rtol=0, atol=96 * float(np.finfo(np.float32).eps))


def test_the_error_of_bfloat16_does_not_grow_with_depth():
    """The field is rounded at every step, so errors of steps average out; the state is not."""
    ids, errors = tokens(), []
    for steps in (6, 96):
        exact, narrow = (np.asarray(logits(model_of(one), ids, steps)) for one in (TINY, NARROW))
        errors.append(np.sqrt(np.square(narrow - exact).mean()) / exact.std())
    assert errors[1] < errors[0] < 0.05


@pytest.mark.parametrize("gradient", ["recursive", *slow("plain")])
def test_the_gradient_of_weights_that_serve_all_steps_is_summed_in_float32(gradient):
    """As precise as that of a table whose layers are these weights, summed after they are cast."""
    model, ids = model_of(dataclasses.replace(TINY, weights="shared", gradient=gradient)), tokens()

    def gradient_of(model, compute):
        narrow = lambda model: model.replace(config=dataclasses.replace(model.config, compute_dtype=compute))
        steps = model.config.steps if isinstance(model.weights, LayerWeights) else 256
        found = jax.jit(jax.grad(lambda model: next_token_loss(narrow(model), ids, steps=steps)))(model).weights
        rows = found.layers if isinstance(found, LayerWeights) else jax.tree.map(lambda leaf: leaf[None], found.row)
        return [np.asarray(leaf, np.float64).sum(0) for leaf in jax.tree.leaves(rows)]

    length = lambda leaves: np.sqrt(sum(np.square(leaf).sum() for leaf in leaves))
    exact = gradient_of(model, "float32")
    error = lambda model: length([a - b for a, b in zip(exact, gradient_of(model, "bfloat16"), strict=True)])
    assert error(model) < 1.2 * error(model.populate(256))


X64 = ("diffeqformer", "vanilla llama, grouped queries", "knots, normalised")


@pytest.mark.parametrize("kind", [X64[0], *slow(*X64[1:], "macaron")])
def test_everything_works_where_jaxs_default_is_float64(kind):
    """Parameters stay float32, as documented, and so does what is computed from them: to rounding, as without x64."""
    config, ids, prompt = KINDS[kind], tokens(), tokens(1, 3)
    before = generate(model_of(config), prompt, 4, key=jax.random.key(0), temperature=0.0)
    draw = jax.jit(lambda key: build(config, key))
    usual = np.asarray(logits(draw(jax.random.key(1)), ids))
    with jax.enable_x64(True):
        assert {leaf.dtype for leaf in jax.tree.leaves(abstract(config))} == {jnp.dtype(jnp.float32)}
        built = draw(jax.random.key(1))
        assert {leaf.dtype for leaf in jax.tree.leaves(built)} == {jnp.dtype(jnp.float32)}
        np.testing.assert_allclose(logits(built, ids), usual, atol=STATES)
        model = model_of(config)
        found = generate(model, prompt, 4, key=jax.random.key(0), temperature=0.0)
        np.testing.assert_array_equal(found, before)
        drafted = speculate(model, model, prompt, 4, key=jax.random.key(0), temperature=0.0)
        np.testing.assert_array_equal(drafted.tokens, before)
        if kind == X64[0]:  # drawing knows nothing of the model
            sampled = speculate(model, model, prompt, 4, key=jax.random.key(0), temperature=1.0)
            assert sampled.tokens.shape == (1, 4)


def test_a_float64_model_computes_in_float64():
    ids = tokens()
    usual = np.asarray(logits(model_of(TINY), ids))
    with jax.enable_x64(True):
        model = of_dtype(model_of(TINY), np.float64)
        found = logits(model, ids)
        assert found.dtype == jnp.float64
        np.testing.assert_allclose(found, usual, atol=STATES)
