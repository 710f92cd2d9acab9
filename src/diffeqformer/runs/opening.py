"""Opening a run folder to use its model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import equinox as eqx
import jax
from tokenizers import Tokenizer

from diffeqformer.config import Config
from diffeqformer.data.tokenizer import load_tokenizer
from diffeqformer.errors import BadInput
from diffeqformer.model.build import build as usual_build
from diffeqformer.model.transformer import Transformer
from diffeqformer.progress import Progress, Silent
from diffeqformer.runs import folder as files
from diffeqformer.runs.checkpoint import Checkpoints
from diffeqformer.training.update import Build


@dataclass(frozen=True)
class Run:
    """A model and what belongs to it."""

    folder: Path
    config: Config
    tokenizer: Tokenizer
    model: Transformer
    step: int
    """Updates that the model had."""


def load_run(
    folder: str | Path,
    which: Literal["latest", "best"] = "latest",
    progress: Progress | None = None,
    build: Build | None = None,
) -> Run:
    """Open the newest sound model of a run, or the one of lowest validation loss.

    Works while the run is being trained, and on any device. Damaged checkpoints are reported to `progress` and passed
    over.

    **Arguments:** `folder`; `which` of its checkpoints; `progress`; `build`, the same that the run was trained with.

    **Raises:** `BadInput` if there is no run, or no such checkpoint in it yet; `RunFailed` if all are damaged, or
    another file that the model needs is.
    """
    folder = Path(folder).expanduser()
    config = files.open_config(folder)
    checkpoints = Checkpoints(folder / files.CHECKPOINTS)
    open_one = checkpoints.best if which == "best" else checkpoints.latest
    like = eqx.filter_eval_shape(build or usual_build, config.model, jax.random.key(0))
    restored = open_one({"model": like}, (progress or Silent()).say)
    if restored is None:
        kind = "evaluated checkpoint" if which == "best" else "checkpoint"
        raise BadInput(f"run folder {str(folder)!r} has no {kind} yet; train it first, or longer.")
    return Run(folder, config, load_tokenizer(folder / files.TOKENIZER), restored.items["model"], restored.step)
