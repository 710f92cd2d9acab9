"""What analyses of one text begin with: its tokens, known to exist, and the model written out for one grid."""

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
    """The tokens of a text as an array, and the outputs as a tuple.

    **Raises:** `BadInput` for tokens that do not exist, no outputs, one that is not a position of the text, or another
    number of pieces than of tokens.
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
    """The model with its weights written out for the fixed grid on which it is analysed; compiled.

    It computes in the precision of its parameters: in bfloat16 derivatives have two digits, and what one token of many
    changes is rounded to nothing.
    """
    return _populated(model.exact(), model.grid(steps))


_populated = eqx.filter_jit(Transformer.populate)
