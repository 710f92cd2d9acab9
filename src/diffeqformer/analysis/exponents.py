"""Lyapunov exponents of any vector field: tangents are carried along a trajectory and repeatedly orthonormalised."""

import math
from collections.abc import Callable
from functools import partial
from typing import SupportsFloat

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Key

from diffeqformer.analysis.finite import require_finite
from diffeqformer.config.bounds import whole
from diffeqformer.errors import BadInput
from diffeqformer.nn.keys import require_key

VectorField = Callable[[float | Array, Array], Array]
"""A vector field `F(t, x)`, of the shape of `x`."""


def orthonormalise(
    tangents: Float[Array, "*batch width tangent"],
) -> tuple[Float[Array, "*batch width tangent"], Float[Array, "*batch tangent"]]:
    """Return Q of the QR decomposition, and `log |diag R|`: the growth of each tangent orthogonally to those before."""
    q, r = jnp.linalg.qr(tangents)
    return q, jnp.log(jnp.abs(jnp.diagonal(r, axis1=-2, axis2=-1)))


def first_tangents(width: int, tangents: int, key: Key[Array, ""], dtype: DTypeLike) -> Float[Array, "width tangent"]:
    """Make orthonormal first tangents: the unit vectors if there are as many as the width, else random ones."""
    if tangents == width:
        return jnp.eye(width, dtype=dtype)
    return jnp.linalg.qr(jax.random.normal(key, (width, tangents), dtype))[0]


def leading_directions(
    flow: Callable[[Array], tuple[Array, Callable[[Array], Array]]],
    first: Float[np.ndarray, "batch width tangent"],
    iterations: int,
    settled: float,
) -> tuple[Float[Array, "batch width tangent"], Float[np.ndarray, " batch"]]:
    """Find the leading right singular vectors of linear maps F by subspace iteration, `Q <- qr(F^T F Q)`.

    For unit vectors v, u and a number s such that `F v = s u`, some singular value is within `|F^T u - s v| / sqrt 2`
    of s, and s is at most the largest one. The one near s is the largest, unless `first` has no component in its
    direction, which has probability zero for random directions.

    **Arguments:** `flow`, from Q to `F Q` and a function that multiplies by `F^T`, for a batch of maps; `first`, the
    initial Q; `iterations` at most; `settled`, the bound at which the iteration ends.

    **Returns:** the vectors, the leading one first, and the bound of the error of the leading `log s`.

    **Raises:** `RunFailed` if `F Q` is not finite.

    Source: Saad 2011, Numerical Methods for Large Eigenvalue Problems, sections 3.2 and 5.1, for `[0, F^T; F, 0]`.
    """
    directions = first
    while True:
        images, transpose = flow(jnp.asarray(directions))
        require_finite(images, "derivatives")
        left, sizes, mixed = np.linalg.svd(np.asarray(images), full_matrices=False)
        # Rayleigh-Ritz: the right singular vectors of F on the span of Q.
        directions = directions @ mixed.swapaxes(-1, -2)
        pulled = np.asarray(transpose(jnp.asarray(left)))
        off = np.linalg.norm(pulled[..., 0] - sizes[:, :1] * directions[..., 0], axis=-1)
        # Zero, not NaN, for a map of zeros.
        bound = np.log1p(off / (2**0.5 * np.maximum(sizes[:, 0], np.finfo(sizes.dtype).tiny)))
        if iterations == 1 or bound.max() <= settled:
            return jnp.asarray(directions), bound
        directions, iterations = np.linalg.qr(pulled)[0], iterations - 1


def flow_exponents(
    field: VectorField,
    x: Float[Array, " width"],
    *,
    dt: float,
    steps: int,
    tangents: int | None = None,
    every: int = 1,
    skip: int = 0,
    key: Key[Array, ""] | None = None,
) -> Float[Array, " tangent"]:
    """Compute the Lyapunov exponents of `dx/dt = F(t, x)` along the trajectory from `x`: mean growth rates of tangents.

    The state takes steps of the classical Runge-Kutta method; the tangents are multiplied by the derivative of the same
    step (`jax.linearize`; no Jacobian is formed), and orthonormalised: `Q <- qr(dPhi(x) Q)`.

    **Arguments:** `field`; `x`, the state at time 0, in the precision to compute in; `dt`, length of a step; `steps`;
    `tangents`, how many leading exponents, all if not given; `every`, steps between two decompositions (`steps` is
    rounded up to whole groups); `skip`, steps before anything is measured, in which the state finds the attractor and
    the tangents find their directions; `key`, for random first tangents (if fewer than the width).

    **Returns:** exponents in units of 1 / time, in the order of the decomposition, which is descending over long times.

    **Raises:** `BadInput` if `x` is not a vector of floats of at least 32 bits, `tangents` is not from 1 to the width,
    a number of steps is out of range, or `dt` is 0.

    Sources: Benettin et al. 1980, Meccanica 15:9; Wolf et al. 1985, Physica D 16:285.
    """
    x = jnp.asarray(x)
    if x.ndim != 1 or not jnp.issubdtype(x.dtype, jnp.floating) or x.dtype.itemsize < 4:
        must = "must be real numbers of at least 32 bits on one axis"  # JAX has no QR decomposition of narrower ones
        raise BadInput(f"the state is {x.dtype} of the shape {x.shape}, but {must}.")
    number = x.size if tangents is None else tangents
    if not 1 <= whole("tangents", number) <= x.size:
        raise BadInput(f"tangents is {number}, but must be from 1 to the width of the state, {x.size}.")
    steps, every, skip = whole("steps", steps, 1), whole("every", every, 1), whole("skip", skip, 0)
    if not (isinstance(dt, SupportsFloat) and math.isfinite(dt) and dt != 0):
        raise BadInput(f"dt is {dt}, but must be a number other than 0.")
    dt = float(dt)  # NumPy's would widen a float32 state with jax_enable_x64
    key = jax.random.key(0) if key is None else require_key(key)

    def advance(t: Array, x: Array) -> Array:
        k1 = field(t, x)
        k2 = field(t + dt / 2, x + dt / 2 * k1)
        k3 = field(t + dt / 2, x + dt / 2 * k2)
        k4 = field(t + dt, x + dt * k3)
        return x + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

    def one(carry: tuple, step: Array) -> tuple[tuple, None]:
        x, q = carry
        x, push = jax.linearize(partial(advance, step.astype(x.dtype) * dt), x)
        return (x, jax.vmap(push, in_axes=1, out_axes=1)(q)), None

    def group(carry: tuple, first: Array) -> tuple[tuple, None]:
        x, q, sums = carry
        (x, q), _ = jax.lax.scan(one, (x, q), first + jnp.arange(every))
        q, growth = orthonormalise(q)
        return (x, q, sums + jnp.where(first < skipped, jnp.zeros_like(growth), growth)), None

    skipped, measured = (-(-number_of // every) * every for number_of in (skip, steps))
    start = x, first_tangents(x.size, number, key, x.dtype), jnp.zeros(number, x.dtype)
    # JAX keeps every loop that it runs outside a compiled function, but drops a compiled function that is used up.
    loop = jax.jit(lambda start: jax.lax.scan(group, start, jnp.arange(0, skipped + measured, every))[0])
    _, _, sums = loop(start)
    return sums / (measured * dt)


def kaplan_yorke(exponents: Float[np.ndarray, "*batch tangent"], width: int) -> Float[np.ndarray, "*batch"]:
    """Compute the Kaplan-Yorke dimension: how many leading exponents can be added up before the sum turns negative.

    If the m leading exponents sum to `S >= 0` and the next makes the sum negative, it is `m + S / |lambda_(m+1)|`; if
    the sum never turns negative, it is the whole width.

    **Arguments:** `exponents` in any order; `width`, how many there are in all.

    **Returns:** the dimension; NaN where it is undetermined, because not all exponents are known and their sum is
    not yet negative, or because one is NaN. Source: Kaplan & Yorke 1979.
    """
    ordered = -np.sort(-np.asarray(exponents, np.float64), axis=-1)
    sums = np.concatenate([np.zeros((*ordered.shape[:-1], 1)), ordered.cumsum(-1)], axis=-1)
    negative = sums < 0
    first = negative.argmax(-1)  # the place of the first negative sum; 0 if there is none
    # `first - 1` is -1 where no sum is negative; the value taken there is not used.
    take = lambda values: np.take_along_axis(values, np.maximum(first - 1, 0)[..., None], -1)[..., 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        dimension = (first - 1) + take(sums) / np.abs(take(ordered))
    whole = float(width) if ordered.shape[-1] == width else np.nan
    dimension = np.where(negative.any(-1), dimension, whole)
    return np.where(np.isnan(ordered).any(-1), np.nan, dimension)
