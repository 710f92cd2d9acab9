import dataclasses
from dataclasses import fields
from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffeqformer.config import (
    KnotsConfig,
    LevelsConfig,
    LoRAConfig,
    ModulationConfig,
    ToleranceConfig,
    validate_model,
)
from diffeqformer.errors import BadInput
from diffeqformer.model.adapt import adapt, adapted_config
from diffeqformer.model.build import abstract, build
from diffeqformer.ode.field import TransformerField
from diffeqformer.ode.grid import Grid, Nodes, divided_edges
from diffeqformer.ode.weights import LevelWeights
from diffeqformer.ode.weights.levels import freed
from tests.cases import slow, slow_but
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


LEVELS = (2, 3, 6)


def numbered(levels: tuple[int, ...]) -> LevelWeights:
    """Blocks all of whose numbers are that of the block."""
    shapes = abstract(dataclasses.replace(TINY, weights=LevelsConfig(levels))).weights
    number = lambda leaf: np.broadcast_to(np.reshape(range(leaf.shape[0]), (-1, *[1] * (leaf.ndim - 1))), leaf.shape)
    return jax.tree.map(lambda leaf: jnp.asarray(number(leaf), leaf.dtype), shapes)


@pytest.mark.parametrize(
    "steps, parts",
    {
        2: [1, 1], 3: [1, 1, 1], 4: [1, 2, 1], 5: [1, 3, 1], 6: [1] * 6, 7: [1, 1, 2, 1, 1, 1], 8: [1, 1, 2, 2, 1, 1],
        11: [1, 2, 3, 2, 2, 1], 12: [1, 2, 3, 3, 2, 1], 14: [1, 3, 3, 3, 3, 1], 25: [1, 6, 6, 6, 5, 1],
    }.items(),
)  # fmt: skip
def test_at_other_numbers_the_middle_steps_of_the_level_below_are_divided_as_evenly_as_possible(steps, parts):
    first = {2: 0, 3: 2, 6: 5}[len(parts)]
    lengths = [1 / (len(parts) * number) for number in parts for _ in range(number)]
    rows = [first + layer for layer, number in enumerate(parts) for _ in range(number)]
    grid = Grid.of_config(dataclasses.replace(TINY, weights=LevelsConfig(LEVELS)), steps)
    np.testing.assert_allclose(grid.lengths, lengths, rtol=0, atol=1e-15)
    for leaf in jax.tree.leaves(numbered(LEVELS).table(grid)):
        assert leaf.shape[:2] == (steps, 1)
        assert (np.asarray(leaf) == np.reshape(rows, (-1, *[1] * (leaf.ndim - 1)))).all()


@pytest.mark.parametrize("level, whole", [(1, 0), (2, 0), (3, 1), (7, 1), (8, 2), (15, 3), (16, 4), (24, 6)])
def test_the_first_and_last_quarter_of_steps_stay_whole(level, whole):
    lengths = Grid(200, divided_edges(200, (level,))).lengths * level
    full = np.isclose(lengths, 1, rtol=0, atol=1e-12)
    assert full[:whole].all() and full[200 - whole :].all() and full.sum() == 2 * whole
    longest, shortest = lengths[whole : 200 - whole].max(), lengths[whole : 200 - whole].min()
    assert round(1 / shortest) - round(1 / longest) <= 1  # parts of the divided steps


def test_a_step_longer_than_those_of_all_tables_takes_the_mean_of_the_first():
    scale = numbered(LEVELS).table(Grid(1)).attention.norm.scale
    np.testing.assert_array_equal(scale, np.full(scale.shape, 0.5))


@pytest.mark.parametrize("grid", [Grid(1), Grid(4), Grid(9), Grid(4, (0.0, 0.5, 0.6, 0.9, 1.0))])
def test_other_steps_take_means_over_them_of_the_table_of_the_level_below(grid):
    level, first = {1: (2, 0), 4: (3, 2), 9: (6, 5)}[grid.steps]
    want = []
    for start, end in pairwise(grid.edges):  # by fine sums instead of formulas
        within = start + (end - start) * (np.arange(20_000) + 0.5) / 20_000
        want.append(first + (within * level).astype(int).mean())
    for leaf in jax.tree.leaves(numbered(LEVELS).table(grid)):
        found = np.asarray(leaf).reshape(grid.steps, -1)
        np.testing.assert_allclose(found, np.broadcast_to(np.reshape(want, (-1, 1)), found.shape), rtol=0, atol=1e-3)


@pytest.mark.parametrize("steps", LEVELS)
def test_at_its_own_number_of_steps_a_table_is_read_as_it_is(steps):
    first = {2: 0, 3: 2, 6: 5}[steps]
    scale = numbered(LEVELS).table(Grid(steps)).attention.norm.scale
    assert scale[:, 0, 0].tolist() == list(range(first, first + steps))


def test_traced_edges_take_the_same_blocks():
    weights = numbered(LEVELS)
    for grid in (Grid(5, divided_edges(5, LEVELS)), Grid(3, (0.0, 0.4, 0.4, 1.0))):  # one has a step of length 0
        traced = jax.jit(lambda edges, grid=grid: weights.table(Grid(grid.steps, edges)))(
            jnp.asarray(grid.edges, jnp.float32)
        )
        jax.tree.map(partial(np.testing.assert_allclose, rtol=0, atol=1e-5), traced, weights.table(grid))


def test_between_steps_is_the_longest_table():
    at = numbered((1, 2, 4)).at(np.array([0.0, 0.2, 0.25, 0.7, 1.0])).attention.norm.scale
    assert at[:, 0].tolist() == [3, 3, 4, 5, 6]


def test_levels_given_in_any_order_are_the_same_model():
    config = lambda *levels: dataclasses.replace(TINY, weights=LevelsConfig(levels))
    one, other = (build(config(*levels), jax.random.key(0)) for levels in ((2, 4), (4, 2)))
    assert one.weights.levels == other.weights.levels == (2, 4)
    with pytest.raises(BadInput, match="model.weights.levels names 2 more than once"):
        validate_model(config(2, 2))


@pytest.mark.parametrize("kind", ["means of hats", *slow("corrected boxes")])
def test_freed_tables_give_the_same_logits_at_their_depths(kind):
    base = model_of(dataclasses.replace(SHARING[kind], spacing="equal"))
    config = adapted_config(base.config, 4, become="levels", lora=None, levels=LEVELS)
    model = adapt(base, config, jax.random.key(0))
    for steps in LEVELS:
        np.testing.assert_allclose(logits(model, tokens(), steps), logits(base, tokens(), steps), rtol=0, atol=STATES)


@pytest.mark.parametrize("kind", slow_but(["time networks", "corrected boxes", "modulated"], SHARING))
def test_freed_tables_give_the_same_logits_where_steps_are_equal(kind):
    base = model_of(SHARING[kind])
    model = adapt(base, adapted_config(base.config, 4, become="levels", lora=None), jax.random.key(0))
    assert isinstance(model.weights, LevelWeights)
    assert len(model.weights.blocks.attention.norm.scale) == 7 and model.config.spacing == "equal"
    for steps in (1, 4):
        np.testing.assert_allclose(logits(model, tokens(), steps), logits(base, tokens(), steps), rtol=0, atol=STATES)


def test_freed_blocks_leave_a_field_of_ones_own_in_its_place():
    class Doubled(TransformerField):
        def feed_forward(self, weights, x, *, key=None):
            return 2 * super().feed_forward(weights, x, key=key)

    config = SHARING["corrected boxes"]
    field = model_of(config).field
    base = build(config, jax.random.key(0), field=Doubled(**{f.name: getattr(field, f.name) for f in fields(field)}))
    model = adapt(base, adapted_config(config, 4, become="levels", lora=None), jax.random.key(0))
    assert isinstance(model.field, Doubled) and model.config.field == base.config.field
    np.testing.assert_allclose(logits(model, tokens(), 2), logits(base, tokens(), 2), rtol=0, atol=STATES)


def test_deeper_blocks_than_those_trained_can_be_freed_and_adapted():
    base = model_of(SHARING["corrected boxes"])
    lora = LoRAConfig(2)
    model = adapt(base, adapted_config(base.config, 8, become="levels", lora=lora), jax.random.key(0))
    assert (model.config.steps, model.weights.levels) == (8, (1, 2, 4, 8))
    want, merged = logits(base, tokens(), 8), model.merge()
    assert merged.config.lora is None
    for same in (model, merged, model.populate()):
        np.testing.assert_allclose(logits(same, tokens()), want, rtol=0, atol=STATES)


def test_new_blocks_are_independent():
    model = build(dataclasses.replace(TINY, weights="levels", steps=4), jax.random.key(0))
    assert model.weights.levels == (1, 2, 4)
    up = np.asarray(model.weights.blocks.feed_forward.up.weight).reshape(7, -1)
    assert np.abs(np.corrcoef(up) - np.eye(7)).max() < 0.2
    assert model.populate(3).weights.depth == 3


def test_what_has_no_blocks_to_free_is_refused():
    with pytest.raises(BadInput, match="weights of kind 'layer', which share none"):
        adapted_config(KINDS["vanilla"], 3, become="levels", lora=None)
    with pytest.raises(BadInput, match="this model has steps of its own"):
        adapted_config(KINDS["time, long first step"], 3, become="levels", lora=None)
    with pytest.raises(BadInput, match="several times of a step, which differ"):
        freed(model_of(TINY).weights, (1, 2), Nodes.same(0.0, 1.0))
    with pytest.raises(BadInput, match=r"model.weights is 'levels', but model.tolerance is given"):
        validate_model(dataclasses.replace(TINY, weights="levels", tolerance=ToleranceConfig()))
