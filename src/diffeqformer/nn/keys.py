"""Random keys."""

from typing import Any

import numpy as np
from jax import Array
from jaxtyping import Key

from diffeqformer.errors import BadInput
from diffeqformer.plain import shown


def require_key(key: Any) -> Key[Array, ""]:
    """Return a random key.

    **Raises:** `BadInput` for anything else, such as a seed.
    """
    if not isinstance(key, Array | np.ndarray):
        raise BadInput(f"key is {shown(key)}, but must be a random key, such as jax.random.key(0).")
    return key  # pyright: ignore[reportReturnType]
