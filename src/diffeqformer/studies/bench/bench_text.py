"""`bench text`: speed of turning text into tokens and tokens into batches, against the speed of training."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from diffeqformer.config import Config
from diffeqformer.progress import Progress, Silent
from diffeqformer.report.table import Table
from diffeqformer.report.text import join, number, size
from diffeqformer.studies.bench import benchmark as b
from diffeqformer.studies.inputs import shipped
from diffeqformer.studies.study import Result

CHARACTERS = 4_000_000
"""Characters of the training text that are used: enough for about a second of work."""
UPDATE = "a training update"


@dataclass(frozen=True)
class Arguments(b.Timed):
    """Time a tokenizer's training, packing and the batches, beside the update that reads them.

    Example: diffeqformer bench text --to benchmarks/text.json
    """


def study(arguments: Arguments, progress: Progress) -> Result:
    """Time the steps between the quickstart's text and its updates."""
    config = shipped("quickstart-diffeqformer")
    rows = compare_text(config, arguments.rounds, progress)
    return BENCHMARK.measured(arguments, source=config.data.source, sizes=b.sizes(config), rows=rows)


def compare_text(config: Config, rounds: int, progress: Progress, *, characters: int = CHARACTERS) -> list[b.Document]:
    """Time the steps between text and an update of `config`'s model, and the update itself, in turns.

    **Arguments:** `config`, whose `data` is the text; `characters`, how much of it is used.

    **Returns:** one row each for training the tokenizer, for packing (read, tokenise, write, over all cores), for all
    batches of an epoch and for the update: `tokens` and `bytes` processed (no bytes where no text is read), and the
    numbers of `summary` in seconds per token, ratios to the update.

    **Raises:** `BadInput` for a text that cannot be read.
    """
    from diffeqformer.data.cache import tokens_of
    from diffeqformer.data.loader import Loader
    from diffeqformer.data.tokenizer import train_tokenizer

    text = _beginning(config, characters, progress)
    with tempfile.TemporaryDirectory() as folder:
        source, packed = Path(folder, "text.txt"), Path(folder, "tokens.bin")
        source.write_bytes(text.encode())
        tokenizer = train_tokenizer([text], config.data.tokenizer_vocabulary)
        pack = lambda: tokens_of((str(source),), config.data, tokenizer, Silent())
        tokens, size, _ = pack()
        tokens.tofile(packed)
        context, batch = config.model.context, config.trainer.batch_size
        loader = Loader(np.memmap(packed, tokens.dtype, "r"), context, batch, config.trainer.seed)

        def epoch() -> None:
            for number in range(len(loader)):
                loader[number]

        once = {
            "training the tokenizer": lambda: train_tokenizer([text], config.data.tokenizer_vocabulary),
            "tokenising and packing": pack,
            "loading batches": epoch,
            UPDATE: b.repeated(config),
        }
        seconds = b.take_turns(once, rounds, progress)
    through = dict.fromkeys(once, len(tokens)) | {"loading batches": len(loader) * batch * context}
    through[UPDATE] = batch * context
    each = {name: [one / through[name] for one in times] for name, times in seconds.items()}
    read = {"training the tokenizer": size, "tokenising and packing": size}
    return [
        {"what": name, "tokens": through[name], "bytes": read.get(name), **b.summary(times, each[UPDATE])}
        for name, times in each.items()
    ]


def _beginning(config: Config, characters: int, progress: Progress) -> str:
    """Read whole documents of the training text until there are at least `characters` characters."""
    from diffeqformer.data.corpus import open_corpus
    from diffeqformer.data.split import Part

    found, length = [], 0
    part, _ = open_corpus(config.data, progress).split()
    assert isinstance(part, Part), "benchmarks read text"
    for document in part.read():
        found.append("".join(document))
        length += len(found[-1])
        if length >= characters:
            break
    return "\n".join(found)


def tables(document: b.Document) -> tuple[Table, ...]:
    """Tabulate one row per step from text to an update; ratios are inverted into ratios of speed."""
    rows = []
    for row in document["rows"]:
        speed, ratio, rounds = (1 / row[name] for name in ("median_seconds", "ratio_of_medians", "median_of_ratios"))
        high, low = (number(1 / one, 1) for one in row["quartiles_of_ratios"])
        megabytes = "" if row["bytes"] is None else number(speed * row["bytes"] / row["tokens"] / 1e6, 2)
        rows.append((row["what"], megabytes, number(speed), number(ratio, 1), f"{number(rounds, 1)} ({low} to {high})"))
    read = size(max(row["bytes"] or 0 for row in document["rows"]))
    update = b.stated_sizes(document)
    caption = f"From text to updates: {read} of data.source {document['source']}; the update: {update}"
    return (Table(caption, ("", "MB/s", "tokens/s", "times the update's", "the same by rounds"), tuple(rows)),)


def _headline(document: b.Document) -> str:
    others = [row for row in document["rows"] if row["what"] != UPDATE]
    faster = [f"{row['what']} {number(1 / row['ratio_of_medians'])}" for row in others]
    return f"Tokens per second divided by those of an update: {join(faster)}."


BENCHMARK = b.Benchmark(
    "text",
    "Text and batches",
    "How fast a tokenizer is trained, text is packed and batches are loaded, compared with how fast an update of the "
    "quickstart's DiffEqFormer consumes tokens. Above 1, the update does not wait.",
    _headline,
    tables,
)
