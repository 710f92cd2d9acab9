"""Files that are either whole or not there: written aside, flushed to the disk, then renamed."""

import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write `text` to `path` so that a reader, or a crash at any moment, sees the old content or the new, never a part.

    **Raises:** `OSError` if the disk refuses; the old content is then intact.
    """
    aside = path.with_name(f".{path.name}.tmp")
    with aside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the renames inside `folder` survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
