"""DiffEqFormer's weights: smooth functions of depth."""

from functools import partial

import equinox as eqx
import jax
from jax import Array
from jaxtyping import Float, Key, PyTree

from diffeqformer.config import TimeConfig
from diffeqformer.nn.linear import LinearShape, NormShape
from diffeqformer.ode.field import Block, BlockShapes, BlockWeights
from diffeqformer.ode.grid import END_OF_STEP, Grid, Nodes, Times
from diffeqformer.ode.weights.source import by_half, is_shape, unit_keys, unstack
from diffeqformer.ode.weights.time_features import time_features
from diffeqformer.ode.weights.time_networks import TimeLinear, TimeNetwork, TimeNorm
from diffeqformer.sharding import constrain_weights


class TimeWeights(eqx.Module):
    """DiffEqFormer's weights: smooth functions of depth, one small network for each matrix and norm (paper eq. 6)."""

    networks: Block[TimeLinear, TimeNorm]
    shared: TimeNetwork | None
    """The MLP that all matrices and norms share (paper, appendix D.2); `None` if each has its own."""
    time: TimeConfig = eqx.field(static=True)

    def at(self, times: Times) -> BlockWeights:
        """Weights at `times`, by one matrix product for each matrix of the block, however many times there are."""
        return _generated(self.networks, self.shared, self._features(times))

    def table(self, grid: Grid, nodes: Nodes = END_OF_STEP) -> BlockWeights:
        """Weights at all nodes of the grid, generated at once."""

        def half(networks: PyTree, nodes: tuple[float, ...]) -> PyTree:
            rows = _generated(networks, self.shared, self._features(grid.times(nodes)))
            return unstack(rows, grid.steps, len(nodes))

        return by_half(half, nodes, self.networks)

    def codes(self, grid: Grid, nodes: Nodes = END_OF_STEP) -> Block[Array, Array]:
        """`h` of every matrix and norm at all nodes of the grid, shape (step x node, d_emb)."""
        half = lambda networks, nodes: _codes(networks, self.shared, self._features(grid.times(nodes)))
        return by_half(half, nodes, self.networks)

    def _features(self, times: Times) -> Float[Array, "time features"]:
        return time_features(times, self.time, self.networks.attention.output.projection.dtype)


def is_time_unit(node: PyTree) -> bool:
    """Whether a node of the tree is the unit of one matrix or norm."""
    return isinstance(node, TimeLinear | TimeNorm)


def is_of_time(node: PyTree) -> bool:
    """Whether a node of the tree is such a unit, or the network that all units share."""
    return is_time_unit(node) or isinstance(node, TimeNetwork)


def _codes(networks: PyTree, shared: TimeNetwork | None, features: Float[Array, "time features"]) -> PyTree:
    h = None if shared is None else shared(features)
    own = lambda unit: h if unit.network is None else unit.network(features)
    return jax.tree.map(own, networks, is_leaf=is_time_unit)


@jax.jit
def _generated(networks: PyTree, shared: TimeNetwork | None, features: Float[Array, "time features"]) -> PyTree:
    """Generate weights from networks, compiled even where the caller is not: other times need no new program."""
    of = lambda unit, h: unit.of(h)
    # In float32 on GPUs too, whose default is TensorFloat-32: a lifted model then equals the one it was lifted from.
    with jax.default_matmul_precision("highest"):
        return constrain_weights(jax.tree.map(of, networks, _codes(networks, shared, features), is_leaf=is_time_unit))


def init_time(section: TimeConfig, shapes: BlockShapes, grid: Grid, nodes: Nodes, key: Key[Array, ""]) -> TimeWeights:
    """Initialise weights of kind `time` or `time-shared-mlp`, on `grid` with the standard deviations of `shapes`."""
    one_for_all, d_emb = section.kind == "time-shared-mlp", section.d_emb
    # At the ends of steps, whatever the scheme's nodes: h has length 1 there, and all schemes start alike.
    network = partial(TimeNetwork.init, time_features(grid.times(), section), d_emb)

    def unit(shape: LinearShape | NormShape, key: Array) -> TimeLinear | TimeNorm:
        if isinstance(shape, NormShape):
            return TimeNorm.init(shape, None if one_for_all else network(key), d_emb)
        network_key, own_key = jax.random.split(key)
        return TimeLinear.init(shape, None if one_for_all else network(network_key), d_emb, own_key)

    networks = jax.tree.map(unit, shapes, unit_keys(shapes, key), is_leaf=is_shape)
    return TimeWeights(networks, network(jax.random.fold_in(key, 0)) if one_for_all else None, section)
