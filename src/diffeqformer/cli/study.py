"""`diffeqformer analyze | bench | report | reproduce [NAME ...]`: lists the studies, or runs the one that is named."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from textwrap import fill
from types import ModuleType
from typing import Any

from diffeqformer.cli.output import print_json, print_text
from diffeqformer.cli.parse import parse
from diffeqformer.errors import BadInput
from diffeqformer.plain import nearest
from diffeqformer.progress import Terminal
from diffeqformer.store.files import sealed_text, write_output
from diffeqformer.store.paths import path_of
from diffeqformer.studies import ANALYSES, BENCHMARKS, EXPERIMENTS
from diffeqformer.studies.study import Result


def write_page(result: Result, arguments: Any) -> dict[str, str]:
    """Write the page and the numbers to the study's folder; returns their paths.

    In the usual folder of an analysis, a page next to it links those of all analyses.
    """
    usual = result.name in (*ANALYSES, "compare") and not getattr(arguments, "to", "")
    path = result.write(home="../index.html" if usual else "")
    if usual:
        from diffeqformer.studies.all import write_index

        write_index(path.parents[1], getattr(arguments, "run", getattr(arguments, "first", "")))
    return {"page": str(path), "arrays": str(path.with_name(f"{result.name}.npz"))}


def write_document(result: Result, arguments: Any) -> dict[str, str]:
    """Write the document to `--to` and the first figure to `--figure`, where they are given."""
    if getattr(arguments, "to", None):
        write_output(path_of(arguments.to), sealed_text(dict(result.document)), "document")
    if getattr(arguments, "figure", None):
        from diffeqformer.report.figures import save

        path = path_of(arguments.figure)
        write_output(path, save(result.figures[0].figure, path.suffix[1:]), "figure")
    return {}


def show(result: Result, written: Mapping[str, str], as_json: bool) -> None:
    """Print what a study found, and which files were written."""
    if as_json:
        own = result.document
        return print_json({**own, **written} if isinstance(own, Mapping) else own)
    result.show()
    if "page" in written:
        print_text(f"\n{written['page']}")


@dataclass(frozen=True)
class Verb:
    """A verb whose second word names a study."""

    name: str
    about: str
    """One sentence for the help."""
    noun: tuple[str, str]
    """The words for one study and for several."""
    known: Mapping[str, str]
    """The studies by name, and what each does."""
    example: str
    prefix: str = ""
    """The prefix of its modules' names in `studies`."""
    write: Callable[[Result, Any], dict[str, str]] = write_page
    """Writes the files of studies that do not write their own."""
    single_threaded: bool = False
    """Whether LAPACK has one thread. Analyses hand it many small matrices, and its own threads only get in each other's
    way: on a busy machine a batch of 128 x 128 singular values took a hundred times longer with two than with one."""

    def run(self, words: Sequence[str], as_json: bool) -> None:
        """List the studies, or run the one that is named, write its files and print what it found.

        A module with a function `write(result, arguments)` of its own decides which files are written, and returns what
        the JSON document holds of them; with `--list` there are none.

        **Raises:** `BadInput` for an unknown name, with the nearest one.
        """
        if not words and as_json:
            return print_json(dict(self.known))
        if not words or words[0] in ("-h", "--help", "help"):
            return print(self._help())
        name, rest = words[0], words[1:]
        if name not in self.known:
            one, several = self.noun
            if name.startswith("-"):
                raise BadInput(f"`diffeqformer {self.name}` needs one of {', '.join(self.known)} before {name!r}.")
            advice = nearest(name, self.known, f"the {several} are {', '.join(self.known)}.")
            raise BadInput(f"unknown {one} {name!r}: {advice}")
        if self.single_threaded:
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        module = self.module(name)
        arguments = parse(module.Arguments, rest, f"diffeqformer {self.name} {name}")
        write = getattr(module, "write", self.write)
        if write is write_document:  # refused before anything is measured
            _require_ending(getattr(arguments, "to", None), "to", (".json",))
            _require_ending(getattr(arguments, "figure", None), "figure", (".png", ".svg"))
        result = module.study(arguments, Terminal())
        written = {} if getattr(arguments, "list", False) else write(result, arguments)
        show(result, written, as_json)

    def module(self, name: str) -> ModuleType:
        """Import the module of a study."""
        return import_module(f"diffeqformer.studies.{self.prefix}{name}")

    def _help(self) -> str:
        entry = lambda name, what: fill(what, 60, initial_indent=f"  {name:<13}", subsequent_indent=" " * 15)
        names = (entry(name, what) for name, what in self.known.items())
        return "\n".join(
            [
                fill(self.about, 60),
                f"\nusage: diffeqformer {self.name} NAME [ARGUMENTS] [--json]\n",
                *names,
                f"\n  {self.name} NAME --help   arguments and an example",
                f"\nExample: diffeqformer {self.example}",
            ]
        )


STUDY_VERBS = {
    verb.name: verb
    for verb in (
        Verb(
            "analyze",
            "Look inside a model: numbers, figures, and a page to read, in RUN/analysis/NAME unless --to names a "
            "folder.",
            ("analysis", "analyses"),
            ANALYSES,
            "analyze clusters runs/quickstart/diffeqformer",
            single_threaded=True,
        ),
        Verb(
            "report",
            "Put runs side by side: numbers, figures, and a page to read.",
            ("report", "reports"),
            {"compare": "two runs side by side, task by task, with p-values"},
            "report compare runs/quickstart/diffeqformer runs/quickstart/gpt",
        ),
        Verb(
            "reproduce",
            "Experiments at small scale, from training to a page; runs that are finished are kept when one is started "
            "again.",
            ("experiment", "experiments"),
            EXPERIMENTS,
            "reproduce depth --task hops",
            prefix="reproduce.reproduce_",
        ),
        Verb(
            "bench",
            "Measure on this machine.",
            ("benchmark", "benchmarks"),
            BENCHMARKS,
            "bench train --rounds 15 --to benchmarks/train.json",
            prefix="bench.bench_",
            write=write_document,
        ),
    )
}


def _require_ending(name: str | None, option: str, endings: Sequence[str]) -> None:
    if name and Path(name).suffix not in endings:
        raise BadInput(f"--{option} is {name!r}, but must end with {' or '.join(endings)}.")
