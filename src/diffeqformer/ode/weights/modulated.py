"""Norms and gains that depend on the length of the step, so that one set of matrices serves long and short steps.

In a step of length h, a fraction of depth, at the time t,

    scale(t, h) = scale(t) (1 + s(t, h)),    shift(t, h) = shift(t) + b(t, h),    W_out(t, h) = W_out(t) (1 + g(t, h)),

with s and b for the norm of each half of the block (b if the norm has a shift), and g for each channel of what that
half adds to the state. All are sums of hat functions, `sum_mj B_m(t) C_j(log2 1/h) S_mj`, with B_m over depth as in
`knots`, and C_j with its knot at h = 2^-j. Steps below the shortest knot are treated as if at that knot, so that
weights converge as steps are added; `at(t)` is that limit. All S start at zero.

Sources: conditioning on time and step length, Frans et al. 2024 (shortcut models, arXiv:2410.12557) and LoopFormer
(arXiv:2602.11451; `shared` weights with this are its kind of model); separate norms for every size of a network, Yu
et al. 2019 (slimmable networks, arXiv:1812.08928).
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from diffeqformer.config import ModulationConfig
from diffeqformer.nn.linear import Linear, Norm, NormShape, zeros
from diffeqformer.ode.field import Block, BlockShapes, BlockWeights
from diffeqformer.ode.grid import END_OF_STEP, Grid, Nodes, Times
from diffeqformer.ode.weights.knots import cardinal_basis
from diffeqformer.ode.weights.lengths import length_basis
from diffeqformer.ode.weights.source import WeightSource, stacked, unstack


class Change(eqx.Module):
    """Change of one half of the block, as arrays of shape (knot, length, width)."""

    norm: Norm
    gain: Norm
    """Change of the gain; a scale alone."""


class ModulatedWeights(eqx.Module):
    """Another source's weights, whose norms and gains also depend on the length of the step."""

    base: WeightSource
    attention: Change
    feed_forward: Change

    def at(self, times: Times) -> BlockWeights:
        """Weights at `times` in the limit of short steps."""
        rows, shortest = self.base.at(times), np.zeros(len(times))
        return Block(
            _changed(rows.attention, "output", self.attention, times, shortest),
            _changed(rows.feed_forward, "down", self.feed_forward, times, shortest),
        )

    def table(self, grid: Grid, nodes: Nodes = END_OF_STEP) -> BlockWeights:
        """Weights at all nodes of the grid, modulated by the length of each step."""
        table = self.base.table(grid, nodes)

        def half(rows: PyTree, out: str, change: Change, own: tuple[float, ...]) -> PyTree:
            lengths = jnp.repeat(jnp.asarray(grid.lengths), len(own))
            changed = _changed(stacked(rows, grid.steps, len(own)), out, change, grid.times(own), lengths)
            return unstack(changed, grid.steps, len(own))

        return Block(
            half(table.attention, "output", self.attention, nodes.attention),
            half(table.feed_forward, "down", self.feed_forward, nodes.feed_forward),
        )


def _changed(rows: PyTree, out: str, change: Change, times: Times, lengths: Times) -> PyTree:
    """Modulate half of a block at `times`, in steps of `lengths` (0 for the limit); `out` is its last linear map."""
    scale = change.gain.scale
    knots, shortest = scale.shape[:2]
    over_depth = cardinal_basis(times, knots, dtype=scale.dtype)
    over_length = length_basis(lengths, shortest, scale.dtype)
    # Not in TensorFloat-32, here and below.
    mixed = lambda part: jnp.einsum("tm,tj,mjw->tw", over_depth, over_length, part, precision="highest")
    g, last = mixed(change.gain.scale), getattr(rows, out)
    norm = _changed_norm(rows.norm, jax.tree.map(mixed, change.norm))
    last = Linear(last.weight * (1 + g)[:, None, :], None if last.bias is None else last.bias * (1 + g))
    return dataclasses.replace(rows, norm=norm, **{out: last})


def _changed_norm(norm: Norm, change: Norm) -> Norm:
    shift = norm.shift
    if shift is not None and change.shift is not None:
        shift = shift + change.shift
    return Norm(norm.scale * (1 + change.scale), shift)


def norm_of_length(norm: Norm, changes: Norm, length: float) -> Norm:
    """Modulate a norm for steps of a given length: its scale times `1 + s(h)`, its shift plus `b(h)`.

    **Arguments:** `changes`, arrays of shape (length, width); `length`, a fraction of depth.
    """
    (basis,) = length_basis(np.array([length]), changes.scale.shape[0], changes.scale.dtype)
    mixed = lambda part: jnp.tensordot(basis, part, 1, precision="highest")
    return _changed_norm(norm, jax.tree.map(mixed, changes))


def init_norm_changes(norm: NormShape, *knots: int) -> Norm:
    """Initialise zero changes of a norm, with an axis for each number of `knots`, such as over the length of steps."""
    shape = *knots, norm.width
    return Norm(zeros(shape), zeros(shape) if norm.shift else None)


def init_modulated(section: ModulationConfig, base: WeightSource, shapes: BlockShapes, steps: int) -> ModulatedWeights:
    """Initialise a source whose weights do not depend on the step's length yet.

    **Arguments:** `base`; `shapes` of a block; `steps` of training, the number of knots over depth if the section sets
    none.
    """
    knots = section.knots or steps, section.halvings + 1
    none = lambda norm: init_norm_changes(norm, *knots)
    change = lambda norm: Change(none(norm), none(norm._replace(shift=False)))
    return ModulatedWeights(base, change(shapes.attention.norm), change(shapes.feed_forward.norm))
