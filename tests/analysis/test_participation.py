"""What each step does, against the model's own trajectory and against weights whose change over depth is known."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffeqformer.analysis.participation import participation, variation_over_depth
from diffeqformer.analysis.tuned_lens import TunedLens, tuned_lens
from diffeqformer.errors import BadInput, RunFailed
from diffeqformer.model.loss import next_token_loss
from tests.models import KINDS, TINY, model_of, tokens
from tests.tolerances import STATES

TEXTS = np.asarray(tokens(3, 11))


@pytest.mark.parametrize("kind", ["vanilla", "time, long first step", "knots, normalised"])
def test_predictions_after_every_step_are_those_of_the_trajectory(kind):
    model = model_of(KINDS[kind])
    found = participation(model, TEXTS)
    states = model.trajectory(jnp.asarray(TEXTS[:, :-1]))
    log_p = np.asarray(jax.nn.log_softmax(model.unembed(model.normalise(states)), axis=-1), np.float64)
    at_target = np.take_along_axis(log_p, TEXTS[None, :, 1:, None], axis=-1)
    np.testing.assert_allclose(found.loss, -at_target.mean((1, 2, 3)), atol=STATES)
    kl = (np.exp(log_p[-1]) * (log_p[-1] - log_p)).sum(-1).mean((1, 2))
    np.testing.assert_allclose(found.kl, kl, atol=STATES)
    assert found.kl[-1] == 0 and (found.kl >= -STATES).all()
    np.testing.assert_allclose(found.loss[-1], next_token_loss(model, jnp.asarray(TEXTS)), atol=STATES)
    np.testing.assert_allclose(found.length, np.sqrt(np.square(states).mean((1, 2, 3))), rtol=STATES)
    np.testing.assert_array_equal(found.times, model.grid().edges)
    np.testing.assert_allclose(found.echo, (log_p.argmax(-1) == TEXTS[None, :, :-1]).mean((1, 2)))
    assert found.even == pytest.approx(np.log(TINY.vocabulary or 0))
    counted = np.arange(30).reshape(3, 10) % 4 == 1  # of a puzzle, whose answers alone are targets
    some, echoed = participation(model, TEXTS, counted), log_p.argmax(-1) == TEXTS[None, :, :-1]
    np.testing.assert_allclose(some.loss, -at_target[:, counted, 0].mean(-1), atol=STATES)
    kl = (np.exp(log_p[-1]) * (log_p[-1] - log_p)).sum(-1)[:, counted].mean(-1)
    np.testing.assert_allclose(some.kl, kl, atol=STATES)
    np.testing.assert_allclose(some.echo, echoed[:, counted].mean(-1))
    np.testing.assert_array_equal(some.length, found.length)


def test_what_has_no_numbers_is_told():
    model = model_of(KINDS["vanilla"])
    with pytest.raises(BadInput, match="none of 3 texts has a token that counts as a target"):
        participation(model, TEXTS, np.zeros((3, 10), bool))
    beyond = TEXTS.copy()
    beyond[-1, -1] = -1  # a target only
    with pytest.raises(BadInput, match="token id -1 does not exist"):
        participation(model, beyond)
    with pytest.raises(RunFailed, match="hidden states or losses of the model are not finite"):
        participation(eqx.tree_at(lambda m: m.embedding.tokens, model, model.embedding.tokens * np.nan), TEXTS)


def test_movements_of_lie_trotter_add_up_to_the_step():
    """Of one text, `dt A(x)` and `dt M(y)` by hand."""
    model, text = model_of(KINDS["vanilla"]), TEXTS[:1]
    found = participation(model, text)
    x = model.embed(jnp.asarray(text[:, :-1]))
    for step in range(3):
        row = jax.tree.map(lambda leaf, step=step: leaf[step], model.weights.layers)
        attention = model.field.attention(row, x)[0]
        feed_forward = model.field.feed_forward(row, x + attention)
        rms = [float(jnp.sqrt(jnp.square(part).mean())) for part in (attention, feed_forward)]
        np.testing.assert_allclose([found.attention[step], found.feed_forward[step]], rms, rtol=STATES)
        x = x + attention + feed_forward


def test_what_matrices_do_over_depth_counts_steps_by_their_length():
    """A step of 1/2 is as two of 1/4 with the same weights."""
    model = model_of(dataclasses.replace(TINY, weights="layer", steps=3))
    table = model.weights.table(model.grid(), model.scheme.nodes)
    whole, halved = (
        variation_over_depth(table, np.array([0.5, 0.25, 0.25])),
        variation_over_depth(jax.tree.map(lambda leaf: leaf[np.array([0, 0, 1, 2])], table), np.full(4, 0.25)),
    )
    for one, other, equal in zip(whole, halved, variation_over_depth(table, np.full(3, 1 / 3)), strict=True):
        np.testing.assert_allclose(list(one.values()), list(other.values()), rtol=1e-9)
        assert not np.allclose(list(one.values()), list(equal.values()), rtol=1e-3)


def test_constant_weights_have_no_energy_about_their_mean_and_rank_one():
    found = participation(model_of(KINDS["shared"]), TEXTS, steps=5)
    table = participation(model_of(KINDS["vanilla"]), TEXTS)
    for name in ("attention.output", "feed_forward.up"):
        assert found.energy[name] == pytest.approx(0, abs=1e-12) and found.rank[name] == pytest.approx(1, abs=1e-9)
        # Three independent rows of 256 numbers and more: their mean has a third of their energy, to 1 / sqrt(256).
        assert table.energy[name] == pytest.approx(2 / 3, abs=0.07) and table.rank[name] == pytest.approx(3, abs=0.1)


def test_a_model_whose_later_steps_do_nothing_is_found_out():
    model = model_of(KINDS["vanilla"])
    silent = jax.tree.map(lambda leaf: leaf.at[1:].set(0.0), model.weights.layers)
    found = participation(model.replace(weights=dataclasses.replace(model.weights, layers=silent)), TEXTS)
    assert found.settled == 1 and (found.attention[1:] == 0).all() and (found.feed_forward[1:] == 0).all()
    np.testing.assert_allclose(found.loss[1:], found.loss[-1], atol=1e-12)
    assert participation(model_of(dataclasses.replace(TINY, horizon=6.0)), TEXTS).settled == 3


def test_a_tuned_lens_lowers_the_divergence_on_text_it_has_not_seen():
    model = model_of(KINDS["vanilla"])
    plain = participation(model, TEXTS)
    identity = TunedLens(np.zeros((3, 16, 16), np.float32), np.zeros((3, 16), np.float32))
    np.testing.assert_allclose(identity.read(model, TEXTS), (plain.loss, plain.kl), atol=STATES)
    counted = np.arange(30).reshape(3, 10) % 4 == 1
    some = participation(model, TEXTS, counted)
    np.testing.assert_allclose(identity.read(model, TEXTS, counted), (some.loss, some.kl), atol=STATES)
    probes = tuned_lens(model, np.asarray(tokens(24, 11, seed=1)), updates=200)
    loss, kl = probes.read(model, TEXTS)
    assert (kl[:-1] < 0.8 * plain.kl[:-1]).all() and kl[-1] == 0 and loss[-1] == pytest.approx(plain.loss[-1])
