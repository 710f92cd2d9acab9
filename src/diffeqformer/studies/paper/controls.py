"""Controls for what makes time-dependent weights good: one property of theirs at a time, in models without the others.

`free_rows` and `faster_table` serve as `build` for `train`, and `RepeatedTokens` as its batches.
"""

import equinox as eqx
import jax
import numpy as np
from jax import Array
from jaxtyping import Float, Int32, Key

from diffeqformer.config import Config, ModelConfig
from diffeqformer.data.cache import TokenCache
from diffeqformer.data.tokenizer import ordinary
from diffeqformer.model.build import build
from diffeqformer.model.transformer import Transformer
from diffeqformer.ode.field import BlockWeights
from diffeqformer.ode.grid import END_OF_STEP, Grid, Nodes, Times
from diffeqformer.ode.weights import WeightSource
from diffeqformer.ode.weights.time_features import time_features
from diffeqformer.ode.weights.time_networks import TimeNetwork


class FreeRows(eqx.Module):
    """One free row `h_l` per step in place of `h(t)`, whatever the time."""

    rows: Float[Array, "step d_emb"]

    def __call__(self, features: Float[Array, "step features"]) -> Float[Array, "step d_emb"]:
        return self.rows


class Scaled(eqx.Module):
    """`W = s V`, with V from another source: an update that moves V by the learning rate moves W by s times as much."""

    source: WeightSource
    scale: float = eqx.field(static=True)

    def at(self, times: Times) -> BlockWeights:
        """Weights at `times`."""
        return jax.tree.map(lambda weight: self.scale * weight, self.source.at(times))

    def table(self, grid: Grid, nodes: Nodes = END_OF_STEP) -> BlockWeights:
        """Weights at all nodes of the grid."""
        return jax.tree.map(lambda weight: self.scale * weight, self.source.table(grid, nodes))


def free_rows(config: ModelConfig, key: Key[Array, ""]) -> Transformer:
    """Build a table of layers written as `W_l = P h_l + C`: as many parameters in P and C as time-dependent weights
    have, and the same model at the start, but nothing that makes neighbouring steps alike."""
    model = build(config, key)
    features = time_features(model.grid().times(), config.weights)  # pyright: ignore[reportArgumentType]
    is_network = lambda node: isinstance(node, TimeNetwork)
    free = lambda node: FreeRows(node(features)) if is_network(node) else node
    return eqx.tree_at(lambda model: model.weights, model, jax.tree.map(free, model.weights, is_leaf=is_network))


def faster_table(config: ModelConfig, key: Key[Array, ""]) -> Transformer:
    """Build a table of layers, the same model at the start, whose weights the optimiser moves `config.steps` times as
    fast: as fast as time-dependent weights with `h` of length 1, without their smoothness or their parameters."""
    model = build(config, key)
    # Adam's updates do not scale with the gradient: V moves at the usual speed, W = s V at s times that.
    table = jax.tree.map(lambda weight: weight / config.steps, model.weights)
    return build(config, key, weights=Scaled(table, float(config.steps)))


class RepeatedTokens:
    """Batches of repeated random tokens, which nothing but an induction head predicts.

    A sequence repeats its first tokens to its end: 6 of them to 3/8 of the context, each drawn at most once, and anew
    for every sequence.
    """

    def __init__(self, config: Config, tokens: TokenCache):
        t = config.trainer
        self.seed, self.shape = t.seed, (t.batch_size, config.model.context + 1)
        self.tokens = ordinary(tokens.tokenizer)

    def __getitem__(self, k: int) -> Int32[np.ndarray, "batch window"]:
        draw, (rows, length) = np.random.default_rng([self.seed, k]), self.shape
        periods = draw.integers(6, max(7, 3 * length // 8), rows)
        return np.stack(
            [np.resize(draw.choice(self.tokens, period, replace=False), length) for period in periods]
        ).astype(np.int32)
