"""Where the weights come from: the sources that give a block's weights as functions of depth.

A source answers two questions. `at(times)`: the weights at any times, stacked on a leading axis. `table(steps, nodes)`:
the weights that a grid of steps needs, in order; a table of one row serves every step.
"""

from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Key

from diffeqformer.config import ModelConfig, TimeConfig
from diffeqformer.errors import BadInput
from diffeqformer.nn.linear import Linear, LinearShape, Norm, NormShape
from diffeqformer.ode import grid
from diffeqformer.ode.field import Block, BlockShapes, BlockWeights
from diffeqformer.ode.time_features import time_features
from diffeqformer.ode.time_networks import TimeLinear, TimeNorm


@runtime_checkable
class WeightSource(Protocol):
    """Block weights as a function of depth."""

    def at(self, times: Any) -> BlockWeights:
        """Weights at `times` (shape (time,), in [0, 1]), stacked on a leading axis of the same length."""
        ...

    def table(self, steps: int, nodes: tuple[float, ...] = grid.END_OF_STEP) -> BlockWeights:
        """Weights at all nodes of a grid of `steps` steps, in order; or one row if they are the same everywhere."""
        ...


class TimeWeights(eqx.Module):
    """DiffEqFormer's weights: smooth functions of depth, one small network for each matrix and norm (paper eq. 6)."""

    networks: Block[TimeLinear, TimeNorm]
    time: TimeConfig = eqx.field(static=True)

    @staticmethod
    def init(shapes: BlockShapes, config: ModelConfig, key: Key[Array, ""]) -> "TimeWeights":
        """Time networks whose generated matrices start with the standard deviations of `shapes`."""
        features = time_features(grid.times(config.steps), config.time)

        def unit(shape: LinearShape | NormShape, key: Array) -> TimeLinear | TimeNorm:
            if isinstance(shape, LinearShape):
                return TimeLinear.init(shape, features, config.time.d_emb, key)
            return TimeNorm.init(shape, features, config.time.d_emb, key)

        return TimeWeights(_map_with_keys(unit, shapes, key), config.time)

    def at(self, times: Any) -> BlockWeights:
        """Weights at `times`; one matrix product for each matrix of the block, however many times there are."""
        dtype = self.networks.attention.output.projection.dtype
        features = time_features(times, self.time, dtype)
        is_unit = lambda node: isinstance(node, TimeLinear | TimeNorm)
        return jax.tree.map(lambda unit: unit.at(features), self.networks, is_leaf=is_unit)

    def table(self, steps: int, nodes: tuple[float, ...] = grid.END_OF_STEP) -> BlockWeights:
        """Weights at all nodes of the grid, generated at once."""
        return self.at(grid.times(steps, nodes))


class LayerWeights(eqx.Module):
    """A table with a row a layer: vanilla transformers, and every populated model."""

    layers: BlockWeights

    @staticmethod
    def init(shapes: BlockShapes, layers: int, key: Key[Array, ""]) -> "LayerWeights":
        """Normal matrices with the standard deviations of `shapes`; biases zero, norms one."""
        return LayerWeights(_init_rows(shapes, layers, key))

    @property
    def depth(self) -> int:
        """Number of layers."""
        return self.layers.attention.norm.scale.shape[0]

    def at(self, times: Any) -> BlockWeights:
        """Weights in force at `times`: constant over each step."""
        rows = grid.layer_of(times, self.depth)
        return jax.tree.map(lambda leaf: leaf[rows], self.layers)

    def table(self, steps: int, nodes: tuple[float, ...] = grid.END_OF_STEP) -> BlockWeights:
        """The table itself.

        **Raises:** `BadInput` if `steps` is not the number of layers: such a model has no weights in between.
        """
        if steps != self.depth:
            raise BadInput(
                f"this model is a table of {self.depth} layers and cannot run at {steps} steps; "
                "only models with time-dependent or shared weights run at any depth."
            )
        return self.layers if len(nodes) == 1 else jax.tree.map(lambda x: jnp.repeat(x, len(nodes), 0), self.layers)


class SharedWeights(eqx.Module):
    """The same weights at every depth (Zhong et al. 2022; ALBERT; Universal Transformer)."""

    row: BlockWeights

    @staticmethod
    def init(shapes: BlockShapes, key: Key[Array, ""]) -> "SharedWeights":
        """One row, with the standard deviations of `shapes`."""
        return SharedWeights(_init_rows(shapes, 1, key))

    def at(self, times: Any) -> BlockWeights:
        """The weights, repeated once for each time."""
        return jax.tree.map(lambda leaf: jnp.repeat(leaf, len(times), 0), self.row)

    def table(self, steps: int, nodes: tuple[float, ...] = grid.END_OF_STEP) -> BlockWeights:
        """One row, for all steps."""
        return self.row


def init_weights(shapes: BlockShapes, config: ModelConfig, key: Key[Array, ""]) -> WeightSource:
    """A new weight source of the kind that a model config names."""
    if config.weights == "time":
        return TimeWeights.init(shapes, config, key)
    if config.weights == "layer":
        return LayerWeights.init(shapes, config.steps, key)
    return SharedWeights.init(shapes, key)


def _is_shape(node: Any) -> bool:
    return isinstance(node, LinearShape | NormShape)


def _map_with_keys(function: Any, shapes: BlockShapes, key: Array) -> Any:
    """`function(shape, key)` for every unit of a block, with keys of its own."""
    units, structure = jax.tree.flatten(shapes, is_leaf=_is_shape)
    return jax.tree.unflatten(structure, list(map(function, units, jax.random.split(key, len(units)))))


def _init_rows(shapes: BlockShapes, rows: int, key: Array) -> BlockWeights:
    def unit(shape: LinearShape | NormShape, key: Array) -> Linear | Norm:
        if isinstance(shape, NormShape):
            return Norm(jnp.ones((rows, shape.width)), jnp.zeros((rows, shape.width)) if shape.shift else None)
        weight = shape.std * jax.random.normal(key, (rows, shape.inputs, shape.outputs))
        return Linear(weight, jnp.zeros((rows, shape.outputs)) if shape.bias else None)

    return _map_with_keys(unit, shapes, key)
