"""Opening files that may be a stranger's: only regular files, small ones read whole, no writing through links."""

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path
from typing import TextIO

from diffeqformer.errors import BadInput

POINTER = b"version https://git-lfs"
"""Start of a Git LFS pointer, which stands for a file not fetched yet; a pointer is shorter than 1,024 bytes."""


def open_to_read(path: Path) -> BufferedReader:
    """Open a regular file; refuse a FIFO, on which opening would block, and a device, which has no end.

    **Raises:** `OSError`.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    # Check the open file: by now the path may name something else.
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def read_small(path: Path, most: int) -> bytes:
    """Read a whole regular file of at most `most` bytes.

    **Raises:** `OSError`, also for a larger one.
    """
    with open_to_read(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(path))
    return content


def open_to_append(path: Path) -> TextIO:
    """Open a text file for appending; create it if it does not exist.

    **Raises:** `OSError`, also if it is a link.
    """
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    return os.fdopen(handle, "a", encoding="utf-8")


def require_no_links(run: Path) -> None:
    """Check that a run folder that will be written contains no link at any depth: a link may lead anywhere.

    The folder of Weights & Biases has links of its own and is skipped.

    **Raises:** `BadInput` naming the first link.
    """
    for here, folders, names in os.walk(run):
        for path in (Path(here, name) for name in sorted((*folders, *names))):
            if path.is_symlink():
                raise BadInput(f"{str(path)!r} is a link, and none is written through; put what it leads to there.")
        folders[:] = [name for name in folders if name != "wandb"]
