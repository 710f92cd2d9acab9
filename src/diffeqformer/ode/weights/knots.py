"""Weights in a fixed cardinal basis over depth: as cheap as a table of layers, continuous by construction.

    W(t) = sum_k B_k(t) W_k,     B_k(t_j) = 1 if j = k else 0,     k = 0..K-1

with equally spaced knots t_k; before the first and after the last knot the weights are constant. Every array of a block
is such a function, biases and norms included: piecewise linear, a spline, or piecewise constant. Boxes do not
interpolate, so steps shorter than a box take the weights of one knot. K knots have the parameters of a table of K
layers; low-rank adapters of the W_k are merged into them before weights are interpolated. Source: Queiruga et al. 2021,
"Stateful ODE-Nets using Basis Function Expansions", arXiv:2106.10820.

A step from a to b takes W at the scheme's nodes, or, with `average`, its mean over the step,

    (b - a)^-1 int_a^b W(t) dt,

the first term of the Magnus expansion (Blanes et al. 2009, arXiv:0810.5488). At any number of steps, each knot then
counts by its share of depth, whereas W at a node depends on where between two knots the node happens to lie. The
weights of a long step are the mean of those of the short steps that it replaces. With `rank`, each W_k has low-rank
corrections that depend on the length of the step (lengths.py).
"""

import dataclasses
from collections.abc import Callable
from types import ModuleType

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Key, PyTree

from diffeqformer.config import KnotsConfig
from diffeqformer.ode.field import BlockShapes, BlockWeights
from diffeqformer.ode.grid import END_OF_STEP, Grid, Nodes, Times, rounding, widest
from diffeqformer.ode.lora import merge, with_adapters
from diffeqformer.ode.weights.lengths import corrected, init_corrections
from diffeqformer.ode.weights.source import by_half, initial_rows, mixed, number_of_rows, unstack
from diffeqformer.sharding import constrain_weights

PLACES = {"middle": 0.5, "end": 1.0}
"""Position of the knots within K equal parts of depth, as a fraction of a part."""
FEW = 4
"""Up to this many distinct known step lengths, rows are corrected once per length; beyond, for each step in a loop."""


def cardinal_basis(
    times: Times, knots: int, basis: str = "hat", place: str = "middle", dtype: DTypeLike = jnp.float32
) -> Float[Array, "time knot"]:
    """Evaluate `B_k(t)` for all knots at all times; the rows sum to one.

    `hat`: piecewise linear. `cubic`: the natural cubic spline through the knots, twice continuously differentiable
    between the first and the last one (de Boor 1978, A Practical Guide to Splines, chapter 4). `box`: 1 where knot k is
    the nearest one, and 1/2 halfway between it and the next.

    **Arguments:** `times`, in [0, 1], shape (time,); known ones are handled in float64 and cast last; `knots`, K;
    `place` of the knots, in the middles or at the ends of K equal parts of depth; `dtype` of the result.
    """
    xp, t = widest(times)
    return jnp.asarray(_values(xp, t, knots, basis, place), dtype)


def mean_basis(
    edges: Times, knots: int, basis: str = "hat", place: str = "middle", dtype: DTypeLike = jnp.float32
) -> Float[Array, "step knot"]:
    """Average `B_k` over each step, or evaluate it where a step has length 0; the rows sum to one.

    **Arguments:** `edges`, the times between steps, from 0 to 1, shape (step + 1,); the others as for `cardinal_basis`.
    """
    return jnp.asarray(step_means(edges, knots, basis, place), dtype)


def step_means(edges: Times, knots: int, basis: str = "hat", place: str = "middle") -> Times:
    """Compute `mean_basis` in the widest precision: in NumPy for known edges.

    Between edges, knots and the middles between knots, all `B_k` are at most cubic polynomials, which two-point
    Gauss-Legendre quadrature integrates exactly.
    """
    xp, t = widest(edges)
    # Multiples of 1 / 2K: all knots, at either place, and the middles between them, where boxes jump.
    ends = xp.sort(xp.concatenate([t, xp.asarray(np.arange(1, 2 * knots) / (2 * knots), t.dtype)]))
    middle, half = (ends[:-1] + ends[1:]) / 2, (ends[1:] - ends[:-1]) / 2
    first, second = (_values(xp, middle + side * half / 3**0.5, knots, basis, place) for side in (-1, 1))
    pieces = half[:, None] * (first + second)
    within = (t[:-1, None] <= middle[None]) & (middle[None] < t[1:, None])
    length = (t[1:] - t[:-1])[:, None]
    # No matrix product if traced: on GPUs it would be in TensorFloat-32.
    sums = within.astype(t.dtype) @ pieces if xp is np else xp.where(within[..., None], pieces, 0).sum(1)
    mean = sums / xp.where(length > 0, length, 1)
    return xp.where(length > 0, mean, _values(xp, t[:-1], knots, basis, place))


def _values(xp: ModuleType, t: Times, knots: int, basis: str, place: str) -> Times:
    place_in_knots = xp.clip(t * knots - PLACES[place], 0.0, knots - 1.0)
    if xp is np:  # l / K * K may be off by a rounding, and a knot's own time would then mix in its neighbour
        near = np.round(place_in_knots)
        place_in_knots = np.where(np.abs(place_in_knots - near) < 1e-9, near, place_in_knots)
    # The last knot is the right end (b = 1) of the last interval; a single knot is both ends of its own.
    left = xp.clip(xp.floor(place_in_knots).astype(int), 0, max(knots - 2, 0))
    right = xp.minimum(left + 1, knots - 1)
    b = (place_in_knots - left.astype(t.dtype))[:, None]
    if basis == "box":  # times count as on the middle between knots, where it jumps, up to their rounding
        beyond = xp.where(abs(b - 0.5) <= knots * rounding(t, 1 / knots), 0, b - 0.5)
        b = (xp.sign(beyond) + 1) / 2
    unit = xp.asarray(np.eye(knots), t.dtype)
    rows = (1 - b) * unit[left] + b * unit[right]
    if len(second := bends(basis, knots)):
        bend, a = xp.asarray(second, t.dtype), 1 - b
        # A cubic from its values and second derivatives at both ends, with knots at distance 1 (de Boor).
        rows = rows + ((a**3 - a) * bend[left] + (b**3 - b) * bend[right]) / 6
    return rows


def bends(basis: str, knots: int) -> np.ndarray:
    """Return the matrix (knot, knot) from knot values to second derivatives of the natural spline at its knots, in
    units of their distance; empty for a basis without second derivatives."""
    if basis != "cubic" or knots <= 2:
        return np.zeros((0, knots))
    from scipy.interpolate import CubicSpline  # takes 0.14 s, which weights without splines save

    return CubicSpline(range(knots), np.eye(knots), bc_type="natural")(range(knots), 2)


class KnotWeights(eqx.Module):
    """Block weights interpolated between knots."""

    rows: BlockWeights
    """Weights at the knots, in order, on one leading axis."""
    basis: str = eqx.field(static=True, default="hat")
    place: str = eqx.field(static=True, default="middle")
    average: bool = eqx.field(static=True, default=False)
    corrections: PyTree = None
    """A `Correction` by step length for each linear map; `None` for weights that depend on time alone."""

    @property
    def knots(self) -> int:
        """K, the number of knots."""
        return number_of_rows(self.rows)

    def changed(self, change: Callable[[BlockWeights], BlockWeights]) -> "KnotWeights":
        """Return a copy with changed rows: with adapters, without them, or with them merged."""
        return dataclasses.replace(self, rows=change(self.rows))

    def at(self, times: Times) -> BlockWeights:
        """Weights at `times` in the limit of short steps, by one product of a (time, K) matrix with each array."""
        return self._mixed(corrected(merge(self.rows), self.corrections, 0), cardinal_basis(times, *self._how))

    def table(self, grid: Grid, nodes: Nodes = END_OF_STEP) -> BlockWeights:
        """Weights at all nodes of the grid, or means over its steps."""
        means = mean_basis(grid.edges, *self._how) if self.average else None

        def half(rows: PyTree, corrections: PyTree, nodes: tuple[float, ...]) -> PyTree:
            shares = means if means is not None else cardinal_basis(grid.times(nodes), *self._how)
            if grid.equal or corrections is None:
                stacked = self._mixed(corrected(rows, corrections, 1 / grid.steps), shares)
                # There is one mean per step, for all its nodes.
                return unstack(stacked, grid.steps, len(shares) // grid.steps)
            by_step = shares.reshape(grid.steps, -1, self.knots)
            lengths = grid.lengths
            if isinstance(lengths, np.ndarray) and len(np.unique(lengths.round(12))) <= FEW:
                return self._by_length(rows, corrections, lengths, by_step)
            step = lambda each: self._mixed(corrected(rows, corrections, each[0]), each[1])
            # One step at a time: correcting for all steps at once would make as many copies of the knots as steps.
            return jax.lax.map(step, (jnp.asarray(lengths), by_step))

        return by_half(half, nodes, merge(self.rows), self.corrections)

    def _by_length(self, rows: PyTree, corrections: PyTree, lengths: np.ndarray, by_step: Array) -> PyTree:
        """Build the table of steps of known lengths; rows are corrected once for each distinct length."""
        # Rounded, since equal lengths, as differences of edges, may differ in the last bits.
        _, first, which = np.unique(lengths.round(12), return_index=True, return_inverse=True)
        steps = [np.flatnonzero(which == number) for number in range(len(first))]

        def part(length: float, own: np.ndarray) -> PyTree:
            stacked = self._mixed(corrected(rows, corrections, length), by_step[own].reshape(-1, self.knots))
            return unstack(stacked, len(own), by_step.shape[1])

        # The argsort of a permutation is its inverse: it puts the rows back into the order of steps.
        parts, order = map(part, lengths[first].tolist(), steps), np.argsort(np.concatenate(steps))
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves)[order], *parts)

    @property
    def _how(self) -> tuple[int, str, str, jnp.dtype]:
        return self.knots, self.basis, self.place, self.rows.attention.norm.scale.dtype

    def _mixed(self, rows: PyTree, shares: Float[Array, "time knot"]) -> PyTree:
        return constrain_weights(mixed(shares, rows))


def init_knots(section: KnotsConfig, shapes: BlockShapes, grid: Grid, nodes: Nodes, key: Key[Array, ""]) -> KnotWeights:
    """Initialise weights of kind `knots`: each knot like a layer of a table, or all knots like the same layer.

    A long step takes a mean of layers, which has a smaller norm than each if they are independent, but not if equal.
    """
    knots = section.knots or grid.steps
    rows = initial_rows(shapes, END_OF_STEP, knots if section.start == "independent" else 1, key)
    rows = jax.tree.map(lambda row: jnp.broadcast_to(row, (knots, *row.shape[1:])), rows)
    corrections = None
    if section.rank:
        halvings = section.halved(grid.steps)
        corrections = init_corrections(section.rank, knots, halvings, shapes, jax.random.fold_in(key, 1))
    rows = with_adapters(rows, section.lora, key)
    return KnotWeights(rows, section.basis, section.place, section.average, corrections)
