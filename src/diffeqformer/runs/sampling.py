"""Continuing a text with a model and its tokenizer."""

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tokenizers import Tokenizer

from diffeqformer.config.bounds import whole
from diffeqformer.data.tokenizer import decode, encode, ends_of_generation
from diffeqformer.errors import BadInput
from diffeqformer.model.generate import generate
from diffeqformer.model.speculate import Speculation, speculate
from diffeqformer.model.transformer import Transformer
from diffeqformer.plain import shown
from diffeqformer.training.recipe import Callback, Now

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
    start: Sequence[int] = (),
    stops: Sequence[int] = (),
) -> list[str]:
    """Generate `count` continuations of `prompt`; each ends before the first drawn token that ends a text or a turn.

    **Arguments:** `new_tokens`, by default 100, or what the context has room for; `start`, tokens before the prompt;
    `stops`, tokens at which text ends besides those known by name (for an imported model, `Run.start` and `Run.stops`);
    the rest as for `generate`.

    **Raises:** `BadInput` for an empty prompt, one that fills the context, or settings out of range.
    """
    sampling = {"steps": steps, "temperature": temperature, "top_k": top_k, "top_p": top_p}
    prompts, new, key = _arguments(model, tokenizer, prompt, new_tokens, count, seed, start)
    drawn = generate(model, prompts, new, key=key, **sampling)
    return _texts(tokenizer, prompt, drawn, stops)


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
    start: Sequence[int] = (),
    stops: Sequence[int] = (),
    **sampling: Any,
) -> tuple[list[str], Speculation]:
    """Continue a text by self-speculative decoding: the draft model runs at `draft_steps`, the target model verifies.

    **Arguments:** `steps`, the depth of the target model; `sampling`: `temperature`, `top_k` and `top_p`; the others as
    for `continue_text` and `speculate`.

    **Raises:** `BadInput` as both, and for a draft model that is not shallower.
    """
    deep, shallow = model.grid(steps).steps, model.grid(draft_steps).steps
    if shallow >= deep:
        raise BadInput(f"the draft has {shallow} steps, but must have fewer than the {deep} steps that check it.")
    prompts, new, key = _arguments(model, tokenizer, prompt, new_tokens, count, seed, start)
    target, draft = model.populate(deep), model.populate(shallow)
    found = speculate(target, draft, prompts, new, key=key, draft_length=draft_length, **sampling)
    return _texts(tokenizer, prompt, found.tokens, stops), found


class Samples(Callback):
    """Continues prompts greedily at each evaluation during training, and logs the texts to `metrics.jsonl`.

    **Arguments:** `prompts`; `tokenizer`; `context` of the model; `start` and `stops` as for `continue_text`.

    **Raises:** `BadInput` for a prompt that is empty or fills the context.
    """

    def __init__(
        self,
        prompts: Sequence[str],
        tokenizer: Tokenizer,
        context: int,
        start: Sequence[int] = (),
        stops: Sequence[int] = (),
    ):
        self.prompts, self.tokenizer, self.start, self.stops = prompts, tokenizer, start, stops
        for prompt in prompts:
            if not 0 < (count := len(encode(tokenizer, prompt))) < context - len(start):
                must = f"but must have between 1 and {context - len(start) - 1}"
                raise BadInput(f"trainer.samples has {shown(prompt)}, of {count} tokens, {must}.")

    def evaluated(self, now: Now, loss: float) -> None:
        for prompt in self.prompts:
            (text,) = continue_text(
                now.state.result, self.tokenizer, prompt, temperature=0.0, start=self.start, stops=self.stops
            )
            now.logged.append({"kind": "sample", "step": now.step, "prompt": prompt, "text": text})


def started(start: Sequence[int], ids: Sequence[int]) -> list[int]:
    """Put the tokens that start every text before a prompt, unless it begins with them, as a written format may."""
    return [*ids] if start and [*ids[: len(start)]] == [*start] else [*start, *ids]


def _arguments(
    model: Transformer,
    tokenizer: Tokenizer,
    prompt: str,
    new_tokens: int | None,
    count: int,
    seed: int,
    start: Sequence[int],
) -> tuple[jax.Array, int, jax.Array]:
    """Return the encoded prompts, the number of new tokens, and a random key."""
    if not isinstance(prompt, str):
        raise BadInput(f"the prompt is {shown(prompt)}, but must be text.")
    ids = encode(tokenizer, prompt)  # encoded as the training text was
    if not ids:
        raise BadInput("the prompt is empty, but must have at least one token.")
    ids = started(start, ids)
    room = model.config.context - len(ids)
    if room < 1:
        raise BadInput(
            f"the prompt has {len(ids)} tokens, which leaves no room in the context, {model.config.context}."
        )
    if not 0 <= whole("seed", seed) < 1 << 32:
        raise BadInput(f"seed is {seed}, but must be at least 0 and below {1 << 32}.")
    prompts = jnp.asarray([ids] * whole("count", count, 1), jnp.int32)
    return prompts, min(NEW_TOKENS, room) if new_tokens is None else new_tokens, jax.random.key(seed)


def _texts(tokenizer: Tokenizer, prompt: str, drawn: jax.Array, stops: Sequence[int]) -> list[str]:
    """Return what follows the prompt, decoded with it, since some tokenizers drop the space that a text begins with."""
    ends, before = {*stops, *ends_of_generation(tokenizer)}, encode(tokenizer, prompt)
    known = decode(tokenizer, before)
    new = [list(takewhile(lambda token: token not in ends, row)) for row in np.asarray(drawn).tolist()]
    texts = [decode(tokenizer, [*before, *row]) for row in new]
    return [
        text[len(known) :] if text.startswith(known) else decode(tokenizer, row)
        for text, row in zip(texts, new, strict=True)
    ]
