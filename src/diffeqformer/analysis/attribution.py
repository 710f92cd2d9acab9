"""Which input tokens a prediction rests on, by the usual methods: attention, gradients and occlusion.

All explain the same number: the log-probability, at an output position, of the token that the model itself predicts
there. Baselines and integrals are taken in the space of the state at depth 0.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from diffeqformer.analysis.finite import require_finite
from diffeqformer.analysis.reading import log_probabilities
from diffeqformer.analysis.tables import Summarised, scores_html
from diffeqformer.analysis.text import populated, require_text
from diffeqformer.analysis.watch import require_heads, watch_attention
from diffeqformer.config.bounds import whole
from diffeqformer.model.transformer import Transformer
from diffeqformer.ode.grid import Steps
from diffeqformer.progress import Progress, Silent

SIGNED = ("gradient x input", "integrated gradients", "occlusion")
"""Methods whose sign tells support from opposition; the others only tell strength."""
ATTRIBUTIONS = ("attention", "attention, last step", "attention rollout", *SIGNED)
BATCH_NUMBERS = 1 << 22
"""Numbers in the states of the perturbed texts that are run together."""


@dataclass(frozen=True, repr=False)
class Attributions(Summarised):
    """Scores of all inputs for some outputs; NaN for inputs after the output."""

    outputs: tuple[int, ...]
    targets: Int[np.ndarray, " output"]
    """The tokens explained: the model's own predictions."""
    log_probabilities: Float[np.ndarray, " output"]
    """Log-probabilities of the targets, in nats."""
    scores: dict[str, np.ndarray]
    """Method to scores of shape (output, input)."""
    incompleteness: Float[np.ndarray, " output"]
    """Sum of integrated gradients minus `log p(text) - log p(baseline)`, in nats: the error of the quadrature."""
    tokens: tuple[str, ...] = ()
    """Pieces of the text; if given, a notebook shows them coloured by score."""

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all results as arrays, by name."""
        return {
            "outputs": np.asarray(self.outputs),
            "targets": self.targets,
            "log_probabilities": self.log_probabilities,
            "integrated_gradients_incompleteness": self.incompleteness,
            **{re.sub(r"\W+", "_", name.lower()): scores for name, scores in self.scores.items()},
        }

    def _repr_html_(self) -> str:
        colour = "occlusion" if "occlusion" in self.scores else ""  # the one that really changes the input
        return scores_html("attributions", self.outputs, self.scores, self.tokens, colour, SIGNED)


def attribute(
    model: Transformer,
    ids: Int[Array, " position"],
    outputs: Sequence[int],
    *,
    points: int = 32,
    steps: Steps | None = None,
    tokens: Sequence[str] = (),
    progress: Progress | None = None,
) -> Attributions:
    """Explain the model's own prediction at some positions of a text by six methods.

    - `attention`: weights of the output's row, averaged over heads and over all evaluations; `attention, last step`:
      averaged over those of the last step alone.
    - `attention rollout`: the output's row of the product over depth of `(A + I) / 2`, A the mean over heads (Abnar &
      Zuidema 2020, arXiv:2005.00928).
    - `gradient x input`: `(d log p / d x_i(0)) . x_i(0)` (Shrikumar et al. 2016, arXiv:1605.01713).
    - `integrated gradients`: the mean gradient on the straight line from the baseline to the text, times the
      difference of the two; the sum is `log p(text) - log p(baseline)` (Sundararajan et al. 2017, arXiv:1703.01365).
      Gauss-Legendre quadrature.
    - `occlusion`: fall of log p when one token's state at depth 0 is replaced by the baseline's (Zeiler & Fergus 2014).

    The baseline at each position is the mean over the vocabulary of the states at depth 0 there: a text of no
    particular token. Without a norm of the embedding it is the state of the mean token vector.

    **Arguments:** `ids`; `outputs`, positions whose prediction is explained; `points` of the quadrature; `steps` of
    depth, those of training if not given; `tokens`, pieces of the text for display; `progress`.

    **Returns:** `Attributions`.

    **Raises:** `BadInput` for a text that `require_text` refuses or one longer than the context, `points` below 1, or a
    field without heads; `RunFailed` if predictions are not finite.
    """
    require_heads(model.field, "attention_weights")
    ids, outputs = require_text(model, ids, outputs, tokens)
    whole("points", points, 1)
    model = populated(model, steps)
    x, baseline = _ends(model, ids)
    at = jnp.asarray(outputs)
    targets, log_p = _predictions(model, x, at)
    require_finite(log_p, "predictions")
    occluded_together = int(np.clip(BATCH_NUMBERS // x.size, 1, ids.size))
    blocks = range(0, max(outputs) + 1, occluded_together)
    with (progress or Silent()).stage("Attributions", 2 + points + len(blocks)) as stage:
        scores = {name: np.array(rows) for name, rows in _attention(model, ids, at).items()}
        stage.advance(1, "attention")
        _, products = _slopes(model, x, x, at, targets)
        scores["gradient x input"] = np.array(products)
        stage.advance(1, "gradients")
        integral = np.zeros_like(scores["gradient x input"], np.float64)
        nodes, shares = np.polynomial.legendre.leggauss(points)
        # Gauss-Legendre nodes and weights, mapped from [-1, 1] to [0, 1].
        for node, share in zip((nodes + 1) / 2, shares / 2, strict=True):
            between = baseline + jnp.asarray(node, x.dtype) * (x - baseline)
            integral += share * np.asarray(_slopes(model, between, x - baseline, at, targets)[1], np.float64)
            stage.advance(1, "integrated gradients")
        scores["integrated gradients"] = integral
        falls = np.zeros_like(integral)
        for start in blocks:
            block = np.arange(start, start + occluded_together)
            inside = block[block < ids.size]
            # Padded with the last position: blocks of one shape are compiled once.
            padded = jnp.asarray(np.minimum(block, ids.size - 1))
            found = _occluded(model, x, baseline, padded, at, targets)
            falls[:, inside] = (np.asarray(log_p)[None] - np.asarray(found)).T[:, : len(inside)]
            stage.advance(1, "occlusion")
        scores["occlusion"] = falls
    for rows in scores.values():
        rows[np.arange(ids.size)[None] > np.asarray(outputs)[:, None]] = np.nan
    # Only log p is used here: `_slopes` is compiled already, a function for log p alone is not.
    empty = np.asarray(_slopes(model, baseline, x, at, targets)[0], np.float64)
    missed = np.nansum(scores["integrated gradients"], -1) - (np.asarray(log_p, np.float64) - empty)
    ordered = {name: scores[name] for name in ATTRIBUTIONS}
    return Attributions(outputs, np.asarray(targets), np.asarray(log_p), ordered, missed, tuple(tokens))


@jax.jit
def _ends(model: Transformer, ids: Array) -> tuple[Array, Array]:
    """The states at depth 0 of the text and of the baseline."""
    x, table = model.embed(ids[None])[0], model.embedding.tokens
    if not model.config.embedding_norm:  # linear, so the state of the mean vector is the mean state
        return x, x - (table[ids] - table.mean(0)[None]).astype(x.dtype)
    # Without learned positions a token's state at depth 0 is the same everywhere: one mean serves all.
    every, alike = jnp.arange(table.shape[0])[:, None], model.embedding.positions is None
    at = jnp.arange(1 if alike else ids.size)
    means = jax.lax.map(lambda position: model.embed(every, position)[:, 0].mean(0), at)
    return x, jnp.broadcast_to(means, x.shape)


def _log_probabilities(model: Transformer, x: Array, outputs: Array) -> Float[Array, "batch output vocabulary"]:
    """Log-probabilities at the outputs, from states at depth 0."""
    return log_probabilities(model, model.flow(x).state[:, outputs])


def _of_targets(model: Transformer, x: Array, outputs: Array, targets: Array) -> Float[Array, "batch output"]:
    every = _log_probabilities(model, x, outputs)
    return jnp.take_along_axis(every, targets[None, :, None], axis=-1)[..., 0]


@jax.jit
def _predictions(model: Transformer, x: Array, outputs: Array) -> tuple[Array, Array]:
    every = _log_probabilities(model, x[None], outputs)[0]
    return every.argmax(-1), every.max(-1)


@jax.jit
def _attention(model: Transformer, ids: Array, outputs: Array) -> dict[str, Array]:
    """Attention scores in three ways; of each evaluation only the mean over heads is kept."""
    mean = lambda field, weights, x: field.attention_weights(weights, x)[0].mean(0)
    every = watch_attention(model, ids[None], mean)  # (step, evaluation, query, position)
    rows = jax.nn.one_hot(outputs, ids.size, dtype=every.dtype)
    flat = every.reshape(-1, *every.shape[2:])
    # From the left, e_j^T A_L ... A_1: rows times matrices, and no product of two (position, position) matrices.
    rolled, _ = jax.lax.scan(lambda row, a: (0.5 * (row @ a) + 0.5 * row, None), rows, flat, reverse=True)
    return {
        "attention": flat[:, outputs].mean(0),
        "attention, last step": every[-1][:, outputs].mean(0),
        "attention rollout": rolled,
    }


@jax.jit
def _slopes(model: Transformer, x: Array, along: Array, outputs: Array, targets: Array) -> tuple[Array, Array]:
    """Log-probability of each output's target, and its directional derivative by each token's state along `along`."""
    log_p, pull = jax.vjp(lambda x: _of_targets(model, x[None], outputs, targets)[0], x)
    product = lambda one: (pull(one)[0] * along).sum(-1)
    # One backward pass at a time, in the memory of one.
    return log_p, jax.lax.map(product, jnp.eye(len(outputs), dtype=log_p.dtype))


@jax.jit
def _occluded(
    model: Transformer, x: Array, baseline: Array, positions: Array, outputs: Array, targets: Array
) -> Float[Array, "occluded output"]:
    """Log-probabilities of the targets, with the state of one position at a time replaced by the baseline's."""
    one = lambda position: x.at[position].set(baseline[position])
    return _of_targets(model, jax.vmap(one)(positions), outputs, targets)
