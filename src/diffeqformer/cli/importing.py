"""`diffeqformer import FOLDER|NAME [--adapter DIR] --to RUN`"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from diffeqformer.cli.output import human, print_json, print_table
from diffeqformer.cli.parse import parse
from diffeqformer.config.bounds import SIZES, setting
from diffeqformer.progress import Terminal


@dataclass(frozen=True)
class Arguments:
    """Make a run of a GPT-2, a Llama or an export, as Transformers saves it; eval, sample and info then open it.

    Example: diffeqformer import downloads/gpt2 --to runs/gpt2
    """

    folder: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
    """A folder with config.json, model.safetensors (or several such files and their index) and tokenizer.json; or the
    name of such a repository, or of a run, on the Hugging Face hub: ORGANISATION/NAME, with @REVISION for another
    revision."""
    to: Annotated[str, tyro.conf.arg(metavar="RUN")]
    """Folder of the run, new or empty."""
    adapter: Annotated[str | None, tyro.conf.arg(metavar="DIR")] = None
    """Low-rank adapters to add to the model, as PEFT saves them or `export --adapter` writes them."""
    context: Annotated[int | None, tyro.conf.arg(metavar="N")] = setting(None, least=1, most=SIZES)
    """Most tokens of a sequence; the model's own if not given. Evaluation and fine-tuning batches are sequences of
    this length, which is 8,192 to 131,072 in modern models."""


def run(words: Sequence[str], as_json: bool) -> None:
    """Import, and print the size of the model."""
    given = parse(Arguments, words, "diffeqformer import")
    from diffeqformer.config import to_dict
    from diffeqformer.interop.importing import import_huggingface
    from diffeqformer.model.count import parameters

    made = import_huggingface(given.folder, given.to, Terminal(), given.adapter, given.context)
    m = made.config.model
    stored = parameters(m).stored
    if as_json:
        return print_json({"run": str(made.folder), "parameters": stored, "model": to_dict(m)})
    columns = ["field", "parameters", "steps", "width", "heads", "context", "vocabulary"]
    sizes = [f"{size:,}" for size in (m.steps, m.width, m.heads, m.context, m.vocabulary or 0)]
    print_table(str(made.folder), columns, [[m.field.kind, human(stored), *sizes]])
