"""Files that are whole or not there (written aside, flushed to the disk, renamed), and whose damage is seen."""

import errno
import fcntl
import json
import os
import re
import secrets
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

from diffeqformer.errors import Damaged, RunFailed, reason
from diffeqformer.plain import Document
from diffeqformer.store.digests import digest, json_digest
from diffeqformer.store.regular import read_small

SEAL = "digest"
"""The entry of a JSON document that holds the digest of all others."""
JSON_BYTES = 64 << 20
"""The most that a JSON document of a run, or beside a model, may have."""
OF_DISKS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EROFS, errno.ESTALE)
"""What writing to an open file, whose path the system does not know, fails with."""
PASSING = (
    errno.EACCES, errno.EPERM, errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN,
    errno.ETIMEDOUT, errno.EBUSY, errno.ENOTCONN, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETUNREACH,
)  # fmt: skip
"""What reading a sound file fails with: who asks, or the way to it, is at fault."""
LONGEST_NAME = 255 - 32
"""Bytes of a name that the usual file systems allow, less what `hidden` adds."""


def write_whole(path: Path, content: str | bytes) -> None:
    """Write `content` to `path` so that a reader, or a crash at any moment, finds the old content or the new one.

    **Raises:** `OSError` if the disk refuses; the old content is then intact.
    """
    write_together(path.parent, {path.name: content})


def write_together(folder: Path, contents: Mapping[str, str | bytes]) -> None:
    """The same of several files of one folder: all are on the disk before the first of them has its name, and the last
    is there only with all others.

    **Raises:** `OSError` if the disk refuses the new content; all of the old is then intact.
    """
    paths = [folder / name for name in contents]
    asides = [path.with_name(hidden(path.name, f"{secrets.token_hex(8)}.tmp")) for path in paths]
    path = folder
    try:
        with ExitStack() as stack:  # open, and so locked, until they have their names
            for path, aside, content in zip(paths, asides, contents.values(), strict=True):
                _remove_abandoned(path)
                file = stack.enter_context(os.fdopen(_locked(aside), "wb"))
                file.write(content.encode() if isinstance(content, str) else content)
                flush(file)
            if len(paths) > 1:
                paths[-1].unlink(missing_ok=True)
            for path, aside in zip(paths, asides, strict=True):
                os.replace(aside, path)
    except OSError as error:
        for aside in asides:
            with suppress(OSError):
                aside.unlink()
        if error.errno is None:
            raise
        # Of the file that was to be written: nobody knows the one aside.
        raise OSError(error.errno, error.strerror, str(path)) from error
    sync_folder(folder)


def hidden(name: str, ending: str) -> str:
    """The name of what becomes `name`, until it does: `.NAME.ending`, or of a name too long for that its digest."""
    raw = os.fsencode(name)
    return f".{name if len(raw) <= LONGEST_NAME else digest(raw)}.{ending}"


def _locked(aside: Path) -> int:
    """A new file, locked while its process lives.

    Its name is one that nobody can guess and must not be there: no link planted beside the place is written through,
    and two processes may write at the same time.
    """
    while True:
        handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        with suppress(OSError):  # a file system without locks: then nobody can take it for abandoned, either
            fcntl.flock(handle, fcntl.LOCK_EX)
        if aside.exists():
            return handle
        os.close(handle)  # before it was locked another process has removed it as abandoned


def _remove_abandoned(path: Path) -> None:
    """Remove what killed processes left of `path`: the kernel has dropped their locks."""
    own = re.compile(re.escape(hidden(path.name, "")) + r"[0-9a-f]{16}\.tmp")
    for left in (path.with_name(name) for name in os.listdir(path.parent) if own.fullmatch(name)):
        remove_unlocked(left, Path.unlink)


def remove_unlocked(path: Path, remove: Callable[[Path], object]) -> None:
    """Remove a file or folder that its process has left, unless that process, which holds its lock, lives."""
    with suppress(OSError):
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove(path)
        finally:
            os.close(handle)


def is_of(error: OSError, folder: Path) -> bool:
    """Whether an error of the system is about a folder: about a path in it or above it, or, if it names none, about a
    disk."""
    if not isinstance(error.filename, str | bytes):
        return error.errno in OF_DISKS
    path, here = Path(os.path.abspath(os.fsdecode(error.filename))), Path(os.path.abspath(folder))
    return path.is_relative_to(here) or here.is_relative_to(path)


def flush(file: IO[str] | IO[bytes]) -> None:
    """Return once all that was written to an open file is on the disk: a rename may otherwise overtake the content."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make the renames inside `folder` survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_output(path: Path, content: str | bytes, what: str = "report") -> None:
    """`write_whole` for a file that a user has asked for, with the folders that it needs.

    **Raises:** `RunFailed` if the disk refuses, naming `what` and the path.
    """
    write_outputs(path.parent, {path.name: content}, what)


def write_outputs(folder: Path, contents: Mapping[str, str | bytes], what: str) -> None:
    """`write_together` for files that a user has asked for, with the folders that they need.

    **Raises:** `RunFailed` if the disk refuses, naming `what` and the path.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_together(folder, contents)
    except OSError as error:
        path = folder / next(iter(contents)) if len(contents) == 1 else error.filename or folder
        raise RunFailed(f"{what} {str(path)!r} cannot be written: {reason(error)}.") from None


def sealed_text(document: Document) -> str:
    """A document as JSON, with its own digest as the last entry."""
    return json.dumps({**document, SEAL: json_digest(document)}, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def write_sealed(path: Path, document: Document) -> None:
    """Write a JSON document, sealed, whole or not at all.

    **Raises:** `OSError` as `write_whole`; `ValueError` for a number that JSON does not have.
    """
    write_whole(path, sealed_text(document))


def read_sealed(path: Path) -> Document:
    """The document that `write_sealed` wrote, without its seal.

    A document without a seal is accepted: a seal cannot be lost without the JSON or another entry being damaged.

    **Raises:** `Damaged` if it is not what was written or cannot be read; `FileNotFoundError` if it is not there;
    `RunFailed` if it may not be read.
    """
    try:
        content = read_small(path, JSON_BYTES)
    # `OSError`s, too, but what is not there, or for others alone, is not damaged.
    except FileNotFoundError:
        raise
    except OSError as error:
        of = RunFailed if error.errno in PASSING else Damaged
        raise of(f"file {str(path)!r} cannot be read: {error.strerror}.") from None
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        raise Damaged(f"file {str(path)!r} is damaged: it is not the JSON that was written.") from None
    # "" is no digest, so that a document that is no object is refused.
    seal = document.pop(SEAL, None) if isinstance(document, dict) else ""
    if seal is not None and seal != json_digest(document):
        raise Damaged(f"file {str(path)!r} is damaged, or was edited: it does not match its digest.")
    return document
