"""The work of `bench finetune`: an update of a populated model, in full and by LoRA, beside the vanilla one's."""

import dataclasses
from typing import Any

from diffeqformer.benchmarks.timing import repeated, summary, take_turns
from diffeqformer.config import Config, LoRAConfig
from diffeqformer.model.adapt import adapted_config
from diffeqformer.model.count import vanilla_twin
from diffeqformer.progress import Progress
from diffeqformer.runs.finetune import RANK, ROLES
from diffeqformer.runs.footprint import update_footprint


def compare_finetuning(config: Config, rounds: int, progress: Progress) -> list[dict[str, Any]]:
    """Time one update of each way to fine-tune the model of `config`, and one of the vanilla transformer of its size.

    **Arguments:** `config`, of a continuous model, with `model.vocabulary` set; `rounds`, as for `take_turns`.

    **Returns:** a row a way: the numbers of `summary` (ratios to the vanilla one's), and bytes of the optimiser's state
    and of compiled temporaries.
    """

    def way(lora: LoRAConfig, *roles: str) -> Config:
        model = adapted_config(config.model, config.model.steps, layers=True, lora=lora)
        return dataclasses.replace(
            config, model=model, optimizer=dataclasses.replace(config.optimizer, train_roles=roles)
        )

    ways = {
        "vanilla, full": dataclasses.replace(config, model=vanilla_twin(config.model)),
        "populated, full": way(LoRAConfig(), *ROLES["full"], "embedding"),
        "populated, LoRA and embeddings": way(LoRAConfig(RANK), *ROLES["lora"], "embedding"),
        "populated, LoRA": way(LoRAConfig(RANK), *ROLES["lora"]),
    }
    seconds = take_turns({name: repeated(one) for name, one in ways.items()}, rounds, progress)
    footprints = {name: update_footprint(one) for name, one in ways.items()}
    return [
        {
            "way": name,
            **summary(times, seconds["vanilla, full"]),
            "optimizer_bytes": footprints[name].optimizer,
            "temporary_bytes": footprints[name].temporary,
        }
        for name, times in seconds.items()
    ]
