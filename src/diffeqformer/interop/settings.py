"""The settings of config.json that a model's numbers depend on, each with our corresponding setting."""

from collections.abc import Iterator
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Any, Literal, get_type_hints

from diffeqformer.config import (
    KnotsConfig,
    LayerConfig,
    LlamaConfig,
    ModelConfig,
    RotaryScalingConfig,
    SharedConfig,
    TimeConfig,
    ToleranceConfig,
    choices_of,
    from_dict,
    to_dict,
)  # fmt: skip
from diffeqformer.config.strict import section_of
from diffeqformer.errors import BadInput
from diffeqformer.plain import Document, Values


def _is(ours: str, default: Any = MISSING, alias: str | None = None) -> Any:
    """Declare the setting of theirs for `ours` in our `ModelConfig` (dotted inside a section), also named `alias`."""
    return field(default=default, metadata={"ours": ours, "alias": alias})


def _only(value: Any) -> Any:
    """Declare a setting that can be represented with this value only."""
    return field(default=value, metadata={"only": value})


@dataclass(frozen=True)
class GPT2Settings:
    """The settings of a GPT-2 in config.json; defaults are those of Transformers."""

    n_embd: int = _is("width", alias="hidden_size")
    n_layer: int = _is("steps", alias="num_hidden_layers")
    n_head: int = _is("heads", alias="num_attention_heads")
    n_positions: int = _is("context", alias="max_position_embeddings")
    vocab_size: int = _is("vocabulary")
    n_inner: int | None = _is("hidden", None)
    # All but gelu are its tanh approximation.
    activation_function: Literal["gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu"] = "gelu_new"
    layer_norm_epsilon: float = _is("norm_epsilon", 1e-5)
    tie_word_embeddings: bool = _is("tied", True)
    embd_pdrop: float = _is("dropout.embedding", 0.1)
    attn_pdrop: float = _is("dropout.attention", 0.1)
    resid_pdrop: float = _is("dropout.residual", 0.1)
    scale_attn_weights: bool = _only(True)
    scale_attn_by_inverse_layer_idx: bool = _only(False)
    reorder_and_upcast_attn: bool = _only(False)
    add_cross_attention: bool = _only(False)

    def more(self, values: Values) -> Document:
        """Return those of our settings that are expressed differently."""
        hidden = 4 * self.n_embd if self.n_inner is None else self.n_inner
        return {"hidden": hidden, "field.exact_gelu": self.activation_function == "gelu"}


@dataclass(frozen=True)
class GPTNeoXSettings:
    """The settings of a GPT-NeoX, such as Pythia; before Transformers 5, two of them have other names."""

    hidden_size: int = _is("width")
    intermediate_size: int = _is("hidden")
    num_hidden_layers: int = _is("steps")
    num_attention_heads: int = _is("heads")
    max_position_embeddings: int = _is("context")
    vocab_size: int = _is("vocabulary")
    layer_norm_eps: float = _is("norm_epsilon", 1e-5)
    tie_word_embeddings: bool = _is("tied", False)
    attention_dropout: float = _is("dropout.attention", 0.0)
    hidden_dropout: float = _is("dropout.residual", 0.0)
    hidden_act: Literal["gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast"] = "gelu"
    use_parallel_residual: bool = True
    attention_bias: bool = _only(True)

    def more(self, values: Values) -> Document:
        """Return those of our settings that follow from several of theirs, or are expressed differently."""
        old = {name: values.get(name) for name in ("rotary_emb_base", "rotary_pct")}
        rope = read_settings(NeoXRopeSettings, old | rope_of({**values, "rope_theta": None}))
        top = values.get("rope_theta")  # which Transformers ignores in this family
        if top not in (None, rope.rope_theta):
            raise BadInput(
                f"rope_theta is {top!r}, but a GPT-NeoX reads that of rope_parameters or rotary_emb_base, here "
                f"{rope.rope_theta!r}; keep one of them, in rope_parameters."
            )
        return {
            **dict(ours_of(rope)),
            "dropout.embedding": self.hidden_dropout,
            "field.exact_gelu": self.hidden_act == "gelu",
            "scheme.kind": "euler" if self.use_parallel_residual else "lie-trotter",
        }


@dataclass(frozen=True)
class NeoXRopeSettings:
    """Rotary embedding of a GPT-NeoX."""

    rope_theta: float = _is("field.rope_theta", 10000.0, alias="rotary_emb_base")
    partial_rotary_factor: float = _is("field.rotary", 0.25, alias="rotary_pct")
    rope_type: str = _only("default")


@dataclass(frozen=True)
class LlamaSettings:
    """The settings of a Llama in config.json; defaults are those of Transformers."""

    hidden_size: int = _is("width")
    intermediate_size: int = _is("hidden")
    num_hidden_layers: int = _is("steps")
    num_attention_heads: int = _is("heads")
    max_position_embeddings: int = _is("context")
    vocab_size: int = _is("vocabulary")
    num_key_value_heads: int | None = _is("field.kv_heads", None)
    head_dim: int | None = _is("field.head_width", None)
    hidden_act: Literal["silu", "swish"] = "silu"
    rms_norm_eps: float = _is("norm_epsilon", 1e-6)
    tie_word_embeddings: bool = _is("tied", False)
    attention_dropout: float = _is("dropout.attention", 0.0)
    attention_bias: bool = _only(False)
    mlp_bias: bool = _only(False)
    use_sliding_window: bool = _only(False)
    partial_rotary_factor: float = _only(1.0)

    def more(self, values: Values) -> Document:
        """Return those of our settings that stand in a table of their own, or whose defaults depend on others."""
        rope = read_settings(RopeSettings, rope_of(values))
        usual = self.head_dim == self.hidden_size / max(self.num_attention_heads, 1)  # 0 heads are refused later
        kv_heads = self.num_attention_heads if self.num_key_value_heads is None else self.num_key_value_heads
        return {
            **dict(ours_of(rope)),
            "field.rope_scaling": rope.scaling,
            "field.head_width": None if usual else self.head_dim,
            "field.kv_heads": kv_heads,
        }


@dataclass(frozen=True)
class MistralSettings(LlamaSettings):
    """The settings of a Mistral; its sliding window has no effect on texts no longer than the window."""

    def more(self, values: Values) -> Document:
        """Return what a Llama's returns, and a context of at most the window."""
        # How many tokens a token attends to, itself included. Null is all, not the default.
        window = values.get("sliding_window", 4096)
        if window is not None and (isinstance(window, bool) or not isinstance(window, int) or window < 1):
            raise BadInput(f"sliding_window is {window!r}, but must be a whole number of at least 1, or null.")
        context = self.max_position_embeddings
        return super().more(values) | {"context": min(context, window or context)}


@dataclass(frozen=True)
class Qwen3Settings(LlamaSettings):
    """The settings of a Qwen 3, which has its own default head width."""

    head_dim: int | None = _is("field.head_width", 128)


@dataclass(frozen=True)
class RopeSettings:
    """Rotary embedding of a Llama: `rope_parameters`, or `rope_scaling` and `rope_theta` before Transformers 5."""

    rope_theta: float = _is("field.rope_theta", 10000.0)
    rope_type: Literal["default", "llama3"] = "default"
    partial_rotary_factor: float = _only(1.0)
    factor: float | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    original_max_position_embeddings: int | None = None

    @property
    def scaling(self) -> Document | None:
        """The same scaling as our `field.rope_scaling`; `None` for the default type."""
        if self.rope_type == "default":
            return None
        scaling = {ours: getattr(self, theirs) for ours, theirs in SCALING.items()}
        for ours, theirs in SCALING.items():
            if scaling[ours] is None:
                raise BadInput(f"{theirs} is not given, but must be for rope_type {self.rope_type!r}.")
        return scaling


@dataclass(frozen=True)
class OwnSettings:
    """The settings of `torch/configuration_diffeqformer.py` in config.json."""

    family: Literal["gpt", "llama"] = _is("field.kind")
    scheme: str = _is("scheme.kind")
    horizon: float = _is("horizon")
    steps: int = _is("steps")
    hidden_size: int = _is("width")
    intermediate_size: int = _is("hidden")
    num_attention_heads: int = _is("heads")
    num_key_value_heads: int = _is("field.kv_heads")
    max_position_embeddings: int = _is("context")
    vocab_size: int = _is("vocabulary")
    norm_epsilon: float = _is("norm_epsilon")
    tie_word_embeddings: bool = _is("tied")
    weights: TimeConfig | KnotsConfig | LayerConfig | SharedConfig = _is("weights", LayerConfig())
    reversible_base: str = _is("scheme.base", "euler")
    reversible_coupling: float = _is("scheme.coupling", 0.99)
    nested_norm: bool = _is("field.nested_norm", False)
    head_width: int | None = _is("field.head_width", None)
    biases: bool = _is("field.biases", False)
    head_norms: bool = _is("field.head_norms", False)
    rotary: float | None = _is("field.rotary", None)
    exact_gelu: bool = _is("field.exact_gelu", False)
    rope_theta: float = _is("field.rope_theta", 10000.0)
    rotary_scaling: RotaryScalingConfig | None = _is("field.rope_scaling", None)
    norm_shift: bool = _is("field.norm_shift", False)
    final_norm_epsilon: float | None = _is("field.final_norm_epsilon", None)
    embedding_norm: bool = _is("embedding_norm", False)
    first_step: float | None = _is("first_step", None)
    spacing: Literal["equal", "dyadic", "thirds"] = _is("spacing", "equal")
    edges: tuple[float, ...] = _is("edges", ())
    compute_dtype: Literal["float32", "bfloat16"] = _is("compute_dtype", "float32")
    tolerance: ToleranceConfig | None = _is("tolerance", None)
    embedding_dropout: float = _is("dropout.embedding", 0.0)
    attention_dropout: float = _is("dropout.attention", 0.0)
    residual_dropout: float = _is("dropout.residual", 0.0)


SCALING = {
    "factor": "factor",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "original_context": "original_max_position_embeddings",
}
"""Their names of the settings of `RotaryScalingConfig`, by our names."""


def read_settings(cls: type, values: Values) -> Any:
    """Read the settings that `cls` names, and check their types; all others are ignored. Null counts as not given."""
    known = {key: value for key, value in values.items() if key in get_type_hints(cls) and value is not None}
    for setting in fields(cls):
        alias = setting.metadata.get("alias")
        value = values.get(alias) if alias else None
        if value is not None and known.setdefault(setting.name, value) != value:
            raise BadInput(
                f"{setting.name} is {known[setting.name]!r}, but {alias}, its other name, {value!r}; keep one of them."
            )
        if setting.default is MISSING and setting.name not in known:
            raise BadInput(f"{setting.name} is not given, but must be: the model's numbers depend on it.")
    settings = from_dict(cls, known)
    for setting in fields(cls):
        if "only" in setting.metadata:
            require(setting.name, getattr(settings, setting.name), setting.metadata["only"])
    return settings


def ours_of(settings: Any) -> Iterator[tuple[str, Any]]:
    """Yield our settings by their dotted names, as `from_dict` takes them."""
    for setting in fields(settings):
        if "ours" in setting.metadata:
            value = getattr(settings, setting.name)
            yield setting.metadata["ours"], to_dict(value) if is_dataclass(value) else value


def of_own_kinds(settings: OwnSettings, model: Document) -> Document:
    """Return `model` without the settings of kinds other than its own; our own class stores those of all kinds.

    **Raises:** `BadInput` if one of them is not at its default: the exported class may read it, though ours does not.
    """
    if isinstance(settings.weights, LayerConfig | KnotsConfig):
        require("weights.lora", settings.weights.lora, None)
    if isinstance(settings.weights, KnotsConfig):
        require("weights.rank", settings.weights.rank, None)
    choices = choices_of(ModelConfig)
    sections = {name: section_of(choices[name], model[f"{name}.kind"], name) for name in ("field", "scheme")}
    for setting in fields(settings):
        ours = setting.metadata["ours"]
        section, _, name = ours.rpartition(".")
        if section in sections and not hasattr(sections[section], name):
            default = settings.num_attention_heads if setting.default is MISSING else setting.default
            require(setting.name, getattr(settings, setting.name), default)
            model = {key: value for key, value in model.items() if key != ours}
    return model


def rope_of(values: Values) -> Document:
    """Collect the rotary embedding's settings, wherever the version of Transformers wrote them."""
    outside = ("rope_theta", "original_max_position_embeddings")
    given = {name: values[name] for name in outside if values.get(name) is not None}
    for key in ("rope_scaling", "rope_parameters"):
        table = values.get(key) or {}
        if not isinstance(table, dict):
            raise BadInput(f"{key} is {table!r}, but must be a table of settings.")
        for written, value in table.items():
            name = "rope_type" if written == "type" else written  # its name before Transformers 4.43
            if value is None:
                continue
            if isinstance(value, dict):  # of one kind of layers
                raise BadInput(f"{key} has a table for {written!r}, but must have one rotary embedding for all layers.")
            before = given.setdefault(name, value)
            if before is not value and before != value:  # versions of Transformers differ in which of them they read
                raise BadInput(f"{key} has {name} {value!r}, but another place has {given[name]!r}; keep one of them.")
    defaults = {"rope_type": "default", "original_max_position_embeddings": values.get("max_position_embeddings")}
    return defaults | given


def rope_parameters(field: LlamaConfig) -> Document:
    """Return the rotary embedding's settings as Transformers 5 writes them."""
    if field.rope_scaling is None:
        return {"rope_type": "default", "rope_theta": field.rope_theta}
    scaling = {theirs: getattr(field.rope_scaling, ours) for ours, theirs in SCALING.items()}
    return {"rope_type": "llama3", "rope_theta": field.rope_theta, **scaling}


def require(name: str, found: Any, value: Any) -> None:
    """Check that a setting has the only value that can be represented."""
    if found != value:
        raise BadInput(f"{name} is {found!r}, but must be {value!r}: a model with another one cannot be imported.")
