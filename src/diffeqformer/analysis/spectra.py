"""Eigenvalues of a block's matrix pairs over depth: query-key and output-value of each head, and the feed-forward's.

A pair is a product `L R` of L (n x r) and R (r x n) acting on row vectors, `x -> x L R`:

    QK    W_Q W_K^T        how much a position attends to another, before scaling and softmax (r: a head's width)
    OV    W_V W_O          what it copies from the tokens it attends to
    FF    W_up W_down      the feed-forward block without its activation (r: its hidden width)

Everything is computed in float64 on the host's CPU, whatever the model's precision and device, from the factors alone
(`products.py`). Source: paper section 5.1 and appendix E.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.special import entr

from diffeqformer.analysis.over_depth import between_steps, evaluation_times, rows_at
from diffeqformer.analysis.products import Matrix, on_host, product_eigenvalues, product_singular_values
from diffeqformer.analysis.tables import Summarised
from diffeqformer.analysis.watch import require_heads
from diffeqformer.config import ModelConfig
from diffeqformer.config.bounds import whole
from diffeqformer.errors import BadInput
from diffeqformer.model.transformer import Transformer
from diffeqformer.ode.field import BlockWeights
from diffeqformer.ode.grid import Grid, Steps
from diffeqformer.progress import Progress, Silent
from diffeqformer.report.table import Table

Pair = tuple[Matrix, Matrix]
"""The factors L (..., n, r) and R (..., r, n) of `L R`."""

RADIUS, SHARE, SUM_RATIO = "spectral radius", "share of positive real parts", "sum ratio"

_CHUNK_BYTES = 256_000_000
"""Bytes in float64 of the block weights that are read together."""


@dataclass(frozen=True, repr=False)
class Spectrum(Summarised):
    """One pair's eigenvalues and singular values at every time, for every head (the feed-forward counts as one)."""

    eigenvalues: np.ndarray
    """Eigenvalues that can differ from zero, complex (time, head, number). Along time each number is one curve."""
    singular_values: np.ndarray
    """Singular values (time, head, number), the largest first."""

    @property
    def radius(self) -> np.ndarray:
        """Spectral radius `max |lambda|`, (time, head)."""
        return np.abs(self.eigenvalues).max(-1)

    @property
    def largest_real(self) -> np.ndarray:
        """Largest real part, (time, head)."""
        return np.real(self.eigenvalues).max(-1)

    @property
    def positive_share(self) -> np.ndarray:
        """Share of eigenvalues with a positive real part, (time, head); a real part of zero counts as half."""
        return ((np.sign(np.real(self.eigenvalues)) + 1) / 2).mean(-1)

    @property
    def sum_ratio(self) -> np.ndarray:
        """`sum(lambda) / sum |lambda|`, (time, head): 1 if all are positive, -1 if all are negative, 0 if they cancel.

        The sum is real, because eigenvalues come in conjugate pairs. Zero where all eigenvalues are zero.
        Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits", for OV.
        """
        total = np.abs(self.eigenvalues).sum(-1)
        return np.divide(np.real(self.eigenvalues).sum(-1), total, out=np.zeros_like(total), where=total > 0)

    @property
    def effective_rank(self) -> np.ndarray:
        """Effective rank by the singular values, (time, head). Source: Roy & Vetterli 2007."""
        return effective_rank(self.singular_values)

    @property
    def jump(self) -> np.ndarray:
        """Largest move of an eigenvalue between neighbouring times, over the larger spectral radius, (time - 1, head).

        Small where the grid resolves the motion, so that the matching can be trusted; of order one where it does not.
        """
        way = np.abs(np.diff(self.eigenvalues, axis=0)).max(-1)
        scale = np.maximum(self.radius[1:], self.radius[:-1])
        return np.divide(way, scale, out=np.zeros_like(way), where=scale > 0)

    def summaries(self) -> dict[str, np.ndarray]:
        """Return all summaries of shape (time, head), by name."""
        return {
            RADIUS: self.radius,
            "largest real part": self.largest_real,
            SHARE: self.positive_share,
            SUM_RATIO: self.sum_ratio,
            "effective rank": self.effective_rank,
        }


@dataclass(frozen=True, repr=False)
class Spectra(Summarised):
    """The spectra of all pairs of a model over depth."""

    times: np.ndarray
    """Times in [0, 1], increasing."""
    attention_step: np.ndarray
    """True for the times at which the forward pass takes weights for attention."""
    feed_forward_step: np.ndarray
    """True for the times at which it takes weights for the feed-forward block."""
    continuous: bool
    """Whether weights are functions of time, also taken at times between those of the steps; if not, each step has
    weights of its own, a layer's or a mean over the step, and curves join separate ones."""
    edges: np.ndarray
    """Edges of the steps, from 0 to 1."""
    pairs: dict[str, Spectrum]
    """Spectra by name: `QK`, `OV`, `FF`, and `FF r` for a random subset of r hidden units."""
    later: bool = False
    """Whether the weights at the edge between two steps are those of the later step."""

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all results as arrays, by name: `QK_eigenvalues`, `QK_radius`, ..., and the times."""
        found = {name: getattr(self, name) for name in ("times", "attention_step", "feed_forward_step")}
        values = (
            "eigenvalues", "singular_values", "radius", "largest_real", "positive_share", "sum_ratio",
            "effective_rank", "jump",
        )  # fmt: skip
        for name, spectrum in self.pairs.items():
            found |= {f"{name.replace(' ', '_')}_{what}": getattr(spectrum, what) for what in values}
        return found

    def steps(self, name: str) -> np.ndarray:
        """Mask the times at which the forward pass takes the weights of pair `name`."""
        return self.feed_forward_step if name.startswith("FF") else self.attention_step

    @property
    def alike(self) -> bool:
        """Whether all steps have the same spectra, as with shared weights or a single step."""
        own = (spectrum.eigenvalues[self.steps(name)] for name, spectrum in self.pairs.items())
        return all(bool((values == values[:1]).all()) for values in own)

    def scaled_by_step(self, lengths: np.ndarray) -> "Spectra":
        """Multiply OV and FF by the length of the step that each time is in: what a step adds.

        **Arguments:** `lengths` of the steps in integration time.
        """
        step = Grid.of(self.edges).layer_at(self.times)
        # `layer_at` assigns the edge between two steps to the earlier one.
        if self.later:
            step += np.abs(self.times[:, None] - self.edges[None, 1:-1]).min(-1, initial=1.0) < 1e-9
        by = lengths[step][:, None, None]
        scaled = lambda one: Spectrum(one.eigenvalues * by, one.singular_values * by)
        pairs = {name: one if name == "QK" else scaled(one) for name, one in self.pairs.items()}
        return replace(self, pairs=pairs)

    def table(self, caption: str) -> Table:
        """Tabulate summaries at the first, middle and last time of the forward pass's weights, or once if all steps are
        alike; for QK and OV, means over heads."""
        of_steps = {name: np.flatnonzero(self.steps(name)) for name in self.pairs}
        columns = ("pair", "every step") if self.alike else ("pair", "first", "middle", "last")
        rows = [
            (f"{name}: {what}", *(f"{values[at[i]].mean():.3g}" for i in (0, len(at) // 2, -1)[: len(columns) - 1]))
            for name, at in of_steps.items()
            for what, values in self.pairs[name].summaries().items()
        ]
        return Table(caption, columns, rows)

    def _repr_html_(self) -> str:
        return self.table(f"spectra at {len(self.times)} times").to_html()


def effective_rank(values: np.ndarray) -> np.ndarray:
    """Compute `exp(-sum p log p)`, p the values (..., number) over their sum; 1 where all are zero."""
    total = values.sum(-1, keepdims=True)
    p = np.divide(values, total, out=np.zeros_like(values), where=total > 0)
    return np.asarray(np.exp(entr(p).sum(-1)))


def pairs_of(
    weights: BlockWeights, config: ModelConfig, *, fold_norm: bool = False, nested_norm: bool = False
) -> dict[str, Pair]:
    """Return the factors of each pair of a block, with an axis of heads before the last two (of length 1 for FF).

    With grouped queries, each query head is paired with the key and value head that serves it. Rotary embeddings
    rotate query and key by their positions: this is QK at distance zero. For llama's gated feed-forward
    `down (silu(gate x) * up x)`, the pair is up and down, as if every gate were one; gpt's biases are left out.

    **Arguments:** `weights`, block weights, stacked on any number of leading axes; `fold_norm`, true to multiply each
    map by the scale of the norm before it (on both sides of QK), false for the bare products, as in the paper;
    `nested_norm` of the field, which puts attention's norm before the feed-forward block's.

    **Returns:** for `QK`, `OV` and `FF` the pair (L, R).
    """
    attention, feed_forward = weights.attention, weights.feed_forward
    qkv, output = attention.query_key_value.weight, attention.output.weight
    up, down = feed_forward.up.weight, feed_forward.down.weight
    if fold_norm:
        qkv = qkv * attention.norm.scale[..., None]
        up = up * feed_forward.norm.scale[..., None]
        if nested_norm:  # M reads n_M(n_A(x))
            up = up * attention.norm.scale[..., None]
    head_width, kv_heads = config.head_width, config.kv_heads
    # Columns are heads side by side: all queries, then all keys, then all values.
    parts = jnp.moveaxis(qkv.reshape(*qkv.shape[:-1], -1, head_width), -2, -3)
    query, key, value = jnp.split(parts, [config.heads, config.heads + kv_heads], axis=-3)
    key, value = (jnp.repeat(part, config.heads // kv_heads, axis=-3) for part in (key, value))
    output = output.reshape(*output.shape[:-2], config.heads, head_width, -1)
    return {
        "QK": (query, jnp.swapaxes(key, -1, -2)),
        "OV": (value, output),
        "FF": (up[..., None, :, :], down[..., None, :, :]),
    }


def hidden_subsets(hidden: int, ranks: Sequence[int], seed: int = 0) -> dict[int, np.ndarray]:
    """Draw r different hidden units at random for each rank r, sorted; draws of different ranks are independent.

    **Raises:** `BadInput` if a rank is not a whole number between 1 and `hidden`.
    """
    for rank in ranks:
        if whole("rank", rank) > hidden or rank < 1:
            raise BadInput(f"rank is {rank}, but must be between 1 and {hidden}, the feed-forward's hidden width.")
    return {rank: np.sort(np.random.default_rng((seed, rank)).permutation(hidden)[:rank]) for rank in ranks}


def follow(eigenvalues: np.ndarray) -> np.ndarray:
    """Order eigenvalues so that each number is one continuous curve along the first axis.

    At the first time they are sorted by falling real part; from each time to the next they are matched one to one so
    that the sum of the distances they move is least (linear sum assignment). The values themselves are not changed.

    **Arguments:** `eigenvalues`, complex (time, ..., number). **Returns:** the same values, ordered.
    """
    flat = eigenvalues.reshape(len(eigenvalues), -1, eigenvalues.shape[-1])
    ordered = np.empty_like(flat)
    for head in range(flat.shape[1]):
        first = flat[0, head]
        ordered[0, head] = first[np.lexsort((-first.imag, -first.real))]
        for time in range(1, len(flat)):
            now = flat[time, head]
            ordered[time, head] = now[linear_sum_assignment(np.abs(ordered[time - 1, head][:, None] - now[None]))[1]]
    return ordered.reshape(eigenvalues.shape)


def spectra(
    model: Transformer,
    *,
    times: int = 100,
    steps: Steps | None = None,
    ranks: Sequence[int] = (),
    seed: int = 0,
    fold_norm: bool = False,
    progress: Progress | None = None,
) -> Spectra:
    """Compute the spectra of a model's pairs at all steps and, if weights exist between steps, on a grid of times.

    **Arguments:** `times`, the number of equally spaced times from 0 to 1 besides those of the steps, 0 for none;
    `steps` of depth, those of training if not given; `ranks`, sizes of random subsets S of the feed-forward block's
    hidden units, for each of which `W_up[:, S] W_down[S, :]` is taken, with the same S at all times; `seed` of their
    draw; `fold_norm` as in `pairs_of`; `progress` for display.

    **Returns:** `Spectra`.

    **Raises:** `BadInput` for a single time, a rank that is out of range, a number of steps that the model lacks, or a
    field without heads; `RunFailed` if weights are not finite.
    """
    if whole("times", times, 0) == 1:
        raise BadInput(f"times is {times}, but must be at least 2, or 0 for those of the steps alone.")
    require_heads(model.field)
    config, grid = model.config, model.grid(steps)
    subsets = hidden_subsets(config.hidden_width, ranks, seed)
    continuous = times > 0 and between_steps(model)
    taken = evaluation_times(model, grid)
    every = np.unique(np.concatenate(taken))
    if continuous:
        # A time of the steps, i / L in another rounding, is not taken twice.
        between = [time for time in np.linspace(0, 1, times) if np.abs(every - time).min() > 1e-9]
        every = np.sort(np.concatenate([every, between]))
    progress = progress or Silent()
    weights_at = rows_at(model, grid)
    # Of the field itself: the config's section of a user's own field does not tell.
    folds = {"fold_norm": fold_norm, "nested_norm": getattr(model.field, "nested_norm", False)}
    one = jax.tree.leaves(jax.eval_shape(lambda: model.weights.at(every[:1])))
    chunk = max(1, _CHUNK_BYTES // sum(leaf.size * 8 for leaf in one))
    found: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    with progress.stage("Eigenvalues", len(every)) as stage:
        for start in range(0, len(every), chunk):
            some = every[start : start + chunk]
            rows = weights_at(some)
            with on_host():
                pairs = jax.tree.map(np.asarray, _exact_pairs(rows, config=config, **folds))
            up, down = pairs["FF"]
            pairs |= {f"FF {rank}": (up[..., chosen], down[..., chosen, :]) for rank, chosen in subsets.items()}
            for name, pair in pairs.items():
                found.setdefault(name, []).append((product_eigenvalues(*pair), product_singular_values(*pair)))
            stage.advance(len(some), f"t = {some[-1]:.2f}")
    spectra_of = {}
    with progress.stage("Matching", len(found)) as stage:
        for name, chunks in found.items():
            values, singular = (np.concatenate(each) for each in zip(*chunks, strict=True))
            spectra_of[name] = Spectrum(follow(values), singular)
            stage.advance(1, name)
    attention, feed_forward = (np.isin(every, times) for times in taken)
    nodes = {*model.scheme.nodes.attention, *model.scheme.nodes.feed_forward}
    later = 0.0 in nodes and 1.0 not in nodes
    return Spectra(every, attention, feed_forward, continuous, np.asarray(grid.edges), spectra_of, later)


@partial(jax.jit, static_argnames=("config", "fold_norm", "nested_norm"))
def _exact_pairs(rows: BlockWeights, *, config: ModelConfig, fold_norm: bool, nested_norm: bool) -> dict[str, Pair]:
    """Return all pairs of stacked block weights in float64; run in `on_host`."""
    wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), rows)
    return pairs_of(wide, config, fold_norm=fold_norm, nested_norm=nested_norm)
