"""The families of models that Hugging Face and this library share: GPT-2, Llama, and our own class.

A family is a dataclass of the settings of config.json that a model's numbers depend on, the way from them to a config
of ours and back, and a table of names, `ours: theirs`, which is one to one.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, Literal, NamedTuple, get_type_hints

from diffeqformer.config import DropoutConfig, ModelConfig, ReversibleConfig, from_dict
from diffeqformer.errors import BadInput
from diffeqformer.ode.schemes import ONE_STEP

OWN = "diffeqformer"
"""The model_type of `torch/modeling_diffeqformer.py`."""
HEAD = "head"


@dataclass(frozen=True)
class GPT2Settings:
    """What config.json of a GPT-2 says about its numbers; defaults are those of Transformers."""

    n_embd: int
    n_layer: int
    n_head: int
    n_positions: int
    vocab_size: int
    n_inner: int | None = None
    activation_function: Literal["gelu_new", "gelu_pytorch_tanh"] = "gelu_new"
    layer_norm_epsilon: float = 1e-5
    tie_word_embeddings: bool = True
    embd_pdrop: float = 0.1
    attn_pdrop: float = 0.1
    resid_pdrop: float = 0.1
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False
    reorder_and_upcast_attn: bool = False
    add_cross_attention: bool = False


@dataclass(frozen=True)
class LlamaSettings:
    """What config.json of a Llama says about its numbers; defaults are those of Transformers."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int
    vocab_size: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    hidden_act: Literal["silu", "swish"] = "silu"
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    attention_dropout: float = 0.0
    attention_bias: bool = False
    mlp_bias: bool = False


@dataclass(frozen=True)
class OwnSettings:
    """What config.json of `torch/modeling_diffeqformer.py` says about a model's numbers."""

    family: Literal["gpt", "llama"]
    scheme: str
    horizon: float
    steps: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    max_position_embeddings: int
    vocab_size: int
    norm_epsilon: float
    tie_word_embeddings: bool
    layer_rows: Literal["step", "node"] = "step"
    reversible_base: str = "euler"
    reversible_coupling: float = 0.99
    nested_norm: bool = False
    rope_theta: float = 10000.0
    first_step: float | None = None
    embedding_dropout: float = 0.0
    attention_dropout: float = 0.0
    residual_dropout: float = 0.0


@dataclass(frozen=True)
class RopeSettings:
    """Rotary embedding of a Llama: `rope_parameters`, before Transformers 5 `rope_scaling` and `rope_theta`."""

    rope_theta: float = 10000.0
    rope_type: str = "default"
    partial_rotary_factor: float = 1.0


def gpt2_config(values: Mapping[str, Any]) -> ModelConfig:
    """The model that config.json of a GPT-2 describes."""
    s = _settings(GPT2Settings, values)
    _require(s, scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False)
    _require(s, reorder_and_upcast_attn=False, add_cross_attention=False)
    return ModelConfig(
        family="gpt",
        weights="layer",
        scheme="lie-trotter",
        horizon="steps",
        steps=s.n_layer,
        width=s.n_embd,
        heads=s.n_head,
        hidden=4 * s.n_embd if s.n_inner is None else s.n_inner,
        context=s.n_positions,
        vocabulary=s.vocab_size,
        norm_epsilon=s.layer_norm_epsilon,
        tied=s.tie_word_embeddings,
        dropout=DropoutConfig(s.embd_pdrop, s.attn_pdrop, s.resid_pdrop),
    )


def gpt2_values(m: ModelConfig) -> dict[str, Any]:
    """What `gpt2_config` reads, of a populated model."""
    settings = GPT2Settings(
        n_embd=m.width,
        n_layer=m.steps,
        n_head=m.heads,
        n_positions=m.context,
        vocab_size=m.vocabulary or 0,
        n_inner=m.hidden or 4 * m.width,
        layer_norm_epsilon=m.norm_epsilon,
        tie_word_embeddings=bool(m.tied),
        embd_pdrop=m.dropout.embedding,
        attn_pdrop=m.dropout.attention,
        resid_pdrop=m.dropout.residual,
    )
    return asdict(settings)


def llama_config(values: Mapping[str, Any]) -> ModelConfig:
    """The model that config.json of a Llama describes."""
    s = _settings(LlamaSettings, values)
    _require(s, attention_bias=False, mlp_bias=False)
    if s.head_dim is not None and s.head_dim * s.num_attention_heads != s.hidden_size:
        _require(s, head_dim=s.hidden_size // max(s.num_attention_heads, 1))
    return ModelConfig(
        family="llama",
        weights="layer",
        scheme="lie-trotter",
        horizon="steps",
        steps=s.num_hidden_layers,
        width=s.hidden_size,
        heads=s.num_attention_heads,
        kv_heads=s.num_attention_heads if s.num_key_value_heads is None else s.num_key_value_heads,
        hidden=s.intermediate_size,
        context=s.max_position_embeddings,
        vocabulary=s.vocab_size,
        norm_epsilon=s.rms_norm_eps,
        rope_theta=_rope_theta(values),
        tied=s.tie_word_embeddings,
        dropout=DropoutConfig(attention=s.attention_dropout),
    )


def llama_values(m: ModelConfig) -> dict[str, Any]:
    """What `llama_config` reads, of a populated model."""
    settings = LlamaSettings(
        hidden_size=m.width,
        intermediate_size=m.hidden or 4 * m.width,
        num_hidden_layers=m.steps,
        num_attention_heads=m.heads,
        max_position_embeddings=m.context,
        vocab_size=m.vocabulary or 0,
        num_key_value_heads=m.kv_heads or m.heads,
        head_dim=m.width // m.heads,
        rms_norm_eps=m.norm_epsilon,
        tie_word_embeddings=bool(m.tied),
        attention_dropout=m.dropout.attention,
    )
    rope = {"rope_type": "default", "rope_theta": m.rope_theta}
    return {**asdict(settings), "rope_parameters": rope}


def own_config(values: Mapping[str, Any]) -> ModelConfig:
    """The model that config.json of an exported one describes."""
    s = _settings(OwnSettings, values)
    llama = s.family == "llama"
    return ModelConfig(
        family=s.family,
        weights="layer",
        layer_rows=s.layer_rows,
        scheme=s.scheme,
        reversible=ReversibleConfig(s.reversible_base, s.reversible_coupling),
        horizon=s.horizon,
        first_step=s.first_step,
        steps=s.steps,
        width=s.hidden_size,
        heads=s.num_attention_heads,
        kv_heads=s.num_key_value_heads if llama else None,
        hidden=s.intermediate_size,
        context=s.max_position_embeddings,
        vocabulary=s.vocab_size,
        norm_epsilon=s.norm_epsilon,
        nested_norm=s.nested_norm,
        rope_theta=s.rope_theta,
        tied=s.tie_word_embeddings,
        dropout=DropoutConfig(s.embedding_dropout, s.attention_dropout, s.residual_dropout),
    )


def own_values(m: ModelConfig) -> dict[str, Any]:
    """What `own_config` reads, of a populated model.

    **Raises:** `BadInput` for a scheme that `torch/modeling_diffeqformer.py` does not have.
    """
    setting, name = "model.scheme", m.scheme
    if m.scheme == "reversible":
        setting, name = "model.reversible.base", m.reversible.base
    if name not in ONE_STEP:
        known = ", ".join((*ONE_STEP, "reversible") if setting == "model.scheme" else ONE_STEP)
        raise BadInput(f"{setting} is {name!r}, but a model can be exported only if it is one of {known}.")
    settings = OwnSettings(
        family=m.family,
        scheme=m.scheme,
        horizon=m.interval,
        first_step=m.first_step,
        steps=m.steps,
        hidden_size=m.width,
        intermediate_size=m.hidden or 4 * m.width,
        num_attention_heads=m.heads,
        num_key_value_heads=m.kv_heads or m.heads,
        max_position_embeddings=m.context,
        vocab_size=m.vocabulary or 0,
        norm_epsilon=m.norm_epsilon,
        tie_word_embeddings=bool(m.tied),
        layer_rows=m.layer_rows,
        reversible_base=m.reversible.base,
        reversible_coupling=m.reversible.coupling,
        nested_norm=m.nested_norm,
        rope_theta=m.rope_theta,
        embedding_dropout=m.dropout.embedding,
        attention_dropout=m.dropout.attention,
        residual_dropout=m.dropout.residual,
    )
    return asdict(settings)


def kind_of(m: ModelConfig) -> str:
    """The model_type that a populated model is: GPT-2's or Llama's if their classes give its numbers, else our own."""
    stock = m.scheme == "lie-trotter" and m.interval == m.steps and m.layer_rows == "step" and not m.nested_norm
    stock = stock and m.first_step is None
    if stock and m.family == "gpt":
        return "gpt2"
    drops = m.dropout.embedding or m.dropout.residual  # which Llama has not
    return "llama" if stock and not drops else OWN


def _rope_theta(values: Mapping[str, Any]) -> float:
    given = {"rope_theta": values["rope_theta"]} if values.get("rope_theta") is not None else {}
    for key in ("rope_scaling", "rope_parameters"):
        table = values.get(key) or {}
        if not isinstance(table, dict):
            raise BadInput(f"{key} is {table!r}, but must be a table of settings.")
        given |= table
    given.setdefault("rope_type", given.get("type", "default"))  # its name before Transformers 4.43
    rope = _settings(RopeSettings, given)
    _require(rope, rope_type="default", partial_rotary_factor=1.0)
    return rope.rope_theta


class Family(NamedTuple):
    """How a family is stored: names, `ours: theirs`, theirs without the prefix that not all files have."""

    config: Callable[[Mapping[str, Any]], ModelConfig]
    values: Callable[[ModelConfig], dict[str, Any]]
    """The way back: config.json's settings of a model that this family can be."""
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


FAMILIES = {
    "gpt2": Family(
        config=gpt2_config,
        values=gpt2_values,
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
            "attention.norm.scale": ("ln_1.weight",),
            "attention.norm.shift": ("ln_1.bias",),
            "attention.query_key_value.weight": ("attn.c_attn.weight",),
            "attention.query_key_value.bias": ("attn.c_attn.bias",),
            "attention.output.weight": ("attn.c_proj.weight",),
            "attention.output.bias": ("attn.c_proj.bias",),
            "feed_forward.norm.scale": ("ln_2.weight",),
            "feed_forward.norm.shift": ("ln_2.bias",),
            "feed_forward.up.weight": ("mlp.c_fc.weight",),
            "feed_forward.up.bias": ("mlp.c_fc.bias",),
            "feed_forward.down.weight": ("mlp.c_proj.weight",),
            "feed_forward.down.bias": ("mlp.c_proj.bias",),
        },
        outputs_first=False,
        buffers=r"h\.\d+\.attn\.(bias|masked_bias)",
    ),
    "llama": Family(
        config=llama_config,
        values=llama_values,
        architecture="LlamaForCausalLM",
        prefix="model.",
        outside={
            "embedding.tokens": "embed_tokens.weight",
            "final_norm.scale": "norm.weight",
            HEAD: "lm_head.weight",
        },
        block="layers.{}.",
        inside={
            "attention.norm.scale": ("input_layernorm.weight",),
            "attention.query_key_value.weight": (
                "self_attn.q_proj.weight",
                "self_attn.k_proj.weight",
                "self_attn.v_proj.weight",
            ),
            "attention.output.weight": ("self_attn.o_proj.weight",),
            "feed_forward.norm.scale": ("post_attention_layernorm.weight",),
            "feed_forward.up.weight": ("mlp.up_proj.weight",),
            "feed_forward.down.weight": ("mlp.down_proj.weight",),
            "feed_forward.gate.weight": ("mlp.gate_proj.weight",),
        },
        outputs_first=True,
        buffers=r"(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",
    ),
    OWN: Family(
        config=own_config,
        values=own_values,
        architecture="DiffEqFormerForCausalLM",
        prefix="",
        outside={
            "embedding.tokens": "embedding.tokens.weight",
            "embedding.positions": "embedding.positions.weight",
            "final_norm.scale": "final_norm.weight",
            "final_norm.shift": "final_norm.bias",
            HEAD: "head.weight",
        },
        block="",  # attention and feed-forward may have different numbers of rows, so that each has its own
        inside={
            "attention.norm.scale": ("attention.{}.norm.weight",),
            "attention.norm.shift": ("attention.{}.norm.bias",),
            "attention.query_key_value.weight": ("attention.{}.query_key_value.weight",),
            "attention.query_key_value.bias": ("attention.{}.query_key_value.bias",),
            "attention.output.weight": ("attention.{}.output.weight",),
            "attention.output.bias": ("attention.{}.output.bias",),
            "feed_forward.norm.scale": ("feed_forward.{}.norm.weight",),
            "feed_forward.norm.shift": ("feed_forward.{}.norm.bias",),
            "feed_forward.up.weight": ("feed_forward.{}.up.weight",),
            "feed_forward.up.bias": ("feed_forward.{}.up.bias",),
            "feed_forward.down.weight": ("feed_forward.{}.down.weight",),
            "feed_forward.down.bias": ("feed_forward.{}.down.bias",),
            "feed_forward.gate.weight": ("feed_forward.{}.gate.weight",),
        },
        outputs_first=True,
        buffers=r"(?!)",  # none
    ),
}


def _settings(cls: type, values: Mapping[str, Any]) -> Any:
    """The settings that `cls` names, of the right types; all others are about something else. Null is not given."""
    known = {key: value for key, value in values.items() if key in get_type_hints(cls) and value is not None}
    for field in fields(cls):
        if field.default is MISSING and field.name not in known:
            raise BadInput(f"{field.name} is not given, but must be: the model's numbers depend on it.")
    return from_dict(cls, known)


def _require(settings: Any, **values: Any) -> None:
    """Refuse settings that have other values than the only ones that can be represented."""
    for name, value in values.items():
        found = getattr(settings, name)
        if found != value:
            raise BadInput(f"{name} is {found!r}, but must be {value!r}: a model with another one cannot be imported.")
