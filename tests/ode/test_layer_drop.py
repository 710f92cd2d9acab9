"""Layers that are left out: the ones that the middle of each step names, at their own strength."""

from dataclasses import replace
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffeqformer.config import Config, LayerDropConfig, ModelConfig, from_dict, validate
from diffeqformer.errors import BadInput
from diffeqformer.model.build import build
from diffeqformer.model.count import parameters
from diffeqformer.ode.grid import Grid
from diffeqformer.ode.weights import LayerWeights
from diffeqformer.ode.weights.layer_drop import LayerDropWeights, nested_order
from tests.cases import slow
from tests.models import logits, model_of

CONFIG = ModelConfig(weights="layerdrop", scheme="residual", steps=8, width=16, heads=2, context=8, vocabulary=11)
IDS = jnp.arange(8)[None] % 11
KEY = jax.random.key(0)


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


@pytest.mark.parametrize("order", [(), tuple(range(7))])
def test_each_number_of_steps_lands_on_layers_of_its_own(order):
    model = model_of(replace(CONFIG, weights=LayerDropConfig(nested=True, order=order, landings=1)))
    source = replace(model.weights, layers=jax.tree.map(lambda leaf: np.arange(15.0)[:, None], model.weights.layers))
    assert source.depth == 8 and model.early_exits == bool(order)
    rows = [source.table(Grid(steps)).attention.norm.scale[:, 0, 0].tolist() for steps in range(1, 9)]
    assert [kept[-1] for kept in rows] == [7, 8, 9, 10, 11, 12, 13, 14]
    before = order or nested_order(7)
    assert [kept[:-1] for kept in rows] == [sorted(before[:steps]) for steps in range(8)]
    times = Grid(8).times((0.5,))
    assert source.at(times).attention.norm.scale[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 6, 14]
    np.testing.assert_allclose(logits(model.populate(3), IDS), logits(model, IDS, 3), atol=1e-6)
    several = model_of(replace(CONFIG, weights=LayerDropConfig(5, nested=True, order=order[:2], landings=3), steps=5))
    assert several.weights.depth == 5 and several.early_exits == bool(order)
    own = {1: [2], 2: [3, 4], 3: [5, 6, 7], 4: [8, 9, 10], 5: [11, 12, 13]}
    shared = {4: list(order[:1] or nested_order(2)[:1]), 5: [0, 1]}
    assert {steps: several.weights.kept(steps).tolist() for steps in own} == {
        steps: shared.get(steps, []) + rows for steps, rows in own.items()
    }
    assert several.weights.layers.attention.norm.scale.shape[0] == 14
    with pytest.raises(BadInput, match="landings is 1, but without model.weights.nested no layers are shared"):
        validate(Config(model=replace(CONFIG, weights=LayerDropConfig(landings=1))))
    with pytest.raises(BadInput, match="landings is 1, but with 1 layer no layers are shared"):
        validate(Config(model=replace(CONFIG, weights=LayerDropConfig(1, nested=True, landings=1), steps=1)))


@pytest.mark.parametrize(
    ("steps", "shares"),
    [(1, {0: 1.0}), (3, {1: 2 - np.log2(3), 2: np.log2(3) - 1}), *slow((4, {2: 1.0}), (8, {3: 1.0}))],
)
def test_a_nested_layer_is_corrected_by_the_number_of_steps(steps, shares):
    model = model_of(replace(CONFIG, weights=LayerDropConfig(nested=True, rank=2)))
    kept = np.sort(nested_order(8)[:steps])
    for half, name in (("attention", "query_key_value"), ("feed_forward", "down")):
        found, unit, correction = (
            getattr(getattr(tree, half), name)
            for tree in (model.weights.table(Grid(steps)), model.weights.layers, model.weights.corrections)
        )
        a, b = np.asarray(correction.a, float), np.asarray(correction.b, float)
        expected = unit.weight[kept] + sum(share * (a[j] @ b[j]) for j, share in shares.items())[kept]
        np.testing.assert_allclose(found.weight[:, 0], expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(found.bias[:, 0], unit.bias[kept])
    np.testing.assert_allclose(logits(model.populate(steps), IDS), logits(model, IDS, steps), atol=1e-6)
    rows = model.weights.at(Grid(8).times((0.5,))).feed_forward.up.weight
    np.testing.assert_array_equal(rows, model.weights.table(Grid(8)).feed_forward.up.weight[:, 0])


def test_corrections_begin_as_none_and_fit_their_matrices():
    corrected, plain = (build(replace(CONFIG, weights=LayerDropConfig(nested=True, rank=r)), KEY) for r in (3, None))
    jax.tree.map(np.testing.assert_array_equal, corrected.populate(5), plain.populate(5))
    maps = ((16, 48), (16, 16), (16, 64), (64, 16))
    assert parameters(corrected.config).stored - parameters(plain.config).stored == sum(
        4 * 8 * 3 * sum(m) for m in maps
    )
    with pytest.raises(
        BadInput, match="model.weights.rank is 17, but attention.query_key_value is 16 x 48: at most 16"
    ):
        build(replace(CONFIG, weights=LayerDropConfig(nested=True, rank=17)), KEY)
    asked = {"model": {"weights": {"kind": "layerdrop", "rank": 2}, "scheme": "residual", "horizon": "steps"}}
    with pytest.raises(BadInput, match="model.weights.rank is 2, but without model.weights.nested"):
        validate(from_dict(Config, asked))


def test_more_steps_than_layers_are_refused(model):
    with pytest.raises(BadInput, match="steps is 9, .* 8 layers"):
        model(IDS, steps=9)
