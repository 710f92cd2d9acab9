"""Counting the parameters and floating-point operations of a model config before anything is trained."""

import dataclasses
import math
from functools import lru_cache
from typing import NamedTuple

import equinox as eqx
import jax
from jaxtyping import PyTree

from diffeqformer.config import (
    GradientConfig,
    LayerConfig,
    LlamaConfig,
    ModelConfig,
    SchemeConfig,
    TimeConfig,
    validate_model,
)
from diffeqformer.model.build import abstract
from diffeqformer.model.transformer import Transformer
from diffeqformer.ode.lora import linear_maps


class Parameters(NamedTuple):
    """Parameter counts."""

    stored: int
    """Parameters that training holds and a checkpoint stores."""
    effective: int
    """Parameters left once the weights are populated for the trained number of steps and the adapters merged."""


class Flops(NamedTuple):
    """Floating-point operation counts; a multiply-add counts as two."""

    inference_per_token: float
    """One forward pass at full context; causal attention is counted over the mean number of visible positions."""
    training_per_token: float
    """Forward and backward pass without recomputation; the backward pass costs twice the forward pass."""
    generating_weights: float
    """Generating all weights of the grid from the time networks, with its backward pass, once per update."""


def count(tree: PyTree) -> int:
    """Count the entries of all arrays in a tree; shapes are enough."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def parameters(config: ModelConfig) -> Parameters:
    """Count the parameters of a model config, from its shapes alone.

    **Raises:** `BadInput` as `build`, such as for a config without a vocabulary size.
    """
    return parameters_of(abstract(config))


def parameters_of(model: Transformer) -> Parameters:
    """Count the parameters of a model; shapes are enough."""
    return Parameters(count(model), count(eqx.filter_eval_shape(lambda m: m.populate().merge(), model)))


def flops(config: ModelConfig) -> Flops:
    """Count the floating-point operations of a model config.

    Each entry of a matrix costs 2 operations per token and evaluation of its half of the field; attention costs
    `4 heads x head width` per token, visible position and evaluation. Generating a weight costs `2 d_emb`. Adaptive
    steps are counted as `config.steps` fixed ones, adapters as merged.

    **Raises:** `BadInput` as `build`.
    """
    return _flops(validate_model(config))


@lru_cache
def _flops(config: ModelConfig) -> Flops:
    model = abstract(config)
    block, evaluations = model.field.shapes(), model.scheme.evaluations.times(config.steps)
    visible = (config.context + 1) / 2
    attention = evaluations.attention * (_matrices(block.attention) + 4 * config.heads * config.head_width * visible)
    feed_forward = evaluations.feed_forward * _matrices(block.feed_forward)
    inference = attention + feed_forward + _unembedding(model)
    generated = 0
    if isinstance(config.weights, TimeConfig):
        entries = count(eqx.filter_eval_shape(lambda m: m.populate(), model).weights)
        # 3: the backward pass costs twice the forward pass.
        generated = 3 * 2 * config.weights.d_emb * entries
    return Flops(inference, 3 * inference, generated)


@lru_cache
def update_operations(config: ModelConfig, sequences: int, readings: int = 1) -> float:
    """Count the floating-point operations of an update on `sequences` sequences.

    Weights are generated once per update. A pass that is read at several depths has that many `readings`, each with an
    unembedding.
    """
    found, more = flops(config), 3 * (readings - 1) * _unembedding(abstract(config))
    return sequences * config.context * (found.training_per_token + more) + found.generating_weights


def _unembedding(model: Transformer) -> int:
    """Count the operations per token of the logits."""
    return 2 * math.prod((model.embedding.tokens if model.head is None else model.head).shape)


def _matrices(shapes: PyTree) -> int:
    """Count the operations per token of the matrices in half a block."""
    return sum(2 * unit.inputs * unit.outputs for unit in linear_maps(shapes).values())


def vanilla_twin(config: ModelConfig) -> ModelConfig:
    """Return the vanilla transformer with the same field and sizes: a table of layers, Lie-Trotter steps of 1.

    **Raises:** `BadInput` if a setting is invalid.
    """
    config = validate_model(config)
    own = config.field
    # What the authors' Llama has, and a vanilla one has not.
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
    """Return the d_emb below which generated weights have fewer degrees of freedom over the grid than a table.

    `W(t_l) = P h(t_l) + C` spans at most d_emb + 1 directions, so the matrices at the L times of the trained grid can
    be independent of each other only from d_emb = L - 1 on.
    """
    model = abstract(config)
    # The end of a step and the start of the next are the same time.
    times = max(len(set(model.grid().times(nodes))) for nodes in model.scheme.nodes)
    return max(times - 1, 1)
