"""Accelerators: their peak speed, memory and bandwidths.

Peaks are those of dense matrix products in bfloat16 (float16 where there is none), without sparsity, as the makers'
data sheets give them: NVIDIA's of each card, for TPUs the pages "TPU v2" to "TPU v6e" of Google Cloud's documentation.
The same data sheets give memory, its bandwidth, and links (NVLink, else PCIe; half of what they call bidirectional).
Compute capabilities are those of NVIDIA's page "CUDA GPU Compute Capability".
A device is what JAX counts as one: a core of a TPU v2 or v3, a chip of later ones.
"""

import re
from typing import NamedTuple

GIB = 1 << 30
USABLE = 0.92
"""Usable fraction of a device's memory; the rest goes to the driver, the runtime and fragmentation."""


class Device(NamedTuple):
    """One kind of accelerator."""

    kind: str
    """Regular expression that matches its name in JAX (`device_kind`), ignoring case."""
    peak: float
    """Peak floating-point operations per second."""
    memory: float
    """Memory in bytes."""
    bandwidth: float | None = None
    """Memory bandwidth, bytes per second."""
    link: float | None = None
    """Bandwidth to the other devices of its machine, bytes per second in each direction."""
    capability: float | None = None
    """NVIDIA's compute capability; `None` for devices of other makers."""


DEVICES = {
    "v100-16gb": Device(r"v100.*16gb", 125e12, 16 * GIB, 900e9, 150e9, 7.0),
    "v100-32gb": Device(r"v100.*32gb", 125e12, 32 * GIB, 900e9, 150e9, 7.0),
    "t4": Device(r"tesla t4", 65e12, 16 * GIB, 320e9, 16e9, 7.5),
    # Anchored at the end: an A100's name begins like an A10's, an L40S's like an L4's, that of a laptop's card or of a
    # cut-down one ("RTX 4090 D") like an RTX 4090's.
    "a10": Device(r"nvidia a10$", 125e12, 24 * GIB, 600e9, 32e9, 8.6),
    "l4": Device(r"nvidia l4$", 121e12, 24 * GIB, 300e9, 32e9, 8.9),
    "l40s": Device(r"l40s", 362e12, 48 * GIB, 864e9, 32e9, 8.9),
    "rtx-4090": Device(r"rtx 4090$", 165e12, 24 * GIB, 1008e9, 32e9, 8.9),
    # Before those with SXM. Bridges of NVLink join only pairs of these cards, so that a machine's links are PCIe.
    "a100-pcie-40gb": Device(r"a100.pcie.40gb", 312e12, 40 * GIB, 1555e9, 32e9, 8.0),
    "a100-pcie-80gb": Device(r"a100 80gb pcie", 312e12, 80 * GIB, 1935e9, 32e9, 8.0),
    "a100-40gb": Device(r"a100.*40gb", 312e12, 40 * GIB, 1555e9, 300e9, 8.0),
    "a100-80gb": Device(r"a100.*80gb", 312e12, 80 * GIB, 2039e9, 300e9, 8.0),
    "h100-pcie": Device(r"h100 pcie", 756e12, 80 * GIB, 2000e9, 64e9, 9.0),
    "h100-nvl": Device(r"h100 nvl", 835e12, 94 * GIB, 3900e9, 300e9, 9.0),
    "h100": Device(r"h100", 989e12, 80 * GIB, 3350e9, 450e9, 9.0),
    # Before the H200 and the B200, whose names are in theirs. "GH200 480GB" counts the memory of its processor.
    "gh200-144gb": Device(r"gh200 144g", 990e12, 144 * GIB, 4900e9, 450e9, 9.0),
    "gh200-96gb": Device(r"gh200", 990e12, 96 * GIB, 4000e9, 450e9, 9.0),
    "gb200": Device(r"gb200", 2500e12, 186 * GIB, 8000e9, 900e9, 10.0),
    "h200-nvl": Device(r"h200 nvl", 835e12, 141 * GIB, 4800e9, 450e9, 9.0),
    "h200": Device(r"h200", 989e12, 141 * GIB, 4800e9, 450e9, 9.0),
    "b200": Device(r"b200", 2250e12, 180 * GIB, 8000e9, 900e9, 10.0),
    "tpu-v2": Device(r"tpu v2", 23e12, 8 * GIB),
    "tpu-v3": Device(r"tpu v3", 61.5e12, 16 * GIB),
    "tpu-v4": Device(r"tpu v4", 275e12, 32 * GIB),
    "tpu-v5e": Device(r"tpu v5( lite|e)", 197e12, 16 * GIB),
    # JAX calls a v5p "TPU v5", and a v5e "TPU v5 lite".
    "tpu-v5p": Device(r"tpu v5p?$", 459e12, 95 * GIB),
    "tpu-v6e": Device(r"tpu v6( lite|e)", 918e12, 32 * GIB),
}
"""Devices by the names that `info --card` takes; the first match counts."""


def device_of(kind: str) -> Device | None:
    """Return the device that JAX calls `kind`; `None` if it is not in the table, or only a part of one (MIG)."""
    if re.search(r"\bmig\b", kind, re.IGNORECASE):
        return None
    return next((device for device in DEVICES.values() if re.search(device.kind, kind, re.IGNORECASE)), None)
