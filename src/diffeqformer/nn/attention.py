"""Causal multi-head self-attention, with dropout and with a key-value cache."""

from collections.abc import Iterable
from functools import partial
from itertools import pairwise
from typing import Any, Generic, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Bool, Float, Int, Key, Shaped

from diffeqformer.nn.dropout import dropout
from diffeqformer.nn.linear import as_bits, wide

L = TypeVar("L")
N = TypeVar("N")
AnyArray = Array | jax.ShapeDtypeStruct

BLOCKS = 4
"""Maximum number of query blocks in causal attention: 4 blocks skip 3/8 of the scores; the limit is 1/2."""
LEAST_BLOCK = 64
"""Minimum number of queries per block."""
AMPERE = 8.0
"""Minimum compute capability for cuDNN's flash attention."""
NARROW = (jnp.bfloat16, jnp.float16)
"""Dtypes in which cuDNN's flash attention computes."""


class AttentionWeights(eqx.Module, Generic[L, N]):
    """Weights of one attention block; `L` and `N` are the types that represent a linear map and a norm.

    Query, key and value are side by side in one matrix, as in GPT-2, so that they take one product and one time
    network. With grouped queries (Ainslie et al. 2023, arXiv:2305.13245), key and value have fewer heads than the
    query, and fewer columns.
    """

    norm: N
    query_key_value: L
    output: L
    query_norm: N | None = None
    """Norm of each head's query; `key_norm` is the norm of each head's key (Qwen 3)."""
    key_norm: N | None = None


class KeyValueCache(eqx.Module):
    """Keys and values of all positions so far; positions not reached yet hold zeros and are masked.

    Heads come before positions, the layout of the products: otherwise each new token would transpose the whole cache.
    Floats of 16 bits are kept as bits (`as_bits`).
    """

    keys: Shaped[Array, "*slots batch kv_heads position head_width"]
    values: Shaped[Array, "*slots batch kv_heads position head_width"]


class Slot(eqx.Module):
    """The part of a cache that belongs to one attention evaluation.

    It is written before it is read, and inside the whole cache, so that a loop over steps that carries the cache
    updates it in place.
    """

    cache: KeyValueCache
    at: tuple[Any, ...]
    """Index of the slot on the cache's leading axes."""

    def put(
        self,
        keys: Float[Array, "batch position kv_heads head_width"],
        values: Float[Array, "batch position kv_heads head_width"],
        start: Int[Array, ""],
    ) -> "Slot":
        """Return the slot with new keys and values written from position `start` on."""

        def written(whole: Array, new: Array) -> Array:
            new = jnp.expand_dims(jnp.swapaxes(new, 1, 2), tuple(range(len(self.at))))
            place = [jnp.asarray(index, jnp.int32) for index in (*self.at, 0, 0, start, 0)]  # one type, in x64 too
            return jax.lax.dynamic_update_slice(whole, as_bits(new), place)

        return Slot(KeyValueCache(written(self.cache.keys, keys), written(self.cache.values, values)), self.at)

    def attend(
        self, query: Float[Array, "batch query heads head_width"], mask: Bool[Array, "query position"]
    ) -> Float[Array, "batch query heads head_width"]:
        """Attend over those of the slot's keys and values that `mask` allows."""
        keys, values = self.cache.keys, self.cache.values
        for place in self.at:
            keys, values = (jax.lax.dynamic_index_in_dim(part, place, keepdims=False) for part in (keys, values))
        keys, values = keys.view(query.dtype), values.view(query.dtype)
        return _mean(_weights(query, keys, mask).astype(values.dtype), values)


def split_heads(
    query_key_value: Float[Array, "batch position outputs"], heads: int, head_width: int
) -> tuple[
    Float[Array, "batch position heads head_width"],
    Float[Array, "batch position kv_heads head_width"],
    Float[Array, "batch position kv_heads head_width"],
]:
    """Split a projection into heads: the first `heads` are the query's; keys and values have half of the rest each."""
    parts = query_key_value.reshape(*query_key_value.shape[:-1], -1, head_width)
    query, keys, values = jnp.split(parts, [heads, (heads + parts.shape[-2]) // 2], axis=-2)
    return query, keys, values


def attend(
    query: Float[Array, "batch query heads head_width"],
    keys: Float[Array, "batch position kv_heads head_width"],
    values: Float[Array, "batch position kv_heads head_width"],
    *,
    mask: Bool[Array, "query position"] | None = None,
    dropout_rate: float = 0.0,
    key: Key[Array, ""] | None = None,
) -> Float[Array, "batch query heads head_width"]:
    """`softmax(Q K^T / sqrt(head_width)) V` over the positions that `mask` allows; causal if no mask is given.

    **Arguments:** `query`, `keys`, `values`; each head of the latter two serves heads / kv_heads neighbouring query
    heads; `mask`, true where a query may look; `dropout_rate`, probability of dropping an attention weight, active only
    with a `key`.

    Causal attention processes blocks of queries, each against the keys up to the block's end, so that most scores
    above the diagonal are not computed. Heads come before positions, the layout in which XLA's CPU products are fast
    (`docs/performance.md`). On CUDA, in bfloat16 or float16 and without mask or dropout, it compiles to cuDNN's flash
    attention if that is installed and supports these shapes. Scores are then never stored, and there is no
    forward-mode derivative.

    **Returns:** for each query the weighted mean of the values. Source: Vaswani et al. 2017, eq. 1; paper eq. 4.
    """
    own = partial(_by_blocks, mask=mask, dropout_rate=dropout_rate, key=key)
    lacking = cudnn_lacks(query.dtype, 0.0 if key is None else dropout_rate, cuda_capabilities())
    if mask is None and not lacking and not cudnn_refuses(query, keys, values):
        # A conditional saves the residuals of all its branches: ours, not taken on CUDA, is checkpointed to save none.
        return jax.lax.platform_dependent(query, keys, values, cuda=_cudnn, default=jax.checkpoint(own))
    return own(query, keys, values)


def _by_blocks(
    query: Array, keys: Array, values: Array, *, mask: Array | None, dropout_rate: float, key: Array | None
) -> Array:
    keys, values = jnp.swapaxes(keys, 1, 2), jnp.swapaxes(values, 1, 2)
    length = query.shape[1]
    number = max(1, min(BLOCKS, length // LEAST_BLOCK)) if mask is None else 1
    ends = [length * (index + 1) // number for index in range(number)]
    parts = []
    for index, (start, end) in enumerate(pairwise([0, *ends])):
        seen = end if mask is None else keys.shape[2]
        allowed = jnp.tril(jnp.ones((end - start, seen), bool), start) if mask is None else mask
        weights = _weights(query[:, start:end], keys[:, :, :seen], allowed)
        weights = dropout(weights, dropout_rate, None if key is None else jax.random.fold_in(key, index))
        parts.append(_mean(weights.astype(values.dtype), values[:, :, :seen]))
    return jnp.concatenate(parts, axis=1)


def _cudnn(query: Array, keys: Array, values: Array) -> Array:
    with jax.numpy_dtype_promotion("standard"):  # JAX's function mixes precisions
        return jax.nn.dot_product_attention(query, keys, values, is_causal=True, implementation="cudnn")


def cudnn_lacks(dtype: DTypeLike, dropout_rate: float, capabilities: Iterable[float]) -> str:
    """Return why programs for CUDA cannot use cuDNN's flash attention, whatever the shapes; "" if they can.

    **Arguments:** `dtype` of the query; `dropout_rate` of attention weights; `capabilities`, the devices' compute
    capabilities.
    """
    if dropout_rate > 0.0:  # cuDNN has dropout, but JAX's public function does not
        return f"model.dropout.attention is {dropout_rate:g}; cuDNN's flash attention needs 0"
    if jnp.dtype(dtype) not in NARROW:
        return f"model.compute_dtype is {jnp.dtype(dtype)}; cuDNN's flash attention needs bfloat16"
    if (least := min(capabilities, default=AMPERE)) < AMPERE:
        return f"the compute capability is {least:g}; cuDNN's flash attention needs {AMPERE:g}"
    return ""


def cudnn_refuses(query: AnyArray, keys: AnyArray, values: AnyArray) -> str:
    """Return JAX's error if cuDNN is not installed or rejects these shapes, forward or backward; "" otherwise."""
    try:
        jax.eval_shape(lambda *own: jax.vjp(_cudnn, *own)[0], query, keys, values)
    except (RuntimeError, NotImplementedError, ValueError) as error:
        return str(error) or repr(error)
    return ""


def cuda_capabilities() -> list[float]:
    """Return the compute capabilities of the local CUDA devices; empty if there are none, and programs are compiled for
    other devices."""
    try:
        return [float(device.compute_capability) for device in jax.local_devices(backend="cuda")]
    except RuntimeError:
        return []


def attention_weights(
    query: Float[Array, "batch query heads head_width"],
    keys: Float[Array, "batch position kv_heads head_width"],
    *,
    mask: Bool[Array, "query position"] | None = None,
) -> Float[Array, "batch heads query position"]:
    """`softmax(Q K^T / sqrt(head_width))` over the positions that `mask` allows; causal if no mask is given.

    In float32 or better, whatever the precision of `query`. The arguments are those of `attend`.
    """
    if mask is None:
        mask = jnp.tril(jnp.ones((query.shape[1], keys.shape[1]), bool))
    return _weights(query, jnp.swapaxes(keys, 1, 2), mask)


def _weights(
    query: Float[Array, "batch query heads head_width"],
    keys: Float[Array, "batch kv_heads position head_width"],
    mask: Bool[Array, "query position"],
) -> Float[Array, "batch heads query position"]:
    keys = jnp.repeat(keys, query.shape[2] // keys.shape[1], axis=1)
    query = jnp.swapaxes(query, 1, 2)
    scores = jnp.einsum("bhqd,bhkd->bhqk", query, keys, preferred_element_type=wide(query.dtype))
    scores = scores / query.shape[-1] ** 0.5
    # A row without an allowed position would give NaN, but a query sees at least itself.
    return jax.nn.softmax(jnp.where(mask[None, None], scores, -jnp.inf), axis=-1)


def _mean(
    weights: Float[Array, "batch heads query position"], values: Float[Array, "batch kv_heads position head_width"]
) -> Float[Array, "batch query heads head_width"]:
    values = jnp.repeat(values, weights.shape[1] // values.shape[1], axis=1)
    return jnp.swapaxes(jnp.einsum("bhqk,bhkd->bhqd", weights, values), 1, 2)
