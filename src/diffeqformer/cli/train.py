"""`diffeqformer train CONFIG [--key value ...]`"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from diffeqformer.cli.distributed import Distributed, join, shown
from diffeqformer.cli.output import print_json, print_table
from diffeqformer.cli.parse import ConfigArguments, arguments_from
from diffeqformer.progress import Progress
from diffeqformer.validation import validate

if TYPE_CHECKING:
    from diffeqformer.runs.trainer import TrainResult


@dataclass(frozen=True)
class TrainArguments(ConfigArguments):
    """A config, its settings, and other processes."""

    distributed: Distributed = field(default_factory=Distributed)


def run(words: Sequence[str], as_json: bool) -> None:
    """Train the model of a config, or continue its run; write the run's report."""
    asked = arguments_from(words, "train", TrainArguments)
    join(asked.distributed)
    config = validate(asked.settings)
    from diffeqformer.runs.trainer import train

    progress = shown()
    show(train(config, progress), progress, as_json)


def show(result: "TrainResult", progress: Progress, as_json: bool) -> None:
    """Write a finished run's report, and print what it found; of several processes the first does."""
    from diffeqformer.runs.distributed import is_main

    if not is_main():
        return
    from diffeqformer.report.html import write_report
    from diffeqformer.report.text import drawn_depths, evaluations
    from diffeqformer.runs.folder import RESULTS
    from diffeqformer.runs.results import read_results

    document = read_results(result.folder / RESULTS)
    assert document is not None
    report = result.folder / "report.html"
    write_report(document, report)
    progress.say(f"report: {report}")
    if as_json:
        return print_json(document)
    validation = result.entry["validation"]
    row = [f"{validation['loss']:.4f}", f"{validation['perplexity']:.2f}", f"{validation['bits_per_byte']:.4f}"]
    cost = [evaluations(result.entry.get("evaluations")), f"{result.entry['tokens_per_second']:,.0f}"]
    columns = ["run", "loss (nats)", "perplexity", "bits/byte", "evaluations", "tokens/s"]
    print_table("", columns, [[str(result.folder), *row, *cost]])
    if drawn := drawn_depths(result.entry):
        print_table("\nin training, by depth", ["steps", "updates", "loss, last tenth", "tokens/s"], drawn)
