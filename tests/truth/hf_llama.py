"""Puts the weights of Hugging Face's LlamaForCausalLM into the vanilla model of this project."""

from collections.abc import Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from diffeqformer.config import LlamaConfig, ModelConfig
from diffeqformer.model.build import build
from diffeqformer.model.transformer import Transformer
from diffeqformer.nn.attention import AttentionWeights
from diffeqformer.nn.embedding import Embedding
from diffeqformer.nn.feed_forward import FeedForwardWeights
from diffeqformer.nn.linear import Linear, Norm
from diffeqformer.ode.field import Block
from diffeqformer.ode.weights import LayerWeights


def vanilla(state: Mapping[str, np.ndarray], heads: int, context: int, rope_theta: float) -> Transformer:
    """The vanilla Llama (a table of layers, lie-trotter, steps of length 1) with the parameters `state`.

    **Arguments:** `state`, arrays by Hugging Face's names, each of which must be used, the head's only if it is untied;
    `heads`, `context` and `rope_theta`, which shapes do not show.

    Hugging Face's Linear stores (outputs, inputs), and query, key and value apart; here they are side by side.
    """
    left = {name.removeprefix("model."): np.asarray(array, np.float32) for name, array in state.items()}
    layers = 1 + max(int(name.split(".")[1]) for name in left if name.startswith("layers."))

    def stacked(name: str) -> np.ndarray:
        return np.stack([left.pop(f"layers.{layer}.{name}.weight") for layer in range(layers)])

    def norm(name: str) -> Norm:
        return Norm(jnp.asarray(stacked(name)), None)

    def linear(*names: str) -> Linear:
        return Linear(jnp.concatenate([stacked(name).swapaxes(-1, -2) for name in names], axis=-1), None)

    attention = AttentionWeights(
        norm("input_layernorm"),
        linear("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        linear("self_attn.o_proj"),
    )
    feed_forward = FeedForwardWeights(
        norm("post_attention_layernorm"),
        linear("mlp.up_proj"),
        linear("mlp.down_proj"),
        linear("mlp.gate_proj"),
    )
    embedding = Embedding(jnp.asarray(left.pop("embed_tokens.weight")), None)
    final_norm = Norm(jnp.asarray(left.pop("norm.weight")), None)
    head = jnp.asarray(left.pop("lm_head.weight")) if "lm_head.weight" in left else None
    assert not left, f"parameters without a place: {sorted(left)}"

    vocabulary, width = embedding.tokens.shape
    kv_width = (attention.query_key_value.weight.shape[-1] - width) // 2
    config = ModelConfig(
        field=LlamaConfig(kv_heads=kv_width * heads // width, rope_theta=rope_theta),
        weights="layer",
        scheme="lie-trotter",
        horizon="steps",
        steps=layers,
        width=width,
        heads=heads,
        hidden=feed_forward.up.weight.shape[-1],
        context=context,
        vocabulary=vocabulary,
        tied=head is None,
    )
    ours = build(config, jax.random.key(0))
    model = eqx.tree_at(
        lambda m: (m.embedding, m.weights, m.final_norm, m.head),
        ours,
        (embedding, LayerWeights(Block(attention, feed_forward)), final_norm, head),
        is_leaf=lambda leaf: leaf is None,
    )
    assert jax.tree.map(jnp.shape, model) == jax.tree.map(jnp.shape, ours)
    return model
