"""Model families shared by Hugging Face and this library: GPT-2, GPT-NeoX, Llama and its relatives, and our own class.

A family consists of two tables. One lists the settings of config.json that a model's numbers depend on (`settings`),
each with our corresponding setting, so that one list serves reading and writing. The other maps the names of tensors,
`ours: theirs`.
"""

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from functools import reduce
from typing import Any, NamedTuple

from diffeqformer.config import (
    GPTConfig,
    KnotsConfig,
    LayerConfig,
    LlamaConfig,
    ModelConfig,
    OwnConfig,
    ReversibleConfig,
    SharedConfig,
    TimeConfig,
    from_dict,
    to_dict,
)
from diffeqformer.errors import BadInput
from diffeqformer.interop.settings import (
    GPT2Settings,
    GPTNeoXSettings,
    LlamaSettings,
    MistralSettings,
    OwnSettings,
    Qwen3Settings,
    of_own_kinds,
    ours_of,
    read_settings,
    require,
    rope_parameters,
)
from diffeqformer.ode.schemes import SCHEMES, OneStep
from diffeqformer.plain import Document, Values

OWN = "diffeqformer"
"""The model_type of `torch/modeling_diffeqformer.py`."""
HEAD = "head"
VANILLA = {"weights.kind": "layer", "scheme.kind": "lie-trotter", "horizon": "steps"}
_SCHEMES = tuple(name for name, scheme in SCHEMES.items() if isinstance(scheme, OneStep) and ":" not in name)
"""Schemes that `torch/configuration_diffeqformer.py` has; it also has `reversible` over them."""


class Family(NamedTuple):
    """How a family is stored: its settings, and its tensor names without the prefix, which not all files have."""

    settings: type
    fixed: Document
    """Settings of ours that all models of this family share."""
    architecture: str
    """Name of the class in Transformers."""
    prefix: str
    """Prefix of all tensor names except the head's."""
    outside: dict[str, str]
    block: str
    """Prefix of the names in a block, with a placeholder for the layer number."""
    inside: dict[str, tuple[str, ...]]
    """Names of a block's arrays; where there are several of theirs, they lie side by side in ours."""
    outputs_first: bool
    """Whether their matrices are (outputs, inputs), as in torch.nn.Linear; in GPT-2 and here they are the reverse."""
    buffers: str
    """Pattern of names of tensors that are not parameters: masks and tables that older versions stored."""
    heads_first: bool = False
    """Whether theirs keeps query, key and value of each head together; ours has all queries, all keys, all values."""
    renamed: Mapping[str, str] = {}
    """Tensor names of older versions, mapped to the current ones."""

    def config(self, values: Values) -> ModelConfig:
        """Return the config of the model that a config.json of this family describes.

        **Raises:** `BadInput` for a setting that is missing, has the wrong type, or cannot be represented.
        """
        require("is_causal", values.get("is_causal", True), True)
        settings = read_settings(self.settings, values)
        model = self.fixed | dict(ours_of(settings))
        model = of_own_kinds(settings, model) if isinstance(settings, OwnSettings) else model | settings.more(values)
        sections: dict[str, Any] = {}
        for name, value in model.items():
            section, _, key = name.rpartition(".")
            (sections.setdefault(section, {}) if section else sections)[key] = value
        return from_dict(ModelConfig, sections)

    def values(self, m: ModelConfig) -> Document:
        """Return the settings of config.json for a model of this family, as `config` reads them.

        **Raises:** `BadInput` for a field or a scheme that `torch/configuration_diffeqformer.py` does not have.
        """
        if self.settings is OwnSettings:
            _require_own_class(m)
        m = replace(m, vocabulary=m.vocabulary or 0, horizon=m.interval, hidden=m.hidden_width, tied=bool(m.tied))
        m = replace(m, weights=_explicit(m))
        own = {"field.kv_heads": m.kv_heads}
        found = {}
        for setting in fields(self.settings):
            ours = setting.metadata.get("ours")
            default = setting.default if setting.default is not MISSING else None
            value = default if ours is None else reduce(lambda at, name: getattr(at, name, default), ours.split("."), m)
            found[setting.name] = own.get(ours or "", to_dict(value) if is_dataclass(value) else value)
        if issubclass(self.settings, LlamaSettings) and isinstance(m.field, LlamaConfig):
            found["head_dim"] = m.head_width
            found["rope_parameters"] = rope_parameters(m.field)
        if self.settings is GPT2Settings and isinstance(m.field, GPTConfig):
            found["activation_function"] = "gelu" if m.field.exact_gelu else "gelu_new"
        if self.settings is GPTNeoXSettings and isinstance(m.field, GPTConfig):
            found["hidden_act"] = "gelu" if m.field.exact_gelu else "gelu_pytorch_tanh"
            found["use_parallel_residual"] = m.scheme.kind == "euler"
            rope = {"rope_theta": m.field.rope_theta, "partial_rotary_factor": m.field.rotary}
            found["rope_parameters"] = {"rope_type": "default", **rope}
        return found


# The arrays of a block in our own class. Attention and feed-forward may have different numbers of rows (of layers, or
# of a scheme's nodes), so the row number comes after the part's name, not before it.
_LINEAR = [f"{part}.{end}" for part in ("query_key_value", "output", "up", "down") for end in ("weight", "bias")]
_ATTENTION = ["norm.scale", "norm.shift", "query_norm.scale", "key_norm.scale", *_LINEAR[:4]]
_FEED_FORWARD = ["norm.scale", "norm.shift", *_LINEAR[4:], "gate.weight"]
_OWN_BLOCK = {
    f"{part}.{name}": (f"{part}.{{}}.{name.replace('scale', 'weight').replace('shift', 'bias')}",)
    for part, names in (("attention", _ATTENTION), ("feed_forward", _FEED_FORWARD))
    for name in names
}

_ENDS = ("weight", "bias")
_GPT2_BLOCK = {
    "attention.norm": "ln_1", "attention.query_key_value": "attn.c_attn", "attention.output": "attn.c_proj",
    "feed_forward.norm": "ln_2", "feed_forward.up": "mlp.c_fc", "feed_forward.down": "mlp.c_proj",
}  # fmt: skip

_NEOX_BLOCK = {
    "attention.norm": "input_layernorm", "attention.query_key_value": "attention.query_key_value",
    "attention.output": "attention.dense", "feed_forward.norm": "post_attention_layernorm",
    "feed_forward.up": "mlp.dense_h_to_4h", "feed_forward.down": "mlp.dense_4h_to_h",
}  # fmt: skip


def _inside(block: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return the names of a block's arrays from those of its parts, which all have a weight and a bias."""
    return {
        f"{ours}.{end}": (f"{theirs}.{name}",)
        for ours, theirs in block.items()
        for end, name in zip(("scale", "shift") if "norm" in ours else _ENDS, _ENDS, strict=True)
    }


_LLAMA = Family(
    settings=LlamaSettings,
    fixed={"field.kind": "llama", **VANILLA},
    architecture="LlamaForCausalLM",
    prefix="model.",
    outside={"embedding.tokens": "embed_tokens.weight", "final_norm.scale": "norm.weight", HEAD: "lm_head.weight"},
    block="layers.{}.",
    inside={
        "attention.norm.scale": ("input_layernorm.weight",),
        **{
            f"attention.query_key_value.{end}": tuple(f"self_attn.{part}_proj.{end}" for part in "qkv")
            for end in _ENDS  # only Qwen 2 has biases
        },
        "attention.query_norm.scale": ("self_attn.q_norm.weight",),  # only Qwen 3 has these two
        "attention.key_norm.scale": ("self_attn.k_norm.weight",),
        "attention.output.weight": ("self_attn.o_proj.weight",),
        "feed_forward.norm.scale": ("post_attention_layernorm.weight",),
        **{f"feed_forward.{part}.weight": (f"mlp.{part}_proj.weight",) for part in ("up", "down", "gate")},
    },
    outputs_first=True,
    buffers=r"(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",
)

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
        inside=_inside(_GPT2_BLOCK),
        outputs_first=False,
        buffers=r"h\.\d+\.attn\.(bias|masked_bias)",
    ),
    "gpt_neox": Family(
        settings=GPTNeoXSettings,
        fixed={"field.kind": "gpt", **VANILLA},
        architecture="GPTNeoXForCausalLM",
        prefix="gpt_neox.",
        outside={
            "embedding.tokens": "embed_in.weight",
            "final_norm.scale": "final_layer_norm.weight",
            "final_norm.shift": "final_layer_norm.bias",
            HEAD: "lm_head.weight",
        },
        block="layers.{}.",
        inside=_inside(_NEOX_BLOCK),
        outputs_first=True,
        buffers=r"layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)",
        heads_first=True,
        renamed={"embed_out.weight": "lm_head.weight"},
    ),
    "llama": _LLAMA,
    "mistral": _LLAMA._replace(settings=MistralSettings, architecture="MistralForCausalLM"),
    "qwen2": _LLAMA._replace(fixed={**_LLAMA.fixed, "field.biases": True}, architecture="Qwen2ForCausalLM"),
    "qwen3": _LLAMA._replace(
        settings=Qwen3Settings, fixed={**_LLAMA.fixed, "field.head_norms": True}, architecture="Qwen3ForCausalLM"
    ),
    OWN: Family(
        settings=OwnSettings,
        fixed={},
        architecture="DiffEqFormerForCausalLM",
        prefix="model.",
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
        buffers=r"(?!)",  # matches nothing
    ),
}


LLAMAS = {(False, False): "llama", (True, False): "qwen2", (False, True): "qwen3"}
"""The model_type of a Llama-like table of layers, by its biases and its head norms; a Mistral is a Llama."""


def is_continuous(m: ModelConfig) -> bool:
    """Whether the weights are a function of depth that our own Transformers class also supports."""
    knows_length = m.modulation or m.final_norm_halvings is not None or getattr(m.weights, "rank", None)
    return isinstance(m.weights, TimeConfig | KnotsConfig | SharedConfig) and not knows_length


def kind_of(m: ModelConfig) -> str:
    """Return a model's model_type: one of theirs if it is a table of layers that their classes have, else our own."""
    whole_steps = m.interval == m.steps and m.first_step is None and not m.edges
    table = isinstance(m.weights, LayerConfig) and m.weights.rows == "step"
    rotary_gpt = isinstance(m.field, GPTConfig) and m.field.rotary is not None
    # Euler at steps of 1, x + A(x) + M(x), is GPT-NeoX's parallel residual, which no other class here has.
    known_schemes = ("lie-trotter", "euler") if rotary_gpt else ("lie-trotter",)
    layers = m.scheme.kind == "residual" or (m.scheme.kind in known_schemes and whole_steps)
    stock = layers and table and not isinstance(m.field, OwnConfig) and not m.embedding_norm
    if isinstance(m.field, GPTConfig):
        if rotary_gpt:
            # GPT-NeoX has one hidden_dropout for both.
            return "gpt_neox" if stock and m.dropout.embedding == m.dropout.residual else OWN
        return "gpt2" if stock else OWN
    if isinstance(m.field, LlamaConfig):
        stock = stock and not (m.field.nested_norm or m.field.norm_shift) and m.final_norm_epsilon == m.norm_epsilon
    if not stock or not isinstance(m.field, LlamaConfig) or m.dropout.embedding or m.dropout.residual:
        return OWN
    if m.width % m.heads and not (m.field.biases or m.field.head_norms):
        return OWN  # LlamaConfig refuses it
    return LLAMAS.get((m.field.biases, m.field.head_norms), OWN)


def _explicit(m: ModelConfig) -> Any:
    """Return the weights section without adapters, with defaults that depend on other settings made explicit."""
    if isinstance(m.weights, TimeConfig):
        return replace(m.weights, highest_frequency=m.weights.fastest)
    if isinstance(m.weights, KnotsConfig):
        return replace(m.weights, knots=m.weights.knots or m.steps, lora=None)
    return replace(m.weights, lora=None) if isinstance(m.weights, LayerConfig) else m.weights


def _require_own_class(m: ModelConfig) -> None:
    if isinstance(m.field, OwnConfig):
        raise BadInput(f"model.field is your own, {m.field.name}, but only models of gpt or llama can be exported.")
    setting, name, known = "model.scheme", m.scheme.kind, (*_SCHEMES, "reversible")
    if isinstance(m.scheme, ReversibleConfig):
        setting, name, known = "model.scheme.base", m.scheme.base, _SCHEMES
    if name not in _SCHEMES:
        raise BadInput(f"{setting} is {name!r}, but a model can be exported only if it is one of {', '.join(known)}.")
