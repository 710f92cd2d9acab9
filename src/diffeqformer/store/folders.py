"""Folders that are whole or not there: written under another name beside their place, under a lock, then renamed."""

import errno
import fcntl
import os
import re
import shutil
import stat
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

from rich import filesize

from diffeqformer.errors import BadInput, RunFailed, reason
from diffeqformer.store.digests import file_digest
from diffeqformer.store.files import JSON_BYTES, hidden, remove_unlocked, sync_folder, write_whole
from diffeqformer.store.lock import LOCK, folder_lock
from diffeqformer.store.regular import read_small

SUMS = "SHA256SUMS"


def require_free(folder: Path) -> None:
    """Check that `folder` does not exist or is empty, and not the one that this process runs in.

    **Raises:** `BadInput` if something is there, or for the current folder, since another takes its place.
    """
    try:
        taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
        here = not taken and folder.exists() and folder.samefile(".")
    except OSError as error:
        raise BadInput(f"folder {str(folder)!r} cannot be opened: {error.strerror}.") from None
    if taken:
        raise BadInput(f"folder {str(folder)!r} exists and is not an empty folder; choose another one with --to.")
    if here:
        raise BadInput(f"folder {str(folder)!r} is the current one, which a new one would replace; call from another.")


def free_bytes(folder: Path) -> int:
    """Room on the disk that `folder` lies on, or will lie on."""
    places = (folder.absolute(), *folder.absolute().parents)
    return shutil.disk_usage(next(place for place in places if place.exists())).free


def require_space(folder: Path, needed: int, what: str) -> None:
    """Check that the disk that holds `folder` has `needed` bytes left for `what`.

    **Raises:** `BadInput` naming what is needed and what is free.
    """
    free = free_bytes(folder)
    if free < needed:
        raise BadInput(
            f"{what} needs {filesize.decimal(needed, precision=2)}, but the disk that holds {str(folder.parent)!r} has "
            f"{filesize.decimal(free, precision=2)} left; free some, or choose another disk with --to."
        )


@contextmanager
def made(folder: Path) -> Iterator[None]:
    """`folder` and its parents, made where they are missing; those are removed again if the `with` block fails and
    leaves nothing in them but a lock's file."""
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        with suppress(OSError):
            if folder in new and [entry.name for entry in folder.iterdir()] == [LOCK]:
                (folder / LOCK).unlink()
            # The deepest first; the first that something is left in ends it.
            for path in new:
                path.rmdir()
        raise


@contextmanager
def becoming(folder: Path, what: str, doing: str, keep_lock: bool = False) -> Iterator[Path]:
    """A locked folder beside `folder` that becomes it when the `with` block ends well, and vanishes when it does not.

    What a killed process left in it is removed by the next one that writes the same folder.

    **Arguments:** `what` the folder is, for messages; `doing`, the ending of the name that it has until it is whole;
    `keep_lock`, whether the lock's file goes along.

    **Raises:** `BadInput` if it cannot be written, or another process is writing it.
    """
    folder = folder.resolve()  # a folder cannot be renamed onto a link
    aside = folder.with_name(hidden(folder.name, doing))
    try:
        aside.mkdir(parents=True, exist_ok=True)
        # `mkdir` is content with a link to a folder.
        if aside.is_symlink():
            raise BadInput(f"folder {str(aside)!r} is a link, and none is written through; remove it.")
        with folder_lock(aside):
            try:
                for entry in aside.iterdir():
                    if entry.is_dir():
                        shutil.rmtree(entry)
                    elif entry.name != LOCK:
                        entry.unlink()
                yield aside
                # Also onto an empty folder, which `require_free` allows; the system refuses any other.
                if folder.is_dir():
                    _as_prepared(aside, folder)
                os.rename(aside, folder)
            except BaseException:
                shutil.rmtree(aside, ignore_errors=True)
                raise
            if not keep_lock:
                (folder / LOCK).unlink()
        sync_folder(folder.parent)
    except RunFailed as error:  # of a checkpoint in it, whose place nobody knows
        raise RunFailed(str(error).replace(str(aside), str(folder))) from error
    except OSError as error:
        if error.errno == errno.ENOSPC:  # for the lock's own number, too: it is held, but the block has not begun
            shutil.rmtree(aside, ignore_errors=True)
        raise BadInput(f"{what} {str(folder)!r} cannot be written: {reason(error)}.") from error


def _as_prepared(aside: Path, folder: Path) -> None:
    """Give `aside` the owner and the permissions of an empty folder that it is going to replace: it may be private."""
    prepared = folder.stat()
    with suppress(PermissionError):  # the owner is for root to choose
        os.chown(aside, prepared.st_uid, prepared.st_gid)
    aside.chmod(stat.S_IMODE(prepared.st_mode))


@contextmanager
def candidate(folder: Path) -> Iterator[Path]:
    """A new folder beside `folder`, for several processes that may make the same one at the same time.

    Each writes its own; `install` puts the first in place. It is locked while its process lives, and removed in the end
    unless it was installed. What killed processes left beside it is removed first.
    """
    remove_abandoned(folder.parent)
    while True:
        aside = _candidate_name(folder)
        aside.mkdir()
        try:
            # The folder itself is locked: a file for it would be installed with the rest.
            lock = os.open(aside, os.O_RDONLY)
        except FileNotFoundError:
            continue  # another process cleaned up before we held the lock
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:
            pass  # a file system without locks: then nobody can take this folder for abandoned, either
        # Between `mkdir` and the lock another process may have removed it as abandoned.
        if aside.exists():
            break
        os.close(lock)
    try:
        yield aside
    finally:
        os.close(lock)
        shutil.rmtree(aside, ignore_errors=True)


def remove_abandoned(root: Path) -> None:
    """Remove the candidates in `root` whose processes were killed: the kernel has dropped their locks."""
    for folder in root.glob(".*.building"):
        remove_unlocked(folder, partial(shutil.rmtree, ignore_errors=True))


def install(aside: Path, folder: Path, is_sound: Callable[[Path], bool]) -> None:
    """Rename a finished candidate into place, unless another process has put a sound one there meanwhile."""
    if folder.exists():
        if is_sound(folder):
            return
        damaged = _candidate_name(folder)  # so that it is removed later if this process is killed here
        os.rename(folder, damaged)
        shutil.rmtree(damaged, ignore_errors=True)
    try:
        os.rename(aside, folder)
    except OSError as error:
        # Another process was first, after the look above: its folder stays.
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
    sync_folder(folder.parent)


def _candidate_name(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.{uuid.uuid4().hex}.building")


def write_sums(folder: Path) -> None:
    """List the digests of a folder's own files in `SHA256SUMS`, which `sha256sum --check` reads too."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name not in (LOCK, SUMS))
    write_whole(folder / SUMS, "".join(f"{file_digest(path)}  {path.name}\n" for path in files))


def require_sums(folder: Path, names: Sequence[str]) -> None:
    """Check those files of a folder that `SHA256SUMS` lists, if it has one: published models have none.

    **Arguments:** `names`, or patterns, of the files that are going to be read; the others may have been edited.

    **Raises:** `BadInput` naming the first that is not what was written.
    """
    if not (folder / SUMS).is_file():
        return
    try:
        sums = read_small(folder / SUMS, JSON_BYTES).decode(errors="replace")
    except OSError as error:
        raise BadInput(f"file {str(folder / SUMS)!r} cannot be read: {error.strerror}.") from None
    for line in sums.splitlines():
        if not line or line.startswith("#"):
            continue
        # As `sha256sum` writes them, of files given as ./NAME, too; without another slash none is of another folder.
        found = re.fullmatch(r"([0-9a-f]{64}) [ *](?:\./)?([^/]+)", line)
        if found is None:
            raise BadInput(f"file {str(folder / SUMS)!r} is damaged: {line[:80]!r} is not a digest and a name.")
        path = folder / found[2]
        wanted = any(fnmatch(path.name, name) for name in names)
        if wanted and path.is_file() and file_digest(path) != found[1]:
            raise BadInput(
                f"file {str(path)!r} is damaged, or was edited: it does not match {SUMS}; put it back, or delete "
                f"{SUMS} if it was edited on purpose."
            )
