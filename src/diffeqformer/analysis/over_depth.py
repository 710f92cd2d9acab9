"""The times at which weights are taken, and times between, and the rows of weights there."""

from collections.abc import Callable

import jax
import numpy as np
from jax import Array
from jaxtyping import PyTree

from diffeqformer.model.transformer import Transformer
from diffeqformer.ode.field import Block, BlockWeights
from diffeqformer.ode.grid import Grid, Nodes, Steps
from diffeqformer.ode.weights import DyadicWeights, KnotWeights, LayerWeights, ModulatedWeights, WeightSource


def evaluation_times(model: Transformer, steps: Steps | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The times at which a forward pass of `steps` steps takes weights for attention and for the feed-forward block.

    Of means over steps they are the middles, and so they are where a scheme takes one row of a step at several nodes.
    Where rows differ whose times are the same, the end of a step and the beginning of the next, all are drawn into
    their steps.
    """
    grid = model.grid(steps)
    nodes = drawn_nodes(model, grid)
    return np.unique(grid.times(nodes.attention)), np.unique(grid.times(nodes.feed_forward))


def drawn_nodes(model: Transformer, grid: Grid) -> Nodes:
    """The nodes in a step of the rows that the model's weights have for it."""
    weights, nodes = model.weights, model.scheme.nodes
    table = jax.eval_shape(lambda: weights.table(grid, nodes))
    middle = lambda rows, nodes: rows == 1 and (len(nodes) > 1 or _averages(weights))
    # The rows of two steps may differ at the time between them.
    rows_at_nodes = isinstance(weights, LayerWeights) and weights.nodes is not None
    clash = rows_at_nodes or (know_length(weights) and not grid.equal)

    def own(half: PyTree, nodes: tuple[float, ...]) -> tuple[float, ...]:
        if middle(half.norm.scale.shape[1], nodes):
            return (0.5,)
        apart = clash and {0.0, 1.0} <= {*nodes}
        return tuple((place + 0.5) / len(nodes) for place in range(len(nodes))) if apart else nodes

    return Nodes(own(table.attention, nodes.attention), own(table.feed_forward, nodes.feed_forward))


def between_steps(model: Transformer) -> bool:
    """Whether there are weights between those of the steps: not in a table, nor in means over steps, nor where weights
    know the length of the step, which a time between steps does not have."""
    return model.continuous and not _averages(model.weights) and not know_length(model.weights)


def know_length(weights: WeightSource) -> bool:
    """Whether weights depend on the length of the step, too."""
    return isinstance(weights, ModulatedWeights | DyadicWeights) or (
        isinstance(weights, KnotWeights) and weights.corrections is not None
    )


def _averages(weights: WeightSource) -> bool:
    """Whether a step takes the mean of the weights over it."""
    if isinstance(weights, ModulatedWeights):
        return _averages(weights.base)
    return isinstance(weights, KnotWeights) and weights.average


def rows_at(model: Transformer, grid: Grid) -> Callable[[np.ndarray], BlockWeights]:
    """Weights at times, stacked: those of the forward pass where it takes some, else the function of depth itself.

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
