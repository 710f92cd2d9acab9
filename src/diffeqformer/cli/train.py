"""`diffeqformer train CONFIG [--key value ...]`"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diffeqformer.cli.distributed import Distributed, join, progress_of_main
from diffeqformer.cli.output import human, print_json, print_table
from diffeqformer.cli.parse import ConfigArguments, arguments_from
from diffeqformer.config import Config, validate
from diffeqformer.errors import BadInput
from diffeqformer.progress import Progress
from diffeqformer.store.paths import path_of

if TYPE_CHECKING:
    from diffeqformer.runs.trainer import TrainResult


@dataclass(frozen=True)
class Arguments(ConfigArguments):
    """Train the model of a config; the same command again continues a run that was stopped.

    Example: diffeqformer train quickstart-gpt --run runs/mine --data.source files --data.train 'texts/*.txt'
    """

    dry_run: bool = False
    """Report the text, memory, time and first loss of the run, and do not begin it."""
    distributed: Distributed = field(default_factory=Distributed)


def run(words: Sequence[str], as_json: bool) -> None:
    """Train the model of a config, or continue its run; write the run's report."""
    given = arguments_from(words, "train", Arguments)
    if not any(word.partition("=")[0] == "--run" for word in words):
        _require_own_folder(Path(given.config), given.settings.run)
    join(given.distributed)
    config = validate(given.settings)  # `train` does so too, for callers from Python
    from diffeqformer.runs.trainer import train

    progress = progress_of_main()
    if given.dry_run:
        return _rehearse(config, progress, as_json)
    show(train(config, progress), progress, as_json)


def _require_own_folder(config: Path, run: str) -> None:
    """Check that a config that lies in a run folder names that folder; in a copied or renamed run it does not.

    **Raises:** `BadInput` with both, since either may be meant.
    """
    from diffeqformer.runs.folder import CHECKPOINTS, CONFIG

    folder = config.parent
    if config.name == CONFIG and (folder / CHECKPOINTS).is_dir() and path_of(run).resolve() != folder.resolve():
        raise BadInput(
            f"config {str(config)!r} lies in the run folder {str(folder)!r}, but names {run!r}, as after copying or "
            f"renaming; say which with --run, for example `--run {shlex.quote(str(folder))}`."
        )


def _rehearse(config: Config, progress: Progress, as_json: bool) -> None:
    from diffeqformer.report.text import counted, duration, number
    from diffeqformer.runs.rehearsal import rehearse

    found = rehearse(config, progress)
    if as_json:
        return print_json(found._asdict() | {"memory": found.memory._asdict() | {"total": found.memory.total}})
    text, t = found.text, config.trainer
    epochs = "" if found.epochs is None else f", {found.epochs:.3g} epoch{'s' * (found.epochs != 1)}"
    rows = [
        ("text", f"{text['name']}: {number(text['train_tokens'])} tokens, "
                 f"{number(text['validation_tokens'])} held out"),
        ("training", f"{counted(t.updates, 'update')} of {t.batch_size} x {config.model.context} tokens{epochs}"),
        ("memory", f"{human(found.memory.total or 0, 'B')} per device"),
        ("time", f"{duration(found.seconds)} for the updates alone, {found.seconds_per_update:.3g} s per update"),
        ("first loss", f"{found.first_loss:.4f} nats per token"),
    ]  # fmt: skip
    print_table("", ["", ""], rows)


def show(result: "TrainResult", progress: Progress, as_json: bool, more: Mapping[str, Any] = {}) -> None:
    """Write a finished run's report, and print what it found; of several processes only the main one does.

    **Arguments:** `more`, entries to add to the JSON document.
    """
    from diffeqformer.runs.distributed import is_main

    if not is_main():
        return
    from diffeqformer.report.run_text import drawn_rows
    from diffeqformer.report.text import evaluations, number, perplexity, speed
    from diffeqformer.runs.results import results_of
    from diffeqformer.studies.run_report import write_linked_report

    document = results_of(result.folder)
    assert document is not None
    report = result.folder / "report.html"
    write_linked_report(document, report)
    progress.say(f"report: {report}")
    if as_json:
        return print_json({**document, **more})
    validation = result.entry["validation"]
    row = [number(validation["loss"], 4), perplexity(validation["perplexity"]), number(validation["bits_per_byte"], 4)]
    cost = [evaluations(result.entry.get("evaluations")), speed(result.entry["tokens_per_second"])]
    columns = ["run", "loss (nats)", "perplexity", "bits/byte", "NFE", "tokens/s"]
    print_table("", columns, [[str(result.folder), *row, *cost]])
    if drawn := drawn_rows(result.entry):
        print_table("\nin training, by depth", ["steps", "updates", "loss, last tenth", "tokens/s"], drawn)
