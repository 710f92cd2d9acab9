"""`bench explorer`: how long the explorer takes to answer when its dial is turned, at GPT-2 small's size."""

import itertools
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from diffeqformer.config import ModelConfig, SchemeConfig, TimeConfig
from diffeqformer.progress import Progress, Silent
from diffeqformer.studies import benchmark as b
from diffeqformer.studies.study import Result

GPT_SMALL = ModelConfig(
    width=768,
    steps=12,
    heads=12,
    context=1024,
    vocabulary=50257,
    weights=TimeConfig(d_emb=20),
    scheme=SchemeConfig("lie-trotter"),
)
STEPS = (6, 12, 24)
TOKENS = 32
MARK = 1.0
"""Seconds of a turn, up to the most steps."""


@dataclass(frozen=True)
class Arguments(b.Timed):
    """Time a turn of the explorer's dial on a model of GPT-2 small's size: the whole grid, and one cell.

    Example: diffeqformer bench explorer --to benchmarks/explorer.json
    """


def study(arguments: Arguments, progress: Progress) -> Result:
    """Time turns to some numbers of steps."""
    return BENCHMARK.measured(arguments, rounds=arguments.rounds, **turns(GPT_SMALL, arguments.rounds, progress))


def turns(
    model: ModelConfig, rounds: int, progress: Progress = Silent(), steps: Sequence[int] = STEPS
) -> dict[str, Any]:
    """Time what a turn asks for: weights, all steps, their predictions, and one cell.

    **Returns:** sizes, tokens, and one row per number of steps: the numbers of `summary`, processor time in seconds.
    """
    import jax

    from diffeqformer.analysis.reading import eigenvalues, lens, looks, most_likely, walk
    from diffeqformer.model.build import build

    built = build(model, jax.random.key(0))
    ids = np.random.default_rng(0).integers(0, model.vocabulary or 0, TOKENS, dtype=np.int32)
    used: dict[int, list[float]] = {number: [] for number in steps}

    def turned(number: int) -> b.Once:
        near = itertools.cycle((number, number - 1))  # another one each time, as the dial gives them

        def once() -> None:
            began, now = time.process_time(), next(near)
            taken = walk(built, ids, steps=now)
            lens(taken, ids)
            most_likely(taken, now, TOKENS - 1)
            looks(taken, now, TOKENS - 1)
            eigenvalues(taken, now)
            used[number].append(time.process_time() - began)

        return once

    seconds = b.take_turns({str(number): turned(number) for number in steps}, rounds, progress)
    rows = [
        {
            "steps": number,
            **b.summary(seconds[str(number)], seconds[str(steps[0])]),
            "processor_seconds": statistics.median(used[number][b.WARM_UP :]),
        }
        for number in steps
    ]
    return {"sizes": b.sizes_of_model(model), "tokens": TOKENS, "rows": rows}


BENCHMARK = b.Benchmark(
    "explorer",
    "The explorer's dial",
    "A turn to another number of steps: weights are generated and the text is taken through every step, all of whose "
    "predictions are read (the grid), and one cell is opened. Nothing compiles after the first turns.",
    lambda document: "A turn takes " + ", ".join(
        f"{b.seconds(row['median_seconds'])} at {row['steps']} steps" for row in document["rows"]
    ) + ".",
    b.timed_table(
        "A turn of the dial: {sizes}, {tokens} tokens", {"steps": b.entry("steps")},
        {"processor time": lambda row: b.seconds(row["processor_seconds"])},
    ),
    lambda document: [
        b.mark(f"a turn at {row['steps']} steps under {MARK:g} s", row["median_seconds"], row["median_seconds"] < MARK)
        for row in document["rows"]
    ],
)  # fmt: skip
