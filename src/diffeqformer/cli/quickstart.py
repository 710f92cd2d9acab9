"""`diffeqformer quickstart`: the main job, on text that every Python has."""

import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro

from diffeqformer.cli.output import print_json, print_table
from diffeqformer.cli.parse import find_config, parse
from diffeqformer.config import read_yaml
from diffeqformer.errors import BadInput
from diffeqformer.progress import Terminal
from diffeqformer.validation import validate

MODELS = ("quickstart-elastic", "quickstart-diffeqformer", "quickstart-gpt", "quickstart-shared")
MINUTES = 25.0
"""On two CPU cores, for the number of updates that the configs name."""
DEPTHS = (3, 4, 5, 6, 8, 12, 24)
PROMPT = 'def read_config(path):\n    """'


@dataclass(frozen=True)
class Arguments:
    """Train four models on Python's standard library with the same compute, and compare them.

    DiffEqFormer elastic, one checkpoint for every depth; as in the paper, at one depth; vanilla GPT; shared weights.

    Example: diffeqformer quickstart --minutes 1
    """

    minutes: float = MINUTES
    """Scales the number of updates; at 25 each model gets the compute of 1500 updates at 6 steps, which is meant to
    take as long on 2 CPU cores."""
    seed: int = 0
    """Of initial weights and of the order of batches."""
    run: str = ""
    """Folder of the results; runs/quickstart, with minutes and seed in the name if they are not the usual ones."""
    open: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Show the report in the browser when done."""


def run(words: Sequence[str], as_json: bool) -> None:
    """Train, evaluate, sample, and write the report."""
    arguments = parse(Arguments, words, "diffeqformer quickstart")
    if not 0 < arguments.minutes < float("inf"):
        raise BadInput(f"--minutes is {arguments.minutes}, but must be a positive number.")
    folder = Path(arguments.run or _folder(arguments))
    configs = []
    for name in MODELS:
        path = find_config(name)
        config = read_yaml(path)
        updates = max(20, round(config.trainer.updates * arguments.minutes / MINUTES))
        every = max(10, updates // 6)
        trainer = replace(config.trainer, updates=updates, seed=arguments.seed, evaluate_every=every)
        configs.append(validate(replace(config, run=str(folder / path.stem.split("-")[1]), trainer=trainer)))

    from diffeqformer.report.html import write_report
    from diffeqformer.runs.compare import compare

    progress = Terminal()
    part = min(1.0, max(0.1, arguments.minutes / MINUTES))  # reading at other depths takes no more than its share
    found = compare(configs, folder, "Quickstart", PROMPT, DEPTHS, progress, part)
    report = folder / "report.html"
    write_report(found, report)
    if as_json:
        print_json(found)
    else:
        print_table(
            "",
            ["model", "parameters", "populated", "loss (nats)", "perplexity", "bits/byte", "tokens/s"],
            [
                [
                    model["name"],
                    f"{model['parameters']['stored']:,}",
                    f"{model['parameters']['effective']:,}",
                    f"{model['validation']['loss']:.4f}",
                    f"{model['validation']['perplexity']:.2f}",
                    f"{model['validation']['bits_per_byte']:.4f}",
                    f"{model['tokens_per_second']:,.0f}",
                ]
                for model in found["models"]
            ],
        )
    progress.say(f"report: {report.resolve()}")
    if arguments.open:
        webbrowser.open(report.resolve().as_uri())


def _folder(arguments: Arguments) -> str:
    minutes = "" if arguments.minutes == MINUTES else f"-{arguments.minutes:g}-minutes"
    seed = "" if arguments.seed == 0 else f"-seed-{arguments.seed}"
    return f"runs/quickstart{minutes}{seed}"
