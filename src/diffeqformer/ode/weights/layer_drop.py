"""A table of layers that runs at fewer steps by leaving layers out.

With N steps, each step takes the layer at its middle t, `floor(t K)` counted from 0: every (K/N)th of K layers, which
Fan et al. found best. A middle that lies between two layers, as all do if K/N is even, takes the deeper one. Training
at random depths with `depth.jitter` leaves layers out at random and keeps one in each of N parts of depth. With the
scheme `residual`, a layer does the same whatever the others do.

With `nested`, N steps take the first N layers of an order, so that N + 1 steps take one layer more and share all
others. The default is `nested_order`: one step takes the last layer, two steps also the middle one, and so on, always
halving. In the order of depth itself, the layers are early exits (Lee et al. 2015, arXiv:1409.5185; Teerapittayanon et
al. 2017, BranchyNet, arXiv:1709.01686): one pass gives the results of all numbers of steps.

The last layer of N steps is an intermediate layer of more steps. With m `landings`, each number of steps N ends with m
layers of its own, after N - m shared ones, like the branches of BranchyNet; up to m steps, all layers are its own. With
m = K this would be a family of models; smaller m are steps towards it.

A nested layer serves many depths. With `rank`, each of its linear maps has corrections by the length of a step, 1/N
(lengths.py). A given number of steps takes an ordinary table, so populating merges the corrections.

Source: Fan, Grave & Joulin 2019, "Reducing Transformer Depth on Demand with Structured Dropout", arXiv:1909.11556.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Key, PyTree

from diffeqformer.config import LayerDropConfig
from diffeqformer.errors import BadInput
from diffeqformer.ode.field import BlockShapes, BlockWeights
from diffeqformer.ode.grid import END_OF_STEP, Grid, Nodes, Times, later_layer
from diffeqformer.ode.weights.lengths import corrected, init_corrections
from diffeqformer.ode.weights.source import initial_rows, number_of_rows, unstack


class LayerDropWeights(eqx.Module):
    """K layers, from which a grid of at most K steps takes its own."""

    layers: BlockWeights
    """Rows of all layers, in order, on one leading axis."""
    order: tuple[int, ...] = eqx.field(static=True, default=())
    """Order in which nested layers are added as steps are added; empty if layers are left out by position alone."""
    landings: int = eqx.field(static=True, default=0)
    """m, the number of last layers that each number of steps has of its own. On the axis of layers they come after the
    K - m shared ones: that of 1 step, then those of 2 steps, and so on."""
    corrections: PyTree = None
    """A `Correction` in place of each linear map; `None` for layers that are the same at all depths."""

    @property
    def depth(self) -> int:
        """K, the number of layers."""
        m = self.landings  # the inverse of `LayerDropConfig.rows`
        return (number_of_rows(self.layers) + m * (m + 1) // 2) // (m + 1)

    @property
    def early_exits(self) -> bool:
        """Whether N steps take the first N layers, and each layer is the same at any number of steps."""
        return self.order == tuple(range(self.depth - self.landings)) and self.corrections is None

    @property
    def shared(self) -> "LayerDropWeights":
        """The shared layers, without landings."""
        layers = jax.tree.map(lambda leaf: leaf[: self.depth - self.landings], self.layers)
        return dataclasses.replace(self, layers=layers, landings=0)

    def landing(self, steps: int) -> "LayerDropWeights":
        """Return a source with nothing but the layers that a number of steps has of its own."""
        rows = self.kept(steps)[-self.landings :]
        return LayerDropWeights(jax.tree.map(lambda leaf: leaf[rows], self.layers), tuple(range(len(rows))))

    def kept(self, steps: int) -> np.ndarray:
        """Return the rows of nested layers that a number of steps takes, in order of depth."""
        m = self.landings
        own = np.minimum(np.arange(steps + 1), m)  # own layers of each number of steps up to this
        first = self.depth - m + own[:-1].sum()
        shared = np.sort(np.asarray(self.order[: max(steps - m, 0)], int))
        return np.append(shared, first + np.arange(own[-1]))

    def at(self, times: Times) -> BlockWeights:
        """Layers in force at `times`; between two of them, within rounding, the deeper one."""
        rows = later_layer(times, self.depth)
        rows = jnp.asarray(self.kept(self.depth))[rows] if self.landings else rows
        layers = corrected(self.layers, self.corrections, 1 / self.depth)
        return jax.tree.map(lambda leaf: leaf[rows], layers)

    def table(self, grid: Grid, nodes: Nodes = END_OF_STEP) -> BlockWeights:
        """Return the layers of a grid.

        **Raises:** `BadInput` if the grid has more steps than there are layers, or unequal steps for nested layers.
        """
        if grid.steps > self.depth:
            raise BadInput(
                f"steps is {grid.steps}, but this model has {self.depth} layers, of which fewer steps take some: "
                f"at most {self.depth}."
            )
        if not self.order:
            return unstack(self.at(grid.times((0.5,))), grid.steps, 1)
        if not grid.equal:
            raise BadInput("nested layers are kept by the number of steps, so that these must be equal.")
        kept = self.kept(grid.steps)
        layers = jax.tree.map(lambda leaf: leaf[kept], self.layers)
        return unstack(corrected(layers, self.corrections, 1 / grid.steps, kept), grid.steps, 1)


def nested_order(layers: int) -> tuple[int, ...]:
    """Return all layers, counted from 0, in the order in which they are added as steps are added.

    Counted from the last layer, this is van der Corput's order: 0, 1/2, 1/4, 3/4, 1/8, ... of depth (Kuipers &
    Niederreiter 1974, Uniform Distribution of Sequences, section 2.3).
    """
    bits = (layers - 1).bit_length()
    reversed_bits = [int(f"{index:0{bits}b}"[::-1], 2) if bits else 0 for index in range(1 << bits)]
    return tuple(layers - 1 - index for index in reversed_bits if index < layers)


def init_layer_drop(
    section: LayerDropConfig, shapes: BlockShapes, grid: Grid, nodes: Nodes, key: Key[Array, ""]
) -> LayerDropWeights:
    """Initialise weights of kind `layerdrop`: those of a table, with corrections that change nothing yet.

    **Raises:** `BadInput` for a rank larger than the smaller side of a matrix.
    """
    depth, landings = section.layers or grid.steps, section.landings
    order = section.order or nested_order(depth - landings) if section.nested else ()
    rows = section.rows(grid.steps)
    weights = LayerDropWeights(initial_rows(shapes, END_OF_STEP, rows, key), order, landings)
    if not section.rank:
        return weights
    halvings = (depth - 1).bit_length()
    corrections = init_corrections(section.rank, rows, halvings, shapes, jax.random.fold_in(key, 1))
    return dataclasses.replace(weights, corrections=corrections)
