"""What is seen on the way is what the forward pass does."""

import dataclasses
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffeqformer.analysis.attribution import attribute
from diffeqformer.analysis.induction import measure_induction
from diffeqformer.analysis.spectra import spectra
from diffeqformer.analysis.watch import watch_attention
from diffeqformer.config import ToleranceConfig
from diffeqformer.errors import BadInput
from tests.models import KINDS, TINY, model_of, of_dtype, tokens


@pytest.mark.parametrize(
    "kind", ["diffeqformer", "vanilla llama, grouped queries", "ode transformer", "time, reversible"]
)
def test_every_evaluation_is_watched_and_rows_sum_to_one(kind):
    model = model_of(KINDS[kind])
    weights = eqx.filter_jit(watch_attention)(model, tokens())
    evaluations = model.scheme.evaluations.attention
    assert weights.shape == (3, evaluations, 2, model.config.heads, 12, 12)
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
    assert (np.triu(np.asarray(weights), 1) == 0).all()


@pytest.mark.parametrize("kind", ["diffeqformer", "vanilla llama, grouped queries", "time, llama, nested norm"])
def test_attention_weights_times_value_outputs_are_what_the_attention_half_gives(kind):
    config = KINDS[kind]
    narrow = model_of(config)
    with jax.enable_x64(True):
        model = of_dtype(narrow, np.float64)
        field = config.field.build(config)

        @eqx.filter_jit
        def both(model, ids):
            block = jax.tree.map(lambda leaf: leaf[0], model.weights.at(np.array([1.0])))
            x = model.embed(ids)
            mixed = jnp.einsum("bhqk,bkhw->bqw", field.attention_weights(block, x), field.value_outputs(block, x))
            if block.attention.output.bias is not None:
                mixed = mixed + block.attention.output.bias[None, None]
            return mixed, field.attention(block, x)[0]

        np.testing.assert_allclose(*both(model, tokens()), atol=1e-12)


@pytest.mark.parametrize("kind", ["diffeqformer", "vanilla"])
def test_the_states_watched_are_those_of_the_trajectory(kind):
    model, ids = model_of(KINDS[kind]), tokens()
    seen = eqx.filter_jit(lambda model, ids: watch_attention(model, ids, lambda field, weights, x: x))(model, ids)
    states = eqx.filter_jit(lambda model, ids: model.trajectory(ids))(model, ids)
    np.testing.assert_allclose(seen[:, 0], states[:-1], atol=1e-6)


def test_an_adaptive_model_is_watched_on_the_grid():
    model = dataclasses.replace(
        model_of(TINY), config=dataclasses.replace(TINY, scheme="diffrax:Tsit5", tolerance=ToleranceConfig(rtol=1e-3))
    )
    assert jax.eval_shape(lambda ids: watch_attention(model, ids), tokens()).shape[0] == TINY.steps
    assert jax.eval_shape(lambda ids: watch_attention(model, ids, steps=5), tokens()).shape[0] == 5


@pytest.mark.parametrize(
    "look",
    [spectra, measure_induction, lambda model: attribute(model, tokens()[0], [3])],
    ids=["spectra", "induction", "attribution"],
)
def test_a_field_without_heads_is_refused(look):
    """They ended in Python's words for an attribute that such a field has not."""

    class Pooling:
        key_value_heads = 1, 16
        attention = feed_forward = lambda self, weights, x, **others: x
        shapes = lambda self: SimpleNamespace(attention=None)

    with pytest.raises(BadInput, match="the field is Pooling, but must have heads, which this analysis looks at"):
        look(model_of(TINY).replace(field=Pooling()))
