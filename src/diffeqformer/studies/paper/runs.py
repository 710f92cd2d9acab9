"""The runs of the paper's registry: their configs, their learning rates, and what they cost."""

import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from diffeqformer.config import Config, DataConfig, read_shipped, validate, with_values
from diffeqformer.config.bounds import INT32, UINT32, setting
from diffeqformer.devices import device_of
from diffeqformer.errors import Damaged, DiffEqFormerError, Diverged
from diffeqformer.plain import Document, Values
from diffeqformer.progress import Progress, Silent
from diffeqformer.store.files import read_sealed, write_sealed
from diffeqformer.store.paths import path_of
from diffeqformer.studies.inputs import File, Files, Folder, Seeds
from diffeqformer.studies.paper.claims import PUT_BACK, SEARCHED_WITH, Finished, Model, Text
from diffeqformer.studies.reproduce.experiments import Rates, on_text, search, with_length

Scale = Literal["laptop", "gpu"]
UPDATES: Mapping[Scale, int] = {"laptop": 500, "gpu": 2000}
SEARCHES = 4
"""Usual number of runs of a search for a learning rate; at least 3, at most 7."""
DIVERGED = "diverged.json"
"""File of a run whose training diverged: it is not trained again."""
BATCHES = 16
"""Batches of each evaluation during training; after it the whole split is evaluated."""


@dataclass(frozen=True)
class Arguments:
    """The paper's tables and figures, item by item: what is claimed, what is found, and a verdict.

    Runs are shared between items, kept when they are finished, and go on when they were stopped. Learning rates are
    searched for every kind of model first, with one seed.

    Example: diffeqformer reproduce paper table-1 figure-7 --seeds 0 1 2
    """

    items: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="ITEM")] = ()
    """Items such as table-1 or figure-7; all if none are named."""
    list: bool = False
    """Train nothing: list the items, what they still need, and how long that takes."""
    finished: bool = False
    """Train nothing: judge by the runs that are finished."""
    seeds: Seeds = setting((0, 1, 2), least=0, most=UINT32)
    """Everything is trained once with each; a verdict needs three."""
    scale: Scale = "laptop"
    """Models of the quickstart's size; or GPT-small and its twins, context 1024, which need a GPU and --data."""
    updates: int | None = setting(None, least=1, most=INT32)
    """Updates per run; if not given 500, at gpu scale 2,000 (131 million tokens)."""
    data: Files = ()
    """Text files or globs to train on; the source of Python's standard library if not given."""
    other: Files = ()
    """Another text, for what is claimed of texts that were not trained on."""
    web: Files = ()
    """Text of the web such as OpenWebText, for what is claimed of models that are trained on it."""
    include_path: Annotated[tuple[str, ...], tyro.conf.arg(metavar="DIR")] = ()
    """Folders with task files of your own for tables 4 and 5, as `eval` takes them."""
    to: Folder = "runs/paper"
    """Folder of all runs and of the page; at gpu scale its subfolder gpu."""
    markdown: File = ""
    """Also write the page as Markdown, such as docs/paper.md, and its figures into a folder beside it (docs/paper)."""
    record: File = ""
    """A JSON file of verdicts, models and learning rates of earlier runs, such as docs/paper.json: rates in it
    are not searched again, its effects of other seeds count with those found here, and these are added."""
    cache: str = DataConfig.cache
    """Folder of packed tokens."""

    @property
    def length(self) -> int:
        """Updates of each run."""
        return self.updates or UPDATES[self.scale]

    @property
    def of(self) -> Document:
        """What verdicts refer to, whatever the seeds: scale, updates and text, and the other texts that are given."""
        more = {name: _names(files) for name, files in (("other", self.other), ("web", self.web)) if files}
        return {"scale": self.scale, "updates": self.length, "text": self.text, **more}

    @property
    def files(self) -> dict[Text, Files]:
        """The files of each text."""
        return {"own": self.data, "other": self.other, "web": self.web}

    @property
    def text(self) -> str:
        """The training text, in words."""
        return _names(self.data) or "the source of Python's standard library"


def _names(files: Sequence[str]) -> str:
    """Join the last two parts of each path: folders differ between machines, and train.txt is not always the same."""
    return ", ".join("/".join(one.split("/")[-2:]) for one in files)


class Runs:
    """The runs of all models by name and seed, trained on demand.

    **Arguments:** `models`, by the names of their folders; `rates`, learning rates found by earlier searches.
    """

    def __init__(
        self, arguments: Arguments, models: Mapping[str, Model], progress: Progress, rates: Rates | None = None
    ):
        self.arguments, self.models, self.progress = arguments, models, progress
        self.folder = path_of(arguments.to) / ("" if arguments.scale == "laptop" else arguments.scale)
        self.rates: Rates = dict(rates or {})
        self.finished: dict[str, Finished | None] = {}
        self.counted: dict[str, float] = {}
        self.untrained: set[str] = set()
        self.diverged: dict[str, set[int]] = {}
        """Seeds with which a model's training diverged, by its name."""
        self.contents: dict[str, str] = {}
        """`TokenCache.content` of each model's training text, by the model's name."""
        self.texts: dict[DataConfig, str | None] = {}
        """`TokenCache.content` of each text."""

    def config(self, name: str, seed: int, rate: float) -> Config:
        """Return the config of one run."""
        model, a = self.models[name], self.arguments
        config = with_values(read_shipped(model.config), model.settings)
        config = with_length(config, math.ceil(model.length * a.length), seed)
        config = on_text(config, a.files[model.text], a.cache)
        run = str(self.folder / name / f"rate-{rate:.3g}" / f"seed-{seed}")
        own = {"run": run, "optimizer.learning_rate": rate, "trainer.evaluate_batches": BATCHES}
        return validate(with_values(config, own))

    def rate(self, name: str) -> float | None:
        """Return the learning rate found for a model, or for the model whose rate it takes; `None` if the search is
        not finished and nothing is to be trained."""
        if self.models[name].rate:
            return self.models[name].rate
        name = self.models[name].rate_of or name
        shipped = read_shipped(self.models[name].config).optimizer.learning_rate
        if self.arguments.scale == "gpu":  # as published, since a search would cost more than the runs
            return shipped
        if name not in self.rates:
            best, tried = search(lambda rate: self._loss(name, rate), shipped)
            if not self.untrained.isdisjoint(self.config(name, SEARCHED_WITH, rate).run for rate in tried):
                return None
            self.rates[name] = best, tried
        return self.rates[name][0]

    def has_text(self, name: str) -> bool:
        """Whether the text that a model is trained on is there."""
        text = self.models[name].text
        return text == "own" or bool(self.arguments.files[text])

    def trained(self, name: str, seed: int) -> Finished | None:
        """Return a model trained at its rate; `None` if that diverged, or if this scale has no such model or text."""
        if name not in self.models or not self.has_text(name):
            return None
        if (rate := self.rate(name)) is None:
            return None
        found = self._run(name, seed, rate)
        if found is None and self.config(name, seed, rate).run not in self.untrained:
            self.diverged.setdefault(name, set()).add(seed)
        return found

    def _loss(self, name: str, rate: float) -> float:
        found = self._run(name, SEARCHED_WITH, rate)
        return math.inf if found is None else found.entry["validation"]["loss"]

    def _run(self, name: str, seed: int, rate: float) -> Finished | None:
        from diffeqformer.runs.folder import text_digest_of

        config = self.config(name, seed, rate)
        if config.run not in self.finished:
            self.finished[config.run] = found = self._train(config, self.models[name])
            if found is not None and (content := text_digest_of(path_of(config.run))) is not None:
                self.contents[name] = content
        return self.finished[config.run]

    def _train(self, config: Config, model: Model) -> Finished | None:
        from diffeqformer.runs.folder import RunFolder
        from diffeqformer.runs.results import results_of
        from diffeqformer.runs.trainer import train
        from diffeqformer.training.recipe import Recipe

        own: dict[str, Any] = {"build": model.build, "recipe": Recipe(batches=model.batches)}
        opened = partial(train, config, Silent(), **own)
        try:
            found = results_of(Path(config.run))
        except Damaged:
            if self.arguments.finished:  # else it is written again, with a line that says so
                raise
            found = None
        diverged = Path(config.run) / DIVERGED
        if found is not None or diverged.is_file():
            RunFolder(config).require_own()
            self._require_text(config)
            if found is not None:
                return _finished(config, found["models"][0], opened)
            return self.progress.say(read_sealed(diverged)["error"])
        if self.arguments.finished:
            self.untrained.add(config.run)
            return None
        self.progress.say(config.run)
        try:
            return _finished(config, train(config, self.progress, **own).entry, opened)
        except Diverged as error:
            self.progress.say(str(error))
            write_sealed(diverged, {"error": str(error)})
            return None

    def _require_text(self, config: Config) -> None:
        """Check that a finished run was trained on the current text; or, where nothing is trained and the text may be
        elsewhere, on the text of the runs before it.

        **Raises:** `BadInput` if it was not.
        """
        from diffeqformer.data.cache import prepare
        from diffeqformer.runs.folder import require_same_text, text_digest_of

        run = Path(config.run)
        if config.data not in self.texts:
            trains = not self.arguments.finished
            self.texts[config.data] = prepare(config.data, self.progress).content if trains else text_digest_of(run)
        require_same_text(run, self.texts[config.data], PUT_BACK)

    @cached_property
    def ended(self) -> dict[tuple[str, str, str], Values]:
        """The entries of finished runs, by model, rate and seed as their folders are named; runs of other settings are
        left out."""
        from diffeqformer.runs.folder import RESULTS, settings_of
        from diffeqformer.runs.results import results_of
        from diffeqformer.runs.settings import first_difference, numeric

        found = {}
        for path in sorted(self.folder.glob(f"*/rate-*/seed-*/{RESULTS}")):
            try:
                results = results_of(path.parent)
            except DiffEqFormerError as error:
                self.progress.say(str(error))
                continue
            name, rate, seed = path.parts[-4:-1]
            if results and name in self.models:
                entry = results["models"][0]
                settings, trainer = numeric(entry["config"]), entry["config"]["trainer"]
                asked = self.config(name, trainer["seed"], entry["config"]["optimizer"]["learning_rate"])
                if different := first_difference(settings_of(asked), settings):
                    self.progress.say(f"run {str(path.parent)!r} is of other settings: {different}.")
                    continue
                found[name, rate, seed] = entry
        return found

    @cached_property
    def pace(self) -> tuple[float, str]:
        """Operations per second of updates, and the basis of that estimate: finished runs; else 30 % of an
        accelerator's peak, or half of what this machine's matrix products reach."""
        ran = [(self.operations(name) * one["updates"], one["tokens"] / one["tokens_per_second"])
               for (name, _, _), one in self.ended.items() if one["tokens_per_second"]]  # fmt: skip
        if ran:
            operations, seconds = map(sum, zip(*ran, strict=True))
            return operations / seconds, "finished runs"
        import jax

        device = device_of(jax.local_devices()[0].device_kind)
        return matrix_speed() / 2 if device is None else 0.3 * device.peak, "this machine's speed"

    def operations(self, name: str) -> float:
        """Return the number of operations of one update of a model."""
        from diffeqformer.model.count import update_operations

        if name not in self.counted:
            config = self.config(name, 0, 1e-3)
            model = replace(config.model, vocabulary=config.model.vocabulary or config.data.tokenizer_vocabulary)
            self.counted[name] = update_operations(model, config.trainer.batch_size)
        return self.counted[name]

    def seconds(self, name: str) -> float:
        """Estimate the seconds that one run of a model takes, without evaluations."""
        return self.operations(name) * self.models[name].length * self.arguments.length / self.pace[0]

    def searches(self, name: str) -> int:
        """Estimate how many runs the search for a model's rate still needs."""
        rates = {rate for one, rate, _ in self.ended if one == name}
        searched = not (self.models[name].rate_of or self.models[name].rate) and self.arguments.scale == "laptop"
        return max(0, SEARCHES - len(rates)) if searched and name not in self.rates else 0


def _finished(config: Config, entry: Values, opened: Any) -> Finished:
    """Return a run whose config has the vocabulary's size, which the tokenizer decides."""
    vocabulary = entry["config"]["model"]["vocabulary"]
    return Finished(replace(config, model=replace(config.model, vocabulary=vocabulary)), entry, opened)


def matrix_speed() -> float:
    """Measure operations per second of this machine's matrix products, in single precision, as if nothing else ran.

    CPU time is measured instead of wall time, so that other work on the machine changes nothing. Products are so small
    that a library uses one thread for each, since threads that wait for others spend CPU time, too.
    """
    import numpy as np

    matrices = np.ones((64, 64, 64), np.float32)
    product, best = np.empty_like(matrices), math.inf
    for _ in range(100):  # of a third of a millisecond each: some are not interrupted
        began = time.process_time()
        np.matmul(matrices, matrices, out=product)
        best = min(best, time.process_time() - began)
    return len(os.sched_getaffinity(0)) * 2 * 64**4 / best  # 64 products of 2 * 64^3 operations
