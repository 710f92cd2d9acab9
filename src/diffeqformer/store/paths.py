"""Paths as users write them: checked when they are read, before anything is computed."""

import errno
import os
import tempfile
from pathlib import Path

from diffeqformer.errors import BadInput, reason
from diffeqformer.plain import shown

MEMORY = "/dev/shm"
"""A folder whose files Linux keeps in memory."""


def path_of(name: str | Path) -> Path:
    """Return the path that a user names, with `~` expanded; it need not exist.

    **Raises:** `BadInput` for what the system cannot look up: `~nobody`, a name that is too long, a loop of links, or a
    folder that this process may not look into.
    """
    try:
        path = Path(name).expanduser()
        # Called only to refuse here, by the name as written, what the system cannot look up.
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return path
    except (OSError, RuntimeError, ValueError) as error:
        raise BadInput(f"path {shown(str(name))} cannot be used: {reason(error)}.") from None
    return path


def have_temporary_folder() -> None:
    """Keep temporary files in memory if no folder for them can be written, as in containers with a read-only root:
    Matplotlib needs one too, and would fail only after everything is computed."""
    try:
        tempfile.gettempdir()
    except FileNotFoundError:
        if os.access(MEMORY, os.W_OK | os.X_OK):
            os.environ["TMPDIR"] = tempfile.tempdir = MEMORY


def require_writable(path: Path, what: str) -> None:
    """Check that `path` can be created or, if it exists, written, before anything is computed.

    **Arguments:** `what` it is, for messages, such as `run folder`.

    **Raises:** `BadInput` if one of its parents is a file, it is a link to nothing, `..` leaves a folder that does not
    exist, it would lie among the checkpoints of a run, or its folder or disk cannot be written.
    """
    there = next(part for part in (path.absolute(), *path.absolute().parents) if os.path.lexists(part))
    why = None
    if there != path.absolute() and not there.is_dir():
        why = f"{str(there)!r} is not a folder"
    elif not there.exists():
        why = f"it is a link to {os.readlink(there)!r}, which does not exist"
    elif ".." in path.absolute().parts[len(there.parts) :]:
        # The system would not find it without the folder that `..` leaves.
        why = f"it leads through folders of {str(there)!r} that do not exist; write it without '..'"
    elif run := _whose_checkpoints(path):
        why = f"the checkpoints of run {str(run)!r} are there, which would count as damaged"
    elif not os.access(there, os.W_OK):
        # `access` gives no reason.
        why = os.strerror(errno.EROFS if os.statvfs(there).f_flag & os.ST_RDONLY else errno.EACCES)
    if why:
        raise BadInput(f"{what} {str(path)!r} cannot be written: {why}.")


def _whose_checkpoints(path: Path) -> Path | None:
    """Return the run among whose checkpoints a path lies, if any."""
    places = (part for part in (path.resolve(), *path.resolve().parents) if part.name == "checkpoints")
    return next((part.parent for part in places if any(part.glob("*/manifest.json"))), None)
