"""The times at which steps take weights, whether there are weights between them, and the weights at given times."""

from collections.abc import Callable

import jax
import numpy as np
from jax import Array
from jaxtyping import PyTree

from diffeqformer.model.transformer import Transformer
from diffeqformer.ode.field import Block, BlockWeights
from diffeqformer.ode.grid import Grid, Nodes, Steps
from diffeqformer.ode.weights import KnotWeights, LayerWeights, LevelWeights, ModulatedWeights, WeightSource


def evaluation_times(model: Transformer, steps: Steps | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return the times at which a forward pass takes weights for attention and for the feed-forward block.

    They are the middles of the steps for means over steps, and for a scheme that takes one row of a step at several
    nodes. If the end of a step and the beginning of the next have different rows at the same time, all nodes are moved
    into the interior of their steps.
    """
    grid = model.grid(steps)
    nodes = drawn_nodes(model, grid)
    return np.unique(grid.times(nodes.attention)), np.unique(grid.times(nodes.feed_forward))


def drawn_nodes(model: Transformer, grid: Grid) -> Nodes:
    """Return the nodes in a step at which the rows of the model's weights are placed; see `evaluation_times`."""
    weights, nodes = model.weights, model.scheme.nodes
    table = jax.eval_shape(lambda: weights.table(grid, nodes))
    middle = lambda rows, nodes: rows == 1 and (len(nodes) > 1 or _averages(weights))
    # Rows of neighbouring steps may differ at the edge between them.
    rows_at_nodes = isinstance(weights, LayerWeights) and weights.nodes is not None
    clash = rows_at_nodes or (know_steps(weights) and not grid.equal)

    def own(half: PyTree, nodes: tuple[float, ...]) -> tuple[float, ...]:
        if middle(half.norm.scale.shape[1], nodes):
            return (0.5,)
        apart = clash and {0.0, 1.0} <= {*nodes}
        return tuple((place + 0.5) / len(nodes) for place in range(len(nodes))) if apart else nodes

    return Nodes(own(table.attention, nodes.attention), own(table.feed_forward, nodes.feed_forward))


def between_steps(model: Transformer) -> bool:
    """Whether weights exist between those of the steps: not for a table, means over steps, or weights that depend on
    the length or the number of steps, which a time between steps does not have."""
    return model.continuous and not _averages(model.weights) and not know_steps(model.weights)


def know_steps(weights: WeightSource) -> bool:
    """Whether weights also depend on the length of the step, or on the number of steps."""
    return isinstance(weights, ModulatedWeights | LevelWeights) or (
        isinstance(weights, KnotWeights) and weights.corrections is not None
    )


def _averages(weights: WeightSource) -> bool:
    """Whether a step takes the mean of the weights over it."""
    if isinstance(weights, ModulatedWeights):
        return _averages(weights.base)
    return isinstance(weights, KnotWeights) and weights.average


def rows_at(model: Transformer, grid: Grid) -> Callable[[np.ndarray], BlockWeights]:
    """Return a function from times to stacked weights: the forward pass's where it takes some, else the source's.

    What a step takes may depend on the grid: means, layers that are left out, modulation by the step's length.
    """
    nodes, table = drawn_nodes(model, grid), jax.tree.map(np.asarray, model.weights.table(grid, model.scheme.nodes))

    def half(between: PyTree, rows: PyTree, nodes: tuple[float, ...], times: np.ndarray) -> PyTree:
        taken, first = np.unique(grid.times(nodes), return_index=True)
        here = np.isin(times, taken)
        step, node = np.divmod(first[np.searchsorted(taken, times[here])], len(nodes))

        def put(between: Array, rows: np.ndarray) -> np.ndarray:
            found = np.array(between)
            found[here] = rows[np.minimum(step, len(rows) - 1), node]  # one row may serve all steps
            return found

        return jax.tree.map(put, between, rows)

    def at(times: np.ndarray) -> BlockWeights:
        between = model.weights.at(times)
        return Block(
            half(between.attention, table.attention, nodes.attention, times),
            half(between.feed_forward, table.feed_forward, nodes.feed_forward, times),
        )

    return at
