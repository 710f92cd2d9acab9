"""Which entries are dropped, and what the others become."""

import jax
import jax.numpy as jnp
import numpy as np

from diffeqformer.nn.dropout import dropout


def test_masks_are_the_same_where_jaxs_default_is_float64():
    x, key = jnp.ones((64, 64), jnp.float32), jax.random.key(0)
    usual = np.asarray(dropout(x, 0.25, key))
    assert set(np.unique(usual)) == {0.0, np.float32(1 / 0.75)}
    share = (usual == 0).mean()
    assert abs(share - 0.25) < 5 * (0.25 * 0.75 / x.size) ** 0.5  # standard deviations
    with jax.enable_x64(True):
        np.testing.assert_array_equal(dropout(x, 0.25, key), usual)
