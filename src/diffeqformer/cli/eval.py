"""`diffeqformer eval RUN [--steps 6,12,24] [--scheme NAME] [--tolerance RTOL] [--data ...] [--tasks ...]`"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from diffeqformer.cli.output import print_json, print_table
from diffeqformer.cli.parse import parse
from diffeqformer.config import Which
from diffeqformer.config.bounds import INT32, SIZES, setting, whole_numbers
from diffeqformer.errors import BadInput
from diffeqformer.plain import Document
from diffeqformer.progress import Terminal
from diffeqformer.studies.inputs import positive_numbers, require_usual

if TYPE_CHECKING:
    from diffeqformer.model.transformer import Transformer


@dataclass(frozen=True)
class Arguments:
    """Loss, perplexity and bits per byte of a run's model, at any depth, by any scheme or with adaptive steps.

    With --tasks, accuracy and the other metrics of lm-evaluation-harness instead.

    Example: diffeqformer eval runs/quickstart/diffeqformer --steps 4,6,12
    """

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    steps: Annotated[str, tyro.conf.arg(metavar="N,N,...")] = ""
    """Numbers of depth steps, such as 6, 6,12,24 or 2-6; as in training if not given."""
    scheme: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Another scheme than the run's own, such as heun, rk4 or diffrax:Tsit5; not for a table of layers of one depth."""
    tolerance: Annotated[float | None, tyro.conf.arg(metavar="RTOL")] = setting(None, positive=True)
    """Adaptive steps of this relative tolerance (absolute: a tenth of it), by diffrax:Tsit5 unless the scheme has an
    error estimate. Steps are chosen for a whole batch, later tokens included: such a loss is that of a causal model
    only up to the tolerance, and depends on --batch-size."""
    early_exit: Annotated[str, tyro.conf.arg(metavar="T,T,...")] = ""
    """Also stop each token at the step that moves its prediction by less than this (root mean square of the normalised
    state, such as 0.1)."""
    data: tuple[str, ...] = ()
    """Text files or globs; the run's own validation split if not given."""
    text_field: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """The field of JSON lines, or the column of Parquet files, of --data that holds the text; the run's own
    data.text_field if not given."""
    checkpoint: Which = "latest"
    """Newest checkpoint, the one of lowest validation loss, or the newest that is not damaged."""
    batch_size: int = setting(16, least=1, most=SIZES)
    """Sequences per batch."""
    tasks: Annotated[str | None, tyro.conf.arg(metavar="NAME,NAME,...")] = None
    """Tasks of lm-evaluation-harness, such as lambada_openai,piqa, or YAML files (needs the extra `eval`)."""
    num_fewshot: Annotated[int | None, tyro.conf.arg(metavar="INT")] = setting(None, least=0, most=SIZES)
    """Examples before each item of a task; the task's own number if not given."""
    limit: Annotated[float | None, tyro.conf.arg(metavar="N")] = setting(None, positive=True, most=INT32)
    """Items of each task, or a fraction of them; all if not given."""
    include_path: Annotated[tuple[str, ...], tyro.conf.arg(metavar="DIR")] = ()
    """Folders with task files of your own."""
    gen_kwargs: Annotated[str, tyro.conf.arg(metavar="NAME=VALUE,...")] = ""
    """Settings of tasks that generate, such as max_gen_toks=32."""


ONLY_TASKS = ("num_fewshot", "limit", "include_path", "gen_kwargs")
NOT_TASKS = ("data", "text_field", "tolerance", "early_exit")


def run(words: Sequence[str], as_json: bool) -> None:
    """Evaluate, and print one row per number of steps or per metric."""
    arguments = parse(Arguments, words, "diffeqformer eval")
    steps = whole_numbers(arguments.steps, "--steps") if arguments.steps else ()
    thresholds = positive_numbers(arguments.early_exit, "--early-exit") if arguments.early_exit else ()
    _check(arguments, steps)
    if arguments.tasks is not None:
        from diffeqformer.cli.tasks import evaluate_and_print

        return evaluate_and_print(arguments, steps[0] if steps else None, as_json)
    from diffeqformer.data.loader import EvaluationBatches
    from diffeqformer.evaluation.accuracy import accuracy_of
    from diffeqformer.evaluation.depth import at_depths, require_depths
    from diffeqformer.ode.early_exit import EarlyExit
    from diffeqformer.report.text import counted, number
    from diffeqformer.runs.opening import load_run
    from diffeqformer.runs.results import measured
    from diffeqformer.studies.inputs import evaluation_text

    progress = Terminal()
    opened = load_run(arguments.run, arguments.checkpoint, progress)
    model = solved_by(opened.model, arguments.scheme, arguments.tolerance)
    if arguments.scheme is None and model.config.scheme != opened.model.config.scheme:
        progress.say(
            f"the run's scheme, {opened.model.config.scheme}, has no error estimate to choose steps by; "
            f"{model.config.scheme.kind} is used."
        )
    if thresholds and not steps and model.config.tolerance:
        raise BadInput(f"--early-exit is {arguments.early_exit}, but model.tolerance chooses the steps; give --steps.")
    require_depths(model, steps)  # before any text is read
    tokens, text_bytes, mask = evaluation_text(opened, arguments.data, progress, arguments.text_field)
    grids = steps or (None if model.config.tolerance else model.config.steps,)
    depths = (*grids, *(EarlyExit(grid, threshold) for grid in grids if grid for threshold in thresholds))
    batches = EvaluationBatches(tokens, model.config.context, arguments.batch_size, mask)
    block = opened.config.trainer.loss_block
    rows: list[Document] = []
    evaluated = at_depths(model, batches, depths, bytes_=text_bytes, block=block, progress=progress)
    for depth, found in zip(depths, evaluated, strict=True):
        grid, threshold = (depth.steps, depth.threshold) if isinstance(depth, EarlyExit) else (depth, None)
        rtol = model.config.tolerance.rtol if model.config.tolerance and not grid else None
        row = {"steps": grid, "early_exit": threshold, "scheme": model.config.scheme.kind, "rtol": rtol}
        rows.append({**row, **asdict(found), **measured(found)})
    if opened.config.data.puzzle and not arguments.data:
        for depth, row in zip(depths, rows, strict=True):
            row["accuracy"] = dict(enumerate(accuracy_of(opened.config.data.puzzle, model, tokens, depth), 1))
    if as_json:
        return print_json({**opened.which, "evaluations": rows})
    print_table(
        f"{opened.folder}, update {opened.step}, {counted(rows[0]['tokens'], 'token')}, {model.config.scheme.kind}",
        ["steps", "NFE", "loss (nats)", "perplexity", "bits/byte", "tokens/s"],
        [_cells(row) for row in rows],
    )
    if "accuracy" in rows[0]:
        columns = ["steps", *(f"k = {k}" for k in rows[0]["accuracy"])]
        cells = lambda row: [number(part and 100 * part, 1) for part in row["accuracy"].values()]
        right = [[_cells(row)[0], *cells(row)] for row in rows]
        print_table("\nright answers, %, by difficulty", columns, right)


def _cells(row: Document) -> list[str]:
    """Return one row of the table."""
    from diffeqformer.report.text import evaluations, number, perplexity

    known = lambda name: math.nan if row[name] is None else row[name]  # JSON has no number that is not finite
    steps = f"{row['steps'] or ''}"
    steps += f" at most (settled within {row['early_exit']:g})" if row["early_exit"] else ""
    steps += f"adaptive (rtol {row['rtol']:g})" if row["rtol"] else ""
    return [
        steps,
        evaluations({half: row[f"{half}_evaluations"] for half in ("attention", "feed_forward")}),
        number(known("loss"), 4),
        perplexity(known("perplexity")),
        number(row["bits_per_byte"], 4),
        f"{row['tokens_per_second']:,.0f}",
    ]


def solved_by(model: "Transformer", scheme: str | None, rtol: float | None = None) -> "Transformer":
    """Return the model, solved by `--scheme` and `--tolerance` if they are given.

    **Raises:** `BadInput` as `with_scheme`, preceded by what was asked for.
    """
    from diffeqformer.model.solving import with_scheme

    asked = {"--scheme": scheme, "--tolerance": rtol}
    given = " ".join(f"{name} {value}" for name, value in asked.items() if value is not None)
    try:
        return with_scheme(model, scheme, rtol) if given else model
    except BadInput as refused:
        raise BadInput(f"with {given}: {refused}") from None


def _check(arguments: Arguments, steps: Sequence[int]) -> None:
    """Refuse contradictory options, and options that this kind of evaluation does not read.

    **Raises:** `BadInput`.
    """
    tolerance = arguments.tolerance
    if arguments.early_exit and tolerance is not None:
        raise BadInput(f"--early-exit is {arguments.early_exit}, but --tolerance chooses the steps; give one.")
    if steps and tolerance is not None:
        raise BadInput(f"--tolerance is {tolerance:g}, but --steps {arguments.steps} asks for fixed steps; give one.")
    if not arguments.data:
        require_usual(arguments, ("text_field",), "without --data nothing reads it")
    tasks = arguments.tasks is not None
    not_read = (NOT_TASKS, "--tasks does not read it") if tasks else (ONLY_TASKS, "only --tasks reads it")
    require_usual(arguments, *not_read)
    if tasks and len(steps) > 1:
        raise BadInput(f"--steps is {arguments.steps!r}, but --tasks takes one number.")
