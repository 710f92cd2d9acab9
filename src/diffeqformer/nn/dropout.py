"""Dropout."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Key


def dropout(x: Float[Array, "*shape"], rate: float, key: Key[Array, ""] | None) -> Float[Array, "*shape"]:
    """Set each entry to zero with probability `rate` and scale the others by `1 / (1 - rate)`.

    Without a key (outside training) or with rate 0, `x` is returned as it is.
    Source: Srivastava et al. 2014, JMLR 15:1929.
    """
    if key is None or rate == 0.0:
        return x
    keep = jax.random.bernoulli(key, jnp.float32(1.0 - rate), x.shape)  # the same masks with JAX_ENABLE_X64
    return jnp.where(keep, x / (1.0 - rate), jnp.zeros_like(x))
