"""From a table of layers to a function of depth that passes through it: linear algebra alone, no training.

Both functions are linear in their parameters, `W(t_l) = sum_k B_k(t_l) X_k`, with the basis B of the knots, or with
the outputs h of a time network at random initialisation. So the parameters are a matrix times the rows of the table.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from diffeqformer.config import KnotsConfig, TimeConfig
from diffeqformer.nn.linear import Linear, Norm
from diffeqformer.ode.field import Block, BlockShapes, BlockWeights
from diffeqformer.ode.grid import Grid
from diffeqformer.ode.weights.knots import PLACES, KnotWeights, cardinal_basis
from diffeqformer.ode.weights.time import TimeWeights
from diffeqformer.ode.weights.time_features import time_features
from diffeqformer.ode.weights.time_networks import TimeLinear, TimeNetwork, TimeNorm


class Fit(NamedTuple):
    """A function of depth that was fitted to a table."""

    weights: KnotWeights | TimeWeights
    condition: float
    """Condition number of the linear system, the largest of all matrices and norms: what rounding is enlarged by."""


def fit_knots(rows: BlockWeights, times: Float[np.ndarray, " time"], section: KnotsConfig) -> Fit:
    """The weights between K knots that pass through the rows of a table, or come nearest to them.

    With as many knots as rows, at their times, the knots are the rows themselves. Fewer are the least squares; more lie
    on the interpolation between the rows. Source: Queiruga et al. 2021, arXiv:2106.10820.

    **Arguments:** `rows`, on one leading axis; `times`, at which they stand: the places of L knots of L;
    `section`, with K set.
    """
    basis = partial(cardinal_basis, basis=section.basis, place=section.place)
    layers, knots = len(times), section.knots or len(times)
    system = np.asarray(basis(times, knots), np.float64)
    if knots < layers:
        matrix = np.linalg.pinv(system)
    else:
        matrix = np.asarray(basis((np.arange(knots) + PLACES[section.place]) / knots, layers), np.float64)
    condition = float(np.linalg.cond(system if knots <= layers else matrix))
    mixed = rows if knots == layers else _mixed(jnp.asarray(matrix, jnp.float32), rows)
    return Fit(KnotWeights(mixed, section.basis, section.place), condition)


def fit_time(
    rows: BlockWeights, grid: Grid, node: float, section: TimeConfig, shapes: BlockShapes, key: Key[Array, ""]
) -> Fit:
    """The time networks whose weights at the nodes of a grid are the rows of a table.

    The networks that turn time into h are new, and stay as they are drawn; with H = h(t_1), ..., h(t_L), of full rank
    if `d_emb >= L` and the band is wide enough: `C = mean_l W_l`, `P = pinv(H) (W - C)`, and B, G, S the same
    without a constant. Of all P that fit this is the shortest.

    **Arguments:** `rows`, on one leading axis; `grid` and `node`, whose times they stand at; `section`, of kind `time`;
    `shapes` of a block; `key` of the networks.
    """
    networks, hidden = _drawn(shapes, section, grid, node, key)
    hidden = [np.asarray(h, np.float64) for h in hidden]
    weights = _solved(rows, networks, [jnp.asarray(np.linalg.pinv(h), jnp.float32) for h in hidden])
    return Fit(TimeWeights(weights, None, section), max(float(np.linalg.cond(h)) for h in hidden))


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _drawn(
    shapes: BlockShapes, section: TimeConfig, grid: Grid, node: float, key: Key[Array, ""]
) -> tuple[list[TimeNetwork], list[Array]]:
    """The new network of each map and norm of a block, and H of each, shape (time, d_emb)."""
    new = TimeWeights.init(shapes, section, grid, key).networks
    units = jax.tree.leaves(new, is_leaf=lambda node: isinstance(node, TimeLinear | TimeNorm))
    features = time_features(grid.times((node,)), section)
    return [unit.network for unit in units], [unit.network(features) for unit in units]


@jax.jit
def _solved(rows: BlockWeights, networks: list[TimeNetwork], inverses: list[Array]) -> Block[TimeLinear, TimeNorm]:
    """P, C, B, G and S of each map and norm; `inverses`, of each its H, shape (d_emb, time)."""
    units, structure = jax.tree.flatten(rows, is_leaf=lambda node: isinstance(node, Linear | Norm))

    def unit(row: Linear | Norm, network: TimeNetwork, inverse: Array) -> TimeLinear | TimeNorm:
        last = lambda values: None if values is None else jnp.moveaxis(_mixed(inverse, values), 0, -1)
        if isinstance(row, Norm):
            return TimeNorm(network, last(row.scale - 1.0), last(row.shift))  # pyright: ignore[reportArgumentType]
        constant = row.weight.mean(0)
        return TimeLinear(network, last(row.weight - constant[None]), constant, last(row.bias))  # pyright: ignore

    return jax.tree.unflatten(structure, list(map(unit, units, networks, inverses)))


@jax.jit
def _mixed(matrix: Float[Array, "parameter time"], rows: PyTree) -> PyTree:
    """Of every array of `rows` a sum over its leading axis for each parameter."""
    return jax.tree.map(lambda row: jnp.tensordot(matrix, row, 1, precision="highest"), rows)
