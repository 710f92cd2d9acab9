"""The same weights at every depth."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Key

from diffeqformer.config import SharedConfig
from diffeqformer.ode.field import BlockShapes, BlockWeights
from diffeqformer.ode.grid import END_OF_STEP, Grid, Nodes, Times, widest
from diffeqformer.ode.weights.source import initial_rows, unstack


class SharedWeights(eqx.Module):
    """The same weights at every depth (Zhong et al. 2022; ALBERT; Universal Transformer)."""

    row: BlockWeights

    def at(self, times: Times) -> BlockWeights:
        """The weights, repeated once for each time."""
        return jax.tree.map(lambda leaf: jnp.repeat(leaf, len(widest(times)[1]), 0), self.row)

    def table(self, grid: Grid, nodes: Nodes = END_OF_STEP) -> BlockWeights:
        """Return one row, which serves all nodes of all steps."""
        return unstack(self.row, 1, 1)


def init_shared(
    section: SharedConfig, shapes: BlockShapes, grid: Grid, nodes: Nodes, key: Key[Array, ""]
) -> SharedWeights:
    """Initialise weights of kind `shared`."""
    return SharedWeights(initial_rows(shapes, END_OF_STEP, 1, key))
