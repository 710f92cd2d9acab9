"""`diffeqformer export RUN --to DIR [--steps N] [--dtype ...] [--adapter] [--push NAME]`"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from diffeqformer.cli.output import human, print_json, print_table
from diffeqformer.cli.parse import parse
from diffeqformer.config import Which
from diffeqformer.config.bounds import MOST_STEPS, SIZES, setting
from diffeqformer.errors import BadInput
from diffeqformer.progress import Terminal


@dataclass(frozen=True)
class Arguments:
    """Write a run's model as a folder that Hugging Face's AutoModelForCausalLM and AutoTokenizer load.

    Example: diffeqformer export runs/quickstart/diffeqformer --steps 6 --to exports/diffeqformer
    """

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    to: Annotated[str, tyro.conf.arg(metavar="DIR")]
    """Folder to write, new or empty."""
    steps: Annotated[int | None, tyro.conf.arg(metavar="INT")] = setting(None, least=1, most=MOST_STEPS)
    """Populate the model at this many depth steps; if not given, weights that are functions of depth stay so."""
    checkpoint: Which = "latest"
    """Newest checkpoint, the one of lowest validation loss, or the newest that is not damaged."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Precision of the tensors."""
    shard_mb: int = setting(5000, least=1, most=SIZES)
    """Megabytes of the largest file of tensors."""
    adapter: bool = False
    """Keep low-rank adapters apart, in DIR/adapter in PEFT's format, instead of merging them into the matrices."""
    push: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Send the folder to this repository on the Hugging Face hub, ORGANISATION/NAME; `hf auth login` signs in."""
    private: bool = False
    """Make that repository, if it is new, one that others do not see."""


def run(words: Sequence[str], as_json: bool) -> None:
    """Export, and print what was written."""
    given = parse(Arguments, words, "diffeqformer export")
    from diffeqformer.interop.exporting import export
    from diffeqformer.runs.opening import load_run
    from diffeqformer.store.hub import Upload

    progress = Terminal()
    if given.private and given.push is None:
        raise BadInput("--private is given, but without --push nothing is sent anywhere.")
    upload = None if given.push is None else Upload(given.push, given.private)
    opened = load_run(given.run, given.checkpoint, progress)
    size, base = given.shard_mb * 1_000_000, upload.name if upload else None
    made = export(opened, given.to, given.steps, given.dtype, size, given.adapter, progress, base)
    address = None if upload is None else upload.send(made.folder)
    if as_json:
        found = {"folder": str(made.folder), "architecture": made.architecture, "trust_remote_code": made.own_code}
        sizes = {"continuous": made.continuous, "steps": made.steps, "parameters": made.parameters, "dtype": made.dtype}
        return print_json({**found, **opened.which, **sizes, "pushed": address})
    columns, steps = ["class", "steps", "parameters", "dtype"], f"any; {made.steps}" if made.continuous else made.steps
    print_table(str(made.folder), columns, [[made.architecture, str(steps), human(made.parameters), made.dtype]])
    trust = ", trust_remote_code=True" if made.own_code else ""
    if not made.continuous and given.steps is None and opened.config.model.weights.kind != "layer":
        print(f"The run takes other numbers of steps, too; what is exported has {made.steps}, which --steps chooses.")
    print(f"Load it with AutoModelForCausalLM.from_pretrained({upload.name if upload else str(made.folder)!r}{trust})")
