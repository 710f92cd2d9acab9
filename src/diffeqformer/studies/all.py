"""`diffeqformer analyze all`: every analysis of a run, all on the same text, and a page that links them."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib import import_module
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from diffeqformer.errors import BadInput, RunFailed
from diffeqformer.progress import Progress
from diffeqformer.report.text import counted
from diffeqformer.studies import ANALYSES, inputs
from diffeqformer.studies.study import Result

if TYPE_CHECKING:
    from diffeqformer.runs.opening import Run

OTHERS: Mapping[str, str] = {name: about for name, about in ANALYSES.items() if name != "all"}
"""Every other analysis, and what it does."""
LONG = ("compression", "depth", "steps")
"""Analyses that read long texts, not only one of at most the context's length."""
TOKENS = 48
"""Tokens that are read from the validation split if no text is given."""


@dataclass(frozen=True, kw_only=True)
class Arguments(inputs.OfText):
    """Every analysis of a run at its usual settings, on one text where it reads one, and the page that links them.

    Example: diffeqformer analyze all runs/quickstart/diffeqformer --text "def main(argv):"
    """

    text: Annotated[str | None, tyro.conf.arg(metavar="TEXT")] = None
    """Text that every analysis of a text reads, at most as long as the model's context; some lines from the middle of
    the text of --data if not given."""
    only: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = ()
    """Analyses to make; all if not given."""


@dataclass(frozen=True)
class Overview(Result):
    """The findings of several analyses, one sentence each."""

    found: Mapping[str, str] = field(default_factory=dict)
    """Each analysis's headline, by name, or why it cannot be made."""

    def show(self) -> None:
        """Print the headlines."""
        from rich.console import Console

        from diffeqformer.plain import clean

        console = Console(highlight=False, markup=False)
        said = (
            fill(clean(line), max(console.width, 40), initial_indent=f"{name:<13}", subsequent_indent=" " * 13)
            for name, line in self.found.items()
        )
        console.print("\n".join([*map(clean, self.findings), "", *said]), soft_wrap=True)


def study(arguments: Arguments, progress: Progress) -> Overview:
    """Make the analyses one after another. As each is made, its page and the page that links all are written.

    An analysis that cannot be made of this run is reported with its reason, on the page too; one that fails ends all
    with its error once the others are made.

    **Raises:** `BadInput` for a name that is no analysis, or, with all reasons, if none can be made of this run;
    `RunFailed` as the analyses.
    """
    if unknown := [name for name in arguments.only if name not in OTHERS]:
        raise BadInput(f"--only has {unknown[0]!r}, but the analyses are {', '.join(OTHERS)}.")
    run, folder = arguments.open("", progress)
    run.model.grid(arguments.steps)
    if arguments.text is not None:
        inputs.ids_of(run, arguments.text)
    names = [name for name in OTHERS if not arguments.only or name in arguments.only]
    reads = arguments.text is not None or any("text" in _options(name) for name in names)
    text = arguments.text or (_lines(run, arguments.data, progress) if reads else "")
    made: dict[str, Result] = {}
    refused: dict[str, str] = {}
    broken: Exception | None = None
    for number, name in enumerate(names, 1):
        progress.say(f"{number}/{len(names)} {name}: {OTHERS[name]}")
        module = import_module(f"diffeqformer.studies.{name}")
        try:
            made[name] = module.study(_arguments_of(name, arguments, text, folder / name), progress)
        except Exception as error:
            known = isinstance(error, BadInput | RunFailed)  # anything else is a bug of ours
            refused[name] = str(error) if known else f"it failed with {type(error).__name__}."
            progress.say(f"{name} cannot be made of this run: {refused[name]}")
            if not isinstance(error, BadInput):
                broken = broken or error
        else:
            made[name].write(home="../index.html")
        write_index(folder, arguments.run, refused)
    if broken is not None and (made or not isinstance(broken, RunFailed)):
        raise broken
    if not made:
        raise BadInput(f"no analysis can be made of {arguments.run}: {' '.join(refused.values())}")
    whose = f" of {inputs.whose(arguments.data)}" if arguments.text is None else ""
    of_text = f" Those of a text read {counted(len(inputs.ids_of(run, text)), 'token')}{whose}." if reads else ""
    return Overview(
        "all",
        f"{arguments.run}: all pages",
        (f"{len(made)} of {len(names)} analyses of {run.folder}, update {run.step}.{of_text}",),
        document={
            **run.which,
            "text": text,
            "analyses": {name: one.document for name, one in made.items()},
            "refused": refused,
        },
        folder=folder,
        found={name: made[name].findings[0] if name in made else f"cannot be made: {refused[name]}" for name in names},
    )


def write(result: Overview, arguments: Arguments) -> dict[str, str]:
    """Return the path of the page that links all others; `study` has already written it."""
    return {"page": str(result.folder / "index.html")}


def write_index(folder: Path, run: str, refused: Mapping[str, str] | None = None) -> Path:
    """Write the page that links all pages of a run's analyses, or of simulations if there is no run."""
    from diffeqformer.report.contents import write_contents

    make = f"diffeqformer analyze all {shlex.quote(run)}" if run else ""
    return write_contents(folder, f"{run or 'Simulated particles'}: all pages", OTHERS, refused, make)


def _arguments_of(name: str, given: Arguments, text: str, folder: Path) -> Any:
    """Build one analysis's arguments from those given for all."""
    steps = str(given.steps or "") if name == "depth" else given.steps  # depth takes several numbers
    shared = {"run": given.run, "steps": steps, "checkpoint": given.checkpoint, "text": text, "to": str(folder)}
    if name in LONG:
        shared["data"] = given.data
    own, kind = _options(name), import_module(f"diffeqformer.studies.{name}").Arguments
    return kind(**{option: value for option, value in shared.items() if option in own})


def _options(name: str) -> set[str]:
    """Names of an analysis's arguments."""
    return {one.name for one in fields(import_module(f"diffeqformer.studies.{name}").Arguments)}


def _lines(run: "Run", data: Sequence[str], progress: Progress) -> str:
    """Return the text of about `TOKENS` tokens from the middle of the files or, without files, of the run's validation
    split. It starts at a line's beginning if possible and lies in one document; it is shorter if the document is.

    **Raises:** `BadInput` if the run has no such text.
    """
    from diffeqformer.data.tokenizer import encode

    tokens, length = inputs.evaluation_text(run, data, progress)[0], min(TOKENS, run.config.model.context)
    ids = inputs.of_one_document(run, tokens[max(len(tokens) // 2 - length, 0) :][: 2 * length])
    decode = lambda some: run.tokenizer.decode(some.tolist())
    begin = next((i + 1 for i in range(len(ids) - length) if decode(ids[i : i + 1]).endswith("\n")), 0)
    # A cut between tokens can split a character, whose bytes then decode to U+FFFD.
    text = decode(ids[begin : begin + length]).strip("\ufffd")
    while len(encode(run.tokenizer, text)) > length:  # re-encoding can give other, and more, tokens
        text = text[:-1]
    return text
