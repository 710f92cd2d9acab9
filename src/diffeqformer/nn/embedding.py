"""Tokens and positions as vectors."""

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
    """Check ids that are known, which indexing would take for others: JAX clips them. Traced ones are not checked.

    **Raises:** `BadInput` for ids that are no whole numbers, or one that is not in the vocabulary.
    """
    if not jnp.issubdtype(ids.dtype, jnp.integer):
        raise BadInput(f"token ids are {ids.dtype}, but must be whole numbers.")
    if isinstance(ids, Tracer) or not ids.size:
        return
    known = np.asarray(ids)  # of JAX, the minimum would be traced where a program closes over known ids
    low, high = int(known.min()), int(known.max())
    if low < 0 or high >= vocabulary:
        raise BadInput(
            f"token id {low if low < 0 else high} does not exist: the model's vocabulary has {vocabulary} entries, "
            f"0 to {vocabulary - 1}."
        )


def known_ids(ids: Any, vocabulary: int, *axes: int) -> Array:
    """Token ids as int32, checked before JAX could make others of them: it wraps what 32 bits do not hold.

    **Arguments:** `axes`, how many the ids may have: 1 for a text, 2 for a batch of them.

    **Raises:** `BadInput` as `require_tokens`, or for other axes, or one of length 0.
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
    return jnp.asarray(ids).astype(jnp.int32)  # narrower ones could not hold what is predicted after them


class Embedding(eqx.Module):
    """Sum of a token's vector and, where the family has them, its position's learned vector."""

    tokens: Float[Array, "vocabulary width"]
    positions: Float[Array, "context width"] | None

    def __call__(
        self, ids: Int[Array, "batch position"], at: Int[Array, " position"]
    ) -> Float[Array, "batch position width"]:
        """Vectors of `ids` that stand at the positions `at`."""
        # The width is gathered first: `fsdp` divides the batch of what is looked up, and no second axis of it.
        x = constrain(self.tokens, "tensor")[ids]
        return x if self.positions is None else x + constrain(self.positions)[at][None]
