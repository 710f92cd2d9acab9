"""Averages of the parameters over updates, `average += share (parameters - average)`, each with its own share."""

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array

from diffeqformer.config import EMAConfig, LastConfig

Share = Callable[[Array], Array]
"""Weight of the parameters of update k (from 0) in the average; 1 replaces the average."""


def ema(config: EMAConfig, updates: int) -> Share:
    """Return the share of an exponential moving average, which is the plain mean for as many updates as its horizon."""
    return lambda k: jnp.maximum(1.0 - config.decay, 1.0 / (k + 1).astype(jnp.float32))


def last(config: LastConfig, updates: int) -> Share:
    """Return the share of the mean over the last of all `updates` (Izmailov et al. 2018, arXiv:1803.05407).

    Until then, the average equals the parameters.
    """
    start = max(updates - config.updates, 0)
    return lambda k: 1.0 / (jnp.maximum(k - start, 0) + 1).astype(jnp.float32)
