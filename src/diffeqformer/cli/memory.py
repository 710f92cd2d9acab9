"""Let the C library keep what it has freed, so that every update does not ask the kernel for fresh pages.

XLA's CPU client allocates an update's temporaries anew each time. glibc maps large blocks and unmaps them when freed,
so each update pays for zeroing hundreds of megabytes; measured here, that is a fifth of a training step
(`docs/performance.md`). Only the command line does this, never an import.
"""

import contextlib
import ctypes

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4  # malloc.h


def keep_freed_memory() -> None:
    """Serve large blocks from the heap and never trim it; does nothing where the C library is not glibc."""
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_TOP_PAD, 256 * 2**20)
