"""Induction heads: which heads match prefixes, which copy, and the spectra from which the paper infers both.

The paper (section 5.1) reads positive eigenvalues of QK as matching and positive eigenvalues of OV as copying, and
concludes that induction heads are likely in the last layers. Here both behaviours are measured directly, on repeated
random sequences, and the inference is tested by rank correlation over heads and times.

Source of the behaviours: Olsson et al. 2022, "In-context Learning and Induction Heads".
"""

import math
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int, PyTree

from diffeqformer.analysis.inference import TESTS, Induction, correlate
from diffeqformer.analysis.products import product_eigenvalues
from diffeqformer.analysis.spectra import Pair, Spectrum, pairs_of
from diffeqformer.analysis.watch import require_heads, watch_attention
from diffeqformer.config.bounds import whole
from diffeqformer.errors import BadInput
from diffeqformer.model.transformer import Transformer
from diffeqformer.nn.embedding import known_ids
from diffeqformer.ode.field import BlockWeights, TransformerField
from diffeqformer.ode.grid import Grid, Steps
from diffeqformer.progress import Progress, Silent

_BATCH_BYTES = 256_000_000
"""Bytes of attention and of heads' outputs and logits, in float32, of the sequences that are run together."""


def repeated_sequences(
    candidates: Sequence[int] | np.ndarray, *, sequences: int, length: int, repeats: int, seed: int = 0
) -> np.ndarray:
    """Draw sequences of `length` different random tokens, each `repeats` times in a row: (sequences, length * repeats).

    **Raises:** `BadInput` if there are fewer candidates than tokens to draw, a candidate is named twice, or a number is
    out of range.
    """
    for name, value, least in (("sequences", sequences, 1), ("length", length, 3), ("repeats", repeats, 2)):
        whole(name, value, least)
    if length > len(candidates):
        raise BadInput(f"length is {length}, but there are only {len(candidates)} tokens to draw from.")
    if len(np.unique(candidates)) < len(candidates):
        raise BadInput("candidates name a token more than once, but those of a sequence are different.")
    draw = np.random.default_rng(seed)
    once = np.stack([draw.choice(candidates, length, replace=False) for _ in range(sequences)])
    return np.tile(once, (1, repeats)).astype(np.int32)


def prefix_targets(length: int, repeats: int) -> np.ndarray:
    """Mark where a query of the second or a later copy attends if it matches its prefix: a mask (query, position).

    These are the positions right after every earlier copy of the query's token.
    """
    query, position = np.ogrid[: length * repeats, : length * repeats]
    back = query - position  # the same token is `length` back, and its successor `length - 1` back
    return (query >= length) & (position >= 1) & (back >= 0) & (back % length == length - 1)


def measure_induction(
    model: Transformer,
    *,
    candidates: Sequence[int] | np.ndarray | None = None,
    sequences: int = 32,
    length: int = 25,
    repeats: int = 4,
    steps: Steps | None = None,
    seed: int = 0,
    samples: int = 1000,
    progress: Progress | None = None,
) -> Induction:
    """Measure every head at every step on repeated random sequences, and test what the spectra say.

    Behaviours are means over sequences and positions (and over the evaluations of attention in a step, if several):

    - `prefix matching`, 0 to 1: attention from the second and later copies to the positions after earlier copies of
      the query's token (Olsson et al.).
    - `copying`, -1 to 1: if the head attends to one position alone, does it raise the logit of the token there? This is
      counted in ranks among the sequence's tokens, so that the head's scale does not matter: 1 if above all others, -1
      if below all, 0 by chance. Logits are the head's output through the final norm's scale and the unembedding
      ("direct").
    - `next token`, -1 to 1: the same for the head's actual output in the second and later copies, and for the token
      that comes next: the whole effect of an induction head.

    **Arguments:** `candidates`, tokens to draw from (all if not given); `sequences`, `length` and `repeats` of them
    (Olsson et al. repeat 25 tokens four times); `steps` of depth; `seed`; `samples` of the bootstrap; `progress`.

    **Returns:** `Induction`.

    **Raises:** `BadInput` if the sequences do not fit the context or the candidates, a number is out of range, or the
    field has no heads; `RunFailed` if weights are not finite.
    """
    require_heads(model.field, "attention_weights", "value_outputs")
    config, grid = model.config, model.grid(steps)
    model = model.with_norm_of(grid)
    asked = {"sequences": sequences, "length": length, "repeats": repeats}
    asked = {name: whole(name, number, 1) for name, number in asked.items()}
    sequences, length, repeats = asked.values()
    whole("samples", samples, 1)
    whole("seed", seed, 0)
    positions = length * repeats
    if positions > config.context:
        raise BadInput(
            f"{repeats} repeats of {length} tokens are {positions} positions, but the model's context is "
            f"{config.context}; ask for shorter sequences (length) or fewer repeats."
        )
    vocabulary = model.embedding.tokens.shape[0]
    candidates = np.asarray(known_ids(np.arange(vocabulary) if candidates is None else candidates, vocabulary, 1))
    ids = repeated_sequences(candidates, **asked, seed=seed)
    each = 4 * positions * config.heads * (3 * positions + config.width + 3 * length)
    batch = max(1, min(sequences, _BATCH_BYTES // each))
    sums: PyTree = None
    with (progress or Silent()).stage("Repeated sequences", sequences) as stage:
        for start in range(0, sequences, batch):
            part = ids[start : start + batch]
            found = jax.tree.map(np.asarray, _observe(model, jnp.asarray(part), length, grid))
            weighted = jax.tree.map(lambda value, n=len(part): np.float64(value) * n, found)
            sums = weighted if sums is None else jax.tree.map(np.add, sums, weighted)
            stage.advance(len(part))
    means, (first, later) = jax.tree.map(lambda total: total / sequences, sums)
    summaries = _spectral_summaries(model, ids[:1], grid)
    behaviours = {name: value.mean(1) for name, value in means.items()}
    values = behaviours | summaries
    return Induction(
        times=np.asarray(grid.edges[1:]),
        behaviours=behaviours,
        summaries=summaries,
        correlations=tuple(
            correlate(b, values[b], s, values[s], crossed=model.continuous, samples=samples, seed=seed)
            for b, s in TESTS
        ),
        chance=float((prefix_targets(length, repeats).sum(1) / np.arange(1, positions + 1))[length:].mean()),
        loss_first=float(first),
        loss_later=float(later),
        even=math.log(vocabulary),
        **asked,
    )


@eqx.filter_jit
def _observe(model: Transformer, ids: Int[Array, "batch position"], length: int, steps: Grid) -> PyTree:
    """Measure behaviours of all heads, each (step, evaluation, head), and the losses of the first and later copies."""
    repeats = ids.shape[1] // length
    targets = jnp.asarray(prefix_targets(length, repeats), jnp.float32)
    table = model.embedding.tokens if model.head is None else model.head
    rows = table[ids[:, :length]]  # the unembedding of the sequence's own tokens
    own = jnp.arange(ids.shape[1]) % length

    def measure(field: TransformerField, weights: BlockWeights, x: Array) -> dict[str, Array]:
        pattern = field.attention_weights(weights, x).astype(jnp.float32)
        alone = direct_logits(model, field.value_outputs(weights, x), rows)
        # A head's output is the attention-weighted mean of what each position gives alone; logits are linear in it.
        given = jnp.einsum("bhqk,bkhv->bqhv", pattern, alone)
        # The very last token is followed by the first, as if there were one more copy.
        following = given[:, length:], jnp.roll(own, -1)[length:]
        return {
            "prefix matching": (pattern * targets[None, None]).sum(-1)[..., length:].mean((0, 2)),
            "copying": lead(alone, own).mean((0, 1)),
            "next token": lead(*following).mean((0, 1)),
        }

    found = watch_attention(model, ids, measure, steps)
    logits = jax.nn.log_softmax(model(ids, steps=steps), axis=-1)[:, :-1]
    losses = -jnp.take_along_axis(logits, ids[:, 1:, None], axis=-1)[..., 0]
    # The loss at length - 1 is that of the second copy's first token, which cannot be predicted: it counts for neither.
    return found, (losses[:, : length - 1].mean(), losses[:, length:].mean())


def direct_logits(
    model: Transformer, outputs: Float[Array, "batch position heads width"], rows: Float[Array, "batch token width"]
) -> Float[Array, "batch position heads token"]:
    """Compute what heads' outputs add to the logits of some tokens, directly through the final norm, up to its factor.

    The final norm is linear once its mean and variance are those of the whole state: `scale (y - mean(y))` (LayerNorm)
    or `scale y` (RMSNorm), divided by one number for each position, which is left out.

    **Arguments:** `rows`, rows of the unembedding.
    """
    y, norm = outputs.astype(jnp.float32), model.norm_at()
    if norm.shift is not None:
        y = y - y.mean(-1, keepdims=True)
    y = y * norm.scale.astype(jnp.float32)[None, None, None]
    return jnp.einsum("bkhw,bvw->bkhv", y, rows.astype(jnp.float32))


def lead(
    logits: Float[Array, "batch position heads token"], token: Int[Array, " position"]
) -> Float[Array, "batch position heads"]:
    """Share of the other tokens with a lower logit than a position's own token, less the share with a higher one."""
    mine = jnp.take_along_axis(logits, token[None, :, None, None], axis=-1)
    return jnp.sign(logits - mine).sum(-1) / -(logits.shape[-1] - 1)


@eqx.filter_jit
def _pairs(model: Transformer, ids: Int[Array, "batch position"], steps: Grid) -> dict[str, Pair]:
    """Return QK and OV of the weights at every attention evaluation."""

    def pairs(field: TransformerField, weights: BlockWeights, x: Array) -> dict[str, Pair]:
        found = pairs_of(jax.tree.map(lambda leaf: leaf.astype(jnp.float32), weights), model.config)
        return {name: found[name] for name in ("QK", "OV")}

    return watch_attention(model, ids, pairs, steps)


def _spectral_summaries(model: Transformer, ids: np.ndarray, steps: Grid) -> dict[str, np.ndarray]:
    """Summarise the QK and OV spectra of the weights at every attention evaluation, averaged over those of a step."""
    summaries: dict[str, np.ndarray] = {}
    for name, factors in _pairs(model, jnp.asarray(ids), steps).items():
        # Of (step, evaluation, head, number). Without singular values: no summary below reads them.
        spectrum = Spectrum(product_eigenvalues(*factors), np.empty(0))
        summaries |= {
            f"{name} positive share": spectrum.positive_share.mean(1),
            f"{name} sum ratio": spectrum.sum_ratio.mean(1),
            f"{name} spectral radius": spectrum.radius.mean(1),
        }
    summaries["QK and OV positive"] = np.minimum(summaries["QK positive share"], summaries["OV positive share"])
    return summaries
