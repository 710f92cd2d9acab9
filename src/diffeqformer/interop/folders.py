"""A folder that is whole or not there: written beside its place under a lock, then renamed."""

import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path

from diffeqformer.errors import BadInput
from diffeqformer.storage import sync_folder, write_whole
from diffeqformer.training.lock import RunLock

LOCK, SUMS = ".lock", "SHA256SUMS"


def require_free(folder: Path) -> None:
    """Check that `folder` does not exist or is empty.

    **Raises:** `BadInput` if something is there.
    """
    try:
        taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    except OSError as error:
        raise BadInput(f"folder {str(folder)!r} cannot be opened: {error.strerror}.") from None
    if taken:
        raise BadInput(f"folder {str(folder)!r} exists and is not an empty folder; choose another one with --to.")


def require_space(aside: Path, needed: int, what: str) -> None:
    """Check that the disk that holds `aside` has `needed` bytes left for `what`.

    **Raises:** `BadInput` naming what is needed and what is free.
    """
    free = shutil.disk_usage(aside).free
    if free < needed:
        raise BadInput(
            f"{what} needs {needed / 1e6:,.0f} MB, but the disk that holds {str(aside.parent)!r} has "
            f"{free / 1e6:,.0f} MB left; free some, or choose another disk with --to."
        )


@contextmanager
def becoming(folder: Path, what: str, doing: str, keep_lock: bool = False) -> Iterator[Path]:
    """A locked folder beside `folder` that becomes it when the `with` block ends well, and vanishes when it does not.

    What a killed process left in it is removed by the next one that writes the same folder.

    **Arguments:** `what` the folder is, for messages; `doing`, the ending of the name that it has until it is whole;
    `keep_lock`, whether the lock's file goes along.

    **Raises:** `BadInput` if it cannot be written, or another process is writing it.
    """
    folder = folder.resolve()  # a folder cannot be renamed onto a link
    aside = folder.with_name(f".{folder.name}.{doing}")
    try:
        aside.mkdir(parents=True, exist_ok=True)
        with RunLock(aside):
            try:
                _clear(aside)
                yield aside
                os.rename(aside, folder)
            except BaseException:
                shutil.rmtree(aside, ignore_errors=True)
                raise
            if not keep_lock:
                (folder / LOCK).unlink()
        sync_folder(folder.parent)
    except OSError as error:
        raise BadInput(f"{what} {str(folder)!r} cannot be written: {error.strerror}.") from error


def write_sums(folder: Path) -> None:
    """List the digests of a folder's own files in `SHA256SUMS`, which `sha256sum --check` reads too."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name not in (LOCK, SUMS))
    write_whole(folder / SUMS, "".join(f"{_sha256(path)}  {path.name}\n" for path in files))


def require_sums(folder: Path, names: Sequence[str]) -> None:
    """Check those files of a folder that `SHA256SUMS` lists, if it has one: published models have none.

    **Arguments:** `names`, or patterns, of the files that are going to be read; the others may have been edited.

    **Raises:** `BadInput` naming the first that is not what was written.
    """
    if not (folder / SUMS).is_file():
        return
    for line in (folder / SUMS).read_text(encoding="utf-8", errors="replace").splitlines():
        found = re.fullmatch(r"([0-9a-f]{64})  ([^/]+)", line)
        if found is None:
            raise BadInput(f"file {str(folder / SUMS)!r} is damaged: {line[:80]!r} is not a digest and a name.")
        path = folder / found[2]
        wanted = any(fnmatch(path.name, name) for name in names)
        if wanted and path.is_file() and _sha256(path) != found[1]:
            raise BadInput(
                f"file {str(path)!r} is damaged, or was edited: it does not match {SUMS}; put it back, or delete "
                f"{SUMS} if it was edited on purpose."
            )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _clear(aside: Path) -> None:
    """Remove all but the lock."""
    for entry in aside.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry.name != LOCK:
            entry.unlink()
