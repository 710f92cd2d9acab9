"""Arrays of a checkpoint, by Orbax: each process writes the parts on its devices; they are read to any devices."""

import asyncio
import glob
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import jax
from jaxtyping import PyTree

from diffeqformer.sharding import by_path

if TYPE_CHECKING:
    from orbax.checkpoint import Checkpointer

Items = Mapping[str, PyTree]
"""What a checkpoint holds: PyTrees of arrays by name."""


def kinds(tree: PyTree) -> dict[str, str]:
    """Type and shape of every array, by its path."""
    return {name: f"{x.dtype}[{','.join(map(str, x.shape))}]" for name, x in by_path(tree).items()}


def write_arrays(folder: Path, items: Items) -> None:
    """Write PyTrees of arrays, one folder inside `folder` for each name."""
    from orbax.checkpoint.args import StandardSave

    # A folder for each: a model is verified and read without its optimiser's state.
    for item, tree in items.items():
        with _orbax() as checkpointer, _plain(folder) as there:
            # By path, as one flat dictionary: classes of nodes leave no trace in a checkpoint.
            checkpointer.save(there / item, args=StandardSave(by_path(tree)))


def read_arrays(folder: Path, like: Items) -> dict[str, PyTree]:
    """The PyTrees that `write_arrays` wrote, with the shapes and to the shardings of `like`."""
    from orbax.checkpoint.args import StandardRestore

    items = {}
    for item, tree in like.items():
        with _orbax() as checkpointer, _plain(folder) as there:
            targets = {name: _target(leaf) for name, leaf in by_path(tree).items()}
            leaves = checkpointer.restore(there / item, args=StandardRestore(targets))
        items[item] = jax.tree.unflatten(jax.tree.structure(tree), [leaves[name] for name in targets])
    return items


@contextmanager
def _plain(folder: Path) -> Iterator[Path]:
    """A path of the folder that Orbax takes literally.

    It looks for the parts of an array by a glob of the whole path, in which brackets and stars stand for other names,
    and takes a backslash for a slash: such an array would be written in parts that nobody finds.
    """
    if not glob.has_magic(str(folder)) and "\\" not in str(folder):
        yield folder
        return
    with TemporaryDirectory() as aside:
        link = Path(aside, "folder")
        link.symlink_to(folder.parent)
        yield link / folder.name


def _target(leaf: Any) -> jax.ShapeDtypeStruct:
    """Where a restored array goes: never to the devices that wrote it, which may not exist here."""
    sharding = getattr(leaf, "sharding", None) or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


@contextmanager
def _orbax() -> Iterator["Checkpointer"]:
    """A checkpointer that reports by raising alone.

    Orbax would also log each failure, with a traceback per thread. And it closes its event loop at the first write that
    fails: every other write would print a traceback when it ends and finds no loop.
    """
    from orbax.checkpoint import Checkpointer, StandardCheckpointHandler  # half a second, which `info` can do without

    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    asyncio.new_event_loop = _lenient_loop
    try:
        with Checkpointer(StandardCheckpointHandler()) as checkpointer:
            yield checkpointer
    finally:
        asyncio.new_event_loop = _NEW_LOOP
        logger.setLevel(level)


_NEW_LOOP = asyncio.new_event_loop


def _lenient_loop() -> asyncio.AbstractEventLoop:
    """An event loop that takes calls from other threads after its end, and drops them."""
    loop: Any = _NEW_LOOP()
    call = loop.call_soon_threadsafe

    def while_open(*arguments: Any, **named: Any) -> Any:
        try:
            return call(*arguments, **named)
        except RuntimeError:
            if not loop.is_closed():
                raise

    loop.call_soon_threadsafe = while_open
    return loop
