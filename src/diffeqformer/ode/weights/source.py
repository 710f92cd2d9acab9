"""The interface of weight sources: block weights as a function of depth.

A source has two methods. `at(times)` gives the weights at any times, stacked on a leading axis. `table(grid, nodes)`
gives the weights that a scheme needs on a grid of steps. Anything with these two methods is a source.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, PyTree

from diffeqformer.nn.linear import Linear, LinearShape, Norm, NormShape, normal, ones, zeros
from diffeqformer.ode.field import Block, BlockShapes, BlockWeights
from diffeqformer.ode.grid import END_OF_STEP, Grid, Nodes, Times
from diffeqformer.sharding import is_divided


@runtime_checkable
class WeightSource(Protocol):
    """Block weights as a function of depth."""

    def at(self, times: Times) -> BlockWeights:
        """Weights at `times` (shape (time,), in [0, 1]), stacked on a leading axis of the same length."""
        ...

    def table(self, grid: Grid, nodes: Nodes = END_OF_STEP) -> BlockWeights:
        """Weights at all nodes of a grid, on two leading axes (step, node).

        An axis of length 1 serves all steps, or all nodes of a step.
        """
        ...


def number_of_rows(rows: BlockWeights) -> int:
    """Return the number of rows that a block has on its leading axis."""
    return rows.attention.norm.scale.shape[0]


def mixed(shares: Float[Array, "time row"], rows: PyTree) -> PyTree:
    """Mix the rows of each array, `sum_k shares[t, k] rows[k]` for each t."""

    def sums(leaf: Array) -> Array:
        if is_divided():  # merged axes cannot be sharded each in its own way
            return jnp.tensordot(shares, leaf, 1, precision="highest")  # not in TensorFloat-32
        # As two matrices: the gradient of `tensordot` is written with rows on the last axis and then transposed, which
        # takes eight times as long on CPUs.
        flat = jnp.matmul(shares, leaf.reshape(leaf.shape[0], -1), precision="highest")
        return flat.reshape(-1, *leaf.shape[1:])

    return jax.tree.map(sums, rows)


def by_half(of: Callable[..., PyTree], nodes: Nodes, *blocks: PyTree) -> PyTree:
    """Build a block by applying `of` to each half of some blocks (`None` for a block that is `None`) and its nodes."""
    half = lambda name: of(*(block and getattr(block, name) for block in blocks), getattr(nodes, name))
    return Block(half("attention"), half("feed_forward"))


def unstack(rows: PyTree, steps: int, nodes: int) -> PyTree:
    """Split the leading axis into two, (step, node)."""
    return jax.tree.map(lambda leaf: leaf.reshape(steps, nodes, *leaf.shape[1:]), rows)


def repeated(rows: PyTree, steps: int, nodes: int | None = None) -> PyTree:
    """Repeat leaves along (step, node) axes of length 1; if no `nodes` are given, that axis is left as it is."""
    axes = lambda leaf: (steps, leaf.shape[1] if nodes is None else nodes, *leaf.shape[2:])
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, axes(leaf)), rows)


def stacked(table: PyTree, steps: int, nodes: int) -> PyTree:
    """Invert `unstack`, after repeating axes of length 1."""
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), repeated(table, steps, nodes))


def is_shape(node: PyTree) -> bool:
    """Whether a node of a block's tree is the shape of a linear map or of a norm."""
    return isinstance(node, LinearShape | NormShape)


def is_unit(node: PyTree) -> bool:
    """Whether a node is a linear map or a norm, the units of a block."""
    return isinstance(node, Linear | Norm)


def unit_keys(shapes: BlockShapes, key: Array) -> PyTree:
    """Split a key into one for each unit of a block."""
    units, structure = jax.tree.flatten(shapes, is_leaf=is_shape)
    return jax.tree.unflatten(structure, list(jax.random.split(key, len(units))))


def initial_rows(shapes: BlockShapes, nodes: Nodes, layers: int, key: Array) -> BlockWeights:
    """Initialise rows: normal matrices with the standard deviations of `shapes`, biases zero, norms one."""
    unit = lambda nodes: partial(_initial_unit, layers * len(nodes))
    half = lambda shapes, keys, nodes: jax.tree.map(unit(nodes), shapes, keys, is_leaf=is_shape)
    return by_half(half, nodes, shapes, unit_keys(shapes, key))


def _initial_unit(rows: int, shape: LinearShape | NormShape, key: Array) -> Linear | Norm:
    if isinstance(shape, NormShape):
        return Norm(ones((rows, shape.width)), zeros((rows, shape.width)) if shape.shift else None)
    weight = shape.std * normal(key, (rows, shape.inputs, shape.outputs))
    return Linear(weight, zeros((rows, shape.outputs)) if shape.bias else None)
