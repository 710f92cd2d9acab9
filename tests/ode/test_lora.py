"""Low-rank adapters: they start as nothing, add a low-rank change, and can be merged or taken away."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffeqformer.config import Config, LayerConfig, LoRAConfig, from_dict, validate_model
from diffeqformer.errors import BadInput
from diffeqformer.model.adapt import adapt, adapted_config
from diffeqformer.model.build import abstract
from diffeqformer.nn.linear import AdaptedLinear
from diffeqformer.ode.lora import linear_maps, targets
from tests.cases import slow_but
from tests.models import COVERING, KINDS, TINY, logits, model_of, tokens
from tests.tolerances import STATES, roundoff

LORA = LoRAConfig(rank=3, alpha=6.0)
TABLES = ("vanilla", "parallel blocks", "vanilla llama, grouped queries", "macaron", "ode transformer")
NAMES = ("attention.query_key_value", "attention.output", "feed_forward.up", "feed_forward.down")


def adapted(kind: str, lora: LoRAConfig = LORA):
    """The model of a kind with new adapters, and itself."""
    base = model_of(KINDS[kind])
    config = adapted_config(base.config, base.config.steps, become="layer", lora=lora)
    return adapt(base, config, jax.random.key(0)), base


def stirred(model):
    """The model with every B random instead of zero."""
    maps = lambda m: [m.adapter.b for m in linear_maps(m.weights.layers).values() if isinstance(m, AdaptedLinear)]
    draw = np.random.default_rng(0).normal
    return eqx.tree_at(maps, model, [jnp.asarray(0.2 * draw(size=b.shape), b.dtype) for b in maps(model)])


@pytest.mark.parametrize("kind", slow_but(COVERING | {"vanilla llama, grouped queries"}, TABLES))
def test_new_adapters_change_no_bit(kind):
    model, base = adapted(kind)
    found, wanted = logits(model, tokens()), logits(base, tokens())
    if kind == "ode transformer":  # XLA fuses its longer steps in another way: rounding
        return np.testing.assert_allclose(found, wanted, atol=STATES)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("steps", [2, 5])
def test_a_continuous_model_written_out_with_adapters_is_itself(steps):
    base = model_of(TINY)
    model = adapt(base, adapted_config(TINY, steps, become="layer", lora=LORA), jax.random.key(0))
    np.testing.assert_array_equal(logits(model, tokens()), logits(base.populate(steps), tokens()))


def test_adapters_beside_knots_change_every_depth_and_are_those_of_merged_knots():
    base = model_of(KINDS["knots, normalised"])
    model = adapt(base, adapted_config(base.config, 3, become="same", lora=LORA), jax.random.key(0))
    np.testing.assert_array_equal(logits(model, tokens()), logits(base, tokens()))
    maps = lambda m: [m.adapter.b for m in linear_maps(m.weights.rows).values() if isinstance(m, AdaptedLinear)]
    draw = np.random.default_rng(0).normal
    model = eqx.tree_at(maps, model, [jnp.asarray(0.2 * draw(size=b.shape), b.dtype) for b in maps(model)])
    merged, taken = model.merge(), model.without_adapters()
    assert merged.config.lora is None and jax.tree.structure(taken) == jax.tree.structure(base)
    jax.tree.map(np.testing.assert_array_equal, taken, base)
    for steps in (2, 5):
        np.testing.assert_array_equal(logits(model, tokens(), steps), logits(merged, tokens(), steps))
        assert np.abs(logits(model, tokens(), steps) - logits(base, tokens(), steps)).max() > 0.1
    # The first knot's own matrix, as the adapters say.
    one, own = (linear_maps(m.weights.rows)["attention.output"] for m in (model, merged))
    change = (
        LORA.alpha / LORA.rank * np.asarray(one.adapter.a[0], np.float64) @ np.asarray(one.adapter.b[0], np.float64)
    )
    np.testing.assert_allclose(own.weight[0] - one.base.weight[0], change, rtol=0, atol=roundoff(np.float32, 3))


def test_where_no_adapters_of_functions_of_depth_can_be():
    with pytest.raises(BadInput, match="beside knots or blocks of levels, but this model has weights of kind .time."):
        adapted_config(TINY, 3, become="same", lora=LORA)
    knots = dataclasses.replace(KINDS["knots, normalised"].weights, lora=LoRAConfig(2, dropout=0.1))
    with pytest.raises(BadInput, match="dropout is 0.1, but must be 0 with weights of kind 'knots'"):
        validate_model(dataclasses.replace(KINDS["knots, normalised"], weights=knots))


@pytest.mark.parametrize("kind", TABLES)
def test_merged_equals_unmerged(kind):
    model, base = adapted(kind)
    model = stirred(model)
    assert np.abs(logits(model, tokens()) - logits(base, tokens())).max() > 0.1
    merged = model.merge()
    assert not merged.config.lora
    assert jax.tree.structure(merged.weights) == jax.tree.structure(base.weights)
    np.testing.assert_allclose(logits(merged, tokens()), logits(model, tokens()), atol=STATES)
    np.testing.assert_array_equal(logits(model.without_adapters(), tokens()), logits(base, tokens()))


def test_the_change_is_alpha_over_rank_times_a_times_b_in_each_layer():
    model = stirred(adapted("vanilla")[0])
    unit = linear_maps(model.weights.layers)["feed_forward.up"]
    for layer in range(3):
        a, b = (np.asarray(x[layer], np.float64) for x in (unit.adapter.a, unit.adapter.b))
        change = unit.weight[layer] - unit.base.weight[layer]
        np.testing.assert_allclose(change, 6.0 / 3 * a @ b, atol=1e-6)
        assert np.linalg.matrix_rank(change, tol=1e-4) == 3


def test_only_the_targets_are_adapted():
    model, _ = adapted("vanilla", LoRAConfig(2, targets=("attention.output", "down")))
    found = [name for name, unit in linear_maps(model.weights.layers).items() if isinstance(unit, AdaptedLinear)]
    assert found == ["attention.output", "feed_forward.down"]


@pytest.mark.parametrize(
    "patterns,found",
    [(("*",), NAMES), (("attention.*",), NAMES[:2]), (("down", "up"), NAMES[2:]), (("*t",), NAMES[1:2])],
)
def test_patterns_fit_whole_names_and_last_parts(patterns, found):
    assert targets(NAMES, patterns) == found


@pytest.mark.parametrize(
    "lora,sentence",
    [
        (LoRAConfig(2, targets=("query",)), "'query', which is none of this model's linear maps: attention.query_key"),
        (LoRAConfig(2, targets=()), "model.weights.lora.targets is empty"),
        (LoRAConfig(17), "model.weights.lora.rank is 17, but attention.query_key_value is 16 x 48: at most 16"),
        (LoRAConfig(0), "model.weights.lora.rank is 0, but must be at least 1"),
        (LoRAConfig(2, alpha=-1.0), "model.weights.lora.alpha is -1.0"),
        (LoRAConfig(2, dropout=1.0), "model.weights.lora.dropout is 1.0"),
    ],
)
def test_adapters_that_cannot_be_are_refused(lora, sentence):
    with pytest.raises(BadInput) as refused:
        validate_model(dataclasses.replace(KINDS["vanilla"], weights=LayerConfig(lora=lora)))
    assert sentence in str(refused.value)


def test_adapters_stand_beside_a_table_only():
    with pytest.raises(BadInput, match=r"unknown key 'model.weights.lora'"):
        from_dict(Config, {"model": {"weights": {"kind": "time", "lora": {"rank": 3}}}})


def test_dropout_of_adapters_acts_in_training_only_and_follows_the_key():
    model = stirred(adapted("vanilla", dataclasses.replace(LORA, dropout=0.5))[0])
    plain = stirred(adapted("vanilla")[0])
    np.testing.assert_array_equal(logits(model, tokens()), logits(plain, tokens()))
    one, again, other = (logits(model, tokens(), key=jax.random.key(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert np.abs(one - other).max() > 1e-3


def test_the_shapes_of_an_adapted_config_are_those_of_its_models():
    model, _ = adapted("vanilla llama, grouped queries")
    assert jax.tree.map(jnp.shape, model) == jax.tree.map(jnp.shape, abstract(model.config))


def test_a_table_has_no_functions_of_depth_to_keep():
    with pytest.raises(BadInput, match="method 'continuous' keeps weights that are functions of depth"):
        adapted_config(KINDS["vanilla"], 3, become="same", lora=None)
    with pytest.raises(BadInput, match="a table of 3 layers and cannot run at 5 steps"):
        adapted_config(KINDS["vanilla"], 5, become="layer", lora=LORA)


def test_another_depth_covers_the_same_interval():
    counted = dataclasses.replace(TINY, horizon="steps")
    for become in ("layer", "levels", "same"):
        config = adapted_config(counted, 6, become=become, lora=None)
        assert (config.steps, config.interval) == (6, 3.0)
