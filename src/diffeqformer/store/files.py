"""Atomic writes of files (temporary file, flush to disk, rename), and JSON documents whose damage is detected."""

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
"""The entry of a JSON document that holds the digest of all other entries."""
JSON_BYTES = 64 << 20
"""Maximum size in bytes of a JSON document of a run, or next to a model."""
OF_DISKS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EROFS, errno.ESTALE)
"""Errors of writing to an open file, for which the system reports no path."""
PASSING = (
    errno.EACCES, errno.EPERM, errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN,
    errno.ETIMEDOUT, errno.EBUSY, errno.ENOTCONN, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETUNREACH,
)  # fmt: skip
"""Errors of reading that do not mean damage: the reader, or the way to the file, is at fault."""
LONGEST_NAME = 255 - 32
"""Longest name in bytes that the usual file systems allow, less what `hidden` adds."""


def write_whole(path: Path, content: str | bytes) -> None:
    """Write `content` to `path` atomically: readers always find the old or the new content, even after a crash.

    **Raises:** `OSError` if the disk refuses the new content; the old content is then intact.
    """
    write_together(path.parent, {path.name: content})


def write_together(folder: Path, contents: Mapping[str, str | bytes]) -> None:
    """Write several files of one folder: all are on the disk before the first one is renamed, and the last one exists
    only together with all others.

    **Raises:** `OSError` if the disk refuses the new content; all old content is then intact.
    """
    paths = [folder / name for name in contents]
    asides = [path.with_name(hidden(path.name, f"{secrets.token_hex(8)}.tmp")) for path in paths]
    path = folder
    try:
        with ExitStack() as stack:  # keeps them open, and so locked, until they are renamed
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
        # Name the requested file: the caller does not know the temporary one.
        raise OSError(error.errno, error.strerror, str(path)) from error
    sync_folder(folder)


def hidden(name: str, ending: str) -> str:
    """Return the temporary name for `name`: `.NAME.ending`, with the digest of a name that is too long for that."""
    raw = os.fsencode(name)
    return f".{name if len(raw) <= LONGEST_NAME else digest(raw)}.{ending}"


def _locked(aside: Path) -> int:
    """Create a new file that is locked while this process lives; return its handle.

    Nobody can guess its name, and it must not exist yet: so nothing is written through a planted link, and two
    processes may write at the same time.
    """
    while True:
        handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        with suppress(OSError):  # without locks in the file system, nobody can take it for abandoned either
            fcntl.flock(handle, fcntl.LOCK_EX)
        if aside.exists():
            return handle
        os.close(handle)  # another process removed it as abandoned before it was locked


def _remove_abandoned(path: Path) -> None:
    """Remove the temporary files of `path` that killed processes left: the kernel has released their locks."""
    own = re.compile(re.escape(hidden(path.name, "")) + r"[0-9a-f]{16}\.tmp")
    for left in (path.with_name(name) for name in os.listdir(path.parent) if own.fullmatch(name)):
        remove_unlocked(left, Path.unlink)


def remove_unlocked(path: Path, remove: Callable[[Path], object]) -> None:
    """Remove an abandoned file or folder, unless the process that made it still lives and so holds its lock."""
    with suppress(OSError):
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove(path)
        finally:
            os.close(handle)


def is_of(error: OSError, folder: Path) -> bool:
    """Return whether a system error concerns a folder: its path is in the folder or above it or, if the error names no
    path, it is one of `OF_DISKS`."""
    if not isinstance(error.filename, str | bytes):
        return error.errno in OF_DISKS
    path, here = Path(os.path.abspath(os.fsdecode(error.filename))), Path(os.path.abspath(folder))
    return path.is_relative_to(here) or here.is_relative_to(path)


def flush(file: IO[str] | IO[bytes]) -> None:
    """Wait until an open file's content is on the disk: a rename could otherwise overtake it."""
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
    """Write, with `write_whole`, a file that a user asked for, and create the folders that it needs.

    **Raises:** `RunFailed` if the disk refuses, naming `what` and the path.
    """
    write_outputs(path.parent, {path.name: content}, what)


def write_outputs(folder: Path, contents: Mapping[str, str | bytes], what: str) -> None:
    """Write, with `write_together`, files that a user asked for, and create the folders that they need.

    **Raises:** `RunFailed` if the disk refuses, naming `what` and the path.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_together(folder, contents)
    except OSError as error:
        path = folder / next(iter(contents)) if len(contents) == 1 else error.filename or folder
        raise RunFailed(f"{what} {str(path)!r} cannot be written: {reason(error)}.") from None


def sealed_text(document: Document) -> str:
    """Return a document as JSON text, with its own digest as the last entry."""
    return json.dumps({**document, SEAL: json_digest(document)}, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def write_sealed(path: Path, document: Document) -> None:
    """Write a JSON document with its seal, atomically.

    **Raises:** `OSError` as `write_whole`; `ValueError` for a number that JSON does not have.
    """
    write_whole(path, sealed_text(document))


def read_sealed(path: Path) -> Document:
    """Read the document that `write_sealed` wrote, without its seal.

    A document without a seal is accepted: a seal cannot be lost without damage to the JSON or to another entry.

    **Raises:** `Damaged` if it is not what was written or cannot be read; `FileNotFoundError` if it does not exist;
    `RunFailed` if reading it fails with one of `PASSING`.
    """
    try:
        content = read_small(path, JSON_BYTES)
    # These are `OSError`s too, but a file that is missing, or that only others may read, is not damaged.
    except FileNotFoundError:
        raise
    except OSError as error:
        of = RunFailed if error.errno in PASSING else Damaged
        raise of(f"file {str(path)!r} cannot be read: {error.strerror}.") from None
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        raise Damaged(f"file {str(path)!r} is damaged: it is not the JSON that was written.") from None
    # "" is not a digest, so a document that is not an object is refused.
    seal = document.pop(SEAL, None) if isinstance(document, dict) else ""
    if seal is not None and seal != json_digest(document):
        raise Damaged(f"file {str(path)!r} is damaged, or was edited: it does not match its digest.")
    return document
