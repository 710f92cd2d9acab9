"""Loss, perplexity and bits per byte over a whole split."""

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import equinox as eqx
import jax
import numpy as np

from diffeqformer.config import ToleranceConfig
from diffeqformer.errors import BadInput, RunFailed
from diffeqformer.model.loss import LossSum, loss_sum
from diffeqformer.model.transformer import Transformer
from diffeqformer.nn.embedding import require_tokens
from diffeqformer.ode.early_exit import EarlyExit
from diffeqformer.progress import Progress, Silent
from diffeqformer.sharding import shared_batch


@dataclass(frozen=True)
class Evaluation:
    """How well a model predicts a text."""

    loss: float
    """Mean nats per token."""
    perplexity: float
    """exp(loss)"""
    bits_per_byte: float | None
    """Total bits per UTF-8 byte of the text, comparable between tokenizers; `None` if the bytes are not known."""
    tokens: int
    tokens_per_second: float
    attention_evaluations: float
    """NFE: evaluations of the field's attention half for each batch (the mean over batches if a tolerance chooses the
    steps, over tokens with early exit)."""
    feed_forward_evaluations: float
    """NFE of the field's feed-forward half, counted in the same way."""


_loss_sum = eqx.filter_jit(loss_sum)


def evaluate(
    model: Transformer,
    batches: Iterable[tuple[np.ndarray, np.ndarray]],
    *,
    steps: int | EarlyExit | None = None,
    bytes_: int | None = None,
    block: int = 4096,
    progress: Progress | None = None,
    name: str = "evaluating",
) -> Evaluation:
    """Evaluate `model` at `steps` depth steps, the trained number if not given.

    Arguments and errors are those of `evaluate_in_turns`.
    """
    (found,) = evaluate_in_turns([(model, steps)], batches, bytes_=bytes_, block=block, progress=progress, name=name)
    return found


def evaluate_in_turns(
    turns: Sequence[tuple[Transformer, int | EarlyExit | None]],
    batches: Iterable[tuple[np.ndarray, np.ndarray]],
    *,
    bytes_: int | None = None,
    block: int = 4096,
    progress: Progress | None = None,
    name: str = "evaluating",
) -> list[Evaluation]:
    """Evaluate several models, or one at several depths, on batches of (ids, mask) as
    `data.loader.EvaluationBatches` gives them.

    They take turns, one batch each, so that a busy moment of the machine affects all of them alike and their speeds can
    be compared.

    **Arguments:** `turns`, models and the depth steps of each, the trained number for `None`; `batches`, of ids
    (batch, context + 1) and mask (batch, context), true where a prediction counts; `bytes_`, UTF-8 bytes of the whole
    text; `block` as for `loss_sum`; `progress` and `name` for display.

    **Returns:** an `Evaluation` for each turn; its speed leaves out the first batch, which compiles. A single batch is
    therefore read twice.

    **Raises:** `RunFailed` if adaptive steps do not reach the end of depth; `BadInput` if no prediction counts.
    """
    batches = list(batches)  # a split's tokens are small compared to activations
    only = len(batches) == 1
    tallies = [_Tally(model, steps, block) for model, steps in turns]
    with (progress or Silent()).stage(name, len(batches) * len(tallies)) as stage:
        for number, (ids, mask) in enumerate(batches):
            for tally in tallies:
                # Here, since inside the compiled sum ids are traced: JAX would clip invalid ones in silence.
                require_tokens(np.asarray(ids), tally.model.embedding.tokens.shape[0])
                batch = shared_batch(ids), shared_batch(np.asarray(mask, bool))
                if only:
                    tally.losses(*batch)
                tally.add(*batch, timed=only or number > 0)
                stage.advance(1, f"{tally.nats / tally.count:.4f} nats" if len(tallies) == 1 and tally.count else "")
    return [tally.evaluation(len(batches), bytes_) for tally in tallies]


class _Tally:
    """Running sums over one model's batches."""

    def __init__(self, model: Transformer, steps: int | EarlyExit | None, block: int):
        self.model, self.block = model, block
        # As a grid, a constant of the compiled sum: in arrays and NumPy's numbers, the steps would be traced.
        if isinstance(steps, EarlyExit):
            self.steps = steps._replace(steps=model.grid(steps.steps))
        else:
            self.steps = None if steps is None else model.grid(steps)
        self.nats = self.count = self.timed = self.seconds = self.attention = self.feed_forward = 0.0

    def losses(self, ids: jax.Array, mask: jax.Array) -> LossSum:
        try:
            found = _loss_sum(self.model, ids, mask, steps=self.steps, block=self.block)
            return jax.block_until_ready(found)  # raises here what goes wrong on the device
        except eqx.EquinoxRuntimeError as error:  # raised on the device, where the solver gives up
            tolerance = self.model.config.tolerance or ToleranceConfig()
            raise RunFailed(
                f"adaptive steps did not reach the end of depth: more than model.tolerance.max_steps, "
                f"{tolerance.max_steps}, are needed for a tolerance of {tolerance.rtol:g}, or the state is not finite."
            ) from error

    def add(self, ids: jax.Array, mask: jax.Array, *, timed: bool) -> None:
        started = time.perf_counter()
        found = self.losses(ids, mask)
        positions = float(found.positions)
        self.nats += float(found.nats)
        self.count += positions
        self.attention += float(found.evaluations[0]) * positions
        self.feed_forward += float(found.evaluations[1]) * positions
        if timed:
            self.timed += positions
            self.seconds += time.perf_counter() - started

    def evaluation(self, batches: int, bytes_: int | None) -> Evaluation:
        if not self.count:
            raise BadInput(
                f"no prediction counts in the {batches} batch{'es' * (batches > 1)} to be evaluated, so that there is "
                "no loss; where only some tokens are targets (data.targets), a larger trainer.evaluate_batches reaches "
                "some, 0 all."
            )
        loss = self.nats / self.count
        return Evaluation(
            loss=loss,
            perplexity=math.exp(loss) if loss < 709 else math.inf,  # exp(710) is more than a float holds
            bits_per_byte=None if bytes_ is None else self.nats / math.log(2) / bytes_,
            tokens=round(self.count),
            tokens_per_second=self.timed / self.seconds,
            attention_evaluations=self.attention / self.count,
            feed_forward_evaluations=self.feed_forward / self.count,
        )
