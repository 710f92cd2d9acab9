"""What is taken for a random key."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffeqformer.errors import BadInput
from diffeqformer.nn.keys import require_key


@pytest.mark.parametrize("key", [jax.random.split(jax.random.key(0)), jnp.zeros(2), np.zeros((2, 2), np.uint32)])
def test_several_keys_and_other_numbers_are_no_key(key):
    """JAX said so in its own words, where the key was first used."""
    with pytest.raises(BadInput, match="key is .* of the shape .*, but must be a random key, such as"):
        require_key(key)


def test_a_key_is_one_inside_a_map():
    keys = jax.random.split(jax.random.key(0), 3)
    assert jax.eval_shape(jax.vmap(lambda key: jax.random.normal(require_key(key))), keys).shape == (3,)
