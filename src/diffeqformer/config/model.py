"""A model's settings: one point of the grid weights x field x scheme, each choice a section, and its sizes."""

import dataclasses
from dataclasses import dataclass
from typing import Literal

from diffeqformer.config.bounds import MOST_ENTRIES, MOST_STEPS, SIZES, setting
from diffeqformer.config.sections import (
    DropoutConfig,
    FieldConfig,
    GPTConfig,
    GradientSection,
    LayerConfig,
    LayerDropConfig,
    LlamaConfig,
    LoRAConfig,
    ModulationConfig,
    OwnConfig,
    RecursiveConfig,
    SchemeConfig,
    SchemeSection,
    SharedConfig,
    TimeConfig,
    ToleranceConfig,
    WeightsConfig,
)
from diffeqformer.config.strict import Choosing

Spacing = Literal["equal", "dyadic", "thirds"]
"""How depth is divided into a requested number of steps."""


@dataclass(frozen=True)
class ModelConfig(Choosing):
    """One point of the grid weights x field x scheme, and its sizes."""

    weights: WeightsConfig = TimeConfig()
    """How block weights depend on depth: `time` or `time-shared-mlp` networks, `knots`, a table for each of several
    numbers of steps (`levels`), one table (`layer`, `layerdrop`), or `shared`."""
    modulation: ModulationConfig | None = None
    """Norms and gains that also depend on the length of the step; `None` for a model without."""
    field: FieldConfig = GPTConfig()
    """What the block is: `gpt` or `llama`."""
    scheme: SchemeSection = SchemeConfig()
    """How a step is taken: euler, lie-trotter, euler-middle, lie-trotter-middle, macaron, strang, midpoint, heun, rk4,
    residual, reversible, or diffrax:NAME."""
    gradient: GradientSection | None = None
    """What a training step keeps: each depth step's state (`checkpointed`), all activations (`plain`), some states per
    level (`recursive`), or the last state alone (`reversible`, for the scheme of that name and its default). If not
    given, `checkpointed` for all other schemes."""
    tolerance: ToleranceConfig | None = None
    """Adaptive steps; if not given, steps are fixed."""
    horizon: Literal["unit", "steps"] | float = "unit"
    """Length of the depth interval: 1 (steps of 1/steps), the number of steps (steps of 1, as vanilla models), or a
    number."""
    steps: int = setting(6, least=1, most=MOST_STEPS)
    """Number of depth steps; for a table of layers, the number of layers."""
    first_step: float | None = setting(None, positive=True, fraction=True)
    """Length of the first step as a fraction of depth, whatever the number of steps; the others share the rest equally.
    If not given, all steps are equal."""
    spacing: Spacing = "equal"
    """Lengths of a requested number of steps: all equal, or those of the two nearest numbers among 1, 2, 4, 8, ...
    (`dyadic`) or 1, 2, 3, 4, 6, 8, 12, ... (`thirds`): a checkpoint trained at these meets no other lengths in between
    (`ode.grid.mixed_edges`)."""
    edges: tuple[float, ...] = ()
    """The steps + 1 times from 0 to 1 between unequal steps, as `populate` leaves them; if empty, steps are equal,
    or follow `first_step` or `spacing`."""
    width: int = setting(128, least=1, most=SIZES)
    """Size of the state of each token."""
    heads: int = setting(4, least=1, most=SIZES)
    """Attention heads."""
    hidden: int | None = setting(None, least=1, most=SIZES)
    """Width of the feed-forward block; 4 x width if not given."""
    context: int = setting(128, least=1, most=SIZES)
    """Tokens of the longest text; training reads texts of this length."""
    vocabulary: int | None = setting(None, least=1, most=MOST_ENTRIES)
    """Entries of the embedding; the tokenizer's own size if not given."""
    norm_epsilon: float = setting(1e-5, positive=True)
    """Added to the variance, or to the mean square in Llama's norms, before the root is taken."""
    init_std: float = setting(0.02, positive=True)
    """Standard deviation of initial embeddings and of initial block matrices, generated ones included."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of activations and of the block weights they meet; parameters and times stay float32."""
    embedding_norm: bool = False
    """Scale the state at depth 0 to unit root mean square: relative to it, steps then have the same size at any width
    and any `init_std` well above the root of `norm_epsilon`, which takes the stiffness out of the first one
    (docs/elastic-depth.md)."""
    final_norm_halvings: int | None = setting(None, least=0, most=12)
    """How many step lengths the final norm distinguishes besides the whole of depth: 1/2, 1/4, ..., halved this many
    times, and interpolated in between. If not given, one norm serves all numbers of steps."""
    tied: bool | None = None
    """Unembedding is the embedding, transposed; if not given: true for gpt, false for llama."""
    dropout: DropoutConfig = DropoutConfig()

    @property
    def interval(self) -> float:
        """Length of the depth interval in the state's own clock; an equal step is interval / steps."""
        return {"unit": 1.0, "steps": float(self.steps)}.get(self.horizon, self.horizon)  # pyright: ignore

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values."""
        return getattr(self.field, "kv_heads", None) or self.heads

    @property
    def head_width(self) -> int:
        """Width of a head."""
        return getattr(self.field, "head_width", None) or self.width // self.heads

    @property
    def final_norm_epsilon(self) -> float:
        """Epsilon of the final norm."""
        own = getattr(self.field, "final_norm_epsilon", None)
        return self.norm_epsilon if own is None else own

    @property
    def hidden_width(self) -> int:
        """Width of the feed-forward block."""
        return self.hidden or 4 * self.width

    @property
    def like_gpt(self) -> bool:
        """Whether the final norm is LayerNorm and the unembedding tied, as GPT's are."""
        kind = self.field.like if isinstance(self.field, OwnConfig) else self.field.kind
        return kind == "gpt"

    @property
    def learned_positions(self) -> bool:
        """Whether the embedding has a vector for each position."""
        return self.like_gpt and not self.rotary_width

    @property
    def rotary_width(self) -> int:
        """Number of entries of each head's query and key that rotary positions turn."""
        if isinstance(self.field, LlamaConfig):
            return self.head_width
        return int(self.head_width * (self.field.rotary or 0)) if isinstance(self.field, GPTConfig) else 0

    @property
    def time(self) -> TimeConfig | None:
        """The time networks that generate the weights, if any do."""
        return self.weights if isinstance(self.weights, TimeConfig) else None

    @property
    def continuous(self) -> bool:
        """Whether weights are functions of depth, so that the model runs on any grid; false for a user's own weights,
        of which a config cannot tell."""
        return not isinstance(self.weights, LayerConfig | LayerDropConfig | OwnConfig)

    @property
    def early_exits(self) -> bool:
        """Whether fewer steps are the first of more, so that one pass gives all depths (`Transformer.early_exits`)."""
        same = isinstance(self.weights, LayerDropConfig) and self.weights.early_exits
        same |= isinstance(self.weights, SharedConfig) and self.modulation is None
        residual = isinstance(self.scheme, SchemeConfig) and self.scheme.kind == "residual"
        # A recursive backward pass keeps fewer states than a reading of all depths needs.
        return same and residual and not isinstance(self.gradient, RecursiveConfig)

    @property
    def lora(self) -> LoRAConfig | None:
        """Low-rank adapters beside the weights, if there are any."""
        return getattr(self.weights, "lora", None)


def with_steps(config: ModelConfig, steps: int) -> ModelConfig:
    """Return the config of the model at another number of steps over the same interval of depth.

    Layers that are left out at fewer steps stay as many as they are.
    """
    horizon = config.interval if config.horizon == "steps" and steps != config.steps else config.horizon
    weights = config.weights
    if isinstance(weights, LayerDropConfig):
        weights = dataclasses.replace(weights, layers=weights.layers or config.steps)
    return dataclasses.replace(config, weights=weights, steps=steps, horizon=horizon, edges=())
