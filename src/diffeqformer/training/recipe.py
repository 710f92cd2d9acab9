"""A user's own parts of training, as objects that replace the library's without a fork."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, SupportsFloat, runtime_checkable

import numpy as np

from diffeqformer.config import Config
from diffeqformer.data.cache import TokenCache
from diffeqformer.data.corpus import Corpus
from diffeqformer.errors import BadInput
from diffeqformer.nn.embedding import require_tokens
from diffeqformer.plain import Document, shown
from diffeqformer.training.optimizer import Rule, Schedule
from diffeqformer.training.update import Batch, Measured, State


@runtime_checkable
class Batches(Protocol):
    """A stream of training batches, each a function of its number, so that a resumed run reads the same ones."""

    def __getitem__(self, k: int) -> Batch:
        """Return batch k: ids, or a pair of ids and a mask of the targets that count.

        Ids are int32 (trainer.batch_size, context + 1), the mask is bool (trainer.batch_size, context). If there are
        several processes, each asks for the whole batch.
        """
        ...


@dataclass(frozen=True)
class Checked:
    """A user's own batches, checked, since JAX would train on any shapes and tokens."""

    batches: Batches
    config: Config

    def __getitem__(self, k: int) -> Batch:
        """Return batch k.

        **Raises:** `BadInput` if its shape is not the one that `Batches` says, if it has tokens that do not exist, or
        if its mask counts no target.
        """
        batch = self.batches[k]
        ids, *masks = batch if isinstance(batch, tuple) else (batch,)
        rows, context = self.config.trainer.batch_size, self.config.model.context
        shapes = {"ids": (rows, context + 1), "mask": (rows, context)}
        for (name, shape), array in zip(shapes.items(), (ids, *masks), strict=False):
            if getattr(array, "shape", None) != shape:
                found = f"is an array of shape {array.shape}" if hasattr(array, "shape") else f"is {shown(array)}"
                raise BadInput(f"batch {k} of your own: its {name} {found}, but must be one of shape {shape}.")
        require_tokens(ids, self.config.model.vocabulary or 0)
        if masks and not np.any(masks[0]):
            raise BadInput(f"batch {k} of your own: its mask counts no target, so that it has no loss.")
        return batch


@dataclass
class Now:
    """The current point of training, as callbacks see it, and what they may do."""

    config: Config
    step: int
    """Number of updates done."""
    state: State
    """Training state, whose memory the next update reuses: copy what is to be kept."""
    logged: list[Document] = field(default_factory=list)
    why: str = ""

    def log(self, **numbers: float | int) -> None:
        """Write numbers to `metrics.jsonl` and to the trackers.

        **Raises:** `BadInput` if a number is not finite, which JSON cannot hold, or if its name is one that each line
        already has.
        """
        if taken := {"kind", "step"} & numbers.keys():
            raise BadInput(f"a callback logs {min(taken)!r}, but each line has one of its own; choose another name.")
        for name, number in numbers.items():
            if not (isinstance(number, SupportsFloat) and np.ndim(number) == 0 and math.isfinite(number)):  # pyright: ignore
                raise BadInput(f"a callback logs {name} {number} at update {self.step}, but numbers must be finite.")
        record = {name: float(number) for name, number in numbers.items()}
        self.logged.append({"kind": "own", "step": self.step, **record})

    def stop(self, why: str) -> None:
        """Save and end here; `train` raises `Interrupted` with the reason, and the same call resumes the run."""
        self.why = self.why or why or "a callback asked for it"


def name_of(part: Any) -> str:
    """Return the name of a function or class, or that of an object's class."""
    return getattr(part, "__qualname__", type(part).__qualname__)


class Callback:
    """Base class of objects called around updates; a subclass has the methods it needs. Every process calls its own."""

    def before_update(self, step: int) -> None:
        """Called before an update, when `step` updates are done."""

    def after_update(self, now: Now, measured: Measured) -> None:
        """Called after an update, which may still be computing: reading a number of `measured` waits for it."""

    def evaluated(self, now: Now, loss: float) -> None:
        """Called after an evaluation, which gave `loss`, in nats per token."""

    def saved(self, step: int) -> None:
        """Called when a checkpoint of update `step` is being written."""

    def memory(self) -> Any:
        """Return what a checkpoint keeps of it: lists, dictionaries, strings, numbers (infinities too), `None`."""
        return None

    def remember(self, memory: Any) -> None:
        """Restore what `memory` returned, before the run resumes."""


@dataclass(frozen=True)
class Recipe:
    """Your own parts of training; parts that are not given are the library's, as the config sets them.

    A checkpoint names the rule, the schedule and the batches that it was trained with, but cannot make them: give the
    same ones to resume. `load_run` needs none.
    """

    rule: Rule | None = None
    """`(settings, rate) -> GradientTransformation`, such as any of Optax's; `rate` gives the learning rate of each
    update, as Optax's schedules do."""
    schedule: Schedule | None = None
    """`(settings, updates) -> learning rate` of each update."""
    batches: Callable[[Config, TokenCache], Batches] | None = None
    """`(config, tokens) -> Batches`, your own stream."""
    corpus: Corpus | None = None
    """Text from a source that `data.source` does not know."""
    callbacks: tuple[Callback, ...] = ()

    def __post_init__(self) -> None:
        for name in ("rule", "schedule", "batches"):
            if (part := getattr(self, name)) is not None and not callable(part):
                raise BadInput(
                    f"{name} is {shown(part)}, but must be a function; the docstring of Recipe has its arguments."
                )
        if not isinstance(self.callbacks, tuple | list):
            raise BadInput(f"callbacks is {shown(self.callbacks)}, but must be a tuple of callbacks.")
        for callback in self.callbacks:
            if not isinstance(callback, Callback):
                raise BadInput(f"a callback is {shown(callback)}, but must be an object of a subclass of Callback.")

    @property
    def own(self) -> dict[str, str]:
        """Names of the given parts that results depend on; checkpoints record them."""
        parts = {"rule": self.rule, "schedule": self.schedule, "batches": self.batches}
        return {name: name_of(part) for name, part in parts.items() if part}

    def memories(self) -> list[Any]:
        """Return what each callback remembers.

        **Raises:** `BadInput` if a checkpoint cannot keep it.
        """
        found = []
        for callback in self.callbacks:
            memory = callback.memory()
            try:
                found.append(json.loads(json.dumps(memory)))
            except (TypeError, ValueError) as error:
                raise BadInput(
                    f"{type(callback).__name__}.memory() gives {memory!r}, but must give what JSON can hold: lists, "
                    f"dictionaries, texts, numbers and None ({error})."
                ) from None
        return found


NO_RECIPE = Recipe()
"""The recipe whose parts are all the library's."""
