"""`bench explorer`: the explorer's response time when its dial is turned, at GPT-2 small's size."""

import dataclasses
import itertools
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from diffeqformer.config import ModelConfig, SchemeConfig, TimeConfig
from diffeqformer.progress import Progress, Silent
from diffeqformer.studies.bench import bench_lyapunov
from diffeqformer.studies.bench import benchmark as b
from diffeqformer.studies.study import Result

GPT_SMALL = dataclasses.replace(
    bench_lyapunov.GPT_SMALL, weights=TimeConfig(d_emb=20), scheme=SchemeConfig("lie-trotter")
)
STEPS = (6, 12, 24)
TOKENS = 32
MARK = 1.0
"""Target: most seconds until the prediction is there, at every number of steps."""


@dataclass(frozen=True)
class Arguments(b.Timed):
    """Time a turn of the explorer's dial on a model of GPT-2 small's size: the whole grid, and one cell.

    Example: diffeqformer bench explorer --to benchmarks/explorer.json
    """


def study(arguments: Arguments, progress: Progress) -> Result:
    """Time turns to several numbers of steps."""
    return BENCHMARK.measured(arguments, **turns(GPT_SMALL, arguments.rounds, progress))


def turns(model: ModelConfig, rounds: int, progress: Progress = Silent(), steps: Sequence[int] = STEPS) -> b.Document:
    """Time the two parts of a turn: the weights, all steps and the prediction at the end (`prediction`); then the
    predictions after every step, and one cell (`grid`).

    **Returns:** sizes, tokens, and one row per number of steps and `part`: the numbers of `summary`, ratios to the
    prediction at the first of `steps`, and processor time in seconds.
    """
    import jax

    from diffeqformer.analysis.reading import Walk, eigenvalues, lens, likeliest, looks, most_likely, walk
    from diffeqformer.model.build import build

    built = build(model, jax.random.key(0))
    ids = np.random.default_rng(0).integers(0, model.vocabulary or 0, TOKENS, dtype=np.int32)
    # The number of steps changes each time, as when the dial is turned.
    near = {number: itertools.cycle((number, number - 1)) for number in steps}
    taken: dict[int, Walk] = {}

    def prediction(number: int) -> None:
        taken[number] = walk(built, ids, steps=next(near[number]))
        likeliest(built, taken[number].states[-1])

    def grid(number: int) -> None:
        now = taken[number]
        lens(now, ids)
        most_likely(now, now.grid.steps, TOKENS - 1)
        looks(now, now.grid.steps, TOKENS - 1)
        eigenvalues(now, now.grid.steps)

    ways = {f"{number} {part.__name__}": (number, part) for number in steps for part in (prediction, grid)}
    used: dict[str, list[float]] = {name: [] for name in ways}

    def once(name: str) -> None:
        number, part = ways[name]
        began = time.process_time()
        part(number)
        used[name].append(time.process_time() - began)

    # Not shuffled: a grid belongs to the prediction before it.
    seconds = b.take_turns({name: partial(once, name) for name in ways}, rounds, progress, shuffled=False)
    rows = [
        {
            "steps": number, "part": part.__name__, **b.summary(seconds[name], seconds[f"{steps[0]} prediction"]),
            "processor_seconds": statistics.median(used[name][b.WARM_UP :]),
        }
        for name, (number, part) in ways.items()
    ]  # fmt: skip
    return {"sizes": b.sizes_of_model(model), "tokens": TOKENS, "rows": rows}


def marks(document: b.Document) -> list[str]:
    """State whether the prediction is there in time at every number of steps."""
    return [
        b.mark(f"prediction at {steps} steps under {MARK:g} s", seconds, seconds < MARK)
        for steps, seconds in _predictions(document).items()
    ]


def _predictions(document: b.Document) -> dict[int, float]:
    """Return the seconds until the prediction is there, by number of steps."""
    return {row["steps"]: row["median_seconds"] for row in document["rows"] if row["part"] == "prediction"}


def _headline(document: b.Document) -> str:
    ready = [f"{b.seconds(seconds)} at {steps} steps" for steps, seconds in _predictions(document).items()]
    return f"After a turn, the prediction is ready in {', '.join(ready)}."


BENCHMARK = b.Benchmark(
    "explorer",
    "The explorer's dial",
    "The dial is turned to another number of steps, here alternately to the number in the row and to one less. First "
    "comes the prediction: weights are generated and the text is run through all steps. Then comes the grid: "
    "predictions after every step, and one opened cell. Nothing is compiled after the first turns.",
    _headline,
    b.timed_table(
        "A turn of the dial: {sizes}, {tokens} tokens",
        {"steps": b.entry("steps"), "part": b.entry("part")},
        {"processor time": lambda row: b.seconds(row["processor_seconds"])},
    ),
    marks,
)
