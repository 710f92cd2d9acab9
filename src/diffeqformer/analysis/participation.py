"""What each step of depth does: the prediction after it, how far it moves the state, and how weights change over depth.

A model whose loss is flat over the number of steps may use all of them, or only the first: reading it after every step
tells which. The prediction after a step is the logit lens (`reading.py`).
"""

import math
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float, Int, PyTree

from diffeqformer.analysis.finite import require_finite
from diffeqformer.analysis.reading import lens, shares, walk
from diffeqformer.analysis.spectra import effective_rank
from diffeqformer.model.transformer import Transformer
from diffeqformer.ode.field import BlockWeights
from diffeqformer.ode.grid import Grid, Steps
from diffeqformer.ode.lora import linear_maps
from diffeqformer.plain import Document, Values
from diffeqformer.progress import Progress, Silent

NEAR = 0.05
"""Distance in nats from the last loss within which a prediction is called settled."""


@dataclass(frozen=True)
class Participation:
    """What each of L steps does; in arrays of L + 1 entries, entry 0 is depth 0, before the first step."""

    times: Float[np.ndarray, " state"]
    """The L + 1 edges of the grid."""
    loss: Float[np.ndarray, " state"]
    """Loss of the prediction at each edge, in nats per token."""
    kl: Float[np.ndarray, " state"]
    """KL divergence of the last prediction from the one at each edge, in nats per token."""
    length: Float[np.ndarray, " state"]
    """Root mean square of the state at each edge."""
    attention: Float[np.ndarray, " step"]
    """Root mean square of what attention alone adds in a step, averaged over its evaluations."""
    feed_forward: Float[np.ndarray, " step"]
    """Root mean square of what the feed-forward half adds in a step, averaged likewise."""
    energy: dict[str, float]
    """Matrix to the share of its squared norm over the steps that its mean over depth does not account for: 0 for
    constant weights, near 1 for a table of independent layers."""
    rank: dict[str, float]
    """Matrix to its effective rank over depth: `exp` of the entropy of the squared singular values of the (row,
    entries) matrix, with a row for each step and node, from 1 to the number of rows (Roy & Vetterli 2007, but with
    squares)."""
    echo: Float[np.ndarray, " known"] = field(default_factory=lambda: np.zeros(0))
    """Share of positions at which the likeliest next token is the one just read; empty if unknown."""
    even: float = math.nan
    """Loss of uniform guessing over the vocabulary, in nats."""

    @property
    def worse_than_even(self) -> int:
        """Number of initial steps after which the loss is still that of uniform guessing or above."""
        # The first False; one is appended in case all are True.
        return int(np.argmin(np.append(self.loss[1:] >= self.even, False)))

    @property
    def settled(self) -> int:
        """First step from which on the loss stays within `NEAR` of the last one; 0 for depth 0."""
        far = np.flatnonzero(np.abs(self.loss - self.loss[-1]) > NEAR)
        return int(far[-1]) + 1 if far.size else 0

    def document(self) -> Document:
        """Return all results as lists and numbers for JSON; `of` reads them back."""
        return {name: x.tolist() if isinstance(x, np.ndarray) else x for name, x in vars(self).items()}

    @staticmethod
    def of(document: Values) -> "Participation":
        """Rebuild the results from their `document`."""
        arrays: dict[str, Any] = {
            name: np.asarray(x, float) if isinstance(x, list) else x for name, x in document.items()
        }
        return Participation(**arrays)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all results as arrays, by name."""
        own = {name: x for name, x in vars(self).items() if isinstance(x, np.ndarray)}
        weights = {"energy": self.energy, "rank": self.rank}
        return own | {f"{kind}_{name}": np.asarray(x) for kind, of in weights.items() for name, x in of.items()}


def participation(
    model: Transformer,
    texts: Int[np.ndarray, "text position"],
    counted: Bool[np.ndarray, "text target"] | None = None,
    *,
    steps: Steps | None = None,
    progress: Progress | None = None,
) -> Participation:
    """Read a model after every step.

    **Arguments:** `texts`, tokens, each of which predicts the next; `counted`, which of the tokens after the first are
    targets, if not all are; `steps` of depth, those of training if not given (also for a model with a tolerance, which
    is run on the fixed grid); `progress`.

    **Returns:** a `Participation`; all means are over texts and positions, those of predictions over `counted` ones.

    **Raises:** `RunFailed` if a state or a loss is not finite; `BadInput` for tokens that do not exist, or if no target
    counts.
    """
    texts, grid = np.asarray(texts), model.grid(steps)
    sums: PyTree = None
    with (progress or Silent()).stage("Reading every step", len(texts)) as stage:
        for text, share in zip(texts, shares(texts, counted), strict=True):
            found = _of_text(model, text, share, grid)
            require_finite(found, "hidden states or losses")
            sums = found if sums is None else jax.tree.map(np.add, sums, found)
            stage.advance(1)
    loss, kl, echo, squares, moved = sums
    squares, (attention, feed_forward) = squares / len(texts), np.sqrt(moved / len(texts))
    energy, rank = variation_over_depth(model.weights.table(grid, model.scheme.nodes), grid.lengths)
    even = math.log(model.embedding.tokens.shape[0])
    own = np.asarray(grid.edges), loss, kl, np.sqrt(squares), attention, feed_forward
    return Participation(*own, energy, rank, echo, even)


def _of_text(model: Transformer, text: np.ndarray, share: np.ndarray, grid: Grid) -> tuple[np.ndarray, ...]:
    """Return a text's shares of loss, KL divergence and echo, and the mean squares of states and of steps' halves."""
    taken = walk(model, text[:-1], steps=grid)
    found = lens(taken, text[1:])
    squares = np.stack([np.square(np.asarray(x, np.float64)).mean() for x in taken.states])
    return (
        -found.log_next @ share,
        found.kl @ share,
        (found.top == text[:-1]) @ share,
        squares,
        taken.moved.mean(-1).T,
    )


def variation_over_depth(table: BlockWeights, lengths: np.ndarray) -> tuple[dict[str, float], dict[str, float]]:
    """Compute energy about the mean and effective rank over depth of each matrix of a (step, node) table, by name.

    **Arguments:** `table`, whose rows may serve all steps; `lengths` of the steps, by which they are weighted.
    """
    energy, rank = {}, {}
    for name, unit in linear_maps(table).items():
        rows = np.asarray(unit.weight, np.float64)
        steps, nodes = rows.shape[:2]
        # Scaled by sqrt(share of depth): root . rows is the mean row, the trace of the Gram matrix the mean square.
        root = np.sqrt(np.repeat(lengths if steps > 1 else np.ones(1), nodes) / nodes)
        rows = root[:, None] * rows.reshape(steps * nodes, -1)
        gram = rows @ rows.T
        whole, mean = np.trace(gram), root @ gram @ root
        energy[name] = float(1 - mean / whole) if whole else 0.0
        squares = np.clip(np.linalg.eigvalsh(gram), 0, None)  # of the singular values
        rank[name] = float(effective_rank(squares)) if whole else 0.0
    return energy, rank
