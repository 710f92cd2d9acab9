"""A check that results are finite before anything is concluded from them."""

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from diffeqformer.errors import RunFailed


def require_finite(values: PyTree, what: str = "hidden states") -> None:
    """Check that arrays have no NaN or infinity, which they have if training diverged or a state overflowed.

    **Arguments:** `values`, arrays or a model; `what`, the name of the values, for the message.

    **Raises:** `RunFailed` if one is not finite.
    """
    leaves = jax.tree.leaves(eqx.filter(values, eqx.is_inexact_array_like))
    if not all(np.isfinite(np.asarray(leaf)).all() for leaf in leaves):
        raise RunFailed(f"{what} of the model are not finite; train it with a lower learning rate.")
