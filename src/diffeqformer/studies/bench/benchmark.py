"""Shared parts of all benchmarks: timing, a description of the machine, documents and tables.

What is compared takes turns, once each per round, so that a busy moment of the machine affects all alike.
"""

import dataclasses
import os
import platform
import shlex
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from diffeqformer.config import Config, ModelConfig
from diffeqformer.config.bounds import MOST_STEPS, setting
from diffeqformer.plain import Document, Values, version_of
from diffeqformer.progress import Progress
from diffeqformer.report.table import Table
from diffeqformer.report.text import join, number, size
from diffeqformer.studies.inputs import File
from diffeqformer.studies.study import Result

if TYPE_CHECKING:
    from diffeqformer.report.page import Figure

T = TypeVar("T")
Row = Values
Cell = Callable[[Row], str]
Tables = Callable[[Document], tuple[Table, ...]]
Once = Callable[[], object]
"""One update, or whatever else is timed; its result is waited for."""
COMPARED = ("jax", "torch", "transformers")
"""Packages whose versions are stated, if installed."""
WARM_UP = 2
"""Rounds that do not count: one that compiles and one to warm up."""
TIMES = ("median", "quartiles")
RATIOS = ("ratio", "rounds' ratios")
"""Columns: the ratio of medians; and the median of the ratios within each round, with quartiles."""


@dataclass(frozen=True)
class Kept:
    """Arguments of every benchmark."""

    to: File = ""
    """A .json file for the document."""


@dataclass(frozen=True)
class Timed(Kept):
    """Arguments of benchmarks that are timed in turns."""

    rounds: int = setting(9, least=7, most=MOST_STEPS)
    """How often each is timed, at least 7 times for a meaningful median."""


@dataclass(frozen=True)
class Benchmark:
    """A benchmark without its numbers: how its document is presented."""

    name: str
    title: str
    about: str
    """What is compared with what."""
    headline: Callable[[Document], str]
    tables: Tables
    marks: Callable[[Document], Sequence[str]] = lambda document: ()
    """States the targets, and whether they are met."""
    figures: "Callable[[Document], tuple[Figure, ...]]" = lambda document: ()

    def measured(self, arguments: Kept, **numbers: object) -> Result:
        """Present numbers measured just now, with the command and this machine."""
        # Options at their defaults, and those that only say where the result goes, are left out.
        words = [
            word for one in dataclasses.fields(arguments)
            if one.name not in ("to", "figure") and (value := getattr(arguments, one.name)) != one.default
            for word in (f"--{one.name.replace('_', '-')}", str(value))
        ]  # fmt: skip
        command = shlex.join(["diffeqformer", "bench", self.name, *words])
        rounds = {"rounds": arguments.rounds} if isinstance(arguments, Timed) else {}
        return self.result({"benchmark": self.name, "command": command, "machine": machine(), **rounds, **numbers})

    def result(self, document: Document) -> Result:
        """Present a document, whether just measured or read from a file."""
        return Result(
            f"bench-{self.name}", self.title, (self.headline(document), self.about, *self.marks(document)),
            self.tables(document), self.figures(document), document=document,
        )  # fmt: skip


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """Return the seconds until the result of `work` is ready, and the result."""
    import jax

    started = time.perf_counter()
    found = jax.block_until_ready(work())
    return time.perf_counter() - started, found


def take_turns(
    updates: Mapping[str, Once], rounds: int, progress: Progress, *, shuffled: bool = True
) -> dict[str, list[float]]:
    """Time each update once per round, in seconds, after `WARM_UP` more rounds that do not count.

    If shuffled, each round has its own order: a fixed one once turned a ratio of 1.04 into 0.9.
    """
    seconds: dict[str, list[float]] = {name: [] for name in updates}
    orders = np.random.default_rng(0)
    with progress.stage("Timing", (rounds + WARM_UP) * len(updates)) as stage:
        for round_number in range(rounds + WARM_UP):
            for name in orders.permutation([*updates]).tolist() if shuffled else updates:
                taken, _ = timed(updates[name])
                if round_number >= WARM_UP:
                    seconds[name].append(taken)
                stage.advance(1, name)
    return seconds


def summary(times: Sequence[float], reference: Sequence[float]) -> Document:
    """Return the median and quartiles in seconds, the ratio of the medians to the reference's, and the median and
    quartiles of the ratios within each round."""
    ratios = [a / b for a, b in zip(times, reference, strict=True)]
    quartiles = lambda values: statistics.quantiles(values, n=4)[::2]  # of the three, the second is the median
    return {
        "median_seconds": statistics.median(times),
        "quartile_seconds": quartiles(times),
        "ratio_of_medians": statistics.median(times) / statistics.median(reference),
        "median_of_ratios": statistics.median(ratios),
        "quartiles_of_ratios": quartiles(ratios),
    }


def random_batch(config: Config) -> np.ndarray:
    """Draw random tokens of the shape of a training batch, (batch, context + 1)."""
    shape = (config.trainer.batch_size, config.model.context + 1)
    return np.random.default_rng(0).integers(0, config.model.vocabulary or 0, shape, dtype=np.int32)


def repeated(config: Config, make: Callable[[Config], Callable] | None = None) -> Once:
    """Make a config's update on one fixed batch, by `make` or by default the library's; needs `model.vocabulary`."""
    from diffeqformer.training.update import initial_state, make_update

    update, ids, state = (make or make_update)(config), random_batch(config), initial_state(config)

    def once() -> object:
        nonlocal state
        # An update donates its input state, so the next one needs the state returned.
        state, measured = update(state, ids)
        return state, measured

    return once


def has_torch() -> bool:
    """Whether torch and transformers are installed to compare with."""
    return all(find_spec(name) for name in ("torch", "transformers"))


def machine() -> Document:
    """Describe the machine that this process runs on.

    **Returns:** `processor`, the maker's name for it; `cores` that this process may use; `devices`, the number that JAX
    has; `device`, their kind; `versions` of Python and of the installed packages among those compared.
    """
    import jax

    devices, installed = jax.devices(), {name: version_of(name) for name in COMPARED if find_spec(name)}
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "devices": len(devices),
        "device": devices[0].device_kind,
        "versions": {"python": platform.python_version(), **installed},
    }


def _processor() -> str:
    """Name the processor as Linux does in /proc/cpuinfo, or, if it has no name there, by its kind."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def sizes(config: Config) -> dict[str, int]:
    """Return the sizes that determine the cost of an update of `config`."""
    return sizes_of_model(config.model) | {"batch": config.trainer.batch_size}


def sizes_of_model(model: ModelConfig) -> dict[str, int]:
    """Return the sizes that determine the cost of a model; with `d_emb` if its weights depend on time."""
    own = {name: getattr(model, name) for name in ("width", "steps", "heads", "context", "vocabulary")}
    return own | {"d_emb": model.time.d_emb} if model.time else own


def mark(what: str, value: float, met: bool) -> str:
    """State a target, the value measured, and whether it is met."""
    return f"Mark: {what}. Here {value:.3g}: {'met' if met else 'not met'}."


def times_over(reference: str, name: Cell) -> Callable[[Document], str]:
    """Make a headline of rows timed in turns: `Median time over that of vanilla: diffeqformer 1.42 and torch 0.71.`"""

    def headline(document: Document) -> str:
        others = [f"{name(row)} {row['ratio_of_medians']:.2f}" for row in document["rows"] if name(row) != reference]
        return f"Median time over that of {reference}: {join(others) if others else 'nothing else was timed'}."

    return headline


def stated_sizes(document: Document) -> str:
    """Write a document's sizes as `width 256, steps 12, ...`."""
    return ", ".join(f"{name} {value}" for name, value in document["sizes"].items())


def times(row: Row) -> tuple[str, str]:
    """The cells of `TIMES`."""
    low, high = row["quartile_seconds"]
    return seconds(row["median_seconds"]), f"{seconds(low)} to {seconds(high)}"


def ratios(row: Row) -> tuple[str, str]:
    """The cells of `RATIOS`."""
    low, high = row["quartiles_of_ratios"]
    return f"{row['ratio_of_medians']:.3f}", f"{row['median_of_ratios']:.3f} ({low:.3f} to {high:.3f})"


def seconds(value: float) -> str:
    """Format seconds to about three digits: `8.21 ms`, `399 ms`, `1.26 s`, `504 s`."""
    scaled, unit = (value, "s") if value >= 1 else (value * 1e3, "ms")
    return f"{number(scaled, 2 if scaled < 10 else 1 if scaled < 100 else 0)} {unit}"


def timed_table(caption: str, names: Mapping[str, Cell], more: Mapping[str, Cell] = {}) -> Tables:
    """Make a function from a document to a table with one row per thing timed.

    **Arguments:** `caption`, with entries of the document in braces; `names` and `more`, the columns before and after
    those of `TIMES` and `RATIOS`.
    """

    def tables(document: Document) -> tuple[Table, ...]:
        cells = lambda columns, row: (cell(row) for cell in columns.values())
        rows = [(*cells(names, row), *times(row), *ratios(row), *cells(more, row)) for row in document["rows"]]
        sizes = {"sizes": stated_sizes(document)} if "sizes" in document else {}
        return (Table(caption.format(**document | sizes), (*names, *TIMES, *RATIOS, *more), rows),)

    return tables


def entry(name: str, decimals: int | None = None) -> Cell:
    """Make a cell of a row's entry: unchanged, or as a number with this many decimals."""
    return lambda row: str(row[name]) if decimals is None else number(row.get(name), decimals)


def memory_cell(name: str) -> Cell:
    """Make a cell of a number of bytes; empty for `None`."""
    return lambda row: "" if row[name] is None else size(row[name])


def beside_dense(seconds: Sequence[float], dense_seconds: float) -> Document:
    """Compare the times of a fast way with that of a dense computation; ratios are dense over fast."""
    median, low, high = statistics.median(seconds), min(seconds), max(seconds)
    return {
        "seconds": median,
        "spread": [low, high],
        "dense_seconds": dense_seconds,
        "ratio": dense_seconds / median,
        "ratio_spread": [dense_seconds / high, dense_seconds / low],
    }


def dense_table(caption: str) -> Tables:
    """Make a function from a document of `beside_dense` to a table of one row, with the largest difference of both
    ways."""

    def tables(document: Document) -> tuple[Table, ...]:
        low, high = document["ratio_spread"]
        row = {
            "time": "{} ({} to {})".format(*map(seconds, (document["seconds"], *document["spread"]))),
            "dense computation": seconds(document["dense_seconds"]),
            "ratio": f"{number(document['ratio'])} ({number(low)} to {number(high)})",
            "largest difference": f"{document['largest_difference']:.1e}",
        }
        return (Table(caption.format(**document), tuple(row), (tuple(row.values()),)),)

    return tables
