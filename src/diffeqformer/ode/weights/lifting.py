"""Lifting a table of layers to a function of depth that passes through it, by linear algebra alone, without training.

Both functions are linear in their parameters, `W(t_l) = sum_k B_k(t_l) X_k`, with the basis B of the knots, or with
the outputs h of a time network at random initialisation. So the parameters are a matrix times the rows of the table.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Key

from diffeqformer.config import KnotsConfig, TimeConfig
from diffeqformer.nn.linear import Linear, Norm, wide
from diffeqformer.ode.field import Block, BlockShapes, BlockWeights
from diffeqformer.ode.grid import END_OF_STEP, Grid
from diffeqformer.ode.weights.knots import PLACES, KnotWeights, cardinal_basis
from diffeqformer.ode.weights.source import is_unit, mixed
from diffeqformer.ode.weights.time import TimeWeights, init_time, is_time_unit
from diffeqformer.ode.weights.time_features import time_features
from diffeqformer.ode.weights.time_networks import TimeLinear, TimeNetwork, TimeNorm

_sums = jax.jit(mixed)


class Fit(NamedTuple):
    """A function of depth fitted to a table."""

    weights: KnotWeights | TimeWeights
    condition: float
    """Condition number of the linear system, which amplifies rounding: the largest over all matrices and norms."""


RIDGE = 1e-4
"""Ridge added to second moments, as a fraction of their mean variance: directions that inputs never take are left to
unweighted least squares."""
CG_STEPS, CG_TOLERANCE = 200, 1e-5
"""Maximum number of conjugate gradient steps, and the residual, relative to the right-hand side, at which they stop.

With few tokens the first ends them: 54 for 65 inputs leave 5 % more than the least error, 360 leave 0.2 % (unweighted
fits have 560 and 57 times that error). Five times as many steps leave 0.2 and 0.003 %, but take minutes at width 768.
"""


def fit_knots(
    rows: BlockWeights,
    times: Float[np.ndarray, " time"],
    section: KnotsConfig,
    moments: Sequence[Float[Array, "time _ _"]] | None = None,
) -> Fit:
    """Fit weights with K knots that pass through the rows of a table, or come nearest to them.

    With as many knots as rows, at their times, the knots are the rows themselves. Fewer knots are a least-squares fit;
    more lie on the interpolation between the rows. Source: Queiruga et al. 2021, arXiv:2106.10820.

    **Arguments:** `rows`, on one leading axis; `times` at which they stand, the places of L knots for L rows;
    `section`, with K set; `moments`, as `second_moments` gives them, which weight the least squares of fewer knots: for
    each matrix, `sum_l |X_l (W_l - sum_k B_k(t_l) K_k)|^2` is minimised, with the inputs `X_l` of layer l.
    """
    dtype, widened = wide(rows.attention.norm.scale.dtype), _widened(rows)
    basis = partial(cardinal_basis, basis=section.basis, place=section.place, dtype=dtype)
    layers, knots = len(times), section.knots or len(times)
    system = np.asarray(basis(times, knots), np.float64)
    if knots < layers:
        matrix = np.linalg.pinv(system)
    else:
        # The layers serve as knots, evaluated at the places of the new ones.
        matrix = np.asarray(basis((np.arange(knots) + PLACES[section.place]) / knots, layers), np.float64)
    condition = float(np.linalg.cond(system if knots <= layers else matrix))
    fitted = rows if knots == layers else _sums(jnp.asarray(matrix, dtype), widened)
    if moments is not None and knots < layers:
        fitted = _weighted(jnp.asarray(system, dtype), widened, fitted, list(moments))
    return Fit(KnotWeights(fitted, section.basis, section.place), condition)


def fit_time(
    rows: BlockWeights, grid: Grid, node: float, section: TimeConfig, shapes: BlockShapes, key: Key[Array, ""]
) -> Fit:
    """Fit time networks whose weights at the nodes of a grid are the rows of a table.

    The networks that turn time into h are new, and keep their random initialisation. With H = h(t_1), ..., h(t_L), of
    full rank if `d_emb >= L` and the frequency band is wide enough: `C = mean_l W_l`, `P = pinv(H) (W - C)`, and B, G,
    S likewise without a constant. Of all P that fit, this one has the smallest norm.

    **Arguments:** `rows`, on one leading axis; `grid` and `node`, at whose times they stand; `section`, of kind `time`;
    `shapes` of a block; `key` for the networks.
    """
    dtype = wide(rows.attention.norm.scale.dtype)
    networks, hidden = _drawn(shapes, section, grid, node, dtype, key)
    hidden = [np.asarray(h, np.float64) for h in hidden]
    weights = _solved(_widened(rows), networks, [jnp.asarray(np.linalg.pinv(h), dtype) for h in hidden])
    return Fit(TimeWeights(weights, None, section), max(float(np.linalg.cond(h)) for h in hidden))


def _widened(rows: BlockWeights) -> BlockWeights:
    """Return rows in float32 or better, in which sums of them are taken and kept."""
    return jax.tree.map(lambda leaf: leaf.astype(wide(leaf.dtype)), rows)


@jax.jit
def _weighted(
    system: Float[Array, "time knot"], rows: BlockWeights, start: BlockWeights, moments: list[Array]
) -> BlockWeights:
    """Solve for the knots of weighted least squares, starting from the unweighted ones; norms stay unweighted.

    Conjugate gradients solve the normal equations `sum_l B_lj S_l sum_k B_lk K_k = sum_l B_lj S_l W_l` for all columns
    at once, preconditioned by `(B^T B) x mean S`, which is the system itself where all S_l are equal.
    """
    product = partial(jnp.einsum, precision="highest")
    # Moments are in the order of the tree's linear maps, in which `tree.map` visits them.
    left = iter(moments)

    def solved(row: Linear | Norm, begin: Linear | Norm) -> Linear | Norm:
        if not (isinstance(row, Linear) and isinstance(begin, Linear)):
            return begin
        target, x, s = joined(row), joined(begin), next(left)
        # Without a bias the last input, which is always 1, is left out.
        s = ridged(s[:, : target.shape[1], : target.shape[1]])
        gram, mean = jnp.linalg.inv(system.T @ system), jnp.linalg.inv(s.mean(0))
        onto = lambda values: product("lj,lab,lbo->jao", system, s, values)
        found, _ = jax.scipy.sparse.linalg.cg(
            lambda knots: onto(product("lk,kbo->lbo", system, knots)), onto(target), x,
            tol=CG_TOLERANCE, maxiter=CG_STEPS, M=lambda r: product("jk,ab,kbo->jao", gram, mean, r),
        )  # fmt: skip
        return parted(found, row)

    return jax.tree.map(solved, rows, start, is_leaf=is_unit)


def joined(linear: Linear) -> Float[Array, "*time inputs outputs"]:
    """Append the bias, if any, to the matrix as its last row, which multiplies an input that is always 1."""
    if linear.bias is None:
        return linear.weight
    return jnp.concatenate([linear.weight, linear.bias[..., None, :]], -2)


def parted(table: Float[Array, "*time inputs outputs"], like: Linear) -> Linear:
    """Invert `joined`: return a map that has a bias if `like` has one."""
    return Linear(table, None) if like.bias is None else Linear(table[..., :-1, :], table[..., -1, :])


def ridged(moments: Float[Array, "time inputs inputs"]) -> Float[Array, "time inputs inputs"]:
    """Add a ridge to second moments, so that they have an inverse."""
    size = moments.shape[-1]
    variance = jnp.trace(moments, axis1=1, axis2=2)[:, None, None] / size
    variance = jnp.where(variance > 0, variance, 1)  # for inputs that are always zero
    return moments + RIDGE * variance * jnp.eye(size, dtype=moments.dtype)[None]


@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4))
def _drawn(
    shapes: BlockShapes, section: TimeConfig, grid: Grid, node: float, dtype: DTypeLike, key: Key[Array, ""]
) -> tuple[list[TimeNetwork], list[Array]]:
    """Initialise the network of each map and norm of a block; return these, and H of each, shape (time, d_emb)."""
    new = init_time(section, shapes, grid, END_OF_STEP, key).networks
    units = jax.tree.leaves(new, is_leaf=is_time_unit)
    networks = [jax.tree.map(lambda leaf: leaf.astype(dtype), unit.network) for unit in units]
    features = time_features(grid.times((node,)), section, dtype)
    return networks, [network(features) for network in networks]


# One program for all of a block's matrices: compiled one by one, they take three times as long.
@jax.jit
def _solved(rows: BlockWeights, networks: list[TimeNetwork], inverses: list[Array]) -> Block[TimeLinear, TimeNorm]:
    """Solve for P, C, B, G and S of each map and norm; `inverses` are those of each one's H, shape (d_emb, time)."""
    units, structure = jax.tree.flatten(rows, is_leaf=is_unit)

    def unit(row: Linear | Norm, network: TimeNetwork, inverse: Array) -> TimeLinear | TimeNorm:
        last = lambda values: None if values is None else jnp.moveaxis(_sums(inverse, values), 0, -1)
        if isinstance(row, Norm):
            return TimeNorm(network, last(row.scale - 1.0), last(row.shift))  # pyright: ignore[reportArgumentType]
        constant = row.weight.mean(0)
        return TimeLinear(network, last(row.weight - constant[None]), constant, last(row.bias))  # pyright: ignore

    return jax.tree.unflatten(structure, list(map(unit, units, networks, inverses)))
