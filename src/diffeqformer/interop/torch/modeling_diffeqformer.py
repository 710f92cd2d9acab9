"""A language model whose layers are the steps of an ODE solver, for Hugging Face Transformers 5.

    x(0)   = embed(ids)
    dx/dt  = A_t(x) + M_t(x)          A: attention block, M: feed-forward block
    logits = head(norm(x(end)))

The weights are populated for a fixed grid of `config.steps` steps of length `config.horizon / config.steps`, or of a
first step of `config.first_step * config.horizon` and others that share the rest equally. `attention.0`, ... are the
rows of A's weights in the order of depth, `feed_forward.0`, ... those of M's: one row per step, or
(`config.layer_rows == "node"`) one per node of each step, the points inside a step at which the scheme needs weights.
The state after step l is `hidden_states[l]`.
Written by diffeqformer, which trains such models in JAX. This file needs torch and transformers only.
"""

from collections.abc import Callable
from itertools import count
from typing import NamedTuple

import torch
from torch import nn
from transformers import DynamicCache, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.masking_utils import create_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import can_return_tuple

# A scheme is how one step of length dt goes. `a` and `m` are the blocks A and M at each of its nodes.


class OneStep(NamedTuple):
    """A scheme that carries nothing from step to step but the state."""

    attention_nodes: tuple[float, ...]
    """Where in a step A's weights are needed, as fractions of the step."""
    feed_forward_nodes: tuple[float, ...]
    attention_evaluations: int
    """How often a step evaluates A; each evaluation has a slot of its own in the key-value cache."""
    advance: Callable

    start = state = lambda self, x: x

    def step(self, a, m, x, dt):
        return self.advance(a, m, x, dt)


class Reversible:
    """Any one-step scheme made reversible by a second state (McCallum & Foster 2024, arXiv:2410.11648)."""

    def __init__(self, base: OneStep, coupling: float):
        both = lambda nodes: tuple(sorted({*nodes, *(1.0 - c for c in nodes)}))
        self.base, self.coupling = base, coupling
        self.attention_nodes, self.feed_forward_nodes = both(base.attention_nodes), both(base.feed_forward_nodes)
        self.attention_evaluations = 2 * base.attention_evaluations

    def start(self, x):
        return (x.float(), x.float()) if x.dtype.itemsize < 4 else (x, x)

    def step(self, a, m, states, dt):
        y, z = states
        y = self.coupling * y + (1 - self.coupling) * z + self._increment(a, m, z, dt, lambda c: c)
        return y, z - self._increment(a, m, y, -dt, lambda c: 1.0 - c)

    def state(self, states):
        return states[0]

    def _increment(self, a, m, x, dt, place):
        """How far the base scheme moves x; its node c lies at `place(c)`."""
        a = [a[self.attention_nodes.index(place(c))] for c in self.base.attention_nodes]
        m = [m[self.feed_forward_nodes.index(place(c))] for c in self.base.feed_forward_nodes]
        return self.base.advance(a, m, x, dt) - x


def lie_trotter(a, m, x, dt):
    x = x + dt * a[0](x)
    return x + dt * m[0](x)


def macaron(a, m, x, dt):
    x = x + dt / 2 * m[0](x)
    x = x + dt * a[0](x)
    return x + dt / 2 * m[1](x)


def strang(a, m, x, dt):
    flow = lambda half, x, dt: x + dt * half(x + dt / 2 * half(x))
    return flow(m[0], flow(a[0], flow(m[0], x, dt / 2), dt), dt / 2)


def runge_kutta(stages, weights, nodes) -> OneStep:
    """`k_i = F(t + nodes_i dt, x + dt sum_j stages_ij k_j)`, `x + dt sum_i weights_i k_i`, where F = A + M."""
    distinct = tuple(sorted(set(nodes)))

    def advance(a, m, x, dt):
        slopes = []
        combine = lambda row: x + sum(dt * w * k for w, k in zip(row, slopes, strict=True) if w)
        for row, node in zip(stages, nodes, strict=True):
            at, here = combine(row), distinct.index(node)
            slopes.append(a[here](at) + m[here](at))
        return combine(weights)

    return OneStep(distinct, distinct, len(nodes), advance)


SCHEMES = {
    "euler": runge_kutta([()], [1.0], [1.0]),  # weights at the end of the step; parallel blocks at dt = 1
    "euler-middle": runge_kutta([()], [1.0], [0.5]),
    "lie-trotter": OneStep((1.0,), (1.0,), 1, lie_trotter),  # attention, then feed-forward on its result
    "lie-trotter-middle": OneStep((0.5,), (0.5,), 1, lie_trotter),
    "macaron": OneStep((0.5,), (0.25, 0.75), 1, macaron),
    "strang": OneStep((0.5,), (0.5,), 2, strang),
    "midpoint": runge_kutta([(), (0.5,)], [0.0, 1.0], [0.0, 0.5]),
    "heun": runge_kutta([(), (1.0,)], [0.5, 0.5], [0.0, 1.0]),
    "rk4": runge_kutta([(), (0.5,), (0.0, 0.5), (0.0, 0.0, 1.0)], [1 / 6, 1 / 3, 1 / 3, 1 / 6], [0.0, 0.5, 0.5, 1.0]),
}


class DiffEqFormerConfig(PreTrainedConfig):
    """Sizes of the model, and how its depth is integrated."""

    model_type = "diffeqformer"
    keys_to_ignore_at_inference = ["past_key_values"]

    def __init__(
        self,
        family: str = "gpt",  # gpt: LayerNorm, GELU, biases, learned positions; llama: RMSNorm, SwiGLU, rotary
        scheme: str = "euler",  # one of SCHEMES, or "reversible"
        horizon: float = 1.0, steps: int = 6, layer_rows: str = "step",
        reversible_base: str = "euler", reversible_coupling: float = 0.99,
        vocab_size: int = 2048, hidden_size: int = 128, intermediate_size: int = 512,
        num_attention_heads: int = 4, num_key_value_heads: int = 4, max_position_embeddings: int = 128,
        norm_epsilon: float = 1e-5, rope_theta: float = 10000.0,
        nested_norm: bool = False,  # M normalises what A's norm gives, not x
        norm_shift: bool = False,  # RMSNorms of blocks have a shift, too
        final_norm_epsilon: float | None = None,  # if not norm_epsilon
        embedding_norm: bool = False,  # the state at depth 0 has unit root mean square
        first_step: float | None = None,  # as a fraction of the horizon; if None, all steps are equal
        embedding_dropout: float = 0.0, attention_dropout: float = 0.0, residual_dropout: float = 0.0,
        initializer_range: float = 0.02, use_cache: bool = True, tie_word_embeddings: bool = True, **kwargs,
    ):  # fmt: skip
        for name, value in {**locals()}.items():
            if name not in ("self", "kwargs", "__class__", "tie_word_embeddings"):
                setattr(self, name, value)
        # What Transformers takes for the number of key-value caches: one for each evaluation of A.
        kwargs["num_hidden_layers"] = steps * self.method().attention_evaluations
        super().__init__(tie_word_embeddings=tie_word_embeddings, **kwargs)

    def method(self):
        """The scheme that the config names."""
        reversible = self.scheme == "reversible"
        base = SCHEMES[self.reversible_base if reversible else self.scheme]
        return Reversible(base, self.reversible_coupling) if reversible else base

    def step_length(self, step):
        """The length of step number `step`, counted from 0, in the state's own clock."""
        if self.first_step is None or self.steps == 1:
            return self.horizon / self.steps
        return self.horizon * (self.first_step if step == 0 else (1 - self.first_step) / (self.steps - 1))


class ShiftedRMSNorm(nn.RMSNorm):
    """`weight x / sqrt(mean(x^2) + eps) + bias`: the mean is not subtracted."""

    def __init__(self, width, eps):
        super().__init__(width, eps=eps)
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        return super().forward(x) + self.bias


def norm_of(config, final=False) -> nn.Module:
    rms_norm = ShiftedRMSNorm if config.norm_shift and not final else nn.RMSNorm
    norm = nn.LayerNorm if config.family == "gpt" else rms_norm
    return norm(config.hidden_size, eps=(final and config.final_norm_epsilon) or config.norm_epsilon)


class Embedding(nn.Module):
    """Sum of a token's vector and, in the GPT family, its position's learned vector."""

    def __init__(self, config):
        super().__init__()
        learned = config.family == "gpt"
        self.tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.positions = nn.Embedding(config.max_position_embeddings, config.hidden_size) if learned else None
        self.epsilon = config.norm_epsilon if config.embedding_norm else None

    def forward(self, vectors, position_ids):
        x = vectors if self.positions is None else vectors + self.positions(position_ids)
        return x if self.epsilon is None else x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.epsilon)


def rotary_angles(config, position_ids, dtype):
    """Cosines and sines of the angle `p theta^(-2i/d)` of each position p and pair i (Su et al. 2021)."""
    half = config.hidden_size // config.num_attention_heads // 2
    exponents = torch.arange(half, device=position_ids.device, dtype=torch.float32) / half
    angles = position_ids[:, None, :, None].float() * config.rope_theta**-exponents
    angles = torch.cat([angles, angles], dim=-1)  # (batch, 1, position, head width)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x, cos, sin):
    """Turn the pairs `(x_i, x_(i + d/2))` by their angles."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def eager_attention(module, query, keys, values, mask, scaling, dropout=0.0, **_):
    """`softmax(Q K^T scaling) V` in plain products: for `attn_implementation="eager"`."""
    keys, values = (part.repeat_interleave(module.num_key_value_groups, dim=1) for part in (keys, values))
    scores = query @ keys.transpose(-1, -2) * scaling
    weights = (scores if mask is None else scores + mask).softmax(-1, dtype=torch.float32).to(query.dtype)
    weights = nn.functional.dropout(weights, dropout, module.training)
    return (weights @ values).transpose(1, 2), weights


class Attention(GradientCheckpointingLayer):
    """`A(x)`: causal attention of the normalised state. Query, keys and values are one matrix, side by side."""

    is_causal = True

    def __init__(self, config):
        super().__init__()
        self.config, width, bias = config, config.hidden_size, config.family == "gpt"
        self.head_width = width // config.num_attention_heads
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        self.widths = [width, *[config.num_key_value_heads * self.head_width] * 2]
        self.norm = norm_of(config)
        self.query_key_value = nn.Linear(width, sum(self.widths), bias=bias)
        self.output = nn.Linear(width, width, bias=bias)
        self.dropout = nn.Dropout(config.residual_dropout)

    def forward(self, x, slot, rotary=None, attention_mask=None, past_key_values=None):
        batch, length, _ = x.shape
        parts = self.query_key_value(self.norm(x)).split(self.widths, dim=-1)
        query, keys, values = (part.view(batch, length, -1, self.head_width).transpose(1, 2) for part in parts)
        if rotary is not None:
            query, keys = rotate(query, *rotary), rotate(keys, *rotary)
        if past_key_values is not None:
            keys, values = past_key_values.update(keys, values, slot)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention)
        dropout = self.config.attention_dropout if self.training else 0.0
        mixed, _ = attend(self, query, keys, values, attention_mask, scaling=self.head_width**-0.5, dropout=dropout)
        return self.dropout(self.output(mixed.reshape(batch, length, -1)))


class FeedForward(GradientCheckpointingLayer):
    """`M(x)`: GELU of the GPT family, SwiGLU of Llama's."""

    def __init__(self, config):
        super().__init__()
        gpt, width, hidden = config.family == "gpt", config.hidden_size, config.intermediate_size
        self.norm = norm_of(config)
        self.up = nn.Linear(width, hidden, bias=gpt)
        self.down = nn.Linear(hidden, width, bias=gpt)
        self.gate = None if gpt else nn.Linear(width, hidden, bias=False)
        self.dropout = nn.Dropout(config.residual_dropout)

    def forward(self, x):
        y, gate, f = self.norm(x), self.gate, nn.functional
        inner = f.gelu(self.up(y), approximate="tanh") if gate is None else f.silu(gate(y)) * self.up(y)
        return self.dropout(self.down(inner))


class DiffEqFormerForCausalLM(PreTrainedModel, GenerationMixin):
    """The whole model."""

    config_class = DiffEqFormerConfig
    supports_gradient_checkpointing = True
    _no_split_modules, _skip_keys_device_placement = ["Attention", "FeedForward"], ["past_key_values"]
    _supports_sdpa = _supports_flash_attn = _supports_attention_backend = True
    _tied_weights_keys = {"head.weight": "embedding.tokens.weight"}

    def __init__(self, config: DiffEqFormerConfig):
        super().__init__(config)
        self.method = config.method()
        nodes = self.method.attention_nodes, self.method.feed_forward_nodes  # rows of weights, per step:
        self.attention_rows, self.feed_forward_rows = (len(n) if config.layer_rows == "node" else 1 for n in nodes)
        self.embedding = Embedding(config)
        self.dropout = nn.Dropout(config.embedding_dropout)
        self.attention = nn.ModuleList(Attention(config) for _ in range(config.steps * self.attention_rows))
        self.feed_forward = nn.ModuleList(FeedForward(config) for _ in range(config.steps * self.feed_forward_rows))
        self.final_norm = norm_of(config, final=True)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self):
        return self.embedding.tokens

    def set_input_embeddings(self, value):
        self.embedding.tokens = value

    def get_output_embeddings(self):
        return self.head

    def set_output_embeddings(self, value):
        self.head = value

    @can_return_tuple
    def forward(
        self, input_ids=None, attention_mask=None, position_ids=None, past_key_values=None, inputs_embeds=None,
        labels=None, use_cache=None, output_hidden_states=None, logits_to_keep=0, **kwargs,
    ) -> CausalLMOutputWithPast:  # fmt: skip
        config = self.config
        x = self.embedding.tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if past_key_values is None and (config.use_cache if use_cache is None else use_cache) and not self.training:
            past_key_values = DynamicCache(config=config)
        before = 0 if past_key_values is None else past_key_values.get_seq_length()
        length, context = before + x.shape[1], config.max_position_embeddings
        if config.family == "gpt" and length > context:
            raise ValueError(f"the text has {length} tokens, but the model knows positions of {context} only.")
        if position_ids is None:
            position_ids = self._positions(x, attention_mask, before)
        x = self.dropout(self.embedding(x, position_ids))
        given = {"attention_mask": attention_mask, "past_key_values": past_key_values, "position_ids": position_ids}
        seen = {
            "rotary": None if config.family == "gpt" else rotary_angles(config, position_ids, x.dtype),
            "attention_mask": create_causal_mask(config=config, inputs_embeds=x, **given),
            "past_key_values": past_key_values,
        }
        hidden_states, slots, carry = [x], count(), self.method.start(x)
        for step in range(config.steps):
            blocks = self._blocks_of(step, slots, seen, x.dtype)
            carry = self.method.step(*blocks, carry, config.step_length(step))
            if output_hidden_states:
                hidden_states.append(self.method.state(carry).to(x.dtype))
        x = self.final_norm(self.method.state(carry).to(x.dtype))
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.head(x[:, kept])
        judged = {"logits": logits, "labels": labels, "vocab_size": config.vocab_size, **kwargs}
        loss = None if labels is None else self.loss_function(**judged)
        states = tuple(hidden_states) if output_hidden_states else None
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=past_key_values, hidden_states=states)

    def _blocks_of(self, step, slots, seen, dtype):
        """A and M of a step as functions of the state, at each of the scheme's nodes (which may share one row)."""
        a, m = self.attention_rows, self.feed_forward_rows
        attention = [self.attention[step * a + min(i, a - 1)] for i in range(len(self.method.attention_nodes))]
        feed_forward = [self.feed_forward[step * m + min(i, m - 1)] for i in range(len(self.method.feed_forward_nodes))]
        first = lambda i, x: attention[min(i, len(attention) - 1)].norm(x) if self.config.nested_norm else x
        return (
            [lambda x, block=block: block(x.to(dtype), next(slots), **seen).to(x.dtype) for block in attention],
            [lambda x, i=i, block=b: block(first(i, x.to(dtype))).to(x.dtype) for i, b in enumerate(feed_forward)],
        )

    def _positions(self, x, attention_mask, before):
        """Position of each token in its text: padding, wherever it is, is not counted."""
        if attention_mask is not None and attention_mask.dim() == 2:
            return (attention_mask.long().cumsum(-1) - 1).clamp(min=0)[:, -x.shape[1] :]
        return torch.arange(before, before + x.shape[1], device=x.device)[None]
