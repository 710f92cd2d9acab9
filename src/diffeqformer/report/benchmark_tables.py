"""The document of each benchmark as tables, for the terminal and for the page alike."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from diffeqformer.report.page import Table
from diffeqformer.report.text import number, size

Document = Mapping[str, Any]
"""What `diffeqformer bench NAME --json` prints."""
TIMES = ("median", "quartiles")
RATIOS = ("ratio", "rounds' ratios")
"""Of medians; and the median of the ratios within each round, with quartiles."""


def train(found: Document) -> tuple[Table, ...]:
    """A row a model."""
    rows = [(row["model"], *_times(row), *_ratios(row), _size(row["temporary_bytes"])) for row in found["rows"]]
    return (_table(f"Training update: {_sizes(found)}", ("model", *TIMES, *RATIOS, "temporary memory"), rows),)


def finetune(found: Document) -> tuple[Table, ...]:
    """A row a way to fine-tune."""
    memory = lambda row: (_size(row["optimizer_bytes"]), _size(row["temporary_bytes"]))
    rows = [(row["way"], *_times(row), *_ratios(row), *memory(row)) for row in found["rows"]]
    columns = ("model", *TIMES, *RATIOS, "optimiser's state", "temporary memory")
    return (_table(f"Fine-tuning update: {_sizes(found)}", columns, rows),)


def generate(found: Document) -> tuple[Table, ...]:
    """A row a model, library and batch."""
    rows = [
        (row["model"], row["library"], str(row["batch"]), number(row["tokens_per_second"]), *_times(row), *_ratios(row))
        for row in found["rows"]
    ]
    columns = ("model", "by", "batch", "tokens/s", *TIMES, *RATIOS)
    return (_table(f"Greedy text: {_sizes(found)}, {found['new_tokens']} new tokens", columns, rows),)


def drafts(found: Document) -> tuple[Table, ...]:
    """A row a depth and length of drafts."""
    share = lambda row, name: number(row.get(name), 2)
    rows = [
        (
            row["way"],
            number(row["tokens_per_second"]),
            *_times(row),
            *_ratios(row),
            *(share(row, name) for name in ("acceptance", "tokens_per_reading", "equal")),
        )
        for row in found["rows"]
    ]
    title = f"Greedy text of {found['run']} at {found['steps']} steps, one prompt at a time"
    columns = ("drafts", "tokens/s", *TIMES, *RATIOS, "accepted", "tokens a deep reading", "texts equal")
    return (_table(title, columns, rows),)


def schemes(found: Document) -> tuple[Table, ...]:
    """A row a scheme."""
    rows = [
        (
            row["scheme"],
            "{attention} + {feed_forward}".format(**row["evaluations"]),
            *_times(row),
            *_ratios(row),
            number(row["predicted_ratio"], 3),
            number(row["measured_over_predicted"], 3),
        )
        for row in found["rows"]
    ]
    columns = ("scheme", "evaluations", *TIMES, *RATIOS, "predicted", "measured / predicted")
    return (_table(f"Training update by scheme: {_sizes(found)}", columns, rows),)


def memory(found: Document) -> tuple[Table, ...]:
    """A row a method and number of steps."""
    plain = {row["steps"]: row["temporary_bytes"] for row in found["rows"] if row["gradient"] == "plain"}
    mebibytes = lambda row, name: number(row[f"{name}_bytes"] / 2**20, 1)
    rows = [
        (
            row["gradient"],
            str(row["steps"]),
            *(mebibytes(row, name) for name in ("weights", "temporary", "generated", "peak")),
            number(plain[row["steps"]] / row["temporary_bytes"], 1) if row["steps"] in plain else "",
        )
        for row in found["rows"]
    ]
    title = (
        f"Loss and gradient, compiled, in MiB: {_sizes(found)}, {found['weights']} weights, scheme {found['scheme']}, "
        f"{found['checkpoints']} checkpoints a level"
    )
    columns = ("gradient", "steps", "weights", "temporary", "of which generated", "peak", "plain's over it")
    return (_table(title, columns, rows),)


def text(found: Document) -> tuple[Table, ...]:
    """A row a part of the way from text to an update."""
    rows = []
    for row in found["rows"]:
        speed = 1 / row["median_seconds"]
        bytes_a_token = 0 if row["bytes"] is None else row["bytes"] / row["tokens"]
        faster = (1 / row[name] for name in ("ratio_of_medians", "median_of_ratios"))
        low, high = (number(1 / ratio, 1) for ratio in reversed(row["quartiles_of_ratios"]))
        medians, rounds = (number(ratio, 1) for ratio in faster)
        rows.append(
            (
                row["what"],
                number(speed * bytes_a_token / 1e6, 2) if bytes_a_token else "",
                number(speed),
                medians,
                f"{rounds} ({low} to {high})",
            )
        )
    read = size(max(row["bytes"] or 0 for row in found["rows"]))
    title = f"From text to updates: {read} of data.source {found['source']}; the update: {_sizes(found)}"
    return (_table(title, ("", "MB/s", "tokens/s", "times the update's", "the same by rounds"), rows),)


def spectra(found: Document) -> tuple[Table, ...]:
    """One row."""
    title = "All QK and OV eigenvalues: {steps} steps, {heads} heads, width {width}; {dense_measured} products measured"
    return (_against_dense(title, found),)


def lyapunov(found: Document) -> tuple[Table, ...]:
    """One row."""
    title = "Leading exponents of {tokens} inputs for one output: {steps} steps, {heads} heads, width {width}"
    return (_against_dense(title, found),)


def start(found: Document) -> tuple[Table, ...]:
    """A row a command."""
    rows = [(row["command"], *_times(row), *_ratios(row)) for row in found["rows"]]
    return (_table("Start of a command", ("command", *TIMES, *RATIOS), rows),)


def scaling(found: Document) -> tuple[Table, ...]:
    """The exponents, a row an axis and model; and the points, a row each."""
    exponents, points = [], []
    for row in found["rows"]:
        smallest, largest = row["sizes"][0], row["sizes"][-1]
        fitted = ("{:.2f} ± {:.2f}".format(*row["exponents"][name]) for name in ("time", "flops", "parameters"))
        exponents.append((row["axis"], row["model"], f"{smallest} to {largest}", *fitted))
        for one, seconds, operations in zip(row["sizes"], row["seconds"], row["flops"], strict=True):
            ratios = _ratios(seconds) if row["model"] == "diffeqformer" else ("", "")
            point = (f"{row['axis']} {one}", row["model"], *_times(seconds), number(operations / 1e9, 2), *ratios)
            points.append(point)
    columns = ("grows", "model", "from, to", "time", "operations", "stored parameters")
    return (
        _table(f"Exponents, around {_sizes(found)}", columns, exponents),
        _table("Training updates at each point", ("", "model", *TIMES, "GFLOP", *RATIOS), points),
    )


TABLES: Mapping[str, Callable[[Document], tuple[Table, ...]]] = {
    "train": train,
    "finetune": finetune,
    "generate": generate,
    "drafts": drafts,
    "schemes": schemes,
    "memory": memory,
    "text": text,
    "scaling": scaling,
    "spectra": spectra,
    "lyapunov": lyapunov,
    "start": start,
}
"""By the name of the benchmark, in the order of the page."""


def _table(title: str, columns: Sequence[str], rows: Sequence[tuple[str, ...]]) -> Table:
    return Table(title, tuple(columns), tuple(rows))


def _against_dense(title: str, found: Document) -> Table:
    low, high = found["ratio_spread"]
    row = (
        "{} ({} to {})".format(*(_seconds(one) for one in (found["seconds"], *found["spread"]))),
        _seconds(found["dense_seconds"]),
        f"{number(found['ratio'])} ({number(low)} to {number(high)})",
        f"{found['largest_difference']:.1e}",
    )
    return _table(title.format(**found), ("time", "dense computation", "ratio", "largest difference"), [row])


def _sizes(found: Document) -> str:
    """`width 256, steps 12, ...`"""
    return ", ".join(f"{name} {value}" for name, value in found["sizes"].items())


def _times(row: Mapping[str, Any]) -> tuple[str, str]:
    """Median and quartiles."""
    low, high = row["quartile_seconds"]
    return _seconds(row["median_seconds"]), f"{_seconds(low)} to {_seconds(high)}"


def _ratios(row: Mapping[str, Any]) -> tuple[str, str]:
    """Of medians; then by rounds."""
    low, high = row["quartiles_of_ratios"]
    by_rounds = f"{row['median_of_ratios']:.3f} ({low:.3f} to {high:.3f})"
    return f"{row['ratio_of_medians']:.3f}", by_rounds


def _seconds(value: float) -> str:
    """Three digits or so: `8.21 ms`, `399 ms`, `1.26 s`, `504 s`."""
    scaled, unit = (value, "s") if value >= 1 else (value * 1e3, "ms")
    return f"{number(scaled, 2 if scaled < 10 else 1 if scaled < 100 else 0)} {unit}"


def _size(value: int | None) -> str:
    """As `text.size`; nothing for none."""
    return "" if value is None else size(value)
