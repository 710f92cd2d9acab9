"""Arrays of a checkpoint, through Orbax: each process writes the parts on its devices; any devices can read them."""

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
"""Contents of a checkpoint: PyTrees of arrays by name."""


def kinds(tree: PyTree) -> dict[str, str]:
    """Return the type and shape of every array, by its path."""
    return {name: f"{x.dtype}[{','.join(map(str, x.shape))}]" for name, x in by_path(tree).items()}


def write_arrays(folder: Path, items: Items) -> None:
    """Write PyTrees of arrays, one folder inside `folder` for each name."""
    from orbax.checkpoint.args import StandardSave

    # One folder each: a model can be verified and read without its optimiser's state.
    for item, tree in items.items():
        with _orbax() as checkpointer, _plain(folder) as there:
            # One flat dictionary by path, so that the classes of nodes leave no trace in a checkpoint.
            checkpointer.save(there / item, args=StandardSave(by_path(tree)))


def read_arrays(folder: Path, like: Items) -> dict[str, PyTree]:
    """Read the PyTrees that `write_arrays` wrote, with the shapes and shardings of `like`."""
    from orbax.checkpoint.args import StandardRestore

    items = {}
    for item, tree in like.items():
        with _orbax() as checkpointer, _plain(folder) as there:
            targets = {name: _target(leaf) for name, leaf in by_path(tree).items()}
            try:
                leaves = checkpointer.restore(there / item, args=StandardRestore(targets))
            except Exception as error:
                if isinstance(error.__cause__, KeyboardInterrupt):  # of which Orbax makes an error of its own
                    raise error.__cause__ from None
                raise
        items[item] = jax.tree.unflatten(jax.tree.structure(tree), [leaves[name] for name in targets])
    return items


@contextmanager
def _plain(folder: Path) -> Iterator[Path]:
    """Yield a path to the folder that Orbax takes literally.

    Orbax finds the parts of an array by a glob over the whole path, in which brackets and stars match other names, and
    takes a backslash for a slash: under such a path, the parts of an array would be written, but not found again.
    """
    if not glob.has_magic(str(folder)) and "\\" not in str(folder):
        yield folder
        return
    with TemporaryDirectory() as aside:
        link = Path(aside, "folder")
        link.symlink_to(folder.parent)
        yield link / folder.name


def _target(leaf: Any) -> jax.ShapeDtypeStruct:
    """Return where to restore an array: never to the devices that wrote it, which may not exist here."""
    sharding = getattr(leaf, "sharding", None) or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


@contextmanager
def _orbax() -> Iterator["Checkpointer"]:
    """Yield a checkpointer that reports failures only by raising.

    Orbax would also log each failure, with a traceback per thread. It also closes its event loop at the first write
    that fails: every other write would print a traceback when it ends and finds no loop.
    """
    from orbax.checkpoint import Checkpointer, StandardCheckpointHandler  # takes half a second; `info` does without it

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
    """Return an event loop that accepts calls from other threads after it is closed, and drops them."""
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
