"""`bench train`: one training update of DiffEqFormer, of the vanilla transformer, of knots, and of PyTorch."""

import dataclasses
import shutil
import statistics
from dataclasses import dataclass
from typing import Any

from diffeqformer.config import Config, ModelConfig, TimeConfig, TrainerConfig, with_values
from diffeqformer.plain import Document
from diffeqformer.progress import Progress
from diffeqformer.report.text import percent
from diffeqformer.studies.bench import benchmark as b
from diffeqformer.studies.study import Result

STANDARD = Config(
    model=ModelConfig(
        width=256, steps=12, heads=8, context=256, vocabulary=512, weights=TimeConfig(d_emb=96, frequencies=32)
    ),
    trainer=TrainerConfig(batch_size=4, updates=1000),
)
"""The size at which the ratios of `docs/performance.md` are stated."""
PASSES = 8
"""Fewest passes of an update over its parameters: AdamW reads and writes them and both moments, and the forward and the
backward pass read them."""


@dataclass(frozen=True)
class Arguments(b.Timed):
    """Time an update of DiffEqFormer, of the vanilla transformer of its size, of knots, and of PyTorch's if installed.

    Example: diffeqformer bench train --rounds 15 --to benchmarks/train.json
    """


def study(arguments: Arguments, progress: Progress) -> Result:
    """Time the update of `STANDARD` and those it is compared with."""
    rows, machine = compare_updates(STANDARD, arguments.rounds, progress), roofline()
    rows = [row | {"least_seconds": least_seconds(row, machine)} for row in rows]
    return BENCHMARK.measured(arguments, sizes=b.sizes(STANDARD), roofline=machine, rows=rows)


def roofline(size: int = 2048, rounds: int = 7) -> Document:
    """Measure this machine's peak rates: operations per second of a float32 matrix product, and bytes per second of
    adding one to 16 `size`^2 numbers, medians."""
    import jax
    import jax.numpy as jnp

    def median(function: b.Once) -> float:
        return statistics.median(b.timed(function)[0] for _ in range(rounds + b.WARM_UP))

    square, many = jnp.ones((size, size)), jnp.ones(16 * size**2)
    product, passed = jax.jit(jnp.matmul), jax.jit(lambda x: x + 1)
    return {
        "operations_per_second": 2 * size**3 / median(lambda: product(square, square)),
        # Each number is read and written.
        "bytes_per_second": 2 * many.nbytes / median(lambda: passed(many)),
    }


def least_seconds(row: Document, machine: Document) -> float:
    """A lower bound on an update's time on this machine: its products, then `PASSES` over its parameters."""
    traffic = PASSES * 4 * row["parameters"]
    return row["operations"] / machine["operations_per_second"] + traffic / machine["bytes_per_second"]


def compare_updates(config: Config, rounds: int, progress: Progress) -> list[Document]:
    """Time one update of `config`'s model, of its vanilla twin, of its twin with knots and, if torch is installed, of
    GPT-2.

    The twin with knots has as many of them as steps, and each step takes their mean over it. GPT-2 is Hugging Face's,
    run eagerly and, if there is a C++ compiler, by `torch.compile`.

    **Returns:** one row per model: the numbers of `summary` (ratios to the vanilla model), the compiled temporary
    memory in bytes (`None` for torch), stored parameters, and operations as counted, without any that are repeated to
    save memory.
    """
    from diffeqformer.model.count import parameters, update_operations, vanilla_twin
    from diffeqformer.runs.footprint import update_footprint

    twin = dataclasses.replace(config, model=vanilla_twin(config.model))
    means = {"kind": "knots", "knots": twin.model.steps, "average": True}
    ours = {"vanilla": twin, "diffeqformer": config, "knots": with_values(twin, {"model.weights": means})}
    updates: dict[str, b.Once] = {}
    memory: dict[str, int | None] = {}
    with progress.stage("Compiling", len(ours)) as stage:
        for name, one in ours.items():
            updates[name], memory[name] = b.repeated(one), update_footprint(one).temporary
            stage.advance(1, name)
    if b.has_torch():
        ways = {"torch": False, "torch, compiled": True} if shutil.which("g++") else {"torch": False}
        updates |= {name: _torch_update(twin, compiled=compiled) for name, compiled in ways.items()}
        memory |= dict.fromkeys(ways)
    seconds = b.take_turns(updates, rounds, progress)
    models = {name: ours.get(name, twin).model for name in updates}
    return [
        {
            "model": name, **b.summary(times, seconds["vanilla"]), "temporary_bytes": memory[name],
            "parameters": parameters(models[name]).stored,
            "operations": update_operations(models[name], config.trainer.batch_size),
        }
        for name, times in seconds.items()
    ]  # fmt: skip


def _torch_update(config: Config, *, compiled: bool) -> b.Once:
    """Make the same update in PyTorch: Hugging Face's GPT-2 of the same size, clipped AdamW, float32, all cores."""
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

    def loss_of() -> Any:
        logits = model(ids[:, :-1]).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())

    loss_of = torch.compile(loss_of) if compiled else loss_of

    def once() -> None:
        loss_of().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), o.clip_norm)
        rule.step()
        rule.zero_grad(set_to_none=True)

    return once


def marks(document: b.Document) -> list[str]:
    """State whether DiffEqFormer, knots and PyTorch meet their targets relative to our vanilla model."""
    ratio = {row["model"]: row["ratio_of_medians"] for row in document["rows"]}
    targets = {
        "diffeqformer": ("DiffEqFormer takes at most 1.15 times the vanilla update's time", lambda one: one <= 1.15),
        "knots": ("knots take at most 1.03 times the vanilla update's time", lambda one: one <= 1.03),
        "torch": ("PyTorch takes at least 1.2 times the vanilla update's time", lambda one: one >= 1.2),
        "torch, compiled": ("compiled, PyTorch takes at least as long as our vanilla update", lambda one: one >= 1),
    }
    return [b.mark(what, ratio[name], met(ratio[name])) for name, (what, met) in targets.items() if name in ratio]


BENCHMARK = b.Benchmark(
    "train",
    "Training update",
    "One update (loss, gradient, clipped AdamW) of DiffEqFormer, of a twin with knots and, where PyTorch is "
    "installed, of Hugging Face's GPT-2, compared with that of the vanilla transformer of the same size. The release "
    "of the paper's authors, in its own stack on a CPU at this size, takes 6.8 to 8.5 times as long as its vanilla "
    "model. The roofline is the least time an update needs: its operations at the speed of one large matrix product, "
    f"then {PASSES} passes over its parameters at the bandwidth of one large sum, both measured in this run.",
    b.times_over("vanilla", b.entry("model")),
    b.timed_table(
        "Training update: {sizes}",
        {"model": b.entry("model")},
        {
            "temporary memory": b.memory_cell("temporary_bytes"),
            "roofline": lambda row: b.seconds(row["least_seconds"]),
            "roofline / median": lambda row: percent(row["least_seconds"] / row["median_seconds"]),
        },
    ),
    marks,
)
