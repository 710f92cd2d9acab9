"""`diffeqformer reproduce adapt --texts NAME=FILES NAME=FILES`"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from diffeqformer.cli.output import print_json
from diffeqformer.cli.parse import parse
from diffeqformer.config import DataConfig
from diffeqformer.errors import BadInput
from diffeqformer.progress import Terminal

if TYPE_CHECKING:
    from diffeqformer.experiments.adapt import Plan


@dataclass(frozen=True)
class Arguments:
    """Figure 5 of the paper at small scale; runs that are finished are kept when it is started again.

    Pretrain DiffEqFormer and a deeper vanilla GPT on each of two texts, fine-tune them on the other, by LoRA and in
    full, DiffEqFormer at several depths; compare with training from scratch.

    Example: diffeqformer reproduce adapt --texts code=stdlib wikitext='wikitext-2-raw/*.raw'
    """

    texts: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=FILES")]
    """Two texts: a name, and a file or glob, or `stdlib` for the source of Python's standard library. The tokenizer is
    trained on the first."""
    to: Annotated[str, tyro.conf.arg(metavar="DIR")] = "runs/adapt"
    """Folder of all runs and of the page."""
    seeds: Annotated[tuple[int, ...], tyro.conf.arg(metavar="SEED")] = (0,)
    """Everything is trained once with each."""
    steps: int = 6
    """Depth at which DiffEqFormer is pretrained, a multiple of 6."""
    pretraining: int = 1000
    """Updates of pretraining."""
    finetuning: int = 250
    """Updates of fine-tuning."""
    cache: str = DataConfig.cache
    """Folder of packed tokens."""


def run(words: Sequence[str], as_json: bool) -> None:
    """Train what is missing, then write the page over all seeds."""
    asked = parse(Arguments, words, "diffeqformer reproduce adapt")
    texts = dict(_text(word, asked.cache) for word in asked.texts)
    if len(texts) != 2:
        raise BadInput(f"--texts has {len(texts)} different names, but must have 2, such as code=stdlib notes=n.txt.")
    from diffeqformer.experiments.adapt import Plan, records, reproduce
    from diffeqformer.report.adapt_page import adapt_arrays, adapt_markdown, adapt_page
    from diffeqformer.report.page import write_page

    progress, folder = Terminal(), Path(asked.to).expanduser()
    plan = Plan(texts, asked.steps, asked.pretraining, asked.finetuning)
    found = [reproduce(plan, seed, folder / f"seed-{seed}", progress) for seed in asked.seeds]
    rows = records(found)
    page = write_page(folder, "adapt", adapt_page(rows, [_about(plan, found[0])]), adapt_arrays(rows))
    progress.say(f"page: {page}")
    if as_json:
        return print_json(rows)
    print(adapt_markdown(rows))


def _about(plan: "Plan", found: Mapping[str, Any]) -> str:
    """What was trained on what, in one paragraph."""
    from diffeqformer.experiments.adapt import LEARNING_RATES

    texts = ", ".join(
        f"{name} ({text['train_tokens']:,} training and {text['validation_tokens']:,} validation tokens)"
        for name, text in found["corpus"].items()
    )
    m, t = found["models"][0]["config"]["model"], found["models"][0]["config"]["trainer"]
    rates = ", ".join(f"{method} {rate:g}" for method, rate in LEARNING_RATES.items())
    return (
        f"Texts: {texts}; one tokenizer of {m['vocabulary']:,} entries. Width {m['width']}, {m['heads']} heads, "
        f"context {m['context']}, {t['batch_size']} sequences an update. Pretraining, and training from scratch: "
        f"{plan.pretraining:,} updates. Fine-tuning: {plan.finetuning:,} updates; peak learning rates: {rates}; LoRA "
        "of rank 8 beside all linear maps, embeddings trained too."
    )


def _text(word: str, cache: str) -> tuple[str, DataConfig]:
    name, equals, source = word.partition("=")
    if not (equals and source and re.fullmatch(r"[A-Za-z0-9_.-]+", name)) or name.startswith("."):
        raise BadInput(f"--texts has {word!r}, but must be NAME=FILES, the name of letters and digits.")
    if source == "stdlib":
        return name, DataConfig(cache=cache)
    return name, DataConfig(source="files", train=(source,), cache=cache)
