"""Tiny models of every kind, shared by the tests."""

import dataclasses
from functools import lru_cache, partial

import jax

from diffeqformer.config import ModelConfig, TimeConfig
from diffeqformer.model.build import build
from diffeqformer.model.transformer import Transformer

TINY = ModelConfig(
    width=16, heads=2, steps=3, context=12, vocabulary=40, time=TimeConfig(d_emb=6, frequencies=5), init_std=0.2
)

KINDS = {
    "diffeqformer": TINY,
    "time, lie-trotter": dataclasses.replace(TINY, scheme="lie-trotter"),
    "vanilla": dataclasses.replace(TINY, weights="layer", scheme="lie-trotter", horizon="steps"),
    "parallel blocks": dataclasses.replace(TINY, weights="layer", horizon="steps"),
    "shared": dataclasses.replace(TINY, weights="shared"),
}


@lru_cache
def model_of(config: ModelConfig, seed: int = 0) -> Transformer:
    """A model whose every parameter is random, so that none hides behind a zero or a one."""

    @jax.jit
    def noisy() -> Transformer:
        leaves, structure = jax.tree.flatten(build(config, jax.random.key(seed)))
        keys = jax.random.split(jax.random.key(seed + 1), len(leaves))
        shaken = [leaf + 0.05 * jax.random.normal(key, leaf.shape) for leaf, key in zip(leaves, keys, strict=True)]
        return jax.tree.unflatten(structure, shaken)

    return noisy()


@partial(jax.jit, static_argnames="steps")
def logits(model: Transformer, ids: jax.Array, steps: int | None = None, key: jax.Array | None = None) -> jax.Array:
    """The model's output, compiled."""
    return model(ids, steps=steps, key=key)


def tokens(batch: int = 2, positions: int = 12, seed: int = 7) -> jax.Array:
    """Random tokens of the tiny vocabulary."""
    return jax.random.randint(jax.random.key(seed), (batch, positions), 0, TINY.vocabulary or 0)
