"""Which explanation to trust: how well each ranks the tokens whose replacement changes the prediction.

Nothing is chosen by hand. Contexts are drawn, from a seed, over the whole of a split; in each, the explained number is
the log-probability of the token that the model itself predicts after the last position.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int, Integer
from scipy.special import log_softmax

from diffeqformer.analysis.attribution import ATTRIBUTIONS, SIGNED, Attributions, attribute
from diffeqformer.analysis.correlation import spearman
from diffeqformer.analysis.end_to_end import end_to_end
from diffeqformer.analysis.lyapunov import pairwise
from diffeqformer.analysis.tables import Summarised
from diffeqformer.analysis.text import populated
from diffeqformer.config.bounds import whole
from diffeqformer.errors import BadInput
from diffeqformer.model.transformer import Transformer
from diffeqformer.nn.embedding import known_ids
from diffeqformer.ode.grid import Steps
from diffeqformer.progress import Progress, Silent
from diffeqformer.report.table import Table

PAIRWISE, END_TO_END = "Lyapunov, pairwise, random direction", "Lyapunov, end-to-end growth"
"""The first is the growth of the fastest of a few random directions, as many as there are tangents."""
OCCLUSION, RANDOM = "occlusion", "random"
METHODS = (PAIRWISE, END_TO_END, *ATTRIBUTIONS, RANDOM)
BATCH = 64
"""Most texts that are run together; fewer if they are long."""
ATTENTION_NUMBERS = 1 << 26
"""Numbers in one step's attention weights for the texts that are run together: 256 MB in float32."""
RESAMPLES = 2000
"""Number of bootstrap resamples."""


@dataclass(frozen=True)
class Estimate:
    """A mean over contexts and its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True, repr=False)
class Faithfulness(Summarised):
    """Results of the test, context by context."""

    methods: tuple[str, ...]
    starts: Int[np.ndarray, " context"]
    """Start of each context in the split."""
    counts: Int[np.ndarray, " count"]
    """Numbers of tokens replaced or put back."""
    strength: Float[np.ndarray, "context method"]
    """Rank correlation of |score| with |change of log p| when one token is replaced."""
    direction: Float[np.ndarray, "context method"]
    """Rank correlation of the score with the fall of log p when one token is replaced, both with their signs."""
    deletion: Float[np.ndarray, "context method count"]
    """Fall of log p, in nats, when the tokens of highest scores are replaced."""
    insertion: Float[np.ndarray, "context method count"]
    """Rise of log p, in nats, from the text with all tokens replaced, when those of highest scores are put back."""

    def measures(self) -> dict[str, Float[np.ndarray, "context method"]]:
        """Return the four measures of each context and method; for all of them, higher is better."""
        return {
            "strength": self.strength,
            "direction": self.direction,
            "deletion": self.deletion.mean(-1),
            "insertion": self.insertion.mean(-1),
        }

    def estimates(self, measure: str) -> dict[str, Estimate]:
        """Estimate the mean of a measure over contexts for each method, with its interval."""
        values = self.measures()[measure]
        numbers = zip(self.methods, values.mean(0), *interval(values), strict=True)
        return {method: Estimate(*map(float, three)) for method, *three in numbers}

    def ranking(self, measure: str, without: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Rank the methods by a measure, the best first, leaving out those in `without`."""
        found = self.estimates(measure)
        return tuple(sorted((m for m in self.methods if m not in without), key=lambda method: -found[method].mean))

    def lead(self, measure: str, without: tuple[str, ...] = ()) -> Estimate:
        """Estimate by how much the best method exceeds the second best, in the same contexts."""
        best, second = (self.methods.index(method) for method in self.ranking(measure, without)[:2])
        values = self.measures()[measure]
        differences = (values[:, best] - values[:, second])[:, None]
        return Estimate(float(differences.mean()), *(float(end[0]) for end in interval(differences)))

    def headline(self) -> str:
        """Say which method tells best what a prediction rests on, for a reader who knows none of them."""
        found, ranking = self.estimates("strength"), self.ranking("strength")
        best, second = ranking[:2]
        behind = "clearly behind" if self.lead("strength").low > 0 else "not clearly behind"
        return (
            f"On which tokens a prediction rests is told best by {best}, of {len(ranking)} methods: its scores have a "
            f"rank correlation of {found[best].mean:.2f} with what changes when a token is really replaced. {second}, "
            f"with {found[second].mean:.2f}, is {behind}."
        )

    def verdict(self) -> str:
        """Say which explanation to trust on this model, in plain words, and where the Lyapunov scores stand."""
        found, ranking = self.estimates("strength"), self.ranking("strength")
        places = ", ".join(f"{name} is number {ranking.index(name) + 1}" for name in (PAIRWISE, END_TO_END))
        won = "does" if ranking[0] in (PAIRWISE, END_TO_END) else "does not"
        best, second = ranking[:2]
        said = (
            f"In {len(self.starts)} contexts, {best} ranks tokens best (rank correlation {found[best]}), before "
            f"{second} ({found[second]}): {self._clear()}. Lyapunov {won} win: {places} of {len(ranking)}."
        )
        if best != OCCLUSION:
            return said
        best, second = self.ranking("strength", (OCCLUSION,))[:2]
        return (
            f"{said} Without occlusion, which is close to the test itself, {best} stands before {second}: "
            f"{self._clear((OCCLUSION,))}."
        )

    def _clear(self, without: tuple[str, ...] = ()) -> str:
        """Say whether the lead of the best method is more than chance."""
        lead = self.lead("strength", without)
        return f"a clear lead of {lead}" if lead.low > 0 else f"no clear lead, {lead}"

    def rows(self) -> tuple[tuple[str, ...], ...]:
        """Return the rows of the table: one per method, the best first, means with 95 % intervals."""
        columns = [self.estimates(measure) for measure in self.measures()]
        return tuple((method, *(str(column[method]) for column in columns)) for method in self.ranking("strength"))

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all results as arrays, by name."""
        return {f"faithfulness_{field.name}": np.asarray(getattr(self, field.name)) for field in fields(self)}

    def _repr_html_(self) -> str:
        return Table(self.verdict(), ("method", *self.measures()), self.rows()).to_html()


def explain(
    model: Transformer,
    ids: Int[Array, " position"],
    outputs: tuple[int, ...],
    *,
    tangents: int = 4,
    probes: int = 16,
    points: int = 32,
    steps: Steps | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Attributions:
    """Explain predictions by every method; the arguments are those of `pairwise`, `end_to_end` and `attribute`.

    The methods include `random` scores, drawn from `seed`: what ranking by chance would give.

    **Raises:** as these three.
    """
    width = model.config.width
    few = min(tangents, width)
    # Not refined: the paper's exponents, from random first tangents.
    both = pairwise(model, ids, outputs, tangents=few, iterations=0, steps=steps, seed=seed, progress=progress)
    far = end_to_end(model, ids, outputs, probes=min(probes, width), steps=steps, seed=seed, progress=progress)
    found = attribute(model, ids, outputs, points=points, steps=steps, progress=progress)
    chance = np.where(np.isnan(both.leading), np.nan, np.random.default_rng(seed).random(both.leading.shape))
    return replace(found, scores={PAIRWISE: both.leading, END_TO_END: far.growth, **found.scores, RANDOM: chance})


def faithfulness(
    model: Transformer,
    tokens: Sequence[int] | Integer[np.ndarray, " token"],
    *,
    contexts: int = 200,
    length: int = 64,
    draws: int = 4,
    tangents: int = 4,
    probes: int = 16,
    points: int = 16,
    steps: Steps | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Faithfulness:
    """Test every explanation on contexts drawn over a whole split.

    In each context, with the model's own prediction p after its last token:

    - each token in turn is replaced by `draws` tokens drawn from the split (so by their frequency), one at a time, and
      the mean change of `log p` is compared with the method's scores by Spearman's rank correlation: `strength` without
      signs, `direction` with them;
    - deletion replaces the 1, 2, 4, ... tokens with the highest scores together; insertion replaces all tokens and puts
      those back.

    Occlusion also replaces one token, though by the mean state: by construction it is close to what is measured.

    **Arguments:** `tokens` of the split; `contexts`, how many; `length` of each in tokens; `draws`, replacements of
    each token; `tangents`, `probes`, `points`, `steps` as for `explain`; `seed` of everything drawn; `progress`.

    **Returns:** a `Faithfulness`.

    **Raises:** `BadInput` for a number out of range, a split too short for one context, or a field with attention of
    its own; `RunFailed` if predictions or derivatives are not finite.
    """
    whole("contexts", contexts, 2)
    whole("draws", draws, 1)
    length = whole("length", length, 2)
    if length > model.config.context:
        raise BadInput(f"length is {length}, but must be at most the model's context, {model.config.context}.")
    if len(tokens) < length:
        raise BadInput(f"the split has {len(tokens)} tokens, but a context of {length} needs as many.")
    tokens = np.asarray(tokens)  # of a file on disk, no more is read than the contexts and the drawn tokens
    starts = np.random.default_rng(seed).integers(0, len(tokens) - length + 1, contexts)
    counts = np.asarray(sorted({2**power for power in range(length.bit_length())} | {length}))
    model, vocabulary = populated(model, steps), model.embedding.tokens.shape[0]
    scored = partial(explain, tangents=tangents, probes=probes, points=points)
    found: list[tuple[np.ndarray, ...]] = []
    with (progress or Silent()).stage("Testing explanations", contexts) as stage:
        for number, start in enumerate(starts):
            draw = np.random.default_rng([seed, number])  # more contexts do not change the first ones
            ids = np.asarray(known_ids(tokens[start : start + length], vocabulary, 1))
            scores = scored(model, jnp.asarray(ids), (length - 1,), seed=int(draw.integers(1 << 31))).scores
            by_method = np.stack([scores[method][0] for method in METHODS])
            drawn = np.asarray(known_ids(tokens[draw.integers(0, len(tokens), (draws, length))], vocabulary, 2))
            found.append(_of_context(partial(_log_p, model), ids, by_method, drawn, counts))
            stage.advance(1)
    strength, direction, deletion, insertion = (np.stack(part) for part in zip(*found, strict=True))
    return Faithfulness(METHODS, starts, counts, strength, direction, deletion, insertion)


def _of_context(
    log_p: Callable[[np.ndarray], np.ndarray],
    ids: Int[np.ndarray, " position"],
    scores: Float[np.ndarray, "method position"],
    drawn: Int[np.ndarray, "draw position"],
    counts: Int[np.ndarray, " count"],
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return strength, direction, deletion and insertion in a context; `log_p` takes texts, the unchanged one first."""
    length, draws = len(ids), len(drawn)
    single = np.repeat(ids[None], draws * length, 0).reshape(draws, length, length)
    every = np.arange(length)
    single[:, every, every] = drawn
    first = np.stack([top(row, counts) for row in scores])[:, :, None]  # (method, count, 1, position)
    deleted = np.where(first, drawn, ids)  # (method, count, draw, position)
    inserted = np.where(first, ids, drawn)
    parts = [ids[None], drawn, single, deleted, inserted]
    values = log_p(np.concatenate([part.reshape(-1, length) for part in parts]))
    cuts = np.cumsum([part.size // length for part in parts])[:-1]
    unchanged, empty, single, deleted, inserted = np.split(values, cuts)
    falls = unchanged[0] - single.reshape(draws, length).mean(0)
    over_draws = lambda part: part.reshape(*first.shape[:2], draws).mean(-1)
    strength = [abs(row) if method in SIGNED else row for method, row in zip(METHODS, scores, strict=True)]
    return (
        np.array([spearman(row, abs(falls)) for row in strength]),
        np.array([spearman(row, falls) for row in scores]),
        unchanged[0] - over_draws(deleted),
        over_draws(inserted) - empty.mean(),
    )


@jax.jit
def _last(model: Transformer, ids: Array) -> Float[Array, "batch vocabulary"]:
    return model.unembed(model.hidden(ids)[:, -1])


def _log_p(model: Transformer, texts: Int[np.ndarray, "text position"]) -> Float[np.ndarray, " text"]:
    """Return the log-probability after each text of what the model predicts after the first.

    Texts run in batches of one shape.
    """
    found, target = [], None
    together = int(np.clip(ATTENTION_NUMBERS // (model.config.heads * texts.shape[1] ** 2), 1, BATCH))
    for start in range(0, len(texts), together):
        block = texts[start : start + together]
        padded = np.concatenate([block, np.repeat(block[:1], together - len(block), 0)])
        logits = np.asarray(_last(model, jnp.asarray(padded)), np.float64)[: len(block)]
        target = int(logits[0].argmax()) if target is None else target
        found.append(log_softmax(logits, axis=-1)[:, target])
    return np.concatenate(found)


def top(scores: Float[np.ndarray, " position"], counts: Int[np.ndarray, " count"]) -> np.ndarray:
    """For each count n, mark the n tokens with the highest scores; of equal scores, the earlier tokens first."""
    place = np.argsort(np.argsort(-scores, kind="stable"), kind="stable")
    return place[None] < counts[:, None]


def interval(
    values: Float[np.ndarray, "context method"],
) -> tuple[Float[np.ndarray, " method"], Float[np.ndarray, " method"]]:
    """Compute the 95 % percentile bootstrap interval of the mean over contexts (Efron 1979), resampling contexts."""
    draw = np.random.default_rng(0)
    means = [values[draw.integers(0, len(values), len(values))].mean(0) for _ in range(RESAMPLES)]
    return tuple(np.percentile(means, [2.5, 97.5], axis=0))
