"""Measuring attention on the way: at every evaluation of a forward pass, from the states and weights that it has there.

The pass itself is the model's: the scheme's own steps over the field's own halves. Only what is returned differs.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Int, PyTree

from diffeqformer.model.transformer import Transformer
from diffeqformer.ode.field import BlockWeights, TransformerField
from diffeqformer.ode.grid import Steps
from diffeqformer.ode.solve import Step

Measure = Callable[[TransformerField, BlockWeights, Array], PyTree]
"""From a field, the weights of a block and a state (batch, position, width) to arrays."""


def watch_attention(
    model: Transformer,
    ids: Int[Array, "batch position"],
    measure: Measure = lambda field, weights, x: field.attention_weights(weights, x),
    steps: Steps | None = None,
) -> PyTree:
    """What `measure` finds at every attention evaluation of the forward pass on `ids`; to be jitted by the caller.

    **Arguments:** `ids`; `measure`, called once for each evaluation of A in a step (in the order in which the scheme
    makes them) with the state that A is given there; `steps` of depth, those trained if not given (also for a model
    with a tolerance, which is run on the fixed grid).

    **Returns:** the arrays of `measure` on two more leading axes (step, evaluation): with the default, attention
    weights of shape (step, evaluation, batch, heads, query, position). Whole, these are steps x heads x position^2
    numbers: for long texts let `measure` reduce them.
    """
    field: TransformerField = model.field  # pyright: ignore[reportAssignmentType]
    return model.flow(model.embed(ids), steps=model.grid(steps), observer=_Measuring(field, measure)).kept


class _Measuring:
    """The observer that keeps what is measured at the evaluations of A."""

    def __init__(self, field: TransformerField, measure: Measure) -> None:
        self._field, self._measure = field, measure

    def start(self, x: Array) -> None:
        """Nothing is carried."""

    def see(self, carried: None, step: Step) -> tuple[None, PyTree]:
        """Measure each evaluation, and stack what is found."""
        found = [self._measure(self._field, at.weights, at.state) for at in step.attention]
        return None, jax.tree.map(lambda *each: jnp.stack(each), *found)
