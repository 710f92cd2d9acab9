"""`diffeqformer reproduce elastic [--seeds 0 1 2] [--to DIR]`"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from diffeqformer.cli.output import print_json
from diffeqformer.cli.parse import parse
from diffeqformer.config import DataConfig
from diffeqformer.errors import BadInput
from diffeqformer.progress import Terminal


@dataclass(frozen=True)
class Arguments:
    """One checkpoint for every depth; runs that are finished are kept when it is started again.

    Train the elastic model, and with the same compute a DiffEqFormer and a vanilla GPT at each of several depths alone;
    read the elastic one at every depth from 3 to 12, at 18 and at 24.

    Example: diffeqformer reproduce elastic
    """

    to: Annotated[str, tyro.conf.arg(metavar="DIR")] = "runs/elastic"
    """Folder of all runs and of the page."""
    seeds: Annotated[tuple[int, ...], tyro.conf.arg(metavar="SEED")] = (0,)
    """Everything is trained once with each."""
    depths: Annotated[tuple[int, ...], tyro.conf.arg(metavar="N")] = (3, 5, 6, 8, 12)
    """Depths at which the models to compare with are trained."""
    scale: float = 1.0
    """Of all numbers of updates; 1 is 9,000 evaluations of the field a model."""
    data: Annotated[tuple[str, ...], tyro.conf.arg(metavar="FILES")] = ()
    """Text files or globs; the source of Python's standard library if not given."""
    cache: str = DataConfig.cache
    """Folder of packed tokens."""


def run(words: Sequence[str], as_json: bool) -> None:
    """Train what is missing, then write the page over all seeds."""
    asked = parse(Arguments, words, "diffeqformer reproduce elastic")
    if not 0 < asked.scale < float("inf"):
        raise BadInput(f"--scale is {asked.scale}, but must be a positive number.")
    for depth in asked.depths:
        if depth < 1:
            raise BadInput(f"--depths has {depth}, but must be at least 1.")
    from diffeqformer.experiments.elastic import Plan, records, reproduce
    from diffeqformer.report.elastic_page import elastic_arrays, elastic_markdown, elastic_page
    from diffeqformer.report.page import write_page

    progress, folder = Terminal(), Path(asked.to).expanduser()
    text = (
        DataConfig(source="files", train=asked.data, cache=asked.cache) if asked.data else DataConfig(cache=asked.cache)
    )
    plan = Plan(asked.depths, scale=asked.scale, data=text)
    found = [reproduce(plan, seed, folder / f"seed-{seed}", progress) for seed in asked.seeds]
    rows = records(found)
    page = write_page(folder, "elastic", elastic_page(rows, [_about(found[0])]), elastic_arrays(rows))
    progress.say(f"page: {page}")
    if as_json:
        return print_json(rows)
    print(elastic_markdown(rows))


def _about(found: Mapping[str, Any]) -> str:
    """What was trained on what, in one paragraph."""
    config = found["models"][0]["config"]
    m, t, depth, corpus = config["model"], config["trainer"], config["depth"], found["corpus"]
    settings = {f"depth.{name}": value for name, value in depth.items()} | {
        "model.scheme": m["scheme"],
        "model.first_step": m["first_step"],
        "model.time.highest_frequency": m["time"]["highest_frequency"],
    }
    return (
        f"Text: {corpus['train_tokens']:,} training and {corpus['validation_tokens']:,} validation tokens of "
        f"{m['vocabulary']:,} kinds. Width {m['width']}, {m['heads']} heads, context {m['context']}, {t['batch_size']} "
        f"sequences an update. Elastic: {', '.join(f'{name} {value}' for name, value in settings.items())}."
    )
