"""`bench finetune`: an update of a populated model, in full and by LoRA, against the vanilla transformer's."""

import dataclasses
from dataclasses import dataclass

from diffeqformer.config import Config, LoRAConfig
from diffeqformer.progress import Progress
from diffeqformer.studies.bench import benchmark as b
from diffeqformer.studies.bench.bench_train import STANDARD
from diffeqformer.studies.study import Result

VANILLA = "vanilla, full"


@dataclass(frozen=True)
class Arguments(b.Timed):
    """Time an update of a populated model in full and by LoRA, beside the vanilla transformer's.

    Example: diffeqformer bench finetune --to benchmarks/finetune.json
    """


def study(arguments: Arguments, progress: Progress) -> Result:
    """Time every way to fine-tune the model of `bench train`."""
    rows = compare_finetuning(STANDARD, arguments.rounds, progress)
    return BENCHMARK.measured(arguments, sizes=b.sizes(STANDARD), rows=rows)


def compare_finetuning(config: Config, rounds: int, progress: Progress) -> list[b.Document]:
    """Time one update of each way to fine-tune the model of `config`, and one of the vanilla transformer of its size.

    **Returns:** one row per way: the numbers of `summary` (ratios to the vanilla update), and bytes of the optimiser's
    state and of compiled temporaries.
    """
    from diffeqformer.model.adapt import adapted_config
    from diffeqformer.model.count import vanilla_twin
    from diffeqformer.runs.finetune import RANK, ROLES
    from diffeqformer.runs.footprint import update_footprint

    def way(lora: LoRAConfig | None, *roles: str) -> Config:
        model = adapted_config(config.model, config.model.steps, become="layer", lora=lora)
        optimizer = dataclasses.replace(config.optimizer, train_roles=roles)
        return dataclasses.replace(config, model=model, optimizer=optimizer)

    ways = {
        VANILLA: dataclasses.replace(config, model=vanilla_twin(config.model)),
        "populated, full": way(None, *ROLES["full"], "embedding"),
        "populated, LoRA and embeddings": way(LoRAConfig(RANK), *ROLES["lora"], "embedding"),
        "populated, LoRA": way(LoRAConfig(RANK), *ROLES["lora"]),
    }
    seconds = b.take_turns({name: b.repeated(one) for name, one in ways.items()}, rounds, progress)
    rows = []
    for name, one in ways.items():
        memory = update_footprint(one)
        numbers = b.summary(seconds[name], seconds[VANILLA])
        rows.append({"way": name, **numbers, "optimizer_bytes": memory.optimizer, "temporary_bytes": memory.temporary})
    return rows


BENCHMARK = b.Benchmark(
    "finetune",
    "Fine-tuning update",
    "A populated model, fine-tuned in full and by LoRA of rank 8, compared with a full update of the vanilla "
    "transformer.",
    b.times_over(VANILLA, b.entry("way")),
    b.timed_table(
        "Fine-tuning update: {sizes}",
        {"model": b.entry("way")},
        {"optimiser's state": b.memory_cell("optimizer_bytes"), "temporary memory": b.memory_cell("temporary_bytes")},
    ),
)
