"""The choices of a model's settings: each a section that builds its object.

A section is a small frozen dataclass whose `kind` names the choice and whose other fields are settings of that kind
alone: a setting that nothing would read cannot be written down. In YAML, on the command line and in Python a bare word
is short for its kind: `weights: layer` is `weights: {kind: layer}`. Beside other settings `kind` is keyword-only, so
that the first argument is one of these: `KnotsConfig(8)` has 8 knots.
"""

import dataclasses
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from diffeqformer.config.bounds import INT32, MOST_STEPS, SIZES, setting


class Section:
    """A choice whose object another module builds; it is imported only then, so that reading configs needs no JAX."""

    builder: ClassVar[str]
    """`module:function`; it takes the section as its first argument."""

    def build(self, *arguments: Any, **named: Any) -> Any:
        """Build the object that this section describes."""
        module, _, name = self.builder.partition(":")
        return getattr(import_module(module), name)(self, *arguments, **named)

    def __str__(self) -> str:
        return getattr(self, "kind", repr(self))


@dataclass(frozen=True)
class TimeConfig(Section):
    """Weights as smooth functions of depth: time features and time networks (paper eq. 6 and appendix A)."""

    builder: ClassVar[str] = "diffeqformer.ode.weights.time:init_time"

    kind: Literal["time", "time-shared-mlp"] = dataclasses.field(default="time", kw_only=True)
    """A network of time for each matrix and norm, or one for all of them (paper, appendix D.2)."""
    d_emb: int = setting(48, least=1, most=SIZES)
    """Width of the time networks, the paper's d_emb."""
    frequencies: int = setting(32, least=1, most=MOST_STEPS)
    """K: sines and cosines of K frequencies, so 2K+1 features."""
    highest_frequency: float | None = setting(None, positive=True)
    """Radians per unit of depth of the fastest feature. By default the paper's s, 1000; with `depth.sample`, twice
    `model.steps`, so that weights between the trained times are smooth."""
    lowest_frequency: float = setting(0.1, positive=True)
    """Where the geometric series of frequencies would end (it stops one ratio before): the paper's s / 10000."""

    @property
    def fastest(self) -> float:
        """`highest_frequency`, or the paper's."""
        return 1000.0 if self.highest_frequency is None else self.highest_frequency


@dataclass(frozen=True)
class LoRAConfig(Section):
    """Low-rank adapters on the linear maps of layers, knots or blocks (Hu et al. 2021): `W + alpha / rank A B`."""

    builder: ClassVar[str] = "diffeqformer.ode.lora:fitting_targets"

    rank: int = setting(8, least=1, most=SIZES)
    """Columns of A and rows of B."""
    alpha: float = setting(16.0, positive=True)
    """Adapters are scaled by alpha / rank."""
    dropout: float = setting(0.0, fraction=True)
    """Probability of dropping an adapter's input, in training only; 0 except in a table of layers."""
    targets: tuple[str, ...] = ("*",)
    """Which linear maps: names such as `attention.output` or `down`, or patterns such as `attention.*`."""


@dataclass(frozen=True)
class LayerConfig(Section):
    """Weights as a table of layers: vanilla transformers, and every populated model."""

    builder: ClassVar[str] = "diffeqformer.ode.weights.layer:init_layer"

    kind: Literal["layer"] = dataclasses.field(default="layer", kw_only=True)
    rows: Literal["step", "node"] = "step"
    """One row per step, shared by all of the scheme's nodes, or one for each node of each step."""
    lora: LoRAConfig | None = None
    """Low-rank adapters beside the table; `None` for a model without."""


@dataclass(frozen=True)
class KnotsConfig(Section):
    """Weights as a fixed cardinal basis over depth, interpolated between knots (Queiruga et al. 2021)."""

    builder: ClassVar[str] = "diffeqformer.ode.weights.knots:init_knots"

    kind: Literal["knots"] = dataclasses.field(default="knots", kw_only=True)
    knots: int | None = setting(None, least=1, most=MOST_STEPS)
    """K, whose parameters are those of a table of K layers; `model.steps` if not given."""
    basis: Literal["hat", "cubic", "box"] = "hat"
    """Piecewise linear, the natural cubic spline, or piecewise constant."""
    place: Literal["middle", "end"] = "middle"
    """Knots in the middles or at the ends of K equal parts of depth; constant before the first and after the last."""
    average: bool = False
    """A step takes the mean of the weights over it, instead of those at the scheme's nodes."""
    start: Literal["independent", "constant"] = "independent"
    """Initial knots: each as a layer of a table begins, or all alike, so that weights begin constant over depth."""
    rank: int | None = setting(None, least=1, most=SIZES)
    """Rank of corrections to each linear map of a knot, for steps of length 1, 1/2, 1/4, ..., interpolated in between;
    `None` for weights that depend on time alone."""
    halvings: int | None = setting(None, least=0, most=14)
    """How often the length 1 is halved until corrections distinguish no shorter ones; if not given, to the length of
    one of `model.steps`, or of as many steps as there are knots if these are more."""
    lora: LoRAConfig | None = None
    """Low-rank adapters beside the knots; `None` for a model without."""

    def halved(self, steps: int) -> int:
        """`halvings`, or its default at this many steps if not given."""
        return (max(self.knots or steps, steps) - 1).bit_length() if self.halvings is None else self.halvings


@dataclass(frozen=True)
class LevelsConfig(Section):
    """A table of layers for each of several numbers of steps; those in between divide some steps of the one below."""

    builder: ClassVar[str] = "diffeqformer.ode.weights.levels:init_levels"

    kind: Literal["levels"] = dataclasses.field(default="levels", kw_only=True)
    levels: tuple[int, ...] = setting((), least=1, most=MOST_STEPS)
    """Numbers of steps that have a table; 1, 2, 4, ... up to at least `model.steps` if empty."""
    lora: LoRAConfig | None = None
    """Low-rank adapters beside the blocks; `None` for a model without."""

    def of(self, steps: int) -> tuple[int, ...]:
        """Levels of a model of this many steps, in increasing order."""
        return tuple(sorted(self.levels)) or tuple(1 << halvings for halvings in range((steps - 1).bit_length() + 1))


@dataclass(frozen=True)
class LayerDropConfig(Section):
    """A table of layers that is read at fewer steps by leaving layers out (Fan et al. 2019)."""

    builder: ClassVar[str] = "diffeqformer.ode.weights.layer_drop:init_layer_drop"

    kind: Literal["layerdrop"] = dataclasses.field(default="layerdrop", kw_only=True)
    layers: int | None = setting(None, least=1, most=MOST_STEPS)
    """K, the number of layers; `model.steps` if not given."""
    nested: bool = False
    """Whether each number of steps also keeps the layers that all smaller numbers keep."""
    order: tuple[int, ...] = ()
    """Order, from 0, in which nested layers come in as steps are added; if empty, depth is always halved."""
    landings: int = setting(0, least=0, most=MOST_STEPS)
    """m, the number of last layers that each number of steps has of its own, after K - m nested ones."""
    rank: int | None = setting(None, least=1, most=SIZES)
    """Rank of corrections to each linear map of a nested layer at 1, 2, 4, ... steps, interpolated in between; `None`
    for layers that are the same at all depths."""

    @property
    def early_exits(self) -> bool:
        """Whether N steps have the first N layers, and each layer is the same at any number of steps."""
        return bool(self.order) and self.order == tuple(range(len(self.order))) and self.rank is None

    def rows(self, steps: int) -> int:
        """Number of layers, including those that numbers of steps have of their own."""
        m = self.landings  # K - m that are shared, and for each number of steps n up to K the smaller of n and m
        return (m + 1) * (2 * (self.layers or steps) - m) // 2


@dataclass(frozen=True)
class SharedConfig(Section):
    """The same weights at every depth (Zhong et al. 2022; ALBERT; Universal Transformer)."""

    builder: ClassVar[str] = "diffeqformer.ode.weights.shared:init_shared"

    kind: Literal["shared"] = "shared"


@dataclass(frozen=True)
class ModulationConfig(Section):
    """Norms and gains that also depend on the length of the step (LoopFormer, with `shared` weights)."""

    builder: ClassVar[str] = "diffeqformer.ode.weights.modulated:init_modulated"

    knots: int | None = setting(None, least=1, most=MOST_STEPS)
    """Knots over depth; `model.steps` if not given."""
    halvings: int = setting(4, least=0, most=12)
    """Lengths that are distinguished: 1, 1/2, 1/4, ..., halved this many times."""


@dataclass(frozen=True)
class GPTConfig(Section):
    """GPT's block: LayerNorm, GELU, biases, by default a tied unembedding; positions are learned, or rotary."""

    builder: ClassVar[str] = "diffeqformer.ode.field:transformer_field"

    kind: Literal["gpt"] = "gpt"
    rotary: float | None = setting(None, positive=True, most=1)
    """The part of a head's width that rotary positions turn, as in GPT-NeoX; positions are learned if not given."""
    rope_theta: float = setting(10000.0, positive=True)
    """Base of the rotary embedding's wavelengths."""
    exact_gelu: bool = False
    """The exact GELU, as in GPT-NeoX, not its tanh approximation."""


@dataclass(frozen=True)
class RotaryScalingConfig:
    """Llama 3's rotary embedding: slow frequencies divided by a factor, so that texts can be longer than trained."""

    factor: float = setting(8.0, positive=True)
    """How many times longer texts can be."""
    low_freq_factor: float = setting(1.0, positive=True)
    """Frequencies that turn fewer times over the original context are divided by `factor`."""
    high_freq_factor: float = setting(4.0, positive=True)
    """Frequencies that turn more often are kept; in between, both are mixed."""
    original_context: int = setting(8192, least=1, most=INT32)
    """Tokens of context before it was stretched."""


@dataclass(frozen=True)
class LlamaConfig(Section):
    """Llama's block: RMSNorm, SwiGLU, rotary positions, grouped queries, no biases, or those of Qwen if asked for."""

    builder: ClassVar[str] = "diffeqformer.ode.field:transformer_field"

    kind: Literal["llama"] = dataclasses.field(default="llama", kw_only=True)
    kv_heads: int | None = setting(None, least=1, most=SIZES)
    """Heads of keys and values, each shared by heads / kv_heads query heads; `model.heads` if not given."""
    nested_norm: bool = False
    """Feed-forward blocks normalise the already normalised attention input, as the authors' Llama does."""
    head_width: int | None = setting(None, least=2, most=SIZES)
    """Width of a head; `model.width` / `model.heads` if not given."""
    biases: bool = False
    """Query, key and value have biases, as in Qwen 2."""
    head_norms: bool = False
    """RMSNorms of each head's query and key, as in Qwen 3."""
    rope_theta: float = setting(10000.0, positive=True)
    """Base of the rotary embedding's wavelengths."""
    rope_scaling: RotaryScalingConfig | None = None
    """How rotary frequencies are changed for longer texts, as in Llama 3; `None` if they are not."""
    norm_shift: bool = False
    """The blocks' RMSNorms add a shift, as those of the authors' Llama do, which depend on time."""
    final_norm_epsilon: float | None = setting(None, positive=True)
    """Epsilon of the final norm, if not `model.norm_epsilon`; the authors' Llama has 1e-5 there and 1e-6 in blocks."""


@dataclass(frozen=True)
class ReversibleConfig(Section):
    """Any one-step scheme made reversible by a second state (McCallum & Foster 2024)."""

    builder: ClassVar[str] = "diffeqformer.ode.schemes:reversible_scheme"

    kind: Literal["reversible"] = dataclasses.field(default="reversible", kw_only=True)
    base: str = "euler"
    """Scheme whose steps are made reversible; each reversible step takes two of them."""
    coupling: float = setting(0.99, positive=True, most=1)
    """lambda, in (0, 1]: what is left of the difference of the two states after a length of 1 (`model.horizon`);
    reconstruction errors grow by 1 / lambda over it."""


@dataclass(frozen=True)
class SchemeConfig(Section):
    """A scheme by its name alone."""

    builder: ClassVar[str] = "diffeqformer.ode.schemes:named_scheme"

    names: ClassVar[tuple[str, ...]] = (
        "euler", "lie-trotter", "euler-middle", "lie-trotter-middle", "macaron", "strang", "midpoint", "heun", "rk4",
        "residual",
    )  # fmt: skip
    """Names that shells complete: the library's own, which it knows only once JAX is loaded."""

    kind: str = "euler"
    """euler, lie-trotter, euler-middle, lie-trotter-middle, macaron, strang, midpoint, heun, rk4, residual, or
    diffrax:NAME."""


@dataclass(frozen=True)
class OwnConfig(Section):
    """A user's own object, given to `build`; a file can name it, but only `build` can make it again."""

    builder: ClassVar[str] = "diffeqformer.model.build:refuse_own"

    kind: Literal["own"] = dataclasses.field(default="own", kw_only=True)
    name: str = ""
    """Module and name of its class."""
    like: str = ""
    """The kind of the field that it replaces, whose embedding, final norm and head go with it."""
    kv_heads: int | None = None
    """That of the field that it replaces, as are the next two."""
    head_width: int | None = None
    final_norm_epsilon: float | None = None


@dataclass(frozen=True)
class RecursiveConfig(Section):
    """Gradients by recursive checkpointing (Griewank 1992)."""

    builder: ClassVar[str] = "diffeqformer.ode.adjoints:adjoint_of"

    kind: Literal["recursive"] = dataclasses.field(default="recursive", kw_only=True)
    checkpoints: int = setting(4, least=2, most=SIZES)
    """States that are kept at each level of the recursion."""


@dataclass(frozen=True)
class GradientConfig(Section):
    """What a training step keeps for the backward pass: the state of each step, or all activations, or the last state
    alone (for the scheme `reversible`)."""

    builder: ClassVar[str] = "diffeqformer.ode.adjoints:adjoint_of"

    kind: Literal["checkpointed", "plain", "reversible"] = "checkpointed"


@dataclass(frozen=True)
class ToleranceConfig(Section):
    """Adaptive steps: a PID controller keeps the error estimate of each step below `atol + rtol |x|`."""

    builder: ClassVar[str] = "diffeqformer.ode.adaptive:adaptive_solver"

    rtol: float = setting(1e-3, positive=True)
    """Relative tolerance."""
    atol: float = setting(1e-6, positive=True)
    """Absolute tolerance."""
    max_steps: int = setting(4096, least=1, most=INT32)
    """Steps after which an adaptive solve fails."""


@dataclass(frozen=True)
class DropoutConfig:
    """Probabilities of dropping, in training only."""

    embedding: float = setting(0.0, fraction=True)
    """Of an entry of the state at depth 0."""
    attention: float = setting(0.0, fraction=True)
    """Of an attention weight."""
    residual: float = setting(0.0, fraction=True)
    """Of an entry of what attention and feed-forward add to the state."""


WeightsConfig = TimeConfig | KnotsConfig | LevelsConfig | LayerConfig | LayerDropConfig | SharedConfig | OwnConfig
FieldConfig = GPTConfig | LlamaConfig | OwnConfig
SchemeSection = SchemeConfig | ReversibleConfig | OwnConfig
GradientSection = GradientConfig | RecursiveConfig
if not TYPE_CHECKING:  # see `Choosing`
    WeightsConfig, FieldConfig, SchemeSection = WeightsConfig | str, FieldConfig | str, SchemeSection | str
    GradientSection = GradientSection | str
