"""`bench train`: one training update of DiffEqFormer beside the vanilla transformer's and PyTorch's."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from diffeqformer.config import Config, ModelConfig, TimeConfig, TrainerConfig
from diffeqformer.progress import Progress
from diffeqformer.studies import benchmark as b
from diffeqformer.studies.study import Result

STANDARD = Config(
    model=ModelConfig(
        width=256, steps=12, heads=8, context=256, vocabulary=512, weights=TimeConfig(d_emb=96, frequencies=32)
    ),
    trainer=TrainerConfig(batch_size=4, updates=1000),
)
"""The size at which the ratios of `docs/performance.md` are stated."""


@dataclass(frozen=True)
class Arguments(b.Timed):
    """Time an update of DiffEqFormer, of the vanilla transformer of its size, and of PyTorch's if installed.

    Example: diffeqformer bench train --rounds 15 --to benchmarks/train.json
    """


def study(arguments: Arguments, progress: Progress) -> Result:
    """Time the update of `STANDARD` and of those it is compared with."""
    rows = compare_updates(STANDARD, arguments.rounds, progress)
    return BENCHMARK.measured(arguments, sizes=b.sizes(STANDARD), rounds=arguments.rounds, rows=rows)


def compare_updates(config: Config, rounds: int, progress: Progress) -> list[b.Document]:
    """Time one update of `config`'s model, of its vanilla twin and, if torch is there, of Hugging Face's GPT-2.

    **Returns:** one row per model: the numbers of `summary` (ratios to the vanilla one's), and the compiled temporary
    memory in bytes (`None` for torch).
    """
    from diffeqformer.model.count import vanilla_twin
    from diffeqformer.runs.footprint import update_footprint

    twin = dataclasses.replace(config, model=vanilla_twin(config.model))
    both = {"vanilla": twin, "diffeqformer": config}
    updates: dict[str, b.Once] = {name: b.repeated(one) for name, one in both.items()}
    memory: dict[str, int | None] = {name: update_footprint(one).temporary for name, one in both.items()}
    if b.has_torch():
        updates["torch"], memory["torch"] = _torch_update(twin), None
    seconds = b.take_turns(updates, rounds, progress)
    return [
        {"model": name, **b.summary(times, seconds["vanilla"]), "temporary_bytes": memory[name]}
        for name, times in seconds.items()
    ]


def _torch_update(config: Config) -> b.Once:
    """The same update by PyTorch: Hugging Face's GPT-2 of the same size, clipped AdamW, float32, all cores."""
    import torch  # pyright: ignore[reportMissingImports]
    from transformers import GPT2Config, GPT2LMHeadModel  # pyright: ignore[reportMissingImports]

    m, o = config.model, config.optimizer
    assert m.vocabulary is not None
    sizes = {"vocab_size": m.vocabulary, "n_positions": m.context, "n_embd": m.width, "n_layer": m.steps}
    undropped = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    settings: dict[str, Any] = sizes | undropped | {"n_head": m.heads, "use_cache": False}
    model = GPT2LMHeadModel(GPT2Config(**settings)).train()
    rule = torch.optim.AdamW(model.parameters(), o.learning_rate, (o.b1, o.b2), o.epsilon, o.weight_decay)
    ids = torch.from_numpy(b.random_batch(config)).long()

    def once() -> None:
        logits = model(ids[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), o.clip_norm)
        rule.step()
        rule.zero_grad(set_to_none=True)

    return once


def marks(document: b.Document) -> list[str]:
    """How far DiffEqFormer and PyTorch are from our vanilla model."""
    ratio = {row["model"]: row["ratio_of_medians"] for row in document["rows"]}
    said = []
    if mine := ratio.get("diffeqformer"):
        said.append(b.mark("DiffEqFormer takes at most 1.25 times the vanilla update's time", mine, mine <= 1.25))
    if torch := ratio.get("torch"):
        said.append(b.mark("PyTorch takes at least as long as our vanilla update", torch, torch >= 1))
    return said


BENCHMARK = b.Benchmark(
    "train",
    "Training update",
    "One update (loss, gradient, clipped AdamW) of DiffEqFormer and, where PyTorch is installed, of Hugging Face's "
    "GPT-2, against that of the vanilla transformer of the same size. The release of the paper's authors, measured "
    "in its own stack on a CPU at this size, takes 6.8 to 8.5 times its vanilla model's time.",
    b.times_over("vanilla", b.entry("model")),
    b.timed_table(
        "Training update: {sizes}",
        {"model": b.entry("model")},
        {"temporary memory": b.memory_cell("temporary_bytes")},
    ),
    marks,
)
