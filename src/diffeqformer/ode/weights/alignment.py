"""Alignment of neighbouring layers: the same layers, rewritten so that interpolating between two of them is meaningful.

A layer computes the same if its hidden units are permuted, its heads are permuted, and the axes within a head are
rotated: those of value and output, and, where no rotary embedding or norm tells them apart, those of query and key. Of
all these equivalent forms, each layer takes the one nearest to the layer before. Sources: Singh & Jaggi 2020,
arXiv:1910.05653; Ainsworth et al. 2022, arXiv:2209.04836 (for two networks; here for the layers of one).
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy.optimize import linear_sum_assignment

from diffeqformer.nn.attention import AttentionWeights
from diffeqformer.nn.feed_forward import FeedForwardWeights
from diffeqformer.nn.linear import Linear
from diffeqformer.ode.field import Block, BlockWeights, TransformerField
from diffeqformer.ode.weights.lifting import joined, parted
from diffeqformer.ode.weights.source import number_of_rows


def align(rows: BlockWeights, field: TransformerField) -> BlockWeights:
    """Align each row of a table to the one before; every layer still computes the same, up to rounding.

    **Arguments:** `rows`, on one leading axis; `field`, whose weights they are.
    """
    done = [jax.tree.map(lambda leaf: leaf[0], rows)]
    for layer in range(1, number_of_rows(rows)):
        own, last = jax.tree.map(lambda leaf, layer=layer: leaf[layer], rows), done[-1]
        done.append(Block(_heads(own.attention, last.attention, field), _units(own.feed_forward, last.feed_forward)))
    return jax.tree.map(lambda *each: jnp.stack(each), *done)


def _units(own: FeedForwardWeights, last: FeedForwardWeights) -> FeedForwardWeights:
    """Reorder hidden units so that their weights, in and out, have the largest cosines with those of `last`."""

    def features(half: FeedForwardWeights) -> np.ndarray:
        parts = [_joined(one) for one in (half.up, half.gate) if one is not None]
        rows = np.concatenate([*parts, np.asarray(half.down.weight).T]).T
        return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.finfo(float).tiny)

    # The function minimises a cost; order[i] is this layer's unit that takes the place of the last layer's unit i.
    _, order = linear_sum_assignment(-features(last) @ features(own).T)
    taken = lambda one: None if one is None else _split(_joined(one)[:, order], one)
    down = Linear(own.down.weight[order], own.down.bias)
    return replace(own, up=taken(own.up), gate=taken(own.gate), down=down)


def _heads(own: AttentionWeights, last: AttentionWeights, field: TransformerField) -> AttentionWeights:
    """Reorder heads so that their circuits QK and OV have the largest cosines with those of `last`, then rotate within.

    Heads that share keys and values stay together, in their order.
    """
    heads, groups, width = field.heads, field.kv_heads, field.head_width

    def parts(half: AttentionWeights) -> list[np.ndarray]:
        table = _joined(half.query_key_value)
        query, key, value = np.split(table.reshape(len(table), -1, width), [heads, heads + groups], axis=1)
        query = query.reshape(len(table), groups, -1, width).transpose(1, 2, 0, 3)  # group, head, input, axis
        output = np.asarray(half.output.weight, np.float64).reshape(groups, heads // groups, width, -1)
        return [query, key.swapaxes(0, 1), value.swapaxes(0, 1), output]

    def circuits(one: list[np.ndarray], other: list[np.ndarray]) -> np.ndarray:
        """Inner products of QK and of OV for all pairs of groups: `<q k^T, q' k'^T> = sum (q^T q') * (k^T k')`."""
        query = np.einsum("ihad,jhae->ijde", one[0], other[0], optimize=True)
        key, value = (np.einsum("iad,jae->ijde", one[n], other[n], optimize=True) for n in (1, 2))
        output = np.einsum("ihda,jhea->ijde", one[3], other[3], optimize=True)
        return np.stack([(query * key).sum((2, 3)), (value * output).sum((2, 3))])

    def lengths(one: list[np.ndarray]) -> np.ndarray:
        return np.sqrt(np.maximum(np.diagonal(circuits(one, one), axis1=1, axis2=2), np.finfo(float).tiny))

    there, here = parts(last), parts(own)
    # Cosines of circuits, since rotations within a head change Q, K, V and O, but neither QK nor OV.
    cosines = circuits(there, here) / (lengths(there)[:, :, None] * lengths(here)[:, None])
    _, order = linear_sum_assignment(-cosines.sum(0))
    query, key, value, output = (one[order] for one in here)
    if not (field.rotary_width or field.head_norms):
        turn = _nearest_rotation(np.einsum("ihad,ihae->ide", query, there[0]) + key.swapaxes(1, 2) @ there[1])
        # R is orthogonal: (q R)(k R)^T = q k^T, and below (v R)(R^T O) = v O.
        query, key = query @ turn[:, None], key @ turn
    turn = _nearest_rotation(value.swapaxes(1, 2) @ there[2] + np.einsum("ihda,ihea->ide", output, there[3]))
    value, output = value @ turn, turn.swapaxes(1, 2)[:, None] @ output
    inputs = query.shape[2]
    table = [query.transpose(2, 0, 1, 3), key.swapaxes(0, 1), value.swapaxes(0, 1)]
    return replace(
        own,
        query_key_value=_split(np.concatenate([one.reshape(inputs, -1) for one in table], 1), own.query_key_value),
        output=Linear(jnp.asarray(output.reshape(own.output.weight.shape), own.output.weight.dtype), own.output.bias),
    )


def _nearest_rotation(matrix: Float[np.ndarray, "*batch n n"]) -> Float[np.ndarray, "*batch n n"]:
    """Return the orthogonal R that maximises `tr R^T M` (Schönemann 1966)."""
    u, _, v = np.linalg.svd(matrix)
    return u @ v


def _joined(linear: Linear) -> np.ndarray:
    return np.asarray(joined(linear), np.float64)


def _split(table: np.ndarray, like: Linear) -> Linear:
    return parted(jnp.asarray(table, like.weight.dtype), like)
