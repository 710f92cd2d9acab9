"""Every test runs with shapes checked and with strict promotion, so that a silent cast or broadcast fails here."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", "")  # commands of tests keep nothing in the user's folder
os.environ["HF_HUB_OFFLINE"] = "1"  # tests of the hub have one of their own
if "PYTEST_XDIST_WORKER" in os.environ:  # one worker per core: threads of its own would only wait for each other
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import ctypes
import gc
import shutil
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest
from jax.experimental.compilation_cache.compilation_cache import reset_cache
from jaxtyping import install_import_hook

install_import_hook("diffeqformer", "beartype.beartype")

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

gc.set_threshold(50_000, 20, 100)  # tracing makes many objects that live; looking through them took 5% of the time

# A checkpoint waits for the disk some thirty times: beside other work, tests of runs took 1.7 times as long on one.
MEMORY = Path("/dev/shm")
if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 4e9:  # a container may have 64 MB of it
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


PAGE = os.sysconf("SC_PAGE_SIZE")


def most_bytes() -> float:
    """Return how much memory a worker may hold after a file of tests: its part of half of all, and at least 3 GB."""
    memory, container = os.sysconf("SC_PHYS_PAGES") * PAGE, Path("/sys/fs/cgroup/memory.max")
    if container.exists() and (limit := container.read_text().strip()).isdigit():  # else "max"
        memory = min(memory, int(limit))
    return max(3e9, memory / 2 / int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


@pytest.fixture(scope="module", autouse=True)
def bounded_memory():
    """JAX keeps every program that it has compiled: without this, a worker held 6.8 GB in the end.

    Clearing takes 3 s, and what later files share with earlier ones is compiled again: it is done as seldom as can be.
    """
    yield
    memory = Path("/proc/self/statm")
    if memory.exists() and int(memory.read_text().split()[1]) * PAGE > most_bytes():
        jax.clear_caches()
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # else glibc keeps what is free


@pytest.fixture(scope="module")
def plain_pictures():
    """Each figure of a page is drawn once, small, and its panels stay where they are: placing them is most of the work.

    For commands. What figures show is tested with their studies, and how they are drawn with the page.
    """
    from diffeqformer.report import figures

    saved = figures._saved

    @lru_cache
    def once(figure, kind):
        figure.set_layout_engine(None)
        return saved(figure, format=kind, dpi=20)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "_saved", lambda figure, **how: once(figure, how["format"]))
        yield


CUDNN = "jax._src.cudnn.fused_attention_stablehlo.cuda_versions"
"""Where JAX has what it found of cuDNN."""


@pytest.fixture
def cudnn(monkeypatch):
    """JAX finds a cuDNN: enough to lower for CUDA, not to run there."""
    found = SimpleNamespace(cudnn_get_version=lambda: 91000)
    monkeypatch.setattr(CUDNN, found)


@pytest.fixture
def no_cudnn(monkeypatch):
    """JAX finds no cuDNN, whatever is installed."""
    monkeypatch.setattr(CUDNN, None)


@pytest.fixture(scope="session")
def compiled_folder(tmp_path_factory):
    """Every worker has a folder of its own: JAX writes entries in place, and another could read half of one."""
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture(scope="module")
def compile_once(compiled_folder):
    """Equal computations of commands and runs are compiled once per worker, whichever test or subprocess asks for them.

    Only of modules that ask for it: writing an entry of a large program once crashed in XLA.
    """
    settings = {
        "jax_compilation_cache_dir": str(compiled_folder),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name.upper(), str(value))  # for subprocesses
            jax.config.update(name, value)
        reset_cache()
        yield
    for name, value in before.items():
        jax.config.update(name, value)
    reset_cache()
