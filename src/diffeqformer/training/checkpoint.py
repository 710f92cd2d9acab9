"""Checkpoints that are either sound or known not to be.

Orbax writes the arrays. Around it stand a manifest with the digest of every file, one rename that makes a checkpoint
count, and a reader that verifies before it trusts:

    checkpoints/300/manifest.json     step, metric, metadata, names and shapes of arrays, digests of files
                   /model/...         one Orbax folder for each item
                   /optimizer/...
    checkpoints/writing-400/...       not finished; never read, removed by the next writer
"""

import errno
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from diffeqformer.errors import BadInput, RunFailed
from diffeqformer.storage import file_digest, json_digest, sync_folder, write_whole
from diffeqformer.training.distributed import ToldElsewhere, by_first, is_loss

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Restored:
    """A checkpoint that was verified and read."""

    step: int
    """Updates done when it was written."""
    items: dict[str, Any]
    """The PyTrees that were asked for, by name."""
    metadata: dict[str, Any]


class _Damaged(Exception):
    """Why a checkpoint cannot be trusted, starting with the file."""


class Checkpoints:
    """The checkpoints of one run.

    **Arguments:** `folder`, where they lie (made by the first save); `keep_last`, how many of the newest to keep;
    `keep_best`, how many of lowest metric to keep besides.
    """

    def __init__(self, folder: Path, keep_last: int = 2, keep_best: int = 1):
        # Orbax takes absolute paths only.
        self.folder = folder.absolute()
        self.keep_last, self.keep_best = keep_last, keep_best

    def steps(self) -> list[int]:
        """Updates at which a checkpoint lies here, oldest first, sound or not."""
        if not self.folder.is_dir():
            return []
        return sorted(int(entry.name) for entry in self.folder.iterdir() if entry.name.isdecimal())

    def last_good(self) -> str:
        """What is safe, as the end of a message."""
        steps = self.steps()
        return f"the last good checkpoint is at update {steps[-1]}" if steps else "there is no checkpoint yet"

    def save(self, step: int, items: Mapping[str, Any], metadata: dict[str, Any], metric: float | None = None) -> None:
        """Write a checkpoint aside, rename it into place, then remove those that are no longer kept.

        **Arguments:** `items`, PyTrees of arrays by name, any sharding; `metadata`, what JSON can hold; `metric`, lower
        is better, `None` if it was not measured at this step.

        **Raises:** `RunFailed` if it could not be written, for example on a full disk; earlier checkpoints are intact.
        """
        aside = self.folder / f"writing-{step}"
        arrays = {item: by_path(tree) for item, tree in items.items()}

        def begin() -> None:
            self.clean()
            aside.mkdir(parents=True)

        def end() -> None:
            _describe(aside, step, arrays, metadata, metric)
            self._remove(step)
            os.rename(aside, self.folder / str(step))
            sync_folder(self.folder)
            self._rotate()

        try:
            by_first(begin)
            _write_arrays(aside, arrays)
            by_first(end)
        except ToldElsewhere:
            raise
        except Exception as error:  # Orbax and TensorStore report a full disk as errors of several types
            if is_loss(error):
                raise
            shutil.rmtree(aside, ignore_errors=True)
            last = max((s for s in self.steps() if s != step), default=None)
            safe = "there is no earlier one" if last is None else f"the last good one is at update {last}"
            raise RunFailed(
                f"the checkpoint at update {step} could not be written in {str(self.folder)!r} "
                f"({_reason(error)}); {safe}."
            ) from error

    def latest(self, like: Mapping[str, Any], say: Callable[[str], None]) -> Restored | None:
        """The newest sound checkpoint, or `None` if there is none at all.

        **Arguments:** `like`, the items to read: PyTrees of arrays or of `jax.ShapeDtypeStruct`, whose shardings, if
        they have any, are where the arrays go (else the default device); `say`, told of each damaged checkpoint.

        **Raises:** `RunFailed` if there are checkpoints but none is sound; `BadInput` if one does not fit `like`.
        """
        return self._first_sound(lambda: self.steps()[::-1], like, say)

    def best(self, like: Mapping[str, Any], say: Callable[[str], None]) -> Restored | None:
        """The same as `latest` for the sound checkpoint of lowest metric; `None` if none has one."""
        return self._first_sound(self._by_metric, like, say)

    def metadata(self) -> tuple[int, dict[str, Any]]:
        """The update and the metadata of the newest checkpoint whose manifest is sound; empty if there is none."""
        for step in self.steps()[::-1]:
            with suppress(_Damaged):
                return step, _read_manifest(self.folder / str(step))["metadata"]
        return 0, {}

    def clean(self, after: int | None = None) -> None:
        """Remove what killed writes and removals left, and checkpoints of updates later than `after`, if given.

        Only for the process that holds the run's lock.
        """
        for step in self.steps():
            if after is not None and step > after:
                self._remove(step)
        if self.folder.is_dir():
            for entry in self.folder.iterdir():
                if entry.name.startswith(("writing-", "removing-")):
                    shutil.rmtree(entry)

    def _first_sound(
        self, order: Callable[[], list[int]], like: Mapping[str, Any], say: Callable[[str], None]
    ) -> Restored | None:
        """The first sound one in an order that is looked up anew: while a run is trained, any may go meanwhile."""

        def first_sound() -> tuple[int, dict[str, Any]] | None:
            damage, seen = "", set()
            while (step := next((step for step in order() if step not in seen), None)) is not None:
                seen.add(step)
                if damage:
                    say(f"{damage}; using the one at update {step}.")
                try:
                    return step, _verified(self.folder / str(step), step, like)
                except _Damaged as reason:
                    if self._lies(step):
                        damage = f"checkpoint at update {step} is damaged ({reason})"
            if damage:
                raise RunFailed(f"{damage}, and no other in {str(self.folder)!r} is sound.")
            return None

        while found := by_first(first_sound):
            step, metadata = found
            try:
                return Restored(step, _restored(self.folder / str(step), like), metadata)
            except Exception:  # of Orbax and TensorStore, of several types
                if self._lies(step):
                    raise
        return None

    def _lies(self, step: int) -> bool:
        return (self.folder / str(step)).is_dir()

    def _by_metric(self) -> list[int]:
        metrics: list[tuple[float, int]] = []
        for step in self.steps():
            try:
                metric = _read_manifest(self.folder / str(step))["metric"]
            except _Damaged:
                continue
            if metric is not None:
                metrics.append((metric, step))
        return [step for _, step in sorted(metrics)]

    def _rotate(self) -> None:
        keep = {*self.steps()[-self.keep_last :], *self._by_metric()[: self.keep_best]}
        for step in self.steps():
            if step not in keep:
                self._remove(step)

    def _remove(self, step: int) -> None:
        """Rename before removing: a folder named by a step is never half there."""
        folder, aside = self.folder / str(step), self.folder / f"removing-{step}"
        if folder.exists():
            os.rename(folder, aside)
            shutil.rmtree(aside)


class Writer:
    """Saves the checkpoints of a run while its updates go on; a context that ends when all is written.

    The arrays are copied to the host's memory, and one thread writes the copy. Several processes meet while they write,
    which only their main threads may do: there, `save` returns when the checkpoint is written.

    **Arguments:** `checkpoints`, where they are saved.
    """

    def __init__(self, checkpoints: Checkpoints):
        self.checkpoints = checkpoints
        self.thread = ThreadPoolExecutor(1, "checkpoint")
        self.on_its_way: Future[None] | None = None

    def save(self, step: int, items: Mapping[str, Any], metadata: dict[str, Any], metric: float | None) -> None:
        """`Checkpoints.save`, once the checkpoint before is written; its arrays may be donated afterwards.

        **Raises:** what saving the one before raised.
        """
        self.require_sound(wait=True)
        if jax.process_count() > 1:
            return self.checkpoints.save(step, items, metadata, metric)
        # On a CPU what JAX hands out is the array's own memory, which the next update overwrites.
        copied = jax.tree.map(np.array, jax.device_get(dict(items)))
        self.on_its_way = self.thread.submit(self.checkpoints.save, step, copied, metadata, metric)

    def require_sound(self, wait: bool = False) -> None:
        """Raise what saving has raised, if it has; with `wait`, when it is done."""
        if self.on_its_way is not None and (wait or self.on_its_way.done()):
            written, self.on_its_way = self.on_its_way, None
            written.result()

    def settle(self) -> None:
        """Wait until nothing is being written, well or not."""
        if self.on_its_way is not None:
            self.on_its_way.exception()

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.thread.shutdown()
        if error is None:
            self.require_sound(wait=True)


def _write_arrays(folder: Path, arrays: Mapping[str, dict[str, Any]]) -> None:
    """Write the arrays of all items; of several processes each writes the parts that its devices hold."""
    for item, leaves in arrays.items():
        with _orbax() as checkpointer:
            checkpointer.save(folder / item, args=ocp.args.StandardSave(leaves))


def _describe(
    folder: Path, step: int, arrays: Mapping[str, dict[str, Any]], metadata: dict[str, Any], metric: float | None
) -> None:
    """Write the manifest of a checkpoint whose arrays are there."""
    content = {
        "step": step,
        "metric": metric,
        "metadata": metadata,
        "arrays": {item: {name: _kind(x) for name, x in leaves.items()} for item, leaves in arrays.items()},
        "files": {name: _digest_of_new(folder / name) for name in _files(folder)},
    }
    write_whole(folder / MANIFEST, json.dumps({"digest": json_digest(content), "content": content}, allow_nan=False))


def _verified(folder: Path, step: int, like: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of a checkpoint that is sound and has the arrays of `like`."""
    content = _read_manifest(folder)
    if content["step"] != step:
        raise _Damaged(f"{MANIFEST}: written at update {content['step']}")
    for item, tree in like.items():
        _require_same_arrays(folder, step, item, content["arrays"].get(item), tree)
    for name, digest in content["files"].items():
        if name.split("/")[0] in like:
            _verify(folder, name, digest)
    return content["metadata"]


def _restored(folder: Path, like: Mapping[str, Any]) -> dict[str, Any]:
    items = {}
    for item, tree in like.items():
        with _orbax() as checkpointer:
            targets = {name: _target(leaf) for name, leaf in by_path(tree).items()}
            leaves = checkpointer.restore(folder / item, args=ocp.args.StandardRestore(targets))
        items[item] = jax.tree.unflatten(jax.tree.structure(tree), [leaves[name] for name in targets])
    return items


@contextmanager
def _orbax() -> Iterator[ocp.Checkpointer]:
    """A checkpointer that reports by raising alone; Orbax would also log each failure, with a traceback a thread."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer:
            yield checkpointer
    finally:
        logger.setLevel(level)


def _read_manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        content, digest = manifest["content"], manifest["digest"]
    except FileNotFoundError:
        raise _Damaged(f"{MANIFEST} is missing") from None
    except (OSError, ValueError, KeyError, TypeError):
        raise _Damaged(f"{MANIFEST} cannot be read") from None
    if digest != json_digest(content):
        raise _Damaged(f"{MANIFEST}: digest differs")
    return content


def _verify(folder: Path, name: str, digest: str) -> None:
    try:
        found = file_digest(folder / name)
    except FileNotFoundError:
        raise _Damaged(f"{name} is missing") from None
    except OSError as error:
        raise _Damaged(f"{name} cannot be read: {_reason(error)}") from None
    if found != digest:
        raise _Damaged(f"{name}: digest differs")


def _require_same_arrays(folder: Path, step: int, item: str, stored: dict[str, Any] | None, tree: Any) -> None:
    wanted = {name: _kind(leaf) for name, leaf in by_path(tree).items()}
    where = f"the checkpoint at update {step} in {str(folder.parent)!r}"
    if stored is None:
        raise BadInput(f"{where} has no {item!r}, but this run needs one.")
    for name in sorted(wanted.keys() | stored.keys()):
        if wanted.get(name) != stored.get(name):
            raise BadInput(
                f"{where} does not fit this run: array {item}/{name} is {stored.get(name, 'absent')} there, "
                f"but {wanted.get(name, 'absent')} here."
            )


def by_path(tree: Any) -> dict[str, Any]:
    """The arrays of a PyTree by the path to each, as in `weights.networks.attention.output`."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def _kind(leaf: Any) -> str:
    return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"


def _target(leaf: Any) -> jax.ShapeDtypeStruct:
    """Where a restored array goes: never to the devices that wrote it, which may not exist here."""
    sharding = getattr(leaf, "sharding", None) or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _files(folder: Path) -> Iterable[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def _digest_of_new(path: Path) -> str:
    """The digest of a file that is flushed to the disk first."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return file_digest(path)


def _reason(error: Exception) -> str:
    """What went wrong, on one line."""
    text = " ".join(str(error).split())
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno)
    if os.strerror(errno.ENOSPC) in text:
        return os.strerror(errno.ENOSPC)
    return text[:200] or type(error).__name__
