"""Measuring attention on the way: at every evaluation of a forward pass, from the states and weights that it has there.

The pass itself is the model's: the scheme's own steps over the field's own halves. Only what is returned differs.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from diffeqformer.model.transformer import Transformer
from diffeqformer.ode.field import BlockWeights, TransformerField
from diffeqformer.ode.solve import split

Measure = Callable[[TransformerField, BlockWeights, Array], Any]
"""From a field, the weights of a block and a state (batch, position, width) to arrays."""


def weights_of_heads(
    field: TransformerField, weights: BlockWeights, x: Float[Array, "batch position width"]
) -> Float[Array, "batch heads query position"]:
    """The `Measure` that keeps the attention weights whole."""
    return field.attention_weights(weights, x)


def watch_attention(
    model: Transformer, ids: Int[Array, "batch position"], measure: Measure = weights_of_heads, steps: int | None = None
) -> Any:
    """What `measure` finds at every attention evaluation of the forward pass on `ids`; to be jitted by the caller.

    **Arguments:** `ids`; `measure`, called once for each evaluation of A in a step (in the order in which the scheme
    makes them) with the state that A is given there; `steps` of depth, those trained if not given (also for a model
    with a tolerance, which is run on the fixed grid).

    **Returns:** the arrays of `measure` on two more leading axes (step, evaluation): with the default, attention
    weights of shape (step, evaluation, batch, heads, query, position). Whole, these are steps x heads x position^2
    numbers: for long texts let `measure` reduce them.
    """
    scheme, steps = model.scheme, model.grid(steps).steps
    field = _Watched(model.field, measure)
    x = model.embed(ids)
    table = jax.tree.map(partial(jnp.asarray, dtype=x.dtype), model.weights.table(model.grid(steps), scheme.nodes))
    table = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (steps, *leaf.shape[1:])), table)

    def body(carry: Any, now: tuple[BlockWeights, Array]) -> tuple[Any, Any]:
        field.found.clear()
        row, length = now
        carry = scheme.step(split(field, scheme, row), carry, length)
        return carry, jax.tree.map(lambda *each: jnp.stack(each), *field.found)

    carry = scheme.start(x)
    lengths = jnp.asarray(model.config.interval * model.grid(steps).lengths, scheme.state(carry).dtype)
    return jax.lax.scan(body, carry, (table, lengths))[1]


class _Watched:
    """A field that measures what its attention is given. A step is traced once: `found` is a record of the program."""

    def __init__(self, field: TransformerField, measure: Measure) -> None:
        self._field, self._measure = field, measure
        self.found: list[Any] = []
        self.shapes, self.feed_forward = field.shapes, field.feed_forward

    def attention(self, weights: BlockWeights, x: Array, **others: Any) -> Any:
        """`A(x)`, measured."""
        self.found.append(self._measure(self._field, weights, x))
        return self._field.attention(weights, x, **others)
