"""One update: accumulation is the whole batch, dropout follows the step, the state passed in is reused."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from diffeqformer.config import (
    Config,
    DropoutConfig,
    ModelConfig,
    OptimizerConfig,
    TimeConfig,
    ToleranceConfig,
    TrainerConfig,
)
from diffeqformer.errors import BadInput
from diffeqformer.model.build import build
from diffeqformer.model.loss import next_token_loss
from diffeqformer.training.optimizer import learning_rate
from diffeqformer.training.update import all_finite, initial_state, make_update
from tests.models import logits
from tests.tolerances import GRADIENT, LOSS, SCHEDULE

IDS = np.asarray(jax.random.randint(jax.random.key(1), (4, 9), 0, 40), np.int32)


def config(accumulation: int = 1, dropout: float = 0.0, seed: int = 0) -> Config:
    model = ModelConfig(
        weights="shared", steps=2, width=16, heads=2, hidden=32, context=8, vocabulary=40,
        dropout=DropoutConfig(residual=dropout),
    )  # fmt: skip
    trainer = TrainerConfig(updates=50, batch_size=4, accumulation=accumulation, seed=seed)
    return Config(model=model, trainer=trainer, optimizer=OptimizerConfig(epsilon=1e-4))


compiled = functools.cache(make_update)


def run(config: Config, updates: int = 3):
    state, update = initial_state(config), compiled(config)
    measured = []
    for _ in range(updates):
        state, one = update(state, IDS)
        measured.append(jax.device_get(one))
    return state, measured


def test_accumulated_parts_equal_the_whole_batch():
    (whole, of_whole), (split, of_split) = run(config()), run(config(2))
    for a, b in zip(of_whole, of_split, strict=True):
        np.testing.assert_allclose(a.loss, b.loss, rtol=LOSS)
        np.testing.assert_allclose(a.gradient_norm, b.gradient_norm, rtol=GRADIENT)
    # Adam divides by the gradient's own size, or by epsilon, which is 1e-4 here: where gradients cancel (at the bias of
    # keys, say) only rounding is left, of about 30 u x 0.1 = 2e-7. Three updates at 1e-3 then differ by 6e-6 at most.
    for a, b in zip(jax.tree.leaves(whole.model), jax.tree.leaves(split.model), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def adaptive(accumulation: int, rtol: float) -> Config:
    model = ModelConfig(
        steps=2, width=16, heads=2, hidden=32, context=8, vocabulary=40, scheme="diffrax:Bosh3",
        weights=TimeConfig(d_emb=6, frequencies=4, highest_frequency=6.0), tolerance=ToleranceConfig(rtol, rtol),
    )  # fmt: skip
    return Config(model=model, trainer=TrainerConfig(updates=50, batch_size=4, accumulation=accumulation))


@pytest.mark.slow
def test_adaptive_steps_train_and_their_parts_equal_the_batch_within_the_tolerance():
    (_, whole), (_, split) = run(adaptive(1, 1e-4)), run(adaptive(2, 1e-4))
    np.testing.assert_allclose([m.gradient_norm for m in whole], [m.gradient_norm for m in split], rtol=1e-2)
    assert whole[-1].loss < whole[0].loss


def test_learns_a_batch_and_reports_the_schedule():
    state, measured = run(config(), 30)
    assert measured[-1].loss < measured[0].loss - 0.3
    assert int(state.step) == 30
    rate = learning_rate(config().optimizer, 50)
    np.testing.assert_allclose(
        [m.learning_rate for m in measured], [rate(np.float32(k)) for k in range(30)], rtol=SCHEDULE
    )


def test_dropout_depends_on_seed_and_step_and_nothing_else():
    dropped = config(2, dropout=0.5)
    losses = [[m.loss for m in run(dropped)[1]] for _ in range(2)]
    assert losses[0] == losses[1]
    # the same parameters and batch, at another step: another mask
    later = initial_state(dropped)._replace(step=jnp.int32(7))
    assert compiled(dropped)(later, IDS)[1].loss != losses[0][0]


def test_parts_of_a_batch_drop_differently():
    dropped = config(2, dropout=0.5)
    split = jax.random.split(jax.random.fold_in(jax.random.fold_in(jax.random.key(0), 1), 0))
    model = initial_state(dropped).model
    a, b = (next_token_loss(model, jnp.asarray(IDS[:2]), key=key) for key in split)
    _, both = compiled(dropped)(initial_state(dropped), np.concatenate([IDS[:2], IDS[:2]]))
    assert a != b
    np.testing.assert_allclose(both.loss, (a + b) / 2, rtol=LOSS)


def test_a_field_of_ones_own_is_given_keys_whatever_the_config_drops():
    drops = lambda field: dataclasses.replace(field, residual_dropout=0.5)
    for field_of, drawn in ((lambda field: field, False), (drops, True)):
        own = lambda m, key, field_of=field_of: build(m, key, field=field_of(m.field.build(m)))
        state = jax.eval_shape(lambda own=own: initial_state(config(), build=own))
        program = str(jax.make_jaxpr(lambda state: make_update(config())(state, IDS))(state))
        assert ("random_bits" in program) == drawn


def test_a_rule_of_ones_own_may_keep_pythons_numbers():
    counting = optax.GradientTransformation(lambda params: 0, lambda changes, count, params: (changes, count + 1))
    state = jax.eval_shape(lambda: initial_state(config(), rule=lambda settings, rate: counting))
    assert state.optimizer.dtype == jnp.int32


def test_a_schedule_of_ones_own_that_is_a_number_is_refused():
    with pytest.raises(BadInput, match=r"schedule of your own gives 0\.001, but must give a function"):
        make_update(config(), schedule=lambda settings, updates: 1e-3)


def test_seeds_differ():
    a, b = initial_state(config(seed=0)), initial_state(config(seed=1))
    assert not np.array_equal(a.model.embedding.tokens, b.model.embedding.tokens)


def test_memory_of_the_state_is_reused():
    state = initial_state(config())
    compiled(config())(state, IDS)
    assert state.model.embedding.tokens.is_deleted()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_single_number_that_is_not_finite_is_seen(value):
    state = initial_state(config())
    assert bool(all_finite(state))
    leaves, structure = jax.tree.flatten(state)
    place = max(i for i, leaf in enumerate(leaves) if leaf.ndim and jnp.issubdtype(leaf.dtype, jnp.floating))
    leaves[place] = leaves[place].at[(0,) * leaves[place].ndim].set(value)
    assert not bool(all_finite(jax.tree.unflatten(structure, leaves)))


MASK = np.random.default_rng(2).random((4, 8)) < [[0.9], [0.2], [0.5], [0.1]]
"""Of IDS; parts of the batch have different numbers of targets."""


def masked(accumulation: int):
    state, measured = compiled(config(accumulation))(initial_state(config(accumulation)), (IDS, MASK))
    return state.model, jax.device_get(measured)


def test_the_loss_is_the_mean_over_the_targets_that_count():
    scores = logits(initial_state(config()).model, jnp.asarray(IDS[:, :-1]))
    nats = -np.take_along_axis(np.asarray(jax.nn.log_softmax(scores)), IDS[:, 1:, None], -1)[..., 0]
    model, found = masked(1)
    np.testing.assert_allclose(found.loss, nats[MASK].mean(), rtol=LOSS)
    assert abs(found.loss - nats.mean()) > 1e-3
    everything, _ = compiled(config())(initial_state(config()), (IDS, np.ones_like(MASK)))
    plain, _ = compiled(config())(initial_state(config()), IDS)
    for a, b in zip(jax.tree.leaves(everything.model), jax.tree.leaves(plain.model), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)  # Adam's quotients, as above
    assert not np.allclose(model.embedding.tokens, plain.model.embedding.tokens, atol=1e-4)


def test_accumulated_parts_with_unequal_numbers_of_targets_equal_the_whole_batch():
    (whole, of_whole), (split, of_split) = masked(1), masked(2)
    np.testing.assert_allclose(of_whole.loss, of_split.loss, rtol=LOSS)
    np.testing.assert_allclose(of_whole.gradient_norm, of_split.gradient_norm, rtol=GRADIENT)
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(split), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)  # Adam's quotients, as above


def test_a_batch_without_targets_changes_nothing_but_the_decay():
    state, found = compiled(config())(initial_state(config()), (IDS, np.zeros_like(MASK)))
    assert found.loss == found.gradient_norm == 0 and bool(all_finite(state))
