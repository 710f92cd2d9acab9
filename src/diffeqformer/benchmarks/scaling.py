"""The work of `bench scaling`: what an update costs as one size of the model grows, beside what is counted."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from diffeqformer.benchmarks.timing import repeated, summary, take_turns
from diffeqformer.config import Config, ModelConfig, TimeConfig, TrainerConfig
from diffeqformer.model.count import flops, parameters, vanilla_twin
from diffeqformer.progress import Progress

STANDARD = Config(
    model=ModelConfig(
        width=128, steps=6, heads=4, context=128, vocabulary=512, time=TimeConfig(d_emb=16, frequencies=16)
    ),
    trainer=TrainerConfig(batch_size=4, updates=1000),
)
"""The point where the axes meet."""
GROWTH: Mapping[str, Sequence[int]] = {
    "width": (64, 128, 256, 512),
    "steps": (3, 6, 12, 24, 48),
    "context": (64, 128, 256, 512, 1024),
    "d_emb": (8, 16, 32, 64, 128),
}
VANILLA = "vanilla"
MODELS: Mapping[str, Callable[[Config], Config]] = {
    "diffeqformer": lambda config: config,
    VANILLA: lambda config: dataclasses.replace(config, model=vanilla_twin(config.model)),
}


def compare_scaling(
    config: Config, rounds: int, progress: Progress, growth: Mapping[str, Sequence[int]] = GROWTH
) -> list[dict[str, Any]]:
    """Time an update of `config`'s model and of its vanilla twin as width, steps, context and d_emb grow one at a time.

    Along an axis `T = c s^p` is fitted: least squares of `log T` on `log s`, T median seconds. The same fit through the
    operations that `flops` counts of an update, and through the parameters, which the optimiser reads and writes, gives
    what theory says of the very same points.

    **Arguments:** `config`, of time-dependent weights, with `model.vocabulary` set; `rounds`, as for `take_turns`;
    `growth`, at least three sizes by axis: `width`, `steps`, `context`, `d_emb`.

    **Returns:** a row for each axis and model: `sizes`; at each of them `seconds` (of `summary`, ratios to the vanilla
    model's of that size, which for `d_emb` is always the same), `flops` of an update and stored `parameters`;
    and of time, operations and parameters the `exponents`, each with its standard error.
    """
    configs = {
        (axis, model): {size: made(_grown(config, axis, size)) for size in all_sizes}
        for axis, all_sizes in growth.items()
        for model, made in MODELS.items()
    }
    names = {
        one: f"{model}, {axis} {size}" for (axis, model), own in configs.items() for size, one in own.items()
    }  # a config that stands on several axes is timed once
    timed = take_turns({name: repeated(one) for one, name in names.items()}, rounds, progress)

    def row(axis: str, model: str) -> dict[str, Any]:
        own, others = configs[axis, model], configs[axis, VANILLA]
        seconds = [summary(timed[names[own[size]]], timed[names[others[size]]]) for size in own]
        counted = {
            "flops": [_operations(one) for one in own.values()],
            "parameters": [parameters(one.model).stored for one in own.values()],
        }
        measured = {"time": [one["median_seconds"] for one in seconds], **counted}
        exponents = {name: exponent(list(own), values) for name, values in measured.items()}
        return {
            "axis": axis, "model": model, "sizes": list(own), "seconds": seconds, **counted, "exponents": exponents,
        }  # fmt: skip

    return [row(axis, model) for axis, model in configs if (axis, model) != ("d_emb", VANILLA)]


def exponent(sizes: Sequence[float | int], values: Sequence[float | int]) -> tuple[float, float]:
    """The p of `values = c sizes^p` by least squares of the logarithms, and its standard error."""
    (slope, _), covariance = np.polyfit(np.log(sizes), np.log(values), 1, cov=True)
    return float(slope), float(np.sqrt(covariance[0, 0]))


def _grown(config: Config, axis: str, size: int) -> Config:
    m = config.model
    changed = {"time": dataclasses.replace(m.time, d_emb=size)} if axis == "d_emb" else {axis: size}
    return dataclasses.replace(config, model=dataclasses.replace(m, **changed))


def _operations(config: Config) -> float:
    """Of an update; weights are generated once in it."""
    counted = flops(config.model)
    return config.trainer.batch_size * config.model.context * counted.training_per_token + counted.generating_weights
