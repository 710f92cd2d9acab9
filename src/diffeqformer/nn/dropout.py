"""Dropout."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Key

from diffeqformer.errors import BadInput
from diffeqformer.plain import shown


def require_key(key: Any) -> Key[Array, ""]:
    """Return a random key.

    **Raises:** `BadInput` for anything else, such as a seed.
    """
    if not isinstance(key, Array | np.ndarray):
        raise BadInput(f"key is {shown(key)}, but must be a random key, such as jax.random.key(0).")
    return key  # pyright: ignore[reportReturnType]


def dropout(x: Float[Array, "*shape"], rate: float, key: Key[Array, ""] | None) -> Float[Array, "*shape"]:
    """Set each entry to zero with probability `rate` and scale the others by `1 / (1 - rate)`.

    Without a key (outside training) or with rate 0, `x` is returned as it is.
    Source: Srivastava et al. 2014, JMLR 15:1929.
    """
    if key is None or rate == 0.0:
        return x
    keep = jax.random.bernoulli(key, jnp.float32(1.0 - rate), x.shape)  # the same masks with JAX_ENABLE_X64
    return jnp.where(keep, x / (1.0 - rate), jnp.zeros_like(x))
