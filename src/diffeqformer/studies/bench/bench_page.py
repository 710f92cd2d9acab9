"""`bench page`: one Markdown page of the documents that `diffeqformer bench NAME --to FILE` writes."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from textwrap import fill

from diffeqformer.errors import BadInput
from diffeqformer.plain import Document
from diffeqformer.progress import Progress
from diffeqformer.report.text import join
from diffeqformer.store.files import read_sealed, write_output
from diffeqformer.store.paths import path_of
from diffeqformer.studies import BENCHMARKS
from diffeqformer.studies.bench.benchmark import Benchmark
from diffeqformer.studies.inputs import File, Folder
from diffeqformer.studies.study import Result

INTRODUCTION = """# Benchmarks

`make bench` takes these measurements on the machine that it runs on (`bench start --run RUN` and `bench drafts` also
need a run). Each command below writes a JSON document into `benchmarks/`, and `diffeqformer bench page` generates this
page, with every number in it, from these documents. `docs/performance.md` has what was found along the way, and what
was changed as a result.

The variants in a comparison take turns in one process, once per round, after two rounds that do not count. **Ratio** is
the ratio of the medians; **rounds' ratios** are the median and, in brackets, the quartiles of the ratios within each
round. Machines are shared, so absolute times change from day to day: rely on the ratios, but give little weight to
those with wide quartiles.
"""
WITH_TORCH = ("train", "generate")
NAMES = {"python": "Python", "jax": "JAX", "torch": "PyTorch", "transformers": "Transformers"}


@dataclass(frozen=True)
class Arguments:
    """Write one page of the documents that the other benchmarks leave with --to.

    Example: diffeqformer bench page --folder benchmarks --to benchmarks.md
    """

    folder: Folder = "benchmarks"
    """Folder of the documents."""
    to: File = ""
    """The .md file to write."""


@dataclass(frozen=True)
class Page(Result):
    """The headlines and figures of all benchmarks, and the Markdown that shows them with their tables."""

    markdown: str = ""


def study(arguments: Arguments, progress: Progress) -> Page:
    """Read all documents, and make the page of them.

    **Raises:** `BadInput` without a file to write; also `BadInput` and `Damaged` as `read_documents`.
    """
    if not arguments.to:
        raise BadInput("`bench page` needs a file to write: name it with --to.")
    if not arguments.to.endswith(".md"):
        raise BadInput(f"--to is {arguments.to!r}, but must end with .md.")
    return benchmark_page(read_documents(path_of(arguments.folder)), path_of(arguments.to).stem)


def write(result: Page, arguments: Arguments) -> dict[str, object]:
    """Write the page, and next to it every figure as `STEM-NAME.png`.

    **Raises:** `RunFailed` if a file cannot be written.
    """
    from diffeqformer.report.figures import save

    path = path_of(arguments.to)
    for figure in result.figures:
        write_output(path.with_name(f"{path.stem}-{figure.name}.png"), save(figure.figure, "png"), "figure")
    write_output(path, result.markdown.encode(), "page")
    return {"page": str(path)}


def benchmark_of(name: str) -> Benchmark:
    """Return the benchmark of this name."""
    return import_module(f"diffeqformer.studies.bench.bench_{name}").BENCHMARK


def read_documents(folder: Path) -> dict[str, Document]:
    """Read the documents of a folder, by name of the benchmark, in the order of the page.

    **Raises:** `BadInput` if there is none, or for a file that is the document of something else; `Damaged` for one
    that is not as it was written.
    """
    if not folder.is_dir():
        raise BadInput(f"--folder is {str(folder)!r}, which is no folder.")
    found = {}
    for name in BENCHMARKS:
        path = folder / f"{name}.json"
        if path.exists():
            document = read_sealed(path)
            if document.get("benchmark") != name:
                raise BadInput(f"file {str(path)!r} is no document of `diffeqformer bench {name} --to FILE`.")
            found[name] = document
    if not found:
        raise BadInput(f"folder {str(folder)!r} holds no document of a benchmark, such as train.json.")
    return found


def benchmark_page(documents: Mapping[str, Document], stem: str) -> Page:
    """Make the page of some documents; the names of its figures' files begin with `stem`."""
    results = [benchmark_of(name).result(document) for name, document in documents.items()]
    return Page(
        "benchmarks",
        "Benchmarks",
        (f"Of {', '.join(documents)}.", *(one.findings[0] for one in results)),
        figures=tuple(figure for one in results for figure in one.figures),
        document={"benchmarks": list(documents)},
        markdown="\n".join([INTRODUCTION, *(_section(one, stem) for one in results)]),
    )


def _section(result: Result, stem: str) -> str:
    document, (_, about, *marks) = result.document, result.findings
    if document["benchmark"] in WITH_TORCH and not {"torch", "transformers"} <= document["machine"]["versions"].keys():
        about += " PyTorch and Transformers were not installed, so their rows are missing."
    parts = [f"## {result.title}", f"`{document['command']}` on {_machine(document)}.", fill(about, 120)]
    parts += ["\n".join(f"- {mark}" for mark in marks)] if marks else []
    parts += [f"![{result.title}]({stem}-{figure.name}.png)" for figure in result.figures]
    parts += [table.to_markdown() for table in result.tables]
    return "\n\n".join(parts) + "\n"


def _machine(document: Document) -> str:
    """State where a document was measured, and how often."""
    there = document["machine"]
    versions = join([f"{NAMES[name]} {version}" for name, version in there["versions"].items()])
    devices = "" if there["device"] == "cpu" else f", {there['devices']} x {there['device']}"
    rounds = f"; {document['rounds']} rounds" if "rounds" in document else ""
    return (
        f"{there['cores']} core{'s' * (there['cores'] != 1)} of {there['processor']}{devices}, with {versions}{rounds}"
    )
