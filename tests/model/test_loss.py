import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffeqformer.config import ReversibleConfig
from diffeqformer.model.loss import loss_of_depths, loss_sum, next_token_loss
from tests.models import TINY, model_of, tokens
from tests.models import logits as compiled


def naive(model, ids, mask):
    logits = np.asarray(compiled(model, ids[:, :-1]), np.float64)
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    total = 0.0
    for row in range(ids.shape[0]):
        for position in range(ids.shape[1] - 1):
            if mask[row, position]:
                total -= log_p[row, position, int(ids[row, position + 1])]
    return total


@pytest.mark.parametrize("block", [1, 5, 24, 100])
def test_blocks_of_any_length_give_the_naive_sum(block):
    model, ids = model_of(TINY), tokens(positions=13)
    mask = jnp.arange(24).reshape(2, 12) % 3 != 0
    total, count, _ = jax.jit(loss_sum, static_argnames="block")(model, ids, mask, block=block)
    assert float(count) == int(mask.sum())
    np.testing.assert_allclose(total, naive(model, ids, np.asarray(mask)), rtol=1e-5)


def test_the_mean_and_its_gradient_do_not_depend_on_the_block():
    model, ids = model_of(TINY), tokens(positions=13)
    both = jax.jit(jax.value_and_grad(next_token_loss), static_argnames="block")
    whole, blocked = both(model, ids, block=1000), both(model, ids, block=7)
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(blocked), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_no_array_of_all_positions_by_the_vocabulary_is_made():
    model, ids = model_of(TINY), tokens(batch=4, positions=13)
    program = str(jax.make_jaxpr(jax.grad(lambda m: next_token_loss(m, ids, block=6)))(model))
    assert "f32[6,40]" in program
    assert "f32[48,40]" not in program


@pytest.mark.parametrize("block", [1000, 7])
def test_what_is_shallow_learns_from_what_is_deep(block):
    """The loss of three depths is the mean of a plain one and two whose target is, for a share, the deepest's word."""
    model, ids, share = model_of(TINY), tokens(positions=13), 0.3
    mask = jnp.arange(24).reshape(2, 12) % 3 != 0
    found = jax.jit(loss_of_depths, static_argnames=("depths", "distill", "block"))(
        model, ids, mask, depths=(5, 3, 2), distill=share, block=block
    )
    read = jax.jit(lambda model, n: model(ids[:, :-1], steps=n), static_argnums=1)
    logits = lambda n: np.asarray(read(model, n), np.float64)
    log_p = {n: logits(n) - np.log(np.exp(logits(n)).sum(-1, keepdims=True)) for n in (5, 3, 2)}
    target = np.eye(model.config.vocabulary)[np.asarray(ids[:, 1:])]
    expected = {5: target} | dict.fromkeys((3, 2), (1 - share) * target + share * np.exp(log_p[5]))
    total = sum(-(expected[n] * log_p[n]).sum(-1)[np.asarray(mask)].mean() for n in expected)
    np.testing.assert_allclose(found, total / 3, rtol=1e-5)


def test_no_gradient_flows_to_the_teacher():
    """With the whole of the loss distilled, at the minimum (both depths the same) no gradient but the plain one's."""
    model, ids = model_of(TINY), tokens(positions=13)
    taught = jax.jit(jax.grad(lambda model: loss_of_depths(model, ids, depths=(3, 3), distill=1.0)))(model)
    plain = jax.jit(jax.grad(lambda model: loss_of_depths(model, ids, depths=(3,)) / 2))(model)
    for a, b in zip(jax.tree.leaves(taught), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-6)


def test_where_no_target_counts_the_loss_and_its_gradient_are_zero():
    model, ids = model_of(TINY), tokens()
    mask = jnp.zeros((ids.shape[0], ids.shape[1] - 1), bool)
    loss, gradient = eqx.filter_jit(eqx.filter_value_and_grad(next_token_loss))(model, ids, mask)
    assert loss == 0 and not any(leaf.any() for leaf in jax.tree.leaves(gradient))


def test_each_depth_has_a_probe_of_its_own():
    """So that the errors of their reconstructed states do not add up."""
    model = model_of(dataclasses.replace(TINY, scheme=ReversibleConfig(coupling=0.9)))
    depths = (2, 4, 8)
    missed = jax.jit(
        jax.grad(lambda probe, depths: loss_of_depths(model.replace(probe=probe), tokens(), depths=depths)),
        static_argnums=1,
    )
    alone = [missed(jnp.zeros(()), (depth,)) for depth in depths]
    assert min(alone) > 0
    np.testing.assert_allclose(missed(jnp.zeros(3), depths), alone, rtol=0.5)
