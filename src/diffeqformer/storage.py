"""Files that are whole or not there (written aside, flushed to the disk, then renamed), and whose damage is seen."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from diffeqformer.errors import Damaged

SEAL = "digest"
"""The entry of a JSON document that holds the digest of all others."""


def write_whole(path: Path, text: str) -> None:
    """Write `text` to `path` so that a reader, or a crash at any moment, sees the old content or the new, never a part.

    **Raises:** `OSError` if the disk refuses; the old content is then intact.
    """
    aside = path.with_name(f".{path.name}.tmp")
    try:
        with aside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the renames inside `folder` survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sealed(document: dict[str, Any]) -> dict[str, Any]:
    """The document with its own digest as the last entry."""
    return {**document, SEAL: json_digest(document)}


def write_sealed(path: Path, document: dict[str, Any]) -> None:
    """Write a JSON document, sealed, whole or not at all.

    **Raises:** `OSError` as `write_whole`; `ValueError` for a number that JSON does not have.
    """
    write_whole(path, json.dumps(sealed(document), indent=1, allow_nan=False, ensure_ascii=False) + "\n")


def read_sealed(path: Path) -> dict[str, Any]:
    """The document that `write_sealed` wrote, without its seal.

    One without a seal is as good: a seal cannot be lost without the JSON or another entry being damaged.

    **Raises:** `Damaged` if it is not what was written or cannot be read; `FileNotFoundError` if it is not there.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Damaged(f"file {str(path)!r} cannot be read: {error.strerror}.") from None
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        raise Damaged(f"file {str(path)!r} is damaged: it is not the JSON that was written.") from None
    seal = document.pop(SEAL, None) if isinstance(document, dict) else ""
    if seal is not None and seal != json_digest(document):
        raise Damaged(f"file {str(path)!r} is damaged, or was edited: it does not match its digest.")
    return document


def file_digest(path: Path, size: int = 32) -> str:
    """BLAKE2b of a file's bytes, `size` bytes long, in hexadecimal.

    **Raises:** `OSError` if it cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=size)).hexdigest()


def json_digest(value: Any) -> str:
    """BLAKE2b of a JSON value, whatever the order of its entries and its layout."""
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=32).hexdigest()
