"""Which layers a trained table can do without, and in which order they are best added as steps increase.

Greedy: of n layers, the one whose removal gives the lowest loss on a text is left out, and so on down to one. Source:
Song et al. 2024, "SLEB: Streamlining LLMs through Redundancy Verification and Elimination of Transformer Blocks",
arXiv:2402.09025.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from diffeqformer.config.bounds import whole
from diffeqformer.errors import BadInput
from diffeqformer.model.lift import of_rows, table_of_whole_steps
from diffeqformer.model.loss import loss_sum
from diffeqformer.model.transformer import Transformer
from diffeqformer.progress import Progress, Silent


class Kept(NamedTuple):
    """The layers of a table in the order in which to keep them, and the loss with each number of layers."""

    order: tuple[int, ...]
    """All layers, numbered from 0, the one to keep longest first: N steps keep the first N."""
    losses: dict[int, float]
    """Number of layers to the loss with the layers kept, in nats per token of the text."""


def kept_order(
    model: Transformer, texts: Int[np.ndarray, "text position"], *, batch: int = 8, progress: Progress | None = None
) -> Kept:
    """Find the order in which to add the layers of a table as steps increase, by the loss on texts.

    L layers take L (L + 1) / 2 passes over the texts.

    **Arguments:** `model`, a table of Lie-Trotter steps of 1; `texts`, tokens; `batch`, texts at a time.

    **Raises:** `BadInput` for a model that is not such a table, a loss that is not finite, or texts of one token.
    """
    table_of_whole_steps(model)
    whole("batch", batch, 1)
    if texts.ndim != 2 or not texts[:, 1:].size:
        raise BadInput(f"texts have the shape {texts.shape}, but must have (text, position), of two tokens at least.")
    parts = [jnp.asarray(texts[start : start + batch]) for start in range(0, len(texts), batch)]
    predicted = texts[:, 1:].size
    loss = jax.jit(lambda model, rows, ids: loss_sum(of_rows(model, rows), ids).nats)
    # Rows are an argument of the compiled function: it is compiled once per number of layers, not per choice.
    read = lambda rows: math.fsum(float(loss(model, np.asarray(rows), ids)) for ids in parts) / predicted
    rows, left_out = list(range(model.config.steps)), []
    with (progress or Silent()).stage("Leaving layers out", len(rows) * (len(rows) + 1) // 2) as stage:
        losses = {len(rows): read(rows)}
        if not math.isfinite(losses[len(rows)]):
            raise BadInput(f"the loss of this model on the text is {losses[len(rows)]}, but must be finite.")
        stage.advance(1)
        while len(rows) > 1:
            found = []
            for place in range(len(rows)):
                one = read(rows[:place] + rows[place + 1 :])
                # `argmin` treats NaN as the minimum.
                found.append(one if math.isfinite(one) else math.inf)
                stage.advance(1)
            best = int(np.argmin(found))
            left_out.append(rows.pop(best))
            losses[len(rows)] = found[best]
    return Kept((*rows, *reversed(left_out)), losses)
