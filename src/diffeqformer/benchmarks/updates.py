"""The work of `bench train`: one training update of DiffEqFormer beside the vanilla transformer's and PyTorch's."""

import dataclasses
import importlib.util
from typing import Any

from diffeqformer.benchmarks.timing import Once, random_batch, repeated, summary, take_turns
from diffeqformer.config import Config, ModelConfig, TimeConfig, TrainerConfig
from diffeqformer.model.count import vanilla_twin
from diffeqformer.progress import Progress
from diffeqformer.runs.footprint import update_footprint

STANDARD = Config(
    model=ModelConfig(
        width=256, steps=12, heads=8, context=256, vocabulary=512, time=TimeConfig(d_emb=96, frequencies=32)
    ),
    trainer=TrainerConfig(batch_size=4, updates=1000),
)
"""The size at which the ratios of `docs/performance.md` are stated."""


def compare_updates(config: Config, rounds: int, progress: Progress) -> list[dict[str, Any]]:
    """Time one update of `config`'s model, of its vanilla twin and, if torch is there, of Hugging Face's GPT-2.

    **Arguments:** `config`, with `model.vocabulary` set; `rounds`, as for `take_turns`.

    **Returns:** a row a model: median seconds, quartiles, the ratio of medians to the vanilla one's and the median of
    the rounds' own ratios, and the compiled temporary memory in bytes (none for torch).
    """
    twin = dataclasses.replace(config, model=vanilla_twin(config.model))
    updates: dict[str, Once] = {"vanilla": repeated(twin), "diffeqformer": repeated(config)}
    memory: dict[str, int | None] = {
        "vanilla": update_footprint(twin).temporary,
        "diffeqformer": update_footprint(config).temporary,
    }
    if importlib.util.find_spec("torch") and importlib.util.find_spec("transformers"):
        updates["torch"], memory["torch"] = _torch_update(twin), None
    seconds = take_turns(updates, rounds, progress)
    return [
        {"model": name, **summary(times, seconds["vanilla"]), "temporary_bytes": memory[name]}
        for name, times in seconds.items()
    ]


def _torch_update(config: Config) -> Once:
    """The same update by PyTorch: Hugging Face's GPT-2 of the same size, clipped AdamW, float32, all cores."""
    import torch  # pyright: ignore[reportMissingImports]
    from transformers import GPT2Config, GPT2LMHeadModel  # pyright: ignore[reportMissingImports]

    m, o = config.model, config.optimizer
    assert m.vocabulary is not None
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
    ids = torch.from_numpy(random_batch(config)).long()

    def once() -> None:
        logits = model(ids[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), o.clip_norm)
        rule.step()
        rule.zero_grad(set_to_none=True)

    return once
