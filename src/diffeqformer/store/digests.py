"""The only digest scheme: SHA-256 in hexadecimal, which `sha256sum` can check."""

import hashlib
import json
from pathlib import Path

from diffeqformer.store.regular import open_to_read

SCHEME = hashlib.sha256


def digest(content: bytes) -> str:
    """Return the hexadecimal digest of bytes."""
    return SCHEME(content).hexdigest()


def file_digest(path: Path) -> str:
    """Return the hexadecimal digest of a file's bytes.

    **Raises:** `OSError` if the file cannot be read.
    """
    with open_to_read(path) as file:
        return hashlib.file_digest(file, SCHEME).hexdigest()


def json_digest(value: object) -> str:
    """Return the hexadecimal digest of a JSON value, independent of the order of its entries and its layout."""
    return digest(json.dumps(value, sort_keys=True).encode())
