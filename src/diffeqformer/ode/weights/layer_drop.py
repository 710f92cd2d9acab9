"""A table of layers that is read at fewer steps by leaving layers out.

With N steps the layer of each is the one at its middle, `floor(t K)` from 0 at the time t: of K layers every (K/N)th,
which Fan et al. found best. A middle that lies between two layers, as all do if K/N is even, takes the deeper one.
Trained at drawn depths with `depth.jitter`, layers are left out at random, one in each of N parts of depth. With the
scheme `residual` a layer does the same whatever the others do.

With `nested` N steps have the first N layers of an order, so that a reading at N + 1 has one layer more and all others
in common. Unless another order is given it is `nested_order`: one step has the last layer, two have the one of the
middle besides, and so on, always halving. In the order of depth itself they are early exits (Lee et al. 2015,
arXiv:1409.5185; Teerapittayanon et al. 2017, BranchyNet, arXiv:1709.01686): one pass reads all numbers of steps.

A layer that is the last one of N steps is on the way of more. With m `landings` each number of steps N ends with m
layers of its own, after N - m of those that all share, as the branches of BranchyNet have layers of their own; up to m
steps it has no others. With m = K it would be a family of models, which is what m is a step towards.

A nested layer serves many depths. With `rank` each of its linear maps has corrections by the length of a step, 1/N
(lengths.py). What a number of steps takes is an ordinary table, so that populating merges the corrections.

Source: Fan, Grave & Joulin 2019, "Reducing Transformer Depth on Demand with Structured Dropout", arXiv:1909.11556.
"""

import dataclasses

import equinox as eqx
import jax
import numpy as np
from jax import Array
from jaxtyping import Key, PyTree

from diffeqformer.config import LayerDropConfig
from diffeqformer.errors import BadInput
from diffeqformer.ode.field import BlockShapes, BlockWeights
from diffeqformer.ode.grid import END_OF_STEP, Grid, Nodes, Times, rounding, widest
from diffeqformer.ode.weights.lengths import corrected, init_corrections
from diffeqformer.ode.weights.source import initial_rows, number_of_rows, unstack


class LayerDropWeights(eqx.Module):
    """K layers, of which a grid of at most K steps takes its own."""

    layers: BlockWeights
    """Rows of all layers, in order, on one leading axis."""
    order: tuple[int, ...] = eqx.field(static=True, default=())
    """In which nested layers come in as steps are added; none for those that are left out by their place alone."""
    landings: int = eqx.field(static=True, default=0)
    """m, last layers that each number of steps has of its own: on the axis of layers, after the K - m that are shared,
    that of 1 step, then those of 2, and so on."""
    corrections: PyTree = None
    """A `Correction` in the place of each linear map; `None` for layers that are the same at all depths."""

    @property
    def depth(self) -> int:
        """K"""
        m = self.landings  # as `LayerDropConfig.rows`
        return (number_of_rows(self.layers) + m * (m + 1) // 2) // (m + 1)

    @property
    def early_exits(self) -> bool:
        """Whether N steps have the first N layers, and each layer is the same at any number of steps."""
        return self.order == tuple(range(self.depth - self.landings)) and self.corrections is None

    @property
    def shared(self) -> "LayerDropWeights":
        """Those without landings."""
        layers = jax.tree.map(lambda leaf: leaf[: self.depth - self.landings], self.layers)
        return dataclasses.replace(self, layers=layers, landings=0)

    def landing(self, steps: int) -> "LayerDropWeights":
        """The layers that a number of steps has of its own, as all that there are."""
        rows = self.kept(steps)[-self.landings :]
        return LayerDropWeights(jax.tree.map(lambda leaf: leaf[rows], self.layers), tuple(range(len(rows))))

    def kept(self, steps: int) -> np.ndarray:
        """The rows of nested layers that a number of steps has, by depth."""
        m = self.landings
        own = np.minimum(np.arange(steps + 1), m)  # of each number of steps up to this
        first = self.depth - m + own[:-1].sum()
        shared = np.sort(np.asarray(self.order[: max(steps - m, 0)], int))
        return np.append(shared, first + np.arange(own[-1]))

    def at(self, times: Times) -> BlockWeights:
        """The layers in force at `times`; between two of them, within rounding, the deeper one."""
        xp, times = widest(times)
        rounded = times + rounding(times, 1 / self.depth)
        rows = xp.clip(xp.floor(rounded * self.depth).astype(int), 0, self.depth - 1)
        rows = xp.asarray(self.kept(self.depth))[rows] if self.landings else rows
        layers = corrected(self.layers, self.corrections, 1 / self.depth)
        return jax.tree.map(lambda leaf: leaf[rows], layers)

    def table(self, grid: Grid, nodes: Nodes = END_OF_STEP) -> BlockWeights:
        """The layers of a grid.

        **Raises:** `BadInput` if it has more steps than there are layers, or, of nested ones, unequal steps.
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
    """All layers, from 0, in the order in which they come in as steps are added.

    Counted from the last one they are in van der Corput's order: 0, 1/2, 1/4, 3/4, 1/8, ... of depth (Kuipers &
    Niederreiter 1974, Uniform Distribution of Sequences, section 2.3).
    """
    bits = (layers - 1).bit_length()
    reversed_bits = [int(f"{index:0{bits}b}"[::-1], 2) if bits else 0 for index in range(1 << bits)]
    return tuple(layers - 1 - index for index in reversed_bits if index < layers)


def init_layer_drop(
    section: LayerDropConfig, shapes: BlockShapes, grid: Grid, nodes: Nodes, key: Key[Array, ""]
) -> LayerDropWeights:
    """New weights of kind `layerdrop`: those of a table, with corrections that change nothing yet.

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
