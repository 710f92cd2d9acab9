"""Linear maps and norms as plain weights, of one layer or of many layers stacked on leading axes."""

from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Key

from diffeqformer.nn.dropout import dropout


class LinearShape(NamedTuple):
    """What a weight source must provide for one linear map."""

    inputs: int
    outputs: int
    bias: bool
    std: float
    """Standard deviation of the initial matrix."""


class NormShape(NamedTuple):
    """What a weight source must provide for one norm."""

    width: int
    shift: bool


class Linear(eqx.Module):
    """`x -> x @ weight + bias`, weights of shape (inputs, outputs)."""

    weight: Float[Array, "*layers inputs outputs"]
    bias: Float[Array, "*layers outputs"] | None

    def __call__(
        self, x: Float[Array, "*batch inputs"], *, key: Key[Array, ""] | None = None
    ) -> Float[Array, "*batch outputs"]:
        # As one matrix: XLA's CPU gradient of a weight under several batch axes takes three times as long.
        y = x.reshape(-1, x.shape[-1]) @ self.weight
        if self.bias is not None:
            # Widened first, so that its gradient, a sum over all tokens, is added up in float32; nothing else changes.
            # Here and elsewhere, ranks match explicitly: the tests set `jax_numpy_rank_promotion` to "raise".
            bias = jnp.broadcast_to(self.bias.astype(wide(self.bias.dtype))[None], y.shape)
            y = y + bias.astype(y.dtype)
        return y.reshape(*x.shape[:-1], -1)


class Adapter(eqx.Module):
    """`x -> scale drop(x) a b`: a low-rank change of a linear map (Hu et al. 2021, arXiv:2106.09685)."""

    a: Float[Array, "*layers inputs rank"]
    b: Float[Array, "*layers rank outputs"]
    """Initialised to zero."""
    scale: float = eqx.field(static=True)
    dropout: float = eqx.field(static=True)

    def __call__(
        self, x: Float[Array, "*batch inputs"], *, key: Key[Array, ""] | None = None
    ) -> Float[Array, "*batch outputs"]:
        inner = dropout(x, self.dropout, key).reshape(-1, x.shape[-1]) @ self.a
        return (self.scale * (inner @ self.b)).reshape(*x.shape[:-1], -1)


class AdaptedLinear(eqx.Module):
    """A linear map with an adapter: `x -> base(x) + adapter(x)`."""

    base: Linear
    adapter: Adapter

    def __call__(
        self, x: Float[Array, "*batch inputs"], *, key: Key[Array, ""] | None = None
    ) -> Float[Array, "*batch outputs"]:
        return self.base(x) + self.adapter(x, key=key)

    @property
    def weight(self) -> Float[Array, "*layers inputs outputs"]:
        """The matrix with the adapter merged into it."""
        # Not in TensorFloat-32, the default on GPUs: what is merged is kept and exported.
        change = jnp.matmul(self.adapter.a, self.adapter.b, precision="highest")
        return self.base.weight + self.adapter.scale * change

    @property
    def bias(self) -> Float[Array, "*layers outputs"] | None:
        """The bias of the base map."""
        return self.base.bias


class Norm(eqx.Module):
    """Scale and shift of a normalisation; an RMSNorm has a shift only if requested."""

    scale: Float[Array, "*layers width"]
    shift: Float[Array, "*layers width"] | None


# Parameters are float32 whatever JAX's default, which is float64 with `jax_enable_x64`.
zeros, ones = partial(jnp.zeros, dtype=jnp.float32), partial(jnp.ones, dtype=jnp.float32)
normal = partial(jax.random.normal, dtype=jnp.float32)


def wide(dtype: DTypeLike) -> DTypeLike:
    """Return the dtype in which to sum: float32 for narrower types, otherwise the type itself."""
    return jnp.float32 if jnp.dtype(dtype).itemsize < 4 else dtype


def products(x: Float[Array, "*batch width"], rows: Float[Array, "outputs width"]) -> Float[Array, "*batch outputs"]:
    """Compute `x rows^T`, each vector times each row, in the precision of `x`, summed in float32 or better.

    Narrow products stay narrow in the backward pass: the cotangent is rounded to the precision of `x` before it is
    multiplied, as in PyTorch's autocast, and the gradient of `rows` is summed and kept in the precision of `rows`.
    Otherwise JAX would multiply in float32, at half a GPU's speed or less, and round the gradient of `rows` instead.
    Narrow products have no forward-mode derivative.
    """
    return _products(x, rows.astype(x.dtype)) if wide(x.dtype) == x.dtype else _narrow_products(x, rows)


def _products(x: Array, rows: Array) -> Array:
    return jnp.einsum("...d,vd->...v", x, rows, preferred_element_type=wide(x.dtype))


@jax.custom_vjp
def _narrow_products(x: Array, rows: Array) -> Array:
    return _products(x, rows.astype(x.dtype))


def _keep(x: Array, rows: Array) -> tuple[Array, tuple[Array, Array]]:
    return _narrow_products(x, rows), (x, rows)


def _pull_back(kept: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array]:
    x, rows = kept
    cotangent = cotangent.astype(x.dtype)
    to_x = _products(cotangent, rows.astype(x.dtype).T)
    to_rows = _products(cotangent.reshape(-1, len(rows)).T, x.reshape(-1, x.shape[-1]).T)
    return to_x.astype(x.dtype), to_rows.astype(rows.dtype)


_narrow_products.defvjp(_keep, _pull_back)


def as_bits(x: Array) -> Array:
    """View 16-bit floats as integers with the same bits, which `view` reverts; return anything else unchanged.

    XLA has no 16-bit floats on CPUs: to write or read one row of a large array, it converts the whole array to float32.
    """
    return x.view(jnp.uint16) if x.dtype in (jnp.bfloat16, jnp.float16) else x


def unit_rms(x: Float[Array, "*batch width"], epsilon: float) -> Float[Array, "*batch width"]:
    """`x / sqrt(mean(x^2) + epsilon)` over the last axis."""
    return x / jnp.sqrt(jnp.square(x).mean(-1, keepdims=True) + epsilon)


def normalise(
    norm: Norm, x: Float[Array, "*batch width"], epsilon: float, *, centred: bool | None = None
) -> Float[Array, "*batch width"]:
    """RMSNorm over the last axis: `scale x / sqrt(mean(x^2) + epsilon)`, plus the shift if there is one.

    If `centred`, the same is applied to `x - mean(x)`, which is LayerNorm; by default, norms with a shift are centred.
    Sums are taken in float32 or better, whatever the precision of `x`; the result has the precision of `x`. Sources:
    Zhang & Sennrich 2019, arXiv:1910.07467; Ba et al. 2016, arXiv:1607.06450.
    """
    y = x.astype(wide(x.dtype))
    if (norm.shift is not None) if centred is None else centred:
        y = y - y.mean(-1, keepdims=True)
    y = unit_rms(y, epsilon)
    leading = range(x.ndim - 1)
    y = y * jnp.expand_dims(norm.scale, leading).astype(y.dtype)
    if norm.shift is not None:
        y = y + jnp.expand_dims(norm.shift, leading).astype(y.dtype)
    return y.astype(x.dtype)
