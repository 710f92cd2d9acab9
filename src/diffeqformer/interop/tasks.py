"""Tasks of lm-evaluation-harness on a run: found by name, evaluated one after the other, results kept with the run."""

import contextlib
import copy
import difflib
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from diffeqformer.errors import BadInput, reason
from diffeqformer.plain import Document, finite_or_none
from diffeqformer.progress import Progress, Silent
from diffeqformer.runs.opening import Run
from diffeqformer.runs.results import made_here, name_of_run
from diffeqformer.store.digests import digest
from diffeqformer.store.files import sealed_text, write_output
from diffeqformer.store.paths import path_of
from diffeqformer.store.regular import require_no_links

FOLDER = "evaluations"
YAML = (".yaml", ".yml")
RESAMPLES = 1000
"""Bootstrap resamples, for metrics whose standard error has no formula."""


class Tasks:
    """Tasks of the harness, found by name and loaded with their data.

    **Arguments:** `names`, of tasks, groups or tags of the harness, patterns such as `blimp_*`, or YAML files;
    `include`, folders of your own task files, which take precedence over the harness's. The harness's own list of some
    14,000 tasks is only read if a name is not found in them, or a group there cannot be loaded without it.

    **Raises:** `BadInput` if the harness is not installed, for an unknown name (with the nearest ones), for two files
    of the same name, for a group's file, and for data that cannot be loaded.
    """

    def __init__(self, names: Sequence[str], include: Sequence[str] = ()):
        try:
            from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise BadInput(
                f"--tasks needs lm-evaluation-harness, but {error.name} is not installed here; "
                "pip install 'diffeqformer[eval]' brings it."
            ) from error
        for folder in include:
            if not path_of(folder).is_dir():
                raise BadInput(f"--include-path is {folder!r}, but must be a folder with task files.")
        folders = [str(path_of(folder).resolve()) for folder in include]
        manager: Any = TaskManager  # typed by the installed version, if it is installed
        self.manager: Any = manager(include_path=folders, include_defaults=False)
        whole = not all(map(self._found, names))
        if whole:
            self.manager = manager(include_path=folders)
        for name in names:
            if not self._found(name):
                near = difflib.get_close_matches(name, self.manager.all_tasks, n=3)
                advice = f"did you mean {' or '.join(near)}?" if near else "`lm_eval ls tasks` lists them."
                raise BadInput(f"task {name!r} is not known to lm-evaluation-harness and is no YAML file: {advice}")
        found = list(dict.fromkeys(each for name in names for each in self._found(name)))
        titles = list(map(_title, found))
        for name, title in zip(found, titles, strict=True):
            if titles.count(title) > 1:
                raise BadInput(f"task file {name!r} has the name of another one, {title!r}; rename one of them.")
            if name.endswith(YAML) and re.search(r"(?m)^group\s*:", path_of(name).read_text(errors="replace")):
                where = str(path_of(name).parent)
                raise BadInput(
                    f"task file {name!r} is a group, which is found by its name only: give --include-path {where!r}, "
                    "and to --tasks the name that stands after 'group'."
                )
        try:
            self.loaded = dict(zip(titles, map(self._load, found), strict=True))
        except BadInput:
            if whole or not {*found} & {*self.manager.all_groups}:
                raise
            self.manager = manager(include_path=folders)  # a group of your own may name tasks of the harness
            self.loaded = dict(zip(titles, map(self._load, found), strict=True))

    def are_those_of(self, evaluation: Document) -> bool:
        """Whether a document of `evaluate_tasks` covers these tasks, in these versions and with all their items."""
        parts = _single([each for one in self.loaded.values() for each in one])
        asked = {task.task_name: (task.VERSION, len(task.eval_docs)) for task in parts}
        there = {name: (evaluation["task_versions"].get(name), n) for name, n in evaluation["samples"].items()}
        return asked == there

    def _found(self, name: str) -> list[str]:
        if name.endswith(YAML):
            return [name] if path_of(name).is_file() else []
        return self.manager.match_tasks([name])

    def _load(self, name: str) -> list[Any]:
        """Load a task or group, or the tasks of a tag, as `simple_evaluate` takes them."""
        try:
            loaded = self.manager.load([name])
        except Exception as error:  # each data reader and each task has its own exceptions
            what = reason(error, 200)
            raise BadInput(
                f"task {name!r} cannot be loaded ({type(error).__name__}: {what}); unless its data is on this machine "
                "already it comes from the Hugging Face hub, and docs/harness.md shows how to use files of your own."
            ) from error
        group = loaded["groups"].get(name)
        return [group] if group is not None else list(loaded["tasks"].values())


def evaluate_tasks(
    run: Run,
    tasks: Tasks,
    *,
    steps: int | None = None,
    scheme: str | None = None,
    checkpoint: str = "latest",
    num_fewshot: int | None = None,
    limit: float | None = None,
    batch_size: int = 16,
    gen_kwargs: str = "",
    progress: Progress | None = None,
) -> Iterator[Document]:
    """Evaluate tasks one after the other; each is written to `RUN/evaluations` as soon as it is done.

    **Arguments:** `run`, as `load_run` opens it with `checkpoint`; `steps` and `scheme` as for `DiffEqFormerLM`;
    `num_fewshot`, `limit` and `gen_kwargs` as for the harness's `simple_evaluate`; `batch_size`, sequences at one time.

    **Returns:** for each task, the document that was written: what was run, `results` (task, metric, filter, value,
    standard error), and for each item its metrics, in order.

    **Raises:** `BadInput` for options that the model does not support, and for unknown generation settings; `RunFailed`
    if a document cannot be written.
    """
    from lm_eval import simple_evaluate  # pyright: ignore[reportMissingImports]
    from lm_eval.utils import simple_parse_args_string  # pyright: ignore[reportMissingImports]

    from diffeqformer.interop.harness import LENGTHS, DiffEqFormerLM, require_known

    evaluate: Any = simple_evaluate  # and the class are typed by the installed version, if it is installed
    harness_model: Any = DiffEqFormerLM
    progress = progress or Silent()
    asked = simple_parse_args_string(gen_kwargs or None) or {}
    require_known(asked)
    asked = _overriding(asked, LENGTHS)
    model = harness_model(run, steps, scheme, batch_size=batch_size, progress=progress)
    for task, loaded in tasks.loaded.items():
        progress.say(f"{task} …")
        parts = _single(loaded)
        # The harness leaves these as they are, and says so only in its log.
        if num_fewshot and (fixed := [one for one in parts if one.get_config("num_fewshot") == 0]):
            progress.say(f"--num-fewshot is {num_fewshot}, but {len(fixed)} of {len(parts)} tasks ask for no examples.")
        with contextlib.redirect_stdout(sys.stderr), _put_back(parts):  # the harness prints
            found = evaluate(
                model,
                tasks=loaded,
                num_fewshot=num_fewshot,
                # The harness takes a float below 1 for a share of the items.
                limit=limit if limit is None or limit < 1 else int(limit),
                bootstrap_iters=RESAMPLES,
                gen_kwargs=asked or None,
                task_manager=tasks.manager,
            )
        assert found is not None  # this is the only process
        document = {
            "task": task,
            **made_here(1, "lm_eval"),  # runs open on one device
            "run": str(run.folder),
            "name": name_of_run(run.config),
            "checkpoint": checkpoint,
            "update": run.step,
            "steps": model.model.config.steps,
            "scheme": model.model.config.scheme.kind,
            "num_fewshot": found["n-shot"],
            "limit": limit,
            "gen_kwargs": gen_kwargs or None,
            "seeds": {name: found["config"][f"{name}_seed"] for name in ("random", "numpy", "fewshot")},
            "task_versions": found["versions"],
            "samples": {name: number["effective"] for name, number in found["n-samples"].items()},
            "subtasks": found.get("group_subtasks", {}),
            "results": _rows(found),
            "items": {name: _items(samples) for name, samples in found["samples"].items()},
        }
        shots = None if num_fewshot is None else max(document["num_fewshot"].values(), default=num_fewshot)
        require_no_links(run.folder)
        write_output(run.folder / FOLDER / f"{_file_name(document, shots)}.json", sealed_text(document), "evaluation")
        yield document


def _single(loaded: Sequence[Any]) -> list[Any]:
    """Return the tasks among `loaded`, and those of its groups."""
    return [task for one in loaded for task in (one.get_all_tasks() if hasattr(one, "get_all_tasks") else [one])]


@contextlib.contextmanager
def _put_back(tasks: Sequence[Any]) -> Iterator[None]:
    """Put back what the harness writes into tasks, so that the next evaluation finds them as they were loaded."""
    written = ("num_fewshot", "generation_kwargs")
    before = [{name: copy.deepcopy(task.get_config(name)) for name in written} for task in tasks]
    try:
        yield
    finally:
        for task, settings in zip(tasks, before, strict=True):
            for name, value in settings.items():
                task.set_config(name, value)


def _overriding(asked: Document, lengths: Sequence[str]) -> Document:
    """Return a user's generation settings so that none of a task's own takes precedence.

    A task may name the number of new tokens by the first of `lengths`, which is the one that is read, and may say not
    to sample, which sets the temperature to 0.

    **Raises:** `BadInput` for two names of the number of new tokens.
    """
    named = [name for name in lengths if name in asked]
    if len(named) > 1:
        raise BadInput(f"gen_kwargs has {' and '.join(named)}, names of the same number of new tokens; give one.")
    found = {lengths[0] if name in named else name: value for name, value in asked.items()}
    if isinstance(temperature := asked.get("temperature"), int | float):
        found.setdefault("do_sample", temperature > 0)
    return found


def summary(document: Document) -> list[Document]:
    """Return the rows of a task's results to show: only those of groups if there are any, else all."""
    of_groups = [row for row in document["results"] if row["group"]]
    return of_groups or document["results"]


def _rows(found: Document) -> list[Document]:
    """Convert the harness's results to one row per metric."""
    groups = found.get("groups", {})
    rows = []
    for task, metrics in {**groups, **found["results"]}.items():
        for key, value in metrics.items():
            metric, comma, chosen = key.partition(",")
            if not comma or metric.endswith("_stderr"):
                continue
            error = metrics.get(f"{metric}_stderr,{chosen}")
            row = {"task": task, "group": task in groups, "metric": metric, "filter": chosen}
            better = found["higher_is_better"].get(task, {}).get(metric)
            rows.append({**row, "value": _number(value), "stderr": _number(error), "higher_is_better": better})
    return rows


def _items(samples: Sequence[Document]) -> dict[str, list[float | None]]:
    """Collect each item's numeric metrics, in the order of the task's documents, separately for each filter."""
    items: dict[str, list[float | None]] = {}
    for sample in sorted(samples, key=lambda sample: sample["doc_id"]):
        for metric in sample["metrics"]:
            if isinstance(sample[metric], (bool, int, float)):
                items.setdefault(f"{metric},{sample['filter']}", []).append(_number(float(sample[metric])))
    return items


def _number(value: Any) -> float | None:
    """Return a finite number, which JSON can represent, or `None`."""
    return finite_or_none(value) if isinstance(value, (int, float)) else None


def _title(name: str) -> str:
    return Path(name).stem if name.endswith(YAML) else name


def _file_name(document: Document, num_fewshot: int | None) -> str:
    """Name a file by what was run, so that repeating it replaces the file and anything else gets its own."""
    parts = [document["task"], f"{document['steps']}-steps"]
    parts += [] if num_fewshot is None else [f"{num_fewshot}-shot"]
    parts += [] if document["limit"] is None else [f"limit-{document['limit']:g}"]
    if document["checkpoint"] != "latest":
        parts.append(document["checkpoint"])
    if settings := document["gen_kwargs"]:
        # Other characters, as in a stop string, are replaced below, and would give different settings one name.
        parts.append(settings if re.fullmatch(r"[\w.,=-]{1,60}", settings) else digest(settings.encode())[:16])
    return re.sub(r"[^\w.-]+", "-", "-".join([*parts, document["scheme"]]))
