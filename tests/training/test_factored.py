"""The gradient of P as factors: the same updates as with the whole gradient, in memory without it."""

import dataclasses

import jax
import numpy as np
import optax
import pytest

from diffeqformer.config import (
    Config,
    DepthConfig,
    EMAConfig,
    LayerConfig,
    ModelConfig,
    OptimizerConfig,
    ReversibleConfig,
    TimeConfig,
    ToleranceConfig,
    TrainerConfig,
)
from diffeqformer.ode.weights import TimeWeights
from diffeqformer.training import factored, update
from diffeqformer.training.update import initial_state, make_update
from tests.cases import slow
from tests.models import TINY, model_of
from tests.tolerances import GRADIENT, LOSS, SCHEDULE, roundoff

IDS = np.random.default_rng(1).integers(0, 40, (4, 9)).astype(np.int32)
MODEL = ModelConfig(
    width=16, heads=2, hidden=32, steps=3, context=8, vocabulary=40, weights=TimeConfig(d_emb=256, frequencies=4)
)
EVERY = ("embedding", "matrix", "bias", "norm", "time")
DECAYED = OptimizerConfig(epsilon=1e-4, clip_norm=0.5, decay_roles=EVERY, average=EMAConfig(0.9))
GUARDED = OptimizerConfig(epsilon=1e-4, spike=3.0)
ONE_MLP = dataclasses.replace(
    MODEL, scheme=ReversibleConfig("heun"), weights=TimeConfig(256, 4, kind="time-shared-mlp"), compute_dtype="bfloat16"
)


def formed_by_hand(gradient: factored.Factored) -> np.ndarray:
    return np.einsum("lio,ld->iod", *(np.asarray(part, np.float64) for part in (gradient.left, gradient.right)))


def test_factors_are_the_gradient_and_gram_matrices_its_norm():
    model, populate = model_of(TINY), lambda model: model.populate()

    @jax.jit
    def both(cotangents):
        populated, plain = jax.vjp(populate, model)
        cotangents = jax.tree.map(lambda x, y: x * y, populated, cotangents)
        found = factored.vjp(populate, model, None)[1](cotangents)[0]
        return plain(cotangents)[0], found, factored.formed(found), factored.norm(found)

    plain, found, formed, norm = both(model_of(TINY, 1).populate())
    kept = found.weights.networks.feed_forward.up.projection
    assert kept.left.shape == (3, 16, 64) and kept.right.shape == (3, 6)
    np.testing.assert_allclose(formed.weights.networks.feed_forward.up.projection, formed_by_hand(kept), rtol=1e-4)
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(formed), strict=True):
        np.testing.assert_allclose(a, b, atol=roundoff(np.float32, 3, np.abs(a).max()))
    np.testing.assert_allclose(norm, optax.tree.norm(plain), rtol=GRADIENT)
    assert factored.norm({"w": np.ones(4, np.float32)}) == 2.0


def trained(config: Config, updates: int, monkeypatch: pytest.MonkeyPatch, whole: bool) -> tuple:
    """What updates measured, the last state, and the bytes of the compiled update's temporaries."""
    update._program.cache_clear()
    if whole:
        monkeypatch.setattr(factored, "stays_factored", lambda *of: False)
    state, step, measured = initial_state(config), make_update(config), []
    with jax.numpy_dtype_promotion("standard"):  # the derivative of JAX's own attention in bfloat16 needs it
        compiled = jax.jit(step, donate_argnums=0).lower(state, IDS).compile()
    for _ in range(updates):
        state, one = compiled(state, IDS)
        measured.append(jax.device_get(one))
    plan = compiled.memory_analysis()
    assert plan is not None
    return measured, state, plan.temp_size_in_bytes


@pytest.mark.parametrize(
    ("config", "updates"),
    [
        (Config(model=MODEL, optimizer=DECAYED, trainer=TrainerConfig(updates=50, batch_size=4, accumulation=2)), 50),
        # Where one rounding flips a bfloat16 the next loss is another, so the first update alone is compared.
        *slow((Config(model=ONE_MLP, optimizer=GUARDED, trainer=TrainerConfig(batch_size=4)), 1)),
    ],
    ids=["parts of a batch, decay, average", "bfloat16, reversible, one MLP, guard"],
)  # fmt: skip
def test_updates_are_those_of_the_whole_gradient_which_is_not_in_memory(config, updates, monkeypatch):
    found, last, memory = trained(config, updates, monkeypatch, whole=False)
    plain, expected, more = trained(config, updates, monkeypatch, whole=True)
    for name, rtol in [("loss", LOSS), ("gradient_norm", GRADIENT), ("learning_rate", SCHEDULE), ("skipped", 0)]:
        if getattr(plain[0], name) is not None:
            values = ([getattr(one, name) for one in run] for run in (found, plain))
            np.testing.assert_allclose(*values, rtol=rtol, err_msg=name)
    # A gradient of which only rounding is left, 1e-7, is over epsilon 1e-3 of a step; fifty of these add up to 5e-5 at
    # worst, where parameters have moved by 0.05.
    for a, b in zip(jax.tree.leaves(last), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=5e-5)
    of_p = sum(leaf.nbytes for leaf in jax.tree.leaves(last.model.weights) if leaf.ndim == 3)
    assert more - memory > 0.6 * of_p  # here nearly all of it; guards keep more than they need, whatever the gradient


def test_where_the_plain_way_is_taken():
    of = lambda **changes: dataclasses.replace(config, **changes)
    config, model = Config(model=TINY), model_of(TINY)
    assert factored.stays_factored(config, model) and not factored.stays_factored(config, model, 4)
    for rule, stays in [("lion", True), ("muon", False), ("adafactor", False)]:
        own = dataclasses.replace(config.optimizer, rule=rule)
        assert factored.stays_factored(of(optimizer=own), model) == stays
    matrices = OptimizerConfig(rule="muon", rule_roles=("matrix",))
    assert factored.stays_factored(of(optimizer=matrices), model)
    frozen = OptimizerConfig(train_roles=("embedding",))
    for changes in (
        {"optimizer": frozen},
        {"depth": DepthConfig(jitter=0.5)},
        {"depth": DepthConfig(sample=(2, 3), always=(3,))},
        {"model": dataclasses.replace(TINY, tolerance=ToleranceConfig())},
    ):
        assert not factored.stays_factored(of(**changes), model)
    assert not factored.stays_factored(config, model_of(dataclasses.replace(TINY, weights=LayerConfig())))

    class Own(TimeWeights):
        """A user's subclass, whose weights may be another function of P."""

    assert not factored.stays_factored(config, model.replace(weights=Own(**vars(model.weights))))
