"""Where a run continues: the newest sound checkpoint, and what it remembers besides the training state."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import jax

from diffeqformer.errors import BadInput
from diffeqformer.model.transformer import Transformer
from diffeqformer.progress import Progress
from diffeqformer.runs.distributed import by_main
from diffeqformer.runs.folder import RunFolder, require_own_parts
from diffeqformer.runs.metrics import require_lines
from diffeqformer.sharding import placed, with_shardings
from diffeqformer.training.optimizer import roles, split_trained
from diffeqformer.training.update import Build, State, initial_state


@dataclass
class Clock:
    """Time spent by a run, over all its processes, one after the other."""

    seconds: float = 0.0
    """In training: updates, evaluations on the way, checkpoints, compilation."""
    update_seconds: float = 0.0
    """In the updates counted below."""
    updates: int = 0
    """Updates that were timed: all but the first of each depth in each process, which compiles."""


@dataclass
class ResumeState:
    """What a checkpoint remembers besides the training state."""

    clock: Clock
    best: float = math.inf
    """Lowest loss of the evaluations so far."""
    metrics: str | None = None
    """Digest of the lines of metrics."""

    @classmethod
    def of(cls, metadata: dict[str, Any]) -> "ResumeState":
        """From a checkpoint's metadata."""
        best = metadata["best"]
        return cls(Clock(**metadata["clock"]), math.inf if best is None else best, metadata.get("metrics"))

    def metadata(self, metrics: str | None) -> dict[str, Any]:
        """For a checkpoint's metadata. **Arguments:** `metrics`, the digest of all lines up to here."""
        best = self.best if math.isfinite(self.best) else None  # JSON has no infinity
        return {"clock": asdict(self.clock), "best": best, "metrics": metrics}


class Beginning:
    """The state that a run starts from, of which only the shapes are there until `state` is called.

    **Arguments:** `folder`, of the run, whose config has the vocabulary's size; `base`, the model that it fine-tunes,
    if any; `build`, as for `train`.

    **Raises:** `BadInput` if the optimiser would train nothing, or `build` makes other parts than the run has.
    """

    def __init__(self, folder: RunFolder, base: Transformer | None, build: Build):
        self.folder, self.base, self.build = folder, base, build
        config = folder.config
        self.like: State = with_shardings(jax.eval_shape(lambda: initial_state(config, base, build)))
        require_own_parts(folder.path, self.like.model)
        if not jax.tree.leaves(split_trained(self.like.model, config.optimizer)[0]):
            asked, there = config.optimizer.train_roles, sorted(set(jax.tree.leaves(roles(self.like.model))))
            raise BadInput(
                f"optimizer.train_roles is {', '.join(asked) or 'empty'}, but this model's parameters have the roles "
                f"{', '.join(there)}."
            )

    @property
    def bytes(self) -> int:
        """Of one checkpoint."""
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(self.like))

    def state(self, progress: Progress) -> tuple[State, ResumeState]:
        """The newest sound checkpoint's state, or a fresh one, on its devices.

        **Raises:** `RunFailed` if no checkpoint is sound; `Damaged` if the metrics are not those of the checkpoint.
        """
        checkpoints = self.folder.checkpoints
        like = {"model": self.like.model, "optimizer": self.like.optimizer}
        restored = checkpoints.latest(like, progress.say)
        if restored is None:
            return placed(initial_state(self.folder.config, self.base, self.build)), ResumeState(Clock())
        by_main(lambda: checkpoints.clean(after=restored.step))
        resumed = ResumeState.of(restored.metadata)
        by_main(lambda: require_lines(self.folder.metrics, restored.step, resumed.metrics))
        state = State(restored.items["model"], restored.items["optimizer"], jax.numpy.int32(restored.step))
        return placed(state), resumed
