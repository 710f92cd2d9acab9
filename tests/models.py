"""Tiny models of every kind, shared by the tests."""

import dataclasses
import gc
from functools import lru_cache, partial

import equinox as eqx
import jax
import numpy as np
import pytest

from diffeqformer.config import (
    KnotsConfig,
    LayerConfig,
    LevelsConfig,
    LlamaConfig,
    ModelConfig,
    ReversibleConfig,
    TimeConfig,
)
from diffeqformer.model.build import abstract
from diffeqformer.model.transformer import Transformer
from diffeqformer.ode.early_exit import EarlyExit
from diffeqformer.ode.grid import END_OF_STEP
from diffeqformer.ode.solve import Solution
from diffeqformer.ode.weights import WeightSource

TINY = ModelConfig(
    width=16, heads=2, steps=3, context=12, vocabulary=40, weights=TimeConfig(d_emb=6, frequencies=5), init_std=0.2
)

ONE_MLP = dataclasses.replace(TINY.weights, kind="time-shared-mlp")

KINDS = {
    "diffeqformer": TINY,
    "time, lie-trotter": dataclasses.replace(TINY, scheme="lie-trotter"),
    "vanilla": dataclasses.replace(TINY, weights="layer", scheme="lie-trotter", horizon="steps"),
    "parallel blocks": dataclasses.replace(TINY, weights="layer", horizon="steps"),
    "shared": dataclasses.replace(TINY, weights="shared"),
    "vanilla llama, grouped queries": dataclasses.replace(
        TINY, field=LlamaConfig(kv_heads=2), weights="layer", scheme="lie-trotter", horizon="steps", heads=4
    ),
    "time, llama, nested norm": dataclasses.replace(TINY, field=LlamaConfig(nested_norm=True)),
    "one mlp, strang": dataclasses.replace(
        TINY, weights=dataclasses.replace(TINY.weights, kind="time-shared-mlp"), scheme="strang"
    ),
    "macaron": dataclasses.replace(TINY, weights=LayerConfig(rows="node"), scheme="macaron", horizon="steps"),
    "ode transformer": dataclasses.replace(TINY, weights="layer", scheme="rk4", horizon="steps"),
    "time, long first step": dataclasses.replace(TINY, scheme="euler-middle", first_step=0.6),
    "knots, normalised": dataclasses.replace(
        TINY, weights=KnotsConfig(2, basis="hat"), scheme="lie-trotter-middle", horizon=3.0, embedding_norm=True
    ),
    "levels": dataclasses.replace(TINY, weights=LevelsConfig((2, 4)), scheme="lie-trotter-middle"),
    "time, reversible": dataclasses.replace(TINY, scheme=ReversibleConfig("heun")),
}
COVERING = {
    "diffeqformer", "vanilla", "time, llama, nested norm", "macaron", "ode transformer", "knots, normalised",
    "levels", "time, reversible",
}  # fmt: skip
"""Each source of weights, field, way to step and rows at nodes once: for what knows nothing of their pairs."""
covering_kinds = pytest.mark.parametrize(
    "config",
    [pytest.param(KINDS[kind], id=kind, marks=() if kind in COVERING else pytest.mark.slow) for kind in KINDS],
)


@lru_cache
def model_of(config: ModelConfig, seed: int = 0) -> Transformer:
    """A model whose every parameter is random, so that none hides behind a zero or a one.

    Drawn with NumPy: compiling the random numbers of a whole model takes seconds. `jnp.asarray` compiles a copy of each
    shape, `device_put` nothing.
    """
    draw = np.random.default_rng(seed).normal

    def leaf(path: tuple, shape: jax.ShapeDtypeStruct) -> jax.Array:
        size = 0.3 if len(shape.shape) > 1 else 0.1
        middle = 1.0 if jax.tree_util.keystr(path).endswith(".scale") else 0.0
        return jax.device_put(np.asarray(middle + size * draw(size=shape.shape), shape.dtype))

    return jax.tree_util.tree_map_with_path(leaf, abstract(config))


def of_dtype(model: Transformer, dtype: type) -> Transformer:
    """The model in another precision, converted by NumPy: JAX would compile it for each shape."""
    return jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf, dtype)), model)


@partial(jax.jit, static_argnames="steps")
def logits(model: Transformer, ids: jax.Array, steps: int | None = None, key: jax.Array | None = None) -> jax.Array:
    """The model's output, compiled."""
    return model(ids, steps=steps, key=key)


@partial(jax.jit, static_argnames="steps")
def solved(model: Transformer, ids: jax.Array, steps: int | EarlyExit | None = None) -> Solution:
    """What the model integrates to, compiled: operation by operation takes five times as long, once for each shape."""
    return model.integrate(ids, steps=steps)


@partial(jax.jit, static_argnames="steps")
def states(model: Transformer, ids: jax.Array, steps: int | None = None) -> jax.Array:
    """The model's trajectory, compiled."""
    return model.trajectory(ids, steps=steps)


def tokens(batch: int = 2, positions: int = 12, seed: int = 7) -> jax.Array:
    """Random tokens of the tiny vocabulary."""
    return jax.random.randint(jax.random.key(seed), (batch, positions), 0, TINY.vocabulary or 0)


class Wrapped(eqx.Module):
    """A weight source of a user's own that is another one."""

    inner: WeightSource

    def at(self, times):
        return self.inner.at(times)

    def table(self, grid, nodes=END_OF_STEP):
        return self.inner.table(grid, nodes)


def programs() -> int:
    """How many compiled programs JAX holds."""
    gc.collect()
    return len(jax.devices()[0].client.live_executables())
