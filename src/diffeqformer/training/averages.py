"""Averages of the parameters over updates: `average += share (parameters - average)`, each by its share."""

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array

from diffeqformer.config import EMAConfig, LastConfig

Share = Callable[[Array], Array]
"""What update number k, from 0, adds to the average; 1 replaces it."""


def ema(config: EMAConfig, updates: int) -> Share:
    """An exponential moving average, and the plain mean until it has seen as many updates as its horizon."""
    return lambda k: jnp.maximum(1.0 - config.decay, 1.0 / (k + 1).astype(jnp.float32))


def last(config: LastConfig, updates: int) -> Share:
    """The mean over the last of all `updates` (Izmailov et al. 2018, arXiv:1803.05407); the parameters until then."""
    start = max(updates - config.updates, 0)
    return lambda k: 1.0 / (jnp.maximum(k - start, 0) + 1).astype(jnp.float32)
