"""Integration of the state over depth on a fixed grid: a single loop, whose body is one step of a scheme.

Everything else that runs over depth plugs into this loop. A forward pass that keeps its states, or an analysis that
measures attention or carries tangents along, is an `Observer`; decoding passes a key-value cache through; early exit is
a scheme with its own end; and an adjoint decides how the loop is differentiated (`adjoints.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from functools import partial
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax import Array
from jax.core import Tracer
from jax.typing import DTypeLike
from jaxtyping import Float, Int, Key, PyTree

from diffeqformer.errors import BadInput
from diffeqformer.nn.attention import KeyValueCache, Slot
from diffeqformer.nn.linear import as_bits
from diffeqformer.ode.adjoints import Adjoint, Flow, OwnBackwardPass, Plain, without_derivative
from diffeqformer.ode.field import Block, BlockWeights, Field, Window
from diffeqformer.ode.grid import Grid, Steps
from diffeqformer.ode.schemes import Evaluations, Length, Scheme, SplitField
from diffeqformer.ode.weights.source import repeated


class Solution(NamedTuple):
    """The state at the end of depth, and what was kept on the way if requested."""

    state: Float[Array, "batch position width"]
    evaluations: Evaluations
    """Number of evaluations of the vector field that the solve took."""
    kept: PyTree = None
    """What an observer kept of each step, stacked."""
    observed: PyTree = None
    """What an observer carried to the end."""
    cache: KeyValueCache | None = None
    """Keys and values, stacked over steps and the attention evaluations of each, if a cache was given."""
    carry: PyTree = None
    """What the scheme carried to the end."""


class FieldEvaluation(NamedTuple):
    """One evaluation of one half of the field."""

    weights: BlockWeights
    state: Float[Array, "batch position width"]
    """The state at which the half was evaluated."""


class Step(NamedTuple):
    """What an observer sees of a step."""

    weights: BlockWeights
    """Weights of the step, on a leading axis of nodes."""
    attention: list[FieldEvaluation]
    """All evaluations of A, in the order in which the scheme makes them."""
    feed_forward: list[FieldEvaluation]
    """All evaluations of M."""
    state: Float[Array, "batch position width"]
    """The state after the step."""
    dt: Length
    """Length of the step in integration time, which is `horizon` for the whole depth."""


@runtime_checkable
class Observer(Protocol):
    """Observes every step of a forward pass; it is traced into the loop's body once."""

    def start(self, x: Array) -> PyTree:
        """Return the carry into the first step; `x` is the state at depth 0."""
        ...

    def see(self, carried: PyTree, step: Step) -> tuple[PyTree, PyTree]:
        """Return the new carry, and what to keep of this step."""
        ...


@dataclass(frozen=True)
class States:
    """The observer that keeps the state after every step, in the precision of the state at depth 0."""

    def start(self, x: Array) -> PyTree:
        """Carry nothing but the precision."""
        # A scan can carry only arrays, so a zero stands for its dtype.
        return jnp.zeros((), x.dtype)

    def see(self, carried: PyTree, step: Step) -> tuple[PyTree, PyTree]:
        """Keep the state."""
        return carried, step.state.astype(carried.dtype)


def solve(
    field: Field,
    scheme: Scheme,
    table: BlockWeights,
    x: Float[Array, "batch position width"],
    *,
    grid: Steps,
    horizon: float,
    precision: DTypeLike | None = None,
    adjoint: Adjoint | None = None,
    observer: Observer | None = None,
    until: Callable[[PyTree], Array] | None = None,
    key: Key[Array, ""] | None = None,
    cache: KeyValueCache | None = None,
    window: Window | None = None,
) -> Solution:
    """Integrate `dx/dt = F(t, x)` over all steps of `grid`, where a fraction f of depth takes the time `horizon f`.

    **Arguments:** `field`, `scheme`; `table`, block weights on two leading axes (step, node), either of length 1 if the
    same weights serve all; `x`, the state at depth 0; `grid`, or what specifies one; `precision`, to which weights are
    cast (if given; weights that serve all steps are cast within each step, so that their gradient is summed over steps
    in their own precision); `adjoint`, what the backward pass keeps (all activations if not given); `observer` of every
    step; `until`, a function of the scheme's carry that says whether to end before the last step (such a solve has no
    gradient and no observer); `key` for dropout, `None` outside training: one mask for each node of each step; `cache`
    and `window` for incremental decoding, with cache leaves of shape (step, evaluation, ...).

    **Returns:** a `Solution`.

    **Raises:** `BadInput` as `Grid.of`, or if a step evaluates attention more often than `cache` has slots for it.
    """
    grid = Grid.of(grid)
    program = _Program(field, scheme, grid, horizon, precision, adjoint, observer, until)
    arrays = {"table": table, "x": x, "key": key, "cache": cache, "window": window}
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((arrays, grid.given))):
        return _solve(program, **arrays)
    # Outside a compiled function, JAX would compile the loop at every call, and keep each of these programs for good.
    found = _solve_compiled(program, arrays) if program.is_known else jax.jit(partial(_solve, program))(**arrays)
    # Numbers again, which the program returned as arrays.
    return found._replace(evaluations=scheme.evaluations.times(grid.steps))


class _Program(NamedTuple):
    """What a solve is compiled for."""

    field: Field
    scheme: Scheme
    grid: Grid
    horizon: float
    precision: DTypeLike | None
    adjoint: Adjoint | None
    observer: Observer | None
    until: Callable[[PyTree], Array] | None

    @property
    def is_known(self) -> bool:
        """Whether equal programs compute the same. A part of a user's own may read what has changed since."""
        if not all(_is_ours(part) for part in (self.field, self.scheme, self.adjoint, self.observer, self.until)):
            return False
        try:
            hash(self)
        except TypeError:  # a part holds an array
            return False
        return True


def _is_ours(part: object) -> bool:
    """Whether a part, and what it is made of, such as the base of a reversible scheme, is the library's own."""
    if part is None or not is_dataclass(part) or not type(part).__module__.startswith("diffeqformer."):
        return part is None
    return all(_is_ours(value) for value in vars(part).values() if is_dataclass(value) or callable(value))


@partial(jax.jit, static_argnums=0)
def _solve_compiled(program: _Program, arrays: dict[str, PyTree]) -> Solution:
    return _solve(program, **arrays)


def _solve(
    program: _Program,
    *,
    table: BlockWeights,
    x: Float[Array, "batch position width"],
    key: Key[Array, ""] | None,
    cache: KeyValueCache | None,
    window: Window | None,
) -> Solution:
    field, scheme, grid, horizon, precision, adjoint, observer, until = program
    carry, steps = scheme.start(x), grid.steps
    # Equal steps have one length, a Python number: a constant of the program, not an array to scan over.
    lengths = None if grid.equal else jnp.asarray(horizon * grid.lengths, scheme.state(carry).dtype)
    dt = lambda own: horizon / steps if own is None else own
    # For each node of each step, one key for attention and one for feed-forward.
    keys = None if key is None else jax.random.split(key, (steps, max(map(len, scheme.nodes)), 2))
    evaluations = scheme.evaluations.times(steps)
    constant = all(leaf.shape[0] == 1 for leaf in jax.tree.leaves(table))
    # If cast before the loop, shared weights would have their gradients summed over steps in bfloat16.
    in_each_step = constant and cache is None and until is None
    cast = lambda tree: tree if precision is None else jax.tree.map(lambda leaf: leaf.astype(precision), tree)
    table = table if in_each_step else cast(table)
    table, with_nodes = _without_single_nodes(table if constant else repeated(table, steps))
    if cache is not None:
        table, with_nodes = _in_bits(table, with_nodes)
    # A row that serves all steps is closed over; a scan over it would need a copy for each step.
    first = jax.tree.map(lambda leaf: leaf[0], table) if constant else table
    row_of = (lambda row: cast(with_nodes(row))) if in_each_step else with_nodes
    given = keys, lengths
    flow = Flow(lambda row, keys: split(field, scheme, row_of(row), keys), scheme, dt, table, given, steps)
    way: Adjoint = adjoint or Plain()
    solution = lambda carry, *others: Solution(scheme.state(carry).astype(x.dtype), evaluations, *others, carry=carry)

    if until is not None:
        end = jax.lax.while_loop(
            lambda now: (now[0] < steps) & ~until(now[1]),
            lambda now: (now[0] + 1, flow.step_of(now[0], now[1])),
            (jnp.zeros((), jnp.int32), carry),
        )
        return solution(end[1])
    if isinstance(way, OwnBackwardPass) and observer is None and cache is None:
        constant_lengths = None if lengths is None else without_derivative(lengths)
        return solution(way.integrate(flow._replace(given=(keys, constant_lengths)), carry))

    def body(now: PyTree, each: tuple) -> tuple[PyTree, PyTree]:
        (carry, carried, cache), (row, (step_keys, own), index) = now, each
        record = Record(cache, index)
        row = row_of(first if constant else row)
        carry, seen = take_step(field, scheme, row, carry, dt(own), step_keys, record, window)
        if observer is None:
            return (carry, None, record.cache), None
        carried, kept = observer.see(carried, seen)
        return (carry, carried, record.cache), kept

    rows = None if constant else table, given, None if cache is None else jnp.arange(steps, dtype=jnp.int32)
    start = carry, None if observer is None else observer.start(x), cache
    (carry, carried, cache), kept = jax.lax.scan(way.wrap(body), start, rows, steps)
    return solution(carry, kept, carried, cache)


def _without_single_nodes(table: BlockWeights) -> tuple[BlockWeights, Callable[[BlockWeights], BlockWeights]]:
    """Drop node axes of length 1 from a table that `scan` takes rows from; return it and a function that restores them.

    With such an axis, XLA gives the whole table another layout and copies it at each update.
    """
    single = jax.tree.map(lambda leaf: leaf.shape[1] == 1, table)
    without = jax.tree.map(lambda leaf, single: leaf.squeeze(1) if single else leaf, table, single)
    return without, lambda row: jax.tree.map(lambda leaf, single: leaf[None] if single else leaf, row, single)


def _in_bits(
    table: BlockWeights, with_nodes: Callable[[BlockWeights], BlockWeights]
) -> tuple[BlockWeights, Callable[[BlockWeights], BlockWeights]]:
    """Store such a table as bits (`as_bits`), so that it is not converted as a whole for each token.

    Bits have no derivative, and neither has decoding.
    """
    return jax.tree.map(as_bits, table), lambda row: with_nodes(
        jax.tree.map(lambda leaf, bits: bits.view(leaf.dtype), table, row)
    )


class Record:
    """A record of where a step evaluates the field; it also assigns cache slots in the order of attention evaluations.

    A step is traced once, so this is a record of the program, not run-time state.
    """

    def __init__(self, cache: KeyValueCache | None = None, step: Int[Array, ""] | None = None) -> None:
        self.cache, self._step = cache, step
        self.attention: list[FieldEvaluation] = []
        self.feed_forward: list[FieldEvaluation] = []

    def before_attention(self, weights: BlockWeights, x: Array) -> Slot | None:
        """Record the evaluation; return its slot, if there is a cache.

        **Raises:** `BadInput` if the cache has no slot left, which JAX would replace by the last one.
        """
        if self.cache is not None and (slots := self.cache.keys.shape[1]) == len(self.attention):
            raise BadInput(
                f"the scheme's evaluations.attention is {slots}, but must be the number of times that a step evaluates "
                "attention, which is more: each has its own keys and values in a cache."
            )
        # Tracing unrolls a step's evaluations: their number so far is a constant, the index on the cache's second axis.
        slot = None if self.cache is None else Slot(self.cache, (self._step, len(self.attention)))
        self.attention.append(FieldEvaluation(weights, x))
        return slot


def take_step(
    field: Field,
    scheme: Scheme,
    row: BlockWeights,
    carry: PyTree,
    dt: Length,
    keys: Key[Array, "node 2"] | None = None,
    record: Record | None = None,
    window: Window | None = None,
) -> tuple[PyTree, Step]:
    """Take one step of length `dt`; return the scheme's new carry, and the step as an observer sees it."""
    record = record or Record()
    carry = scheme.step(split(field, scheme, row, keys, record, window), carry, dt)
    return carry, Step(row, record.attention, record.feed_forward, scheme.state(carry), dt)


def split(
    field: Field,
    scheme: Scheme,
    weights: BlockWeights,
    keys: Key[Array, "node 2"] | None = None,
    record: Record | None = None,
    window: Window | None = None,
) -> SplitField:
    """Return the halves of a field at a scheme's nodes; `weights` have a leading axis of nodes, or of length 1 for all.

    The field is evaluated in the precision of the weights, and its value has the precision of the state.
    """

    def attention(block: BlockWeights, node: int, x: Array) -> Array:
        at = x.astype(_precision(block))
        slot = record.before_attention(block, at) if record else None
        key = None if keys is None else keys[node, 0]
        y, after = field.attention(block, at, key=key, cache=slot, window=window)
        if slot is not None and after is None:
            raise BadInput(
                f"the attention of the field, {type(field).__name__}, is given a cache, but returns none: it must "
                "return the slot with the new keys and values (`Slot.put`)."
            )
        if record:
            record.cache = None if after is None else after.cache
        return y.astype(x.dtype)

    def feed_forward(block: BlockWeights, node: int, x: Array) -> Array:
        at = x.astype(_precision(block))
        if record:
            record.feed_forward.append(FieldEvaluation(block, at))
        key = None if keys is None else keys[node, 1]
        return field.feed_forward(block, at, key=key).astype(x.dtype)

    # A reads only the attention half of a node's row; M reads both halves (`nested_norm`).
    of = lambda first, second: Block(_row(weights.attention, first), _row(weights.feed_forward, second))
    return SplitField(
        [partial(attention, of(node, 0), node) for node in range(len(scheme.nodes.attention))],
        [partial(feed_forward, of(node, node), node) for node in range(len(scheme.nodes.feed_forward))],
    )


def _row(half: PyTree, node: int) -> PyTree:
    # A single row serves all nodes, as A's does where M has more (macaron with `nested_norm`).
    return jax.tree.map(lambda leaf: leaf[min(node, leaf.shape[0] - 1)], half)


def _precision(block: BlockWeights) -> jnp.dtype:
    return block.attention.output.weight.dtype
