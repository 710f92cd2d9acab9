"""A table of layers for each of several numbers of steps, and mixtures of these in between.

A step from a to b, of length h = b - a as a fraction of depth, takes

    W(a, b) = sum_j C_j(log 1/h) h^-1 int_a^b B_j(t) dt,

where B_j is a table of N_j layers as a function of depth, constant over each N_j-th of it, and the C_j are hat
functions with knots at h = 1/N_j. A reading at N_j equal steps is thus the j-th table, and one at a number in between
mixes two tables. Steps that are longer than those of the shortest table, or shorter than those of the longest, take
means of that table alone. There are N_1 + ... + N_m blocks, those of the longest steps first.

Nothing is mixed where each step has the length of those of some table, as with `model.spacing: dyadic` and N_j = 1, 2,
4, ..., or `thirds` and 1, 2, 3, 4, 6, ... (`ode.grid.mixed_edges`): a number of steps in between then takes some blocks
of one table and some of the next.

It is best not to start training with these weights: a model that shares weights between all lengths of steps learns
faster. When it has learned what they have in common, `freed` gives each length its own table (docs/elastic-depth.md).
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
from diffeqformer.ode.grid import END_OF_STEP, Grid, Nodes, Times, later_layer, rounding, widest
from diffeqformer.ode.lora import merge, with_adapters
from diffeqformer.ode.weights.knots import step_means
from diffeqformer.ode.weights.layer import populated
from diffeqformer.ode.weights.source import WeightSource, initial_rows, mixed, unstack
from diffeqformer.sharding import constrain_weights


class LevelWeights(eqx.Module):
    """A table of layers for each level, a number of steps."""

    blocks: BlockWeights
    """Rows of all tables on one leading axis, by decreasing length of the step and then by position."""
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
        shares = level_shares(grid.edges, self.levels)
        if isinstance(shares, np.ndarray) and (shares.max(1) == 1).all():
            return unstack(self._rows(shares.argmax(1)), grid.steps, 1)
        used = np.flatnonzero(shares.any(0)) if isinstance(shares, np.ndarray) else np.arange(shares.shape[1])
        rows = self._rows(used)
        of_used = jnp.asarray(shares[:, used], rows.attention.norm.scale.dtype)
        return unstack(constrain_weights(mixed(of_used, rows)), grid.steps, 1)

    def _rows(self, rows: Times) -> BlockWeights:
        """Return some rows, with adapters merged."""
        return merge(jax.tree.map(lambda leaf: leaf[rows], self.blocks))


def level_shares(edges: Times, levels: tuple[int, ...]) -> Times:
    """Return the share of each block in the weights of each step; shares of a step sum to one.

    **Arguments:** `edges`, the times between steps, from 0 to 1, shape (step + 1,); `levels`, N_1 < N_2 < ...

    **Returns:** shape (step, N_1 + N_2 + ...), in NumPy and rounded to 12 digits for known edges, so that a block
    alone has a share of exactly 1.
    """
    xp, t = widest(edges)
    logs, numbers = np.log(levels).astype(t.dtype), np.arange(len(levels), dtype=t.dtype)
    lengths = xp.maximum(t[1:] - t[:-1], 1 / (2 * levels[-1]))  # a length of 0 has no logarithm
    place = xp.interp(-xp.log(lengths), logs, numbers)
    near = xp.round(place)
    place = xp.where(abs(place - near) < rounding(t, 1.0), near, place)  # lengths are differences of rounded edges
    of_level = xp.maximum(0, 1 - abs(place[:, None] - numbers[None]))
    shares = xp.concatenate(
        [of_level[:, [j]] * step_means(edges, number, "box") for j, number in enumerate(levels)], axis=1
    )
    return shares.round(12) if xp is np else shares


def freed(source: WeightSource, levels: tuple[int, ...], nodes: Nodes) -> LevelWeights:
    """Give each level its own table, initially the weights of another source at that many equal steps.

    At these numbers of steps, the model is the same before and after; at dyadic steps too, if `levels` are 1, 2, 4, ...

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
