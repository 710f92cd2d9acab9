"""Measures of the claims of figure 5, from runs of `reproduce adapt` with each seed."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from diffeqformer.config import Config, DataConfig, from_dict
from diffeqformer.data.cache import prepare
from diffeqformer.errors import Diverged
from diffeqformer.plain import Document
from diffeqformer.progress import Progress
from diffeqformer.runs.folder import RESULTS, require_same_text
from diffeqformer.runs.results import read_results
from diffeqformer.store.paths import path_of
from diffeqformer.studies.paper.claims import PUT_BACK, SEARCHED_WITH, Trained
from diffeqformer.studies.paper.measures import OURS, measured
from diffeqformer.studies.reproduce.experiments import rates_of
from diffeqformer.studies.reproduce.reproduce_adapt import Arguments, records, reproduce

TUNING = 1 / 4
"""Length of fine-tuning, as a fraction of pretraining."""


def adapted_runs(folder: Path, seed: int, other: Sequence[str]) -> Document | None:
    """Return one seed's results of fine-tuning at other depths; `None` if it is not finished, or used another text than
    `other`, if given."""
    found = read_results(folder / f"adapt/seed-{seed}" / RESULTS)
    if found is None or not other:
        return found
    texts = (one["config"]["data"]["train"] for one in found["models"] if one["role"]["text"] == "other")
    return found if all(text == list(other) for text in texts) else None


@cache
def _require_text(folder: Path, seed: int, progress: Progress) -> None:
    """Check that the finished runs were trained on the other text as it is now.

    **Raises:** `BadInput` if they were not.
    """
    document = read_results(folder / f"adapt/seed-{seed}" / RESULTS)
    assert document is not None
    entry = next(one for one in document["models"] if one["role"]["text"] == "other")
    config = from_dict(Config, entry["config"])
    require_same_text(path_of(config.run), prepare(config.data, progress).content, PUT_BACK)


def _adapted(found: Trained, seed: int) -> Document | None:
    """Return the results of one seed, trained if allowed, at the rates on record or those of the seed of the search;
    `None` if the models have another size than those of `reproduce adapt`, or if training diverged."""
    ours = found.models.get(OURS)
    if ours is not None and ours.config.model.steps != Arguments.steps:
        return None
    document = adapted_runs(found.folder, seed, found.other)
    if document is not None and found.other and found.train:
        _require_text(found.folder, seed, found.progress)
    if document is not None or ours is None or not (found.other and found.train):
        return document
    searched = None if found.rates or seed == SEARCHED_WITH else _adapted(found, SEARCHED_WITH)
    rates = rates_of(searched) if searched else found.rates
    return _reproduced(ours.config, found.other, seed, found.folder, found.progress, tuple(rates.items()))


@cache
def _reproduced(
    ours: Config,
    other: tuple[str, ...],
    seed: int,
    folder: Path,
    progress: Progress,
    rates: tuple[tuple[str, float], ...],
) -> Document | None:
    """Train once and keep the outcome: what diverged would diverge again for every claim."""
    own, updates = ours.data, ours.trainer.updates
    words = Arguments(("own", "other"), pretraining=updates, finetuning=max(1, int(TUNING * updates)))
    texts = {"own": own, "other": DataConfig(source="files", train=other, cache=own.cache)}
    try:
        return reproduce(words, texts, seed, folder / f"adapt/seed-{seed}", progress, dict(rates))
    except Diverged as error:
        return progress.say(str(error))


@measured
def adapted(found: Trained, steps: int, method: str = "lora", direction: str = "") -> float | None:
    """Return the logarithm of GPT's perplexity after fine-tuning over DiffEqFormer's at `steps` steps.

    **Arguments:** `method`, or `scratch` for training on the new text alone; `direction`, such as `own → other`; the
    mean over both if empty.
    """
    if (rows := _tuned(found, method, direction)) is None:
        return None
    ours = {row["direction"]: row["final"]["loss"] for row in rows if _is_ours(row) and row["steps"] == steps}
    ahead = [row["final"]["loss"] - ours[row["direction"]] for row in rows if not _is_ours(row)]
    return sum(ahead) / len(ahead)


@measured
def transferred(found: Trained, method: str, direction: str) -> float | None:
    """Return DiffEqFormer's loss from scratch on the new text minus that of fine-tuning at the pretrained depth."""
    scratch, rows = _tuned(found, "scratch", direction), _tuned(found, method, direction)
    if scratch is None or rows is None:
        return None
    new = next(row for row in scratch if _is_ours(row))
    old = next(row for row in rows if _is_ours(row) and row["steps"] == new["steps"])
    return new["final"]["loss"] - old["final"]["loss"]


@measured
def overfits_less(found: Trained, fewer: int, steps: int, direction: str) -> float | None:
    """Return the loss's rise from its lowest to the end of full fine-tuning at `steps`, minus that at `fewer`."""
    if (rows := _tuned(found, "full", direction)) is None:
        return None
    risen = {
        row["steps"]: row["final"]["loss"] - min(row["final"]["loss"], *(loss for _, loss in row["curve"]))
        for row in rows
        if _is_ours(row)
    }
    return risen[steps] - risen[fewer]


def _tuned(found: Trained, method: str, direction: str) -> list[Document] | None:
    """Return the rows of one method and one direction, or both; `None` if there are no results."""
    if (document := _adapted(found, found.seed)) is None:
        return None
    return [row for row in records([document]) if row["method"] == method and direction in ("", row["direction"])]


def _is_ours(row: Document) -> bool:
    return row["system"].startswith("DiffEqFormer")
