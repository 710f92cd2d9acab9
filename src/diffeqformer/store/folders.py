"""Folders that exist whole or not at all: written under a temporary name next to their place, locked, then renamed."""

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
from diffeqformer.store.files import JSON_BYTES, OF_DISKS, hidden, remove_unlocked, sync_folder, write_whole
from diffeqformer.store.lock import LOCK, folder_lock
from diffeqformer.store.paths import require_writable
from diffeqformer.store.regular import read_small

SUMS = "SHA256SUMS"


def require_free(folder: Path) -> None:
    """Check that `folder` does not exist or is empty, and is not the current working directory.

    **Raises:** `BadInput` as `require_writable`, if something is there, or for the current folder, since the new one
    would replace it.
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
    require_writable(folder, "folder")


def free_bytes(folder: Path) -> int:
    """Return the free space, in bytes, of the disk that holds `folder`, or will hold it."""
    places = (folder.absolute(), *folder.absolute().parents)
    return shutil.disk_usage(next(place for place in places if place.exists())).free


def require_space(folder: Path, needed: int, what: str) -> None:
    """Check that the disk that holds `folder` has `needed` bytes free for `what`.

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
    """Create `folder` and its missing parents; if the `with` block fails and leaves nothing in the new folders but a
    lock file, remove them again."""
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        with suppress(OSError):
            if folder in new and [entry.name for entry in folder.iterdir()] == [LOCK]:
                (folder / LOCK).unlink()
            # The deepest first; the first one that is not empty ends the loop.
            for path in new:
                path.rmdir()
        raise


@contextmanager
def becoming(folder: Path, what: str, doing: str, keep_lock: bool = False) -> Iterator[Path]:
    """Yield a locked temporary folder next to `folder`: it is renamed to `folder` if the `with` block succeeds, and
    removed if the block fails.

    What a killed process left in it is removed by the next process that writes the same folder.

    **Arguments:** `what` the folder is, for messages; `doing`, the ending of the temporary name; `keep_lock`, whether
    the finished folder keeps the lock file.

    **Raises:** `BadInput` if it cannot be written, or another process is writing it; `RunFailed` if the disk is full or
    fails.
    """
    folder = folder.resolve()  # a folder cannot be renamed onto a link
    aside = folder.with_name(hidden(folder.name, doing))
    try:
        aside.mkdir(parents=True, exist_ok=True)
        # `mkdir` accepts a link to a folder.
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
                # An empty folder may be replaced, as `require_free` allows; the system refuses any other.
                if folder.is_dir():
                    _as_prepared(aside, folder)
                os.rename(aside, folder)
            except BaseException:
                shutil.rmtree(aside, ignore_errors=True)
                raise
            if not keep_lock:
                (folder / LOCK).unlink()
        sync_folder(folder.parent)
    except RunFailed as error:  # of a checkpoint in it: the user does not know the temporary name
        raise RunFailed(str(error).replace(str(aside), str(folder))) from error
    except OSError as error:
        said = f"{what} {str(folder)!r} cannot be written: {reason(error)}."
        if error.errno not in OF_DISKS:
            raise BadInput(said) from error
        shutil.rmtree(aside, ignore_errors=True)  # also from `folder_lock`, before the block has begun
        raise RunFailed(said) from error


def _as_prepared(aside: Path, folder: Path) -> None:
    """Give `aside` the owner and the permissions of the empty folder that it will replace, which may be private."""
    prepared = folder.stat()
    with suppress(PermissionError):  # only root may change the owner
        os.chown(aside, prepared.st_uid, prepared.st_gid)
    aside.chmod(stat.S_IMODE(prepared.st_mode))


@contextmanager
def candidate(folder: Path) -> Iterator[Path]:
    """Yield a new folder next to `folder`, for several processes that may build the same one at the same time.

    Each process writes its own candidate; `install` puts the first one in place. A candidate is locked while its
    process lives, and removed at the end unless it was installed. Candidates of killed processes are removed first.
    """
    remove_abandoned(folder.parent)
    while True:
        aside = _candidate_name(folder)
        aside.mkdir()
        try:
            # Lock the folder itself: a lock file would be installed with the rest.
            lock = os.open(aside, os.O_RDONLY)
        except FileNotFoundError:
            continue  # another process cleaned up before we held the lock
        with suppress(OSError):  # without locks in the file system, nobody can take this folder for abandoned either
            fcntl.flock(lock, fcntl.LOCK_EX)
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
    """Remove the candidates in `root` whose processes were killed: the kernel has released their locks."""
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
        # Another process was first, after the check above: its folder stays.
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
    sync_folder(folder.parent)


def _candidate_name(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.{uuid.uuid4().hex}.building")


def write_sums(folder: Path) -> None:
    """Write the digests of the files directly in a folder to `SHA256SUMS`, which `sha256sum --check` can read."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name not in (LOCK, SUMS))
    write_whole(folder / SUMS, "".join(f"{file_digest(path)}  {path.name}\n" for path in files))


def require_sums(folder: Path, names: Sequence[str]) -> None:
    """Check the files of a folder against its `SHA256SUMS`, if it has one: published models have none.

    **Arguments:** `names`, names or patterns of the files that will be read; the others may have been edited.

    **Raises:** `BadInput` naming the first file that is not what was written.
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
        found = re.fullmatch(r"([0-9a-f]{64}) [ *](?:\./)?(.+)", line)  # as `sha256sum` writes it
        if found is None:
            raise BadInput(f"file {str(folder / SUMS)!r} is damaged: {line[:80]!r} is not a digest and a name.")
        if "/" in found[2]:
            continue  # a file of another folder, of which none is read
        path = folder / found[2]
        wanted = any(fnmatch(path.name, name) for name in names)
        if wanted and path.is_file() and file_digest(path) != found[1]:
            raise BadInput(
                f"file {str(path)!r} is damaged, or was edited: it does not match {SUMS}; put it back, or delete "
                f"{SUMS} if it was edited on purpose."
            )
