"""What the paper's registry is made of: models that are trained, claims that are measured, and the rule that judges.

An item is a table or a figure of the paper. Each of its claims is a number per seed, its *effect*, which is positive if
the claim is so. One rule judges all of them, written here before any run:

- with fewer than `SEEDS` seeds a claim is **untested**;
- it **holds** if the 95 % confidence interval of the mean effect over seeds (Student's t) lies above zero, it **fails**
  if the interval lies below zero, and else the effect is **within noise**;
- a claim that nothing random enters holds or fails by the sign of its effect.
"""

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from diffeqformer.plain import Values
from diffeqformer.progress import Progress

if TYPE_CHECKING:
    from diffeqformer.config import Config
    from diffeqformer.runs.trainer import TrainResult

SEARCHED_WITH = 0
"""The seed of the search for learning rates; its runs are those of this seed."""
SEEDS = 3
"""That a verdict needs."""
LEVEL = 0.95
FINE_TUNED = "figure 5, "
"""Before the names of its learning rates, where those of other models stand beside them."""
PUT_BACK = "choose another folder with --to, or put the text back"
"""What to do where runs are of another text than there is now."""
VERDICTS = ("holds", "fails", "within noise", "untested")


@dataclass(frozen=True)
class Model:
    """A model to be trained: a shipped config, and what is different."""

    config: str
    settings: Values = field(default_factory=dict)
    """By dotted name."""
    rate_of: str = ""
    """The model whose learning rate it takes; searched for itself if empty."""
    rate: float = 0.0
    """Its learning rate where it is not searched, since the loss on text is no measure of it; 0 if it is."""
    other: bool = False
    """Whether it is trained on the other text."""
    length: float = 1.0
    """Times the updates of the others, rounded up."""
    build: str = ""
    """A function of `controls` that makes the model; the config does if empty."""
    batches: str = ""
    """A class of `controls` that makes its training batches; the text does if empty."""


@dataclass(frozen=True)
class Finished:
    """A finished run."""

    config: "Config"
    entry: Values
    """Its part of `results.json`."""
    open: "Callable[[], TrainResult]"
    """Reads its model and its text, which not every claim needs."""


@dataclass(frozen=True)
class Trained:
    """What a claim is measured on: the trained models of one seed, and texts beside the one of training."""

    models: Mapping[str, Finished]
    seed: int
    folder: Path
    """For what a claim trains itself."""
    progress: Progress
    other: tuple[str, ...] = ()
    """Files of another text; empty if none were given."""
    train: bool = True
    """Whether a claim may train what it needs besides, and evaluate tasks."""
    tasks: tuple[str, ...] = ()
    """Folders of files of the harness's tasks; it takes their data from the hub if there are none."""
    rates: Mapping[str, float] = field(default_factory=dict)
    """Learning rates of fine-tuning that are on record, as `rates_of` names them; searched if there are none."""

    def loss(self, name: str) -> float:
        """Of the whole validation split, in nats per token."""
        return self.models[name].entry["validation"]["loss"]


Measure = Callable[[Trained], float | None]


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, or of this library about it, that a number decides."""

    sentence: str
    unit: str
    """Of the effect, and what it is the difference of."""
    models: tuple[str, ...]
    """That must have been trained."""
    measure: Measure
    """The effect of one seed, positive if the claim is so; `None` where it could not be measured."""
    exact: bool = False
    """Whether nothing random enters."""
    slow: bool = False
    """Whether measuring takes minutes: the effect of each seed is then kept beside the runs."""
    question: str = ""
    """Of a reader's that it answers, on the first screen of the page; empty for most."""


@dataclass(frozen=True)
class Item:
    """A table or figure of the paper."""

    where: str
    """In the paper."""
    reported: str
    """What the paper reports, in a sentence."""
    claims: tuple[Claim, ...]
    layout: str = ""
    """Of the paper's figure, in words, beside which ours is shown."""
    figures: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Ours: a function of `figures`, and the models that it draws."""
    tables: tuple[str, ...] = ()
    """Ours that no claim is made of: functions of `tables`."""
    missing: str = ""
    """What it takes to test what is not tested here; empty if all is."""
    length: float = 0.0
    """Of all that its claims train themselves, per seed, in runs of DiffEqFormer."""


def models_of(item: Item) -> tuple[str, ...]:
    """The models that an item's claims compare and its figures draw, each once."""
    claimed = (name for claim in item.claims for name in claim.models)
    return tuple(dict.fromkeys((*claimed, *(name for _, names in item.figures for name in names))))


@dataclass(frozen=True)
class Verdict:
    """What the seeds say of a claim."""

    word: str
    """`holds`, `fails`, `within noise` or `untested`."""
    effects: Mapping[int, float]
    """By seed, of those that could be measured."""
    mean: float = math.nan
    low: float = math.nan
    high: float = math.nan
    """Ends of the confidence interval; NaN where there is none."""
    seeds: int = 0
    """How many; of verdicts of earlier runs only mean and interval may be known, not their effects."""


def judge(effects: Mapping[int, float | None], *, exact: bool = False) -> Verdict:
    """The verdict of the rule above.

    **Arguments:** `effects`, by seed, `None` or not finite where it could not be measured; `exact`, whether nothing
    random enters.
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
