"""The work of `bench text`: how fast text becomes tokens and tokens become batches, beside how fast training reads."""

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from diffeqformer.benchmarks.timing import repeated, summary, take_turns
from diffeqformer.config import Config, read_yaml, shipped_configs
from diffeqformer.data.cache import tokens_of
from diffeqformer.data.corpus import open_corpus
from diffeqformer.data.loader import Loader
from diffeqformer.data.tokenizer import train_tokenizer
from diffeqformer.progress import Progress, Silent

CHARACTERS = 4_000_000
"""Of the training text: enough for a second of work or so."""
UPDATE = "a training update"


def quickstart() -> Config:
    """The config whose text, tokenizer, batches and update are measured."""
    config = read_yaml(shipped_configs()["quickstart-diffeqformer"])
    model = dataclasses.replace(config.model, vocabulary=config.data.tokenizer_vocabulary)
    return dataclasses.replace(config, model=model)


def compare_text(
    config: Config, rounds: int, progress: Progress, *, characters: int = CHARACTERS
) -> list[dict[str, Any]]:
    """Time what stands between text and an update of `config`'s model, and the update itself, in turns.

    **Arguments:** `config`, its `data` the text, with `model.vocabulary` set; `rounds`, as for `take_turns`;
    `characters`, how much of the text.

    **Returns:** a row for training the tokenizer, for packing (read, tokenise, write, over all cores), for all batches
    of an epoch and for the update: `tokens` and `bytes` that it went through (no bytes where no text is read), and of
    seconds a token the numbers of `summary`, ratios to the update's.

    **Raises:** `BadInput` for a text that cannot be read.
    """
    text = _beginning(config, characters, progress)
    with tempfile.TemporaryDirectory() as folder:
        source, packed = Path(folder, "text.txt"), Path(folder, "tokens.bin")
        source.write_bytes(text.encode())
        tokenizer = train_tokenizer([text], config.data.tokenizer_vocabulary)
        pack = lambda: tokens_of((str(source),), config.data, tokenizer, Silent())
        tokens, size = pack()
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
            UPDATE: repeated(config),
        }
        seconds = take_turns(once, rounds, progress)
    through = dict.fromkeys(once, len(tokens)) | {"loading batches": len(loader) * batch * context}
    through[UPDATE] = batch * context
    each = {name: [one / through[name] for one in times] for name, times in seconds.items()}
    read = {"training the tokenizer": size, "tokenising and packing": size}
    return [
        {"what": name, "tokens": through[name], "bytes": read.get(name), **summary(times, each[UPDATE])}
        for name, times in each.items()
    ]


def _beginning(config: Config, characters: int, progress: Progress) -> str:
    """Whole documents of the training text until there are so many characters."""
    found, length = [], 0
    for document in open_corpus(config.data, progress).split()[0].read():
        found.append("".join(document))
        length += len(found[-1])
        if length >= characters:
            break
    return "\n".join(found)
