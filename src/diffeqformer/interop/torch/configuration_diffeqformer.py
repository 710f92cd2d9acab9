"""Settings of a DiffEqFormer for Hugging Face Transformers 5: its sizes, its weights, and how its depth is integrated.

Depth t runs from 0 to 1 in `steps` steps. A scheme computes one step from the blocks A and M at the scheme's nodes, the
points inside a step at which it needs weights.
Written by diffeqformer, which trains such models in JAX. This file needs torch and transformers only.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import torch
from transformers import PreTrainedConfig

ODD = {"dyadic": (1,), "thirds": (1, 3)}  # by spacing: factors of the numbers of steps that are equal


class OneStep(NamedTuple):
    """A scheme that carries only the state from step to step."""

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
        return x, x

    def step(self, a, m, states, dt):
        y, z = states
        kept = self.coupling**dt
        y = kept * y + (1 - kept) * z + self._increment(a, m, z, dt, lambda c: c)
        return y, z - self._increment(a, m, y, -dt, lambda c: 1.0 - c)

    def state(self, states):
        return states[0]

    def _increment(self, a, m, x, dt, place):
        """Return the base scheme's increment of x, with its node c at `place(c)`."""
        a = [a[self.attention_nodes.index(place(c))] for c in self.base.attention_nodes]
        m = [m[self.feed_forward_nodes.index(place(c))] for c in self.base.feed_forward_nodes]
        return self.base.advance(a, m, x, dt) - x


class EarlyExit:
    """A one-step scheme with early exit: once a token has settled, its state continues in a straight line.

    A token's prediction is the end of that line, after the final norm. A token has settled when a step moves its
    prediction by less than the threshold (root mean square).
    """

    def __init__(self, base: OneStep, threshold: float, horizon: float, normalise: Callable):
        if not hasattr(base, "advance"):
            raise ValueError("exit_threshold needs a scheme that carries the state alone; reversible carries two.")
        self.base, self.threshold, self.horizon, self.normalise = base, threshold, horizon, normalise
        self.attention_nodes, self.feed_forward_nodes = base.attention_nodes, base.feed_forward_nodes

    def start(self, x):
        return x, torch.zeros_like(x), self.normalise(x), None, self.horizon

    def step(self, a, m, carry, dt):
        x, slope, before, settled, left = carry
        new = (self.base.advance(a, m, x, dt) - x) / dt
        slope = new if settled is None else torch.where(settled, slope, new)
        x, left = x + dt * slope, left - dt
        end = self.normalise(x + left * slope)
        calm = (end - before).float().square().mean(-1, keepdim=True).sqrt() < self.threshold
        settled = torch.zeros_like(calm) if settled is None else settled | calm  # one step alone settles nothing
        return x, slope, end, settled, left

    def state(self, carry):
        x, slope, _, _, left = carry
        return x + left * slope

    def finished(self, carry):
        return bool(carry[3].all())


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
    "residual": OneStep((0.5,), (0.5,), 1, lambda a, m, x, dt: lie_trotter(a, m, x, 1)),  # layers, however many
}


class DiffEqFormerConfig(PreTrainedConfig):
    """Sizes of the model, where its weights come from, and how its depth is integrated."""

    model_type = "diffeqformer"
    keys_to_ignore_at_inference = ["past_key_values"]

    def __init__(
        self,
        family: str = "gpt",  # gpt: LayerNorm, GELU, biases, learned positions; llama: RMSNorm, SwiGLU, rotary
        # kind: time, time-shared-mlp or knots, functions of depth; shared, one row; layer, a row per step or node
        weights: dict = {"kind": "layer", "rows": "step"},  # noqa: B006
        scheme: str = "euler",  # one of SCHEMES, or "reversible"
        horizon: float = 1.0,  # length of the ODE's time interval, covered by depth 0 to 1
        steps: int = 6,
        first_step: float | None = None,  # as a fraction of depth; if None, all steps are equal
        spacing: str = "equal",  # dyadic, thirds: steps of two lengths, 1/2^j, or also 1/(3 2^j)
        edges: list[float] | None = None,  # boundaries of unequal steps from 0 to 1, used if they match steps
        reversible_base: str = "euler", reversible_coupling: float = 0.99,
        vocab_size: int = 2048, hidden_size: int = 128, intermediate_size: int = 512,
        num_attention_heads: int = 4, num_key_value_heads: int = 4, max_position_embeddings: int = 128,
        head_width: int | None = None,  # hidden_size / num_attention_heads if None
        biases: bool = False,  # llama's query, key and value have biases
        head_norms: bool = False,  # norms of each head's query and key
        rotary: float | None = None,  # gpt: the part of a head that rotary positions rotate; if None, they are learned
        exact_gelu: bool = False,  # gpt: GELU without the tanh approximation
        norm_epsilon: float = 1e-5, rope_theta: float = 10000.0,
        rotary_scaling: dict | None = None,  # Llama 3's: factor, low_freq_factor, high_freq_factor, original_context
        nested_norm: bool = False,  # M normalises the output of A's norm, not x
        norm_shift: bool = False,  # RMSNorms of blocks have a shift, too
        final_norm_epsilon: float | None = None,  # if not norm_epsilon
        embedding_norm: bool = False,  # the state at depth 0 has unit root mean square
        embedding_dropout: float = 0.0, attention_dropout: float = 0.0, residual_dropout: float = 0.0,
        # How the model was trained, for diffeqformer to read back. Here loading sets the precision; steps are fixed.
        compute_dtype: str = "float32", tolerance: dict | None = None,
        initializer_range: float = 0.02, use_cache: bool = True, tie_word_embeddings: bool = True, **kwargs,
    ):  # fmt: skip
        # All arguments are settings. `weights` is set before `steps`, whose check reads it.
        for name, value in {**locals()}.items():
            if name not in ("self", "kwargs", "__class__", "tie_word_embeddings"):
                setattr(self, name, value)
        # It is a property here, which cannot be set.
        kwargs.pop("num_hidden_layers", None)
        super().__init__(tie_word_embeddings=tie_word_embeddings, **kwargs)

    def __setattr__(self, name, value):
        if name == "steps":
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"steps is {value!r}, but must be a whole number of at least 1.")
            own = self.__dict__.get("steps", value)
            if self.weights["kind"] == "layer" and value != own:
                raise ValueError(f"this model is a table of {own} layers and cannot run at {value} steps.")
        super().__setattr__(name, value)

    @property
    def num_hidden_layers(self):
        """Number of layers with a key-value cache, as Transformers counts them: one for each evaluation of A."""
        return self.steps * self.method().attention_evaluations

    @property
    def head_dim(self):
        """Width of a head."""
        return self.head_width or self.hidden_size // self.num_attention_heads

    @property
    def learned_positions(self):
        """Whether the embedding has a vector for each position."""
        return self.family == "gpt" and self.rotary is None

    @property
    def turned(self):
        """Number of components of each head's query and key that rotary positions rotate."""
        return int(self.head_dim * self.rotary) if self.rotary else self.head_dim

    def method(self):
        """The scheme that the config names."""
        reversible = self.scheme == "reversible"
        base = SCHEMES[self.reversible_base if reversible else self.scheme]
        return Reversible(base, self.reversible_coupling) if reversible else base

    def grid(self):
        """The times of the step boundaries, from 0 to 1."""
        steps, first = self.steps, self.first_step
        if self.edges and len(self.edges) == steps + 1:
            return list(self.edges)
        if self.spacing in ODD:
            usual = sorted(factor << halved for factor in ODD[self.spacing] for halved in range(steps.bit_length() + 1))
            few = max(number for number in usual if number <= steps)
            many = min(number for number in usual if number > few)
            parts = many - few
            counts = [few // parts + (part >= many - steps) for part in range(parts)]
            places = ((part, count, step) for part, count in enumerate(counts) for step in range(count))
            return [*((part * count + step) / (parts * count) for part, count, step in places), 1.0]
        if first is None or steps == 1:
            return [step / steps for step in range(steps + 1)]
        return [0.0, *(first + step * (1 - first) / (steps - 1) for step in range(steps - 1)), 1.0]

    def times(self, nodes):
        """The times of all nodes of all steps, in the order of depth, float64."""
        # In float32 the fastest time features, sin(1000 t), would be off by 1e-4.
        return torch.tensor(
            [start + node * (end - start) for start, end in pairwise(self.grid()) for node in nodes],
            dtype=torch.float64, device="cpu",
        )  # fmt: skip
