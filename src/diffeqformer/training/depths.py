"""The depths that each update trains at, and their cost."""

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from diffeqformer.config import Config, LayerDropConfig, with_steps
from diffeqformer.model.count import flops, update_operations

GOLDEN = (5**0.5 - 1) / 2


class Pass(NamedTuple):
    """A forward pass of an update, with its backward pass."""

    steps: int
    sequences: int
    readings: int = 1
    """Number of depths at which the pass is read."""


def depth_of_update(config: Config) -> Callable[[int], int | None]:
    """Return a function that gives the number of steps of update k (from 0), or `None` if no depth is drawn.

    The inverse of the depths' cumulative distribution maps `u_k = u_0 + k (sqrt 5 - 1) / 2 mod 1`, with `u_0` from the
    run's key, to a depth. Every stretch of updates thus has its depths in almost the right proportions, and runs with
    other seeds cost the same; independent draws would differ by the square root of their number.

    Source: the additive recurrence of lowest discrepancy (Kuipers & Niederreiter 1974, Uniform Distribution of
    Sequences, section 2.3).
    """
    if not config.depth.drawn:
        return lambda update: None
    draws = _draws(config)
    return lambda update: int(draws(np.asarray(update)))


def _draws(config: Config) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that gives the depths of many updates."""
    depths, shares = np.asarray(config.depth.drawn), np.asarray(config.depth.shares)
    ends = np.cumsum(shares) / shares.sum()
    # Random stream 2 of the run; `initial_state` (training/update.py) lists all streams.
    key = jax.random.fold_in(jax.random.key(config.trainer.seed), 2)
    start = float(jax.random.uniform(key, dtype=jax.numpy.float32))  # the same depths with JAX_ENABLE_X64
    shallow = config.depth.shallow_fraction * config.trainer.updates
    # Without the last end, which rounding may leave below 1: the index would then be out of range.
    drawn = lambda updates: depths[np.searchsorted(ends[:-1], (start + updates * GOLDEN) % 1.0, side="right")]
    return lambda updates: np.where(updates < shallow, depths.min(), drawn(updates))


def trained_depths(config: Config, drawn: int | None) -> tuple[tuple[int, int], ...]:
    """Return the numbers of steps that an update trains at, deepest first, each with its number of sequences.

    Each depth has the whole batch, except with `depth.together: rows`, where the depths share the batch by largest
    remainders, with at least one sequence each. `drawn` is the depth drawn, if any.

    Source: Balinski & Young 1982, Fair Representation (Hamilton's method).
    """
    batch, parts = config.trainer.batch_size, config.trainer.accumulation
    if config.depth.together == "rows":
        depths = dict(sorted(zip(config.depth.depths, config.depth.shares, strict=True), reverse=True))
        # Divided within one accumulated part: all parts are alike, so that one program loops over them.
        exact = np.asarray([*depths.values()]) / sum(depths.values()) * (batch // parts)
        rows = np.maximum(exact.astype(int), 1)
        while rows.sum() < batch // parts:
            rows[(exact - rows).argmax()] += 1
        while rows.sum() > batch // parts:  # some depths have one row instead of none
            rows[np.where(rows > 1, rows - exact, -np.inf).argmax()] -= 1
        return tuple(zip(depths, (rows * parts).tolist(), strict=True))
    own = config.model.steps if drawn is None else drawn
    return tuple((depth, batch) for depth in sorted({own, *config.depth.always}, reverse=True))


def passes(config: Config, drawn: int | None) -> tuple[Pass, ...]:
    """Return the passes of an update, one for each of `trained_depths`.

    With early exits, only the deepest depth has a pass, which is read at all depths. If each depth has last layers of
    its own, each other depth adds a pass through these layers.
    """
    depths, weights = trained_depths(config, drawn), config.model.weights
    if not config.model.early_exits or config.depth.together == "rows" or config.depth.jitter:
        return tuple(Pass(*depth) for depth in depths)
    if isinstance(weights, LayerDropConfig) and weights.landings:
        return Pass(*depths[0]), *(Pass(min(steps, weights.landings), rows) for steps, rows in depths[1:])
    return (Pass(*depths[0], readings=len(depths)),)


def largest_drawn(config: Config) -> int | None:
    """Return the drawn number of steps whose update takes the most compute, then has the most readings.

    Depths of `depth.always` are included; `None` if no depth is drawn.
    """

    def taken(drawn: int) -> tuple[int, int, int]:
        run = passes(config, drawn)
        return sum(one.steps * one.sequences for one in run), sum(one.readings for one in run), drawn

    return max(config.depth.drawn, key=taken, default=None)


def compute_of(config: Config) -> int:
    """Count the depth steps over all updates of a run: its compute, in NFE (field evaluations) on an update's tokens.

    Exact for schemes that evaluate the field once per step.
    """
    steps = sum(n * one.steps * one.sequences for drawn, n in _times(config).items() for one in passes(config, drawn))
    return round(steps / config.trainer.batch_size)


def mean_operations(config: Config) -> tuple[float, float]:
    """Return the mean floating-point operations of an update: without generating weights, and for generating them.

    Means are over a run's updates, as `update_operations` counts them, without a forward pass of `depth.teacher`.
    """

    def of(one: Pass) -> tuple[float, float]:
        model = with_steps(config.model, one.steps)
        generating = float(flops(model).generating_weights)
        return update_operations(model, one.sequences, one.readings) - generating, generating

    found = np.zeros(2)
    for drawn, n in _times(config).items():
        found += n * np.sum([of(one) for one in passes(config, drawn)], axis=0)
    training, generating = (found / config.trainer.updates).tolist()
    return training, generating


def _times(config: Config) -> dict[int | None, int]:
    """Count the updates of a run at each of the depths drawn."""
    updates = config.trainer.updates
    return Counter(_draws(config)(np.arange(updates)).tolist()) if config.depth.drawn else {None: updates}
