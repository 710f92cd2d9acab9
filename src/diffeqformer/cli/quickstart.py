"""`diffeqformer quickstart`: the main job, on text that every Python has."""

import time
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import tyro

from diffeqformer.cli.output import print_json, print_table
from diffeqformer.cli.parse import parse
from diffeqformer.config import read_shipped, validate
from diffeqformer.config.bounds import SIZES, UINT32, setting
from diffeqformer.progress import Terminal
from diffeqformer.store.paths import path_of, require_writable

MODELS = {"quickstart-diffeqformer": 0.0, "quickstart-gpt": 0.1, "quickstart-elastic": 0.2, "quickstart-shared": 0.2}
"""Configs, the most important first, each with the share of its updates below which it is left out."""
MINUTES = 10.0
START = 1.0
"""Seconds from the start of the process until this file is run."""
DEPTHS = (1, 2, 3, 4, 6, 8, 12, 24)
WHOLE_DEPTHS = 40.0
"""Minutes from which models are evaluated at `DEPTHS` on the whole validation text; below, on a proportional part."""
PROMPT = 'def read_config(path):\n    """'


@dataclass(frozen=True)
class Arguments:
    """Train up to four models on Python's standard library with as many updates each, and compare them.

    DiffEqFormer as in the paper, at one depth; vanilla GPT; an elastic model, one checkpoint for every depth; shared
    weights. With little time only the first, or the first two.

    Example: diffeqformer quickstart --minutes 2
    """

    minutes: float = setting(MINUTES, positive=True, most=SIZES)
    """From start to report. The machine's speed is measured, and models and updates are planned to fit."""
    seed: int = setting(0, least=0, most=UINT32)
    """Seed of initial weights and of the order of batches."""
    run: str = ""
    """Folder of the results; runs/quickstart, with minutes and seed in the name if they are not the usual ones."""
    open: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Show the report in the browser when done."""


def run(words: Sequence[str], as_json: bool) -> None:
    """Train, evaluate, sample, and write the report."""
    began = time.perf_counter()
    arguments = parse(Arguments, words, "diffeqformer quickstart")
    minutes = arguments.minutes
    folder = path_of(arguments.run or _folder(arguments))
    require_writable(folder, "folder")
    configs = []
    for name in MODELS:
        config = read_shipped(name)
        batches = config.trainer.evaluate_batches if minutes >= MINUTES / 2 else 4
        trainer = replace(config.trainer, seed=arguments.seed, evaluate_batches=batches)
        configs.append(validate(replace(config, run=str(folder / name.split("-")[1]), trainer=trainer)))

    from diffeqformer.report.text import perplexity, speed
    from diffeqformer.runs.compare import compare
    from diffeqformer.runs.readings import Readings
    from diffeqformer.studies.run_report import write_linked_report

    progress = Terminal()
    part = min(1.0, max(0.05, minutes / WHOLE_DEPTHS))
    # In short runs at 1, 2, 4 and 12 steps.
    readings = Readings(PROMPT, DEPTHS if minutes >= MINUTES / 2 else (*DEPTHS[:2], *DEPTHS[3::3]), part)
    found = compare(
        configs, list(MODELS.values()), folder, "Quickstart", readings, began + 60 * minutes - START, progress
    )
    report = folder / "report.html"
    write_linked_report(found, report)
    if as_json:
        print_json(found)
    else:
        print_table(
            "",
            ["model", "parameters", "populated", "loss (nats)", "perplexity", "bits/byte", "tokens/s"],
            [
                [
                    model["name"], f"{model['parameters']['stored']:,}", f"{model['parameters']['effective']:,}",
                    f"{model['validation']['loss']:.4f}", perplexity(model["validation"]["perplexity"]),
                    f"{model['validation']['bits_per_byte']:.4f}", speed(model["tokens_per_second"]),
                ]
                for model in found["models"]
            ],
        )  # fmt: skip
    progress.say(f"report: {report.resolve()}")
    if arguments.open:
        webbrowser.open(report.resolve().as_uri())


def _folder(arguments: Arguments) -> str:
    minutes = "" if arguments.minutes == MINUTES else f"-{arguments.minutes:g}-minutes"
    seed = "" if arguments.seed == 0 else f"-seed-{arguments.seed}"
    return f"runs/quickstart{minutes}{seed}"
