"""What the document of a benchmark says beside its numbers: where they were measured, and at which size."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax

from diffeqformer.config import Config, ModelConfig

COMPARED = ("jax", "torch", "transformers")
"""Packages whose versions are stated, where they are installed."""


def machine() -> dict[str, Any]:
    """Where this process runs.

    **Returns:** `processor`, the maker's name for it; `cores` that this process may use; `devices`, how many JAX has;
    `device`, their kind; `versions` of Python and of the packages that are compared, those that are there.
    """
    devices = jax.devices()
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "devices": len(devices),
        "device": devices[0].device_kind,
        "versions": {"python": platform.python_version(), **_versions()},
    }


def sizes(config: Config) -> dict[str, int]:
    """The numbers that decide what an update of `config` costs."""
    return sizes_of_model(config.model) | {"batch": config.trainer.batch_size}


def sizes_of_model(model: ModelConfig) -> dict[str, int]:
    """The same of a model alone; `d_emb` if its weights depend on time."""
    names = ("width", "steps", "heads", "context", "vocabulary")
    own = {name: getattr(model, name) for name in names}
    return own | {"d_emb": model.time.d_emb} if model.time_dependent else own


def _processor() -> str:
    """Linux has the name in a file; elsewhere the standard library asks the system."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def _versions() -> dict[str, str]:
    found = {}
    for package in COMPARED:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
