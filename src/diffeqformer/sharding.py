"""The layout of a model over several devices: the mesh, and one table of rules.

JAX compiles one program for all devices and inserts their communication. This module tells it which axis of an array is
sharded over which axis of the mesh:

- `data`: each part has different sequences of the batch, and all weights;
- `fsdp`: the same, but weights, their gradients and the optimiser's moments are sharded too; weights are all-gathered
  when they are used;
- `tensor`: heads, hidden units and vocabulary are sharded, and with them the computation.

Without an active mesh (one device), every function here returns what it is given.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.tree_util import KeyPath
from jaxtyping import PyTree

from diffeqformer.config import Config
from diffeqformer.errors import BadInput

AXES = ("data", "fsdp", "tensor")
Axis = str | tuple[str, ...] | None
"""Mesh axes over which an axis of an array is sharded; `None` if it is whole on every device."""
AnyMesh = Mesh | AbstractMesh
BATCH = ("data", "fsdp")
"""Mesh axes over which sequences are divided."""

LAYOUTS: tuple[tuple[str, tuple[P, ...]], ...] = (
    # The end of a weight's path, and layouts of its last axes: the first one whose axes can be divided applies.
    # Adafactor's second moments: a vector for each matrix, whole on every device.
    (r"v_(row|col)\..*", (P(),)),
    # vocabulary, width
    (r"embedding\.tokens|head", (P("tensor", "fsdp"), P(None, ("fsdp", "tensor")))),
    # position, width
    (r"embedding\.positions", (P(None, "fsdp"),)),
    # Heads and hidden units are outputs of the first maps of a block and inputs of the last. Time networks are
    # sharded as the matrices that they generate: P (inputs, outputs, d_emb) along its output, C (inputs, outputs), B
    # (outputs, d_emb). The left factor of P's gradient is that of the matrices.
    (r"(query_key_value|up|gate)(\.base)?\.(weight|constant|projection\.left)", (P("fsdp", "tensor"),)),
    (r"(query_key_value|up|gate)\.projection", (P("fsdp", "tensor", None),)),
    (r"(query_key_value|up|gate)(\.base)?\.bias", (P("tensor"),)),
    (r"(query_key_value|up|gate)\.bias_projection", (P("tensor", None),)),
    (r"(output|down)(\.base)?\.(weight|constant|projection\.left)", (P("tensor", "fsdp"),)),
    (r"(output|down)\.projection", (P("tensor", "fsdp", None),)),
    # Low-rank factors: A (inputs, rank), B (rank, outputs).
    (r"(query_key_value|up|gate)(\.adapter)?\.b", (P(None, "tensor"),)),
    (r"(output|down)(\.adapter)?\.a", (P("tensor", None),)),
    # Norms, other biases, and the small networks h(t): whole on every device.
    (r".*", (P(),)),
)
"""Layouts of weights by path. Optimiser moments and generated weights have the paths of their parameters."""


def mesh_of(config: Config) -> Mesh | None:
    """Build the mesh that a config asks for, over the devices of all processes; `None` for one device.

    **Raises:** `BadInput` if the number of devices does not fit, or the batch or the model cannot be divided this way.
    """
    sizes, devices = sizes_of(config), len(jax.devices())
    asked, words = math.prod(sizes), _words(sizes)
    if asked > devices:
        raise BadInput(f"mesh is {words}, which needs {asked} devices, but JAX has {devices}.")
    if asked < devices and jax.process_count() > 1:
        raise BadInput(
            f"mesh is {words}, {asked} devices, but the {jax.process_count()} processes have {devices}; "
            "--mesh.data -1 takes all that are left."
        )
    require_divisible(config, sizes)
    # Auto axes: XLA derives the layouts between constraints; explicit ones would make them part of every type.
    return None if asked == 1 else jax.make_mesh(sizes, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def sizes_of(config: Config) -> tuple[int, ...]:
    """Return the sizes of the mesh axes, with -1 replaced by the number of devices left for it.

    **Raises:** `BadInput` if the devices cannot be divided by the other sizes.
    """
    given = tuple(getattr(config.mesh, axis) for axis in AXES)
    # If one size is -1, minus the product of all sizes is the product of the others.
    known, devices = -math.prod(given), len(jax.devices())
    if -1 not in given:
        return given
    if devices % known:
        raise BadInput(
            f"mesh is {_words(given)}, but {devices} devices cannot be divided by {known}; "
            "choose sizes whose product divides them."
        )
    return tuple(devices // known if size == -1 else size for size in given)


def require_divisible(config: Config, sizes: tuple[int, ...]) -> None:
    """Check that batch and model can be sharded into equal parts.

    **Raises:** `BadInput` naming the first size that cannot be divided.
    """
    m, t, (data, fsdp, tensor) = config.model, config.trainer, sizes
    sequences = f"trainer.batch_size / trainer.accumulation is {t.batch_size // t.accumulation}"
    both = f"mesh.data x mesh.fsdp, which is {data} x {fsdp}"
    for name, size, parts, setting in [
        (sequences, t.batch_size // t.accumulation, data * fsdp, both),
        (f"model.width is {m.width}", m.width, fsdp, f"mesh.fsdp, which is {fsdp}"),
        (f"model.heads is {m.heads}", m.heads, tensor, f"mesh.tensor, which is {tensor}"),
        (f"model.field.kv_heads is {m.kv_heads}", m.kv_heads, tensor, f"mesh.tensor, which is {tensor}"),
        (f"model.hidden is {m.hidden_width}", m.hidden_width, tensor, f"mesh.tensor, which is {tensor}"),
    ]:
        if size % parts:
            raise BadInput(f"{name}, but must be divisible by {setting}.")


def _words(sizes: tuple[int, ...]) -> str:
    """Describe mesh sizes in words, `data 2, tensor 4`; axes of one device are left out."""
    return ", ".join(f"{axis} {size}" for axis, size in zip(AXES, sizes, strict=False) if size != 1) or "one device"


@contextmanager
def laid_out(mesh: Mesh | None) -> Iterator[None]:
    """Lay out models over `mesh` inside the `with` block; `None` changes nothing."""
    if mesh is None:
        yield
    else:
        with jax.set_mesh(mesh):
            yield


def is_divided() -> bool:
    """Whether a mesh is active."""
    return not jax.sharding.get_abstract_mesh().empty


def constrain(x: Array, *axes: Axis) -> Array:
    """Shard the first axes of `x` over these axes of the active mesh; others, and what cannot be divided, stay whole.

    **Arguments:** `x`; `axes`, names, tuples of names, or `None`.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return x
    fitting = (axis if size % _parts(axis, mesh) == 0 else None for axis, size in zip(axes, x.shape, strict=False))
    return jax.lax.with_sharding_constraint(x, P(*fitting))


def constrain_weights(tree: PyTree) -> PyTree:
    """Shard a tree of weights, or of arrays with their paths, by `LAYOUTS`; for use inside compiled functions."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return tree
    shard = lambda path, x: jax.lax.with_sharding_constraint(x, layout(path, x.shape, mesh))
    return jax.tree_util.tree_map_with_path(shard, tree)


def placed(tree: PyTree) -> PyTree:
    """Place a tree of weights, wherever they are, by `LAYOUTS`, or on this process's first device without a mesh.

    Fresh and restored states thus share one compiled update.
    """
    if (mesh := _mesh()) is None:
        return jax.device_put(tree, jax.local_devices()[0])

    def place(path: KeyPath, x: Any) -> Array:
        sharding = NamedSharding(mesh, layout(path, x.shape, mesh))
        if isinstance(x, Array) and x.sharding.is_equivalent_to(sharding, x.ndim):
            return jax.device_put(x, sharding)  # nothing moves; equal layouts then have equal names
        host = np.asarray(x)
        return jax.make_array_from_callback(x.shape, sharding, lambda index: host[index])

    return jax.tree_util.tree_map_with_path(place, tree)


def with_shardings(tree: PyTree) -> PyTree:
    """Add to shapes of weights where their parts belong, so that a checkpoint can be read into them."""
    if (mesh := _mesh()) is None:
        return tree
    put = lambda path, x: jax.ShapeDtypeStruct(
        x.shape, x.dtype, sharding=NamedSharding(mesh, layout(path, x.shape, mesh))
    )
    return jax.tree_util.tree_map_with_path(put, tree)


def bytes_on_each(tree: PyTree, mesh: AnyMesh) -> int:
    """Return the bytes of a tree of weights, or of arrays with their paths, on one device of a mesh; shapes suffice."""
    parts = lambda path, x: math.prod(_parts(axis, mesh) for axis in layout(path, x.shape, mesh))
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return sum(x.size * x.dtype.itemsize // parts(path, x) for path, x in leaves)


def batch_parts() -> int:
    """Return the number of parts into which the sequences of a batch are divided."""
    mesh = jax.sharding.get_abstract_mesh()
    return 1 if mesh.empty else _parts(BATCH, mesh)


def shared_batch(rows: np.ndarray) -> Array:
    """Divide the rows of a batch, which every process has in full, over the devices."""
    if (mesh := _mesh()) is None:
        return jax.numpy.asarray(rows)
    layout = P(BATCH) if len(rows) % batch_parts() == 0 else P()
    return jax.make_array_from_callback(rows.shape, NamedSharding(mesh, layout), lambda index: rows[index])


def divided_batch(read: Callable[[int, int], np.ndarray], shape: tuple[int, int, int]) -> Array:
    """Divide a batch over the devices, with each process reading only its own rows.

    **Arguments:** `read`, which returns rows `start` to `stop - 1` of the batch; `shape`, (part, row, token): parts are
    trained on one after the other, each on all devices.
    """
    (parts, rows, _), mesh = shape, _mesh()
    assert mesh is not None
    # Devices along `tensor` hold the same rows, which are read once.
    known: dict[tuple[int, int], np.ndarray] = {}

    def of_device(index: Any) -> np.ndarray:
        start, stop, _ = index[1].indices(rows)
        if (start, stop) not in known:
            known[start, stop] = np.stack([read(i * rows + start, i * rows + stop) for i in range(parts)])
        return known[start, stop]

    return jax.make_array_from_callback(shape, NamedSharding(mesh, P(None, BATCH)), of_device)


def _mesh() -> Mesh | None:
    """Return the active mesh; `None` inside compiled functions, which know only its shape."""
    mesh = jax.sharding.get_mesh()
    return None if mesh.empty else mesh


def name_of_path(path: KeyPath) -> str:
    """Return the path to an array of a PyTree as a name, such as `weights.networks.attention.output`."""
    return jax.tree_util.keystr(path, simple=True, separator=".")


def by_path(tree: PyTree) -> dict[str, Any]:
    """Return the arrays of a PyTree by the path to each."""
    return {name_of_path(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def layout(path: KeyPath, shape: tuple[int, ...], mesh: AnyMesh) -> P:
    """Return the layout of the weight at a path."""
    name = name_of_path(path)
    layouts = next(layouts for end, layouts in LAYOUTS if re.search(rf"(^|\.)({end})$", name))
    whole = (None,) * len(shape)
    for layout in layouts:
        # Layouts are for the last axes; those before them, of layers, knots or nodes, are whole.
        axes = (*whole, *layout)[-len(shape) :] if shape else ()
        if all(size % _parts(axis, mesh) == 0 for axis, size in zip(axes, shape, strict=True)):
            return _shortest(axes, mesh)
    return P()


def _shortest(axes: Iterable[Axis], mesh: AnyMesh) -> P:
    """Write a layout as compiled functions do, so that their results count as having it: without axes of one device,
    and without `None` at the end."""
    axes = [axis if _parts(axis, mesh) > 1 else None for axis in axes]
    while axes and axes[-1] is None:
        axes.pop()
    return P(*axes)


def _parts(axis: Axis, mesh: AnyMesh) -> int:
    """Return the number of parts into which an axis of an array is sharded."""
    names = () if axis is None else axis if isinstance(axis, tuple) else (axis,)
    return math.prod(mesh.shape[name] for name in names)
