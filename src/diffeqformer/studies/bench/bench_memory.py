"""`bench memory`: memory that each gradient method needs besides the weights and their gradients."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Literal

from diffeqformer.config import ModelConfig, RecursiveConfig, ReversibleConfig
from diffeqformer.config.bounds import whole_numbers
from diffeqformer.progress import Progress
from diffeqformer.report.table import Table
from diffeqformer.report.text import join, number
from diffeqformer.studies.bench import bench_train
from diffeqformer.studies.bench import benchmark as b
from diffeqformer.studies.inputs import File
from diffeqformer.studies.study import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

    from diffeqformer.report.page import Figure

Weights = Literal["layer", "shared", "time"]
BATCH = bench_train.STANDARD.trainer.batch_size
BASE = "euler"
STANDARD = dataclasses.replace(bench_train.STANDARD.model, scheme=ReversibleConfig(BASE))
"""The model of `bench train`, with the only scheme that all methods can differentiate."""
METHODS = ("plain", "checkpointed", "recursive", "reversible")
_FLOAT32 = 4


@dataclass(frozen=True)
class Arguments(b.Kept):
    """The memory that a gradient needs by each method and number of steps, as compiled; nothing is run.

    Example: diffeqformer bench memory --figure memory.svg
    """

    weights: Weights = "layer"
    """How the block weights depend on depth."""
    steps: str = "12,24,48,96"
    """Numbers of depth steps."""
    figure: File = ""
    """A .png or .svg file to draw the numbers to."""


def study(arguments: Arguments, progress: Progress) -> Result:
    """Compile the gradients of `STANDARD`.

    **Raises:** `BadInput` for invalid steps.
    """
    steps = sorted(set(whole_numbers(arguments.steps, "--steps")))
    # A kind given by name has default sizes, so `time` would lose those of STANDARD.
    model = dataclasses.replace(STANDARD, weights=arguments.weights) if arguments.weights != "time" else STANDARD
    sizes = {name: size for name, size in b.sizes_of_model(model).items() if name != "steps"} | {"batch": BATCH}
    return BENCHMARK.measured(
        arguments, sizes=sizes, weights=model.weights.kind, scheme=f"reversible over {BASE}",
        checkpoints=RecursiveConfig().checkpoints, rows=gradient_memory(model, BATCH, steps, progress),
    )  # fmt: skip


def gradient_memory(
    config: ModelConfig, batch: int, steps: Sequence[int], progress: Progress, methods: Sequence[str] = METHODS
) -> list[b.Document]:
    """Compile loss and gradient of `config` by each method and number of steps for this machine; nothing is run.

    **Arguments:** `config`, with `vocabulary` set; `batch`, sequences per batch; `steps`, numbers of steps.

    **Returns:** one row per method and number of steps: `weights_bytes`, the parameters, arguments of the program;
    `gradients_bytes`, its results; `temporary_bytes`, what it needs besides; `generated_bytes`, the part of the
    temporary memory that is populated weights and their gradients (none for layer and shared weights, which are
    parameters); `peak_bytes`, weights, gradients and temporaries together.
    """
    rows, ways = [], list(product(methods, steps))
    with progress.stage("Compiling gradients", len(ways)) as stage:
        for method, depth in ways:
            rows.append(_row(dataclasses.replace(config, gradient=method, steps=depth), batch))
            stage.advance(1, f"{method}, {depth} steps")
    return rows


def _row(config: ModelConfig, batch: int) -> b.Document:
    import equinox as eqx
    import jax
    import numpy as np

    from diffeqformer.model.build import abstract
    from diffeqformer.model.count import count
    from diffeqformer.model.loss import next_token_loss

    model, ids = abstract(config), jax.ShapeDtypeStruct((batch, config.context + 1), np.int32)
    plan = jax.jit(jax.value_and_grad(next_token_loss)).lower(model, ids).compile().memory_analysis()
    temporary = 0 if plan is None else int(plan.temp_size_in_bytes)
    layers = eqx.filter_eval_shape(lambda model: model.populate().weights, model) if config.time else None
    weights = _FLOAT32 * count(model)
    return {
        "weights": config.weights.kind, "gradient": config.gradient.kind if config.gradient else None,
        "steps": config.steps, "weights_bytes": weights, "gradients_bytes": weights, "temporary_bytes": temporary,
        "generated_bytes": 2 * _FLOAT32 * count(layers), "peak_bytes": 2 * weights + temporary,
    }  # fmt: skip


def growth(rows: Sequence[b.Row], method: str) -> tuple[int, int, float] | None:
    """Return a method's fewest and most steps, and the ratio of its temporary memory at most steps to that at fewest;
    `None` if both are equal."""
    found = {row["steps"]: row["temporary_bytes"] for row in rows if row["gradient"] == method}
    few, many = min(found, default=0), max(found, default=0)
    return (few, many, found[many] / found[few]) if few < many else None


def tables(document: b.Document) -> tuple[Table, ...]:
    """Tabulate one row per method and number of steps."""
    plain = {row["steps"]: row["temporary_bytes"] for row in document["rows"] if row["gradient"] == "plain"}
    rows = tuple(
        (
            row["gradient"],
            str(row["steps"]),
            *(number(row[f"{name}_bytes"] / 2**20, 1) for name in ("weights", "temporary", "generated", "peak")),
            number(plain[row["steps"]] / row["temporary_bytes"], 1) if row["steps"] in plain else "",
        )
        for row in document["rows"]
    )
    caption = (
        f"Loss and gradient, compiled, in MiB: {b.stated_sizes(document)}, {document['weights']} weights, "
        f"scheme {document['scheme']}, {document['checkpoints']} checkpoints per level"
    )
    columns = ("gradient", "steps", "weights", "temporary", "of which generated", "peak", "plain's over it")
    return (Table(caption, columns, rows),)


def figures(document: b.Document) -> "tuple[Figure, ...]":
    """Draw temporary memory over depth."""
    from diffeqformer.report.figures import NARROW
    from diffeqformer.report.page import Figure

    rows = document["rows"]
    caption = "Temporary memory of a gradient against the number of steps, as compiled; both axes are logarithmic."
    return (Figure("memory", caption, memory_by_depth(rows), memory_by_depth(rows, width=NARROW)),)


def memory_by_depth(rows: Sequence[b.Row], *, width: float = 6.2) -> "Drawing":
    """Plot temporary memory of a gradient in MiB against the number of steps, a curve per method, on log-log axes."""
    from diffeqformer.report.figures import drawing, legend, log_axis, look

    methods = dict.fromkeys(row["gradient"] for row in rows)
    with drawing(width, 3.7) as (figure, axes):
        axis = axes[0, 0]
        for index, method in enumerate(methods):
            own = [(row["steps"], row["temporary_bytes"] / 2**20) for row in rows if row["gradient"] == method]
            axis.plot(*zip(*own, strict=True), **look(index))
        log_axis(axis, "x", sorted({row["steps"] for row in rows}), base=2)
        log_axis(axis, "y")
        axis.set(xlabel="steps (depth)", ylabel="temporary memory (MiB)")
        legend(figure, list(zip(axis.lines, methods, strict=True)), width)
    return figure


def marks(document: b.Document) -> list[str]:
    """State whether the reversible gradient needs the same memory, within 10 %, at any depth."""
    if (found := growth(document["rows"], "reversible")) is None:
        return []
    few, many, ratio = found
    what = f"reversible at {many} steps needs at most 1.1 times what it needs at {few}"
    return [b.mark(what, ratio, ratio <= 1.1)]


def _headline(document: b.Document) -> str:
    methods = dict.fromkeys(row["gradient"] for row in document["rows"])
    grown = {method: found for method in methods if (found := growth(document["rows"], method))}
    if not grown:
        return "Temporary memory of a gradient, by method."
    few, many, _ = next(iter(grown.values()))
    said = join([f"{method} {found[2]:.3g}" for method, found in grown.items()])
    return f"Temporary memory at {many} steps over that at {few}: {said}."


BENCHMARK = b.Benchmark(
    "memory",
    "Memory by depth",
    "What each `model.gradient` needs besides weights and their gradients, as planned by the compiler. Nothing is "
    "run, so there is no spread. McCallum and Foster (2024) report 4 to 11.5 times less memory than plain "
    "backpropagation for their reversible gradients.",
    _headline,
    tables,
    marks,
    figures,
)
