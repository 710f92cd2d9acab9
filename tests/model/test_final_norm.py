"""A final norm that knows the number of steps."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffeqformer.analysis.induction import measure_induction
from diffeqformer.analysis.reading import lens, settled, walk
from diffeqformer.analysis.tuned_lens import tuned_lens
from diffeqformer.config import Config, DepthConfig, ModelConfig, TrainerConfig, from_dict, validate
from diffeqformer.errors import BadInput
from diffeqformer.model.build import build
from diffeqformer.model.loss import loss_of_depths, loss_sum
from diffeqformer.nn.linear import normalise
from diffeqformer.ode.early_exit import EarlyExit
from diffeqformer.training.optimizer import roles
from diffeqformer.training.update import initial_state, make_update
from tests.cases import slow
from tests.models import logits

CONFIG = ModelConfig(
    weights="layerdrop", scheme="residual", horizon="steps", final_norm_halvings=2,
    steps=4, width=16, heads=2, context=8, vocabulary=11,
)  # fmt: skip  # pyright: ignore[reportArgumentType]
IDS = jnp.arange(8)[None] % 11
TWO_PROGRAMS = 1e-6
"""A few float32 roundings of logits below one."""


def moved(config=CONFIG):
    """A model whose changes are not zero."""
    model, draw = jax.jit(build, static_argnums=0)(config, jax.random.key(0)), np.random.default_rng(0).normal
    noise = lambda leaf: jnp.asarray(0.3 * draw(size=leaf.shape), leaf.dtype)
    return model.replace(norm_changes=jax.tree.map(noise, model.norm_changes))


@pytest.fixture(scope="module", params=["gpt", "llama"])
def model(request):
    return moved(dataclasses.replace(CONFIG, field=request.param))


def test_at_first_it_changes_nothing():
    model = jax.jit(build, static_argnums=0)(CONFIG, jax.random.key(0))
    plain = jax.jit(build, static_argnums=0)(dataclasses.replace(CONFIG, final_norm_halvings=None), jax.random.key(0))
    assert plain.norm_changes is None
    np.testing.assert_array_equal(logits(model, IDS, 3), logits(plain, IDS, 3))


@pytest.mark.parametrize("steps", [3, None, *slow(1, 2, 4)])
def test_it_is_interpolated_over_the_halvings_of_a_step(model, steps):
    at = np.log2(steps or 4)
    part = lambda leaf: np.stack([np.interp(at, range(3), one) for one in np.asarray(leaf, np.float64).T])
    scale = np.asarray(model.final_norm.scale) * (1 + part(model.norm_changes.scale))
    found = model.norm_at(steps)
    np.testing.assert_allclose(found.scale, scale, rtol=0, atol=1e-6)  # some float32 roundings of numbers near 1
    if model.norm_changes.shift is None:
        assert found.shift is None
    else:
        np.testing.assert_allclose(found.shift, part(model.norm_changes.shift), rtol=0, atol=1e-6)
    state = model.integrate(IDS, steps=steps).state
    expected = model.unembed(normalise(found, state, model.config.norm_epsilon))
    np.testing.assert_allclose(logits(model, IDS, steps), expected, rtol=0, atol=TWO_PROGRAMS)


def test_every_reading_at_a_depth_has_the_norm_of_that_depth(model):
    ids, states = np.asarray(IDS[0]), jax.jit(lambda model: model.hidden(IDS, steps=2))(model)
    populated = jax.jit(lambda model: model.populate(2))(model)
    assert populated.norm_changes is None and populated.config.final_norm_halvings is None
    np.testing.assert_allclose(populated.hidden(IDS), states, rtol=0, atol=TWO_PROGRAMS)
    early = jax.jit(lambda model: model.hidden(IDS, steps=EarlyExit(2, 0.0)))(model)  # no token ever stops
    np.testing.assert_allclose(early, states, rtol=0, atol=TWO_PROGRAMS)
    expected = jax.nn.log_softmax(logits(model, IDS, 2)[0])
    read = lens(walk(model, ids, steps=2), np.roll(ids, -1))
    np.testing.assert_allclose(read.log_next[-1, :-1], expected[np.arange(7), ids[1:]], rtol=0, atol=TWO_PROGRAMS)
    nats = -expected[np.arange(7), ids[1:]].sum()
    np.testing.assert_allclose(loss_sum(model, IDS, steps=2).nats, nats, rtol=1e-6)
    both = loss_of_depths(model, IDS, depths=(2, 4))
    np.testing.assert_allclose(2 * 7 * both, nats + loss_sum(model, IDS, steps=4).nats, rtol=1e-6)


def test_an_update_moves_the_norms_of_its_own_depth_alone_and_decays_none():
    depth = DepthConfig(sample=(1, 2))
    config = Config(model=CONFIG, depth=depth, trainer=TrainerConfig(updates=9, batch_size=4))
    state = initial_state(config)
    assert set(jax.tree.leaves(roles(state.model).norm_changes)) == {"norm"}
    state, _ = make_update(config)(state, np.arange(36).reshape(4, 9) % 11, 2)
    changed = np.abs(np.asarray(state.model.norm_changes.shift)).max(1) > 0
    assert changed.tolist() == [False, True, False]  # of one step, two, four


@pytest.mark.parametrize(
    ("model", "found"),
    [
        ({"weights": "layer"}, "model.final_norm_halvings is 2, but model.weights is 'layer': it is for models that"),
        ({"tolerance": {}}, "model.final_norm_halvings is 2, but model.tolerance is given"),
    ],
)
def test_models_of_one_depth_have_no_use_for_it(model, found):
    with pytest.raises(BadInput, match=found):
        validate(from_dict(Config, {"model": {"final_norm_halvings": 2} | model}))


def test_probes_and_heads_are_read_with_the_norm_of_the_steps_that_are_read(model):
    """At another depth than the trained one: as of the model that has no other norm than that of this depth."""
    own, texts = model.with_norm_of(2), np.stack([np.arange(8) % 11, np.arange(8)[::-1] % 11])
    found, wanted = (tuned_lens(one, texts, steps=2, updates=3) for one in (model, own))
    np.testing.assert_array_equal(found.maps, wanted.maps)
    assert abs(found.maps).max() > 0
    copying = lambda one: measure_induction(one, sequences=2, length=4, repeats=2, steps=2).behaviours["copying"]
    np.testing.assert_array_equal(copying(model), copying(own))


def test_early_exit_is_read_with_the_norm_of_its_steps(model):
    """What the explorer shows of it, against the model's own logits."""
    exits = EarlyExit(2, 1e-9)
    ids, p, _ = settled(model, np.arange(8) % 11, exits)
    wanted = jax.nn.softmax(model(IDS, steps=exits)[0], -1)
    np.testing.assert_array_equal(ids, wanted.argmax(-1))
    np.testing.assert_allclose(p, wanted.max(-1), atol=TWO_PROGRAMS)
