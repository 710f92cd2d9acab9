"""The work of `bench generate`: greedy text of a populated model beside the vanilla one's and Transformers'."""

import importlib.util
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from diffeqformer.benchmarks.timing import Once, summary, take_turns
from diffeqformer.config import Config, ModelConfig, TimeConfig
from diffeqformer.data.tokenizer import train_tokenizer, vocabulary_size
from diffeqformer.interop.exporting import export
from diffeqformer.model.build import build
from diffeqformer.model.count import vanilla_twin
from diffeqformer.model.generate import generate
from diffeqformer.model.transformer import Transformer
from diffeqformer.progress import Progress
from diffeqformer.runs.opening import Run

STANDARD = ModelConfig(
    width=256, steps=12, heads=8, context=256, vocabulary=512, time=TimeConfig(d_emb=96, frequencies=32)
)
BATCHES, PROMPT, NEW = (1, 8), 16, 200


def compare_generation(
    config: ModelConfig, rounds: int, progress: Progress, *, batches: tuple[int, ...] = BATCHES, new_tokens: int = NEW
) -> list[dict[str, Any]]:
    """Time greedy generation with a key-value cache, by this library and, if torch is there, by Transformers.

    **Arguments:** `config`, of a continuous model, with `vocabulary` set; its vanilla twin runs beside it, both with
    random weights; `rounds`, as for `take_turns`; `batches`, numbers of prompts at a time; `new_tokens`, of each.

    **Returns:** a row a model, library and batch: the numbers of `summary` (ratios to our vanilla model's), and tokens
    a second.
    """
    models = {
        "diffeqformer": build(config, jax.random.key(0)).populate(),
        "vanilla": build(vanilla_twin(config), jax.random.key(0)),
    }
    rows = []
    with ExitStack() as stack:
        theirs = {name: _exported(model, stack, progress) for name, model in models.items()} if _has_torch() else {}
        for batch in batches:
            prompt = np.random.default_rng(0).integers(1, config.vocabulary or 1, (batch, PROMPT), np.int32)
            ways = {(name, "diffeqformer"): _ours(model, prompt, new_tokens) for name, model in models.items()}
            ways |= {(name, "transformers"): made(prompt, new_tokens) for name, made in theirs.items()}
            seconds = take_turns({" by ".join(way): once for way, once in ways.items()}, rounds, progress)
            reference = seconds["vanilla by diffeqformer"]
            for (name, library), times in zip(ways, seconds.values(), strict=True):
                row = summary(times, reference)
                speed = batch * new_tokens / row["median_seconds"]
                rows.append({"model": name, "library": library, "batch": batch, **row, "tokens_per_second": speed})
    return rows


def _has_torch() -> bool:
    return all(importlib.util.find_spec(name) for name in ("torch", "transformers"))


def _ours(model: Transformer, prompt: np.ndarray, new_tokens: int) -> Once:
    ids = jnp.asarray(prompt)

    def once() -> None:
        jax.block_until_ready(generate(model, ids, new_tokens, key=jax.random.key(0), temperature=0.0))

    return once


def _exported(model: Transformer, stack: ExitStack, progress: Progress) -> Callable[[np.ndarray, int], Once]:
    """The model in Transformers, as `export` writes it."""
    import torch  # pyright: ignore[reportMissingImports]
    from transformers import AutoModelForCausalLM  # pyright: ignore[reportMissingImports]

    folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "model"
    tokenizer = train_tokenizer(["text"], 257)
    assert vocabulary_size(tokenizer) <= (model.config.vocabulary or 0)
    export(Run(folder, Config(model=model.config), tokenizer, model, 0), folder, progress=progress)
    theirs: Any = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()

    def made(prompt: np.ndarray, new_tokens: int) -> Once:
        ids = torch.tensor(prompt, dtype=torch.long)
        wanted = {"max_length": None, "min_new_tokens": new_tokens, "max_new_tokens": new_tokens, "do_sample": False}

        def once() -> None:
            with torch.no_grad():
                theirs.generate(ids, attention_mask=torch.ones_like(ids), **wanted)

        return once

    return made
