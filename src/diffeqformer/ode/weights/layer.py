"""A table of layers."""

import dataclasses
from collections.abc import Callable
from functools import partial

import equinox as eqx
import jax
from jax import Array
from jax.core import Tracer
from jaxtyping import Key, PyTree

from diffeqformer.config import LayerConfig
from diffeqformer.errors import BadInput
from diffeqformer.ode.field import BlockShapes, BlockWeights
from diffeqformer.ode.grid import END_OF_STEP, Grid, Nodes, Times
from diffeqformer.ode.lora import with_adapters
from diffeqformer.ode.weights.source import WeightSource, by_half, initial_rows, number_of_rows, stacked, unstack


class LayerWeights(eqx.Module):
    """A table of layers: the weights of vanilla transformers, and of every populated model."""

    layers: BlockWeights
    """Rows of all layers, in order, on one leading axis."""
    nodes: Nodes | None = eqx.field(static=True, default=None)
    """The nodes for which each layer has a row; if `None`, a layer is one row, in force throughout its step."""
    grid: Grid | None = eqx.field(static=True, default=None)
    """The steps that the layers stand for; if `None`, as many equal steps as there are layers."""

    def changed(self, change: Callable[[BlockWeights], BlockWeights]) -> "LayerWeights":
        """Return a copy with changed rows: with adapters, without them, or with them merged."""
        return dataclasses.replace(self, layers=change(self.layers))

    @property
    def depth(self) -> int:
        """Number of layers."""
        return number_of_rows(self.layers) // len((self.nodes or END_OF_STEP).attention)

    def at(self, times: Times) -> BlockWeights:
        """Weights in force at `times`: constant over each step, or those of the nearest node in it."""

        def half(layers: PyTree, nodes: tuple[float, ...]) -> PyTree:
            rows = (self.grid or Grid(self.depth)).row_at(times, nodes)
            return jax.tree.map(lambda leaf: leaf[rows], layers)

        return by_half(half, self.nodes or END_OF_STEP, self.layers)

    def table(self, grid: Grid, nodes: Nodes = END_OF_STEP) -> BlockWeights:
        """Return the table itself.

        **Raises:** `BadInput` if `grid` has other steps than the table, or its rows are for other nodes: such a model
        has no weights in between.
        """
        steps = grid.steps
        if steps != self.depth:
            raise BadInput(
                f"this model is a table of {self.depth} layer{'s' * (self.depth != 1)} and cannot run at {steps} "
                f"step{'s' * (steps != 1)}; only models whose weights are functions of depth, or shared, run at any "
                "depth."
            )
        if grid != (self.grid or Grid(self.depth)):
            raise BadInput(
                f"this model is a table of {self.depth} layers for steps of other lengths; "
                "only models whose weights are functions of depth, or shared, run on any grid."
            )
        if self.nodes not in (None, nodes):
            raise BadInput(
                f"this model is a table with rows at the nodes {tuple(self.nodes)} of each step, but the scheme needs "
                f"rows at {tuple(nodes)}; only models whose weights are functions of depth, or shared, run with any "
                "scheme."
            )
        half = lambda layers, nodes: unstack(layers, steps, len(nodes))
        return by_half(half, self.nodes or END_OF_STEP, self.layers)


def init_layer(
    section: LayerConfig, shapes: BlockShapes, grid: Grid, nodes: Nodes, key: Key[Array, ""]
) -> LayerWeights:
    """Initialise weights of kind `layer`, with adapters if the section has them."""
    own = nodes if section.rows == "node" else None
    rows = with_adapters(initial_rows(shapes, own or END_OF_STEP, grid.steps, key), section.lora, key)
    return LayerWeights(rows, own, None if grid.equal else grid)


def populated(source: WeightSource, grid: Grid, nodes: Nodes) -> LayerWeights:
    """Evaluate a source on a grid as a table of layers: one row per step if it gives no more, else one per node.

    **Raises:** `BadInput` for times that are traced.
    """
    if isinstance(grid.given, Tracer):
        raise BadInput("the times between steps are traced, but a table of layers is made for times that are known.")
    return _populated(source, grid, nodes)


# The grid is static, so that its times are known, and hence float64, unlike traced times.
@partial(jax.jit, static_argnums=(1, 2))
def _populated(source: WeightSource, grid: Grid, nodes: Nodes) -> LayerWeights:
    table = source.table(grid, nodes)
    rows = [max(leaf.shape[1] for leaf in jax.tree.leaves(half)) for half in (table.attention, table.feed_forward)]
    # One row per step is kept without a node and serves any scheme; rows at nodes serve only schemes with these nodes.
    own = END_OF_STEP if rows == [1, 1] else nodes
    layers = by_half(lambda half, nodes: stacked(half, grid.steps, len(nodes)), own, table)
    return LayerWeights(layers, None if rows == [1, 1] else nodes, None if grid.equal else grid)
