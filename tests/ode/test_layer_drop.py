"""Layers that are left out: the ones that the middle of each step names, at their own strength."""

from dataclasses import replace
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffeqformer.config import Config, LayerDropConfig, ModelConfig, from_dict, validate
from diffeqformer.errors import BadInput
from diffeqformer.ode.grid import Grid
from diffeqformer.ode.weights import LayerWeights
from diffeqformer.ode.weights.layer_drop import LayerDropWeights, nested_order
from tests.models import logits, model_of

CONFIG = ModelConfig(weights="layerdrop", scheme="residual", steps=8, width=16, heads=2, context=8, vocabulary=11)
IDS = jnp.arange(8)[None] % 11


@pytest.fixture(scope="module")
def model():
    return model_of(CONFIG)


@pytest.mark.parametrize(("steps", "kept"), [(8, range(8)), (4, (1, 3, 5, 7)), (2, (2, 6)), (1, (4,)), (3, (1, 4, 6))])
def test_fewer_steps_are_the_transformer_of_the_layers_that_are_left(model, steps, kept):
    layers = jax.tree.map(lambda leaf: np.asarray(leaf)[np.array(kept)], model.weights.layers)
    twin = ModelConfig(
        weights="layer", scheme="lie-trotter", horizon="steps", steps=steps, width=16, heads=2, context=8, vocabulary=11
    )
    vanilla = model_of(twin).replace(
        embedding=model.embedding, weights=LayerWeights(layers), final_norm=model.final_norm
    )
    assert np.array_equal(logits(model, IDS, steps), logits(vanilla, IDS))
    jax.tree.map(np.testing.assert_array_equal, model.populate(steps).weights, vanilla.weights)


@pytest.mark.parametrize("layers", range(1, 65))
def test_the_layer_of_a_middle_is_that_of_whole_numbers(model, layers):
    source = LayerDropWeights(jax.tree.map(lambda leaf: np.arange(layers)[:, None], model.weights.layers))
    for steps in range(1, layers + 1):
        rows = source.at(Grid(steps).times((0.5,))).attention.norm.scale[:, 0]
        assert rows.tolist() == [(2 * step + 1) * layers // (2 * steps) for step in range(steps)]


def test_unequal_steps_take_other_layers_and_the_same_ones_inside_a_program(model):
    edges = np.array([0, 0.1, 0.2, 1.0])
    rows = model.weights.table(Grid.of(edges))
    traced = jax.jit(lambda edges: model.weights.table(Grid.of(edges)))(jnp.asarray(edges, jnp.float32))
    jax.tree.map(np.testing.assert_array_equal, traced, rows)
    weight = rows.feed_forward.up.weight[:, 0]
    np.testing.assert_array_equal(weight, model.weights.layers.feed_forward.up.weight[np.array([0, 1, 4])])


@pytest.mark.parametrize("layers", [1, 5, 8, 16, 24])
def test_nested_layers_are_added_where_the_gap_is_widest(layers):
    order = nested_order(layers)
    assert sorted(order) == list(range(layers)) and order[0] == layers - 1
    if layers & (layers - 1) == 0:  # a power of two: at each of its divisors they are the ends of equal parts
        for steps in (2**k for k in range(layers.bit_length())):
            assert sorted(order[:steps]) == [(step + 1) * layers // steps - 1 for step in range(steps)]


def test_each_number_of_steps_keeps_the_layers_of_all_smaller_ones():
    weights = LayerDropConfig(nested=True)
    model = model_of(replace(CONFIG, weights=weights))
    rows = jax.tree.map(lambda leaf: np.arange(8.0)[:, None], model.weights.layers)
    source = replace(model.weights, layers=rows)
    kept = [source.table(Grid(steps)).attention.norm.scale[:, 0, 0].tolist() for steps in range(1, 9)]
    assert kept[1] == [3, 7] and kept[2] == [3, 5, 7] and kept[7] == list(range(8))
    for fewer, more in pairwise(kept):
        assert set(fewer) < set(more) and more == sorted(more)
    layers = jax.tree.map(lambda leaf: np.asarray(leaf)[np.array([3, 5, 7])], model.weights.layers)
    jax.tree.map(np.testing.assert_array_equal, model.populate(3).weights.layers, layers)
    np.testing.assert_allclose(logits(model.populate(3), IDS), logits(model, IDS, 3), atol=1e-6)
    with pytest.raises(BadInput, match="nested layers are kept by the number of steps, .* must be equal"):
        model.weights.table(Grid.of(np.array([0, 0.1, 1.0])))
    asked = {"model": {"weights": {"kind": "layerdrop", "nested": True}, "scheme": "residual", "horizon": "steps"}}
    with pytest.raises(BadInput, match="depth.jitter is 0.5, but model.weights.nested keeps layers by the number"):
        validate(from_dict(Config, asked | {"depth": {"sample": [2, 4], "jitter": 0.5}}))


def test_more_steps_than_layers_are_refused(model):
    with pytest.raises(BadInput, match="steps is 9, .* 8 layers"):
        model(IDS, steps=9)
