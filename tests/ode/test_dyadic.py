import dataclasses
from dataclasses import fields
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffeqformer.config import DyadicConfig, KnotsConfig, LoRAConfig, ModulationConfig, ToleranceConfig, validate_model
from diffeqformer.errors import BadInput
from diffeqformer.model.adapt import adapt, adapted_config
from diffeqformer.model.build import abstract, build
from diffeqformer.ode.field import TransformerField
from diffeqformer.ode.grid import Grid, Nodes
from diffeqformer.ode.weights import DyadicWeights
from diffeqformer.ode.weights.dyadic import dyadic_rows, freed
from tests.models import KINDS, TINY, logits, model_of, tokens
from tests.tolerances import STATES

NORMALISED = KINDS["knots, normalised"]
SHARING = {
    "corrected boxes": dataclasses.replace(
        NORMALISED, weights=KnotsConfig(4, "box", rank=2), spacing="dyadic", final_norm_halvings=2
    ),
    "means of hats": dataclasses.replace(NORMALISED, weights=KnotsConfig(3, average=True), spacing="dyadic"),
    "modulated": dataclasses.replace(NORMALISED, weights="shared", modulation=ModulationConfig(3, 2), spacing="dyadic"),
    "time networks": dataclasses.replace(KINDS["time, lie-trotter"], spacing="dyadic"),
}


def numbered(halvings: int) -> DyadicWeights:
    """Blocks all of whose numbers are that of the block."""
    shapes = abstract(dataclasses.replace(TINY, weights=DyadicConfig(halvings), spacing="dyadic")).weights
    number = lambda leaf: np.broadcast_to(np.reshape(range(leaf.shape[0]), (-1, *[1] * (leaf.ndim - 1))), leaf.shape)
    return jax.tree.map(lambda leaf: jnp.asarray(number(leaf), leaf.dtype), shapes)


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 8, 11, 16, 24, 32])
def test_each_dyadic_step_takes_the_block_of_its_place_and_length(steps):
    halvings = 4
    order = [
        (Fraction(place, 2**level), Fraction(1, 2**level)) for level in range(halvings + 1) for place in range(2**level)
    ]
    edges = [Fraction(edge) for edge in Grid.of(steps, spacing="dyadic").edges.tolist()]
    least = Fraction(1, 2**halvings)
    known = ((start, length) if length >= least else (start // least * least, least)  # within the shortest block
             for start, length in zip(edges, np.diff(edges), strict=False))  # fmt: skip
    want = [order.index(own) for own in known]
    table = numbered(halvings).table(Grid.of(steps, spacing="dyadic"))
    for leaf in jax.tree.leaves(table):
        assert leaf.shape[:2] == (steps, 1)
        assert (np.asarray(leaf) == np.reshape(want, (-1, *[1] * (leaf.ndim - 1)))).all()


def test_other_lengths_take_the_nearest_number_of_halvings():
    rows = lambda grid: dyadic_rows((grid.edges[1:] + grid.edges[:-1]) / 2, grid.lengths, 3).tolist()
    assert rows(Grid(3)) == [3, 5, 6]  # quarters, in the middle the third of them
    assert rows(Grid(5)) == [3, 4, 5, 5, 6]
    assert rows(Grid(2, (0.0, 0.9, 1.0))) == [0, 14]


def test_traced_edges_take_the_same_blocks():
    weights, grid = numbered(3), Grid.of(6, spacing="dyadic")
    traced = jax.jit(lambda edges: weights.table(Grid(6, edges)))(jnp.asarray(grid.edges, jnp.float32))
    jax.tree.map(np.testing.assert_array_equal, traced, weights.table(grid))
    empty = dyadic_rows(np.array([0.5, 1.0]), np.array([0.0, 0.0]), 3)
    assert empty.tolist() == [7 + 4, 7 + 7]


def test_between_steps_are_the_shortest_blocks():
    at = numbered(2).at(np.array([0.0, 0.2, 0.25, 0.7, 1.0])).attention.norm.scale
    assert at[:, 0].tolist() == [3, 3, 4, 5, 6]


@pytest.mark.parametrize("kind", SHARING)
def test_freed_blocks_give_the_same_logits_at_all_depths(kind):
    base = model_of(SHARING[kind])
    model = adapt(base, adapted_config(base.config, 4, become="dyadic", lora=None), jax.random.key(0))
    assert isinstance(model.weights, DyadicWeights)
    assert len(model.weights.blocks.attention.norm.scale) == 7
    for steps in (1, 3):  # of 3 steps one is a half, two are quarters
        np.testing.assert_allclose(logits(model, tokens(), steps), logits(base, tokens(), steps), rtol=0, atol=STATES)


def test_freed_blocks_leave_a_field_of_ones_own_in_its_place():
    class Doubled(TransformerField):
        def feed_forward(self, weights, x, *, key=None):
            return 2 * super().feed_forward(weights, x, key=key)

    config = SHARING["corrected boxes"]
    field = model_of(config).field
    base = build(config, jax.random.key(0), field=Doubled(**{f.name: getattr(field, f.name) for f in fields(field)}))
    model = adapt(base, adapted_config(config, 4, become="dyadic", lora=None), jax.random.key(0))
    assert isinstance(model.field, Doubled) and model.config.field == base.config.field
    np.testing.assert_allclose(logits(model, tokens(), 3), logits(base, tokens(), 3), rtol=0, atol=STATES)


def test_deeper_blocks_than_those_trained_can_be_freed_and_adapted():
    base = model_of(SHARING["corrected boxes"])
    lora = LoRAConfig(2)
    model = adapt(base, adapted_config(base.config, 7, become="dyadic", lora=lora), jax.random.key(0))
    assert (model.config.steps, model.weights.halvings) == (7, 3)
    want, merged = logits(base, tokens(), 7), model.merge()
    assert merged.config.lora is None
    for same in (model, merged, model.populate()):
        np.testing.assert_allclose(logits(same, tokens()), want, rtol=0, atol=STATES)


def test_new_blocks_are_independent():
    model = build(dataclasses.replace(TINY, weights="dyadic", spacing="dyadic", steps=4), jax.random.key(0))
    assert model.weights.halvings == 2
    up = np.asarray(model.weights.blocks.feed_forward.up.weight).reshape(7, -1)
    assert np.abs(np.corrcoef(up) - np.eye(7)).max() < 0.2
    assert model.populate(3).weights.depth == 3


def test_what_has_no_blocks_to_free_is_refused():
    with pytest.raises(BadInput, match="weights of kind 'layer', which share none"):
        adapted_config(KINDS["vanilla"], 3, become="dyadic", lora=None)
    with pytest.raises(BadInput, match="this model has steps of its own"):
        adapted_config(KINDS["time, long first step"], 3, become="dyadic", lora=None)
    with pytest.raises(BadInput, match="several times of a step, which differ"):
        freed(model_of(TINY).weights, 1, Nodes.same(0.0, 1.0))
    with pytest.raises(BadInput, match=r"model.weights is 'dyadic', but model.tolerance is given"):
        validate_model(dataclasses.replace(TINY, weights="dyadic", tolerance=ToleranceConfig()))
