"""Code shared by experiments: training and keeping a series of runs, and the search for a learning rate."""

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from diffeqformer.config import Config, validate, with_values
from diffeqformer.errors import Diverged
from diffeqformer.plain import Document, Values, finite_or_none
from diffeqformer.progress import Progress
from diffeqformer.report.table import Table
from diffeqformer.report.text import duration
from diffeqformer.studies.study import Result

if TYPE_CHECKING:
    from diffeqformer.runs.trainer import TrainResult

EVALUATIONS = 5
"""Number of evaluations on the validation split in the course of each run."""
Rates = dict[str, tuple[float, dict[float, float]]]
"""The best learning rate, and the loss of every rate that was tried, by what was trained."""


def with_length(config: Config, updates: int, seed: int) -> Config:
    """Return the config of a run of `updates` updates, evaluated `EVALUATIONS` times on the whole validation split."""
    every = max(1, updates // EVALUATIONS)
    trainer = replace(config.trainer, updates=updates, evaluate_every=every, evaluate_batches=0, keep_best=0, seed=seed)
    return replace(config, trainer=trainer)


def on_text(config: Config, files: Sequence[str], cache: str) -> Config:
    """Return the config on these files, or on its own text if there are none, with packed tokens in folder `cache`."""
    own = {"data.source": "files", "data.train": files, "data.dataset": ""} if files else {}
    return with_values(config, {**own, "data.cache": cache})


def require_own(configs: Iterable[Config]) -> None:
    """Check before anything is trained that the folders of these runs are free, or hold these same runs.

    **Raises:** `BadInput` as `train`, which would notice a run of other settings only when it is reached.
    """
    from diffeqformer.runs.folder import RunFolder, as_moved

    for config in configs:
        RunFolder(as_moved(validate(config))).require_own()


def train_all(
    title: str,
    runs: Iterable[tuple[Config, Document]],
    planned: int,
    folder: Path,
    progress: Progress,
    more: Callable[["TrainResult", Document], Document] = lambda result, role: {},
) -> Document:
    """Train every run that is not trained yet, and write `results.json` into `folder`.

    **Arguments:** `runs`, the config of each and its role in the comparison; `planned`, how many there will be; `more`,
    returns further entries of a run besides its own and its role.

    **Returns:** the document of `runs.results`; its corpus is keyed by the `text` of the roles, if they have one.
    """
    from diffeqformer.runs.folder import RESULTS
    from diffeqformer.runs.results import document
    from diffeqformer.runs.trainer import train
    from diffeqformer.store.files import write_sealed

    entries, corpora = [], {}
    for number, (config, role) in enumerate(runs, 1):
        progress.say(f"{number}/{planned} {config.run}")
        result = train(config, progress)
        corpora[role.get("text")] = result.tokens.statistics
        entries.append({**result.entry, "role": role, **more(result, role)})
    found = document(title, corpora.get(None, corpora), entries)
    write_sealed(folder / RESULTS, found)
    return found


def listed(name: str, title: str, runs: Iterable[tuple[str, Path, Values, float]], folder: Path) -> Result:
    """List runs by kind, how many are finished, and how long the others take at the pace of the finished ones.

    **Arguments:** `runs`: the kind of each in words, its folder, the settings that identify it, by dotted name and
    including its updates, and how many evaluations of the field an update takes.
    """
    from diffeqformer.runs.results import results_of
    from diffeqformer.runs.settings import first_difference, numeric

    runs, done, left, longest, pace, others = list(runs), Counter(), defaultdict(float), 0.0, [], []
    for kind, run, settings, each_takes in runs:
        found, evaluations = results_of(run), settings["trainer.updates"] * each_takes
        entry = found["models"][0] if found else None
        if entry and not first_difference(settings, numeric(entry["config"])):
            done[kind] += 1
            pace.append(entry["seconds"] / evaluations)
            continue
        others += [run] if entry else []
        left[kind] += evaluations
        longest = max(longest, evaluations)
    each = statistics.median(pace) if pace else math.nan
    kinds = [
        {"runs": kind, "finished": done[kind], "of": n, "seconds_left": each * left.get(kind, 0.0) if pace else None}
        for kind, n in Counter(kind for kind, *_ in runs).items()
    ]
    rows = [(one["runs"], f"{one['finished']} of {one['of']}", duration(one["seconds_left"])) for one in kinds]
    said = f"{done.total()} of {len(runs)} runs are finished"
    if left and pace:
        said += (
            f"; at their pace, the rest takes about {duration(each * sum(left.values()))}. A single run takes at most "
            f"{duration(each * longest)}; a stopped run resumes where it left off"
        )
    if others:
        said += f". {len(others)} with other settings are in the way, such as {str(others[0])!r}: choose another --to"
    table = Table("Runs", ("runs", "finished", "left"), rows)
    return Result(name, title, (f"{said}.",), (table,), document={"runs": kinds}, folder=folder)


def search(loss_of: Callable[[float], float], start: float, *, most: int = 7) -> tuple[float, dict[float, float]]:
    """Search the best learning rate on a grid of factors of two, which grows until the best rate is inside it.

    **Arguments:** `loss_of`, returns a rate's loss, infinite where training diverged; `start`, the middle of the first
    three rates; `most`, how many are tried at most: the same budget for every model.

    **Returns:** the best rate, and the loss of every rate that was tried.
    """
    tried = {rate: loss_of(rate) for rate in (start / 2, start, 2 * start)}
    while len(tried) < most:
        best = min(tried, key=tried.__getitem__)
        if best == min(tried):
            tried[best / 2] = loss_of(best / 2)
        elif best == max(tried):
            tried[2 * best] = loss_of(2 * best)
        else:
            break
    return min(tried, key=tried.__getitem__), dict(sorted(tried.items()))


def trained(config: Config, progress: Progress) -> Document | None:
    """Return the entry of a run, trained if it is not yet; `None` if training diverges, which is reported."""
    from diffeqformer.runs.trainer import train

    try:
        return train(config, progress).entry
    except Diverged as error:
        return progress.say(str(error))


def trained_loss(config: Config, progress: Progress) -> float:
    """Return the validation loss after training; infinite if training diverges."""
    entry = trained(config, progress)
    return math.inf if entry is None else entry["validation"]["loss"]


def rate_for(
    name: str, start: float, config_at: Callable[[float], Config], rates: Mapping[str, float], progress: Progress
) -> tuple[float, Document]:
    """Return the learning rate from `rates`, or else the best of a search, and what a role records of that search."""
    if name in rates:
        return rates[name], {}
    progress.say(f"learning rate of {name}")
    best, tried = search(lambda rate: trained_loss(config_at(rate), progress), start)
    return best, {"tried": losses_document(tried)}


def losses_document(tried: Mapping[float, float]) -> Document:
    """Convert losses by learning rate to JSON: `null` where training diverged."""
    return {f"{rate:g}": finite_or_none(loss) for rate, loss in tried.items()}


def losses_of(document: Values) -> dict[float, float]:
    """Restore the losses from which `losses_document` made a document."""
    return {float(rate): math.inf if loss is None else loss for rate, loss in document.items()}


def rates_of(found: Values) -> dict[str, float]:
    """Return the learning rates of those runs of `train_all` that can be searched, by the `searched` of their roles."""
    runs = [one for one in found["models"] if "searched" in one["role"]]
    return {one["role"]["searched"]: one["config"]["optimizer"]["learning_rate"] for one in runs}


def searches(found: Values) -> Rates:
    """Return the searches among the runs of `train_all`: those with losses by rate under `tried` in their roles."""
    rates, roles = rates_of(found), [one["role"] for one in found["models"] if one["role"].get("tried")]
    return {role["searched"]: (rates[role["searched"]], losses_of(role["tried"])) for role in roles}


def rates_table(found: Rates, seed: int) -> Table:
    """Build the table of the search for learning rates with a seed, without rates at which training diverged."""
    rows = [
        (name, f"{best:g}", "yes" if min(losses) < best < max(losses) else "no",
         ", ".join(f"{rate:g}: {loss:.4f}" for rate, loss in losses.items() if math.isfinite(loss)))
        for name, (best, losses) in found.items()
    ]  # fmt: skip
    said = (
        f"Learning rates\nSearched in factors of two with seed {seed} until the best is inside the grid; at most 7 for "
        "any model. Chosen by the same validation loss that is reported."
    )
    return Table(said, ("model", "best", "inside the grid", "loss by rate"), rows)
