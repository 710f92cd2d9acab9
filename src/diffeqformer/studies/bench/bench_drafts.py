"""`bench drafts`: self-speculative decoding against plain decoding, of one trained checkpoint."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from diffeqformer.config.bounds import whole_numbers
from diffeqformer.errors import BadInput
from diffeqformer.progress import Progress
from diffeqformer.studies.bench import benchmark as b
from diffeqformer.studies.inputs import evaluation_text
from diffeqformer.studies.study import Result

if TYPE_CHECKING:
    from diffeqformer.model.transformer import Transformer

PROMPTS, PROMPT = 8, 16
"""Number of prompts, and tokens in each."""


@dataclass(frozen=True)
class Arguments(b.Timed):
    """Time self-speculative decoding of a trained run, beside plain decoding.

    Example: diffeqformer bench drafts --run runs/quickstart/elastic
    """

    run: str = ""
    """Folder of a trained run; must be given."""
    steps: str = "12"
    """Depth of the text."""
    draft_steps: str = "2,3,4"
    """Depths of the draft models."""
    draft_length: str = "4,8,12"
    """Tokens per draft."""


def study(arguments: Arguments, progress: Progress) -> Result:
    """Time decoding of prompts from the run's own validation text.

    **Raises:** `BadInput` without a run, or for invalid numbers; also as `compare_drafts`.
    """
    if not arguments.run:
        raise BadInput("`bench drafts` needs a trained run: name its folder with --run.")
    steps, *others = whole_numbers(arguments.steps, "--steps")
    if others:
        raise BadInput(f"--steps is {arguments.steps!r}, but `bench drafts` reads one number.")
    depths = whole_numbers(arguments.draft_steps, "--draft-steps")
    lengths = whole_numbers(arguments.draft_length, "--draft-length")
    if (most := max(depths)) >= steps:
        raise BadInput(f"--draft-steps has {most}, but must have fewer than the {steps} steps that check drafts.")
    from diffeqformer.runs.opening import load_run

    run = load_run(arguments.run, progress=progress)
    text = evaluation_text(run, (), progress)[0]
    rows = compare_drafts(run.model, text, steps, depths, lengths, arguments.rounds, progress)
    known = {"sizes": b.sizes_of_model(run.model.config), "run": arguments.run, "steps": steps}
    return BENCHMARK.measured(arguments, **known, rows=rows)


def compare_drafts(
    model: "Transformer",
    text: np.ndarray,
    steps: int,
    draft_steps: Sequence[int],
    draft_lengths: Sequence[int],
    rounds: int,
    progress: Progress,
) -> list[b.Document]:
    """Time greedy decoding at one depth, plainly and with drafts of several depths and lengths, one prompt at a time.

    The weights of all depths are populated beforehand.

    **Arguments:** `model`, trained; `text`, token ids that evenly spaced prompts of 16 are cut from; `steps`, the depth
    of the text; `draft_steps` and `draft_lengths`, combined in every way; `rounds`, as for `take_turns`.

    **Returns:** one row per way, plain first: the numbers of `summary` (ratios to plain), tokens per second, and for
    drafts the share of accepted tokens, new tokens per verification by the target model, and the share of prompts whose
    text is the plain one's (equal up to logits that tie within rounding).

    **Raises:** `BadInput` for a context too short; also as `speculate`.
    """
    import jax
    import jax.numpy as jnp

    from diffeqformer.data.loader import spread_windows
    from diffeqformer.model.generate import generate
    from diffeqformer.model.speculate import speculate

    new = model.config.context - PROMPT - max(draft_lengths)
    if new < PROMPT:
        raise BadInput(f"the model's context is {model.config.context}, too short for prompts, text and drafts.")
    prompts = [jnp.asarray(window[None]) for window in spread_windows(text, PROMPTS, PROMPT)]
    key, readings = jax.random.key(0), {depth: model.populate(depth) for depth in (steps, *draft_steps)}

    def plain() -> list[np.ndarray]:
        return [np.asarray(generate(readings[steps], one, new, key=key, temperature=0.0))[0] for one in prompts]

    def drafted(depth: int, length: int) -> list[Any]:
        of = partial(speculate, readings[steps], readings[depth], draft_length=length, key=key, temperature=0.0)
        return [jax.block_until_ready(of(prompt, new)) for prompt in prompts]

    ways = list(product(draft_steps, draft_lengths))
    expected, found = plain(), {way: drafted(*way) for way in ways}
    once: dict[str, b.Once] = {"plain": plain}
    once |= {"{1} tokens by {0} steps".format(*way): partial(drafted, *way) for way in ways}
    seconds = b.take_turns(once, rounds, progress)
    rows = []
    for way, (name, times) in zip([None, *ways], seconds.items(), strict=True):
        row = {"way": name, **b.summary(times, seconds["plain"])}
        row["tokens_per_second"] = new * len(prompts) / row["median_seconds"]
        if way:
            texts = [np.asarray(one.tokens)[0] for one in found[way]]
            row["acceptance"] = float(np.mean([one.acceptance for one in found[way]]))
            row["tokens_per_reading"] = float(np.mean([one.tokens_per_verification for one in found[way]]))
            row["equal"] = float(np.mean([(one == other).all() for one, other in zip(texts, expected, strict=True)]))
        rows.append(row)
    return rows


BENCHMARK = b.Benchmark(
    "drafts",
    "Generation with drafts",
    "One trained checkpoint that drafts with few steps and verifies with many, compared with plain decoding with many. "
    "Ratios below 1 mean a speedup.",
    b.times_over("plain", b.entry("way")),
    b.timed_table(
        "Greedy text of {run} at {steps} steps, one prompt at a time",
        {"drafts": b.entry("way"), "tokens/s": b.entry("tokens_per_second", 0)},
        {
            "accepted": b.entry("acceptance", 2),
            "tokens per verification": b.entry("tokens_per_reading", 2),
            "texts equal": b.entry("equal", 2),
        },
    ),
)
