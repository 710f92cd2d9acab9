import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffeqformer.config import ModelConfig
from diffeqformer.errors import BadInput
from diffeqformer.model.build import build
from diffeqformer.model.generate import _generate, choose, generate, probabilities
from diffeqformer.model.solving import with_scheme
from diffeqformer.ode.field import TransformerField
from diffeqformer.ode.schemes import LieTrotter
from tests.models import TINY, covering_kinds, logits, model_of, tokens


@covering_kinds
def test_greedy_tokens_are_those_of_the_whole_model_run_again_for_each(config):
    """All tokens at once: no logit depends on a later one, as test_transformer.py shows to the bit."""
    model, ids = model_of(config), tokens(positions=4)
    made = generate(model, ids, 8, key=jax.random.key(0), temperature=0.0)
    whole = jnp.concatenate([ids, made], axis=1)
    np.testing.assert_array_equal(made, logits(model, whole)[:, 3:-1].argmax(-1))


def test_other_depths_generate_as_the_model_at_that_depth():
    model, ids = model_of(TINY), tokens(positions=4)
    made = generate(model, ids, 1, key=jax.random.key(0), temperature=0.0, steps=9)
    assert (np.asarray(made[:, 0]) == np.asarray(logits(model, ids, steps=9)[:, -1].argmax(-1))).all()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_each_token_is_written_into_the_cache_in_place(precision):
    """A copy of the cache, one a token, would be another array of its size in the compiled program."""
    config = ModelConfig(weights="layer", steps=6, width=16, heads=2, context=512, vocabulary=40, hidden=16)
    config = dataclasses.replace(config, compute_dtype=precision)
    model, ids = model_of(config), jnp.zeros((4, 2), jnp.int32)
    program = _generate.lower(model, ids, jax.random.key(0), 500, 0.0, None, None).compile().compiled
    cache = jax.eval_shape(lambda: model.empty_cache(4, 502))
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(cache))
    assert program.memory_analysis().temp_size_in_bytes < 1.5 * size
    if precision == "bfloat16":  # nor is all of the cache, or of a matrix's rows, converted to float32 for one of them
        text = program.as_text()
        assert f"f32[{','.join(map(str, cache.keys.shape))}]" not in text
        assert " f32[6,16,16]{2,1,0} convert(" not in text


def test_a_scheme_that_evaluates_attention_more_often_than_it_says_is_refused():
    """Its evaluations would share keys and values in the cache, and other text would come out than the model's."""

    class Twice(LieTrotter):
        def advance(self, field, x, dt):
            x = x + dt / 2 * field.attention[0](x)
            return super().advance(field, x, dt / 2)

    model, ids = with_scheme(model_of(TINY), Twice()), tokens(positions=2)
    with pytest.raises(BadInput, match=r"evaluations\.attention is 1, but must be the number .*, which is more"):
        generate(model, ids, 2, key=jax.random.key(0))


def test_a_field_that_keeps_no_cache_is_refused():
    class Forgetful(TransformerField):
        def attention(self, weights, x, *, key=None, cache=None, window=None):
            return super().attention(weights, x, key=key)

    model = build(TINY, jax.random.key(0), field=Forgetful(**vars(TINY.field.build(TINY))))
    with pytest.raises(BadInput, match="attention of the field, Forgetful, is given a cache, but returns none"):
        generate(model, tokens(positions=2), 2, key=jax.random.key(0))


def test_the_same_seed_gives_the_same_text_and_another_another():
    model, ids = model_of(TINY), tokens(positions=2)
    one, again, two = (generate(model, ids, 10, key=jax.random.key(seed)) for seed in (1, 1, 2))
    assert (np.asarray(one) == np.asarray(again)).all()
    assert (np.asarray(one) != np.asarray(two)).any()


def frequencies(scores, draws=20_000, **settings):
    drawn = choose(jnp.tile(jnp.asarray(scores)[None], (draws, 1)), jax.random.key(0), **settings)
    return np.bincount(np.asarray(drawn), minlength=len(scores)) / draws


def test_draws_follow_the_distribution_they_are_asked_for():
    p = np.array([0.5, 0.3, 0.15, 0.05], np.float32)
    scores = np.log(p)
    np.testing.assert_allclose(frequencies(scores), p, atol=0.015)
    np.testing.assert_allclose(frequencies(scores, temperature=0.5), p**2 / (p**2).sum(), atol=0.015)
    np.testing.assert_allclose(frequencies(scores, top_k=2), [0.625, 0.375, 0, 0], atol=0.015)
    np.testing.assert_allclose(frequencies(scores, top_p=0.7), [0.625, 0.375, 0, 0], atol=0.015)
    np.testing.assert_allclose(frequencies(scores, top_p=0.4), [1, 0, 0, 0])
    np.testing.assert_allclose(frequencies(scores, top_p=1.0), p, atol=0.015)
    np.testing.assert_allclose(frequencies(scores, top_p=1e-46), [1, 0, 0, 0])  # zero in float32


@pytest.mark.parametrize("temperature", [1e-45, 1e-38, 1e-7, 1e-5])
@pytest.mark.parametrize("kept", [{}, {"top_k": 3}, {"top_p": 0.9}], ids=str)
def test_the_coldest_draws_are_the_most_likely_token(temperature, kept):
    """Where quotients by the temperature overflow, or it is none of float32."""
    scores = jnp.array([1.0, 5.0, 3.0, -2.0])
    assert choose(scores, jax.random.key(0), temperature, **kept) == 1
    np.testing.assert_array_equal(probabilities(scores, temperature, **kept), [0, 1, 0, 0])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"new_tokens": 0}, "the number of new tokens is 0, but must be at least 1."),
        ({"new_tokens": 9}, "together they must not exceed the model's context of 12."),
        ({"temperature": -1.0}, "temperature is -1.0, but must be 0 or a positive number."),
        ({"top_k": 41}, "top-k is 41, but must be between 1 and the vocabulary's size, 40."),
        ({"top_p": 0.0}, "top-p is 0.0, but must be above 0 and at most 1."),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(BadInput) as error:
        generate(model_of(TINY), tokens(positions=4), **{"new_tokens": 2, "key": jax.random.key(0), **settings})
    assert message in str(error.value)
