"""Checkpoints that are either sound or known not to be.

Orbax writes the arrays. Around it there are a manifest with the digest of every file, one rename that makes a
checkpoint count, and a reader that verifies before it trusts:

    checkpoints/300/manifest.json     step, metric, metadata, types and shapes of arrays, digests of files; sealed
                   /model/...         one Orbax folder for each item
                   /optimizer/...
    checkpoints/writing-400/...       unfinished; never read, removed by the next writer
               /replaced-300/...      whole: the old one of update 300 while a new one is renamed into its place
"""

import errno
import os
import re
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from jaxtyping import PyTree

from diffeqformer.errors import BadInput, Damaged, RunFailed, reason
from diffeqformer.plain import Document
from diffeqformer.runs.arrays import Items, kinds, read_arrays, write_arrays
from diffeqformer.runs.distributed import ReportedElsewhere, by_main, is_loss
from diffeqformer.store.digests import file_digest
from diffeqformer.store.files import PASSING, flush, read_sealed, sync_folder, write_sealed

MANIFEST = "manifest.json"
INDEX = "manifest.ocdbt"
"""Index of an item's arrays, which Orbax writes last."""
REPLACED = "replaced-"


@dataclass(frozen=True)
class Restored:
    """A checkpoint that has been verified and read."""

    step: int
    """Updates done when it was written."""
    items: dict[str, PyTree]
    """The requested PyTrees, by name."""
    metadata: Document
    passed_over: str = ""
    """Which newer checkpoint is damaged, and how; empty if none is."""


class Checkpoints:
    """The checkpoints of one run.

    **Arguments:** `folder` of the checkpoints (created by the first save); `keep_last`, how many of the newest to keep;
    `keep_best`, how many with the lowest metric to keep in addition.
    """

    def __init__(self, folder: Path, keep_last: int = 2, keep_best: int = 1):
        self.folder = folder.absolute()  # Orbax requires absolute paths
        self.keep_last, self.keep_best = keep_last, keep_best

    def steps(self) -> list[int]:
        """Return the updates of all checkpoints, oldest first, sound or not."""
        if not self.folder.is_dir():
            return []
        names = {entry.name.removeprefix(REPLACED) for entry in self.folder.iterdir()}
        return sorted(int(name) for name in names if name.isdecimal())

    def last_good(self) -> str:
        """Describe the last good checkpoint, for the end of a message."""
        steps = self.steps()
        return f"the last good checkpoint is at update {steps[-1]}" if steps else "there is no checkpoint yet"

    def save(self, step: int, items: Items, metadata: Document, metric: float | None = None) -> None:
        """Write a checkpoint under a temporary name, rename it into place, and remove those no longer kept.

        **Arguments:** `items`, PyTrees of arrays by name, with any sharding; `metadata`, what JSON can hold; `metric`,
        lower is better, `None` if it was not measured at this step.

        **Raises:** `RunFailed` if it could not be written, for example on a full disk; earlier checkpoints are intact.
        """
        aside = self.folder / f"writing-{step}"

        def begin() -> None:
            self.clean()
            aside.mkdir(parents=True)

        def end() -> None:
            for item, tree in items.items():
                if kinds(tree) and not (aside / item / INDEX).is_file():
                    raise OSError(f"{item}/{INDEX} is missing")  # so nothing of the item could be read again
            files = sorted(path.relative_to(aside).as_posix() for path in aside.rglob("*") if path.is_file())
            manifest = {
                "step": step,
                "metric": metric,
                "metadata": metadata,
                "arrays": {item: kinds(tree) for item, tree in items.items()},
                "files": {name: _digest_of_new(aside / name) for name in files},
            }
            for path in aside.rglob("*"):
                if path.is_dir():
                    sync_folder(path)
            write_sealed(aside / MANIFEST, manifest)
            place, replaced = self.folder / str(step), self.folder / f"{REPLACED}{step}"
            if place.exists():  # removed only once the new one is in place: it may be the only one
                os.rename(place, replaced)
            os.rename(aside, place)
            sync_folder(self.folder)
            if replaced.exists():
                shutil.rmtree(replaced)
            self._rotate()

        try:
            by_main(begin)
            write_arrays(aside, items)  # on every process, each its own parts
            by_main(end)
        except ReportedElsewhere:
            raise
        except Exception as error:  # Orbax and TensorStore report a full disk as errors of several types
            if is_loss(error):
                raise
            _remove_unfinished(aside)
            last = max(self.steps(), default=None)
            safe = "there is no earlier one" if last is None else f"the last good one is at update {last}"
            raise RunFailed(
                f"the checkpoint at update {step} could not be written in {str(self.folder)!r} "
                f"({_reason(error)}); {safe}."
            ) from error

    def latest(self, like: Items, say: Callable[[str], None] | None = None) -> Restored | None:
        """Read the newest checkpoint; `None` if there is none at all.

        **Arguments:** `like`, the items to read: PyTrees of arrays or of `jax.ShapeDtypeStruct`. Arrays are placed by
        their shardings or, without one, on the default device. `say`, called with a line for each damaged checkpoint
        that is passed over for an older one; without `say`, none is passed over.

        **Raises:** `RunFailed` if the newest is damaged and `say` is not given, or if none is sound; `BadInput` if one
        does not fit `like`.
        """
        return self._first_sound(lambda: self.steps()[::-1], like, say)

    def best(self, like: Items) -> Restored | None:
        """Read the checkpoint of lowest metric; `None` if no checkpoint has a metric.

        **Raises:** as `latest`.
        """
        # Checkpoints whose metric cannot be read come first.
        return self._first_sound(lambda: [step for steps in self._metrics() for step in steps], like, None)

    def of(self, step: int, like: Items) -> Restored | None:
        """Read the checkpoint of one update; `None` if it does not exist. **Raises:** as `latest`."""
        return self._first_sound(lambda: [step] if self._lies(step) else [], like, None)

    def metadata(self) -> tuple[int, Document]:
        """Return the update and the metadata of the newest checkpoint with a sound manifest; 0 and empty if none."""
        for step in self.steps()[::-1]:
            with suppress(Damaged):
                return step, self._manifest(step)["metadata"]
        return 0, {}

    def digest(self, step: int) -> str | None:
        """Return a digest of a whole checkpoint, that of its manifest; `None` if there is no manifest."""
        path = self.folder / str(step) / MANIFEST
        return file_digest(path) if path.is_file() else None

    def clean(self, after: int | None = None) -> None:
        """Remove what killed writes and removals left, put back a checkpoint whose replacement is missing, and remove
        the checkpoints of updates later than `after`, if given.

        To be called only by the process that holds the run's lock.
        """
        for entry in [*self.folder.iterdir()] if self.folder.is_dir() else ():
            place = self.folder / entry.name.removeprefix(REPLACED)
            if entry != place and not place.exists():
                os.rename(entry, place)
            elif entry.name.startswith(("writing-", "removing-", REPLACED)):
                shutil.rmtree(entry)
        for step in self.steps():
            if after is not None and step > after:
                self._remove(step)

    def _first_sound(
        self, order: Callable[[], list[int]], like: Items, say: Callable[[str], None] | None
    ) -> Restored | None:
        """Read the first sound checkpoint in `order()`, asked anew each time: training may remove any meanwhile."""

        def first_sound() -> tuple[int, Document, str] | None:
            damage, seen = "", set()
            while (step := next((step for step in order() if step not in seen), None)) is not None:
                seen.add(step)
                if damage and say:
                    say(f"{damage}; using the one at update {step}.")
                try:
                    metadata = self._verified(step, like)
                    if damage and not say:
                        older = f"what only reads it reads the one at update {step} with --checkpoint sound"
                        raise RunFailed(f"{damage}; {older}.")
                    return step, metadata, damage
                except Damaged as error:
                    # Otherwise the training process has rotated it away while it was being verified.
                    if self._lies(step):
                        damage = f"checkpoint at update {step} is damaged ({error})"
            if damage:
                raise RunFailed(f"{damage}, and no other in {str(self.folder)!r} is sound.")
            return None

        while found := by_main(first_sound):
            step, metadata, damage = found
            try:
                return Restored(step, read_arrays(self._place(step), like), metadata, damage)
            except Exception:  # Orbax and TensorStore raise several types
                # Otherwise it was rotated away, and the order is asked for anew.
                if self._lies(step):
                    raise
        return None

    def _place(self, step: int) -> Path:
        """Return the folder of a checkpoint: the old one's, if a kill came between the two renames."""
        place, replaced = self.folder / str(step), self.folder / f"{REPLACED}{step}"
        return replaced if replaced.exists() and not place.exists() else place

    def _lies(self, step: int) -> bool:
        return self._place(step).is_dir()

    def _manifest(self, step: int) -> Document:
        """Read the manifest of a checkpoint. **Raises:** `Damaged`, whose message starts with the manifest's name."""
        path = self._place(step) / MANIFEST
        try:
            manifest = read_sealed(path)
        except FileNotFoundError:
            raise Damaged(f"{MANIFEST} is missing") from None
        except Damaged as damage:
            raise Damaged(str(damage).replace(f"file {str(path)!r}", MANIFEST).removesuffix(".")) from None
        if manifest.get("step") != step:
            raise Damaged(f"{MANIFEST}: written at update {manifest.get('step')}")
        if not _is_whole(manifest):
            raise Damaged(f"{MANIFEST} does not describe a checkpoint")
        return manifest

    def _verified(self, step: int, like: Items) -> Document:
        """Verify that a checkpoint is sound and has the arrays of `like`; return its metadata."""
        folder, manifest = self._place(step), self._manifest(step)
        for item, tree in like.items():
            self._require_same_arrays(step, item, manifest["arrays"].get(item), kinds(tree))
        for name, digest in manifest["files"].items():
            # What is not read may be damaged: a model opens even if its optimiser's state is lost.
            if name.split("/")[0] not in like:
                continue
            try:
                found = file_digest(folder / name)
            except FileNotFoundError:
                raise Damaged(f"{name} is missing") from None
            except OSError as error:
                if error.errno in PASSING:  # it may be sound, so no older one is taken and nothing removed
                    raise RunFailed(f"file {str(folder / name)!r} cannot be read: {_reason(error)}.") from None
                raise Damaged(f"{name} cannot be read: {_reason(error)}") from None
            if found != digest:
                raise Damaged(f"{name}: digest differs")
        for item in like:  # Orbax opens whatever it finds
            for path in (folder / item).rglob("*"):
                if not path.is_dir() and (name := path.relative_to(folder).as_posix()) not in manifest["files"]:
                    raise Damaged(f"{name} is not one of its files")
        return manifest["metadata"]

    def _require_same_arrays(self, step: int, item: str, stored: dict[str, str] | None, here: dict[str, str]) -> None:
        where = f"the checkpoint at update {step} in {str(self.folder)!r}"
        if stored is None:
            raise BadInput(f"{where} has no {item!r}, but this run needs one.")
        for name in sorted(here.keys() | stored.keys()):
            if here.get(name) != stored.get(name):
                raise BadInput(
                    f"{where} does not fit this run: array {item}/{name} is {stored.get(name, 'absent')} there, "
                    f"but {here.get(name, 'absent')} here."
                )

    def _metrics(self) -> tuple[list[int], list[int]]:
        """Return the updates whose metric cannot be read, and the others that have one, the lowest metric first."""
        damaged, metrics = [], []
        for step in self.steps():
            try:
                if (metric := self._manifest(step)["metric"]) is not None:
                    metrics.append((metric, step))
            except Damaged:
                damaged.append(step)
        return damaged, [step for _, step in sorted(metrics)]

    def _rotate(self) -> None:
        damaged, sound = self._metrics()  # damaged ones do not count as best: their metrics are unknown
        keep = {*self.steps()[-self.keep_last :], *damaged, *sound[: self.keep_best]}
        for step in self.steps():
            if step not in keep:
                self._remove(step)

    def _remove(self, step: int) -> None:
        """Remove a checkpoint; it is renamed first, so that a folder named by an update is never incomplete."""
        folder, aside = self.folder / str(step), self.folder / f"removing-{step}"
        if folder.exists():
            os.rename(folder, aside)
            shutil.rmtree(aside)


def _is_whole(manifest: Document) -> bool:
    """Whether a manifest has the entries that are read, of their types: a stranger can seal any others."""
    metadata, arrays, files = (manifest.get(name) for name in ("metadata", "arrays", "files"))
    if not (isinstance(metadata, dict) and isinstance(arrays, dict) and isinstance(files, dict)):
        return False
    inner = [*arrays.values(), *(metadata.get(name, {}) for name in ("config", "own", "built", "recipe", "jax"))]
    return all(isinstance(one, dict) for one in inner) and isinstance(manifest.get("metric"), float | int | None)


def _remove_unfinished(aside: Path) -> None:
    """Remove a checkpoint that could not be written; other writes of Orbax may still be running and recreate it."""
    for _ in range(20):
        shutil.rmtree(aside, ignore_errors=True)
        time.sleep(0.05)
        if not aside.exists():
            return


def _digest_of_new(path: Path) -> str:
    """Flush a file to the disk, and return its digest."""
    # fsync applies to the file, whoever has written to it: any handle will do.
    with path.open("rb") as file:
        flush(file)
    return file_digest(path)


def _reason(error: Exception) -> str:
    """Return what went wrong, on one line; libraries wrap the system's message for a full disk in their own words."""
    full, number = os.strerror(errno.ENOSPC), re.search(r"os_error_code='(\d+)'", str(error))
    if number:
        return os.strerror(int(number[1]))
    return full if full in str(error) else reason(error, 200)
