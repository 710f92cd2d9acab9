"""Rotary position embedding: positions as angles."""

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from diffeqformer.config import RotaryScalingConfig
from diffeqformer.nn.linear import wide


def rotary_frequencies(
    rotary_width: int, theta: float, scaling: RotaryScalingConfig | None = None
) -> Float[np.ndarray, " pair"]:
    """Return the frequencies `theta^(-2i/d)`, i < d/2, in radians per position, as float64.

    Here d = `rotary_width` is the number of channels of a head that are rotated. With `scaling`, frequencies f that
    turn `r = f c / 2 pi` times over the original context c are multiplied by `(1 - s) / factor + s`, where s rises
    from 0 at `r = low_freq_factor` to 1 at `high_freq_factor`. Source: Llama Team 2024, The Llama 3 Herd of Models,
    arXiv:2407.21783, as implemented in Transformers.
    """
    half = rotary_width // 2
    frequencies = theta ** (-np.arange(half) / half)
    if scaling is None:
        return frequencies
    turns = frequencies * scaling.original_context / (2 * np.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return frequencies * ((1 - kept) / scaling.factor + kept)


def rotate(
    x: Float[Array, "batch position heads head_width"],
    positions: Int[Array, " position"],
    frequencies: Float[np.ndarray, " pair"],
) -> Float[Array, "batch position heads head_width"]:
    """Turn the pair `(x_i, x_(i+d/2))` at position p by the angle `p f_i`, i < d/2, d twice the number of frequencies.

    Channels of a head from d on are unchanged. The product of a rotated query and a rotated key depends only on the
    distance between their positions. A pair is not two neighbours but, as in Hugging Face, one channel from each half
    of the d rotated ones. Angles and products are in float32 or better, whatever the precision of `x`. Source: Su et
    al. 2021, arXiv:2104.09864, eq. 34.
    """
    precise = wide(x.dtype)
    angles = positions.astype(precise)[:, None] * jnp.asarray(frequencies, precise)[None, :]
    cos, sin = jnp.cos(angles)[None, :, None, :], jnp.sin(angles)[None, :, None, :]
    half = len(frequencies)
    a, b, rest = jnp.split(x.astype(precise), [half, 2 * half], axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1).astype(x.dtype)
