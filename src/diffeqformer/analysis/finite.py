"""What must be numbers before anything is said of them."""

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from diffeqformer.errors import RunFailed


def require_finite(values: PyTree, what: str = "hidden states") -> None:
    """Check that arrays have no NaN and no infinity, as they have where training diverged or a state overflowed.

    **Arguments:** `values`, arrays or a model; `what` of the model they are, for the message.

    **Raises:** `RunFailed` if they have one.
    """
    leaves = jax.tree.leaves(eqx.filter(values, eqx.is_inexact_array_like))
    if not all(np.isfinite(np.asarray(leaf)).all() for leaf in leaves):
        raise RunFailed(f"{what} of the model are not finite; train it with a lower learning rate.")
