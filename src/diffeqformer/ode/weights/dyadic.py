"""A separate block for each dyadic step: for depth as a whole, its two halves, its four quarters, ...

    W(step) = B_(j, floor(m 2^j)),     j = log2 1/h, at most H,

with h the length of the step as a fraction of depth and m its middle. A run at 1, 2, 4, ... equal steps thus has its
own table. A run at a number of dyadic steps in between (`ode.grid.dyadic_edges`) takes its blocks from two tables.
Steps shorter than 2^-H take the block of the step of that length around them; any other length takes the nearest j.
There are 2^(H+1) - 1 blocks, those of the longest steps first.

It is best not to start training with these weights: a model that shares weights between all lengths of steps learns
faster. When it has learned what they have in common, `freed` gives each step its own block (docs/elastic-depth.md).
"""

import dataclasses
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from diffeqformer.config import DyadicConfig
from diffeqformer.errors import BadInput
from diffeqformer.ode.field import BlockShapes, BlockWeights
from diffeqformer.ode.grid import END_OF_STEP, Grid, Nodes, Times, rounding, widest
from diffeqformer.ode.lora import merge, with_adapters
from diffeqformer.ode.weights.layer import populated
from diffeqformer.ode.weights.source import WeightSource, initial_rows, number_of_rows, unstack


class DyadicWeights(eqx.Module):
    """A block for each dyadic step of length 1, 1/2, 1/4, ..., 2^-H."""

    blocks: BlockWeights
    """Rows of all blocks on one leading axis, by decreasing length and then by position."""

    @property
    def halvings(self) -> int:
        """H, the number of halvings."""
        return number_of_rows(self.blocks).bit_length() - 1

    def changed(self, change: Callable[[BlockWeights], BlockWeights]) -> "DyadicWeights":
        """Return a copy with changed rows: with adapters, without them, or with them merged."""
        return dataclasses.replace(self, blocks=change(self.blocks))

    def at(self, times: Times) -> BlockWeights:
        """Weights at `times` in the limit of short steps: those of the shortest blocks, the later one at an edge."""
        xp, t = widest(times)
        # Times are moved on, so that `floor` finds the later block at an edge, however the edge is rounded.
        middle = t + rounding(t, 2.0**-self.halvings)
        return self._blocks(middle, xp.zeros_like(middle))

    def table(self, grid: Grid, nodes: Nodes = END_OF_STEP) -> BlockWeights:
        """Weights of the grid's steps, one block each, which serves all nodes of its step."""
        _, edges = widest(grid.edges)
        return unstack(self._blocks((edges[1:] + edges[:-1]) / 2, edges[1:] - edges[:-1]), grid.steps, 1)

    def _blocks(self, middle: Times, length: Times) -> BlockWeights:
        """Blocks of the steps with these middles and lengths, with adapters merged."""
        rows = dyadic_rows(middle, length, self.halvings)
        return merge(jax.tree.map(lambda leaf: leaf[rows], self.blocks))


def dyadic_rows(middle: Times, length: Times, halvings: int) -> Times:
    """Return the index of the block that serves each step.

    **Arguments:** `middle` and `length` of steps, as fractions of depth, shape (step,); `halvings`, H.

    **Returns:** 2^j - 1 + floor(m 2^j), integers of shape (step,).
    """
    xp, length = widest(length)
    # At least half of the shortest length, so that a step of length 0 has a finite logarithm.
    level = xp.clip(xp.round(-xp.log2(xp.maximum(length, 2.0 ** -(halvings + 1)))), 0, halvings).astype(int)
    parts = 2**level
    return parts - 1 + xp.clip(xp.floor(middle * parts.astype(middle.dtype)).astype(int), 0, parts - 1)


def freed(source: WeightSource, halvings: int, nodes: Nodes) -> DyadicWeights:
    """Give each dyadic step its own block, initially the weights of another source at 1, 2, 4, ..., 2^H equal steps.

    At dyadic steps, the model is the same before and after.

    **Arguments:** `source`, which has weights at any number of steps; `halvings`, H; `nodes` of the scheme.

    **Raises:** `BadInput` if the weights differ within a step.
    """
    tables = [populated(source, Grid(1 << level), nodes) for level in range(halvings + 1)]
    if any(table.nodes for table in tables):
        raise BadInput(
            "the scheme takes weights at several times of a step, which differ in this model, but a dyadic step has "
            "one block; schemes with one node, such as 'lie-trotter-middle', take one."
        )
    return DyadicWeights(jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *(table.layers for table in tables)))


def init_dyadic(
    section: DyadicConfig, shapes: BlockShapes, grid: Grid, nodes: Nodes, key: Key[Array, ""]
) -> DyadicWeights:
    """Initialise weights of kind `dyadic`, each block like a layer of a table, with adapters if `section` has them."""
    blocks = (2 << section.halved(grid.steps)) - 1
    return DyadicWeights(with_adapters(initial_rows(shapes, END_OF_STEP, blocks, key), section.lora, key))
