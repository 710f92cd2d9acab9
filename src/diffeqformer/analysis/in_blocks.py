"""The forward pass of a long text in memory linear in its tokens: one block of queries at a time."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, PyTree

from diffeqformer.nn.attention import KeyValueCache, Slot
from diffeqformer.nn.linear import as_bits
from diffeqformer.ode.field import BlockWeights, Field, Window

QUERIES = 128
"""Queries whose rows of attention are computed together."""


class InBlocks:
    """A field whose attention processes the queries of a long text in blocks, so that memory is linear in tokens."""

    def __init__(self, field: Field) -> None:
        self._field, self.shapes, self.feed_forward = field, field.shapes, field.feed_forward
        self.key_value_heads = field.key_value_heads

    def attention(self, weights: BlockWeights, x: Array, **others: Any) -> PyTree:
        """Evaluate `A(x)`."""
        if x.shape[1] <= QUERIES:
            return self._field.attention(weights, x, **others)
        # `others` are a dropout key and a cache, which analyses do not use.
        return attention_in_blocks(self._field, weights, x), None


def attention_in_blocks(
    field: Field, weights: BlockWeights, x: Float[Array, "1 position width"]
) -> Float[Array, "1 position width"]:
    """Evaluate `A(x)` as decoding does: block after block of queries against a cache of the keys and values so far."""
    positions = x.shape[1]
    blocks = -(-positions // QUERIES)
    padded = jnp.pad(x, [(0, 0), (0, blocks * QUERIES - positions), (0, 0)])  # at the end, where no token sees it
    kv_heads, head_width = field.key_value_heads
    # A cache holds the bits of 16-bit floats, see `KeyValueCache`.
    zeros = as_bits(jnp.zeros((1, kv_heads, padded.shape[1], head_width), weights.attention.output.weight.dtype))

    def block(cache: Slot, now: tuple[Array, Array]) -> tuple[Slot, Array]:
        start, x = now
        mask = jnp.arange(padded.shape[1])[None, :] <= start + jnp.arange(QUERIES)[:, None]
        y, filled = field.attention(weights, x[None], cache=cache, window=Window(start, mask))
        assert filled is not None
        return filled, y[0]

    starts = QUERIES * jnp.arange(blocks)
    _, found = jax.lax.scan(block, Slot(KeyValueCache(zeros, zeros), ()), (starts, padded.reshape(blocks, QUERIES, -1)))
    return found.reshape(1, -1, x.shape[2])[:, :positions]
