"""Quality against cost: one model at several depths without fine-tuning, and other models at their own."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import NamedTuple

import equinox as eqx
import numpy as np

from diffeqformer.errors import BadInput
from diffeqformer.evaluation.perplexity import Evaluation, evaluate_in_turns
from diffeqformer.model.transformer import Transformer
from diffeqformer.ode.early_exit import EarlyExit
from diffeqformer.progress import Progress


@dataclass(frozen=True)
class Mark:
    """Another model at its own depth."""

    group: str
    """What marks that look the same have in common: the method of fine-tuning, or the name of a system."""
    tuned: bool
    """Whether it was fine-tuned from the model at hand; otherwise it is a reference, trained at that depth."""
    run: str
    """Folder of its run."""
    steps: int
    found: Evaluation


class Adaptive(NamedTuple):
    """A model with the adaptive steps that it was trained with."""

    rtol: float
    found: Evaluation

    @property
    def name(self) -> str:
        """Name to display, such as `adaptive steps (rtol 0.01)`."""
        return f"adaptive steps (rtol {self.rtol:g})"


@dataclass(frozen=True)
class DepthCurve:
    """Evaluations of a model at several depths, and of other models, all on the same text."""

    name: str
    own: int
    """Number of steps of the model's config; one of the depths of `points`."""
    points: dict[int, Evaluation]
    """Evaluations by number of steps, increasing."""
    marks: tuple[Mark, ...] = ()
    exits: dict[float, Evaluation] = field(default_factory=dict)
    """Evaluations with early exit on the grid of the deepest point, by threshold, increasing."""
    trained: tuple[int, ...] = ()
    """Depths that the model was trained at, increasing; only its own if not given."""
    adaptive: Adaptive | None = None
    """Evaluation with adaptive steps, if the model was trained with them, and so at no depth."""

    @property
    def trained_at(self) -> tuple[int, ...]:
        """Depths of training: `trained`, or the model's own; none if it was trained with adaptive steps."""
        return () if self.adaptive else self.trained or (self.own,)

    @property
    def reference(self) -> Evaluation:
        """What other depths are compared to: the model as trained, at its own depth if it was trained at several."""
        return self.adaptive.found if self.adaptive else self.points[self.own]

    def mean_steps(self, found: Evaluation) -> float:
        """Return the mean number of steps per token in an evaluation with early exit."""
        deepest = max(self.points)
        return deepest * found.attention_evaluations / self.points[deepest].attention_evaluations

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all numbers by name.

        Names without a prefix are of the depths; `early_exit_` names are with early exit (`early_exit_steps` are
        means); `against_` names are of the marks, in order.
        """
        arrays = {"own_steps": np.asarray(self.own), **_columns("", list(self.points), list(self.points.values()))}
        if self.exits:
            arrays["early_exit_threshold"] = np.asarray(list(self.exits))
            arrays |= _columns(
                "early_exit_", list(map(self.mean_steps, self.exits.values())), list(self.exits.values())
            )
        if self.marks:
            arrays["against_run"] = np.asarray([mark.run for mark in self.marks])
            arrays["against_group"] = np.asarray([mark.group for mark in self.marks])
            arrays["against_fine_tuned"] = np.asarray([mark.tuned for mark in self.marks])
            arrays |= _columns("against_", [m.steps for m in self.marks], [m.found for m in self.marks])
        return arrays


def usual_depths(own: int, trained: Sequence[int] = ()) -> tuple[int, ...]:
    """Return depths from half to twice a model's own: the paper's 1/2, 2/3 and 4/3 of it, its neighbours, 3/2, and 2.

    For a model that was `trained` at several depths, add those, half of the shallowest and twice the deepest.
    """
    parts = [round(own * part) for part in (1 / 2, 2 / 3, 1, 4 / 3, 3 / 2, 2)]
    if len(trained) > 1:
        parts += [*trained, min(trained) // 2, 2 * max(trained)]
    return tuple(sorted({steps for steps in (*parts, own - 1, own + 1) if steps >= 1}))


def require_depths(model: Transformer, depths: Iterable[int]) -> None:
    """Check that a model can run at these numbers of steps; computes nothing.

    **Raises:** `BadInput` for the first at which it cannot, such as any but its own for a table of layers.
    """
    for steps in depths:
        eqx.filter_eval_shape(lambda model, steps=steps: model.populate(steps), model)


def possible_depths(model: Transformer, depths: Iterable[int]) -> tuple[int, ...]:
    """Return those of `depths` that a model can run at; computes nothing.

    A table of layers runs only at its own number of steps; one with layers to leave out, at no more than it has.
    """
    found = []
    for steps in depths:
        with suppress(BadInput):
            require_depths(model, (steps,))
            found.append(steps)
    return tuple(found)


def at_depths(
    model: Transformer,
    batches: Iterable[tuple[np.ndarray, np.ndarray]],
    depths: Sequence[int | EarlyExit | None],
    *,
    bytes_: int | None = None,
    block: int = 4096,
    progress: Progress | None = None,
) -> list[Evaluation]:
    """Evaluate a model at several numbers of steps, which take turns.

    **Arguments:** `depths`, numbers of steps, an `EarlyExit`, or `None` for as trained (adaptive steps, for an adaptive
    model); the others as for `evaluate_in_turns`.

    **Raises:** `BadInput` if the model cannot run at one of them, before any is evaluated; `RunFailed` as `evaluate`.
    """
    grids = [steps for steps in depths if not isinstance(steps, EarlyExit)]
    require_depths(model, (steps for steps in grids if steps is not None))
    words = ["adaptive" if steps is None else str(steps) for steps in grids]
    name = f"Evaluating at {', '.join(words)} step{'' if words == ['1'] else 's'}"
    own = None if model.config.tolerance else model.config.steps
    turns = [(model, None if steps == own else steps) for steps in depths]  # so its own depth is compiled once
    return evaluate_in_turns(turns, batches, bytes_=bytes_, block=block, progress=progress, name=name)


def _columns(prefix: str, steps: Sequence[int | float], found: list[Evaluation]) -> dict[str, np.ndarray]:
    """Return the numbers of steps and each field of the evaluations as arrays; NaN where unknown."""
    number = lambda value: np.nan if value is None else value
    numbers = {one.name: [number(getattr(each, one.name)) for each in found] for one in fields(Evaluation)}
    return {f"{prefix}{name}": np.asarray(values) for name, values in {"steps": steps, **numbers}.items()}
