"""Counting: parameters, floating-point operations and memory of a model config, before anything is trained."""

import dataclasses
import math
from functools import lru_cache
from typing import NamedTuple

import equinox as eqx
import jax
from jaxtyping import PyTree

from diffeqformer.config import GradientConfig, LayerConfig, LlamaConfig, ModelConfig, SchemeConfig, TimeConfig
from diffeqformer.model.build import abstract
from diffeqformer.model.transformer import Transformer
from diffeqformer.ode.lora import linear_maps


class Parameters(NamedTuple):
    """Numbers of parameters."""

    stored: int
    """What training holds and a checkpoint stores."""
    effective: int
    """What remains once the weights are populated for the trained number of steps, adapters merged."""


class Flops(NamedTuple):
    """Floating-point operations; a multiplication and an addition are two."""

    inference_per_token: float
    """One forward pass at full context, causal attention counted over the mean number of visible positions."""
    training_per_token: float
    """Forward and backward pass; the backward pass costs twice the forward one. Without recomputation."""
    generating_weights: float
    """Generating all weights of the grid from the time networks and its backward pass, once per update."""


def count(tree: PyTree) -> int:
    """Number of entries of all arrays of a tree; shapes are enough."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def parameters(config: ModelConfig) -> Parameters:
    """Parameters of a model config, from its shapes alone."""
    return parameters_of(abstract(config))


def parameters_of(model: Transformer) -> Parameters:
    """Parameters of a model; shapes are enough."""
    return Parameters(count(model), count(eqx.filter_eval_shape(lambda m: m.populate().merge(), model)))


@lru_cache
def flops(config: ModelConfig) -> Flops:
    """Floating-point operations of a model config.

    Each entry of a matrix costs 2 operations per token and evaluation of its half of the field; attention costs
    `4 heads x head width` per token, visible position and evaluation. Generating a weight costs `2 d_emb`. Adaptive
    steps are counted as `config.steps` fixed ones, adapters as merged.
    """
    model = abstract(config)
    block, evaluations = model.field.shapes(), model.scheme.evaluations.times(config.steps)
    visible = (config.context + 1) / 2
    attention = evaluations.attention * (_matrices(block.attention) + 4 * config.heads * config.head_width * visible)
    feed_forward = evaluations.feed_forward * _matrices(block.feed_forward)
    inference = attention + feed_forward + _unembedding(model)
    generated = 0
    if isinstance(config.weights, TimeConfig):
        entries = count(eqx.filter_eval_shape(lambda m: m.populate(), model).weights)
        # 3: the backward pass costs twice the forward one.
        generated = 3 * 2 * config.weights.d_emb * entries
    return Flops(inference, 3 * inference, generated)


@lru_cache
def update_operations(config: ModelConfig, sequences: int, readings: int = 1) -> float:
    """Floating-point operations of an update on that many sequences; weights are generated once in it.

    A pass that is read at several depths has as many readings, each with an unembedding.
    """
    found, more = flops(config), 3 * (readings - 1) * _unembedding(abstract(config))
    return sequences * config.context * (found.training_per_token + more) + found.generating_weights


def _unembedding(model: Transformer) -> int:
    """Operations per token of the logits."""
    return 2 * math.prod((model.embedding.tokens if model.head is None else model.head).shape)


def _matrices(shapes: PyTree) -> int:
    """Operations per token of the matrices of half a block."""
    return sum(2 * unit.inputs * unit.outputs for unit in linear_maps(shapes).values())


def vanilla_twin(config: ModelConfig) -> ModelConfig:
    """The vanilla transformer of the same field and sizes: a table of layers, Lie-Trotter steps of 1."""
    own = config.field
    usual = {"nested_norm": False, "norm_shift": False, "final_norm_epsilon": None}
    return dataclasses.replace(
        config,
        weights=LayerConfig(),
        modulation=None,
        final_norm_halvings=None,
        embedding_norm=False,
        field=dataclasses.replace(own, **usual) if isinstance(own, LlamaConfig) else own,
        scheme=SchemeConfig("lie-trotter"),
        gradient=None if config.gradient == GradientConfig("reversible") else config.gradient,
        tolerance=None,
        horizon="steps",
        first_step=None,
        spacing="equal",
        edges=(),
    )


def smallest_useful_d_emb(config: ModelConfig) -> int:
    """The d_emb below which generated weights have fewer degrees of freedom over the grid than a table has.

    `W(t_l) = P h(t_l) + C` spans at most d_emb + 1 directions, so the matrices at the L times of the trained grid are
    free of each other from d_emb = L - 1 on.
    """
    model = abstract(config)
    # The end of a step and the start of the next are one time.
    times = max(len(set(model.grid().times(nodes))) for nodes in model.scheme.nodes)
    return max(times - 1, 1)
