"""Memory of a training update, as the compiler plans it."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from diffeqformer.config import Config
from diffeqformer.model.count import count
from diffeqformer.training.update import initial_state, make_update


class Footprint(NamedTuple):
    """Bytes of one device's memory."""

    weights: int
    """Parameters."""
    optimizer: int
    """Moments of AdamW."""
    temporary: int
    """Gradients, generated weights, activations and workspace at their peak: the compiled update's temporaries."""


def update_footprint(config: Config) -> Footprint:
    """Compile the training update of `config` for this machine without running it, and read its memory plan.

    `config.model.vocabulary` must be set. Nothing of the model's size is allocated.
    """
    state = jax.eval_shape(lambda: initial_state(config))
    ids = jax.ShapeDtypeStruct((config.trainer.batch_size, config.model.context + 1), np.int32)
    compiled = jax.jit(make_update(config), donate_argnums=0).lower(state, ids).compile()
    plan = compiled.memory_analysis()
    size = jnp.dtype(jnp.float32).itemsize
    temporary = int(plan.temp_size_in_bytes) if plan is not None else 0
    return Footprint(size * count(state.model), size * count(state.optimizer), temporary)
