"""Weights that depend on the length of the step: low-rank corrections of linear maps, by hat functions of the length.

A matrix that serves steps of many lengths can differ a little between them: in a step of length h, a fraction of
depth, it is

    W + sum_j C_j(log2 1/h) A_j B_j,

where the C_j are hat functions with knots at h = 2^-j. Steps below the shortest knot are treated as if at that knot, so
that weights converge as steps are added.

Source: low-rank corrections of shared layers, Bae et al. 2024, "Relaxed Recursive Transformers", arXiv:2410.20672.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Key, PyTree

from diffeqformer.nn.linear import Linear, LinearShape, Norm, zeros
from diffeqformer.ode.field import BlockShapes
from diffeqformer.ode.grid import Times
from diffeqformer.ode.lora import linear_maps, require_rank
from diffeqformer.ode.weights.source import is_shape, is_unit, unit_keys


def length_basis(lengths: Times, knots: int, dtype: DTypeLike) -> Float[Array, "time knot"]:
    """Evaluate `C_j(log2 1/h)` for all knots at all lengths h."""
    # A length of 0, the limit of short steps, is infinitely many halvings, clipped to the last knot.
    halvings = jnp.clip(-jnp.log2(jnp.asarray(lengths, dtype)), 0, knots - 1)
    return jnp.maximum(0, 1 - jnp.abs(halvings[:, None] - jnp.arange(knots, dtype=dtype)[None]))


class Correction(eqx.Module):
    """Low-rank correction of one linear map, for every length and row."""

    a: Float[Array, "length row inputs rank"]
    b: Float[Array, "length row rank outputs"]
    """Initialised to zero."""


def corrected(rows: PyTree, corrections: PyTree, length: Any, kept: Any = slice(None)) -> PyTree:
    """Correct the rows of a block, or of half of one, for steps of a given length.

    **Arguments:** `rows`, on one leading axis; `corrections`, a `Correction` in place of each linear map, or
    `None` for rows that are the same at all lengths; `length`, a fraction of depth, 0 for the limit of short steps;
    `kept`, which rows of the corrections these are.
    """
    if corrections is None:
        return rows

    def add(unit: Linear | Norm, correction: Correction | None) -> Linear | Norm:
        if correction is None:
            return unit
        (shares,) = length_basis(jnp.asarray(length)[None], len(correction.a), correction.a.dtype)
        a, b = correction.a[:, kept], correction.b[:, kept]
        change = jnp.einsum("j,jlir,jlro->lio", shares, a, b, precision="highest")  # not in TensorFloat-32
        return Linear(unit.weight + change, unit.bias)  # pyright: ignore

    return jax.tree.map(add, rows, corrections, is_leaf=is_unit)


def init_corrections(rank: int, rows: int, halvings: int, shapes: BlockShapes, key: Key[Array, ""]) -> PyTree:
    """Initialise corrections that change nothing yet, for lengths 1, 1/2, 1/4, ..., `halvings` times halved.

    **Raises:** `BadInput` for a rank larger than the smaller side of a matrix.
    """
    require_rank("model.weights.rank", rank, linear_maps(shapes))

    def correction(shape: PyTree, key: Key[Array, ""]) -> Correction | None:
        if not isinstance(shape, LinearShape):
            return None
        # As A of an adapter starts (`attach`).
        a = jax.random.uniform(key, (halvings + 1, rows, shape.inputs, rank), jnp.float32, minval=-1, maxval=1)
        return Correction(a / shape.inputs**0.5, zeros((halvings + 1, rows, rank, shape.outputs)))

    return jax.tree.map(correction, shapes, unit_keys(shapes, key), is_leaf=is_shape)
