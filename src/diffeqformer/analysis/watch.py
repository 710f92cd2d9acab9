"""Measurements of attention at every evaluation of a forward pass, from the states and weights there.

The forward pass is the model's own: its scheme's steps over its field's halves. Only what is returned differs.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Int, PyTree

from diffeqformer.errors import BadInput
from diffeqformer.model.transformer import Transformer
from diffeqformer.nn.attention import AttentionWeights
from diffeqformer.ode.field import BlockWeights, Field, TransformerField
from diffeqformer.ode.grid import Steps
from diffeqformer.ode.solve import Step

Measure = Callable[[TransformerField, BlockWeights, Array], PyTree]
"""A function from a field, the weights of a block and a state (batch, position, width) to arrays."""


def require_heads(field: Field, *methods: str) -> None:
    """Check that a block has heads as those of `TransformerField`, and the methods that look at them.

    **Raises:** `BadInput` for a field of the user's own without them.
    """
    if not (isinstance(field.shapes().attention, AttentionWeights) and all(hasattr(field, name) for name in methods)):
        raise BadInput(
            f"the field is {type(field).__name__}, but must have heads, which this analysis looks at: the attention "
            "weights and the methods of TransformerField."
        )


def watch_attention(
    model: Transformer,
    ids: Int[Array, "batch position"],
    measure: Measure = lambda field, weights, x: field.attention_weights(weights, x),
    steps: Steps | None = None,
) -> PyTree:
    """Apply `measure` at every attention evaluation of the forward pass on `ids`; to be jitted by the caller.

    **Arguments:** `ids`; `measure`, called once for each evaluation of A in a step (in the order in which the scheme
    makes them) with the state that A is given there; `steps` of depth, those of training if not given (also for a model
    with a tolerance, which is run on the fixed grid).

    **Returns:** the arrays of `measure` with two more leading axes (step, evaluation): with the default, attention
    weights of shape (step, evaluation, batch, heads, query, position). Unreduced, these are steps x heads x position^2
    numbers; for long texts, let `measure` reduce them.
    """
    field: TransformerField = model.field  # pyright: ignore[reportAssignmentType]
    return model.flow(model.embed(ids), steps=model.grid(steps), observer=_Measuring(field, measure)).kept


class _Measuring:
    """Observer that keeps what is measured at the evaluations of A."""

    def __init__(self, field: TransformerField, measure: Measure) -> None:
        self._field, self._measure = field, measure

    def start(self, x: Array) -> None:
        """Nothing is carried."""

    def see(self, carried: None, step: Step) -> tuple[None, PyTree]:
        """Measure at each evaluation, and stack the results."""
        found = [self._measure(self._field, at.weights, at.state) for at in step.attention]
        return None, jax.tree.map(lambda *each: jnp.stack(each), *found)
