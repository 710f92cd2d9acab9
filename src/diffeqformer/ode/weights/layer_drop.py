"""A table of layers that is read at fewer steps by leaving layers out.

With N steps the layer of each is the one at its middle, `floor(t K)` from 0 at the time t: of K layers every (K/N)th,
which Fan et al. found best. A middle that lies between two layers, as all do if K/N is even, takes the deeper one.
Trained at drawn depths with `depth.jitter`, layers are left out at random, one in each of N parts of depth. With the
scheme `residual` a layer does the same whatever the others do. Source: Fan, Grave & Joulin 2019, "Reducing Transformer
Depth on Demand with Structured Dropout", arXiv:1909.11556.
"""

import equinox as eqx
import jax
from jax import Array
from jaxtyping import Key

from diffeqformer.config import LayerDropConfig
from diffeqformer.errors import BadInput
from diffeqformer.ode.field import BlockShapes, BlockWeights
from diffeqformer.ode.grid import END_OF_STEP, Grid, Nodes, Times, rounding, widest
from diffeqformer.ode.weights.source import initial_rows, unstack


class LayerDropWeights(eqx.Module):
    """K layers, of which a grid of at most K steps takes its own."""

    layers: BlockWeights
    """Rows of all layers, in order, on one leading axis."""

    @property
    def depth(self) -> int:
        """K"""
        return self.layers.attention.norm.scale.shape[0]

    def at(self, times: Times) -> BlockWeights:
        """The layers in force at `times`; between two of them, within rounding, the deeper one."""
        xp, times = widest(times)
        rounded = times + rounding(times, 1 / self.depth)
        rows = xp.clip(xp.floor(rounded * self.depth).astype(int), 0, self.depth - 1)
        return jax.tree.map(lambda leaf: leaf[rows], self.layers)

    def table(self, grid: Grid, nodes: Nodes = END_OF_STEP) -> BlockWeights:
        """The layers of a grid.

        **Raises:** `BadInput` if it has more steps than there are layers.
        """
        if grid.steps > self.depth:
            raise BadInput(
                f"steps is {grid.steps}, but this model leaves out some of {self.depth} layers: at most those."
            )
        return unstack(self.at(grid.times((0.5,))), grid.steps, 1)


def init_layer_drop(
    section: LayerDropConfig, shapes: BlockShapes, grid: Grid, nodes: Nodes, key: Key[Array, ""]
) -> LayerDropWeights:
    """New weights of kind `layerdrop`: those of a table."""
    return LayerDropWeights(initial_rows(shapes, END_OF_STEP, section.layers or grid.steps, key))
