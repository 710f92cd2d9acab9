"""Names of files and folders as people write them: checked when they are read, and before anything is computed."""

import errno
import os
import tempfile
from pathlib import Path

from diffeqformer.errors import BadInput, reason
from diffeqformer.plain import shown

MEMORY = "/dev/shm"
"""A folder whose files Linux keeps in memory."""


def path_of(name: str | Path) -> Path:
    """The path that a person names, `~` expanded; something may be there or not.

    **Raises:** `BadInput` for what the system cannot look up: `~nobody`, a name that is too long, a loop of links, a
    folder that may not be looked into.
    """
    try:
        path = Path(name).expanduser()
        # Asked only so that what the system cannot look up is refused here, with the name as it was written.
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return path
    except (OSError, RuntimeError, ValueError) as error:
        raise BadInput(f"path {shown(str(name))} cannot be used: {reason(error)}.") from None
    return path


def have_temporary_folder() -> None:
    """Let temporary files lie in memory where no folder for them can be written, as in containers whose root cannot:
    Matplotlib needs one, too, and would say so when all is computed."""
    try:
        tempfile.gettempdir()
    except FileNotFoundError:
        if os.access(MEMORY, os.W_OK | os.X_OK):
            os.environ["TMPDIR"] = tempfile.tempdir = MEMORY


def require_writable(path: Path, what: str) -> None:
    """Check that something can be made at `path`, or written if it is there, before anything is computed.

    **Arguments:** `what` it is, for messages: `run folder`.

    **Raises:** `BadInput` if one of its folders is a file, or its folder or disk cannot be written.
    """
    there = next(part for part in (path.absolute(), *path.absolute().parents) if os.path.lexists(part))
    why = None
    if there != path.absolute() and not there.is_dir():
        why = f"{str(there)!r} is not a folder"
    elif not os.access(there, os.W_OK):
        # `access` says no without saying why.
        why = os.strerror(errno.EROFS if os.statvfs(there).f_flag & os.ST_RDONLY else errno.EACCES)
    if why:
        raise BadInput(f"{what} {str(path)!r} cannot be written: {why}.")
