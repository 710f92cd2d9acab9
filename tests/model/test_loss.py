import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffeqformer.config import LayerDropConfig, RecursiveConfig, ReversibleConfig
from diffeqformer.errors import BadInput
from diffeqformer.model.loss import loss_of_depths, loss_sum, next_token_loss
from diffeqformer.ode.schemes import LieTrotter, Residual
from tests.cases import slow
from tests.models import TINY, Wrapped, model_of, tokens
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


EXITS = LayerDropConfig(5, nested=True, order=(0, 1, 2, 3, 4))


@pytest.mark.parametrize(
    ("weights", "one_pass"),
    [
        ("shared", True),
        (LayerDropConfig(5, nested=True, order=(0, 1, 2, 3), landings=1), True),
        *slow((EXITS, True), (LayerDropConfig(5, nested=True, order=(0, 1), landings=3), True)),
        (LayerDropConfig(5, nested=True, landings=1), False),
        (dataclasses.replace(EXITS, order=(4, 2, 0, 1, 3)), False),
        (dataclasses.replace(EXITS, rank=2), False),
        (LayerDropConfig(5), False),
    ],
)
def test_early_exits_are_read_in_one_pass_as_if_in_one_for_each_depth(weights, one_pass):
    config = dataclasses.replace(
        TINY, weights=weights, scheme="residual", horizon="steps", steps=5, final_norm_halvings=2
    )
    model, ids, depths = model_of(config), tokens(positions=13), (5, 2, 4)
    assert model.early_exits == config.early_exits == one_pass
    loss = lambda model: loss_of_depths(model, ids, depths=depths, distill=0.3)
    trips = [equation.params["length"] for equation in jax.make_jaxpr(loss)(model).eqns
             if equation.primitive.name == "scan"]  # fmt: skip
    own = weights.landings if isinstance(weights, LayerDropConfig) else 0
    assert trips == ([5, 2, 4] if not one_pass else [5 - own, *(min(own, n) for n in depths)] if own else [5])
    if not one_pass:  # then they are what the other depths' tests read
        return
    both = jax.jit(jax.value_and_grad(loss))
    apart = jax.jit(jax.value_and_grad(lambda model: _one_by_one(model, ids, depths, 0.3)))
    for a, b in zip(jax.tree.leaves(both(model)), jax.tree.leaves(apart(model)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-6)


def _one_by_one(model, ids, depths, share):
    """The mean of the losses of separate readings, all but the first of which learn from it."""
    deepest = model(ids[:, :-1], steps=depths[0])
    target, told = jax.nn.one_hot(ids[:, 1:], deepest.shape[-1]), jax.lax.stop_gradient(jax.nn.softmax(deepest))
    total = -(target * jax.nn.log_softmax(deepest)).sum(-1).mean()
    for steps in depths[1:]:
        log_p = jax.nn.log_softmax(model(ids[:, :-1], steps=steps))
        total -= (((1 - share) * target + share * told) * log_p).sum(-1).mean()
    return total / len(depths)


def test_a_scheme_or_weights_of_ones_own_in_a_models_place_are_read_one_by_one():
    model = model_of(dataclasses.replace(TINY, weights=EXITS, scheme="residual", horizon="steps", steps=5))
    assert model.early_exits
    assert not model.replace(scheme=LieTrotter()).early_exits and not model.populate().early_exits
    assert not model.replace(weights=Wrapped(model.weights)).early_exits

    class LongerSteps(Residual):
        def advance(self, field, x, dt):
            return LieTrotter.advance(self, field, x, dt)

    assert not model.replace(scheme=LongerSteps()).early_exits
    kept = dataclasses.replace(model.config, gradient=RecursiveConfig(2))
    assert not kept.early_exits and not model.replace(config=kept).early_exits  # states of all depths are not kept


def test_where_no_target_counts_the_loss_and_its_gradient_are_zero():
    model, ids = model_of(TINY), tokens()
    mask = jnp.zeros((ids.shape[0], ids.shape[1] - 1), bool)
    loss, gradient = eqx.filter_jit(eqx.filter_value_and_grad(next_token_loss))(model, ids, mask)
    assert loss == 0 and not any(leaf.any() for leaf in jax.tree.leaves(gradient))


def test_a_loss_of_no_depth_is_refused():
    with pytest.raises(BadInput, match="depths is empty, but must have at least one number of steps"):
        loss_of_depths(model_of(TINY), tokens(positions=13), depths=())


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
