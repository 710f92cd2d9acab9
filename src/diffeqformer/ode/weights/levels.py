"""A table of layers for each of several numbers of steps, its levels N_1 < N_2 < ...

A reading in N steps takes one table, that of the largest level N_j <= N, or the first if there is none. A step from a
to b, as fractions of depth, takes

    W(a, b) = (b - a)^-1 int_a^b B_j(t) dt,

where B_j is the table of N_j layers as a function of depth, constant over each N_j-th of it. A reading at N_j equal
steps is thus the j-th table. At any other number, the model divides some of the steps of the level below
(`ode.grid.divided_edges`), so that no step mixes two layers.

It is best not to start training with these weights: a model that shares weights between all lengths of steps learns
faster. When it has learned what they have in common, `freed` gives each level its own table (docs/elastic-depth.md).
"""

import dataclasses
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from diffeqformer.config import LevelsConfig
from diffeqformer.errors import BadInput
from diffeqformer.ode.field import BlockShapes, BlockWeights
from diffeqformer.ode.grid import END_OF_STEP, ROUNDING, Grid, Nodes, Times, later_layer, level_below
from diffeqformer.ode.lora import merge, with_adapters
from diffeqformer.ode.weights.knots import step_means
from diffeqformer.ode.weights.layer import populated
from diffeqformer.ode.weights.source import WeightSource, initial_rows, mixed, unstack
from diffeqformer.sharding import constrain_weights


class LevelWeights(eqx.Module):
    """A table of layers for each level, a number of steps."""

    blocks: BlockWeights
    """Rows of all tables on one leading axis, N_1 + N_2 + ... in all, those of the first level first."""
    levels: tuple[int, ...] = eqx.field(static=True)
    """N_1 < N_2 < ..., the numbers of steps that have a table."""

    def changed(self, change: Callable[[BlockWeights], BlockWeights]) -> "LevelWeights":
        """Return a copy with changed rows: with adapters, without them, or with them merged."""
        return dataclasses.replace(self, blocks=change(self.blocks))

    def at(self, times: Times) -> BlockWeights:
        """Weights at `times` in the limit of short steps: those of the longest table, the later layer at an edge."""
        return self._rows(later_layer(times, self.levels[-1]) + sum(self.levels[:-1]))

    def table(self, grid: Grid, nodes: Nodes = END_OF_STEP) -> BlockWeights:
        """Weights of the grid's steps, one row each, which serves all nodes of its step."""
        level = level_below(grid.steps, self.levels)
        first = sum(other for other in self.levels if other < level)
        shares = step_means(grid.edges, level, "box")
        # Each step lies in one layer, as for every number of steps: its row is taken, not mixed.
        if isinstance(shares, np.ndarray) and (shares.max(1) > 1 - ROUNDING).all():
            return unstack(self._rows(first + shares.argmax(1)), grid.steps, 1)
        rows = self._rows(first + np.arange(level))
        shares = jnp.asarray(shares, rows.attention.norm.scale.dtype)
        return unstack(constrain_weights(mixed(shares, rows)), grid.steps, 1)

    def _rows(self, rows: Times) -> BlockWeights:
        """Return some rows, with adapters merged."""
        return merge(jax.tree.map(lambda leaf: leaf[rows], self.blocks))


def freed(source: WeightSource, levels: tuple[int, ...], nodes: Nodes) -> LevelWeights:
    """Give each level its own table, initially the weights of another source at that many equal steps.

    At these numbers of equal steps, the model is the same before and after.

    **Arguments:** `source`, which has weights at these numbers of steps; `levels`; `nodes` of the scheme.

    **Raises:** `BadInput` if the weights differ within a step.
    """
    tables = [populated(source, Grid(steps), nodes) for steps in levels]
    if any(table.nodes for table in tables):
        raise BadInput(
            "the scheme takes weights at several times of a step, which differ in this model, but a level has one "
            "block for each step; schemes with one node, such as 'lie-trotter-middle', take one."
        )
    blocks = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *(table.layers for table in tables))
    return LevelWeights(blocks, levels)


def init_levels(
    section: LevelsConfig, shapes: BlockShapes, grid: Grid, nodes: Nodes, key: Key[Array, ""]
) -> LevelWeights:
    """Initialise weights of kind `levels`, each block like a layer of a table, with adapters if `section` has them."""
    levels = section.of(grid.steps)
    return LevelWeights(with_adapters(initial_rows(shapes, END_OF_STEP, sum(levels), key), section.lora, key), levels)
