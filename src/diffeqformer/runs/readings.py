"""Measurements of a trained model besides its validation loss: other depths, and what each step does."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from diffeqformer.analysis.participation import participation
from diffeqformer.config import ModelConfig
from diffeqformer.data.loader import EvaluationBatches
from diffeqformer.evaluation.depth import at_depths
from diffeqformer.plain import Document
from diffeqformer.progress import Progress
from diffeqformer.runs.recorder import validation_batches
from diffeqformer.runs.results import measured
from diffeqformer.runs.trainer import TrainResult

PARTICIPATION = 16
"""Number of texts on which the participation of each step is measured."""


@dataclass(frozen=True)
class Readings:
    """Settings of the measurements of every trained model besides its validation loss."""

    prompt: str
    """Text that each model continues."""
    depths: Sequence[int]
    """Numbers of steps at which models that run at any depth are evaluated, without fine-tuning."""
    part: float = 1.0
    """Fraction of the validation batches, evenly spread, that those evaluations use."""

    def of(self, model: ModelConfig) -> tuple[int, ...]:
        """Return the depths at which a model is evaluated: `depths` (not for a table of layers), and its own, so that
        what is compared is read on the same batches. Empty for a model whose steps a tolerance chooses."""
        if model.tolerance:
            return ()
        return tuple(sorted({*(self.depths if model.continuous else ()), model.steps}))


def at_depths_of(
    result: TrainResult, depths: Sequence[int], progress: Progress, part: float = 1.0
) -> list[dict[str, float | int | None]]:
    """Evaluate a trained model at several depths, for the `depth` of its entry.

    **Arguments:** `part`, the fraction of the batches of its validation split, evenly spread; all by default.

    **Returns:** for each depth, in order, `steps`, `loss` (nats), `perplexity` and `bits_per_byte`.

    **Raises:** `BadInput` if the model cannot run at one of them.
    """
    m, tokens = result.config.model, result.tokens
    batches = validation_batches(result.config, tokens)
    whole = part >= 1.0
    asked = [steps for steps in depths if not whole or steps != m.steps]  # the whole split has been read at its own
    read = batches if whole else batches.spread(max(1, round(part * len(batches))))
    settings = {"bytes_": tokens.validation_bytes if whole else None, "block": result.config.trainer.loss_block}
    found = at_depths(result.model, read, asked, progress=progress, **settings) if asked else ()
    # At a depth that was never trained a state may overflow.
    losses = {m.steps: result.entry["validation"], **dict(zip(asked, map(measured, found), strict=True))}
    return [{"steps": steps, **losses[steps]} for steps in depths]


def participation_of(result: TrainResult, progress: Progress) -> Document | None:
    """Measure what each step of the trained depth does, on a few validation windows; `None` if they have no target."""
    tokens, mask, context = result.tokens.validation, result.tokens.validation_mask, result.config.model.context
    full = slice((len(tokens) - 1) // context * context + 1)  # a last window that is not full would be padded
    windows = EvaluationBatches(tokens[full], context, 1, None if mask is None else mask[full])
    texts, counted = map(np.concatenate, zip(*windows.spread(PARTICIPATION), strict=True))
    return participation(result.model, texts, counted, progress=progress).document() if counted.any() else None
