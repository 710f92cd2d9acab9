"""Small networks that turn time features into the weights of one linear map or one norm (paper eq. 6)."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Key

from diffeqformer.nn.linear import Linear, LinearShape, Norm, NormShape, normal, zeros
from diffeqformer.sharding import is_divided


class TimeNetwork(eqx.Module):
    """`h(t) = L2 silu(L1 e(t) + b1) + b2`, widths 2K+1 -> d_emb -> d_emb."""

    first: Linear
    second: Linear

    @staticmethod
    def init(grid_features: Float[Array, "time features"], d_emb: int, key: Key[Array, ""]) -> "TimeNetwork":
        """Initialise normal matrices, the second scaled so that `h` has length 1 on the grid (root mean square).

        Biases are zero. The length of `h` scales the effect on W of an optimiser's step on P. At length 1, AdamW moves
        the generated matrices about as fast, times the step 1/L, as a vanilla transformer's of step 1 (`docs/log.md`).
        """
        k1, k2 = jax.random.split(key)
        features = grid_features.shape[-1]
        first = Linear(normal(k1, (features, d_emb)) / features**0.5, zeros(d_emb))
        second = Linear(normal(k2, (d_emb, d_emb)), zeros(d_emb))
        h = TimeNetwork(first, second)(grid_features)
        length = jnp.sqrt(jnp.square(h).sum(-1).mean())
        return TimeNetwork(first, Linear(second.weight / length, second.bias))

    def __call__(self, features: Float[Array, "time features"]) -> Float[Array, "time d_emb"]:
        return self.second(jax.nn.silu(self.first(features)))


class TimeLinear(eqx.Module):
    """A linear map that depends on depth: `W(t) = P h(t) + C`, `b(t) = B h(t)`.

    P has d_emb as its last axis. In this layout, both `P h` and the gradient with respect to h are products that read P
    once, in order, which on CPUs is several times faster than the other way round (`docs/performance.md`).
    """

    network: TimeNetwork | None
    """`None` if the model has one network for all its weights."""
    projection: Float[Array, "inputs outputs d_emb"]
    """P"""
    constant: Float[Array, "inputs outputs"]
    """C"""
    bias_projection: Float[Array, "outputs d_emb"] | None
    """B"""

    @staticmethod
    def init(shape: LinearShape, network: TimeNetwork | None, d_emb: int, key: Key[Array, ""]) -> "TimeLinear":
        """Initialise P as normal with standard deviation `shape.std`, C and B as zero.

        Since `h` has length 1, the generated matrices are also normal with that standard deviation.
        """
        return TimeLinear(
            network,
            shape.std * normal(key, (shape.inputs, shape.outputs, d_emb)),
            zeros((shape.inputs, shape.outputs)),
            zeros((shape.outputs, d_emb)) if shape.bias else None,
        )

    def of(self, h: Float[Array, "time d_emb"]) -> Linear:
        """Generate the maps at all times in one matrix product, so that P is read once whatever the number of steps."""
        if is_divided():  # merged axes cannot be sharded each in its own way: P would be all-gathered on every device
            weight = jnp.einsum("td,iod->tio", h, self.projection)
        else:  # as two matrices: for the einsum, XLA would first write a transposed copy of P
            weight = (h @ self.projection.reshape(-1, h.shape[-1]).T).reshape(-1, *self.constant.shape)
        weight = weight + self.constant[None]
        return Linear(weight, None if self.bias_projection is None else h @ self.bias_projection.T)


class TimeNorm(eqx.Module):
    """A norm whose scale `1 + G h(t)` and shift `S h(t)` depend on depth; G and S start at zero."""

    network: TimeNetwork | None
    """`None` if the model has one network for all its weights."""
    scale_projection: Float[Array, "width d_emb"]
    """G"""
    shift_projection: Float[Array, "width d_emb"] | None
    """S"""

    @staticmethod
    def init(shape: NormShape, network: TimeNetwork | None, d_emb: int) -> "TimeNorm":
        """Initialise G and S as zero, so that every norm starts as the plain one."""
        # Two arrays, not the same one twice: a training step donates each buffer once.
        scale, shift = zeros((shape.width, d_emb)), zeros((shape.width, d_emb))
        return TimeNorm(network, scale, shift if shape.shift else None)

    def of(self, h: Float[Array, "time d_emb"]) -> Norm:
        """Generate the scales and shifts at all times at once."""
        shift = None if self.shift_projection is None else h @ self.shift_projection.T
        return Norm(1.0 + h @ self.scale_projection.T, shift)
