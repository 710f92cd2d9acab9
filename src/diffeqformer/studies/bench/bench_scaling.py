"""`bench scaling`: measured cost of an update as one size of the model grows, against the counted cost."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diffeqformer.config import Config, ModelConfig, TimeConfig, TrainerConfig, with_values
from diffeqformer.progress import Progress
from diffeqformer.report.table import Table
from diffeqformer.report.text import join, number
from diffeqformer.studies.bench import benchmark as b
from diffeqformer.studies.inputs import File
from diffeqformer.studies.study import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

    from diffeqformer.report.page import Figure

STANDARD = Config(
    model=ModelConfig(
        width=128, steps=6, heads=4, context=128, vocabulary=512, weights=TimeConfig(d_emb=16, frequencies=16)
    ),
    trainer=TrainerConfig(batch_size=4, updates=1000),
)
"""The config from which each size is varied."""
GROWTH: Mapping[str, Sequence[int]] = {
    "width": (64, 128, 256, 512),
    "steps": (3, 6, 12, 24, 48),
    "context": (64, 128, 256, 512, 1024),
    "d_emb": (8, 16, 32, 64, 128),
}
CONTINUOUS, VANILLA = "diffeqformer", "vanilla"


@dataclass(frozen=True)
class Arguments(b.Timed):
    """Time updates as width, steps, context and d_emb grow, beside how their operations are counted to grow.

    Example: diffeqformer bench scaling --figure scaling.svg
    """

    figure: File = ""
    """A .png or .svg file to draw the numbers to."""


def study(arguments: Arguments, progress: Progress) -> Result:
    """Time updates around `STANDARD`."""
    rows = compare_scaling(STANDARD, arguments.rounds, progress)
    return BENCHMARK.measured(arguments, sizes=b.sizes(STANDARD), rows=rows)


def compare_scaling(
    config: Config, rounds: int, progress: Progress, growth: Mapping[str, Sequence[int]] = GROWTH
) -> list[b.Document]:
    """Time an update of `config`'s model and of its vanilla twin as width, steps, context and d_emb grow one at a time.

    Along each axis, `T = c s^p` is fitted by least squares of `log T` on `log s`, with T in median seconds. The same
    fits to the operations that `flops` counts for an update, and to the parameters, which the optimiser reads and
    writes, give the theoretical exponents at the same points.

    **Arguments:** `config`, with time-dependent weights and `model.vocabulary` set; `rounds`, as for `take_turns`;
    `growth`, at least three sizes per axis: `width`, `steps`, `context`, `d_emb`.

    **Returns:** one row for each axis and model: `sizes`; at each of them `seconds` (of `summary`, ratios to the
    vanilla model of that size, which for `d_emb` is always the same), `flops` of an update and stored `parameters`;
    and the `exponents` of time, operations and parameters, each with its standard error.
    """
    from diffeqformer.model.count import parameters, update_operations

    setting_of = lambda axis: "model.weights.d_emb" if axis == "d_emb" else f"model.{axis}"
    configs = {
        (axis, model): {size: as_model(with_values(config, {setting_of(axis): size}), model) for size in all_sizes}
        for axis, all_sizes in growth.items()
        for model in (CONTINUOUS, VANILLA)
    }
    names = {
        one: f"{model}, {axis} {size}" for (axis, model), own in configs.items() for size, one in own.items()
    }  # a config that is on several axes is timed once
    timed = b.take_turns({name: b.repeated(one) for one, name in names.items()}, rounds, progress)

    def row(axis: str, model: str) -> b.Document:
        own, others = configs[axis, model], configs[axis, VANILLA]
        seconds = [b.summary(timed[names[own[size]]], timed[names[others[size]]]) for size in own]
        counted = {
            "flops": [update_operations(one.model, one.trainer.batch_size) for one in own.values()],
            "parameters": [parameters(one.model).stored for one in own.values()],
        }
        measured = {"time": [one["median_seconds"] for one in seconds], **counted}
        exponents = {name: exponent(list(own), values) for name, values in measured.items()}
        return {
            "axis": axis, "model": model, "sizes": list(own), "seconds": seconds, **counted, "exponents": exponents,
        }  # fmt: skip

    return [row(axis, model) for axis, model in configs if (axis, model) != ("d_emb", VANILLA)]


def exponent(sizes: Sequence[float | int], values: Sequence[float | int]) -> tuple[float, float]:
    """Fit the p of `values = c sizes^p` by least squares of the logarithms; returns it and its standard error."""
    import numpy as np

    (slope, _), covariance = np.polyfit(np.log(sizes), np.log(values), 1, cov=True)
    return float(slope), float(np.sqrt(covariance[0, 0]))


def as_model(config: Config, model: str) -> Config:
    """Return the config itself, or its vanilla twin."""
    from diffeqformer.model.count import vanilla_twin

    return dataclasses.replace(config, model=vanilla_twin(config.model)) if model == VANILLA else config


def tables(document: b.Document) -> tuple[Table, ...]:
    """Tabulate the exponents, one row per axis and model; and the points, one row each."""
    exponents, points = [], []
    for row in document["rows"]:
        fitted = ("{:.2f} ± {:.2f}".format(*row["exponents"][name]) for name in ("time", "flops", "parameters"))
        exponents.append((row["axis"], row["model"], f"{row['sizes'][0]} to {row['sizes'][-1]}", *fitted))
        for one, seconds, operations in zip(row["sizes"], row["seconds"], row["flops"], strict=True):
            ratios = b.ratios(seconds) if row["model"] == CONTINUOUS else ("", "")
            counted = number(operations / 1e9, 2)
            points.append((f"{row['axis']} {one}", row["model"], *b.times(seconds), counted, *ratios))
    columns = ("grows", "model", "from, to", "time", "operations", "stored parameters")
    return (
        Table(f"Exponents, around {b.stated_sizes(document)}", columns, tuple(exponents)),
        Table("Training updates at each point", ("", "model", *b.TIMES, "GFLOP", *b.RATIOS), tuple(points)),
    )


def figures(document: b.Document) -> "tuple[Figure, ...]":
    """Draw time over each size."""
    from diffeqformer.report.page import Figure

    caption = (
        "Milliseconds per update against each size that grows. A dashed line is as steep as the counted operations, "
        "and ends at the measured time of the largest size."
    )
    return (Figure("scaling", caption, time_by_size(document["rows"])),)


def time_by_size(rows: Sequence[b.Row]) -> "Drawing":
    """Plot milliseconds per update against each size; dashed, the growth that the operations alone would give."""
    from diffeqformer.report.figures import INK, WIDE, color, drawing, legend, log_axis, look

    axes_named, models = (list(dict.fromkeys(row[name] for row in rows)) for name in ("axis", "model"))
    with drawing(WIDE, 3.2, 1, len(axes_named), sharey=True) as (figure, axes):
        panels = axes[0]
        for panel, name in zip(panels, axes_named, strict=True):
            own = [row for row in rows if row["axis"] == name]
            for row in own:
                index = models.index(row["model"])
                milliseconds = [1e3 * one["median_seconds"] for one in row["seconds"]]
                panel.plot(row["sizes"], milliseconds, **look(index))
                counted = [milliseconds[-1] * operations / row["flops"][-1] for operations in row["flops"]]
                panel.plot(row["sizes"], counted, linestyle="--", linewidth=1, color=color(index), marker="None")
            log_axis(panel, "x", sorted({size for row in own for size in row["sizes"]}), base=2)
            log_axis(panel, "y")
            panel.set_xlabel(name)
        panels[0].set_ylabel("ms per update")
        counted = ({"color": INK, "linestyle": "--", "linewidth": 1}, "as operations grow")
        legend(figure, [*((look(i), model) for i, model in enumerate(models)), counted], WIDE)
    return figure


def _headline(document: b.Document) -> str:
    grown = [row for row in document["rows"] if row["model"] == CONTINUOUS]
    powers = [f"{row['axis']} to the power {row['exponents']['time'][0]:.2f}" for row in grown]
    return f"The time of DiffEqFormer's update grows as {join(powers)}."


BENCHMARK = b.Benchmark(
    "scaling",
    "Cost as sizes grow",
    "One size grows while the others stay fixed. Each exponent is that of a power law in the size, fitted to the "
    "medians, with its standard error. For the theory, the same fit is made to the operations counted for these very "
    "updates, and to the stored parameters, all of which the optimiser reads and writes. Time should grow like one or "
    "the other, and more slowly where fixed costs matter. Ratios are to the vanilla model of the same size.",
    _headline,
    tables,
    figures=figures,
)
