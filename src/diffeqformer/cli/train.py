"""`diffeqformer train CONFIG [--key value ...]`"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from diffeqformer.cli.output import print_json, print_table
from diffeqformer.cli.parse import config_from
from diffeqformer.progress import Progress, Terminal

if TYPE_CHECKING:
    from diffeqformer.training.trainer import TrainResult


def run(words: Sequence[str], as_json: bool) -> None:
    """Train the model of a config, or continue its run; write the run's report."""
    config = config_from(words, "train")
    from diffeqformer.training.trainer import train

    progress = Terminal()
    show(train(config, progress), progress, as_json)


def show(result: "TrainResult", progress: Progress, as_json: bool) -> None:
    """Write a finished run's report, and print what it found."""
    from diffeqformer.report.html import write_report
    from diffeqformer.report.text import evaluations
    from diffeqformer.training.folder import RESULTS
    from diffeqformer.training.results import read_results

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
