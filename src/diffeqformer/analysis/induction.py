"""Induction heads: who finds an earlier copy and who copies from it, beside the spectra from which the paper infers it.

The paper (section 5.1) reads positive eigenvalues of QK as matching and positive eigenvalues of OV as copying, and
concludes that induction heads are likely in the last layers. Here both behaviours are measured where they happen, on
random sequences that are repeated, and the inference is tested by rank correlation over heads and times.

Source of the behaviours: Olsson et al. 2022, "In-context Learning and Induction Heads".
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int, PyTree
from scipy.stats import rankdata

from diffeqformer.analysis.correlation import spearman
from diffeqformer.analysis.spectra import Spectrum, pairs_of
from diffeqformer.analysis.watch import watch_attention
from diffeqformer.errors import BadInput
from diffeqformer.model.transformer import Transformer
from diffeqformer.ode.field import BlockWeights, TransformerField
from diffeqformer.progress import Progress, Silent
from diffeqformer.report.table import Table

_BATCH_BYTES = 256_000_000

TESTS = (
    ("prefix matching", "QK positive share"), ("prefix matching", "QK sum ratio"),
    ("prefix matching", "QK spectral radius"), ("copying", "OV positive share"), ("copying", "OV sum ratio"),
    ("prefix matching", "QK and OV positive"), ("next token", "QK and OV positive"), ("next token", "OV sum ratio"),
)  # fmt: skip
"""Which behaviour is compared with which summary of a spectrum."""
COPYING = ("copying", "OV positive share")
"""Of what needs no induction heads: a head that copies has large shares of positive real parts in OV."""
MATCHING = 0.5
"""Prefix matching of a head that is called an induction head without reserve."""
INFERENCE = ("prefix matching", "QK and OV positive")
"""The paper's: a head of which both shares of positive real parts are large is an induction head."""


@dataclass(frozen=True)
class Correlation:
    """How a behaviour and a summary of spectra go together, over all heads and steps."""

    behaviour: str
    summary: str
    rho: float
    """Spearman's rank correlation; 0 if either is the same everywhere."""
    interval: tuple[float, float]
    """95 % bootstrap interval: steps and heads are drawn anew if weights are functions of time (a head's times go
    together), else heads of all layers are."""
    within: float = 0.0
    """The same of ranks among the heads of each step: what depth alone does to both, and so to all heads alike, is out
    of it. 0 with one head."""
    within_interval: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True)
class Induction:
    """What every head does on repeated random sequences at every step, and what its spectra say."""

    times: np.ndarray
    """The ends of the steps, (step,)."""
    behaviours: dict[str, np.ndarray]
    """By name, (step, head); see `measure_induction`."""
    summaries: dict[str, np.ndarray]
    """Summaries of the QK and OV spectra of the weights that the same evaluations used, (step, head)."""
    correlations: tuple[Correlation, ...]
    chance: float
    """Prefix matching of a head that looks at all positions alike."""
    loss_first: float
    """Mean loss (nats) of the first copy's tokens, which cannot be known."""
    loss_later: float
    """Mean loss of the later copies', which can."""
    even: float
    """The loss of even odds for every token of the vocabulary."""
    length: int
    repeats: int
    sequences: int

    @property
    def inference(self) -> Correlation:
        """The test of the paper's inference: prefix matching against both pairs' shares of positive real parts."""
        return next(c for c in self.correlations if (c.behaviour, c.summary) == INFERENCE)

    def verdict(self) -> str:
        """Whether there are induction heads, and what the test means for the paper's inference on this model."""
        most = float(self.behaviours["prefix matching"].max())
        measured = (
            f"the best head matches prefixes by {most:.3f} ({self.chance:.3f} by chance), and repeating a random "
            f"sequence lowers the loss from {self.loss_first:.2f} to {self.loss_later:.2f} nats (even odds: "
            f"{self.even:.2f})"
        )
        if most < 2 * self.chance or self.loss_later > self.loss_first - 0.1:
            return f"No: {measured}. The paper's inference from eigenvalues cannot be tested here. {self._copying()}"
        there = "Yes" if most >= MATCHING and self.loss_later < self.even else "Hardly"
        return f"{there}: {measured}. {self._inference()}"

    def _inference(self) -> str:
        """What becomes of the paper's inference where heads match prefixes."""
        found = self.inference
        (low, high), (least, largest) = found.interval, found.within_interval
        spread = f"rank correlation over heads and steps {found.rho:+.2f}, 95 % interval {low:+.2f} to {high:+.2f}"
        alone = self.behaviours["prefix matching"].shape[-1] == 1
        among = (
            "a step has one head"
            if alone
            else f"among the heads of a step {found.within:+.2f}, {least:+.2f} to {largest:+.2f}"
        )
        if low > 0 and (least > 0 or alone):
            return f"Heads with positive spectra match prefixes more: the inference is supported ({spread}; {among})."
        if low > 0:
            return (
                "Steps with positive spectra match prefixes more, but within a step spectra do not clearly tell which "
                f"heads do: the inference is shown over depth, and not of heads ({spread}; {among})."
            )
        if high < 0:
            return f"Heads with positive spectra match prefixes less: the inference fails ({spread}; {among})."
        return f"Positive spectra do not tell which heads match prefixes ({spread}; {among})."

    def _copying(self) -> str:
        """Whether heads copy where OV says so, which needs no induction heads."""
        found = next(c for c in self.correlations if (c.behaviour, c.summary) == COPYING)
        (low, high), most = found.interval, float(self.behaviours["copying"].max())
        goes = "goes" if low > 0 else "goes the other way" if high < 0 else "does not clearly go"
        return (
            f"Copying, up to {most:.2f} here, {goes} with OV's share of positive real parts (rank correlation "
            f"{found.rho:+.2f}, 95 % interval {low:+.2f} to {high:+.2f}){self._other_copying()}."
        )

    def _other_copying(self) -> str:
        """What copying clearly goes with besides."""
        others = (c for c in self.correlations if c.behaviour == COPYING[0] and c.summary != COPYING[1])
        clear = [c for c in others if c.interval[0] > 0 or c.interval[1] < 0]
        said = [f"{c.summary} ({c.rho:+.2f}, {c.interval[0]:+.2f} to {c.interval[1]:+.2f})" for c in clear]
        return f"; it goes with {' and '.join(said)}" if said else ""

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything, to be saved."""
        found = {"times": self.times, "chance": np.asarray(self.chance)}
        found |= {name.replace(" ", "_"): value for name, value in (self.behaviours | self.summaries).items()}
        found["loss_first_and_later"] = np.array([self.loss_first, self.loss_later])
        found["correlations"] = np.array([(c.rho, *c.interval) for c in self.correlations])
        found["correlations_within"] = np.array([(c.within, *c.within_interval) for c in self.correlations])
        found["correlation_names"] = np.array([f"{c.behaviour} ~ {c.summary}" for c in self.correlations])
        return found

    def table(self, caption: str = "Rank correlations") -> Table:
        """The correlations."""
        rows = [
            (f"{c.behaviour} ~ {c.summary}",
             f"{c.rho:+.2f}", f"{c.interval[0]:+.2f} to {c.interval[1]:+.2f}",
             f"{c.within:+.2f}", f"{c.within_interval[0]:+.2f} to {c.within_interval[1]:+.2f}")
            for c in self.correlations
        ]  # fmt: skip
        columns = (
            "behaviour ~ spectrum",
            "rank correlation",
            "95 % interval",
            "among a step's heads",
            "95 % interval",
        )
        return Table(caption, columns, rows)

    def _repr_html_(self) -> str:
        return self.table(self.verdict()).to_html()


def repeated_sequences(
    candidates: Sequence[int] | np.ndarray, *, sequences: int, length: int, repeats: int, seed: int = 0
) -> np.ndarray:
    """Sequences of `length` different random tokens, each `repeats` times in a row: (sequences, length * repeats).

    **Raises:** `BadInput` if there are fewer candidates than tokens to draw, or a number makes no sense.
    """
    for name, value, least in (("sequences", sequences, 1), ("length", length, 3), ("repeats", repeats, 2)):
        if value < least:
            raise BadInput(f"{name} is {value}, but must be at least {least}.")
    if length > len(candidates):
        raise BadInput(f"length is {length}, but there are only {len(candidates)} tokens to draw from.")
    draw = np.random.default_rng(seed)
    once = np.stack([draw.choice(candidates, length, replace=False) for _ in range(sequences)])
    return np.tile(once, (1, repeats)).astype(np.int32)


def prefix_targets(length: int, repeats: int) -> np.ndarray:
    """True where a query of the second or a later copy would look to match its prefix: (query, position).

    These are the positions after every earlier copy of the query's token.
    """
    query, position = np.ogrid[: length * repeats, : length * repeats]
    back = query - position  # one copy back the same token is `length` back, and what followed it one less
    return (query >= length) & (position >= 1) & (back >= 0) & (back % length == length - 1)


def measure_induction(
    model: Transformer,
    *,
    candidates: Sequence[int] | np.ndarray | None = None,
    sequences: int = 32,
    length: int = 25,
    repeats: int = 4,
    steps: int | None = None,
    seed: int = 0,
    samples: int = 1000,
    progress: Progress | None = None,
) -> Induction:
    """Measure every head at every step on repeated random sequences, and test what the spectra say.

    Behaviours, means over sequences and positions (and over a step's evaluations of attention, if it has many):

    - `prefix matching`, 0 to 1: attention from the second and later copies to the positions after earlier copies of
      the query's token (Olsson et al.).
    - `copying`, -1 to 1: looking at a position alone, does the head raise the logit of the token there? Counted in
      ranks among the sequence's tokens, so that the head's scale does not matter: 1 if above all others, -1 if below
      all, 0 by chance. Logits are the head's output through the final norm's scale and the unembedding ("direct").
    - `next token`, -1 to 1: the same of what the head really gives in the second and later copies, and of the token
      that comes next: an induction head's whole effect.

    **Arguments:** `candidates`, tokens to draw from (all if not given); `sequences`, `length` and `repeats` of them
    (Olsson et al. repeat 25 tokens four times); `steps` of depth; `seed`; `samples` of the bootstrap; `progress`.

    **Returns:** `Induction`.

    **Raises:** `BadInput` if the sequences do not fit the context or the vocabulary.
    """
    config, steps = model.config, model.grid(steps).steps
    if length * repeats > config.context:
        raise BadInput(
            f"{repeats} repeats of {length} tokens are {length * repeats} positions, but the model's context is "
            f"{config.context}; ask for fewer."
        )
    candidates = np.arange(config.vocabulary or 0) if candidates is None else np.asarray(candidates)
    asked = {"sequences": sequences, "length": length, "repeats": repeats}
    ids = repeated_sequences(candidates, **asked, seed=seed)
    positions = length * repeats
    each = 4 * positions * config.heads * (3 * positions + config.width + 3 * length)
    batch = max(1, min(sequences, _BATCH_BYTES // each))
    sums: PyTree = None
    with (progress or Silent()).stage("Repeated sequences", sequences) as stage:
        for start in range(0, sequences, batch):
            part = ids[start : start + batch]
            found = jax.tree.map(np.asarray, _observe(model, jnp.asarray(part), length, steps))
            weighted = jax.tree.map(lambda value, n=len(part): np.float64(value) * n, found)
            sums = weighted if sums is None else jax.tree.map(np.add, sums, weighted)
            stage.advance(len(part))
    means, (first, later) = jax.tree.map(lambda total: total / sequences, sums)
    summaries = _spectral_summaries(model, ids[:1], steps)
    behaviours = {name: value.mean(1) for name, value in means.items()}
    continuous = config.continuous
    values = behaviours | summaries
    return Induction(
        times=np.asarray(model.grid(steps).edges[1:]),
        behaviours=behaviours,
        summaries=summaries,
        correlations=tuple(
            correlate(b, values[b], s, values[s], crossed=continuous, samples=samples, seed=seed) for b, s in TESTS
        ),
        chance=float((prefix_targets(length, repeats).sum(1) / np.arange(1, positions + 1))[length:].mean()),
        loss_first=float(first),
        loss_later=float(later),
        even=math.log(model.embedding.tokens.shape[0]),
        **asked,
    )


def correlate(
    behaviour: str, x: np.ndarray, summary: str, y: np.ndarray, *, crossed: bool, samples: int = 1000, seed: int = 0
) -> Correlation:
    """Spearman's correlation of x and y, both (step, head), with a bootstrap interval.

    **Arguments:** `crossed`, true to draw steps and heads, each apart, and every pair of those drawn (Owen 2007, the
    pigeonhole bootstrap: a head's values at all steps go together, as do a step's of all heads; with few of either the
    interval is wide, as it should be), false to draw (step, head) points; `samples` of the bootstrap.
    """
    a, b = (x, y) if crossed else (x.reshape(1, -1), y.reshape(1, -1))
    of_heads = [rankdata(values, axis=1) - (x.shape[1] + 1) / 2 for values in (x, y)]
    return Correlation(
        behaviour, summary, spearman(x.ravel(), y.ravel()), _interval(a, b, samples, seed),
        spearman(*(ranks.ravel() for ranks in of_heads)), _interval(*of_heads, samples=samples, seed=seed),
    )  # fmt: skip


def _interval(x: np.ndarray, y: np.ndarray, samples: int, seed: int) -> tuple[float, float]:
    """Of the correlation of two tables, each axis drawn anew with replacement."""
    draw = np.random.default_rng(seed)
    picks = (np.ix_(*(draw.integers(0, size, size) for size in x.shape)) for _ in range(samples))
    low, high = np.quantile([spearman(x[some].ravel(), y[some].ravel()) for some in picks], (0.025, 0.975))
    return float(low), float(high)


@eqx.filter_jit
def _observe(model: Transformer, ids: Int[Array, "batch position"], length: int, steps: int) -> PyTree:
    """Behaviours of all heads, each (step, evaluation, head), and the losses of the first and the later copies."""
    repeats = ids.shape[1] // length
    targets = jnp.asarray(prefix_targets(length, repeats), jnp.float32)
    table = model.embedding.tokens if model.head is None else model.head
    rows = table[ids[:, :length]]  # the unembedding of the sequence's own tokens
    own = jnp.arange(ids.shape[1]) % length

    def measure(field: TransformerField, weights: BlockWeights, x: Array) -> dict[str, Array]:
        pattern = field.attention_weights(weights, x).astype(jnp.float32)
        alone = direct_logits(model, field.value_outputs(weights, x), rows)
        given = jnp.einsum("bhqk,bkhv->bqhv", pattern, alone)
        following = given[:, length:], jnp.roll(own, -1)[length:]
        return {
            "prefix matching": (pattern * targets[None, None]).sum(-1)[..., length:].mean((0, 2)),
            "copying": lead(alone, own).mean((0, 1)),
            "next token": lead(*following).mean((0, 1)),
        }

    found = watch_attention(model, ids, measure, steps)
    logits = jax.nn.log_softmax(model(ids, steps=steps), axis=-1)[:, :-1]
    losses = -jnp.take_along_axis(logits, ids[:, 1:, None], axis=-1)[..., 0]
    return found, (losses[:, : length - 1].mean(), losses[:, length:].mean())


def direct_logits(
    model: Transformer, outputs: Float[Array, "batch position heads width"], rows: Float[Array, "batch token width"]
) -> Float[Array, "batch position heads token"]:
    """What outputs of heads add to the logits of some tokens, straight through the final norm, up to its factor.

    The final norm is linear once its mean and variance are those of the whole state: `scale (y - mean(y))` (LayerNorm)
    or `scale y` (RMSNorm) over one number for each position, which is left out.

    **Arguments:** `rows`, rows of the unembedding.
    """
    y = outputs.astype(jnp.float32)
    if model.final_norm.shift is not None:
        y = y - y.mean(-1, keepdims=True)
    y = y * model.final_norm.scale.astype(jnp.float32)[None, None, None]
    return jnp.einsum("bkhw,bvw->bkhv", y, rows.astype(jnp.float32))


def lead(
    logits: Float[Array, "batch position heads token"], token: Int[Array, " position"]
) -> Float[Array, "batch position heads"]:
    """Share of the other tokens that a position's own token is above, less the share that it is below: -1 to 1."""
    mine = jnp.take_along_axis(logits, token[None, :, None, None], axis=-1)
    return jnp.sign(logits - mine).sum(-1) / -(logits.shape[-1] - 1)


def _spectral_summaries(model: Transformer, ids: np.ndarray, steps: int) -> dict[str, np.ndarray]:
    """Summaries of the QK and OV spectra of the weights at every attention evaluation, means over a step's."""

    def small(field: TransformerField, weights: BlockWeights, x: Array) -> dict[str, Array]:
        pairs = pairs_of(jax.tree.map(lambda leaf: leaf.astype(jnp.float32), weights), model.config)
        exact = partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
        return {name: exact(pairs[name][1], pairs[name][0]) for name in ("QK", "OV")}

    found = eqx.filter_jit(lambda model, ids: watch_attention(model, ids, small, steps))(model, jnp.asarray(ids))
    summaries: dict[str, np.ndarray] = {}
    for name, matrices in jax.tree.map(np.asarray, found).items():
        values = np.linalg.eigvals(matrices.astype(np.float64)).astype(complex)
        spectrum = Spectrum(values.reshape(-1, *values.shape[-2:]), np.zeros((1, 1, 1)))
        mean = lambda summary, shape=values.shape[:3]: summary.reshape(shape).mean(1)
        summaries |= {
            f"{name} positive share": mean(spectrum.positive_share),
            f"{name} sum ratio": mean(spectrum.sum_ratio),
            f"{name} spectral radius": mean(spectrum.radius),
        }
    summaries["QK and OV positive"] = np.minimum(summaries["QK positive share"], summaries["OV positive share"])
    return summaries
