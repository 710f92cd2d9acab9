"""One writer per folder: an advisory lock that the kernel releases however the process ends."""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from diffeqformer.errors import BadInput

LOCK = ".lock"


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold `<folder>/.lock` while the `with` block runs.

    The file is left there on purpose: removing it would let two processes lock two files of the same name. It holds
    the ID of the last process that locked it.

    **Arguments:** `folder`, which must exist.

    **Raises:** `BadInput` if another process holds the lock.
    """
    try:
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        # `O_NOFOLLOW` reports ELOOP for a link.
        if error.errno != errno.ELOOP:
            raise
        raise BadInput(f"file {str(folder / LOCK)!r} is a link, and none is written through.") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(handle, 32, 0).decode(errors="replace").strip()
            raise BadInput(
                f"run folder {str(folder)!r} is being written by process {holder or 'unknown'}; "
                f"wait until it ends or choose another folder."
            ) from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)
