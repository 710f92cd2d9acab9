"""Token and position embeddings."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jaxtyping import Float, Int

from diffeqformer.errors import BadInput
from diffeqformer.sharding import constrain


def require_tokens(ids: Array | np.ndarray, vocabulary: int) -> None:
    """Check known token ids, since JAX's indexing silently clips invalid ones; traced ids are not checked.

    **Raises:** `BadInput` if ids are not integers, or one is not in the vocabulary.
    """
    if not jnp.issubdtype(ids.dtype, jnp.integer):
        raise BadInput(f"token ids are {ids.dtype}, but must be whole numbers.")
    if isinstance(ids, Tracer) or not ids.size:
        return
    known = np.asarray(ids)  # with `jnp`, the minimum would be traced where a program closes over known ids
    low, high = int(known.min()), int(known.max())
    if low < 0 or high >= vocabulary:
        raise BadInput(
            f"token id {low if low < 0 else high} does not exist: the model's vocabulary has {vocabulary} entries, "
            f"0 to {vocabulary - 1}."
        )


def known_ids(ids: Any, vocabulary: int, *axes: int) -> Array:
    """Convert token ids to int32, checking them first, since JAX wraps ids that do not fit into 32 bits.

    **Arguments:** `axes`, the allowed numbers of axes: 1 for a text, 2 for a batch of texts.

    **Raises:** `BadInput` as `require_tokens`, or for another number of axes, or an axis of length 0.
    """
    try:
        ids = ids if isinstance(ids, Array) else np.asarray(ids)
    except ValueError:
        raise BadInput("ids have rows of different lengths, but a batch has rows of one length.") from None
    if ids.ndim not in axes or not ids.size:
        shapes = {1: "(position,)", 2: "(batch, position)"}
        must = " or ".join(shapes[number] for number in axes)
        raise BadInput(f"ids have the shape {ids.shape}, but must have {must}, none of them 0.")
    require_tokens(ids, vocabulary)
    return jnp.asarray(ids).astype(jnp.int32)  # narrower integers could not hold the tokens predicted later


class Embedding(eqx.Module):
    """Sum of a token's vector and, where the family has them, its position's learned vector."""

    tokens: Float[Array, "vocabulary width"]
    positions: Float[Array, "context width"] | None

    def __call__(
        self, ids: Int[Array, "batch position"], at: Int[Array, " position"]
    ) -> Float[Array, "batch position width"]:
        """Embed `ids` at the positions `at`."""
        # The width is gathered first: `fsdp` shards the batch axis of the result, so it cannot shard a second axis.
        x = constrain(self.tokens, "tensor")[ids]
        return x if self.positions is None else x + constrain(self.positions)[at][None]
