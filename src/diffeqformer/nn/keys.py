"""Random keys."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Key

from diffeqformer.errors import BadInput
from diffeqformer.plain import shown


def require_key(key: Any) -> Key[Array, ""]:
    """Return a random key.

    **Raises:** `BadInput` for anything else, such as a seed or several keys.
    """
    must = "must be a random key, such as jax.random.key(0)."
    if not isinstance(key, Array | np.ndarray):
        raise BadInput(f"key is {shown(key)}, but {must}")
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    if not (typed or key.dtype == np.uint32) or key.ndim != (0 if typed else 1):  # jax.random.PRNGKey gives numbers
        raise BadInput(f"key is {key.dtype} of the shape {key.shape}, but {must}")
    return key  # pyright: ignore[reportReturnType]
