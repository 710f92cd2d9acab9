"""`diffeqformer eval RUN --tasks NAME,NAME,...`: what `eval` does then."""

from typing import Any, Literal

from diffeqformer.cli.output import print_json, print_table
from diffeqformer.errors import BadInput
from diffeqformer.progress import Terminal


def evaluate_and_print(
    folder: str,
    names: str,
    as_json: bool,
    *,
    include: tuple[str, ...],
    checkpoint: Literal["latest", "best"],
    num_fewshot: int | None,
    limit: float | None,
    batch_size: int,
    **settings: Any,
) -> None:
    """Evaluate tasks of lm-evaluation-harness and print a row for each metric."""
    wanted = [name for name in (part.strip() for part in names.split(",")) if name]
    if not wanted:
        raise BadInput(f"--tasks is {names!r}, but must name tasks, such as lambada_openai,piqa.")
    if num_fewshot is not None and num_fewshot < 0:
        raise BadInput(f"--num-fewshot is {num_fewshot}, but must be at least 0.")
    if limit is not None and not (0 < limit < 1 or (limit >= 1 and float(limit).is_integer())):
        raise BadInput(f"--limit is {limit:g}, but must be a whole number of items, or a fraction between 0 and 1.")
    from diffeqformer.evaluation.depth import require_depths
    from diffeqformer.interop.tasks import FOLDER, Tasks, evaluate_tasks, summary
    from diffeqformer.report.text import number
    from diffeqformer.runs.opening import load_run

    progress = Terminal()
    opened = load_run(folder, checkpoint, progress)
    if settings["steps"] is not None:
        require_depths(opened.model, [settings["steps"]])  # before data is fetched
    documents = list(
        evaluate_tasks(
            opened,
            Tasks(wanted, include),
            checkpoint=checkpoint,
            num_fewshot=num_fewshot,
            limit=limit,
            batch_size=batch_size,
            progress=progress,
            **settings,
        )
    )
    if as_json:
        return print_json({"run": str(opened.folder), "update": opened.step, "evaluations": documents})
    print_table(
        f"{opened.folder}, update {opened.step}, {documents[0]['steps']} steps, {documents[0]['scheme']}",
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
    print(f"Written to {opened.folder / FOLDER}")
