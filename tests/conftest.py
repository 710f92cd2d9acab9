"""Every test runs with shapes checked and with strict promotion, so that a silent cast or broadcast fails here."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import pytest
from jaxtyping import install_import_hook

install_import_hook("diffeqformer", "beartype.beartype")

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture(scope="session")
def compile_once(tmp_path_factory):
    """Equal computations are compiled once a session, although every call of a command compiles anew."""
    folder = str(tmp_path_factory.mktemp("compiled"))
    settings = {"jax_compilation_cache_dir": folder, "jax_persistent_cache_min_compile_time_secs": 0.0}
    before = {name: getattr(jax.config, name) for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    yield
    for name, value in before.items():
        jax.config.update(name, value)
