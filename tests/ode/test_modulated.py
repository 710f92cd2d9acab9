"""Norms and gains that depend on the length of the step."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffeqformer.config import Config, KnotsConfig, ModelConfig, ModulationConfig, validate
from diffeqformer.errors import BadInput
from diffeqformer.model.build import build
from diffeqformer.ode.grid import Grid, Nodes
from diffeqformer.training.optimizer import roles
from tests.models import logits

CONFIG = ModelConfig(
    weights=KnotsConfig(knots=3), modulation=ModulationConfig(knots=2, halvings=2), scheme="lie-trotter-middle",
    steps=4, width=16, heads=2, context=8, vocabulary=11,
)  # fmt: skip
IDS = jnp.arange(8)[None] % 11
UNEQUAL = Grid.of(np.array([0, 0.5, 0.75, 0.9, 1.0]))  # lengths: one halving, two, 2.7 and 3.3, which count as two
NODES = Nodes((0.5,), (0.25, 1.0))
table = jax.jit(lambda weights, grid: weights.table(grid, NODES), static_argnums=1)


TWO_PROGRAMS = 1e-6
"""A few float32 roundings of logits below one."""


def moved(model, seed=0):
    """The same model with changes that are not zero."""
    draw = np.random.default_rng(seed).normal
    noise = lambda leaf: jnp.asarray(0.3 * draw(size=leaf.shape), leaf.dtype)
    weights = model.weights
    changes = {part: jax.tree.map(noise, getattr(weights, part)) for part in ("attention", "feed_forward")}
    return model.replace(weights=dataclasses.replace(weights, **changes))


@pytest.fixture(scope="module", params=["knots", "shared", "time"])
def model(request):
    weights = CONFIG.weights if request.param == "knots" else request.param
    return jax.jit(build, static_argnums=0)(dataclasses.replace(CONFIG, weights=weights), jax.random.key(0))


def test_at_first_it_changes_nothing(model):
    plain = model.replace(weights=model.weights.base)
    equal = lambda found, base: np.testing.assert_array_equal(found, np.broadcast_to(base, found.shape))
    for grid in (Grid(1), UNEQUAL):
        jax.tree.map(equal, table(model.weights, grid), table(plain.weights, grid))
    np.testing.assert_allclose(logits(model, IDS, 3), logits(plain, IDS, 3), rtol=0, atol=TWO_PROGRAMS)


def expected_change(part, t, length):
    """`S(t, h)` by NumPy's own interpolation over two knots in the middles of halves, and over 0, 1 and 2 halvings."""
    over_depth = np.interp(t, [0.25, 0.75], [0, 1])
    over_length = [np.interp(-np.log2(length), range(3), one) for one in np.eye(3)]
    return np.einsum("m,j,mjw->w", [1 - over_depth, over_depth], over_length, np.asarray(part, np.float64))


def test_each_step_has_the_changes_of_its_own_length_and_time(model):
    source = moved(model).weights
    edges = UNEQUAL.edges
    found, base = (table(one, UNEQUAL).feed_forward for one in (source, source.base))
    at = lambda leaf, step, node: np.asarray(leaf[step % leaf.shape[0], node % leaf.shape[1]], np.float64)
    for step, length in enumerate(np.diff(edges)):
        for node, place in enumerate(NODES.feed_forward):
            time = edges[step] + place * length
            gain = 1 + expected_change(source.feed_forward.gain.scale, time, length)
            s, b = (expected_change(part, time, length) for part in jax.tree.leaves(source.feed_forward.norm))
            for got, expected in [  # a dozen float32 operations on numbers of size 1
                (found.norm.scale, at(base.norm.scale, step, node) * (1 + s)),
                (found.norm.shift, at(base.norm.shift, step, node) + b),
                (found.down.weight, at(base.down.weight, step, node) * gain),
                (found.down.bias, at(base.down.bias, step, node) * gain),
                (found.up.weight, at(base.up.weight, step, node)),
            ]:
                np.testing.assert_allclose(at(got, step, node), expected, rtol=0, atol=2e-6)


def test_short_steps_converge_to_the_weights_at_their_times(model):
    source = moved(model).weights
    at = jax.jit(lambda source, steps: source.at(Grid(steps).times(NODES.attention)).attention, static_argnums=1)
    halves = [(table(source, Grid(steps)).attention, at(source, steps)) for steps in (1, 8)]
    long, short = (jax.tree.map(lambda a, b: np.abs(np.asarray(a)[:, 0] - np.asarray(b)).max(), *h) for h in halves)
    assert max(jax.tree.leaves(short)) < 1e-6 and long.norm.scale > 1e-2


def test_the_populated_model_is_the_same(model):
    changed = moved(model)
    for steps in (2, 5):
        populated = jax.jit(lambda model, steps=steps: model.populate(steps))(changed)
        assert populated.config.modulation is None
        expected = logits(changed, IDS, steps)
        np.testing.assert_allclose(logits(populated, IDS), expected, rtol=0, atol=TWO_PROGRAMS)


def test_changes_do_not_decay(model):
    found = roles(model).weights
    assert set(jax.tree.leaves((found.attention, found.feed_forward))) == {"norm"}


@pytest.mark.parametrize("other", [{"weights": "layer"}, {"weights": "layerdrop"}])
def test_a_table_has_no_use_for_it(other):
    with pytest.raises(BadInput, match="model.modulation is given, but model.weights is 'layer"):
        validate(Config(model=dataclasses.replace(CONFIG, **other)))
