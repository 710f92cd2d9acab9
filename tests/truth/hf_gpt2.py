"""Puts the weights of Hugging Face's GPT2LMHeadModel into the vanilla model of this project."""

from collections.abc import Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from diffeqformer.config import ModelConfig
from diffeqformer.model.build import build
from diffeqformer.model.transformer import Transformer
from diffeqformer.nn.attention import AttentionWeights
from diffeqformer.nn.embedding import Embedding
from diffeqformer.nn.feed_forward import FeedForwardWeights
from diffeqformer.nn.linear import Linear, Norm
from diffeqformer.ode.field import Block
from diffeqformer.ode.weights import LayerWeights


def vanilla(state: Mapping[str, np.ndarray], heads: int) -> Transformer:
    """The vanilla GPT (a table of layers, lie-trotter, steps of length 1) with the parameters `state`.

    **Arguments:** `state`, arrays by Hugging Face's names, each of which must be used; `heads`, the one size that
    shapes do not show.

    Hugging Face's Conv1D stores (inputs, outputs), with query, key and value side by side in c_attn, as is done here.
    """
    left = {name.removeprefix("transformer."): np.asarray(array, np.float32) for name, array in state.items()}
    layers = 1 + max(int(name.split(".")[1]) for name in left if name.startswith("h."))

    def stacked(name: str) -> np.ndarray:
        return np.stack([left.pop(f"h.{layer}.{name}") for layer in range(layers)])

    def norm(name: str) -> Norm:
        return Norm(jnp.asarray(stacked(f"{name}.weight")), jnp.asarray(stacked(f"{name}.bias")))

    def linear(name: str) -> Linear:
        return Linear(jnp.asarray(stacked(f"{name}.weight")), jnp.asarray(stacked(f"{name}.bias")))

    block = Block(
        AttentionWeights(norm("ln_1"), linear("attn.c_attn"), linear("attn.c_proj")),
        FeedForwardWeights(norm("ln_2"), linear("mlp.c_fc"), linear("mlp.c_proj")),
    )
    embedding = Embedding(jnp.asarray(left.pop("wte.weight")), jnp.asarray(left.pop("wpe.weight")))
    final_norm = Norm(jnp.asarray(left.pop("ln_f.weight")), jnp.asarray(left.pop("ln_f.bias")))
    assert not left, f"parameters without a place: {sorted(left)}"

    assert embedding.positions is not None
    config = ModelConfig(
        weights="layer",
        scheme="lie-trotter",
        horizon="steps",
        steps=layers,
        width=embedding.tokens.shape[1],
        heads=heads,
        hidden=block.feed_forward.up.weight.shape[-1],
        context=embedding.positions.shape[0],
        vocabulary=embedding.tokens.shape[0],
    )
    ours = build(config, jax.random.key(0))
    model = eqx.tree_at(
        lambda m: (m.embedding, m.weights, m.final_norm), ours, (embedding, LayerWeights(block), final_norm)
    )
    assert jax.tree.map(jnp.shape, model) == jax.tree.map(jnp.shape, ours)
    return model
