"""The vector field `F(t, x) = A_t(x) + M_t(x)`: what a block computes from given weights; time enters through these."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int, Key

from diffeqformer.config import GPTConfig, LlamaConfig, ModelConfig, RotaryScalingConfig
from diffeqformer.errors import BadInput
from diffeqformer.nn.attention import AttentionWeights, Slot, attend, attention_weights, split_heads
from diffeqformer.nn.dropout import dropout
from diffeqformer.nn.feed_forward import FeedForwardWeights
from diffeqformer.nn.linear import AdaptedLinear, Linear, LinearShape, Norm, NormShape, normalise
from diffeqformer.nn.rotary import rotary_frequencies, rotate
from diffeqformer.sharding import BATCH, constrain

L = TypeVar("L")
N = TypeVar("N")


class Block(eqx.Module, Generic[L, N]):
    """Everything that one block needs; `L` and `N` are the types that represent a linear map and a norm.

    The same tree holds shapes (`LinearShape`), weights (`Linear`; stacked over layers or not) or time networks
    (`TimeLinear`), so that one `jax.tree.map` turns each into the next.
    """

    attention: AttentionWeights[L, N]
    feed_forward: FeedForwardWeights[L, N]


BlockShapes = Block[LinearShape, NormShape]
BlockWeights = Block[Linear | AdaptedLinear, Norm]


class Window(eqx.Module):
    """Where new positions stand among cached ones, for incremental decoding."""

    start: Int[Array, ""]
    """Position of the first new token."""
    mask: Bool[Array, "query position"]
    """True where a new token may attend."""


@runtime_checkable
class Field(Protocol):
    """The two halves of a vector field."""

    @property
    def key_value_heads(self) -> tuple[int, int]:
        """Number of key-value heads that a position has in a cache, and the width of each."""
        ...

    def shapes(self) -> BlockShapes:
        """Return the shapes of one block's weights, and how they are initialised."""
        ...

    def attention(
        self,
        weights: BlockWeights,
        x: Float[Array, "batch position width"],
        *,
        key: Key[Array, ""] | None = None,
        cache: Slot | None = None,
        window: Window | None = None,
    ) -> tuple[Float[Array, "batch position width"], Slot | None]:
        """Compute `A(x)`; return it and, if a cache was given, the cache with the new keys and values."""
        ...

    def feed_forward(
        self, weights: BlockWeights, x: Float[Array, "batch position width"], *, key: Key[Array, ""] | None = None
    ) -> Float[Array, "batch position width"]:
        """Compute `M(x)`."""
        ...


@dataclass(frozen=True)
class TransformerField:
    """A transformer block, each half with its own norm n; the two families differ in their settings and weights.

    `gpt`: `A(x) = O attend(Q n(x), K n(x), V n(x))`, `M(x) = down gelu(up n(x))`, all maps with biases, n LayerNorm,
    GELU in its tanh approximation (Radford et al. 2019; the paper's eqs. 4 and 5). Optional: exact GELU, and R on the
    first `rotary_width` channels of each head (GPT-NeoX, Black et al. 2022, arXiv:2204.06745).
    `llama`: `A(x) = O attend(R Q n(x), R K n(x), V n(x))`, `M(x) = down (silu(gate n(x)) * up n(x))`, no biases, n
    RMSNorm, R the rotary embedding (Touvron et al. 2023, arXiv:2302.13971). Optional: Q, K and V with biases (Qwen 2),
    or Q n(x) and K n(x) normalised head by head before R (Qwen 3).
    """

    width: int
    heads: int
    kv_heads: int
    """Heads of keys and values, each shared by heads / kv_heads query heads."""
    head_width: int
    hidden: int
    """Width of the feed-forward block."""
    gated: bool
    """SwiGLU and RMSNorm without biases (`llama`) instead of GELU and LayerNorm with biases (`gpt`)."""
    norm_epsilon: float
    std: float = 0.02
    """Standard deviation of initial matrices."""
    output_std: float = 0.02
    """Standard deviation of the initial matrices whose outputs are added to the state."""
    biases: bool = False
    """`llama` has biases for query, key and value."""
    head_norms: bool = False
    """An RMSNorm is applied to each head's query and key."""
    rotary_width: int = 0
    """Number of channels of each head's query and key that the rotary embedding turns."""
    rope_theta: float = 10000.0
    """Base of the rotary frequencies."""
    rope_scaling: RotaryScalingConfig | None = None
    nested_norm: bool = False
    """M's norm is applied to the output of A's norm, not to x."""
    norm_shift: bool = False
    """RMSNorms also have a shift; the mean is still not subtracted."""
    exact_gelu: bool = False
    """`gpt` uses GELU without the tanh approximation."""
    attention_dropout: float = 0.0
    residual_dropout: float = 0.0

    @property
    def key_value_heads(self) -> tuple[int, int]:
        """Number of key-value heads that a position has in a cache, and the width of each."""
        return self.kv_heads, self.head_width

    def shapes(self) -> BlockShapes:
        """Return the shapes of one block's weights, and how they are initialised."""
        gpt, width, hidden, std, output_std = not self.gated, self.width, self.hidden, self.std, self.output_std
        query_width, kv_width = self.heads * self.head_width, self.kv_heads * self.head_width
        norm, linear = NormShape(width, shift=gpt or self.norm_shift), partial(LinearShape, bias=gpt)
        head_norm = NormShape(self.head_width, shift=False) if self.head_norms else None
        return Block(
            AttentionWeights(
                norm,
                LinearShape(width, query_width + 2 * kv_width, gpt or self.biases, std),
                linear(query_width, width, std=output_std),
                head_norm,
                head_norm,
            ),
            FeedForwardWeights(
                norm,
                up=linear(width, hidden, std=std),
                down=linear(hidden, width, std=output_std),
                gate=None if gpt else linear(width, hidden, std=std),
            ),
        )

    def attention(
        self,
        weights: BlockWeights,
        x: Float[Array, "batch position width"],
        *,
        key: Key[Array, ""] | None = None,
        cache: Slot | None = None,
        window: Window | None = None,
    ) -> tuple[Float[Array, "batch position width"], Slot | None]:
        """Compute `A(x)`; return it and, if a cache was given, the cache with the new keys and values."""
        # The last two are for low-rank adapters, which apply dropout to their inputs; plain linear maps ignore them.
        attention_key, residual_key, input_key, output_key = _split(key, 4)
        query, keys, values = self.projections(weights, x, 0 if window is None else window.start, input_key)
        if cache is not None and window is not None:
            cache = cache.put(keys, values, window.start)
            mixed = cache.attend(query, window.mask)
        else:
            mixed = attend(query, keys, values, dropout_rate=self.attention_dropout, key=attention_key)
        mixed = constrain(weights.attention.output(mixed.reshape(*x.shape[:2], -1), key=output_key), BATCH)
        return dropout(mixed, self.residual_dropout, residual_key), cache

    def attention_weights(
        self, weights: BlockWeights, x: Float[Array, "batch position width"]
    ) -> Float[Array, "batch heads query position"]:
        """Compute how much each head of `A(x)` attends from each position to each position; rows sum to one."""
        query, keys, _ = self.projections(weights, x)
        return attention_weights(query, keys)

    def value_outputs(
        self, weights: BlockWeights, x: Float[Array, "batch position width"]
    ) -> Float[Array, "batch position heads width"]:
        """Compute each head's output in `A(x)` if it attended to a single position, for every position, without bias.

        With the attention weights w, `A(x)` at a query is the sum over heads and positions of w times this, plus the
        bias of O.
        """
        _, _, values = self.projections(weights, x)
        values = jnp.repeat(values, self.heads // values.shape[2], axis=2)
        # O's inputs are the heads side by side, so its output is a sum over heads, with a block of rows for each.
        output = weights.attention.output.weight.reshape(*values.shape[-2:], -1)
        return jnp.einsum("bkhd,hdw->bkhw", values, output)

    def projections(
        self,
        weights: BlockWeights,
        x: Float[Array, "batch position width"],
        start: int | Int[Array, ""] = 0,
        key: Key[Array, ""] | None = None,
    ) -> tuple[Array, Array, Array]:
        """Compute query, keys and values by head for `x`, whose first position is `start`."""
        own = weights.attention
        y = self._normalise(own.norm, x)
        parts = split_heads(own.query_key_value(y, key=key), self.heads, self.head_width)
        query, keys, values = (constrain(part, BATCH, None, "tensor") for part in parts)
        if own.query_norm is not None and own.key_norm is not None:
            query = normalise(own.query_norm, query, self.norm_epsilon)
            keys = normalise(own.key_norm, keys, self.norm_epsilon)
        if self.rotary_width:
            positions = jnp.arange(x.shape[1], dtype=jnp.int32) + jnp.asarray(start, jnp.int32)
            frequencies = rotary_frequencies(self.rotary_width, self.rope_theta, self.rope_scaling)
            # Keys are turned before they are cached: a key's position never changes, so none is turned twice.
            query, keys = (rotate(part, positions, frequencies) for part in (query, keys))
        return query, keys, values

    def feed_forward(
        self, weights: BlockWeights, x: Float[Array, "batch position width"], *, key: Key[Array, ""] | None = None
    ) -> Float[Array, "batch position width"]:
        """Compute `M(x)`."""
        own, (residual_key, up_key, gate_key, down_key) = weights.feed_forward, _split(key, 4)
        y = self._normalise(weights.attention.norm, x) if self.nested_norm else x
        y = self._normalise(own.norm, y)
        inner = own.up(y, key=up_key)
        if own.gate is None:
            inner = jax.nn.gelu(inner, approximate=not self.exact_gelu)
        else:
            inner = jax.nn.silu(own.gate(y, key=gate_key)) * inner
        y = constrain(own.down(constrain(inner, BATCH, None, "tensor"), key=down_key), BATCH)
        return dropout(y, self.residual_dropout, residual_key)

    def _normalise(self, norm: Norm, x: Float[Array, "batch position width"]) -> Float[Array, "batch position width"]:
        # The shift does not tell: RMSNorms have one too with `norm_shift`.
        return normalise(norm, x, self.norm_epsilon, centred=not self.gated)


def require_sizes(field: Field, config: ModelConfig) -> None:
    """Check that a field with attention of several heads has the config's sizes, by which analyses tell heads apart.

    **Raises:** `BadInput` for another size.
    """
    if not isinstance(field, TransformerField):
        return
    sizes = {name: getattr(config, name) for name in ("width", "heads", "kv_heads", "head_width")}
    for name, size in (sizes | {"hidden": config.hidden_width}).items():
        if (own := getattr(field, name)) != size:
            raise BadInput(f"the field's {name} is {own}, but must be that of the config, which is {size}.")


def _split(key: Key[Array, ""] | None, number: int) -> Sequence[Key[Array, ""] | None]:
    return [None] * number if key is None else list(jax.random.split(key, number))


def transformer_field(section: GPTConfig | LlamaConfig, model: ModelConfig) -> TransformerField:
    """Build the field of a model config; output matrices start smaller when many unit steps add them up (GPT-2)."""
    names = "biases", "head_norms", "rope_scaling", "nested_norm", "norm_shift", "exact_gelu"
    # Each family's section has some of these; the others keep the field's defaults, which turn them off.
    own = {name: getattr(section, name) for name in names if hasattr(section, name)}
    return TransformerField(
        model.width,
        model.heads,
        model.kv_heads,
        model.head_width,
        model.hidden_width,
        gated=isinstance(section, LlamaConfig),
        norm_epsilon=model.norm_epsilon,
        std=model.init_std,
        output_std=model.init_std / (2 * model.steps) ** 0.5 if model.horizon == "steps" else model.init_std,
        rotary_width=model.rotary_width,
        rope_theta=section.rope_theta,
        attention_dropout=model.dropout.attention,
        residual_dropout=model.dropout.residual,
        **own,
    )
