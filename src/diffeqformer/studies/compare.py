"""Two runs side by side: loss, size and speed, and the tasks that both were evaluated on, as in figures 9 to 12 of the
paper."""

import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from diffeqformer.config import to_dict
from diffeqformer.plain import clean
from diffeqformer.progress import Progress
from diffeqformer.report.table import Table
from diffeqformer.report.text import (
    MISSING,
    compact,
    counted,
    duration,
    finite,
    gap,
    join,
    nats,
    number,
    perplexity,
    signed,
    speed,
)
from diffeqformer.store.digests import digest
from diffeqformer.studies.inputs import folder_for
from diffeqformer.studies.study import Result

if TYPE_CHECKING:
    import numpy as np

    from diffeqformer.interop.comparing import Comparison, Row, Side

SIGNIFICANT = 0.05
"""Corrected p-values below this are marked."""


@dataclass(frozen=True)
class Arguments:
    """Two runs side by side: loss, size and speed, and the tasks of lm-evaluation-harness that both were evaluated on.

    Accuracies are compared item by item, with p-values, and shown as in figures 9 to 12 of the paper.

    Example: diffeqformer report compare runs/quickstart/diffeqformer runs/quickstart/gpt
    """

    first: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_A")]
    """Folder of a run."""
    second: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_B")]
    """Folder of the run to compare it with."""
    to: Annotated[str | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder of the page; if not given, RUN_A/analysis/compare-NAME-OF-B, or compare-FOLDERS,NAME-OF-B if B is not
    next to A."""


@dataclass(frozen=True)
class SideBySide(Result):
    """A `Result` that prints every sentence to the terminal, including what could not be compared."""

    def show(self) -> None:
        super().show()
        print("", *map(clean, self.findings[1:]), sep="\n")


def study(arguments: Arguments, progress: Progress) -> Result:
    """Compare two runs by their folders; no model is opened."""
    from diffeqformer.interop.comparing import compare_runs

    found = compare_runs(arguments.first, arguments.second)
    one, other = (side.folder for side in found.sides)
    return result(found, folder_for(f"compare-{_way(one, other)}", arguments.to, one))


def _way(one: Path, other: Path) -> str:
    """Name `other` by its path relative to the folder that holds `one`; just its own name if both are in one folder. A
    digest is added if characters are replaced, since another path could then have the same name."""
    from_, to = one.resolve().parent, other.resolve()
    parts = [part for part in Path(os.path.relpath(to, from_)).parts if part != ".."] or [to.name]
    names = [re.sub(r"[^\w.-]+", "-", part) for part in parts]
    return ",".join(names) if names == parts else f"{','.join(names)}-{digest(os.fsencode(to))[:6]}"


def result(comparison: "Comparison", folder: Path) -> Result:
    """Build the result: sentences, the figure of accuracies, and tables of training and of every task."""
    from diffeqformer.report.page import both_widths
    from diffeqformer.studies.compare_figures import task_figure
    from diffeqformer.studies.run_report import settings_tables

    figures = ()
    if accuracies(comparison):
        caption = (
            "Accuracy on each task, and the difference: first model minus second. Filled and starred: significant at "
            "0.05 (*), 0.01 (**) or 0.001 (***) after Holm's correction over all tasks."
        )
        figures = (both_widths("accuracy", caption, task_figure, comparison),)
    models = [{"name": side.name, "config": to_dict(side.config)} for side in comparison.sides]
    differing = settings_tables(models)[1]
    tables = (runs_table(comparison), *(one for one in (tasks_table(comparison), differing) if one.rows))
    return SideBySide(
        name="compare", title=" and ".join(side.name for side in comparison.sides),
        findings=(*findings(comparison), *remarks(comparison)), tables=tables, figures=figures,
        arrays=compare_arrays(comparison), document=compare_document(comparison), folder=folder,
    )  # fmt: skip


def accuracies(comparison: "Comparison") -> "list[Row]":
    """Return the rows that the figure shows: accuracies known for both runs."""
    return [row for row in comparison.rows if row.is_accuracy and None not in row.values]


def label(row: "Row") -> str:
    """Name a row by its task, with the few-shot examples, metric and limit where they are not the usual ones."""
    shots = f", {row.fewshot}-shot" if row.fewshot else ""
    metric = "" if row.metric == "acc" else f", {row.metric}"
    part = "" if row.limit is None else f", limit {row.limit:g}"
    return clean(f"{row.task}{shots}{metric}{part}")


def stars(p: float | None) -> str:
    """Mark corrected p-values below 0.05, 0.01 and 0.001 with `*`, `**` and `***`."""
    return "" if p is None else "*" * sum(p < bound for bound in (SIGNIFICANT, 0.01, 0.001))


def findings(comparison: "Comparison") -> list[str]:
    """State what the comparison shows."""
    first, second = comparison.sides
    said = []
    losses: list[Any] = [side.entry and side.entry["validation"]["loss"] for side in comparison.sides]
    if comparison.same_text and all(map(finite, losses)):
        ahead, behind = (first, second) if losses[0] <= losses[1] else (second, first)
        said.append(
            f"{ahead.name} has the lower validation loss, by {gap(max(losses), min(losses))} nats per token "
            f"({nats(min(losses))} against {nats(max(losses))} for {behind.name}). With one run of each, a small "
            "difference can be due to chance."
            if nats(losses[0]) != nats(losses[1])
            else f"To three decimals, both have the same validation loss, {nats(losses[0])} nats per token."
        )
    tested = [row for row in comparison.rows if row.holm is not None]
    if tested:
        sure = [row for row in tested if stars(row.holm)]
        wins = [(side.name, [label(row) for row in sure if _ahead(row) == i]) for i, side in enumerate((first, second))]
        parts = [f"{name} is significantly better on {join(tasks)}" for name, tasks in wins if tasks]
        rest = f"of {counted(len(tested), 'measurement')} that can be compared item by item"
        said.append(
            f"{join(parts)}; {rest}, {len(sure)} differ{'s' * (len(sure) == 1)} significantly after Holm's correction."
            if parts
            else f"No difference is significant after Holm's correction, {rest}."
        )
    return said


def remarks(comparison: "Comparison") -> list[str]:
    """State what could not be compared, and how the rest was tested."""
    said = []
    if not comparison.same_text and all(side.entry for side in comparison.sides):
        said.append(
            "The runs were validated on different text or with different tokenizers. Losses and perplexities per token "
            "cannot be compared; bits per byte can, but only if the text is alike."
        )
    for side, missing in zip(comparison.sides, comparison.missing, strict=True):
        if missing:
            said.append(f"Not evaluated in {side.name}: {join(missing)}.")
    for side in comparison.sides:
        if side.otherwise:
            said.append(
                f"Evaluated in {side.name} at other steps, with another scheme or from another checkpoint than the "
                f"last: {join(side.otherwise)}."
            )
    if comparison.unlike:
        said.append(f"Not compared, because the task's version or items differ: {join(comparison.unlike)}.")
    if not comparison.rows:
        said.append("No task has been evaluated in both runs; `diffeqformer eval RUN --tasks NAMES` evaluates tasks.")
    tests = sorted({row.difference.test for row in comparison.rows if row.difference})
    if tests:
        said.append(
            f"Differences are tested item by item ({join([f'{test} test' for test in tests])}, two-sided). p is "
            "that of each test alone; Holm's p is corrected for all of them together."
        )
    weighted = [row for row in comparison.rows if _is_weighted(row)]
    if weighted:
        differences = [f"{label(row)} ({signed(row.difference and row.difference.value, 4)})" for row in weighted]
        said.append(
            "In some groups a task counts the same however many items it has. Tested and drawn is the difference of "
            f"the means over all items, not that of the values: {join(differences)}."
        )
    return said


def runs_table(comparison: "Comparison") -> Table:
    """Tabulate the two runs and the results of their training."""
    columns = (
        "model", "run", "loss (nats)", "perplexity", "bits/byte", "parameters stored", "effective", "tokens",
        "tokens/s", "training time",
    )  # fmt: skip
    return Table("The two runs", columns, tuple(_run(side) for side in comparison.sides))


def _run(side: "Side") -> tuple[str, ...]:
    entry = side.entry or {}
    found, size = entry.get("validation", {}), side.parameters
    return (
        side.name, side.folder.name, nats(found.get("loss")), perplexity(found.get("perplexity")),
        nats(found.get("bits_per_byte")), compact(size["stored"]), compact(size["effective"]),
        compact(entry.get("tokens")), speed(entry.get("tokens_per_second")), duration(entry.get("seconds")),
    )  # fmt: skip


def tasks_table(comparison: "Comparison") -> Table:
    """Tabulate every metric of every task in both runs."""
    first, second = (side.name for side in comparison.sides)
    columns = ("task", "metric", first, second, "difference", "items", "p", "Holm's p", "")
    rows = tuple(
        (
            f"{row.task}, {row.fewshot}-shot" if row.fewshot else row.task, row.metric,
            *(_plus_minus(value, error) for value, error in zip(row.values, row.stderrs, strict=True)),
            _plus_minus(*_difference(row), signed), number(row.items) if row.items else MISSING,
            p_value(row.difference and row.difference.p), p_value(row.holm), stars(row.holm),
        )
        for row in comparison.rows
    )  # fmt: skip
    return Table("Tasks evaluated in both", columns, rows)


def compare_arrays(comparison: "Comparison") -> "dict[str, np.ndarray]":
    """Return every number of the page by name; NaN where there is none."""
    import numpy as np

    rows = comparison.rows
    found = {
        **{name: [getattr(row, name) for row in rows] for name in ("values", "stderrs", "items")},
        "differences": [_difference(row)[0] for row in rows],
        "difference_stderrs": [_difference(row)[1] for row in rows],
        "p": [row.difference and row.difference.p for row in rows],
        "holm_p": [row.holm for row in rows],
    }
    names = {"tasks": np.array([label(row) for row in rows], str), "runs": np.array([s.name for s in comparison.sides])}
    return names | {name: np.array(numbers, float) for name, numbers in found.items()}  # NaN for `None`


def compare_document(comparison: "Comparison") -> dict[str, object]:
    """Convert the comparison to a JSON document."""
    runs = [
        {
            "run": str(side.folder),
            "name": side.name,
            "steps": side.config.model.steps,
            "parameters": side.parameters,
            **{name: (side.entry or {}).get(name) for name in ("validation", "tokens", "tokens_per_second", "seconds")},
            "missing": list(missing),
        }
        for side, missing in zip(comparison.sides, comparison.missing, strict=True)
    ]
    between = lambda row: dict(zip(("value", "stderr"), _difference(row), strict=True)) | {"p": row.difference.p}
    rows = [{**row._asdict(), "difference": row.difference and between(row)} for row in comparison.rows]
    return {"runs": runs, "same_text": comparison.same_text, "tasks": rows, "unlike": list(comparison.unlike)}


def p_value(p: float | None) -> str:
    """Format a p-value with three decimals, or as `0.001 or less`."""
    return "0.001 or less" if p is not None and p <= 0.001 else number(p, 3)


def _ahead(row: "Row") -> int:
    """Index of the better model: of accuracies by the difference that is tested, as the value of a group may be a mean
    of its tasks that ranks the two the other way; else by the value."""
    if row.is_accuracy and row.difference:
        return int(row.difference.value < 0)
    one, other = (value or 0.0 for value in row.values)
    return int((one > other) == (row.higher_is_better is False))


def _is_weighted(row: "Row") -> bool:
    """Whether an accuracy is no mean over its items, such as a group's in which all tasks count the same."""
    one, other = row.values
    if not row.is_accuracy or row.difference is None or one is None or other is None:
        return False
    return not math.isclose(row.difference.value, one - other, abs_tol=1e-9)


def _plus_minus(value: float | None, error: float | None, write: Callable[[object, int], str] = number) -> str:
    return write(value, 4) if error is None else f"{write(value, 4)} ± {number(error, 4)}"


def _difference(row: "Row") -> tuple[float | None, float | None]:
    """Difference of the values, and its standard error if they are means over items (a perplexity is not)."""
    one, other = row.values
    if one is None or other is None:
        return None, None
    found = row.difference
    return one - other, found.stderr if found and math.isclose(found.value, one - other) else None
