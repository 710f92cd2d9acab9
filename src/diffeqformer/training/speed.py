"""How long one training update takes, side by side in one process."""

import dataclasses
import importlib.util
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from diffeqformer.config import Config, ModelConfig, TimeConfig, TrainerConfig
from diffeqformer.model.count import vanilla_twin
from diffeqformer.progress import Progress
from diffeqformer.training.footprint import update_footprint
from diffeqformer.training.update import initial_state, make_update

STANDARD = Config(
    model=ModelConfig(
        width=256, steps=12, heads=8, context=256, vocabulary=512, time=TimeConfig(d_emb=96, frequencies=32)
    ),
    trainer=TrainerConfig(batch_size=4, updates=1000),
)
"""The size at which the ratios of `docs/performance.md` are stated."""


def compare_updates(config: Config, rounds: int, progress: Progress) -> list[dict[str, Any]]:
    """Time one update of `config`'s model, of its vanilla twin and, if torch is there, of Hugging Face's GPT-2.

    The models take turns, one update each a round, so that a busy moment of the machine falls on all of them alike.

    **Arguments:** `config`, with `model.vocabulary` set; `rounds`, timed after one that compiles and one to warm up.

    **Returns:** a row a model: median seconds, quartiles, the ratio of medians to the vanilla one's and the median of
    the rounds' own ratios, and the compiled temporary memory in bytes (none for torch).
    """
    twin = dataclasses.replace(config, model=vanilla_twin(config.model))
    updates: dict[str, Callable[[], None]] = {"vanilla": _jax_update(twin), "diffeqformer": _jax_update(config)}
    memory: dict[str, int | None] = {
        "vanilla": update_footprint(twin).temporary,
        "diffeqformer": update_footprint(config).temporary,
    }
    if importlib.util.find_spec("torch") and importlib.util.find_spec("transformers"):
        updates["torch"], memory["torch"] = _torch_update(twin), None
    seconds: dict[str, list[float]] = {name: [] for name in updates}
    with progress.stage("Timing updates", (rounds + 2) * len(updates)) as stage:
        for round_number in range(rounds + 2):
            for name, update in updates.items():
                started = time.perf_counter()
                update()
                if round_number >= 2:
                    seconds[name].append(time.perf_counter() - started)
                stage.advance(1, name)
    return [_row(name, times, seconds["vanilla"], memory[name]) for name, times in seconds.items()]


def _row(name: str, times: list[float], reference: list[float], memory: int | None) -> dict[str, Any]:
    quartiles = statistics.quantiles(times, n=4)
    return {
        "model": name,
        "median_seconds": statistics.median(times),
        "quartile_seconds": [quartiles[0], quartiles[2]],
        "ratio_of_medians": statistics.median(times) / statistics.median(reference),
        "median_of_ratios": statistics.median(a / b for a, b in zip(times, reference, strict=True)),
        "temporary_bytes": memory,
    }


def _batch(config: Config) -> np.ndarray:
    shape = (config.trainer.batch_size, config.model.context + 1)
    return np.random.default_rng(0).integers(0, config.model.vocabulary or 0, shape, dtype=np.int32)


def _jax_update(config: Config) -> Callable[[], None]:
    update, ids = make_update(config), _batch(config)
    state = initial_state(config)

    def once() -> None:
        nonlocal state
        state, measured = update(state, ids)
        jax.block_until_ready((state, measured))

    return once


def _torch_update(config: Config) -> Callable[[], None]:
    """The same update by PyTorch: Hugging Face's GPT-2 of the same size, clipped AdamW, float32, all cores."""
    import torch  # pyright: ignore[reportMissingImports]
    from transformers import GPT2Config, GPT2LMHeadModel  # pyright: ignore[reportMissingImports]

    m, o = config.model, config.optimizer
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=m.vocabulary,
            n_positions=m.context,
            n_embd=m.width,
            n_layer=m.steps,
            n_head=m.heads,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            use_cache=False,
        )
    ).train()
    rule = torch.optim.AdamW(model.parameters(), o.learning_rate, (o.b1, o.b2), o.epsilon, o.weight_decay)
    ids = torch.from_numpy(_batch(config)).long()

    def once() -> None:
        logits = model(ids[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), o.clip_norm)
        rule.step()
        rule.zero_grad(set_to_none=True)

    return once
