"""Time features: depth as sines and cosines (paper, appendix A)."""

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float

from diffeqformer.config import TimeConfig
from diffeqformer.ode.grid import Times, widest


def frequencies(config: TimeConfig) -> np.ndarray:
    """`highest * (lowest / highest)^(k/K)`, k = 0..K-1, in radians per unit of depth, float64.

    With highest 1000 and lowest 0.1 this is the paper's `s * 10000^(-k/K)`, s = 1000.
    """
    k = np.arange(config.frequencies) / config.frequencies
    return config.fastest * (config.lowest_frequency / config.fastest) ** k


def time_features(times: Times, config: TimeConfig, dtype: DTypeLike = jnp.float32) -> Float[Array, "time features"]:
    """`e(t) = [t, sin(w_k t), cos(w_k t)]` for every time (paper eq. 6, appendix A); not learned.

    Features of times that are known before compilation (a fixed grid's) are computed in float64 and cast last; those of
    traced times (an adaptive solver's) in float32 or better.

    **Arguments:** `times`, in [0, 1], shape (time,); `config`; `dtype` of the result.

    **Returns:** features of shape (time, 2K+1).
    """
    xp, t = widest(times)
    angles = t[:, None] * xp.asarray(frequencies(config), t.dtype)[None, :]
    return jnp.asarray(xp.concatenate([t[:, None], xp.sin(angles), xp.cos(angles)], axis=-1), dtype)
