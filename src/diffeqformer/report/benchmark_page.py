"""The page of all benchmarks in Markdown, made of the documents that `diffeqformer bench NAME --to FILE` writes."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

from diffeqformer.errors import BadInput
from diffeqformer.report.benchmark_figures import FIGURES
from diffeqformer.report.benchmark_tables import TABLES, Document
from diffeqformer.report.figures import save
from diffeqformer.report.page import Table
from diffeqformer.report.text import join
from diffeqformer.store.files import read_sealed, sealed
from diffeqformer.store.files import write_output as write

INTRODUCTION = """# Benchmarks

`make bench` measures all of this on the machine that it runs on: each command below writes a JSON document into
`benchmarks/`, and `diffeqformer bench page` makes this page of them, every number of it. What was found on the way, and
what was changed for it, stands in `docs/performance.md`.

What is compared takes turns in one process, once each a round, after two rounds that do not count. **Ratio** is that of
the medians; **rounds' ratios** are the median and, in brackets, the quartiles of the ratios within each round.
Machines are shared, so that seconds change from day to day: ratios count, and those with wide quartiles count little.
"""


@dataclass(frozen=True)
class Section:
    """What is said of one benchmark."""

    title: str
    says: str
    """What is compared with what."""
    marks: Callable[[Document], Sequence[str]] = lambda found: ()
    """What is to be reached, and whether it is."""


def _row(found: Document, **wanted: Any) -> dict[str, Any] | None:
    """The row with these entries, if there is one."""
    return next((row for row in found["rows"] if all(row[name] == value for name, value in wanted.items())), None)


def _mark(what: str, value: float, met: bool) -> str:
    return f"Mark: {what}. Here {value:.3g}: {'met' if met else 'not met'}."


def _train_marks(found: Document) -> list[str]:
    mine, torch = _row(found, model="diffeqformer"), _row(found, model="torch")
    said = []
    if mine:
        ratio = mine["ratio_of_medians"]
        said.append(_mark("DiffEqFormer takes at most 1.25 times the vanilla update's time", ratio, ratio <= 1.25))
    if torch:
        ratio = torch["ratio_of_medians"]
        said.append(_mark("PyTorch takes at least as long as our vanilla update", ratio, ratio >= 1))
    return said


def _generate_marks(found: Document) -> list[str]:
    said = []
    for theirs in (row for row in found["rows"] if row["library"] == "transformers"):
        own = _row(found, model=theirs["model"], batch=theirs["batch"], library="diffeqformer")
        if own:
            ratio = own["tokens_per_second"] / theirs["tokens_per_second"]
            what = f"{theirs['model']}, batch {theirs['batch']}, is as fast as in Transformers (tokens/s over theirs)"
            said.append(_mark(what, ratio, ratio >= 1))
    return said


def _memory_marks(found: Document) -> list[str]:
    own = {row["steps"]: row["temporary_bytes"] for row in found["rows"] if row["gradient"] == "reversible"}
    if len(own) < 2:
        return []
    few, many = min(own), max(own)
    ratio = own[many] / own[few]
    return [_mark(f"reversible at {many} steps needs at most 1.1 times what it needs at {few}", ratio, ratio <= 1.1)]


SECTIONS: Mapping[str, Section] = {
    "train": Section(
        "Training update",
        "One update (loss, gradient, clipped AdamW) of DiffEqFormer and, where PyTorch is installed, of Hugging Face's "
        "GPT-2, against that of the vanilla transformer of the same size. The release of the paper's authors, measured "
        "in its own stack on a CPU at this size, takes 6.8 to 8.5 times its vanilla model's time.",
        _train_marks,
    ),
    "finetune": Section(
        "Fine-tuning update",
        "A model that has been written out as a table of layers, trained in full and by LoRA of rank 8, against an "
        "update of the vanilla transformer in full.",
    ),
    "generate": Section(
        "Generation",
        "A written-out DiffEqFormer and a vanilla transformer with a key-value cache, here and, where it is installed, "
        "exported to Transformers. Ratios are times over our vanilla model's.",
        _generate_marks,
    ),
    "drafts": Section(
        "Generation with drafts",
        "One trained checkpoint that drafts with few steps and checks with many, against plain decoding with many. "
        "Ratios below 1 are a gain.",
    ),
    "schemes": Section(
        "Schemes",
        "One update by each scheme against Euler's, and against what its evaluations of the field predict from Euler's "
        "and Heun's medians. The hand-written update has none of this library's solver.",
    ),
    "memory": Section(
        "Memory by depth",
        "What each `model.gradient` needs besides weights and their gradients, as the compiler plans it; nothing is "
        "run, so there is no spread. McCallum and Foster (2024) report 4 to 11.5 times less memory than plain "
        "backpropagation for their reversible gradients.",
        _memory_marks,
    ),
    "text": Section(
        "Text and batches",
        "How fast a tokenizer is trained, text is packed and batches are loaded, against the tokens that an update of "
        "the quickstart's DiffEqFormer takes: above 1 the update does not wait.",
    ),
    "scaling": Section(
        "Cost as sizes grow",
        "One size grows, the others stay. An exponent is that of a power of the size, fitted to medians, with its "
        "standard error. Theory is the same fit through the operations that are counted of these very updates, and "
        "through the stored parameters, all of which the optimiser reads and writes: time should grow as the one or "
        "the other, and more slowly where fixed costs are felt. Ratios are to the vanilla model of the same size.",
    ),
    "spectra": Section(
        "Spectra",
        "Eigenvalues through the small matrices of a head, against those of whole products of the model's width, of "
        "which some were solved and all extrapolated. Behind times and ratio stand lowest and highest; the difference "
        "is that of matched eigenvalues, over the spectral radius.",
    ),
    "lyapunov": Section(
        "Lyapunov exponents",
        "Products of Jacobians with tangents, against whole Jacobians by reverse mode on the same inputs. Behind times "
        "and ratio stand lowest and highest.",
    ),
    "start": Section(
        "Start-up",
        "Each command as a process of its own, from start to end, against a Python that does nothing. Importing the "
        "package and asking for help load no JAX.",
    ),
}
"""By the name of the benchmark."""
WITH_TORCH = ("train", "generate")


def read_documents(folder: Path) -> dict[str, Document]:
    """The documents of a folder by the name of the benchmark, in the order of the page.

    **Raises:** `BadInput` if there is none, or for a file that is the document of something else; `Damaged` for one
    that is not as it was written.
    """
    found = {}
    for name in TABLES:
        path = folder / f"{name}.json"
        if path.exists():
            document = read_sealed(path)
            if document.get("benchmark") != name:
                raise BadInput(f"file {str(path)!r} is no document of `diffeqformer bench {name} --to FILE`.")
            found[name] = document
    if not found:
        raise BadInput(f"folder {str(folder)!r} holds no document of a benchmark, such as train.json.")
    return found


def write_document(document: Document, path: Path) -> None:
    """Write what was measured to `path`, sealed, for `read_documents`.

    **Raises:** `RunFailed` if the disk refuses.
    """
    text = json.dumps(sealed(dict(document)), indent=1, allow_nan=False, ensure_ascii=False)
    write(path, f"{text}\n".encode(), "document")


def write_benchmark_page(documents: Mapping[str, Document], path: Path) -> None:
    """Write the page to `path`, and beside it a figure of each document that has one, `STEM-NAME.png`.

    **Raises:** `RunFailed` if the disk refuses.
    """
    figures = {name: f"{path.stem}-{name}.png" for name in documents if name in FIGURES}
    for name, file in figures.items():
        write(path.with_name(file), save(FIGURES[name](documents[name]), "png"), "figure")
    write(path, benchmark_page(documents, figures).encode(), "page")


def benchmark_page(documents: Mapping[str, Document], figures: Mapping[str, str]) -> str:
    """The page.

    **Arguments:** `documents` and files of `figures`, by the name of the benchmark.
    """
    return "\n".join([INTRODUCTION, *(_section(name, found, figures.get(name)) for name, found in documents.items())])


def _section(name: str, found: Document, figure: str | None) -> str:
    section = SECTIONS[name]
    says = section.says
    if name in WITH_TORCH and not {"torch", "transformers"} <= found["machine"]["versions"].keys():
        says += " PyTorch and Transformers were not installed, so their rows are missing."
    parts = [f"## {section.title}", f"`{found['command']}` on {_machine(found)}.", fill(says, 120)]
    parts += ["\n".join(f"- {mark}" for mark in marks)] if (marks := section.marks(found)) else []
    parts += [f"![{section.title}]({figure})"] if figure else []
    parts += [_markdown(table) for table in TABLES[name](found)]
    return "\n\n".join(parts) + "\n"


def _machine(found: Document) -> str:
    """Where it was measured, and how often."""
    there = found["machine"]
    names = {"python": "Python", "jax": "JAX", "torch": "PyTorch", "transformers": "Transformers"}
    versions = join([f"{names[name]} {version}" for name, version in there["versions"].items()])
    devices = "" if there["device"] == "cpu" else f", {there['devices']} x {there['device']}"
    rounds = f"; {found['rounds']} rounds" if "rounds" in found else ""
    return (
        f"{there['cores']} core{'s' * (there['cores'] != 1)} of {there['processor']}{devices}, with {versions}{rounds}"
    )


def _markdown(table: Table) -> str:
    """The caption and the table."""
    rows = [table.columns, ("---", *["---:"] * (len(table.columns) - 1)), *table.rows]
    cell = lambda text: text.replace("|", "\\|")
    return f"{table.caption}:\n\n" + "\n".join("| " + " | ".join(map(cell, row)) + " |" for row in rows)
