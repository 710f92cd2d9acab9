"""The one scheme of digests: SHA-256 in hexadecimal, which `sha256sum` checks too."""

import hashlib
import json
from pathlib import Path

from diffeqformer.store.regular import open_to_read

SCHEME = hashlib.sha256


def digest(content: bytes) -> str:
    """Of bytes."""
    return SCHEME(content).hexdigest()


def file_digest(path: Path) -> str:
    """Of a file's bytes.

    **Raises:** `OSError` if it cannot be read.
    """
    with open_to_read(path) as file:
        return hashlib.file_digest(file, SCHEME).hexdigest()


def json_digest(value: object) -> str:
    """Of a JSON value, whatever the order of its entries and its layout."""
    return digest(json.dumps(value, sort_keys=True).encode())
