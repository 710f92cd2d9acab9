"""Opening a run folder to use its model."""

from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from tokenizers import Tokenizer

from diffeqformer.config import Config, Which
from diffeqformer.data.beside import special_token
from diffeqformer.data.tokenizer import end_of_text, ends_of_generation, leading, reading_special_tokens
from diffeqformer.data.tokenizer_files import load_tokenizer
from diffeqformer.errors import BadInput
from diffeqformer.model.build import Build, abstract
from diffeqformer.model.build import build as usual_build
from diffeqformer.model.transformer import Transformer
from diffeqformer.plain import Document, shown
from diffeqformer.progress import Progress, Silent
from diffeqformer.runs import folder as run_folder
from diffeqformer.runs.checkpoint import Checkpoints
from diffeqformer.store.paths import path_of


@dataclass(frozen=True)
class Run:
    """A model and what belongs to it, read from a run folder."""

    folder: Path
    config: Config
    tokenizer: Tokenizer
    model: Transformer
    step: int
    """Number of updates that the model has had."""
    origin: run_folder.Origin = "trained"
    """Kind of the run, as its checkpoint says."""
    passed_over: str = ""
    """Which newer checkpoint is damaged, and how, if the newest sound one was asked for; empty if none is."""

    @property
    def digest(self) -> str | None:
        """Digest of the checkpoint that was read; `None` if its manifest is missing."""
        return Checkpoints(self.folder / run_folder.CHECKPOINTS).digest(self.step)

    @property
    def from_imported(self) -> bool:
        """Whether the model was imported, or made from an imported one, over however many runs."""
        if self.origin in ("trained", "imported"):
            return self.origin == "imported"
        return self.config.base.from_imported

    @property
    def start(self) -> list[int]:
        """Tokens that precede every text of an imported model, as in its training, and of models made from it; none for
        a model trained here."""
        return leading(self.tokenizer) if self.from_imported else []

    @property
    def stops(self) -> list[int]:
        """Tokens at which generated text ends: first the one that the model's files declare, if any, then those known
        by name."""
        return list(dict.fromkeys((*self._declared("eos_token"), *ends_of_generation(self.tokenizer))))

    @property
    def before(self) -> int:
        """Token that precedes a text with nothing before it. For an imported model and models made from it: the first
        of `start`, else the one that its files declare to begin a text, else to end one. Otherwise end-of-text."""
        own = (*self.start, *self._declared("bos_token"), *self._declared("eos_token")) if self.from_imported else ()
        return next(iter(own), end_of_text(self.tokenizer))

    def _declared(self, role: str) -> list[int]:
        return special_token(self.folder, self.tokenizer, role)

    @property
    def prompts(self) -> Tokenizer:
        """Tokenizer for prompts. For an imported model and models made from it, it recognises special tokens by name,
        so that a chat model's format can be written; for a model trained here they are text, as in its training."""
        return reading_special_tokens(self.tokenizer) if self.from_imported else self.tokenizer

    @property
    def which(self) -> Document:
        """Which run and update were read, for a JSON document."""
        return {"run": str(self.folder), "update": self.step, "passed_over": self.passed_over or None}


def load_run(
    folder: str | Path, which: Which = "latest", progress: Progress | None = None, build: Build | None = None
) -> Run:
    """Open the newest model of a run, the newest that is sound, or the one of lowest validation loss.

    This works while the run is being trained, and on any device.

    **Arguments:** `folder`; `which` of its checkpoints; `progress`, where damaged checkpoints that `sound` passes over
    are reported; `build`, the same that the run was trained with.

    **Returns:** a `Run`.

    **Raises:** `BadInput` if there is no run, no such checkpoint in it yet, or no `build` for parts of your own;
    `RunFailed` if the checkpoint, or another file that the model needs, is damaged.
    """
    if which not in get_args(Which):
        raise BadInput(f"checkpoint is {shown(which)}, but must be one of {', '.join(get_args(Which))}.")
    folder = path_of(folder)
    config = run_folder.open_config(folder)
    checkpoints = Checkpoints(folder / run_folder.CHECKPOINTS)
    like = {"model": abstract(config.model, build or usual_build)}
    run_folder.require_own_parts(folder, config.model, like["model"])
    say = (progress or Silent()).say if which == "sound" else None
    restored = checkpoints.best(like) if which == "best" else checkpoints.latest(like, say)
    if restored is None:
        kind = "evaluated checkpoint" if which == "best" else "checkpoint"
        raise BadInput(f"run folder {str(folder)!r} has no {kind} yet; train it first, or longer.")
    tokenizer, model = load_tokenizer(folder / run_folder.TOKENIZER), restored.items["model"]
    origin = restored.metadata.get("origin", "trained")
    return Run(folder, config, tokenizer, model, restored.step, origin, restored.passed_over)
