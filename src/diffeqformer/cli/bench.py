"""`diffeqformer bench train|finetune|generate|drafts|schemes|memory|spectra|lyapunov`"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from diffeqformer.cli.output import human, print_json, print_table
from diffeqformer.cli.parse import parse, whole_numbers
from diffeqformer.config import Config
from diffeqformer.errors import BadInput
from diffeqformer.progress import Terminal

ROUNDS, STEPS = 9, "12,24,48,96"


@dataclass(frozen=True)
class Arguments:
    """Measure on this machine.

    train: time an update of DiffEqFormer, of the vanilla transformer of its size, and of PyTorch's if installed.

    finetune: time an update of a populated model in full and by LoRA, beside the vanilla transformer's.

    generate: time greedy text of a populated model, of the vanilla one, and of both in Transformers if installed.

    drafts: time self-speculative decoding of a trained run (--run) at --steps (12), beside plain decoding.

    schemes: time an update by each scheme, beside what its evaluations predict, and Euler's written by hand.

    memory: the memory that a gradient needs by each method and number of steps, as compiled; nothing is run.

    spectra: time all QK and OV eigenvalues of a GPT-medium-sized model, against those of the D x D products.

    lyapunov: time the leading exponents of all inputs of a GPT-small-sized model, against dense Jacobians.

    Example: diffeqformer bench train --rounds 15

    Example: diffeqformer bench memory --figure memory.svg
    """

    what: Annotated[
        Literal["train", "finetune", "generate", "drafts", "schemes", "memory", "spectra", "lyapunov"],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="train|finetune|generate|drafts|schemes|memory|spectra|lyapunov"),
    ]
    """What is measured."""
    rounds: int | None = None
    """Timed updates of each model (9); the models take turns. Of train, finetune, generate, drafts and schemes."""
    steps: str | None = None
    """Numbers of depth steps (12,24,48,96) of memory; depth of the text (12) of drafts."""
    run: str | None = None
    """Folder of a trained run. Of drafts."""
    draft_steps: str | None = None
    """Depths of the drafts (3,4,6). Of drafts."""
    draft_length: str | None = None
    """Tokens of a draft (2,4,6). Of drafts."""
    weights: Literal["layer", "shared", "time"] | None = None
    """How the block weights depend on depth (layer). Of memory."""
    figure: str | None = None
    """A .png or .svg file to draw the numbers to. Of memory."""


def run(words: Sequence[str], as_json: bool) -> None:
    """Print a row a model, a scheme, or a way to a gradient."""
    arguments = parse(Arguments, words, "diffeqformer bench")
    read = {
        "train": ("rounds",),
        "finetune": ("rounds",),
        "generate": ("rounds",),
        "drafts": ("rounds", "run", "steps", "draft_steps", "draft_length"),
        "schemes": ("rounds",),
        "memory": ("steps", "weights", "figure"),
    }
    for name, value in vars(arguments).items():
        if name != "what" and value is not None and name not in read.get(arguments.what, ()):
            raise BadInput(f"--{name.replace('_', '-')} is given, but `bench {arguments.what}` does not read it.")
    if arguments.what == "memory":
        return _memory(arguments, as_json)
    if arguments.what in ("spectra", "lyapunov"):
        return _against_dense(arguments.what, as_json)
    rounds = ROUNDS if arguments.rounds is None else arguments.rounds
    if rounds < 7:
        raise BadInput(f"--rounds is {rounds}, but must be at least 7 for a median worth reading.")
    if arguments.what == "drafts":
        return _drafts(arguments, rounds, as_json)
    {"train": _train, "finetune": _finetune, "generate": _generate, "schemes": _schemes}[arguments.what](
        rounds, as_json
    )


def _train(rounds: int, as_json: bool) -> None:
    from diffeqformer.benchmarks.updates import STANDARD, compare_updates

    rows = compare_updates(STANDARD, rounds, Terminal())
    if as_json:
        return print_json({"rounds": rounds, "rows": rows})
    print_table(
        f"training update: {_size(STANDARD)}, d_emb {STANDARD.model.time.d_emb}; {rounds} rounds",
        ["model", "median", "quartiles", "ratio to vanilla", "median of rounds' ratios", "temporary memory"],
        [
            [
                row["model"],
                *_times(row),
                f"{row['ratio_of_medians']:.3f}",
                f"{row['median_of_ratios']:.3f}",
                "" if row["temporary_bytes"] is None else human(row["temporary_bytes"], "B"),
            ]
            for row in rows
        ],
    )


def _finetune(rounds: int, as_json: bool) -> None:
    from diffeqformer.benchmarks.finetuning import compare_finetuning
    from diffeqformer.benchmarks.updates import STANDARD

    rows = compare_finetuning(STANDARD, rounds, Terminal())
    if as_json:
        return print_json({"rounds": rounds, "rows": rows})
    print_table(
        f"fine-tuning update: {_size(STANDARD)}; {rounds} rounds",
        ["model", "median", "quartiles", "ratio to vanilla", "median of rounds' ratios", "optimiser", "temporary"],
        [
            [
                row["way"],
                *_times(row),
                f"{row['ratio_of_medians']:.3f}",
                f"{row['median_of_ratios']:.3f}",
                human(row["optimizer_bytes"], "B"),
                human(row["temporary_bytes"], "B"),
            ]
            for row in rows
        ],
    )


def _generate(rounds: int, as_json: bool) -> None:
    from diffeqformer.benchmarks.generation import NEW, STANDARD, compare_generation

    rows = compare_generation(STANDARD, rounds, Terminal())
    if as_json:
        return print_json({"rounds": rounds, "rows": rows})
    print_table(
        f"greedy generation: width {STANDARD.width}, {STANDARD.steps} steps, {STANDARD.heads} heads, vocabulary "
        f"{STANDARD.vocabulary}, {NEW} new tokens; {rounds} rounds",
        ["model", "by", "batch", "median", "quartiles", "tokens/s", "time over vanilla's", "median of rounds' ratios"],
        [
            [
                row["model"],
                row["library"],
                str(row["batch"]),
                *_times(row),
                f"{row['tokens_per_second']:,.0f}",
                f"{row['ratio_of_medians']:.3f}",
                f"{row['median_of_ratios']:.3f}",
            ]
            for row in rows
        ],
    )


def _drafts(arguments: Arguments, rounds: int, as_json: bool) -> None:
    if arguments.run is None:
        raise BadInput("`bench drafts` needs a trained run: name its folder with --run.")
    steps, *others = whole_numbers(arguments.steps or "12", "--steps")
    if others:
        raise BadInput(f"--steps is {arguments.steps!r}, but `bench drafts` reads one number.")
    depths = whole_numbers(arguments.draft_steps or "3,4,6", "--draft-steps")
    lengths = whole_numbers(arguments.draft_length or "2,4,6", "--draft-length")
    from diffeqformer.benchmarks.drafts import compare_drafts
    from diffeqformer.cli.text import evaluation_text
    from diffeqformer.training.run import load_run

    progress = Terminal()
    run = load_run(arguments.run, progress=progress)
    text, _ = evaluation_text(run, (), progress)
    rows = compare_drafts(run.model, text, steps, depths, lengths, rounds, progress)
    if as_json:
        return print_json({"rounds": rounds, "steps": steps, "run": arguments.run, "rows": rows})
    share = lambda row, name: "" if name not in row else f"{row[name]:.2f}"
    print_table(
        f"greedy text of {arguments.run} at {steps} steps, one prompt at a time; {rounds} rounds",
        ["drafts", "median", "quartiles", "tokens/s", "speed-up", "accepted", "tokens a deep reading", "texts equal"],
        [
            [
                row["way"],
                *_times(row),
                f"{row['tokens_per_second']:,.0f}",
                f"{1 / row['ratio_of_medians']:.2f}",
                share(row, "acceptance"),
                share(row, "tokens_per_reading"),
                share(row, "equal"),
            ]
            for row in rows
        ],
    )


def _schemes(rounds: int, as_json: bool) -> None:
    from diffeqformer.benchmarks.schemes import SCHEMES, STANDARD, compare_schemes

    rows = compare_schemes(STANDARD, rounds, Terminal(), SCHEMES)
    if as_json:
        return print_json({"rounds": rounds, "rows": rows})
    print_table(
        f"training update by scheme: {_size(STANDARD)}, weights {STANDARD.model.weights}; {rounds} rounds; "
        "predicted from euler and heun",
        ["scheme", "evaluations", "median", "quartiles", "ratio to euler", "median of rounds' ratios", "predicted",
         "measured / predicted"],
        [
            [
                row["scheme"],
                "{attention} + {feed_forward}".format(**row["evaluations"]),
                *_times(row),
                f"{row['ratio_of_medians']:.3f}",
                f"{row['median_of_ratios']:.3f}",
                f"{row['predicted_ratio']:.3f}",
                "" if row["measured_over_predicted"] is None else f"{row['measured_over_predicted']:.3f}",
            ]
            for row in rows
        ],
    )  # fmt: skip


def _against_dense(what: str, as_json: bool) -> None:
    from diffeqformer.benchmarks.lyapunov import compare_lyapunov
    from diffeqformer.benchmarks.spectra import compare_spectra

    row = compare_spectra(progress=Terminal()) if what == "spectra" else compare_lyapunov(progress=Terminal())
    if as_json:
        return print_json(row)
    title = {
        "spectra": "all QK and OV eigenvalues: {steps} steps, {heads} heads, width {width}; {dense_measured} products",
        "lyapunov": "leading exponents of {tokens} inputs for one output: {steps} steps, {heads} heads, width {width}",
    }
    print_table(
        title[what].format(**row),
        ["seconds", "dense, seconds", "ratio", "largest difference"],
        [[f"{row[name]:.3g}" for name in ("seconds", "dense_seconds", "ratio", "largest_difference")]],
    )


def _memory(arguments: Arguments, as_json: bool) -> None:
    steps = whole_numbers(STEPS if arguments.steps is None else arguments.steps, "--steps")
    figure = None if arguments.figure is None else Path(arguments.figure).expanduser()
    if figure is not None and figure.suffix not in (".png", ".svg"):
        raise BadInput(f"--figure is {arguments.figure!r}, but must end with .png or .svg.")
    from diffeqformer.benchmarks.memory import BATCH, gradient_memory, model_with

    model = model_with(arguments.weights or "layer")
    rows = gradient_memory(model, BATCH, sorted(set(steps)), Terminal())
    if figure is not None:
        from diffeqformer.report.figures import gradient_memory as drawn
        from diffeqformer.report.figures import save
        from diffeqformer.report.files import write

        write(figure, save(drawn(rows), figure.suffix[1:]), "figure")
    if as_json:
        return print_json({"rows": rows})
    mebibytes = lambda number: f"{number / 2**20:,.1f}"
    print_table(
        f"compiled memory of loss and gradient, in MiB: scheme {model.scheme} over {model.reversible.base}, width "
        f"{model.width}, {model.heads} heads, context {model.context}, batch {BATCH}, {model.checkpoints} checkpoints",
        ["gradient", "steps", "weights", "temporary", "of which generated", "peak"],
        [
            [
                row["gradient"],
                str(row["steps"]),
                *(mebibytes(row[f"{name}_bytes"]) for name in ("weights", "temporary", "generated", "peak")),
            ]
            for row in rows
        ],
    )


def _size(config: Config) -> str:
    m = config.model
    return (
        f"width {m.width}, {m.steps} steps, {m.heads} heads, context {m.context}, "
        f"batch {config.trainer.batch_size}, vocabulary {m.vocabulary}"
    )


def _times(row: dict[str, Any]) -> tuple[str, str]:
    """Median and quartiles."""
    return (
        f"{row['median_seconds'] * 1e3:.0f} ms",
        "{:.0f} to {:.0f} ms".format(*(1e3 * q for q in row["quartile_seconds"])),
    )
