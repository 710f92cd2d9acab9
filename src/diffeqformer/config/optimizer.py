"""Settings of the optimiser: its rule and the roles that follow it, its schedule, what guards it, what it averages."""

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from diffeqformer.config.bounds import INT32, setting
from diffeqformer.config.sections import Section
from diffeqformer.config.strict import Choosing

Role = Literal["embedding", "matrix", "bias", "norm", "time", "adapter"]


@dataclass(frozen=True)
class ScheduleConfig:
    """After warm-up, down to `final_fraction` of the peak as a cosine or a line; or the peak to the end."""

    kind: Literal["cosine", "linear", "constant"] = "cosine"


@dataclass(frozen=True)
class TrapezoidalConfig:
    """The peak, then a line down to `final_fraction` of it: warm-up, stable, decay (arXiv:2404.06395)."""

    kind: Literal["trapezoidal"] = dataclasses.field(default="trapezoidal", kw_only=True)
    decay_fraction: float = setting(0.2, fraction=True)
    """Fraction of the updates, the last ones, in which it falls."""


@dataclass(frozen=True)
class EMAConfig(Section):
    """An exponential moving average of the trained parameters; over fewer updates than its horizon, their mean."""

    builder: ClassVar[str] = "diffeqformer.training.averages:ema"

    kind: Literal["ema"] = dataclasses.field(default="ema", kw_only=True)
    decay: float = setting(0.999, fraction=True)
    """Fraction of the average kept at each update: its horizon is 1 / (1 - decay) updates."""


@dataclass(frozen=True)
class LastConfig(Section):
    """The mean of the trained parameters after each of the last updates; until then, the parameters themselves."""

    builder: ClassVar[str] = "diffeqformer.training.averages:last"

    kind: Literal["last"] = dataclasses.field(default="last", kw_only=True)
    updates: int = setting(100, least=1, most=INT32)
    """How many of the last updates."""


ScheduleSection = ScheduleConfig | TrapezoidalConfig
AverageSection = EMAConfig | LastConfig
if not TYPE_CHECKING:  # see `Choosing`
    ScheduleSection, AverageSection = ScheduleSection | str, AverageSection | str


@dataclass(frozen=True)
class OptimizerConfig(Choosing):
    """Clipping, a rule of Optax for some roles and AdamW for the others, a schedule, a guard and an average."""

    learning_rate: float = setting(1e-3, positive=True)
    """The highest, after warm-up."""
    rule: Literal["adamw", "muon", "adafactor", "lion"] = "adamw"
    """What moves the parameters of `rule_roles`; AdamW moves the others. Muon's steps are scaled to the size of
    AdamW's; its momentum is 0.95. Lion wants a third to a tenth of the learning rate."""
    rule_roles: tuple[Role, ...] = ("matrix", "time", "adapter")
    """Roles that follow `rule`. Of them Muon takes the matrices alone, stacked or not."""
    schedule: ScheduleSection = ScheduleConfig()
    """The learning rate after warm-up: `cosine`, `linear`, `constant`, or `trapezoidal`."""
    b1: float = setting(0.9, fraction=True)
    """Beta 1 of AdamW and Lion."""
    b2: float = setting(0.95, fraction=True)
    """Beta 2 of AdamW and Lion."""
    epsilon: float = setting(1e-8, positive=True)
    """Added to the root of the mean squared gradient, which AdamW divides by."""
    weight_decay: float = setting(0.1, not_negative=True)
    """Each update takes this times the learning rate off a parameter, as a fraction of it, whatever its gradient."""
    decay_roles: tuple[Role, ...] = ("embedding", "matrix")
    """Roles of the parameters that decay; `time` (all of a time-dependent weight) is best left out."""
    train_roles: tuple[Role, ...] = ("embedding", "matrix", "bias", "norm", "time", "adapter")
    """Roles of the parameters that are trained; the others stay as they are, without gradient or moments."""
    embedding_rate: float = setting(1.0, positive=True)
    """Multiple of the learning rate for embeddings and an untied head, decay included. With embeddings as small as
    `model.init_std` and no `model.embedding_norm`, 4 is better than 1 in short runs (docs/own-training.md)."""
    warmup_fraction: float = setting(0.01, fraction=True)
    """Fraction of the updates, the first ones, in which the learning rate rises linearly."""
    final_fraction: float = setting(0.1, not_negative=True, most=1)
    """Learning rate at the end, as a fraction of the peak; a `constant` one stays at the peak."""
    clip_norm: float = setting(1.0, positive=True)
    """Largest global norm of the gradient; a longer one is scaled down to it."""
    spike: float | None = setting(None, least=1, positive=True)
    """An update whose gradient is this many times longer than usual is skipped, and reported; if not given, none is."""
    average: AverageSection | None = None
    """Parameters that are evaluated, kept and used in place of the last ones: their exponential moving average (`ema`)
    or the mean of the `last` updates; if not given, the last ones."""
