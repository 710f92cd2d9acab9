"""From a model config to a model."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Key

from diffeqformer.config import ModelConfig
from diffeqformer.errors import BadInput
from diffeqformer.model.transformer import Transformer
from diffeqformer.nn.embedding import Embedding
from diffeqformer.nn.linear import Norm
from diffeqformer.ode.field import field_of
from diffeqformer.ode.weights import init_weights


def build(config: ModelConfig, key: Key[Array, ""]) -> Transformer:
    """A new model with random weights, float32.

    **Arguments:** `config`, with `vocabulary` set; `key`.

    **Raises:** `BadInput` if the config has no vocabulary size.
    """
    if config.vocabulary is None:
        raise BadInput("model.vocabulary is not set; give the number of entries of the tokenizer.")
    tokens_key, positions_key, weights_key = jax.random.split(key, 3)
    width = config.width
    return Transformer(
        embedding=Embedding(
            config.init_std * jax.random.normal(tokens_key, (config.vocabulary, width)),
            config.init_std * jax.random.normal(positions_key, (config.context, width)),
        ),
        weights=init_weights(field_of(config).shapes(config), config, weights_key),
        final_norm=Norm(jnp.ones(width), jnp.zeros(width)),
        head=None,
        config=config,
        horizon=1.0 if config.horizon == "unit" else float(config.steps),
    )


def abstract(config: ModelConfig) -> Transformer:
    """The model's shapes and types without its numbers, for counting and for restoring into."""
    return eqx.filter_eval_shape(build, config, jax.random.key(0))
