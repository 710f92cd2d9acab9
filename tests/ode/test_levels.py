import dataclasses
from dataclasses import fields
from fractions import Fraction
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
from diffeqformer.ode.grid import Grid, Nodes
from diffeqformer.ode.weights import LevelWeights
from diffeqformer.ode.weights.levels import freed, level_shares
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


@pytest.mark.parametrize("steps", [1, 3, 8, 11, 24, *slow(2, 5, 16, 32)])
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
    table = numbered(tuple(1 << level for level in range(halvings + 1))).table(Grid.of(steps, spacing="dyadic"))
    for leaf in jax.tree.leaves(table):
        assert leaf.shape[:2] == (steps, 1)
        assert (np.asarray(leaf) == np.reshape(want, (-1, *[1] * (leaf.ndim - 1)))).all()


def expected(levels: tuple[int, ...], edges: np.ndarray) -> np.ndarray:
    """Shares of blocks in steps: hats over the logarithm of the length, times the parts of the step that lie in each
    piece of depth, by fine sums instead of formulas."""
    rows = []
    for start, end in pairwise(edges):
        place = np.interp(np.log(1 / (end - start)), np.log(levels), range(len(levels)))
        within = start + (end - start) * (np.arange(20_000) + 0.5) / 20_000
        parts = (np.bincount((within * n).astype(int), minlength=n) / len(within) for n in levels)
        rows.append(np.concatenate([max(0, 1 - abs(place - j)) * part for j, part in enumerate(parts)]))
    return np.array(rows)


@pytest.mark.parametrize("grid", [Grid(1), Grid(2), Grid(4), Grid(5), Grid(9), Grid(4, (0.0, 0.5, 0.6, 0.9, 1.0))])
def test_a_step_mixes_the_means_over_it_of_the_two_tables_whose_steps_are_nearest_in_length(grid):
    want = expected(LEVELS, grid.edges)
    shares = level_shares(grid.edges, LEVELS)
    np.testing.assert_allclose(shares, want, rtol=0, atol=1e-3)  # of the sums
    np.testing.assert_allclose(shares.sum(1), 1, rtol=0, atol=1e-11)  # rounded to 12 digits, eleven blocks
    table = numbered(LEVELS).table(grid)
    for leaf in jax.tree.leaves(table):
        found = np.asarray(leaf).reshape(grid.steps, -1)
        np.testing.assert_allclose(
            found, np.broadcast_to((shares @ range(11))[:, None], found.shape), rtol=0, atol=1e-5
        )


@pytest.mark.parametrize("steps", LEVELS)
def test_at_its_own_number_of_steps_a_table_is_read_as_it_is(steps):
    first = {2: 0, 3: 2, 6: 5}[steps]
    scale = numbered(LEVELS).table(Grid(steps)).attention.norm.scale
    assert scale[:, 0, 0].tolist() == list(range(first, first + steps))


def test_traced_edges_take_the_same_blocks():
    weights, grid = numbered((1, 2, 4, 8)), Grid.of(6, spacing="dyadic")
    traced = jax.jit(lambda edges: weights.table(Grid(6, edges)))(jnp.asarray(grid.edges, jnp.float32))
    jax.tree.map(np.testing.assert_array_equal, traced, weights.table(grid))
    edges = np.array([0.0, 0.4, 0.4, 1.0])  # a step of length 0
    traced = jax.jit(lambda edges: level_shares(edges, LEVELS))(jnp.asarray(edges, jnp.float32))
    np.testing.assert_allclose(traced, level_shares(edges, LEVELS), rtol=0, atol=1e-5)


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
    assert config.spacing == "thirds"
    model = adapt(base, config, jax.random.key(0))
    for steps in LEVELS:
        np.testing.assert_allclose(logits(model, tokens(), steps), logits(base, tokens(), steps), rtol=0, atol=STATES)
    of_five = adapted_config(base.config, 4, become="levels", lora=None, levels=(2, 5))
    assert of_five.spacing == "equal"


@pytest.mark.parametrize("kind", slow_but(["time networks", "corrected boxes", "modulated"], SHARING))
def test_freed_blocks_give_the_same_logits_at_all_depths(kind):
    base = model_of(SHARING[kind])
    model = adapt(base, adapted_config(base.config, 4, become="levels", lora=None), jax.random.key(0))
    assert isinstance(model.weights, LevelWeights)
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
    model = adapt(base, adapted_config(config, 4, become="levels", lora=None), jax.random.key(0))
    assert isinstance(model.field, Doubled) and model.config.field == base.config.field
    np.testing.assert_allclose(logits(model, tokens(), 3), logits(base, tokens(), 3), rtol=0, atol=STATES)


def test_deeper_blocks_than_those_trained_can_be_freed_and_adapted():
    base = model_of(SHARING["corrected boxes"])
    lora = LoRAConfig(2)
    model = adapt(base, adapted_config(base.config, 7, become="levels", lora=lora), jax.random.key(0))
    assert (model.config.steps, model.weights.levels) == (7, (1, 2, 4, 8))
    want, merged = logits(base, tokens(), 7), model.merge()
    assert merged.config.lora is None
    for same in (model, merged, model.populate()):
        np.testing.assert_allclose(logits(same, tokens()), want, rtol=0, atol=STATES)


def test_new_blocks_are_independent():
    model = build(dataclasses.replace(TINY, weights="levels", spacing="dyadic", steps=4), jax.random.key(0))
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
