import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffeqformer.config import RotaryScalingConfig
from diffeqformer.nn.rotary import rotary_frequencies, rotate
from tests.tolerances import SAFETY, roundoff


def random(*shape, dtype=jnp.float32, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def test_each_pair_half_a_head_apart_turns_by_its_own_angle():
    x, positions = random(2, 5, 3, 8), jnp.arange(5) + 7
    turned = np.asarray(rotate(x, positions, rotary_frequencies(8, 100.0)))
    pairs = np.asarray(x[..., :4]) + 1j * np.asarray(x[..., 4:])
    angles = np.asarray(positions)[:, None] * 100.0 ** (-2 * np.arange(4) / 8)
    expected = pairs * np.exp(1j * angles)[None, :, None, :]
    np.testing.assert_allclose(turned, np.concatenate([expected.real, expected.imag], axis=-1), atol=1e-5)


def test_slow_frequencies_are_divided_and_fast_ones_stay():
    """At theta 100 four pairs turn 1.27, 0.4, 0.13 and 0.04 times over 8 positions."""
    plain = rotary_frequencies(8, 100.0)
    found = rotary_frequencies(8, 100.0, RotaryScalingConfig(4.0, 0.1, 0.5, original_context=8))
    kept = (plain[1:3] * 8 / (2 * np.pi) - 0.1) / 0.4
    expected = plain * [1, *(kept + (1 - kept) / 4), 0.25]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_products_depend_on_the_distance_of_positions_only(dtype):
    """In float64 to float64's precision: angles are not taken in float32 on the way."""
    tolerance = roundoff(dtype, 1, scale=505 * 16) / SAFETY  # of the angle 505, on products of two vectors of 16
    with jax.enable_x64(True):
        query, key = random(1, 6, 2, 16, dtype=dtype), random(1, 6, 2, 16, dtype=dtype, seed=1)

        def products(start):
            positions = jnp.arange(6) + start
            return jnp.einsum(
                "bqhd,bkhd->bhqk", *(rotate(x, positions, rotary_frequencies(16, 10000.0)) for x in (query, key))
            )

        assert products(0).dtype == dtype
        np.testing.assert_allclose(products(500), products(0), atol=tolerance)
        plain = jnp.einsum("bqhd,bkhd->bhqk", query, key)
        assert jnp.abs(products(0) - plain).max() > 0.1
        np.testing.assert_allclose(*(jnp.diagonal(x, axis1=2, axis2=3) for x in (products(500), plain)), atol=tolerance)


def test_bfloat16_loses_no_more_than_its_own_rounding():
    """Angles in bfloat16 would be off by whole radians at such positions. One rounding to nearest: at most 2^-8."""
    x, positions = random(1, 4, 2, 8, dtype=jnp.bfloat16), jnp.arange(4) + 1001
    frequencies = rotary_frequencies(8, 10000.0)
    turned = rotate(x, positions, frequencies)
    assert turned.dtype == jnp.bfloat16
    np.testing.assert_allclose(
        turned.astype(jnp.float32), rotate(x.astype(jnp.float32), positions, frequencies), rtol=2**-8, atol=1e-6
    )
