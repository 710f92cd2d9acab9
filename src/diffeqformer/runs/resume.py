"""Resuming a run: the newest sound checkpoint, and what it records besides the training state."""

import json
import math
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
from jaxtyping import PyTree

from diffeqformer.config import Config
from diffeqformer.errors import BadInput
from diffeqformer.model.build import Build
from diffeqformer.model.transformer import Transformer
from diffeqformer.plain import Document, finite_or_none
from diffeqformer.progress import Progress, Silent
from diffeqformer.runs.distributed import by_main
from diffeqformer.runs.folder import RunFolder, metadata_of, require_own_parts
from diffeqformer.runs.metrics import require_lines
from diffeqformer.sharding import placed, with_shardings
from diffeqformer.training.optimizer import split_trained
from diffeqformer.training.recipe import Callback, Recipe, name_of
from diffeqformer.training.update import State, initial_state

JAX_SETTINGS = (
    "jax_enable_x64", "jax_default_prng_impl", "jax_threefry_partitionable", "jax_random_seed_offset",
    "jax_default_matmul_precision",
)  # fmt: skip
"""Settings of JAX, from the environment or `jax.config`, that updates depend on: rounding, dropout, drawn depths."""


@dataclass
class Clock:
    """Time spent by a run, summed over its successive processes."""

    seconds: float = 0.0
    """Seconds of training: updates, evaluations during training, checkpoints, compilation."""
    update_seconds: float = 0.0
    """Seconds of the updates counted in `updates`."""
    updates: int = 0
    """Number of timed updates: all but the first of each depth in each process, which compiles."""


@dataclass
class ResumeState:
    """What a checkpoint records besides the training state."""

    clock: Clock
    best: float = math.inf
    """Lowest loss of the evaluations so far."""
    metrics: str | None = None
    """Digest of the lines of `metrics.jsonl`."""
    callbacks: list[Any] = field(default_factory=list)
    """What each callback remembers."""
    names: list[str] = field(default_factory=list)
    """Class names of the callbacks; empty in older checkpoints."""

    @classmethod
    def of(cls, metadata: Document) -> "ResumeState":
        """Read the state from a checkpoint's metadata."""
        best = math.inf if metadata["best"] is None else metadata["best"]
        callbacks = metadata.get("callbacks", [])
        if isinstance(callbacks, str):  # older checkpoints, which kept no infinities, have a list
            callbacks = json.loads(callbacks)
        names = metadata.get("callback_names", [])
        return cls(Clock(**metadata["clock"]), best, metadata.get("metrics"), callbacks, names)

    def metadata(self, metrics: str | None) -> Document:
        """Return the entries for a checkpoint's metadata. **Arguments:** `metrics`, the digest of all lines so far."""
        callbacks = json.dumps(self.callbacks)  # has infinities, as a callback's best loss may be
        kept = {"callbacks": callbacks, "callback_names": self.names}
        return {"clock": asdict(self.clock), "best": finite_or_none(self.best), "metrics": metrics, **kept}

    def remembered(self, callbacks: Sequence[Callback]) -> list[tuple[Callback, Any]]:
        """Pair each callback that has a memory with the next memory of its class."""
        if not self.names:
            return list(zip(callbacks, self.callbacks, strict=False))
        memories = defaultdict(deque)
        for name, memory in zip(self.names, self.callbacks, strict=True):
            memories[name].append(memory)
        return [(one, memories[name_of(one)].popleft()) for one in callbacks if memories[name_of(one)]]


class Beginning:
    """The state that a run starts from; only its shapes exist until `state` is called.

    **Arguments:** `folder` of the run, whose config has the vocabulary's size; `base`, the model that it fine-tunes, if
    any; `build` and `recipe`, as for `train`.

    **Raises:** `BadInput` if `build` or `recipe` has other parts than the run, or JAX other settings.
    """

    def __init__(self, folder: RunFolder, base: Transformer | None, build: Build, recipe: Recipe):
        self.folder = folder
        config = folder.config
        self.fresh = lambda: initial_state(config, base, build, recipe.rule)
        require_same_recipe(folder.path, recipe.own)
        require_same_jax(folder)
        self.like: State = with_shardings(jax.eval_shape(self.fresh))
        require_own_parts(folder.path, config.model, self.like.model)

    @property
    def bytes(self) -> int:
        """Size of one checkpoint in bytes."""
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(self.like))

    def state(self, progress: Progress) -> tuple[State, ResumeState]:
        """Return the newest sound checkpoint's state or a fresh one, on its devices; of a finished run the model alone.

        **Raises:** `RunFailed` if no checkpoint is sound; `Damaged` if the metrics are not those of the checkpoint.
        """
        checkpoints, updates = self.folder.checkpoints, self.folder.config.trainer.updates
        like, restored = items_of(self.like, self.folder.config), None
        if checkpoints.metadata()[0] == updates:  # nothing is trained any more, and a comparison keeps only the model
            # Silently: an older one is not used here, and the next call reports the damage.
            restored = checkpoints.latest({"model": like["model"]}, Silent().say)
        if restored is None or restored.step < updates:
            restored = checkpoints.latest(like, progress.say)
        if restored is None:
            return placed(self.fresh()), ResumeState(Clock())
        # Newer ones are damaged; their updates are repeated, and saved under the same names.
        by_main(lambda: checkpoints.clean(after=restored.step))
        resumed = ResumeState.of(restored.metadata)
        by_main(lambda: require_lines(self.folder.metrics, restored.step, resumed.metrics))
        model, average = restored.items["model"], None
        if "trained" in restored.items:
            average, frozen = split_trained(model, self.folder.config.optimizer)
            model = eqx.combine(restored.items["trained"], frozen)
        moments = restored.items.get("optimizer")
        return placed(State(model, moments, jax.numpy.int32(restored.step), average)), resumed


def items_of(state: State, config: Config) -> dict[str, PyTree]:
    """Return a checkpoint's items: the model to use, the optimiser's state and, with averaging, what is trained."""
    items = {"model": state.result, "optimizer": state.optimizer}
    return items if state.average is None else items | {"trained": split_trained(state.model, config.optimizer)[0]}


def require_same_recipe(folder: Path, own: dict[str, str]) -> None:
    """Check that training continues with the user's own parts that it began with, `Recipe.own`.

    **Raises:** `BadInput` naming those that differ.
    """
    remembered = metadata_of(folder)
    theirs = remembered.get("recipe", {})
    if remembered and theirs != own:
        words = lambda parts: ", ".join(f"{part} {name}" for part, name in parts.items()) or "none"
        raise BadInput(
            f"run folder {str(folder)!r} was trained with these parts of a recipe: {words(theirs)}; here there are: "
            f"{words(own)}. Give `train` the same `recipe`, or choose another folder."
        )


def jax_settings() -> dict[str, Any]:
    """Return the values of `JAX_SETTINGS`, for a checkpoint's metadata."""
    return {name: getattr(jax.config, name) for name in JAX_SETTINGS}


def require_same_jax(folder: RunFolder) -> None:
    """Check that a run that is not finished goes on with the `JAX_SETTINGS` that its checkpoint was trained with.

    **Raises:** `BadInput` naming the first that differs.
    """
    step, remembered = folder.checkpoints.metadata()
    theirs = remembered.get("jax", {}) if step < folder.config.trainer.updates else {}
    for name, value in jax_settings().items():
        if theirs.get(name, value) != value:
            raise BadInput(
                f"{name} of JAX is {value!r}, but run folder {str(folder.path)!r} was trained with {theirs[name]!r}, "
                f"on which its numbers depend; set it back (in the environment, {name.upper()})."
            )
