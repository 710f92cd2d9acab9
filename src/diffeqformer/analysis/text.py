"""How analyses of one text begin: its tokens are checked, and the model is populated for one grid."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import numpy as np
from jax import Array

from diffeqformer.config.bounds import whole
from diffeqformer.errors import BadInput
from diffeqformer.model.transformer import Transformer
from diffeqformer.nn.embedding import known_ids
from diffeqformer.ode.grid import Steps


def require_text(
    model: Transformer, ids: Any, outputs: Sequence[int], tokens: Sequence[str] = ()
) -> tuple[Array, tuple[int, ...]]:
    """Check the tokens of a text and the outputs; return them as an array and a tuple.

    **Raises:** `BadInput` for an empty text, tokens that do not exist, no outputs, an output that is not a position of
    the text, or a number of pieces other than that of tokens.
    """
    if not np.size(ids):
        raise BadInput("the text is empty, but must have at least one token.")
    ids = known_ids(ids, model.embedding.tokens.shape[0], 1)
    positions = ids.size
    if tokens and len(tokens) != positions:
        raise BadInput(f"tokens has {len(tokens)} pieces, but the text has {positions} tokens.")
    outputs = [whole("an output", output) for output in np.atleast_1d(np.asarray(outputs, object))]
    if not outputs:
        raise BadInput(f"outputs is empty, but must name at least one of the text's tokens, 0 to {positions - 1}.")
    for output in outputs:
        if not 0 <= output < positions:
            raise BadInput(
                f"output token {output} does not exist: the text has {positions} tokens, 0 to {positions - 1}."
            )
    return ids, tuple(outputs)


def populated(model: Transformer, steps: Steps | None = None) -> Transformer:
    """Populate the model's weights for the fixed grid on which it is analysed; compiled.

    The result computes in the precision of its parameters: in bfloat16, derivatives have two digits, and the change by
    one token of many is rounded away.
    """
    return _populated(model.exact(), model.grid(steps))


_populated = eqx.filter_jit(Transformer.populate)
