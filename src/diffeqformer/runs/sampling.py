"""Continuing a text with a model and its tokenizer."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tokenizers import Tokenizer

from diffeqformer.data.tokenizer import end_of_text
from diffeqformer.errors import BadInput
from diffeqformer.model.generate import generate
from diffeqformer.model.speculate import Speculation, speculate
from diffeqformer.model.transformer import Transformer

NEW_TOKENS = 100


def continue_text(
    model: Transformer,
    tokenizer: Tokenizer,
    prompt: str,
    *,
    new_tokens: int | None = None,
    count: int = 1,
    seed: int = 0,
    steps: int | None = None,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> list[str]:
    """`count` continuations of `prompt`, each ending before the end-of-text token if one is drawn.

    **Arguments:** `new_tokens`, 100 or what the context has room for if not given; the rest as for `generate`.

    **Raises:** `BadInput` for an empty prompt, one that fills the context, or settings out of range.
    """
    sampling = {"steps": steps, "temperature": temperature, "top_k": top_k, "top_p": top_p}
    prompts, new, key = _asked(model, tokenizer, prompt, new_tokens, count, seed)
    drawn = generate(model, prompts, new, key=key, **sampling)
    return _texts(tokenizer, drawn)


def continue_text_with_drafts(
    model: Transformer,
    tokenizer: Tokenizer,
    prompt: str,
    *,
    draft_steps: int,
    draft_length: int = 4,
    steps: int | None = None,
    new_tokens: int | None = None,
    count: int = 1,
    seed: int = 0,
    **sampling: Any,
) -> tuple[list[str], Speculation]:
    """The same by self-speculative decoding: drafts at `draft_steps`, and how often they were right.

    **Arguments:** `steps`, depth of the text; `sampling`, `temperature`, `top_k` and `top_p`; the others as for
    `continue_text` and `speculate`.

    **Raises:** `BadInput` as both, and for a draft that is no shallower.
    """
    deep, shallow = model.grid(steps).steps, model.grid(draft_steps).steps
    if shallow >= deep:
        raise BadInput(f"the draft has {shallow} steps, but must have fewer than the {deep} steps that check it.")
    prompts, new, key = _asked(model, tokenizer, prompt, new_tokens, count, seed)
    readings = model.populate(deep), model.populate(shallow)
    found = speculate(*readings, prompts, new, key=key, draft_length=draft_length, **sampling)
    return _texts(tokenizer, found.tokens), found


def _asked(
    model: Transformer, tokenizer: Tokenizer, prompt: str, new_tokens: int | None, count: int, seed: int
) -> tuple[jax.Array, int, jax.Array]:
    """Prompts, the number of new tokens, and a key."""
    ids = tokenizer.encode(prompt, add_special_tokens=False).ids  # as the training text was
    room = model.config.context - len(ids)
    if not ids:
        raise BadInput("the prompt is empty, but must have at least one token.")
    if room < 1:
        raise BadInput(
            f"the prompt has {len(ids)} tokens, which leaves no room in the context, {model.config.context}."
        )
    if not 0 <= seed < 1 << 32:
        raise BadInput(f"seed is {seed}, but must be at least 0 and below {1 << 32}.")
    prompts = jnp.asarray([ids] * count, jnp.int32)
    return prompts, min(NEW_TOKENS, room) if new_tokens is None else new_tokens, jax.random.key(seed)


def _texts(tokenizer: Tokenizer, drawn: jax.Array) -> list[str]:
    stop = end_of_text(tokenizer)
    return [tokenizer.decode(_until(row, stop)) for row in np.asarray(drawn)]


def _until(row: np.ndarray, stop: int) -> list[int]:
    ends = np.flatnonzero(row == stop)
    return row[: ends[0] if len(ends) else len(row)].tolist()
