"""Counting: parameters, floating-point operations and memory of a model config, before anything is trained."""

import dataclasses
import math
from typing import Any, NamedTuple

import equinox as eqx
import jax

from diffeqformer.config import LoRAConfig, ModelConfig, ReversibleConfig, TimeConfig, ToleranceConfig
from diffeqformer.model.build import abstract
from diffeqformer.nn.linear import LinearShape, NormShape
from diffeqformer.ode import grid
from diffeqformer.ode.field import field_of
from diffeqformer.ode.schemes import scheme_of
from diffeqformer.ode.weights import TimeWeights


class Parameters(NamedTuple):
    """Numbers of parameters."""

    stored: int
    """What training holds and a checkpoint stores."""
    effective: int
    """What remains once the weights are written out for the trained number of steps, adapters merged."""


class Flops(NamedTuple):
    """Floating-point operations; a multiplication and an addition are two."""

    inference_per_token: float
    """One forward pass at full context, causal attention counted over the mean number of visible positions."""
    training_per_token: float
    """Forward and backward pass; the backward pass costs twice the forward one. Without recomputation."""
    generating_weights: float
    """Generating all weights of the grid from the time networks and its backward pass, once an update."""


def count(tree: Any) -> int:
    """Number of entries of all arrays of a tree; shapes are enough."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def parameters(config: ModelConfig) -> Parameters:
    """Parameters of a model config, from its shapes alone."""
    model = abstract(config)
    return Parameters(count(model), count(eqx.filter_eval_shape(lambda m: m.populate().merge(), model)))


def flops(config: ModelConfig) -> Flops:
    """Floating-point operations of a model config.

    Each entry of a matrix costs 2 operations a token and evaluation of its half of the field; attention costs `4 width`
    a token, visible position and evaluation. Generating a weight costs `2 d_emb`. Adaptive steps are counted as
    `config.steps` fixed ones, adapters as merged.
    """
    model = abstract(config)
    block, evaluations = field_of(config).shapes(config), scheme_of(config).evaluations.times(config.steps)
    visible = (config.context + 1) / 2
    attention = evaluations.attention * (_matrices(block.attention) + 4 * config.width * visible)
    feed_forward = evaluations.feed_forward * _matrices(block.feed_forward)
    unembedding = 2 * math.prod((model.embedding.tokens if model.head is None else model.head).shape)
    inference = attention + feed_forward + unembedding
    generated = 0
    if isinstance(model.weights, TimeWeights):
        generated = count(eqx.filter_eval_shape(lambda m: m.populate(), model).weights)
    return Flops(inference, 3 * inference, 3 * 2 * config.time.d_emb * generated)


def _matrices(shapes: Any) -> int:
    """Operations a token of the matrices of half a block."""
    is_shape = lambda node: isinstance(node, LinearShape | NormShape)
    units = jax.tree.leaves(shapes, is_leaf=is_shape)
    return sum(2 * unit.inputs * unit.outputs for unit in units if isinstance(unit, LinearShape))


def vanilla_twin(config: ModelConfig) -> ModelConfig:
    """The vanilla transformer of the same family and sizes: a row a layer, Lie-Trotter steps of 1, norms not nested."""
    return dataclasses.replace(
        config,
        weights="layer",
        layer_rows="step",
        time=TimeConfig(highest_frequency=TimeConfig().fastest),  # as `validate` leaves it
        lora=LoRAConfig(),
        scheme="lie-trotter",
        reversible=ReversibleConfig(),
        tolerance=ToleranceConfig(),
        horizon="steps",
        first_step=None,
        gradient=None if config.gradient == "reversible" else config.gradient,
        nested_norm=False,
    )


def smallest_useful_d_emb(config: ModelConfig) -> int:
    """The d_emb below which generated weights have fewer degrees of freedom over the grid than a table has.

    `W(t_l) = P h(t_l) + C` spans at most d_emb + 1 directions, so the matrices at the L times of the trained grid are
    free of each other from d_emb = L - 1 on.
    """
    steps = grid.with_first(config.steps, config.first_step)
    times = max(len(set(grid.times(steps, nodes))) for nodes in scheme_of(config).nodes)
    return max(times - 1, 1)
