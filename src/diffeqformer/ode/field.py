"""The vector field `F(t, x) = A_t(x) + M_t(x)`: what a block computes from its weights, knowing nothing of time."""

from typing import Generic, Protocol, TypeVar, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int, Key

from diffeqformer.config import ModelConfig
from diffeqformer.nn.attention import AttentionWeights, KeyValueCache, attend, split_heads
from diffeqformer.nn.dropout import dropout
from diffeqformer.nn.feed_forward import FeedForwardWeights
from diffeqformer.nn.linear import Linear, LinearShape, Norm, NormShape, layer_norm

L = TypeVar("L")
N = TypeVar("N")


class Block(eqx.Module, Generic[L, N]):
    """Everything that one block needs; `L` and `N` are what stands for a linear map and for a norm.

    The same tree holds shapes (`LinearShape`), weights (`Linear`; stacked over layers or not) or time networks
    (`TimeLinear`), so that one `jax.tree.map` leads from each to the next.
    """

    attention: AttentionWeights[L, N]
    feed_forward: FeedForwardWeights[L, N]


BlockShapes = Block[LinearShape, NormShape]
BlockWeights = Block[Linear, Norm]


class Window(eqx.Module):
    """Where new positions stand among cached ones, for incremental decoding."""

    start: Int[Array, ""]
    """Position of the first new token."""
    mask: Bool[Array, "query position"]
    """True where a new token may look."""


@runtime_checkable
class Field(Protocol):
    """The two halves of a vector field."""

    def shapes(self, config: ModelConfig) -> BlockShapes:
        """Shapes of the weights of one block."""
        ...

    def attention(
        self,
        weights: AttentionWeights[Linear, Norm],
        x: Float[Array, "batch position width"],
        *,
        key: Key[Array, ""] | None = None,
        cache: KeyValueCache | None = None,
        window: Window | None = None,
    ) -> tuple[Float[Array, "batch position width"], KeyValueCache | None]:
        """`A(x)`, and the cache with the new keys and values if one was given."""
        ...

    def feed_forward(
        self,
        weights: FeedForwardWeights[Linear, Norm],
        x: Float[Array, "batch position width"],
        *,
        key: Key[Array, ""] | None = None,
    ) -> Float[Array, "batch position width"]:
        """`M(x)`."""
        ...


class GPTField(eqx.Module):
    """GPT-2's block: `A(x) = O attend(Q n(x), K n(x), V n(x))`, `M(x) = down gelu(up n(x))`, n a LayerNorm each.

    Source: Radford et al. 2019; the paper's eqs. 4 and 5. GELU is the tanh approximation, as in GPT-2.
    """

    heads: int = eqx.field(static=True)
    norm_epsilon: float = eqx.field(static=True)
    attention_dropout: float = eqx.field(static=True, default=0.0)
    residual_dropout: float = eqx.field(static=True, default=0.0)

    def shapes(self, config: ModelConfig) -> BlockShapes:
        """Shapes of the weights of one block; outputs start smaller when many unit steps add them up (GPT-2)."""
        width, hidden, std = config.width, config.hidden or 4 * config.width, config.init_std
        output_std = std / (2 * config.steps) ** 0.5 if config.horizon == "steps" else std
        norm = NormShape(width, shift=True)
        return Block(
            AttentionWeights(
                norm,
                LinearShape(width, 3 * width, bias=True, std=std),
                LinearShape(width, width, bias=True, std=output_std),
            ),
            FeedForwardWeights(
                norm,
                LinearShape(width, hidden, bias=True, std=std),
                LinearShape(hidden, width, bias=True, std=output_std),
            ),
        )

    def attention(
        self,
        weights: AttentionWeights[Linear, Norm],
        x: Float[Array, "batch position width"],
        *,
        key: Key[Array, ""] | None = None,
        cache: KeyValueCache | None = None,
        window: Window | None = None,
    ) -> tuple[Float[Array, "batch position width"], KeyValueCache | None]:
        """`A(x)`, and the cache with the new keys and values if one was given."""
        attention_key, residual_key = (None, None) if key is None else jax.random.split(key)
        y = layer_norm(weights.norm, x, self.norm_epsilon)
        query, keys, values = (
            split_heads(part, self.heads) for part in jnp.split(weights.query_key_value(y), 3, axis=-1)
        )
        if cache is not None and window is not None:
            cache = cache.put(keys, values, window.start)
            keys, values = cache.keys, cache.values
        mixed = attend(
            query,
            keys,
            values,
            mask=None if window is None else window.mask,
            dropout_rate=self.attention_dropout,
            key=attention_key,
        )
        return dropout(weights.output(mixed.reshape(x.shape)), self.residual_dropout, residual_key), cache

    def feed_forward(
        self,
        weights: FeedForwardWeights[Linear, Norm],
        x: Float[Array, "batch position width"],
        *,
        key: Key[Array, ""] | None = None,
    ) -> Float[Array, "batch position width"]:
        """`M(x)`."""
        y = layer_norm(weights.norm, x, self.norm_epsilon)
        y = weights.down(jax.nn.gelu(weights.up(y), approximate=True))
        return dropout(y, self.residual_dropout, key)


def field_of(config: ModelConfig) -> Field:
    """The field that a model config names."""
    return GPTField(config.heads, config.norm_epsilon, config.dropout.attention, config.dropout.residual)
