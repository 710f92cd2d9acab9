"""Integrating the state over depth on a fixed grid: one scan whose body is one step of a scheme."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int, Key

from diffeqformer.nn.attention import KeyValueCache, Slot
from diffeqformer.ode import grid
from diffeqformer.ode.field import Block, BlockWeights, Field, Window
from diffeqformer.ode.schemes import Evaluations, Half, Reversible, Scheme, SplitField

Gradient = Literal["plain", "checkpointed", "recursive", "reversible"]


class Solution(NamedTuple):
    """The state at the end of depth and what was asked to be kept on the way."""

    state: Float[Array, "batch position width"]
    evaluations: Evaluations
    """Evaluations of the vector field that it took."""
    states: Float[Array, "step batch position width"] | None = None
    """The state after every step, if kept."""
    cache: KeyValueCache | None = None
    """Keys and values, stacked over steps and the attention evaluations of each, if a cache was given."""


def solve(
    field: Field,
    scheme: Scheme,
    table: BlockWeights,
    x: Float[Array, "batch position width"],
    *,
    steps: grid.Steps,
    horizon: float,
    gradient: Gradient = "plain",
    checkpoints: int = 4,
    keep_states: bool = False,
    key: Key[Array, ""] | None = None,
    cache: KeyValueCache | None = None,
    window: Window | None = None,
) -> Solution:
    """Integrate `dx/dt = F(t, x)` over `steps` equal steps of `horizon / steps`, or between the times `steps`.

    **Arguments:** `field`, `scheme`; `table`, block weights on two leading axes (step, node), either of length 1 if the
    same weights serve all; `x`, the state at depth 0; `gradient`, what the backward pass keeps: `plain` all
    activations, `checkpointed` the state of each step (the step is computed again), `recursive` `checkpoints` states at
    each level of a recursion, `reversible` (a `Reversible` scheme's) the last state alone; `keep_states`; `key` for
    dropout, none outside training: one mask for each node of each step; `cache` and `window` for incremental decoding,
    cache leaves of shape (step, evaluation, ...).

    **Returns:** a `Solution`.
    """
    carry = scheme.start(x)
    lengths = None if isinstance(steps, int) else horizon * grid.lengths(steps)
    lengths = None if lengths is None else jnp.asarray(lengths, scheme.state(carry).dtype)
    steps = grid.number(steps)
    length = lambda own: horizon / steps if own is None else own
    constant = jax.tree.leaves(table)[0].shape[0] == 1
    nodes = max(map(len, scheme.nodes))
    keys = None if key is None else jax.random.split(key, (steps, nodes, 2))
    evaluations = scheme.evaluations.times(steps)
    table, with_nodes = _without_single_nodes(table)
    first = jax.tree.map(lambda leaf: leaf[0], table) if constant else table
    given = keys, lengths

    if gradient in ("recursive", "reversible") and not keep_states and cache is None:
        field_at = lambda row, keys: split(field, scheme, with_nodes(row), keys)
        if gradient == "reversible" and isinstance(scheme, Reversible):
            carry = _reversible_scan(scheme, field_at, table, given, carry, steps, length)
        else:
            step = lambda row, own, carry: scheme.step(field_at(row, own[0]), carry, length(own[1]))
            carry = _recursive_scan(step, table, given, carry, steps, checkpoints)
        return Solution(scheme.state(carry).astype(x.dtype), evaluations)

    def body(carry: Any, now: tuple) -> tuple[Any, Any]:
        (carry, cache), (row, (step_keys, own), step) = carry, now
        recorder = None if cache is None else _Recorder(cache, step)
        halves = split(field, scheme, with_nodes(first if constant else row), step_keys, recorder, window)
        carry = scheme.step(halves, carry, length(own))
        kept = scheme.state(carry).astype(x.dtype) if keep_states else None
        return (carry, None if recorder is None else recorder.cache), kept

    body = body if gradient == "plain" else jax.checkpoint(body, prevent_cse=False)
    rows = None if constant else table, given, None if cache is None else jnp.arange(steps)
    (carry, cache), states = jax.lax.scan(body, (carry, cache), rows, steps)
    return Solution(scheme.state(carry).astype(x.dtype), evaluations, states, cache)


def _without_single_nodes(table: BlockWeights) -> tuple[BlockWeights, Callable[[BlockWeights], BlockWeights]]:
    """A table for `scan` to take rows from: axes of a single node are left out, and a function puts them into a row.

    With such an axis XLA gives the whole table another layout and, each update, copies it.
    """
    single = jax.tree.map(lambda leaf: leaf.shape[1] == 1, table)
    without = jax.tree.map(lambda leaf, single: leaf.squeeze(1) if single else leaf, table, single)
    return without, lambda row: jax.tree.map(lambda leaf, single: leaf[None] if single else leaf, row, single)


class _Recorder:
    """The key-value cache in one step: its slots are handed out and taken back in the order of attention evaluations.

    A step is traced once, so this is a record of the program, not run-time state.
    """

    def __init__(self, cache: KeyValueCache, step: Int[Array, ""]) -> None:
        self.cache, self._step, self._taken = cache, step, 0

    def next(self) -> Slot:
        """The slot of the next attention evaluation."""
        return Slot(self.cache, (self._step, self._taken))

    def keep(self, slot: Slot | None) -> None:
        """Take that slot back, written."""
        assert slot is not None
        self.cache, self._taken = slot.cache, self._taken + 1


def split(
    field: Field,
    scheme: Scheme,
    weights: BlockWeights,
    keys: Key[Array, "node 2"] | None = None,
    recorder: _Recorder | None = None,
    window: Window | None = None,
) -> SplitField:
    """The halves of a field at a scheme's nodes; `weights` have a leading axis of nodes, or of length 1 for all.

    The field is evaluated in the precision of the weights and its value has the precision of the state.
    """

    def row(half: Any, node: int) -> Any:
        return jax.tree.map(lambda leaf: leaf[min(node, leaf.shape[0] - 1)], half)

    def at(attention_node: int, feed_forward_node: int) -> tuple[BlockWeights, Any]:
        block = Block(row(weights.attention, attention_node), row(weights.feed_forward, feed_forward_node))
        return block, block.attention.output.weight.dtype

    def attention(node: int) -> Half:
        block, precision = at(node, 0)

        def half(x: Array) -> Array:
            mine = None if recorder is None else recorder.next()
            key = None if keys is None else keys[node, 0]
            y, mine = field.attention(block, x.astype(precision), key=key, cache=mine, window=window)
            if recorder is not None:
                recorder.keep(mine)
            return y.astype(x.dtype)

        return half

    def feed_forward(node: int) -> Half:
        block, precision = at(0, node)
        key = None if keys is None else keys[node, 1]
        return lambda x: field.feed_forward(block, x.astype(precision), key=key).astype(x.dtype)

    return SplitField(
        [attention(node) for node in range(len(scheme.nodes.attention))],
        [feed_forward(node) for node in range(len(scheme.nodes.feed_forward))],
    )


def row_of_step(tree: Any, step: Any) -> Any:
    """The leaves' rows of a step; a leaf of one row has it for all steps."""
    at = lambda leaf: jax.lax.dynamic_index_in_dim(leaf, jnp.minimum(step, len(leaf) - 1), keepdims=False)
    return jax.tree.map(at, tree)


def _add_to_row(tree: Any, step: Any, change: Any) -> Any:
    """The leaves with `change` added to their rows of a step.

    A loop that carries the leaves writes in place, nested in others too; what nested loops stack has to be copied.
    """

    def add(leaf: Array, row: Array, change: Array) -> Array:
        return jax.lax.dynamic_update_index_in_dim(leaf, row + change, jnp.minimum(step, len(leaf) - 1), 0)

    return jax.tree.map(add, tree, row_of_step(tree, step), change)


def _recursive_scan(step: Callable, table: BlockWeights, given: Any, carry: Any, steps: int, checkpoints: int) -> Any:
    """All steps, with a backward pass that keeps `checkpoints` states a level: `checkpoints log_checkpoints(steps)`.

    The steps are cut into that many equal parts, of which only the first state is kept and each of which is treated in
    the same way when the backward pass comes to it: each level costs one more forward pass.
    Source: Griewank 1992, "Achieving logarithmic growth of temporal and spatial complexity in reverse AD".

    **Arguments:** `step`, from a step's weights, what is given for it and what is carried into it to what is carried
    out; `table`, `carry` as in `solve`; `given`, keys and lengths of all steps, which have no gradient.
    """

    def cut(first: Any, length: int) -> tuple[Array, int, Any, int]:
        """Where the parts of equal length start, their length, and where the rest starts, and its length."""
        part = -(-length // checkpoints)
        whole = length // part
        return first + part * jnp.arange(whole), part, first + part * whole, length - part * whole

    def advance(weights: tuple, carry: Any, first: Any, length: int) -> Any:
        table, given = weights
        one = lambda carry, now: (step(row_of_step(table, now), row_of_step(given, now), carry), None)
        return jax.lax.scan(one, carry, first + jnp.arange(length))[0]

    def forward(weights: tuple, carry: Any, first: Any, length: int) -> tuple[Any, tuple]:
        """What is carried out of `length` steps, and into each part of them and into the rest."""
        starts, part, rest, left = cut(first, length)
        end, into = jax.lax.scan(lambda carry, at: (advance(weights, carry, at, part), carry), carry, starts)
        return advance(weights, end, rest, left), (into, end)

    def pull_back(weights: tuple, kept: tuple, cotangents: tuple, first: Any, length: int) -> tuple:
        """Cotangents of what is carried, and of the table, from behind `length` steps to before them."""
        starts, part, rest, left = cut(first, length)
        into, end = kept

        def through(cotangents: tuple, carry: Any, first: Any, length: int) -> tuple:
            if length > 1:
                return pull_back(weights, forward(weights, carry, first, length)[1], cotangents, first, length)
            cotangent, total = cotangents
            row, own = (row_of_step(tree, first) for tree in weights)
            change, cotangent = jax.vjp(lambda row, carry: step(row, own, carry), row, carry)[1](cotangent)
            return cotangent, _add_to_row(total, first, change)

        cotangents = through(cotangents, end, rest, left) if left else cotangents
        back = lambda cotangents, now: (through(cotangents, now[0], now[1], part), None)
        return jax.lax.scan(back, cotangents, (into, starts), reverse=True)[0]

    @jax.custom_vjp
    def run(weights: tuple, carry: Any) -> Any:
        return advance(weights, carry, 0, steps)

    def run_backward(residuals: tuple, cotangent: Any) -> tuple:
        weights, kept = residuals
        zeros = jax.tree.map(jnp.zeros_like, weights[0])
        cotangent, total = pull_back(weights, kept, (cotangent, zeros), 0, steps)
        return (total, None), cotangent

    def run_forward(weights: tuple, carry: Any) -> tuple[Any, tuple]:
        carry, kept = forward(weights, carry, 0, steps)
        return carry, (weights, kept)

    run.defvjp(run_forward, run_backward)
    return run((table, given), carry)


def _reversible_scan(
    scheme: Reversible, field_at: Callable, table: BlockWeights, given: Any, carry: Any, steps: int, length: Callable
) -> Any:
    """All steps of a reversible scheme, with a backward pass that keeps the last state alone and reconstructs others.

    **Arguments:** `field_at`, from a step's weights and keys to its `SplitField`; `table`, `carry` as in `solve`;
    `given`, keys and lengths of all steps; `length`, of a step, from its own if steps are unequal.
    """

    @jax.custom_vjp
    def run(table: BlockWeights, given: Any, carry: Any) -> Any:
        def one(carry: Any, now: Array) -> tuple[Any, None]:
            keys, own = row_of_step(given, now)
            return scheme.step(field_at(row_of_step(table, now), keys), carry, length(own)), None

        return jax.lax.scan(one, carry, jnp.arange(steps))[0]

    def forward(table: BlockWeights, given: Any, carry: Any) -> tuple[Any, tuple]:
        carry = run(table, given, carry)
        return carry, (table, given, carry)

    def backward(kept: tuple, cotangent: Any) -> tuple:
        table, given, carry = kept

        def body(behind: tuple, now: Array) -> tuple[tuple, None]:
            carry, cotangent, total = behind
            keys, own = row_of_step(given, now)
            field_of = lambda row: field_at(row, keys)
            carry, cotangent, change = scheme.pull_back(
                field_of, row_of_step(table, now), carry, cotangent, length(own)
            )
            return (carry, cotangent, _add_to_row(total, now, change)), None

        start = (carry, cotangent, jax.tree.map(jnp.zeros_like, table))
        (_, cotangent, total), _ = jax.lax.scan(body, start, jnp.arange(steps), reverse=True)
        return total, None, cotangent

    run.defvjp(forward, backward)
    return run(table, given, carry)
