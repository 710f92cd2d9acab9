"""`bench generate`: greedy decoding of a populated model, against the vanilla one and Transformers."""

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from diffeqformer.config import Config, ModelConfig
from diffeqformer.progress import Progress
from diffeqformer.studies.bench import benchmark as b
from diffeqformer.studies.bench.bench_train import STANDARD
from diffeqformer.studies.study import Result

if TYPE_CHECKING:
    from diffeqformer.model.transformer import Transformer

BATCHES, PROMPT, NEW = (1, 8), 16, 200
"""Prompts at a time, tokens per prompt, and new tokens."""


@dataclass(frozen=True)
class Arguments(b.Timed):
    """Time greedy text of a populated model, of the vanilla one, and of both in Transformers if installed.

    Example: diffeqformer bench generate --to benchmarks/generate.json
    """


def study(arguments: Arguments, progress: Progress) -> Result:
    """Time greedy decoding of the model of `bench train`."""
    rows = compare_generation(STANDARD.model, arguments.rounds, progress)
    return BENCHMARK.measured(arguments, sizes=b.sizes_of_model(STANDARD.model), new_tokens=NEW, rows=rows)


def compare_generation(
    config: ModelConfig, rounds: int, progress: Progress, *, batches: tuple[int, ...] = BATCHES, new_tokens: int = NEW
) -> list[b.Document]:
    """Time greedy generation with a key-value cache, by this library and, if torch is installed, by Transformers.

    **Arguments:** `config`, of a continuous model, which is compared with its vanilla twin, both with random weights;
    `batches`, numbers of prompts at a time; `new_tokens` per prompt.

    **Returns:** one row per model, library and batch: the numbers of `summary` (ratios to our vanilla model), and
    tokens per second.
    """
    import jax
    import jax.numpy as jnp

    from diffeqformer.model.build import build
    from diffeqformer.model.count import vanilla_twin
    from diffeqformer.model.generate import generate

    ours = partial(generate, new_tokens=new_tokens, key=jax.random.key(0), temperature=0.0)
    models = {
        "diffeqformer": build(config, jax.random.key(0)).populate(),
        "vanilla": build(vanilla_twin(config), jax.random.key(0)),
    }
    rows = []
    with ExitStack() as stack:
        theirs = {name: _exported(model, stack, progress) for name, model in models.items()} if b.has_torch() else {}
        for batch in batches:
            prompt = np.random.default_rng(0).integers(1, config.vocabulary or 1, (batch, PROMPT), np.int32)
            ways: dict[tuple[str, str], b.Once] = {
                (name, "diffeqformer"): partial(ours, model, jnp.asarray(prompt)) for name, model in models.items()
            }
            ways |= {(name, "transformers"): made(prompt, new_tokens) for name, made in theirs.items()}
            seconds = b.take_turns({" by ".join(way): once for way, once in ways.items()}, rounds, progress)
            reference = seconds["vanilla by diffeqformer"]
            for (name, library), times in zip(ways, seconds.values(), strict=True):
                row = b.summary(times, reference)
                speed = batch * new_tokens / row["median_seconds"]
                rows.append({"model": name, "library": library, "batch": batch, **row, "tokens_per_second": speed})
    return rows


def _exported(model: "Transformer", stack: ExitStack, progress: Progress) -> "Callable[[np.ndarray, int], b.Once]":
    """Load the model in Transformers, as exported by `export`."""
    import torch  # pyright: ignore[reportMissingImports]
    from transformers import AutoModelForCausalLM  # pyright: ignore[reportMissingImports]

    from diffeqformer.data.tokenizer import train_tokenizer, vocabulary_size
    from diffeqformer.interop.exporting import export
    from diffeqformer.runs.opening import Run

    folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "model"
    # `export` needs a tokenizer: 256 bytes and the end of text are the fewest entries.
    tokenizer = train_tokenizer(["text"], 257)
    assert vocabulary_size(tokenizer) <= (model.config.vocabulary or 0)
    export(Run(folder, Config(model=model.config), tokenizer, model, 0), folder, progress=progress)
    theirs: Any = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()

    def made(prompt: np.ndarray, new_tokens: int) -> b.Once:
        ids = torch.tensor(prompt, dtype=torch.long)
        wanted = {"max_length": None, "min_new_tokens": new_tokens, "max_new_tokens": new_tokens, "do_sample": False}

        def once() -> None:
            with torch.no_grad():
                theirs.generate(ids, attention_mask=torch.ones_like(ids), **wanted)

        return once

    return made


def marks(document: b.Document) -> list[str]:
    """State whether our tokens per second reach those of Transformers."""
    speed = {(row["model"], row["batch"], row["library"]): row["tokens_per_second"] for row in document["rows"]}
    said = []
    for (model, batch, library), theirs in speed.items():
        ours = speed.get((model, batch, "diffeqformer"))
        if library == "transformers" and ours:
            what = f"{model}, batch {batch}, is as fast as in Transformers (tokens/s over theirs)"
            said.append(b.mark(what, ours / theirs, ours >= theirs))
    return said


BENCHMARK = b.Benchmark(
    "generate",
    "Generation",
    "A populated DiffEqFormer and a vanilla transformer with a key-value cache, in this library and, where "
    "it is installed, exported to Transformers. Ratios are times divided by our vanilla model's.",
    b.times_over("vanilla by diffeqformer, batch 1", "{0[model]} by {0[library]}, batch {0[batch]}".format),
    b.timed_table(
        "Greedy text: {sizes}, {new_tokens} new tokens",
        {"model": b.entry("model"), "by": b.entry("library"), "batch": b.entry("batch")}
        | {"tokens/s": b.entry("tokens_per_second", 0)},
    ),
    marks,
)
