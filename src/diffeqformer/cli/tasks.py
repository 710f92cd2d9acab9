"""`diffeqformer eval RUN --tasks NAME,NAME,...`: the part of `eval` that calls lm-evaluation-harness."""

from typing import TYPE_CHECKING

from diffeqformer.cli.output import print_json, print_table, print_text
from diffeqformer.errors import BadInput
from diffeqformer.progress import Terminal

if TYPE_CHECKING:
    from diffeqformer.cli.eval import Arguments


def evaluate_and_print(arguments: "Arguments", steps: int | None, as_json: bool) -> None:
    """Evaluate tasks of lm-evaluation-harness and print one row per metric."""
    wanted = [name for part in (arguments.tasks or "").split(",") if (name := part.strip())]
    limit = arguments.limit
    if not wanted:
        raise BadInput(f"--tasks is {arguments.tasks!r}, but must name tasks, such as lambada_openai,piqa.")
    if limit is not None and limit >= 1 and not float(limit).is_integer():
        raise BadInput(f"--limit is {limit:g}, but must be a whole number of items, or a fraction between 0 and 1.")
    from diffeqformer.evaluation.depth import require_depths
    from diffeqformer.interop.tasks import FOLDER, Tasks, evaluate_tasks, summary
    from diffeqformer.report.text import counted_steps, number
    from diffeqformer.runs.opening import load_run

    progress = Terminal()
    opened = load_run(arguments.run, arguments.checkpoint, progress)
    if steps is not None:
        require_depths(opened.model, [steps])  # before data is fetched
    names = ("checkpoint", "num_fewshot", "limit", "batch_size", "scheme", "gen_kwargs")
    settings = {name: getattr(arguments, name) for name in names}
    tasks = Tasks(wanted, arguments.include_path)
    documents = list(evaluate_tasks(opened, tasks, steps=steps, progress=progress, **settings))
    if as_json:
        return print_json({**opened.which, "evaluations": documents})
    print_table(
        f"{opened.folder}, update {opened.step}, {counted_steps(documents[0]['steps'])}, {documents[0]['scheme']}",
        ["task", "metric", "value", "standard error"],
        [
            [
                row["task"],
                row["metric"] if row["filter"] == "none" else f"{row['metric']} ({row['filter']})",
                number(row["value"], 4),
                number(row["stderr"], 4),
            ]
            for document in documents
            for row in summary(document)
        ],
    )
    print_text(f"Written to {opened.folder / FOLDER}")
