"""The training loop: update k depends on the config, the state after update k - 1 and batch k, and on nothing else.

Everything else that a run does (measuring, evaluating, saving, answering requests to stop) is up to its observer.
"""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import jax

from diffeqformer.config import Config
from diffeqformer.model.transformer import Transformer
from diffeqformer.training.depths import depth_of_update
from diffeqformer.training.optimizer import Rule, Schedule
from diffeqformer.training.update import Batch, Measured, State, make_update


@runtime_checkable
class UpdateObserver(Protocol):
    """An object that is called around every update."""

    def before_update(self, steps: int | None) -> None:
        """Called before an update.

        **Arguments:** `steps`, the depth of that update, the model's own for `None`.
        """
        ...

    def after_update(self, state: State, steps: int | None, measured: Measured) -> bool:
        """Take the results of an update, which may still be computing; return whether the loop is to end here."""
        ...


def train_loop(
    config: Config,
    state: State,
    batch: Callable[[int], Batch],
    observer: UpdateObserver,
    rule: Rule | None = None,
    schedule: Schedule | None = None,
    teacher: Transformer | None = None,
) -> State:
    """Update `state` until `trainer.updates` are done or the observer ends the loop.

    **Arguments:** `config`, with the vocabulary's size; `state`, whose memory is reused; `batch`, which gives the batch
    of update k (from 0); `observer`; the others, and each batch, as for `make_update`.

    **Returns:** the last state.
    """
    update, depth_of = make_update(config, rule, schedule, teacher), depth_of_update(config)
    for k in range(int(state.step), config.trainer.updates):
        steps = depth_of(k)
        observer.before_update(steps)
        with jax.profiler.StepTraceAnnotation("update", step_num=k):
            state, measured = update(state, batch(k), steps)
        if observer.after_update(state, steps, measured):
            break
    return state
