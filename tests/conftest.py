"""Every test runs with shapes checked and with strict promotion, so that a silent cast or broadcast fails here."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
if "PYTEST_XDIST_WORKER" in os.environ:  # one worker per core: threads of its own would only wait for each other
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import gc

import jax
import pytest
from jaxtyping import install_import_hook

install_import_hook("diffeqformer", "beartype.beartype")

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

gc.set_threshold(50_000, 20, 100)  # tracing makes many objects that live; looking through them took 5% of the time


@pytest.fixture(scope="session", autouse=True)
def compile_once(tmp_path_factory):
    """Equal computations are compiled once per worker, whichever test, command or subprocess asks for them.

    Every worker has a folder of its own: JAX writes entries in place, and another could read half of one.
    """
    settings = {
        "jax_compilation_cache_dir": str(tmp_path_factory.mktemp("compiled")),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name.upper(), str(value))  # for subprocesses
            jax.config.update(name, value)
        yield
    jax.config.update("jax_compilation_cache_dir", None)
