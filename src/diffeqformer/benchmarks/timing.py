"""Timing updates side by side in one process."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from diffeqformer.config import Config
from diffeqformer.progress import Progress
from diffeqformer.training.update import State, initial_state, make_update

Once = Callable[[], object]
"""One update, or whatever else is timed, from start to end."""


def take_turns(updates: Mapping[str, Once], rounds: int, progress: Progress) -> dict[str, list[float]]:
    """Seconds of each update in each round.

    The updates take turns, one each a round, so that a busy moment of the machine falls on all of them alike. Two
    rounds more go before: one that compiles and one to warm up.
    """
    seconds: dict[str, list[float]] = {name: [] for name in updates}
    with progress.stage("Timing", (rounds + 2) * len(updates)) as stage:
        for round_number in range(rounds + 2):
            for name, update in updates.items():
                started = time.perf_counter()
                update()
                if round_number >= 2:
                    seconds[name].append(time.perf_counter() - started)
                stage.advance(1, name)
    return seconds


def summary(times: Sequence[float], reference: Sequence[float]) -> dict[str, Any]:
    """Median seconds and quartiles, the ratio of medians to the reference's, and the same of the rounds' own ratios."""
    ratios = [a / b for a, b in zip(times, reference, strict=True)]
    return {
        "median_seconds": statistics.median(times),
        "quartile_seconds": quartiles(times),
        "ratio_of_medians": statistics.median(times) / statistics.median(reference),
        "median_of_ratios": statistics.median(ratios),
        "quartiles_of_ratios": quartiles(ratios),
    }


def quartiles(values: Sequence[float]) -> list[float]:
    """The first and the third."""
    first, _, third = statistics.quantiles(values, n=4)
    return [first, third]


def random_batch(config: Config) -> np.ndarray:
    """Random tokens of the shape of a training batch."""
    shape = (config.trainer.batch_size, config.model.context + 1)
    return np.random.default_rng(0).integers(0, config.model.vocabulary or 0, shape, dtype=np.int32)


def repeated(config: Config, make: Callable[[Config], Callable] = make_update) -> Once:
    """The update of a config, by `make`, again and again on one batch; `model.vocabulary` must be set."""
    update, ids = make(config), random_batch(config)
    state: State = initial_state(config)

    def once() -> None:
        nonlocal state
        state, measured = update(state, ids)
        jax.block_until_ready((state, measured))

    return once
