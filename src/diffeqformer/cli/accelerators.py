"""Settings of XLA for NVIDIA's GPUs.

XLA reads them when a program first uses a device. Only the command line sets them, never an import, and an `XLA_FLAGS`
of the user's own is respected.
"""

import os
from pathlib import Path

NVIDIA = Path("/proc/driver/nvidia/version")
"""Exists if there is a driver."""
FLAGS = "--xla_gpu_enable_latency_hiding_scheduler=true"
"""Devices compute while they wait for each other: what NVIDIA's own images of JAX set (JAX-Toolbox)."""


def use_recommended_flags() -> None:
    """Set what is recommended for the devices of this machine, before JAX sees them."""
    if NVIDIA.exists():
        os.environ.setdefault("XLA_FLAGS", FLAGS)
