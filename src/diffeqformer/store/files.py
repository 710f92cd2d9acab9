"""Files that are whole or not there (written aside, flushed to the disk, renamed), and whose damage is seen."""

import errno
import json
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import IO

from diffeqformer.errors import Damaged, RunFailed, reason
from diffeqformer.plain import Document
from diffeqformer.store.digests import json_digest
from diffeqformer.store.regular import read_small

SEAL = "digest"
"""The entry of a JSON document that holds the digest of all others."""
JSON_BYTES = 64 << 20
"""The most that a JSON document of a run, or beside a model, may have."""
OF_DISKS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EROFS, errno.ESTALE)
"""What writing to an open file, whose path the system does not know, fails with."""


def write_whole(path: Path, content: str | bytes) -> None:
    """Write `content` to `path` so that a reader, or a crash at any moment, finds the old content or the new one.

    **Raises:** `OSError` if the disk refuses; the old content is then intact.
    """
    # A name that nobody can guess, for a file that must not be there: no link planted beside `path` is written through,
    # and two processes may write it at the same time.
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            flush(file)
        os.replace(aside, path)
    except OSError as error:
        with suppress(OSError):
            aside.unlink()
        if error.errno is None:
            raise
        # Of the file that was to be written: nobody knows the one aside.
        raise OSError(error.errno, error.strerror, str(path)) from error
    sync_folder(path.parent)


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
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)
    except OSError as error:
        raise RunFailed(f"{what} {str(path)!r} cannot be written: {reason(error)}.") from None


def sealed(document: Document) -> Document:
    """The document with its own digest as the last entry."""
    return {**document, SEAL: json_digest(document)}


def write_sealed(path: Path, document: Document) -> None:
    """Write a JSON document, sealed, whole or not at all.

    **Raises:** `OSError` as `write_whole`; `ValueError` for a number that JSON does not have.
    """
    write_whole(path, json.dumps(sealed(document), indent=1, allow_nan=False, ensure_ascii=False) + "\n")


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
    except PermissionError as error:
        raise RunFailed(f"file {str(path)!r} cannot be read: {error.strerror}.") from None
    except OSError as error:
        raise Damaged(f"file {str(path)!r} cannot be read: {error.strerror}.") from None
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        raise Damaged(f"file {str(path)!r} is damaged: it is not the JSON that was written.") from None
    # "" is no digest, so that a document that is no object is refused.
    seal = document.pop(SEAL, None) if isinstance(document, dict) else ""
    if seal is not None and seal != json_digest(document):
        raise Damaged(f"file {str(path)!r} is damaged, or was edited: it does not match its digest.")
    return document
