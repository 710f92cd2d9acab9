"""Comparison of two runs: training results from their folders, and item by item the tasks evaluated in both."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from diffeqformer.config import Config
from diffeqformer.errors import BadInput
from diffeqformer.evaluation.paired import Difference, holm, paired_difference
from diffeqformer.interop.tasks import FOLDER, summary
from diffeqformer.model.count import parameters
from diffeqformer.plain import Document, Values
from diffeqformer.report.text import ends_apart
from diffeqformer.runs.folder import RESULTS, open_config, text_digest_of
from diffeqformer.runs.results import name_of_run, results_of
from diffeqformer.store.files import read_sealed
from diffeqformer.store.paths import path_of

ACCURACIES = ("acc", "acc_norm", "acc_bytes", "exact_match", "em")
"""Names of metrics that count correct answers."""

Key = tuple[str, int | None, float | None, str | None]
"""A task and how it was evaluated: task name, few-shot examples, limit, generation settings."""


@dataclass(frozen=True)
class Side:
    """One of the two runs."""

    folder: Path
    name: str
    config: Config
    entry: Document | None
    """The run's entry in `results.json`; `None` if the run is not finished, or was imported."""
    text: str | None
    """Digest of the tokens that the run was trained and validated on."""
    tasks: dict[Key, Document]
    """The run's evaluation documents, from `evaluations/`."""

    @property
    def otherwise(self) -> list[str]:
        """Tasks evaluated with steps or a scheme other than the run's own, or of a checkpoint other than the last."""
        last = self.entry and self.entry["updates"]
        return [
            _title(key)
            for key, one in self.tasks.items()
            if not _as_trained(one, self.config) or last not in (None, one["update"])
        ]

    @property
    def parameters(self) -> dict[str, int]:
        """Parameter counts, stored and effective, of the model populated at its own number of steps."""
        return parameters(self.config.model)._asdict()


class Row(NamedTuple):
    """A metric of a task in both runs."""

    task: str
    fewshot: int | None
    limit: float | None
    """How many items, or which part of them, were evaluated; all if `None`."""
    metric: str
    values: tuple[float | None, float | None]
    stderrs: tuple[float | None, float | None]
    steps: tuple[int, int]
    items: int
    """Number of items compared one by one; 0 if the harness gives no values per item for this metric."""
    higher_is_better: bool | None
    difference: Difference | None
    holm: float | None
    """The p-value after Holm's correction over all rows that have one."""

    @property
    def is_accuracy(self) -> bool:
        """Whether the metric is a fraction of correct answers."""
        return self.metric.partition(" ")[0] in ACCURACIES


@dataclass(frozen=True)
class Comparison:
    """Two runs, the metrics they can be compared by, and the tasks that cannot be compared."""

    sides: tuple[Side, Side]
    rows: tuple[Row, ...]
    missing: tuple[tuple[str, ...], tuple[str, ...]]
    """Tasks that only the other run has with the same settings: those missing in the first, and in the second."""
    unlike: tuple[str, ...]
    """Tasks whose version or items differ between the runs."""

    @property
    def same_text(self) -> bool:
        """Whether both were validated on the same tokens, so that losses per token can be compared."""
        return self.sides[0].text is not None and self.sides[0].text == self.sides[1].text


def compare_runs(first: str | Path, second: str | Path) -> Comparison:
    """Compare two runs from their folders, without loading a model.

    If a run has several evaluations of a task with the same settings, one is chosen: the newest with the run's own
    steps and scheme and of the latest checkpoint; else the newest with its own steps; else the newest.

    **Raises:** `BadInput` if a folder is not a run, or if there is nothing to compare.
    """
    one, other = _open(first), _open(second)
    if one.folder.resolve() == other.folder.resolve():
        raise BadInput(f"run folder {str(one.folder)!r} is given twice, but two different runs must be compared.")
    if one.name == other.name:
        ends = ends_apart((one.folder, other.folder))
        one, other = (replace(s, name=f"{s.name} ({end})") for s, end in zip((one, other), ends, strict=True))
    rows, unlike = [], []
    for key in one.tasks:
        if key in other.tasks:
            found = _rows(one.tasks[key], other.tasks[key])
            rows += found
            unlike += [] if found else [_title(key)]
    if not rows and (one.entry is None or other.entry is None):
        unfinished = next((side for side in (one, other) if side.entry is None), one)
        raise BadInput(
            f"run {str(unfinished.folder)!r} has no {RESULTS}, and no task has been evaluated in both runs; "
            "`diffeqformer eval RUN --tasks NAMES` evaluates tasks."
        )
    corrected = iter(holm([row.difference.p for row in rows if row.difference]))
    rows = [row._replace(holm=next(corrected)) if row.difference else row for row in rows]
    only = lambda theirs, ours: tuple(_title(key) for key in theirs.tasks if key not in ours.tasks)
    return Comparison((one, other), tuple(rows), (only(other, one), only(one, other)), tuple(unlike))


def _open(folder: str | Path) -> Side:
    folder = path_of(folder)
    config, results = open_config(folder), results_of(folder)
    entry = results["models"][0] if results else None
    return Side(folder, name_of_run(config), config, entry, text_digest_of(folder), evaluations(folder, config))


def evaluations(folder: Path, config: Config) -> dict[Key, Document]:
    """Read a run's evaluation documents, one for each task and its settings.

    **Raises:** `BadInput` for a file that is not an evaluation.
    """
    found: dict[Key, Document] = {}
    order = lambda d: (_as_trained(d, config), d["steps"] == config.model.steps, d["update"], d["created"])
    for path in sorted((folder / FOLDER).glob("*.json")):
        try:
            document = read_sealed(path)
            key = (document["task"], _shots(document), document["limit"], document["gen_kwargs"])
            if key not in found or order(found[key]) < order(document):
                found[key] = document
        except (OSError, KeyError, TypeError, AttributeError) as error:
            raise BadInput(f"file {str(path)!r} is not an evaluation as `eval --tasks` writes it: {error!r}.") from None
    return found


def _as_trained(document: Values, config: Config) -> bool:
    """Whether the evaluation used the run's own steps and scheme, and the latest checkpoint."""
    own = (config.model.steps, config.model.scheme.kind, "latest")
    return (document["steps"], document["scheme"], document["checkpoint"]) == own


def _shots(document: Values) -> int | None:
    """Return the number of few-shot examples before an item; for a group, the largest of its tasks."""
    shots = document["num_fewshot"].get(document["task"])
    return max(document["num_fewshot"].values(), default=None) if shots is None else shots


def _title(key: Key) -> str:
    task, shots, limit, settings = key
    how = [f"{shots}-shot" if shots else "", f"limit {limit:g}" if limit else "", settings or ""]
    return f"{task} ({', '.join(filter(None, how))})" if any(how) else task


def _rows(first: Values, second: Values) -> list[Row]:
    """Build one row per metric of a task; none if the task's version or its items differ."""
    if first["task_versions"] != second["task_versions"] or first["samples"] != second["samples"]:
        return []
    others = {(row["task"], row["metric"], row["filter"]): row for row in summary(dict(second))}
    rows = []
    for row in summary(dict(first)):
        other = others.get((row["task"], row["metric"], row["filter"]))
        if other is None:
            continue
        scores = [_scores(document, row) for document in (first, second)]
        paired = len(scores[0]) == len(scores[1]) >= 2 and np.isfinite(scores).all()
        rows.append(
            Row(
                row["task"],
                _shots(first),
                first["limit"],
                row["metric"] if row["filter"] == "none" else f"{row['metric']} ({row['filter']})",
                (row["value"], other["value"]),
                (row["stderr"], other["stderr"]),
                (first["steps"], second["steps"]),
                len(scores[0]) if paired else 0,
                row["higher_is_better"],
                paired_difference(*scores) if paired else None,
                None,
            )
        )
    return rows


def _scores(document: Values, row: Values) -> np.ndarray:
    """Return a metric's value for every item; for a group, those of its parts one after the other."""
    key, items = f"{row['metric']},{row['filter']}", document["items"]
    return np.array([score for part in _parts(document, row["task"]) for score in items[part].get(key, ())], float)


def _parts(document: Values, task: str) -> list[str]:
    """Return the tasks with items that make up a task or group; none for a group whose parts are not known."""
    if task in document["items"]:
        return [task]
    if task == document["task"]:
        return sorted(document["items"])
    return sorted({part for one in document.get("subtasks", {}).get(task, ()) for part in _parts(document, one)})
