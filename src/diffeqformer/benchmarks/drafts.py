"""The work of `bench drafts`: self-speculative decoding beside plain decoding, of one trained checkpoint."""

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from diffeqformer.benchmarks.timing import Once, summary, take_turns
from diffeqformer.errors import BadInput
from diffeqformer.model.generate import generate
from diffeqformer.model.speculate import speculate
from diffeqformer.model.transformer import Transformer
from diffeqformer.progress import Progress

PROMPTS, PROMPT = 8, 16


def compare_drafts(
    model: Transformer,
    text: np.ndarray,
    steps: int,
    draft_steps: Sequence[int],
    draft_lengths: Sequence[int],
    rounds: int,
    progress: Progress,
) -> list[dict[str, Any]]:
    """Time greedy text at one depth, plainly and with drafts of several depths and lengths, one prompt at a time.

    The weights of all depths are written out before.

    **Arguments:** `model`, trained; `text`, token ids that prompts of 16 are cut from, evenly apart; `steps`, the depth
    of the text; `draft_steps`, `draft_lengths`, of the drafts, each with each; `rounds`, as for `take_turns`.

    **Returns:** a row a way, plain first: the numbers of `summary` (ratios to plain), tokens a second, and of drafts
    the share of accepted tokens, new tokens for a deep reading, and the share of prompts whose text is the plain one's
    (equal up to logits that tie within rounding).

    **Raises:** `BadInput` for a context too short, or as `speculate`.
    """
    new = model.config.context - PROMPT - max(draft_lengths)
    if new < PROMPT:
        raise BadInput(f"the model's context is {model.config.context}, too short for prompts, text and drafts.")
    starts = np.linspace(0, len(text) - PROMPT, PROMPTS).astype(int)
    prompts = [jnp.asarray(text[None, start : start + PROMPT], jnp.int32) for start in starts]
    key, readings = jax.random.key(0), {depth: model.populate(depth) for depth in (steps, *draft_steps)}

    def plain() -> list[np.ndarray]:
        return [np.asarray(generate(readings[steps], one, new, key=key, temperature=0.0))[0] for one in prompts]

    def drafted(depth: int, length: int) -> list[Any]:
        of = partial(speculate, readings[steps], readings[depth], draft_length=length, key=key, temperature=0.0)
        return [jax.block_until_ready(of(prompt, new)) for prompt in prompts]

    ways = list(product(draft_steps, draft_lengths))
    expected, found = plain(), {way: drafted(*way) for way in ways}
    once: dict[str, Once] = {"plain": plain}
    once |= {_name(*way): partial(drafted, *way) for way in ways}
    seconds = take_turns(once, rounds, progress)
    rows = []
    for way, (name, times) in zip([None, *ways], seconds.items(), strict=True):
        row = {"way": name, **summary(times, seconds["plain"])}
        row["tokens_per_second"] = new * len(prompts) / row["median_seconds"]
        if way:
            texts = [np.asarray(one.tokens)[0] for one in found[way]]
            row["acceptance"] = float(np.mean([one.acceptance for one in found[way]]))
            row["tokens_per_reading"] = float(np.mean([new / int(one.rounds[0]) for one in found[way]]))
            row["equal"] = float(np.mean([(one == other).all() for one, other in zip(texts, expected, strict=True)]))
        rows.append(row)
    return rows


def _name(steps: int, length: int) -> str:
    return f"{length} tokens by {steps} steps"
