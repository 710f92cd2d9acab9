import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from diffeqformer.config import EMAConfig, LastConfig, OptimizerConfig, TrapezoidalConfig
from diffeqformer.model.build import abstract
from diffeqformer.training.optimizer import learning_rate, optimizer, roles, skip_spikes, split_trained
from tests.models import KINDS, ONE_MLP, TINY, Wrapped, model_of
from tests.tolerances import SCHEDULE

CONFIG = OptimizerConfig(learning_rate=1e-2, warmup_fraction=0.1, final_fraction=0.1, b2=0.9, weight_decay=0.5)


def test_the_schedule_warms_up_then_falls_as_a_cosine():
    schedule = learning_rate(CONFIG, 100)
    assert float(schedule(0)) == pytest.approx(1e-3, rel=SCHEDULE)
    assert float(schedule(10)) == pytest.approx(1e-2, rel=SCHEDULE)
    assert float(schedule(55)) == pytest.approx(0.55e-2, rel=SCHEDULE)
    assert float(schedule(100)) == pytest.approx(1e-3, rel=SCHEDULE)


@pytest.mark.parametrize("updates", [1, 2, 5])
def test_the_schedule_of_the_shortest_runs_is_positive_and_finite(updates):
    values = [float(learning_rate(OptimizerConfig(), updates)(k)) for k in range(updates)]
    assert all(0 < value <= 1e-3 * 1.0001 for value in values)


def test_an_update_is_adamw_by_hand_with_decay_by_role():
    model = model_of(KINDS["vanilla"])
    gradients = jax.tree.map(lambda x: 0.01 * np.sin(np.arange(x.size, dtype=np.float32)).reshape(x.shape), model)
    rule = optimizer(CONFIG, learning_rate(CONFIG, 100))
    with jax.numpy_dtype_promotion("standard"):
        changes, _ = jax.jit(rule.update)(gradients, jax.jit(rule.init)(model), model)
    norm = np.sqrt(sum(float(np.square(g).sum()) for g in jax.tree.leaves(gradients)))
    scale = min(1.0, CONFIG.clip_norm / norm)
    decayed = {"embedding": True, "matrix": True, "bias": False, "norm": False}
    trees = (changes, gradients, model, roles(model))
    for change, gradient, parameter, role in zip(*map(jax.tree.leaves, trees), strict=True):
        clipped = scale * np.asarray(gradient, np.float64)
        step = clipped / (np.abs(clipped) + CONFIG.epsilon) + CONFIG.weight_decay * decayed[role] * np.asarray(
            parameter
        )
        # 1 - b2 and the norm of the gradient are good to 1e-6, and so is a step, of size 1, in which terms may cancel
        np.testing.assert_allclose(change, -1e-3 * step, rtol=1e-5, atol=1e-8)


def test_all_of_a_time_dependent_weight_has_the_role_time():
    model = model_of(TINY)
    assert set(jax.tree.leaves(roles(model.weights))) == {"time"}
    assert set(jax.tree.leaves(roles(model_of(dataclasses.replace(TINY, weights=ONE_MLP)).weights))) == {"time"}
    assert set(jax.tree.leaves(roles(model.embedding))) == {"embedding"}
    assert set(jax.tree.leaves(roles(model.final_norm))) == {"norm"}
    names = set(jax.tree.leaves(roles(model_of(dataclasses.replace(TINY, weights="shared")).weights)))
    assert names == {"matrix", "bias", "norm"}


def test_an_untied_head_has_the_role_of_an_embedding():
    assert roles(model_of(KINDS["vanilla llama, grouped queries"])).head == "embedding"


def test_arrays_of_an_own_weight_source_are_matrices():
    class Model(NamedTuple):
        embedding: jax.Array
        weights: dict

    found = roles(Model(jnp.zeros(2), {"mine": jnp.zeros((2, 3))}))
    assert found == Model("embedding", {"mine": "matrix"})


@pytest.mark.parametrize(
    ("shape", "at"),
    [
        ("linear", {10: 1.0, 55: 0.55, 100: 0.1}),
        ("constant", {10: 1.0, 55: 1.0, 100: 1.0}),
        (TrapezoidalConfig(decay_fraction=0.4), {10: 1.0, 60: 1.0, 80: 0.55, 100: 0.1}),
    ],
)
def test_other_schedules_warm_up_too_and_are_what_they_are_called(shape, at):
    schedule = learning_rate(dataclasses.replace(CONFIG, schedule=shape), 100)
    for update, part in {0: 0.1, 5: 0.55, **at}.items():
        assert float(schedule(update)) == pytest.approx(part * 1e-2, rel=SCHEDULE)
    shortest = learning_rate(dataclasses.replace(CONFIG, schedule=shape), 1)
    assert float(shortest(0)) == pytest.approx(1e-2, rel=SCHEDULE)


def changes_of(config, model, count=1):
    """The last of some changes by a gradient that stays, and the state after it."""
    gradients = jax.tree.map(lambda x: np.sin(np.arange(1.0, x.size + 1, dtype=np.float32)).reshape(x.shape), model)
    rule = optimizer(config, lambda count: 1e-2)
    state = rule.init(model)
    with jax.numpy_dtype_promotion("standard"):
        for _ in range(count):
            changes, state = rule.update(gradients, state, model)
    return changes, state


def test_of_weights_of_ones_own_whole_numbers_are_frozen_and_muon_moves_matrices_alone():
    class Numbered(Wrapped):
        order: jax.Array
        weight: jax.Array

    shapes = abstract(dataclasses.replace(TINY, weights="shared"))
    shape = lambda dtype: jax.ShapeDtypeStruct((3,), dtype)
    model = shapes.replace(weights=Numbered(shapes.weights, shape(jnp.int32), shape(jnp.float32)))
    config = OptimizerConfig(rule="muon", embedding_rate=1.0)
    trained, frozen = split_trained(model, config)
    assert trained.weights.order is None and jax.tree.leaves(frozen) == [model.weights.order]
    rule = optimizer(config, lambda step: 1.0)
    with jax.numpy_dtype_promotion("standard"):
        changes, _ = jax.eval_shape(lambda trained: rule.update(trained, rule.init(trained), trained), trained)
    assert changes.weights.weight.shape == (3,)


@pytest.mark.parametrize("name", ["muon", "adafactor", "lion"])
def test_a_rule_moves_the_parameters_of_its_roles_and_adamw_the_others(name):
    model = model_of(KINDS["vanilla"])
    plain = dataclasses.replace(CONFIG, rule_roles=("matrix",))
    usual, _ = changes_of(plain, model)
    changes, _ = changes_of(dataclasses.replace(plain, rule=name), model)
    for change, adamw, role in zip(*map(jax.tree.leaves, (changes, usual, roles(model))), strict=True):
        assert np.array_equal(change, adamw) == (role != "matrix")


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_embeddings_and_an_untied_head_alone_move_at_a_rate_of_their_own(name):
    model = model_of(dataclasses.replace(KINDS["vanilla"], tied=False))
    plain = dataclasses.replace(CONFIG, rule=name)
    usual, _ = changes_of(plain, model)
    changes, _ = changes_of(dataclasses.replace(plain, embedding_rate=4.0), model)
    for change, one, role in zip(*map(jax.tree.leaves, (changes, usual, roles(model))), strict=True):
        np.testing.assert_array_equal(change, 4 * one if role == "embedding" else one)  # a power of two: no rounding
    assert changes.head is not None and np.any(changes.head != usual.head)


def test_muon_makes_orthogonal_steps_of_adamws_size_of_each_layers_matrix_and_of_each_slice_of_p():
    config = OptimizerConfig(rule="muon", weight_decay=0.0, clip_norm=1e9)
    layers, _ = changes_of(config, model_of(KINDS["vanilla"]))
    weight = np.asarray(layers.weights.layers.feed_forward.up.weight)  # (layer, inputs, outputs)
    time, _ = changes_of(config, model_of(TINY))
    projection = np.moveaxis(time.weights.networks.feed_forward.up.projection, -1, 0)  # one slice for each part of h(t)
    for matrices in (weight, projection):
        assert matrices.shape[1:] == (16, 64)
        sizes = np.linalg.svd(matrices, compute_uv=False)
        lengths = 1e-2 * 0.2 * 64**0.5
        # Newton and Schulz's five steps with Jordan's coefficients end between 0.68 and 1.13, if a value began above 0.
        assert sizes.max() < 1.2 * lengths and np.median(sizes[:, 0]) > 0.6 * lengths
        assert np.sqrt(np.square(matrices).mean()) < 0.25 * 1e-2


def test_lion_is_the_sign_of_the_momentum_and_decays_by_role():
    model = model_of(KINDS["vanilla"])
    every = ("embedding", "matrix", "bias", "norm")
    changes, _ = changes_of(dataclasses.replace(CONFIG, rule="lion", rule_roles=every), model)
    sign = np.sign(np.sin(np.arange(1, 17)))
    np.testing.assert_allclose(changes.final_norm.scale, -1e-2 * sign, rtol=1e-6)
    tokens = np.asarray(model.embedding.tokens)
    sign = np.sign(np.sin(np.arange(1, tokens.size + 1))).reshape(tokens.shape)
    np.testing.assert_allclose(changes.embedding.tokens, -1e-2 * (sign + 0.5 * tokens), rtol=1e-5)


def test_an_unusually_long_gradient_changes_nothing_and_the_guard_follows_if_it_stays():
    model = {"w": jnp.ones(3)}
    rule = skip_spikes(optax.sgd(1.0), 4.0)
    state, skipped = rule.init(model), []
    for update in range(60):
        size = 1.0 if update < 30 else 10.0
        changes, state = rule.update({"w": jnp.array([size, 0.0, 0.0])}, state, model)
        skipped.append(bool(state.skipped))
        assert float(-changes["w"][0]) == (0.0 if skipped[-1] else size)
    assert not any(skipped[:30]) and skipped[30] and not skipped[59]
    assert state.usual < 10.0


def test_after_updates_without_a_gradient_the_first_one_is_no_spike():
    rule = skip_spikes(optax.sgd(1.0), 4.0)
    state = rule.init({"w": jnp.ones(3)})
    for size in [0.0] * 20 + [1.0]:
        _, state = rule.update({"w": jnp.array([size, 0.0, 0.0])}, state)
    assert not state.skipped and state.usual > 0


@pytest.mark.parametrize(("average", "of"), [(LastConfig(3), [7, 8, 9]), (EMAConfig(0.99), range(10))])
def test_averages_are_means_of_what_they_cover(average, of):
    share, found = average.build(10), 0.0
    for update in range(10):
        found += float(share(jnp.int32(update))) * (update - found)
    assert found == pytest.approx(np.mean(of), rel=1e-6)


def test_a_long_moving_average_forgets():
    assert float(EMAConfig(0.9).build(1000)(jnp.int32(500))) == pytest.approx(0.1, rel=1e-6)
