"""A table of layers that is read at fewer steps by leaving layers out.

With N steps the layer of each is the one at its middle, `floor(t K)` from 0 at the time t: of K layers every (K/N)th,
which Fan et al. found best. A middle that lies between two layers, as all do if K/N is even, takes the deeper one.
Trained at drawn depths with `depth.jitter`, layers are left out at random, one in each of N parts of depth. With the
scheme `residual` a layer does the same whatever the others do.

With `nested` one step has the last layer, two have the one of the middle besides, and so on, always halving: N steps
have the first N layers of `nested_order`, so that a reading at N + 1 has one layer more and all others in common.

A nested layer serves many depths. With `rank` each of its linear maps differs a little between them: at N steps it is

    W + sum_j C_j(log2 N) A_j B_j,

C_j being hat functions with knots at N = 2^j, and A_j B_j of that rank. What a number of steps takes is an ordinary
table, so that populating merges the corrections.

Sources: Fan, Grave & Joulin 2019, "Reducing Transformer Depth on Demand with Structured Dropout", arXiv:1909.11556;
low-rank corrections of shared layers, Bae et al. 2024, "Relaxed Recursive Transformers", arXiv:2410.20672.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int, Key, PyTree

from diffeqformer.config import LayerDropConfig
from diffeqformer.errors import BadInput
from diffeqformer.nn.linear import Linear, LinearShape, Norm, zeros
from diffeqformer.ode.field import BlockShapes, BlockWeights
from diffeqformer.ode.grid import END_OF_STEP, Grid, Nodes, Times, rounding, widest
from diffeqformer.ode.lora import linear_maps
from diffeqformer.ode.weights.modulated import length_basis
from diffeqformer.ode.weights.source import initial_rows, is_shape, unit_keys, unstack


class Correction(eqx.Module):
    """Of one linear map, for every layer and power of two of the number of steps."""

    a: Float[Array, "power layer inputs rank"]
    b: Float[Array, "power layer rank outputs"]
    """Zero at the start."""

    def of(self, steps: int, layers: Int[np.ndarray, " kept"]) -> Float[Array, "kept inputs outputs"]:
        """`sum_j C_j(log2 steps) A_j B_j` of some layers."""
        (shares,) = length_basis(np.array([1 / steps]), len(self.a), self.a.dtype)
        return jnp.einsum("j,jlir,jlro->lio", shares, self.a[:, layers], self.b[:, layers])


class LayerDropWeights(eqx.Module):
    """K layers, of which a grid of at most K steps takes its own."""

    layers: BlockWeights
    """Rows of all layers, in order, on one leading axis."""
    nested: bool = eqx.field(static=True, default=False)
    corrections: PyTree = None
    """A `Correction` in the place of each linear map; `None` for layers that are the same at all depths."""

    @property
    def depth(self) -> int:
        """K"""
        return self.layers.attention.norm.scale.shape[0]

    def corrected(self, steps: int, kept: Int[np.ndarray, " kept"]) -> BlockWeights:
        """Rows of some layers, as a reading at `steps` steps has them."""
        rows = jax.tree.map(lambda leaf: leaf[kept], self.layers)
        if self.corrections is None:
            return rows

        def add(unit: PyTree, correction: Correction | None) -> PyTree:
            return unit if correction is None else Linear(unit.weight + correction.of(steps, kept), unit.bias)

        return jax.tree.map(add, rows, self.corrections, is_leaf=_is_unit)

    def at(self, times: Times) -> BlockWeights:
        """The layers in force at `times`; between two of them, within rounding, the deeper one."""
        xp, times = widest(times)
        rounded = times + rounding(times, 1 / self.depth)
        rows = xp.clip(xp.floor(rounded * self.depth).astype(int), 0, self.depth - 1)
        layers = self.layers
        if self.corrections is not None:
            layers = self.corrected(self.depth, np.arange(self.depth))
        return jax.tree.map(lambda leaf: leaf[rows], layers)

    def table(self, grid: Grid, nodes: Nodes = END_OF_STEP) -> BlockWeights:
        """The layers of a grid.

        **Raises:** `BadInput` if it has more steps than there are layers, or, of nested ones, unequal steps.
        """
        if grid.steps > self.depth:
            raise BadInput(
                f"steps is {grid.steps}, but this model leaves out some of {self.depth} layers: at most those."
            )
        if not self.nested:
            return unstack(self.at(grid.times((0.5,))), grid.steps, 1)
        if not grid.equal:
            raise BadInput("nested layers are kept by the number of steps, so that these must be equal.")
        kept = np.sort(nested_order(self.depth)[: grid.steps])
        return unstack(self.corrected(grid.steps, kept), grid.steps, 1)


def nested_order(layers: int) -> np.ndarray:
    """All layers, from 0, in the order in which they come in as steps are added.

    Counted from the last one they are in van der Corput's order: 0, 1/2, 1/4, 3/4, 1/8, ... of depth (Kuipers &
    Niederreiter 1974, Uniform Distribution of Sequences, section 2.3).
    """
    bits = (layers - 1).bit_length()
    reversed_bits = [int(f"{index:0{bits}b}"[::-1], 2) if bits else 0 for index in range(1 << bits)]
    return np.array([layers - 1 - index for index in reversed_bits if index < layers])


def init_layer_drop(
    section: LayerDropConfig, shapes: BlockShapes, grid: Grid, nodes: Nodes, key: Key[Array, ""]
) -> LayerDropWeights:
    """New weights of kind `layerdrop`: those of a table, with corrections that change nothing yet.

    **Raises:** `BadInput` for a rank larger than the smaller side of a matrix.
    """
    depth = section.layers or grid.steps
    weights = LayerDropWeights(initial_rows(shapes, END_OF_STEP, depth, key), section.nested)
    if not (rank := section.rank):
        return weights
    for name, shape in linear_maps(shapes).items():
        if rank > (most := min(shape.inputs, shape.outputs)):
            raise BadInput(
                f"model.weights.rank is {rank}, but {name} is {shape.inputs} x {shape.outputs}: at most {most}."
            )
    powers = (depth - 1).bit_length() + 1

    def correction(shape: PyTree, key: Key[Array, ""]) -> Correction | None:
        if not isinstance(shape, LinearShape):
            return None
        a = jax.random.uniform(key, (powers, depth, shape.inputs, rank), jnp.float32, minval=-1, maxval=1)
        return Correction(a / shape.inputs**0.5, zeros((powers, depth, rank, shape.outputs)))

    keys = unit_keys(shapes, jax.random.fold_in(key, 1))
    corrections = jax.tree.map(correction, shapes, keys, is_leaf=is_shape)
    return dataclasses.replace(weights, corrections=corrections)


def _is_unit(node: PyTree) -> bool:
    return isinstance(node, Linear | Norm)
