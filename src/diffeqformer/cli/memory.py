"""Let the C library keep what it has freed, in large pages, so that no update asks the kernel for fresh memory.

XLA's CPU client allocates an update's temporaries anew each time. glibc maps large blocks and unmaps them when freed,
so each update pays for zeroing hundreds of megabytes, and small pages slow the passes over large parameters
(`docs/performance.md` has the numbers). glibc reads these settings only when a program starts, so the command starts
itself once more. Only the command line does this, never an import; a `GLIBC_TUNABLES` of the user's own is respected.
"""

import os
import platform
import sys

TUNABLES = ":".join(
    [
        "glibc.malloc.hugetlb=1",
        # No block is a mapping of its own, which freeing it would unmap.
        "glibc.malloc.mmap_max=0",
        # The heap is never given back.
        "glibc.malloc.trim_threshold=1000000000000",
        # It grows by 256 MiB more than is asked for.
        "glibc.malloc.top_pad=268435456",
    ]
)


def restart_with_kept_memory() -> None:
    """Restart this process with `TUNABLES` set; do nothing on other systems, or the second time."""
    if "GLIBC_TUNABLES" in os.environ or platform.libc_ver()[0] != "glibc":
        return
    os.environ["GLIBC_TUNABLES"] = TUNABLES
    # `orig_argv` has Python's own options, too, such as `-m`.
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
