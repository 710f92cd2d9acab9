import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffeqformer.config import OptimizerConfig
from diffeqformer.training.optimizer import learning_rate, optimizer, roles
from tests.models import KINDS, TINY, model_of
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
    gradients = jax.tree.map(lambda x: 0.01 * jnp.sin(jnp.arange(x.size, dtype=jnp.float32)).reshape(x.shape), model)
    rule = optimizer(CONFIG, 100)
    with jax.numpy_dtype_promotion("standard"):
        changes, _ = rule.update(gradients, rule.init(model), model)
    norm = np.sqrt(sum(float(jnp.square(g).sum()) for g in jax.tree.leaves(gradients)))
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
