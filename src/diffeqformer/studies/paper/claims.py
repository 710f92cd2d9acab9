"""The parts of the paper's registry: models to train, claims to measure, and the rule that judges them.

An item is a table or a figure of the paper. Each of its claims has a number per seed, its *effect*, which is positive
if the claim is true. One rule, written here before any run, judges all claims:

- with fewer than `SEEDS` seeds a claim is **untested**;
- it **holds** if the 95 % confidence interval of the mean effect over seeds (Student's t) lies above zero, it **fails**
  if the interval lies below zero, and otherwise the effect is **within noise**;
- a claim without randomness holds or fails by the sign of its effect.
"""

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from diffeqformer.plain import Values
from diffeqformer.progress import Progress
from diffeqformer.report.table import Table

if TYPE_CHECKING:
    from diffeqformer.config import Config
    from diffeqformer.data.cache import TokenCache
    from diffeqformer.model.build import Build
    from diffeqformer.report.page import Figure
    from diffeqformer.runs.trainer import TrainResult
    from diffeqformer.studies.paper.runs import Runs
    from diffeqformer.training.recipe import Batches

    Draw = Callable[[Runs, tuple[str, ...]], list[Figure]]

SEARCHED_WITH = 0
"""The seed of the search for learning rates, whose runs serve as the runs of this seed."""
SEEDS = 3
"""Number of seeds that a verdict needs."""
LEVEL = 0.95
FINE_TUNED = "figure 5, "
"""Prefix of the names of figure 5's learning rates in lists with those of other models."""
PUT_BACK = "choose another folder with --to, or put the text back"
"""Advice if runs were trained on another text than the current one."""
VERDICTS = ("holds", "fails", "within noise", "untested")
Text = Literal["own", "other", "web"]
"""The first text, or the ones that are named by `--other` and `--web`."""


@dataclass(frozen=True)
class Model:
    """A model to be trained: a shipped config, and the settings that differ."""

    config: str
    settings: Values = field(default_factory=dict)
    """The settings that differ, by dotted name."""
    rate_of: str = ""
    """The model whose learning rate it takes; if empty, its own is searched."""
    rate: float = 0.0
    """Learning rate if it is not searched, because the loss on text is no measure of it; 0 if it is searched."""
    text: Text = "own"
    """The text that the model is trained on."""
    length: float = 1.0
    """Factor on the updates of the other models, rounded up."""
    build: "Build | None" = None
    """Builds the model, as in `controls`; if `None`, the config does."""
    batches: "Callable[[Config, TokenCache], Batches] | None" = None
    """Makes the training batches, as in `controls`; if `None`, they are from the text."""


@dataclass(frozen=True)
class Finished:
    """A finished run."""

    config: "Config"
    entry: Values
    """The run's entry in `results.json`."""
    open: "Callable[[], TrainResult]"
    """Opens the model and the text, which not every claim needs."""


@dataclass(frozen=True)
class Trained:
    """What a claim is measured on: the trained models of one seed, and texts other than the training text."""

    models: Mapping[str, Finished]
    seed: int
    folder: Path
    """Folder for what a claim trains itself."""
    progress: Progress
    other: tuple[str, ...] = ()
    """Files of another text; empty if none were given."""
    train: bool = True
    """Whether a claim may train what else it needs, and evaluate tasks."""
    tasks: tuple[str, ...] = ()
    """Folders of task files for the harness; if there are none, the tasks' data comes from the hub."""
    rates: Mapping[str, float] = field(default_factory=dict)
    """Learning rates of fine-tuning on record, named as by `rates_of`; searched if there are none."""

    def loss(self, name: str) -> float:
        """Return a model's loss on the whole validation split, in nats per token."""
        return self.models[name].entry["validation"]["loss"]


Measure = Callable[[Trained], float | None]


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, or of this library about it, that a number decides."""

    sentence: str
    unit: str
    """Unit of the effect, and what it is the difference of."""
    models: tuple[str, ...]
    """Models that must have been trained."""
    measure: Measure
    """Returns the effect of one seed, positive if the claim is true; `None` where it could not be measured."""
    exact: bool = False
    """Whether the effect is free of randomness."""
    slow: bool = False
    """Whether measuring takes minutes: the effect of each seed is then kept with the runs."""
    question: str = ""
    """The reader's question that it answers, shown on the first screen of the page; empty for most."""


@dataclass(frozen=True)
class Item:
    """A table or figure of the paper."""

    where: str
    """Place in the paper."""
    reported: str
    """What the paper reports, in a sentence."""
    claims: tuple[Claim, ...]
    main: int = 0
    """Place among the claims of the one that stands for the item in the summary."""
    layout: str = ""
    """Layout of the paper's figure, in words, shown with ours."""
    figures: "tuple[tuple[Draw, tuple[str, ...]], ...]" = ()
    """Our figures: each a function of the module `figures`, and the models that it draws."""
    tables: tuple[Callable[[Progress], Table], ...] = ()
    """Our tables that no claim is based on: functions of the module `tables`."""
    texts: tuple[Text, ...] = ()
    """The texts besides the first that some of its claims need."""
    missing: str = ""
    """What is needed to test what is not tested here; empty if everything is."""
    length: float = 0.0
    """Length of everything that its claims train themselves, per seed, in runs of DiffEqFormer."""


def models_of(item: Item) -> tuple[str, ...]:
    """Return the models that an item's claims compare and its figures draw, each once."""
    claimed = (name for claim in item.claims for name in claim.models)
    return tuple(dict.fromkeys((*claimed, *(name for _, names in item.figures for name in names))))


@dataclass(frozen=True)
class Verdict:
    """What the seeds say about a claim."""

    word: str
    """`holds`, `fails`, `within noise` or `untested`."""
    effects: Mapping[int, float]
    """Effects by seed, where they could be measured."""
    mean: float = math.nan
    low: float = math.nan
    high: float = math.nan
    """Ends of the confidence interval; NaN where there is none."""
    seeds: int = 0
    """Number of seeds; for verdicts of earlier runs, only mean and interval may be known, not the effects."""


def judge(effects: Mapping[int, float | None], *, exact: bool = False) -> Verdict:
    """Return the verdict by the rule above.

    **Arguments:** `effects`, by seed, `None` or not finite where it could not be measured; `exact`, whether they are
    free of randomness.
    """
    known = {seed: one for seed, one in sorted(effects.items()) if one is not None and math.isfinite(one)}
    if not known:
        return Verdict("untested", {})
    mean = statistics.fmean(known.values())
    if exact:
        return Verdict("holds" if mean > 0 else "fails", known, mean, seeds=1)
    if len(known) < 2:
        return Verdict("untested", known, mean, seeds=len(known))
    from scipy.stats import t

    half = float(t.ppf((1 + LEVEL) / 2, len(known) - 1)) * statistics.stdev(known.values()) / math.sqrt(len(known))
    low, high = mean - half, mean + half
    word = "holds" if low > 0 else "fails" if high < 0 else "within noise"
    return Verdict(word if len(known) >= SEEDS else "untested", known, mean, low, high, len(known))
