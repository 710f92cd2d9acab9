"""The families of models that Hugging Face and this library share: GPT-2, Llama, and our own class.

A family is two tables. The settings of config.json that a model's numbers depend on, each with the setting of ours that
it is, so that one list serves reading and writing. And the names of tensors, `ours: theirs`, which are one to one.
"""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import reduce
from typing import Any, Literal, NamedTuple, get_type_hints

from diffeqformer.config import (
    LlamaConfig,
    ModelConfig,
    OwnConfig,
    ReversibleConfig,
    choices_of,
    from_dict,
    section_of_kind,
)
from diffeqformer.errors import BadInput
from diffeqformer.ode.schemes import SCHEMES, OneStep

OWN = "diffeqformer"
"""The model_type of `torch/modeling_diffeqformer.py`."""
HEAD = "head"
VANILLA = {"weights.kind": "layer", "scheme.kind": "lie-trotter", "horizon": "steps"}
_SCHEMES = tuple(name for name, scheme in SCHEMES.items() if isinstance(scheme, OneStep) and ":" not in name)
"""Those that `torch/modeling_diffeqformer.py` has, and `reversible` over them."""


def _is(ours: str, default: Any = MISSING) -> Any:
    """A setting of theirs that is our `ModelConfig`'s `ours` (dotted inside a section)."""
    return field(default=default, metadata={"ours": ours})


def _only(value: Any) -> Any:
    """A setting that can be represented with this value alone."""
    return field(default=value, metadata={"only": value})


@dataclass(frozen=True)
class GPT2Settings:
    """The settings of a GPT-2 in config.json; defaults are those of Transformers."""

    n_embd: int = _is("width")
    n_layer: int = _is("steps")
    n_head: int = _is("heads")
    n_positions: int = _is("context")
    vocab_size: int = _is("vocabulary")
    n_inner: int | None = _is("hidden", None)
    activation_function: Literal["gelu_new", "gelu_pytorch_tanh"] = "gelu_new"
    layer_norm_epsilon: float = _is("norm_epsilon", 1e-5)
    tie_word_embeddings: bool = _is("tied", True)
    embd_pdrop: float = _is("dropout.embedding", 0.1)
    attn_pdrop: float = _is("dropout.attention", 0.1)
    resid_pdrop: float = _is("dropout.residual", 0.1)
    scale_attn_weights: bool = _only(True)
    scale_attn_by_inverse_layer_idx: bool = _only(False)
    reorder_and_upcast_attn: bool = _only(False)
    add_cross_attention: bool = _only(False)


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
    head_dim: int | None = None
    hidden_act: Literal["silu", "swish"] = "silu"
    rms_norm_eps: float = _is("norm_epsilon", 1e-6)
    tie_word_embeddings: bool = _is("tied", False)
    attention_dropout: float = _is("dropout.attention", 0.0)
    attention_bias: bool = _only(False)
    mlp_bias: bool = _only(False)


@dataclass(frozen=True)
class RopeSettings:
    """Rotary embedding of a Llama: `rope_parameters`, before Transformers 5 `rope_scaling` and `rope_theta`."""

    rope_theta: float = _is("field.rope_theta", 10000.0)
    rope_type: str = _only("default")
    partial_rotary_factor: float = _only(1.0)


@dataclass(frozen=True)
class OwnSettings:
    """The settings of `torch/modeling_diffeqformer.py` in config.json."""

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
    layer_rows: Literal["step", "node"] = _is("weights.rows", "step")
    reversible_base: str = _is("scheme.base", "euler")
    reversible_coupling: float = _is("scheme.coupling", 0.99)
    nested_norm: bool = _is("field.nested_norm", False)
    rope_theta: float = _is("field.rope_theta", 10000.0)
    norm_shift: bool = _is("field.norm_shift", False)
    final_norm_epsilon: float | None = _is("field.final_norm_epsilon", None)
    embedding_norm: bool = _is("embedding_norm", False)
    first_step: float | None = _is("first_step", None)
    embedding_dropout: float = _is("dropout.embedding", 0.0)
    attention_dropout: float = _is("dropout.attention", 0.0)
    residual_dropout: float = _is("dropout.residual", 0.0)


class Family(NamedTuple):
    """How a family is stored: settings, and names of tensors without the prefix that not all files have."""

    settings: type
    fixed: dict[str, Any]
    """Settings of ours that all models of this family share."""
    architecture: str
    """The class in Transformers."""
    prefix: str
    """Before all names but the head's."""
    outside: dict[str, str]
    block: str
    """What stands before a block's own names, with the number of the layer to fill in."""
    inside: dict[str, tuple[str, ...]]
    """Arrays of a block; several of theirs are side by side in ours."""
    outputs_first: bool
    """Their matrices are (outputs, inputs), as torch.nn.Linear's, not (inputs, outputs), as GPT-2's and ours."""
    buffers: str
    """Tensors of these names are no parameters: masks and tables that older versions stored."""

    def config(self, values: Mapping[str, Any]) -> ModelConfig:
        """The model that a config.json of this family describes.

        **Raises:** `BadInput` for a setting that is missing, of a wrong type, or cannot be represented.
        """
        settings = _read(self.settings, values)
        model = self.fixed | dict(_ours(settings))
        if self.settings is LlamaSettings:
            model |= _ours(_read(RopeSettings, _rope(values)))
            _require_head_dim(settings)
        if model["hidden"] is None:
            model["hidden"] = 4 * model["width"]
        if self.settings is OwnSettings:
            model = _of_own_kinds(settings, model)
        elif model.get("field.kv_heads", 0) is None:
            model["field.kv_heads"] = model["heads"]
        sections: dict[str, Any] = {}
        for name, value in model.items():
            section, _, key = name.rpartition(".")
            (sections.setdefault(section, {}) if section else sections)[key] = value
        return from_dict(ModelConfig, sections)

    def values(self, m: ModelConfig) -> dict[str, Any]:
        """What `config` reads, of a populated model.

        **Raises:** `BadInput` for a field, a scheme or a grid that `torch/modeling_diffeqformer.py` does not have.
        """
        if self.settings is OwnSettings:
            _require_own_class(m)
        if m.edges:
            raise BadInput(
                "the model's steps are unequal, as no exported class has them; export it at a number of steps."
            )
        m = replace(m, vocabulary=m.vocabulary or 0, horizon=m.interval, hidden=m.hidden_width, tied=bool(m.tied))
        own = {"field.kv_heads": m.kv_heads}
        found = {}
        for setting in fields(self.settings):
            ours = setting.metadata.get("ours")
            default = setting.default if setting.default is not MISSING else None
            value = default if ours is None else reduce(lambda at, name: getattr(at, name, default), ours.split("."), m)
            found[setting.name] = own.get(ours or "", value)
        if self.settings is LlamaSettings:
            found["head_dim"] = m.width // m.heads
            found["rope_parameters"] = {"rope_type": "default", "rope_theta": getattr(m.field, "rope_theta", None)}
        return found


# The arrays of a block in our own class. Attention and feed-forward may have different numbers of rows (of layers, or
# of a scheme's nodes), so that the row's number stands after the part's name, not before it.
_LINEAR = [f"{part}.{end}" for part in ("query_key_value", "output", "up", "down") for end in ("weight", "bias")]
_ATTENTION = ["norm.scale", "norm.shift", *_LINEAR[:4]]
_FEED_FORWARD = ["norm.scale", "norm.shift", *_LINEAR[4:], "gate.weight"]
_TORCH = {"norm.scale": "norm.weight", "norm.shift": "norm.bias"}
_OWN_BLOCK = {
    f"{part}.{name}": (f"{part}.{{}}.{_TORCH.get(name, name)}",)
    for part, names in (("attention", _ATTENTION), ("feed_forward", _FEED_FORWARD))
    for name in names
}

_ENDS = ("weight", "bias")
_GPT2_BLOCK = {
    "attention.norm": "ln_1", "attention.query_key_value": "attn.c_attn", "attention.output": "attn.c_proj",
    "feed_forward.norm": "ln_2", "feed_forward.up": "mlp.c_fc", "feed_forward.down": "mlp.c_proj",
}  # fmt: skip

FAMILIES = {
    "gpt2": Family(
        settings=GPT2Settings,
        fixed={"field.kind": "gpt", **VANILLA},
        architecture="GPT2LMHeadModel",
        prefix="transformer.",
        outside={
            "embedding.tokens": "wte.weight",
            "embedding.positions": "wpe.weight",
            "final_norm.scale": "ln_f.weight",
            "final_norm.shift": "ln_f.bias",
            HEAD: "lm_head.weight",
        },
        block="h.{}.",
        inside={
            f"{ours}.{end}": (f"{theirs}.{name}",)
            for ours, theirs in _GPT2_BLOCK.items()
            for end, name in zip(("scale", "shift") if "norm" in ours else _ENDS, _ENDS, strict=True)
        },
        outputs_first=False,
        buffers=r"h\.\d+\.attn\.(bias|masked_bias)",
    ),
    "llama": Family(
        settings=LlamaSettings,
        fixed={"field.kind": "llama", **VANILLA},
        architecture="LlamaForCausalLM",
        prefix="model.",
        outside={"embedding.tokens": "embed_tokens.weight", "final_norm.scale": "norm.weight", HEAD: "lm_head.weight"},
        block="layers.{}.",
        inside={
            "attention.norm.scale": ("input_layernorm.weight",),
            "attention.query_key_value.weight": tuple(f"self_attn.{part}_proj.weight" for part in "qkv"),
            "attention.output.weight": ("self_attn.o_proj.weight",),
            "feed_forward.norm.scale": ("post_attention_layernorm.weight",),
            **{f"feed_forward.{part}.weight": (f"mlp.{part}_proj.weight",) for part in ("up", "down", "gate")},
        },
        outputs_first=True,
        buffers=r"(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",
    ),
    OWN: Family(
        settings=OwnSettings,
        fixed={"weights.kind": "layer"},
        architecture="DiffEqFormerForCausalLM",
        prefix="",
        outside={
            "embedding.tokens": "embedding.tokens.weight",
            "embedding.positions": "embedding.positions.weight",
            "final_norm.scale": "final_norm.weight",
            "final_norm.shift": "final_norm.bias",
            HEAD: "head.weight",
        },
        block="",
        inside=_OWN_BLOCK,
        outputs_first=True,
        buffers=r"(?!)",  # none
    ),
}


def kind_of(m: ModelConfig) -> str:
    """The model_type that a populated model is: GPT-2's or Llama's if their classes give its numbers, else our own."""
    plain_steps = m.interval == m.steps and m.first_step is None and getattr(m.weights, "rows", "step") == "step"
    stock = m.scheme.kind == "lie-trotter" and plain_steps and not isinstance(m.field, OwnConfig)
    stock = stock and not m.embedding_norm
    if isinstance(m.field, LlamaConfig):
        stock = stock and not (m.field.nested_norm or m.field.norm_shift) and m.final_norm_epsilon == m.norm_epsilon
    if stock and m.field.kind == "gpt":
        return "gpt2"
    drops = m.dropout.embedding or m.dropout.residual  # which Llama has not
    return "llama" if stock and not drops else OWN


def _read(cls: type, values: Mapping[str, Any]) -> Any:
    """The settings that `cls` names, of the right types; all others are about something else. Null is not given."""
    known = {key: value for key, value in values.items() if key in get_type_hints(cls) and value is not None}
    for setting in fields(cls):
        if setting.default is MISSING and setting.name not in known:
            raise BadInput(f"{setting.name} is not given, but must be: the model's numbers depend on it.")
    settings = from_dict(cls, known)
    for setting in fields(cls):
        if "only" in setting.metadata:
            _require(setting.name, getattr(settings, setting.name), setting.metadata["only"])
    return settings


def _ours(settings: Any) -> Iterator[tuple[str, Any]]:
    """Our settings, by their dotted names."""
    for setting in fields(settings):
        if "ours" in setting.metadata:
            yield setting.metadata["ours"], getattr(settings, setting.name)


def _of_own_kinds(settings: OwnSettings, model: dict[str, Any]) -> dict[str, Any]:
    """Our own class stores the settings of all kinds: `model` without those of other kinds than its own.

    **Raises:** `BadInput` if one of them is not at its default: its class may read what ours does not.
    """
    choices = choices_of(ModelConfig)
    sections = {name: section_of_kind(choices[name], model[f"{name}.kind"]) for name in ("field", "scheme")}
    for setting in fields(settings):
        ours = setting.metadata["ours"]
        section, _, name = ours.rpartition(".")
        if section in sections and not hasattr(sections[section], name):
            default = settings.num_attention_heads if setting.default is MISSING else setting.default
            _require(setting.name, getattr(settings, setting.name), default)
            model = {key: value for key, value in model.items() if key != ours}
    return model


def _rope(values: Mapping[str, Any]) -> dict[str, Any]:
    """The rotary embedding's settings, wherever this version of Transformers wrote them."""
    given = {"rope_theta": values["rope_theta"]} if values.get("rope_theta") is not None else {}
    for key in ("rope_scaling", "rope_parameters"):
        table = values.get(key) or {}
        if not isinstance(table, dict):
            raise BadInput(f"{key} is {table!r}, but must be a table of settings.")
        given |= table
    given.setdefault("rope_type", given.get("type", "default"))  # its name before Transformers 4.43
    return given


def _require(name: str, found: Any, value: Any) -> None:
    """Refuse a setting that has another value than the only one that can be represented."""
    if found != value:
        raise BadInput(f"{name} is {found!r}, but must be {value!r}: a model with another one cannot be imported.")


def _require_head_dim(settings: LlamaSettings) -> None:
    """Ours has heads that share the width; a head's own width could be anything else in theirs."""
    given, heads, width = settings.head_dim, settings.num_attention_heads, settings.hidden_size
    if given is not None and given * heads != width:
        _require("head_dim", given, width // max(heads, 1))


def _require_own_class(m: ModelConfig) -> None:
    if isinstance(m.field, OwnConfig):
        raise BadInput(f"model.field is your own, {m.field.name}, but only models of gpt or llama can be exported.")
    setting, name, known = "model.scheme", m.scheme.kind, (*_SCHEMES, "reversible")
    if isinstance(m.scheme, ReversibleConfig):
        setting, name, known = "model.scheme.base", m.scheme.base, _SCHEMES
    if name not in _SCHEMES:
        raise BadInput(f"{setting} is {name!r}, but a model can be exported only if it is one of {', '.join(known)}.")
