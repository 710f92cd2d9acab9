"""The blocks of a DiffEqFormer, and where their weights come from: a table, or functions of depth.

A row is one block with its weights at one time. Rows are parameters (a table of layers, one shared row, the knots), or
they are generated: by interpolation between knots, or by small networks of time.
Written by diffeqformer. This file needs torch and transformers only.
"""

import torch
from torch import nn
from torch.nn.functional import gelu, silu
from transformers.modeling_layers import GradientCheckpointingLayer


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


def rotary_angles(config, position_ids, dtype):
    """Cosines and sines of the angle `p theta^(-2i/d)` of each position p and pair i (Su et al. 2021), with scaling."""
    half = config.turned // 2
    frequencies = config.rope_theta ** -(torch.arange(half, device=position_ids.device, dtype=torch.float32) / half)
    if scaling := config.rotary_scaling:
        turns = frequencies * scaling["original_context"] / (2 * torch.pi)
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        kept = ((turns - low) / (high - low)).clamp(0, 1)
        frequencies = frequencies * ((1 - kept) / scaling["factor"] + kept)
    angles = position_ids[:, None, :, None].float() * frequencies
    angles = torch.cat([angles, angles], dim=-1)  # (batch, 1, position, rotated components)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x, cos, sin):
    """Rotate the pairs `(x_i, x_(i + d/2))` by their angles, i < d/2; components from d on are unchanged."""
    x, rest = x.split([cos.shape[-1], x.shape[-1] - cos.shape[-1]], dim=-1)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([x * cos + torch.cat([-second, first], dim=-1) * sin, rest], dim=-1)


def eager_attention(module, query, keys, values, mask, scaling, dropout=0.0, **_):
    """Compute `softmax(Q K^T scaling) V` in plain products, for `attn_implementation="eager"`."""
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
        self.head_width = config.head_dim
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        heads = [config.num_attention_heads, *[config.num_key_value_heads] * 2]
        self.widths = [number * self.head_width for number in heads]
        self.norm = norm_of(config)
        head_norm = lambda: nn.RMSNorm(self.head_width, eps=config.norm_epsilon) if config.head_norms else None
        self.query_norm, self.key_norm = head_norm(), head_norm()
        self.query_key_value = nn.Linear(width, sum(self.widths), bias=bias or config.biases)
        self.output = nn.Linear(self.widths[0], width, bias=bias)
        self.dropout = nn.Dropout(config.residual_dropout)

    def forward(self, x, slot, attend, rotary=None, attention_mask=None, past_key_values=None):
        batch, length, _ = x.shape
        parts = self.query_key_value(self.norm(x)).split(self.widths, dim=-1)
        query, keys, values = (part.view(batch, length, -1, self.head_width).transpose(1, 2) for part in parts)
        if self.query_norm is not None:
            query, keys = self.query_norm(query), self.key_norm(keys)
        if rotary is not None:
            query, keys = rotate(query, *rotary), rotate(keys, *rotary)
        if past_key_values is not None:
            keys, values = past_key_values.update(keys, values, slot)
        dropout = self.config.attention_dropout if self.training else 0.0
        mixed, looked = attend(
            self, query, keys, values, attention_mask, scaling=self.head_width**-0.5, dropout=dropout
        )
        return self.dropout(self.output(mixed.reshape(batch, length, -1))), looked


class FeedForward(GradientCheckpointingLayer):
    """`M(x)`: feed-forward block with GELU in the GPT family, SwiGLU in Llama's."""

    def __init__(self, config):
        super().__init__()
        gpt, width, hidden = config.family == "gpt", config.hidden_size, config.intermediate_size
        self.norm = norm_of(config)
        self.up = nn.Linear(width, hidden, bias=gpt)
        self.down = nn.Linear(hidden, width, bias=gpt)
        self.gate = None if gpt else nn.Linear(width, hidden, bias=False)
        self.dropout = nn.Dropout(config.residual_dropout)
        self.gelu = "none" if config.exact_gelu else "tanh"

    def forward(self, x):
        y, gate = self.norm(x), self.gate
        inner = gelu(self.up(y), approximate=self.gelu) if gate is None else silu(gate(y)) * self.up(y)
        return self.dropout(self.down(inner))


# ----- Weights as functions of depth. They are generated in float32 or better, whatever the stored dtype.


def wide(x):
    return x.float() if x.dtype.itemsize < 4 else x


def generated_row(block, config, tensors):
    """Build a block of class `block` with `tensors`, by name, in place of its parameters."""
    with torch.device("meta"):
        row = block(config)
    for name, tensor in tensors.items():
        part, _, leaf = name.rpartition(".")
        delattr(row.get_submodule(part), leaf)
        setattr(row.get_submodule(part), leaf, tensor)
    return row


class TimeNetwork(nn.Module):
    """`h(t) = L2 silu(L1 e(t) + b1) + b2`, of the time features `e(t) = [t, sin(w_k t), cos(w_k t)]`."""

    def __init__(self, settings):
        super().__init__()
        self.settings, width = settings, settings["d_emb"]
        self.first = nn.Linear(2 * settings["frequencies"] + 1, width)
        self.second = nn.Linear(width, width)

    def forward(self, times):
        number, highest = self.settings["frequencies"], self.settings["highest_frequency"]
        ratio = self.settings["lowest_frequency"] / highest
        angles = times[:, None] * highest * ratio ** (torch.arange(number, dtype=times.dtype, device="cpu") / number)
        features = torch.cat([times[:, None], angles.sin(), angles.cos()], dim=-1).to(self.first.weight)
        return wide(self.second(silu(self.first(features))))


class TimeLinear(nn.Module):
    """A linear map that depends on depth: `W(t) = sum_k h_k(t) P_k + C`, `b(t) = sum_k h_k(t) B_k`."""

    def __init__(self, linear, settings):
        super().__init__()
        width, (outputs, inputs) = settings["d_emb"], linear.weight.shape
        self.network = TimeNetwork(settings) if settings["kind"] == "time" else None
        self.projection = nn.Parameter(torch.zeros(width, outputs, inputs))
        self.constant = nn.Parameter(torch.zeros(outputs, inputs))
        self.bias_projection = None if linear.bias is None else nn.Parameter(torch.zeros(width, outputs))

    def forward(self, h):
        found = {"weight": torch.tensordot(h, wide(self.projection), 1) + wide(self.constant)}
        return found if self.bias_projection is None else {**found, "bias": h @ wide(self.bias_projection)}


class TimeNorm(nn.Module):
    """A norm whose scale `1 + sum_k h_k(t) G_k` and shift `sum_k h_k(t) S_k` depend on depth."""

    def __init__(self, norm, settings):
        super().__init__()
        width, shift = settings["d_emb"], getattr(norm, "bias", None) is not None
        self.network = TimeNetwork(settings) if settings["kind"] == "time" else None
        self.scale_projection = nn.Parameter(torch.zeros(width, *norm.weight.shape))
        self.shift_projection = nn.Parameter(torch.zeros(width, *norm.weight.shape)) if shift else None

    def forward(self, h):
        found = {"weight": 1 + h @ wide(self.scale_projection)}
        return found if self.shift_projection is None else {**found, "bias": h @ wide(self.shift_projection)}


def time_networks(block, config) -> nn.ModuleDict:
    """Build the modules that generate each linear map and norm of a block."""
    with torch.device("meta"):
        parts = block(config).named_children()
    unit = lambda part: TimeLinear if isinstance(part, nn.Linear) else TimeNorm
    parts = {name: unit(part)(part, config.weights) for name, part in parts if not isinstance(part, nn.Dropout)}
    return nn.ModuleDict(parts)


def generate(networks, shared, times) -> dict:
    """Generate a block's tensors at `times`, stacked, from time networks; `shared` is the network of all, if any."""
    h = None if shared is None else shared(times)
    return {
        f"{name}.{leaf}": stack
        for name, unit in networks.items()
        for leaf, stack in unit(unit.network(times) if h is None else h).items()
    }


def interpolate(rows, times, edges, knots, basis, place, average=False, **_) -> dict:
    """Interpolate a block's tensors between the rows at the knots, `sum_k B_k(t) W_k`, stacked: at `times`, or, with
    `average`, as means over the steps between `edges`."""
    weights = mean_basis(edges, knots, basis, place) if average else cardinal_basis(times, knots, basis, place)
    named = [dict(row.named_parameters()) for row in rows]
    if any("base_layer" in name for name in named[0]):
        raise ValueError("adapters cannot be interpolated between knots; export the model at a number of steps.")
    stacks = {name: torch.stack([wide(row[name]) for row in named]) for name in named[0]}
    return {name: torch.tensordot(weights.to(stack), stack, 1) for name, stack in stacks.items()}


def mean_basis(edges, knots, basis, place):
    """Compute the mean of `B_k` over each step; the Gauss-Legendre rule is exact between edges and half knots."""
    breaks = torch.arange(1, 2 * knots, dtype=edges.dtype, device="cpu") / (2 * knots)
    ends = torch.cat([edges, breaks]).sort().values
    middle, half = (ends[:-1] + ends[1:]) / 2, ends.diff() / 2
    first, second = (cardinal_basis(middle + side * half / 3**0.5, knots, basis, place) for side in (-1, 1))
    pieces = half[:, None] * (first + second)
    within = (edges[:-1, None] <= middle) & (middle < edges[1:, None])
    return within.to(edges.dtype) @ pieces / edges.diff()[:, None]


def cardinal_basis(times, knots, basis, place):
    """`B_k(t)`, 1 at knot k and 0 at all others: piecewise linear (`hat`) or constant (`box`), or the natural cubic
    spline (`cubic`).

    Knots lie in the middles or at the ends of `knots` equal parts of depth; before the first knot and after the last
    one the weights are constant.
    """
    at = (times * knots - {"middle": 0.5, "end": 1.0}[place]).clamp(0, knots - 1)
    near = (2 * at).round() / 2  # a knot's own time may have a rounding error
    at = torch.where((at - near).abs() < 1e-9, near, at)
    left = at.floor().long().clamp(0, max(knots - 2, 0))
    right = (left + 1).clamp(max=knots - 1)
    b, unit = (at - left)[:, None], torch.eye(knots, dtype=times.dtype, device="cpu")
    b = (torch.sign(b - 0.5) + 1) / 2 if basis == "box" else b
    a = 1 - b
    rows = a * unit[left] + b * unit[right]
    if basis != "cubic" or knots < 3:
        return rows
    system, values = unit.clone(), torch.zeros_like(unit)  # the spline's second derivatives at the knots
    for k in range(1, knots - 1):
        system[k, k - 1 : k + 2] = torch.tensor([1, 4, 1], dtype=times.dtype)
        values[k, k - 1 : k + 2] = torch.tensor([6, -12, 6], dtype=times.dtype)
    bend = torch.linalg.solve(system, values)
    return rows + ((a**3 - a) * bend[left] + (b**3 - b) * bend[right]) / 6
