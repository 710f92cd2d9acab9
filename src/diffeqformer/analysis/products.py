"""Eigenvalues and singular values of a product `L R` of low rank, from its factors.

The nonzero eigenvalues of `L R` are those of `R L`, so the smaller of the two is used: exact, and for a head hundreds
of times cheaper. Computed in float64 on the host's CPU, the only place with LAPACK's nonsymmetric eigenvalues.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np

from diffeqformer.analysis.finite import require_finite

Matrix = jax.Array | np.ndarray


def product_eigenvalues(left: Matrix, right: Matrix) -> np.ndarray:
    """Compute the min(n, r) eigenvalues of `L R` that can differ from zero, from the smaller of `L R` and `R L`.

    Non-real eigenvalues of a real matrix come in exactly conjugate pairs.
    """
    # NumPy's LAPACK, not JAX's: XLA runs independent calls concurrently and, on two cores, some wait forever.
    return np.linalg.eigvals(_product(left, right, smaller=True)).astype(complex)


def product_singular_values(left: Matrix, right: Matrix) -> np.ndarray:
    """Compute the min(n, r) singular values of `L R` that can differ from zero, the largest first.

    If r < n, they are those of `R_L R_R^T` with `L = Q_L R_L` and `R^T = Q_R R_R` (QR decompositions).
    """
    if left.shape[-1] < left.shape[-2]:
        triangle = lambda matrix: np.asarray(np.linalg.qr(np.asarray(matrix, np.float64), mode="r"))
        left, right = triangle(left), np.swapaxes(triangle(np.swapaxes(right, -1, -2)), -1, -2)
    return np.linalg.svd(_product(left, right, smaller=False), compute_uv=False)


@contextmanager
def on_host() -> Iterator[None]:
    """Use float64 on the host's CPU inside the `with` block, even if another device is JAX's default."""
    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        yield


def _product(left: Matrix, right: Matrix, *, smaller: bool) -> np.ndarray:
    """`L R` in float64 or, with `smaller`, `R L` if that is smaller.

    **Raises:** `RunFailed` if it is not finite.
    """
    with on_host():
        left, right = (jnp.asarray(matrix, jnp.float64) for matrix in (left, right))
        turned = smaller and left.shape[-1] < left.shape[-2]
        product = np.asarray(jnp.matmul(right, left) if turned else jnp.matmul(left, right))
    require_finite(product, "weights")
    return product
