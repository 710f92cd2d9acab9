"""Where the weights come from: the sources that give a block's weights as functions of depth.

A source answers two questions. `at(times)`: the weights at any times, stacked on a leading axis. `table(steps, nodes)`:
the weights that a scheme needs on a grid of steps.
"""

import dataclasses
from functools import partial
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Key

from diffeqformer.config import LoRAConfig, ModelConfig, TimeConfig
from diffeqformer.errors import BadInput
from diffeqformer.nn.linear import Linear, LinearShape, Norm, NormShape
from diffeqformer.ode import grid
from diffeqformer.ode.field import Block, BlockShapes, BlockWeights
from diffeqformer.ode.grid import END_OF_STEP, Nodes
from diffeqformer.ode.lora import attach
from diffeqformer.ode.time_features import time_features
from diffeqformer.ode.time_networks import TimeLinear, TimeNetwork, TimeNorm
from diffeqformer.sharding import constrain_weights


@runtime_checkable
class WeightSource(Protocol):
    """Block weights as a function of depth."""

    def at(self, times: Any) -> BlockWeights:
        """Weights at `times` (shape (time,), in [0, 1]), stacked on a leading axis of the same length."""
        ...

    def table(self, steps: grid.Steps, nodes: Nodes = END_OF_STEP) -> BlockWeights:
        """Weights at all nodes of a grid of `steps` steps, on two leading axes (step, node).

        An axis of length 1 serves all steps, or all nodes of a step.
        """
        ...


class TimeWeights(eqx.Module):
    """DiffEqFormer's weights: smooth functions of depth, one small network for each matrix and norm (paper eq. 6)."""

    networks: Block[TimeLinear, TimeNorm]
    shared: TimeNetwork | None
    """The one MLP of all matrices and norms (paper, appendix D.2); none if each has its own."""
    time: TimeConfig = eqx.field(static=True)

    @staticmethod
    def init(shapes: BlockShapes, config: ModelConfig, key: Key[Array, ""]) -> "TimeWeights":
        """Time networks whose generated matrices start with the standard deviations of `shapes`."""
        features = time_features(grid.times(grid.with_first(config.steps, config.first_step)), config.time)
        one_for_all = config.weights == "time-shared-mlp"
        network = partial(TimeNetwork.init, features, config.time.d_emb)

        def unit(shape: LinearShape | NormShape, key: Array) -> TimeLinear | TimeNorm:
            if isinstance(shape, NormShape):
                return TimeNorm.init(shape, None if one_for_all else network(key), config.time.d_emb)
            network_key, own_key = jax.random.split(key)
            return TimeLinear.init(shape, None if one_for_all else network(network_key), config.time.d_emb, own_key)

        networks = jax.tree.map(unit, shapes, _keys(shapes, key), is_leaf=_is_shape)
        return TimeWeights(networks, network(jax.random.fold_in(key, 0)) if one_for_all else None, config.time)

    def at(self, times: Any) -> BlockWeights:
        """Weights at `times`; one matrix product for each matrix of the block, however many times there are."""
        return self._generate(self.networks, times)

    def table(self, steps: grid.Steps, nodes: Nodes = END_OF_STEP) -> BlockWeights:
        """Weights at all nodes of the grid, generated at once."""

        def half(networks: Any, nodes: tuple[float, ...]) -> Any:
            rows = self._generate(networks, grid.times(steps, nodes))
            return _unstack(rows, grid.number(steps), len(nodes))

        return Block(
            half(self.networks.attention, nodes.attention), half(self.networks.feed_forward, nodes.feed_forward)
        )

    def _generate(self, networks: Any, times: Any) -> Any:
        dtype = self.networks.attention.output.projection.dtype
        features = time_features(times, self.time, dtype)
        shared = None if self.shared is None else self.shared(features)
        is_unit = lambda node: isinstance(node, TimeLinear | TimeNorm)

        def at(unit: TimeLinear | TimeNorm) -> Linear | Norm:
            return unit.of(unit.network(features) if unit.network is not None else shared)  # pyright: ignore

        return constrain_weights(jax.tree.map(at, networks, is_leaf=is_unit))


class LayerWeights(eqx.Module):
    """A table of layers: vanilla transformers, and every populated model."""

    layers: BlockWeights
    """Rows of all layers, in order, on one leading axis."""
    nodes: Nodes | None = eqx.field(static=True, default=None)
    """The nodes that each layer has a row for; if none, a layer is one row, in force throughout its step."""
    first_step: float | None = eqx.field(static=True, default=None)
    """Length of the first step, if steps are unequal, as a fraction of depth."""

    @staticmethod
    def init(shapes: BlockShapes, config: ModelConfig, nodes: Nodes | None, key: Key[Array, ""]) -> "LayerWeights":
        """Normal matrices with the standard deviations of `shapes`; biases zero, norms one."""
        return LayerWeights(_init_rows(shapes, nodes or END_OF_STEP, config.steps, key), nodes, config.first_step)

    def adapted(self, lora: LoRAConfig, key: Key[Array, ""]) -> "LayerWeights":
        """The same with low-rank adapters beside the linear maps that `lora` names; they change nothing yet."""
        return dataclasses.replace(self, layers=attach(self.layers, lora, key))

    @property
    def depth(self) -> int:
        """Number of layers."""
        rows = self.layers.attention.norm.scale.shape[0]
        return rows // len((self.nodes or END_OF_STEP).attention)

    def at(self, times: Any) -> BlockWeights:
        """Weights in force at `times`: constant over each step, or those of the nearest node in it."""

        def half(layers: Any, nodes: tuple[float, ...]) -> Any:
            rows = grid.row_of(times, grid.with_first(self.depth, self.first_step), nodes)
            return jax.tree.map(lambda leaf: leaf[rows], layers)

        nodes = self.nodes or END_OF_STEP
        return Block(half(self.layers.attention, nodes.attention), half(self.layers.feed_forward, nodes.feed_forward))

    def table(self, steps: grid.Steps, nodes: Nodes = END_OF_STEP) -> BlockWeights:
        """The table itself.

        **Raises:** `BadInput` if `steps` is not the number of layers or the rows stand at other nodes: such a model has
        no weights in between.
        """
        steps = grid.number(steps)
        if steps != self.depth:
            raise BadInput(
                f"this model is a table of {self.depth} layers and cannot run at {steps} steps; "
                "only models with time-dependent or shared weights run at any depth."
            )
        if self.nodes not in (None, nodes):
            raise BadInput(
                f"this model is a table with rows at the nodes {tuple(self.nodes)} of each step, but the scheme needs "
                f"rows at {tuple(nodes)}; only models with time-dependent or shared weights run with any scheme."
            )
        own = self.nodes or END_OF_STEP
        return Block(
            _unstack(self.layers.attention, steps, len(own.attention)),
            _unstack(self.layers.feed_forward, steps, len(own.feed_forward)),
        )


class SharedWeights(eqx.Module):
    """The same weights at every depth (Zhong et al. 2022; ALBERT; Universal Transformer)."""

    row: BlockWeights

    @staticmethod
    def init(shapes: BlockShapes, key: Key[Array, ""]) -> "SharedWeights":
        """One row, with the standard deviations of `shapes`."""
        return SharedWeights(_init_rows(shapes, END_OF_STEP, 1, key))

    def at(self, times: Any) -> BlockWeights:
        """The weights, repeated once for each time."""
        return jax.tree.map(lambda leaf: jnp.repeat(leaf, len(times), 0), self.row)

    def table(self, steps: grid.Steps, nodes: Nodes = END_OF_STEP) -> BlockWeights:
        """One row, for all nodes of all steps."""
        return _unstack(self.row, 1, 1)


@partial(jax.jit, static_argnums=(1, 2, 3))
def written_out(source: WeightSource, steps: int, nodes: Nodes, first_step: float | None = None) -> LayerWeights:
    """The weights of a grid as a table of layers: a row a step if that is all the source gives, else a row a node."""
    table = source.table(grid.with_first(steps, first_step), nodes)

    def stack(leaf: Array) -> Array:
        whole = jnp.broadcast_to(leaf, (steps, *leaf.shape[1:]))
        return whole.reshape(-1, *leaf.shape[2:])

    rows = table.attention.norm.scale.shape[1], table.feed_forward.norm.scale.shape[1]
    return LayerWeights(jax.tree.map(stack, table), None if rows == (1, 1) else nodes, first_step)


def init_weights(shapes: BlockShapes, config: ModelConfig, nodes: Nodes, key: Key[Array, ""]) -> WeightSource:
    """A new weight source of the kind that a model config names; `nodes` are its scheme's."""
    if config.weights == "layer":
        weights = LayerWeights.init(shapes, config, nodes if config.layer_rows == "node" else None, key)
        return weights.adapted(config.lora, jax.random.fold_in(key, 0)) if config.adapted else weights
    if config.weights == "shared":
        return SharedWeights.init(shapes, key)
    return TimeWeights.init(shapes, config, key)


def _unstack(rows: Any, steps: int, nodes: int) -> Any:
    """One leading axis into two, (step, node)."""
    return jax.tree.map(lambda leaf: leaf.reshape(steps, nodes, *leaf.shape[1:]), rows)


def _is_shape(node: Any) -> bool:
    return isinstance(node, LinearShape | NormShape)


def _keys(shapes: BlockShapes, key: Array) -> Any:
    """A key of its own for every unit of a block."""
    units, structure = jax.tree.flatten(shapes, is_leaf=_is_shape)
    return jax.tree.unflatten(structure, list(jax.random.split(key, len(units))))


def _init_rows(shapes: BlockShapes, nodes: Nodes, layers: int, key: Array) -> BlockWeights:
    def half(shapes: Any, keys: Any, rows: int) -> Any:
        def unit(shape: LinearShape | NormShape, key: Array) -> Linear | Norm:
            if isinstance(shape, NormShape):
                return Norm(jnp.ones((rows, shape.width)), jnp.zeros((rows, shape.width)) if shape.shift else None)
            weight = shape.std * jax.random.normal(key, (rows, shape.inputs, shape.outputs))
            return Linear(weight, jnp.zeros((rows, shape.outputs)) if shape.bias else None)

        return jax.tree.map(unit, shapes, keys, is_leaf=_is_shape)

    keys = _keys(shapes, key)
    return Block(
        half(shapes.attention, keys.attention, layers * len(nodes.attention)),
        half(shapes.feed_forward, keys.feed_forward, layers * len(nodes.feed_forward)),
    )
