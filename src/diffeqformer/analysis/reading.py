"""One text read after every step: the prediction there, and what each half of the block adds at each token.

The prediction after a step is the logit lens: the final norm and the head applied to the state there (nostalgebraist
2020). Steps are taken one by one with a function that is compiled once, so that another number of steps needs no new
compilation.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int, PyTree

from diffeqformer.analysis.products import product_eigenvalues
from diffeqformer.analysis.spectra import pairs_of
from diffeqformer.config import ModelConfig
from diffeqformer.errors import BadInput
from diffeqformer.model.transformer import Transformer
from diffeqformer.nn.embedding import known_ids
from diffeqformer.nn.linear import wide
from diffeqformer.ode.adjoints import row_of_step
from diffeqformer.ode.early_exit import EarlyExit
from diffeqformer.ode.field import BlockWeights, Field, TransformerField
from diffeqformer.ode.grid import Grid, Steps
from diffeqformer.ode.schemes import Scheme
from diffeqformer.ode.schemes.splitting import length_taken
from diffeqformer.ode.solve import States, take_step
from diffeqformer.ode.weights import KnotWeights, ModulatedWeights, SharedWeights, TimeWeights, WeightSource

TOP = 10
TOGETHER = 4
"""States whose predictions are read together: few shapes, so that little is compiled, and products large enough to be
fast."""
GENERATED = 8
"""Steps whose weights are generated together, if a step's weights depend on its own times alone. They replace those
before: fresh memory for the weights of all steps would take longer than the steps."""


class Lens(NamedTuple):
    """Predictions after L steps at T positions; the first axis has L + 1 entries, from depth 0."""

    top: Int[np.ndarray, "state position"]
    """Most likely next token."""
    probability: Float[np.ndarray, "state position"]
    """Probability of that token."""
    kl: Float[np.ndarray, "state position"]
    """KL divergence of the last prediction from the one there, in nats."""
    log_next: Float[np.ndarray, "state position"]
    """Log-probability of the actual next token."""


@dataclass(frozen=True)
class Walk:
    """A forward pass on one text, recorded step by step."""

    model: Transformer
    grid: Grid
    table: BlockWeights | None
    """Weights of every step, as in `Transformer.table`; `None` if they are generated on demand."""
    carries: list[PyTree]
    """What the scheme carries at each of the L + 1 edges of the grid; empty if a tolerance chose the steps."""
    states: list[Array]
    """States at these edges, each (1, position, width)."""
    moved: Float[np.ndarray, "step 2 position"]
    """Mean square over the width of what attention and the feed-forward half each add in a step, averaged over their
    evaluations; no steps if a tolerance chose them."""

    def row(self, step: int) -> BlockWeights:
        """Return the weights of step `step`, 1 to L, on an axis of nodes."""
        if self.table is None:
            return _row(self.model.table(_part(self.grid, step - 1, step)), jnp.asarray(0, jnp.int32))
        return _row(self.table, jnp.asarray(step - 1, jnp.int32))


def walk(model: Transformer, ids: Int[np.ndarray, " position"], *, steps: Steps | None = None) -> Walk:
    """Run a model on a text step by step, and record each step.

    Without `steps`, a model whose tolerance chooses them is read at the edges of its grid, between which its solver
    interpolates.

    **Raises:** `BadInput` if the text is longer than the context or the model cannot run at `steps`.
    """
    grid, x = model.grid(steps), model.embed(jnp.asarray(ids)[None])
    model = model.with_norm_of(grid)
    table = None if _by_step(model.weights) else model.table(grid)
    if steps is None and model.config.tolerance is not None:
        return Walk(model, grid, table, [], [x, *_adaptive_states(model, x)], np.zeros((0, 2, len(ids))))
    found, moved = Walk(model, grid, table, [model.scheme.start(x)], [x], np.zeros((0, 2, len(ids)))), []

    # A function of its own, so that a group's weights are freed before those of the next are generated.
    def take(table: BlockWeights, first: int, last: int) -> None:
        for step in range(first, last):
            row = _row(table, jnp.asarray(step - first, jnp.int32))
            carry, state, squares = _advance(model.field, model.scheme, row, *_before(found, step + 1))
            found.carries.append(carry)
            found.states.append(state.astype(x.dtype))
            moved.append(squares)

    together = GENERATED if table is None else grid.steps
    for first in range(0, grid.steps, together):
        last = first + together
        take(model.table(_part(grid, first, last)) if table is None else table, first, min(last, grid.steps))
    return dataclasses.replace(found, moved=np.stack(moved).astype(np.float64))


def shares(
    texts: Int[np.ndarray, "text position"], counted: Bool[np.ndarray, "text target"] | None = None
) -> Float[np.ndarray, "text target"]:
    """Weight each prediction of the tokens after the first for a mean: all equally, or only those `counted`.

    **Raises:** `BadInput` if none counts, or if the texts or the mask have the wrong shape or the mask is not bool.
    """
    if texts.ndim != 2:
        raise BadInput(f"texts have the shape {texts.shape}, but must have (text, position).")
    own = (len(texts), texts.shape[1] - 1)
    counted = np.ones(own, bool) if counted is None else np.asarray(counted)
    if counted.shape != own or counted.dtype != bool:
        raise BadInput(
            f"the mask is {counted.dtype} of the shape {counted.shape}, but must be bool of the shape {own}."
        )
    weights = counted.astype(float)
    if not weights.any():
        raise BadInput(f"none of {len(texts)} texts has a token that counts as a target, so that there is no loss.")
    return weights / weights.sum()


def lens(taken: Walk, following: Int[np.ndarray, " position"], states: Sequence[Array] = ()) -> Lens:
    """Read the prediction after every step; `following` are the next tokens, `states` other states to read instead.

    **Raises:** `BadInput` for tokens that do not exist.
    """
    known = known_ids(following, taken.model.embedding.tokens.shape[0], 1)
    end, read = log_probabilities(taken.model, taken.states[-1]), list(states or taken.states)
    groups = [read[first : first + TOGETHER] for first in range(0, len(read), TOGETHER)]
    several = lambda group: jnp.concatenate(group + group[-1:] * (TOGETHER - len(group)))
    each = [_compare(taken.model, several(group), end, known) for group in groups]
    return Lens(*(np.concatenate(part)[: len(read)] for part in zip(*each, strict=True)))


@eqx.filter_jit
def log_probabilities(
    model: Transformer, x: Float[Array, "state position width"]
) -> Float[Array, "state position vocabulary"]:
    """Compute log-probabilities of the next token from states by the final norm and the head."""
    logits = model.unembed(model.normalise(x))
    return jax.nn.log_softmax(logits.astype(wide(logits.dtype)), axis=-1)


def most_likely(taken: Walk, step: int, position: int, number: int = TOP) -> tuple[np.ndarray, np.ndarray]:
    """Return the most likely tokens after `step` steps at a position, the likeliest first, and their probabilities."""
    p = np.exp(np.asarray(log_probabilities(taken.model, taken.states[step][:, position : position + 1]))[0, 0])
    ids = np.argsort(-p, kind="stable")[:number]
    return ids, p[ids]


def likeliest(model: Transformer, state: Float[Array, "1 position width"]) -> tuple[np.ndarray, np.ndarray]:
    """Return the most likely next token at every position of a state, and its probability."""
    log_p = np.asarray(log_probabilities(model, state))[0]
    return log_p.argmax(-1), np.exp(log_p.max(-1))


def settled(
    model: Transformer, ids: Int[np.ndarray, " position"], early_exit: EarlyExit
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return what `likeliest` gives with early exit, and the steps that each token took.

    **Raises:** `BadInput` for a scheme that carries more than the state, or a number of steps that the model lacks.
    """
    state, taken = _settled(model, jnp.asarray(ids)[None], early_exit)
    return *likeliest(model.with_norm_of(early_exit.steps), state), np.asarray(taken)[0, :, 0]


def looks(taken: Walk, step: int, position: int) -> Float[np.ndarray, "head position"]:
    """Return each head's attention from `position` to every position in step `step`, 1 to L: mean over evaluations."""
    field: TransformerField = taken.model.field  # pyright: ignore[reportAssignmentType]
    own = taken.model.scheme, taken.row(step), *_before(taken, step)
    return np.asarray(_looks(field, *own, jnp.asarray(position)))


def eigenvalues(taken: Walk, step: int) -> dict[str, np.ndarray]:
    """Compute the eigenvalues of every head's QK and OV at the last node of a step: complex (head, number)."""
    return eigenvalues_of(jax.tree.map(lambda leaf: np.asarray(leaf[-1]), taken.row(step)), taken.model.config)


def eigenvalues_of(
    rows: BlockWeights, config: ModelConfig, names: Sequence[str] = ("QK", "OV")
) -> dict[str, np.ndarray]:
    """Compute the eigenvalues of some pairs of every head for given weights: complex (..., head, number)."""
    pairs = pairs_of(rows, config)
    return {name: product_eigenvalues(*pairs[name]) for name in names}


def _by_step(source: WeightSource) -> bool:
    """Whether the weights of a step are known to depend on its own times alone; never for a user's own source, which a
    subclass of the library's is too."""
    if type(source) is ModulatedWeights:
        return _by_step(source.base)
    return type(source) in (TimeWeights, KnotWeights, SharedWeights)


def _part(grid: Grid, first: int, last: int) -> Grid:
    """Take steps `first` to `last` - 1 of a grid, from 0.

    Steps of zero length after the grid's end give all parts one shape, for which weights are compiled once.
    """
    edges = grid.edges.tolist()[first : last + 1]
    return Grid(last - first, (*edges, *edges[-1:] * (last - first + 1 - len(edges))))


_row = jax.jit(row_of_step)


def _before(taken: Walk, step: int) -> tuple[PyTree, Array]:
    """Return what a step starts from, and its length in integration time."""
    carry, config = taken.carries[step - 1], taken.model.config
    length = config.interval * taken.grid.lengths[step - 1]
    return carry, jnp.asarray(length, taken.model.scheme.state(carry).dtype)


@eqx.filter_jit
def _advance(field: Field, scheme: Scheme, row: BlockWeights, carry: PyTree, dt: Array) -> tuple[PyTree, Array, Array]:
    """Take one step, and measure what each half adds in it.

    Each half is evaluated again where the scheme did: the compiler merges the two evaluations into one.
    """
    carry, step = take_step(field, scheme, row, carry, dt)
    length = length_taken(scheme, dt)
    square = lambda y: jnp.square(length * y.astype(step.state.dtype)).mean((0, 2))
    mean = lambda parts: jnp.stack(parts).mean(0)
    attention = mean([square(field.attention(at.weights, at.state)[0]) for at in step.attention])
    feed_forward = mean([square(field.feed_forward(at.weights, at.state)) for at in step.feed_forward])
    return carry, step.state, jnp.stack([attention, feed_forward])


@eqx.filter_jit
def _settled(model: Transformer, ids: Array, early_exit: EarlyExit) -> tuple[Array, Array]:
    found = model.integrate(ids, steps=early_exit)
    return found.state, found.carry.taken


@eqx.filter_jit
def _looks(
    field: TransformerField, scheme: Scheme, row: BlockWeights, carry: PyTree, dt: Array, position: Array
) -> Array:
    _, step = take_step(field, scheme, row, carry, dt)
    return jnp.stack([field.attention_weights(at.weights, at.state)[0, :, position] for at in step.attention]).mean(0)


@eqx.filter_jit
def _adaptive_states(model: Transformer, x: Array) -> Array:
    return model.flow(x, observer=States()).kept


@eqx.filter_jit
def _compare(model: Transformer, x: Array, end: Array, following: Array) -> tuple[Array, ...]:
    here = log_probabilities(model, x)
    top = here.argmax(-1)
    at = lambda ids: jnp.take_along_axis(here, jnp.broadcast_to(ids, top.shape)[..., None], axis=-1)[..., 0]
    return top, jnp.exp(at(top)), (jnp.exp(end) * (end - here)).sum(-1), at(following)
