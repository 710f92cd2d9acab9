"""`diffeqformer analyze depth RUN [--steps 3,4,6,8,12] [--against RUN ...] [--data FILES]`"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from diffeqformer.cli.output import print_json, print_table
from diffeqformer.cli.parse import parse, positive_numbers, whole_numbers
from diffeqformer.errors import BadInput
from diffeqformer.progress import Terminal

METHODS = {"lora": "LoRA", "full": "full", "continuous": "continuous"}


@dataclass(frozen=True)
class Arguments:
    """Quality against depth and compute: perplexity and speed at several depths without fine-tuning, beside others.

    Example: diffeqformer analyze depth runs/quickstart/diffeqformer --against runs/quickstart/gpt
    """

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    steps: Annotated[str, tyro.conf.arg(metavar="N,N,...")] = ""
    """Numbers of depth steps, besides the run's own; if not given, from half to twice those, and those of --against."""
    early_exit: Annotated[str, tyro.conf.arg(metavar="T,T,...")] = ""
    """Also on the deepest of these grids with each token stopped at the step that moves its prediction by less than
    this (root mean square of the normalised state, such as 0.05,0.1,0.2)."""
    against: tuple[str, ...] = ()
    """Other runs, drawn at their own depth: fine-tuned from this one, or trained by themselves."""
    data: tuple[str, ...] = ()
    """Text files or globs; if not given, the validation text of the runs of --against, or else the run's own."""
    checkpoint: Literal["latest", "best"] = "latest"
    """Newest checkpoint of every run, or the one of lowest validation loss."""
    batch_size: int = 16
    """Sequences at one time."""
    to: Annotated[str, tyro.conf.arg(metavar="DIR")] = ""
    """Where the files go; RUN/analysis/depth if not given."""


def run(words: Sequence[str], as_json: bool) -> None:
    """Evaluate, draw, write, and print a row for each depth and each other run."""
    arguments = parse(Arguments, words, "diffeqformer analyze depth")
    asked = whole_numbers(arguments.steps, "--steps") if arguments.steps else ()
    thresholds = positive_numbers(arguments.early_exit, "--early-exit") if arguments.early_exit else ()
    if arguments.batch_size < 1:
        raise BadInput(f"--batch-size is {arguments.batch_size}, but must be at least 1.")
    from diffeqformer.cli.analyses.common import folder_for
    from diffeqformer.cli.text import evaluation_text
    from diffeqformer.data.loader import evaluation_batches
    from diffeqformer.evaluation.depth import DepthCurve, Mark, require_depths, usual_depths
    from diffeqformer.evaluation.perplexity import evaluate_in_turns
    from diffeqformer.ode.early_exit import EarlyExit
    from diffeqformer.report.depth_page import depth_page, depths_table, exits_table, finding, marks_table
    from diffeqformer.report.page import write_page
    from diffeqformer.report.text import number
    from diffeqformer.runs.opening import load_run
    from diffeqformer.runs.results import measured, name_of_run

    progress = Terminal()
    opened = load_run(arguments.run, arguments.checkpoint, progress)
    others = [load_run(folder, arguments.checkpoint, progress) for folder in arguments.against]
    folder = folder_for("depth", arguments.to, opened)
    for other in others:
        _require_comparable(opened, other)
    own = opened.config.model.steps
    depths = sorted({own, *(asked or (*usual_depths(own), *(other.config.model.steps for other in others)))})
    require_depths(opened.model, depths)
    source = opened if arguments.data else _owner_of_text(opened, others)
    tokens, text_bytes = evaluation_text(source, arguments.data, progress)

    context = min(one.config.model.context for one in (opened, *others))
    exits = [EarlyExit(depths[-1], threshold) for threshold in sorted(set(thresholds))]
    turns = [(opened.model, steps) for steps in (*depths, *exits)] + [(other.model.merge(), None) for other in others]
    found = evaluate_in_turns(
        turns,
        evaluation_batches(tokens, context, arguments.batch_size),
        bytes_=text_bytes,
        block=opened.config.trainer.loss_block,
        progress=progress,
        name=f"Evaluating at {len(depths)} depths" + (f", and {len(others)} more" if others else ""),
    )
    marks = (
        Mark(*_group(opened, other), str(other.folder), other.config.model.steps, one)
        for other, one in zip(others, found[len(depths) + len(exits) :], strict=True)
    )
    settled = {one.threshold: each for one, each in zip(exits, found[len(depths) :], strict=False)}
    points = dict(zip(depths, found, strict=False))
    curve = DepthCurve(name_of_run(opened.config)[1], own, points, tuple(marks), settled)
    name = ", ".join(arguments.data) if arguments.data else f"the validation text of {source.folder}"
    text = (
        f"{name}, {number(found[0].tokens)} tokens in batches of {arguments.batch_size} x {context}; "
        f"{opened.folder} at update {number(opened.step)}"
    )
    written = write_page(folder, "depth", depth_page(curve, text), curve.arrays())
    if as_json:
        points = [{"steps": steps, **asdict(one), **measured(one)} for steps, one in curve.points.items()]
        against = [
            {"run": mark.run, "group": mark.group, "fine_tuned": mark.tuned, "steps": mark.steps, **asdict(mark.found),
             **measured(mark.found)}
            for mark in curve.marks
        ]  # fmt: skip
        early = [
            {
                "threshold": threshold,
                "grid": depths[-1],
                "mean_steps": curve.mean_steps(one),
                **asdict(one),
                **measured(one),
            }
            for threshold, one in curve.exits.items()
        ]
        return print_json(
            {"page": str(written), "finding": finding(curve), "run": str(opened.folder), "update": opened.step,
             "text": name, "own_steps": own, "depths": points, "early_exit": early, "against": against}
        )  # fmt: skip
    print_table(finding(curve), *depths_table(curve))
    if curve.exits:
        print()
        print_table(f"Early exit from {depths[-1]} steps", *exits_table(curve))
    if curve.marks:
        columns, rows = marks_table(curve)
        kept = [columns.index(name) for name in ("run", "model", "steps", "perplexity", "here, not tuned", "tokens/s")]
        print()
        print_table("Other models", [columns[i] for i in kept], [[row[i] for i in kept] for row in rows])
    print(f"\n{written}")


def _group(opened: Any, other: Any) -> tuple[str, bool]:
    """What an other run has in common with those of the same look, and whether it was fine-tuned from this one."""
    from diffeqformer.runs.results import name_of_run

    base = other.config.base
    if base.method and Path(base.run).expanduser().resolve() == opened.folder.resolve():
        return METHODS[base.method], True
    return name_of_run(other.config)[1], False


def _require_comparable(opened: Any, other: Any) -> None:
    """**Raises:** `BadInput` for a run of another tokenizer, or without a depth of its own."""
    if other.tokenizer.to_str() != opened.tokenizer.to_str():
        raise BadInput(
            f"run {str(other.folder)!r} has another tokenizer than {str(opened.folder)!r}, so that their perplexities "
            "cannot be compared; `diffeqformer eval --data` gives the bits per byte of each, which can."
        )
    if other.config.model.adaptive:
        raise BadInput(
            f"run {str(other.folder)!r} chooses its steps by a tolerance, so it has no depth to be drawn at; "
            "leave it out of --against."
        )


def _owner_of_text(opened: Any, others: Sequence[Any]) -> Any:
    """The run whose validation text all are evaluated on: of the others if they share one, else the run itself.

    **Raises:** `BadInput` if the others were validated on different texts.
    """
    from diffeqformer.runs.folder import text_of

    owners: dict[str, Any] = {}
    for other in others:
        if (content := text_of(other.folder)) is not None:  # an imported model has no text
            owners.setdefault(content, other)
    if len(owners) > 1:
        first, second, *_ = (str(owner.folder) for owner in owners.values())
        raise BadInput(
            f"the runs of --against do not share one validation text ({first!r} and {second!r} have different ones); "
            "name a text for all with --data."
        )
    return next(iter(owners.values()), opened)
