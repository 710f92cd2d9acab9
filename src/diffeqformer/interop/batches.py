"""Scoring and continuing batches of texts of different lengths, compiled for few shapes."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int, Key

from diffeqformer.model.generate import choose
from diffeqformer.model.transformer import Transformer
from diffeqformer.nn.attention import KeyValueCache

AT_A_TIME = 16
"""Tokens generated between two checks for a stop string."""
SHORTEST = 16
"""Positions of the smallest compiled shape; the larger ones double it, up to the context."""


def padded(length: int, context: int) -> int:
    """Return the compiled length for a text: the next power of two, at most the context."""
    return min(context, max(SHORTEST, 1 << (length - 1).bit_length()))


@eqx.filter_jit
def token_scores(
    model: Transformer, inputs: Int[Array, "batch position"], targets: Int[Array, "batch position"]
) -> tuple[Float[Array, "batch position"], Bool[Array, "batch position"]]:
    """Compute `log p(targets[i] | inputs[..i])` in nats, and whether each target is the most likely token.

    Logits are held in memory for one row at a time.
    """

    def row(now: tuple[Array, Array]) -> tuple[Array, Array]:
        state, targets = now
        logits = model.unembed(state)
        at_target = jnp.take_along_axis(logits, targets[:, None], axis=-1)[:, 0]
        return at_target - jax.nn.logsumexp(logits, axis=-1), logits.argmax(-1) == targets

    return jax.lax.map(row, (model.hidden(inputs), targets))


class Writing(eqx.Module):
    """Generation state of every row; rows have different lengths."""

    logits: Float[Array, "batch vocabulary"]
    cache: KeyValueCache
    position: Int[Array, " batch"]
    key: Key[Array, " batch"]


@eqx.filter_jit
def read(
    model: Transformer,
    prompts: Int[Array, "batch position"],
    lengths: Int[Array, " batch"],
    keys: Key[Array, " batch"],
    room: int,
) -> Writing:
    """Read prompts padded on the right; padding in the cache is overwritten before any token can attend to it."""

    def row(now: tuple[Array, Array]) -> tuple[Array, KeyValueCache]:
        ids, length = now
        logits, cache = model.decode(ids[None], model.empty_cache(1, room), jnp.zeros((), jnp.int32))
        return logits[0, length - 1], cache

    logits, cache = jax.lax.map(row, (prompts, lengths))
    return Writing(logits, cache, lengths, keys)


@eqx.filter_jit
def write(
    model: Transformer, state: Writing, temperature: float, top_k: int | None, top_p: float | None
) -> tuple[Writing, Int[Array, "batch new"]]:
    """Continue every row by `AT_A_TIME` tokens."""

    def one(now: tuple, _: None) -> tuple[tuple, Array]:
        logits, cache, position, key = now
        key, own = jax.random.split(key)
        token = choose(logits[None], own, temperature, top_k, top_p)
        logits, cache = model.decode(token[:, None], cache, position)
        return (logits[0, -1], cache, position + 1, key), token[0]

    def row(*now: Any) -> tuple[tuple, Array]:
        return jax.lax.scan(one, now, length=AT_A_TIME)

    (logits, cache, position, key), drawn = jax.vmap(row)(state.logits, state.cache, state.position, state.key)
    return Writing(logits, cache, position, key), drawn
