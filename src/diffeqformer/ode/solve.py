"""Integrating the state over depth on a fixed grid: one `lax.scan` whose body is one step of a scheme."""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Key

from diffeqformer.nn.attention import KeyValueCache
from diffeqformer.ode.field import BlockWeights, Field, Window
from diffeqformer.ode.schemes import Scheme, SplitField


class Solution(NamedTuple):
    """The state at the end of depth and what was asked to be kept on the way."""

    state: Float[Array, "batch position width"]
    states: Float[Array, "step batch position width"] | None
    """The state after every step, if kept."""
    cache: KeyValueCache | None
    """Keys and values, stacked over steps and the attention evaluations of each, if a cache was given."""


def solve(
    field: Field,
    scheme: Scheme,
    table: BlockWeights,
    x: Float[Array, "batch position width"],
    *,
    steps: int,
    horizon: float,
    gradient: Literal["checkpointed", "plain"] = "plain",
    keep_states: bool = False,
    key: Key[Array, ""] | None = None,
    cache: KeyValueCache | None = None,
    window: Window | None = None,
) -> Solution:
    """Integrate `dx/dt = F(t, x)` over `steps` equal steps of `horizon / steps`.

    **Arguments:** `field`, `scheme`; `table`, block weights at all nodes of all steps, or one row for all; `x`, the
    state at depth 0; `gradient`, what the backward pass keeps of each step: `checkpointed` the state alone (the step is
    computed again), `plain` everything; `keep_states`; `key` for dropout, none outside training; `cache` and `window`
    for incremental decoding, cache leaves of shape (step, evaluation, ...).

    **Returns:** a `Solution`.
    """
    nodes, dt = len(scheme.nodes), horizon / steps
    constant = jax.tree.leaves(table)[0].shape[0] == 1
    rows = None if constant else jax.tree.map(lambda leaf: leaf.reshape(steps, nodes, *leaf.shape[1:]), table)
    keys = None if key is None else jax.random.split(key, (steps, nodes, 2))

    def body(x: Array, now: tuple) -> tuple[Array, tuple]:
        row, step_keys, step_cache = now
        caches: list[KeyValueCache] = []

        def at_node(node: int) -> SplitField:
            weights = jax.tree.map(lambda leaf: leaf[0] if constant else leaf[node], table if constant else row)
            key_a, key_m = (None, None) if step_keys is None else step_keys[node]

            def attention(x: Array) -> Array:
                # Traced once a step, so this list is a record of the program, not run-time state.
                mine = None if step_cache is None else jax.tree.map(lambda leaf: leaf[len(caches)], step_cache)
                y, mine = field.attention(weights.attention, x, key=key_a, cache=mine, window=window)
                if mine is not None:
                    caches.append(mine)
                return y

            return SplitField(attention, lambda x: field.feed_forward(weights.feed_forward, x, key=key_m))

        x = scheme.step([at_node(node) for node in range(nodes)], x, dt)
        new_cache = jax.tree.map(lambda *leaves: jnp.stack(leaves), *caches) if caches else None
        return x, (x if keep_states else None, new_cache)

    if gradient == "checkpointed":
        body = jax.checkpoint(body, prevent_cse=False)
    x, (states, cache) = jax.lax.scan(body, x, (rows, keys, cache), length=steps)
    return Solution(x, states, cache)
