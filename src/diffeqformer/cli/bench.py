"""`diffeqformer bench train|finetune|generate|...`, and `bench page`, which makes one page of all their documents"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import tyro

from diffeqformer.cli.output import print_json, print_table
from diffeqformer.cli.parse import parse, whole_numbers
from diffeqformer.config import Config
from diffeqformer.errors import BadInput
from diffeqformer.progress import Progress, Terminal

ROUNDS, STEPS, FOLDER = 9, "12,24,48,96", "benchmarks"
What = Literal[
    "train", "finetune", "generate", "drafts", "schemes", "memory", "text", "scaling", "spectra", "lyapunov", "start",
    "page",
]  # fmt: skip


@dataclass(frozen=True)
class Arguments:
    """What is measured, how, and where it goes."""

    what: Annotated[What, tyro.conf.Positional, tyro.conf.arg(metavar="|".join(get_args(What)))]
    """What is measured."""
    rounds: int | None = None
    """How often each is timed (9); what is compared takes turns. Of all that have rounds."""
    steps: str | None = None
    """Numbers of depth steps (12,24,48,96) of memory; depth of the text (12) of drafts."""
    run: str | None = None
    """Folder of a trained run. Of drafts."""
    draft_steps: str | None = None
    """Depths of the drafts (2,3,4). Of drafts."""
    draft_length: str | None = None
    """Tokens of a draft (4,8,12). Of drafts."""
    weights: Literal["layer", "shared", "time"] | None = None
    """How the block weights depend on depth (layer). Of memory."""
    figure: str | None = None
    """A .png or .svg file to draw the numbers to. Of memory and scaling."""
    folder: str | None = None
    """Where the documents are (benchmarks). Of page."""
    to: str | None = None
    """A .json file for the document; of page, the .md file to write."""


@dataclass(frozen=True)
class Benchmark:
    """One thing that can be measured."""

    says: str
    """For --help."""
    measure: Callable[[Arguments, Progress], dict[str, Any]]
    """Its document but for what all have. What is wrong with the arguments is found before anything heavy is loaded."""
    reads: tuple[str, ...] = ("rounds",)
    """Arguments besides `--to`."""


def run(words: Sequence[str], as_json: bool) -> None:
    """Measure, print the tables, and write what was asked for."""
    asked = parse(Arguments, words, "diffeqformer bench", about=ABOUT)
    reads = ("folder",) if asked.what == "page" else BENCHMARKS[asked.what].reads
    for name, value in vars(asked).items():
        if name not in ("what", "to", *reads) and value is not None:
            raise BadInput(f"--{name.replace('_', '-')} is given, but `bench {asked.what}` does not read it.")
    if asked.rounds is not None and asked.rounds < 7:
        raise BadInput(f"--rounds is {asked.rounds}, but must be at least 7 for a median worth reading.")
    figure = _file(asked.figure, "--figure", ".png", ".svg")
    to = _file(asked.to, "--to", ".md" if asked.what == "page" else ".json")
    if asked.what == "page":
        return _page(asked, to, as_json)
    found = BENCHMARKS[asked.what].measure(asked, Terminal())
    from diffeqformer.benchmarks.document import machine

    document = {"benchmark": asked.what, "command": _command(asked, reads), "machine": machine(), **found}
    if to is not None:
        from diffeqformer.report.benchmark_page import write_document

        write_document(document, to)
    if figure is not None:
        from diffeqformer.report.benchmark_figures import FIGURES
        from diffeqformer.report.figures import save
        from diffeqformer.store.files import write_output as write

        write(figure, save(FIGURES[asked.what](document), figure.suffix[1:]), "figure")
    if as_json:
        return print_json(document)
    from diffeqformer.report.benchmark_tables import TABLES

    for table in TABLES[asked.what](document):
        print_table(table.caption, table.columns, table.rows)


def _page(asked: Arguments, to: Path | None, as_json: bool) -> None:
    if to is None:
        raise BadInput("`bench page` needs a file to write: name it with --to.")
    from diffeqformer.report.benchmark_page import read_documents, write_benchmark_page

    documents = read_documents(Path(asked.folder or FOLDER).expanduser())
    write_benchmark_page(documents, to)
    if as_json:
        return print_json({"page": str(to), "benchmarks": list(documents)})
    Terminal().say(f"page: {to}, of {', '.join(documents)}")


def _file(name: str | None, option: str, *endings: str) -> Path | None:
    path = None if name is None else Path(name).expanduser()
    if path is not None and path.suffix not in endings:
        raise BadInput(f"{option} is {name!r}, but must end with {' or '.join(endings)}.")
    return path


def _command(asked: Arguments, reads: Sequence[str]) -> str:
    """The words that measure this again."""
    given = {name: getattr(asked, name) for name in reads if name != "figure"}
    options = [
        word for name, value in given.items() if value is not None
        for word in (f"--{name.replace('_', '-')}", str(value))
    ]  # fmt: skip
    return shlex.join(["diffeqformer", "bench", asked.what, *options])


def _rounds(asked: Arguments) -> int:
    return ROUNDS if asked.rounds is None else asked.rounds


def _compared(
    compare: Callable[[Config, int, Progress], list[dict[str, Any]]],
    config: Config,
    asked: Arguments,
    progress: Progress,
) -> dict[str, Any]:
    """The document of rows that were timed in turns."""
    from diffeqformer.benchmarks.document import sizes

    rounds = _rounds(asked)
    return {"sizes": sizes(config), "rounds": rounds, "rows": compare(config, rounds, progress)}


def _train(asked: Arguments, progress: Progress) -> dict[str, Any]:
    from diffeqformer.benchmarks.updates import STANDARD, compare_updates

    return _compared(compare_updates, STANDARD, asked, progress)


def _finetune(asked: Arguments, progress: Progress) -> dict[str, Any]:
    from diffeqformer.benchmarks.finetuning import compare_finetuning
    from diffeqformer.benchmarks.updates import STANDARD

    return _compared(compare_finetuning, STANDARD, asked, progress)


def _generate(asked: Arguments, progress: Progress) -> dict[str, Any]:
    from diffeqformer.benchmarks.document import sizes_of_model
    from diffeqformer.benchmarks.generation import NEW, STANDARD, compare_generation

    rounds = _rounds(asked)
    rows = compare_generation(STANDARD, rounds, progress)
    return {"sizes": sizes_of_model(STANDARD), "new_tokens": NEW, "rounds": rounds, "rows": rows}


def _drafts(asked: Arguments, progress: Progress) -> dict[str, Any]:
    if asked.run is None:
        raise BadInput("`bench drafts` needs a trained run: name its folder with --run.")
    steps, *others = whole_numbers(asked.steps or "12", "--steps")
    if others:
        raise BadInput(f"--steps is {asked.steps!r}, but `bench drafts` reads one number.")
    depths = whole_numbers(asked.draft_steps or "2,3,4", "--draft-steps")
    lengths = whole_numbers(asked.draft_length or "4,8,12", "--draft-length")
    from diffeqformer.benchmarks.document import sizes_of_model
    from diffeqformer.benchmarks.drafts import compare_drafts
    from diffeqformer.cli.text import evaluation_text
    from diffeqformer.runs.opening import load_run

    run, rounds = load_run(asked.run, progress=progress), _rounds(asked)
    text, _ = evaluation_text(run, (), progress)
    rows = compare_drafts(run.model, text, steps, depths, lengths, rounds, progress)
    return {"sizes": sizes_of_model(run.model.config), "run": asked.run, "steps": steps, "rounds": rounds, "rows": rows}


def _schemes(asked: Arguments, progress: Progress) -> dict[str, Any]:
    from diffeqformer.benchmarks.schemes import SCHEMES, STANDARD, compare_schemes

    compare = lambda config, rounds, progress: compare_schemes(config, rounds, progress, SCHEMES)
    return _compared(compare, STANDARD, asked, progress)


def _memory(asked: Arguments, progress: Progress) -> dict[str, Any]:
    steps = whole_numbers(STEPS if asked.steps is None else asked.steps, "--steps")
    from diffeqformer.benchmarks.document import sizes_of_model
    from diffeqformer.benchmarks.memory import BATCH, gradient_memory, model_with

    model = model_with(asked.weights or "layer")
    return {
        "sizes": {name: size for name, size in sizes_of_model(model).items() if name != "steps"} | {"batch": BATCH},
        "weights": model.weights,
        "scheme": f"{model.scheme} over {model.reversible.base}",
        "checkpoints": model.checkpoints,
        "rows": gradient_memory(model, BATCH, sorted(set(steps)), progress),
    }


def _text(asked: Arguments, progress: Progress) -> dict[str, Any]:
    from diffeqformer.benchmarks.text import compare_text, quickstart

    config = quickstart()
    return {"source": config.data.source, **_compared(compare_text, config, asked, progress)}


def _scaling(asked: Arguments, progress: Progress) -> dict[str, Any]:
    from diffeqformer.benchmarks.scaling import STANDARD, compare_scaling

    return _compared(compare_scaling, STANDARD, asked, progress)


def _spectra(asked: Arguments, progress: Progress) -> dict[str, Any]:
    from diffeqformer.benchmarks.spectra import compare_spectra

    return compare_spectra(progress=progress)


def _lyapunov(asked: Arguments, progress: Progress) -> dict[str, Any]:
    from diffeqformer.benchmarks.lyapunov import compare_lyapunov

    return compare_lyapunov(progress=progress)


def _start(asked: Arguments, progress: Progress) -> dict[str, Any]:
    from diffeqformer.benchmarks.start import compare_start

    rounds = _rounds(asked)
    return {"rounds": rounds, "rows": compare_start(rounds, progress)}


BENCHMARKS: Mapping[str, Benchmark] = {
    "train": Benchmark(
        "time an update of DiffEqFormer, of the vanilla transformer of its size, and of PyTorch's if installed.", _train
    ),
    "finetune": Benchmark(
        "time an update of a populated model in full and by LoRA, beside the vanilla transformer's.", _finetune
    ),
    "generate": Benchmark(
        "time greedy text of a populated model, of the vanilla one, and of both in Transformers if installed.",
        _generate,
    ),
    "drafts": Benchmark(
        "time self-speculative decoding of a trained run (--run) at --steps (12), beside plain decoding.",
        _drafts,
        ("run", "steps", "draft_steps", "draft_length", "rounds"),
    ),
    "schemes": Benchmark(
        "time an update by each scheme, beside what its evaluations predict, and Euler's written by hand.", _schemes
    ),
    "memory": Benchmark(
        "the memory that a gradient needs by each method and number of steps, as compiled; nothing is run.",
        _memory,
        ("weights", "steps", "figure"),
    ),
    "text": Benchmark(
        "time a tokenizer's training, packing and the batches, beside the update that reads them.", _text
    ),
    "scaling": Benchmark(
        "time updates as width, steps, context and d_emb grow, beside how their operations are counted to grow.",
        _scaling,
        ("rounds", "figure"),
    ),
    "spectra": Benchmark(
        "time all QK and OV eigenvalues of a GPT-medium-sized model, against those of the D x D products.", _spectra, ()
    ),
    "lyapunov": Benchmark(
        "time the leading exponents of all inputs of a GPT-small-sized model, against dense Jacobians.", _lyapunov, ()
    ),
    "start": Benchmark("time commands that have next to nothing to do, as processes of their own.", _start),
}
"""By name, in the order of the page."""
ABOUT = "\n\n".join(
    [
        "Measure on this machine.",
        *(f"{name}: {one.says}" for name, one in BENCHMARKS.items()),
        "page: write one page of the documents that these leave with --to.",
        "Example: diffeqformer bench train --rounds 15 --to benchmarks/train.json",
        "Example: diffeqformer bench memory --figure memory.svg",
        "Example: diffeqformer bench page --folder benchmarks --to benchmarks.md",
    ]
)
