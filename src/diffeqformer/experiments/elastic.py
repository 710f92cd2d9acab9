"""One checkpoint for every depth, beside models that were each trained at one depth with the same compute.

Compute is counted in evaluations of the field for the tokens of an update: the elastic model spends the sum of the
depths that its updates were drawn at; a reference of N steps trains for that sum divided by N updates.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from diffeqformer.config import Config, DataConfig, read_yaml, shipped_configs
from diffeqformer.progress import Progress
from diffeqformer.runs import folder as files
from diffeqformer.runs.compare import at_depths_of
from diffeqformer.runs.results import document, write_results
from diffeqformer.runs.trainer import train
from diffeqformer.training.depths import compute_of

EVALUATIONS = 5
"""Of the validation split, on the way of each run."""
CONFIGS = {"elastic": "quickstart-elastic", "dedicated": "quickstart-diffeqformer", "vanilla": "quickstart-gpt"}
"""The shipped config of each kind of run."""


@dataclass(frozen=True)
class Plan:
    """What is trained, and where it is read."""

    depths: tuple[int, ...] = (3, 5, 6, 8, 12)
    """A DiffEqFormer and a vanilla GPT is trained at each."""
    read: tuple[int, ...] = (*range(3, 13), 18, 24)
    """Depths at which the elastic model, and the DiffEqFormer of its middle depth, are evaluated."""
    scale: float = 1.0
    """Of all numbers of updates."""
    data: DataConfig = field(default_factory=DataConfig)


def reproduce(plan: Plan, seed: int, folder: Path, progress: Progress) -> dict[str, Any]:
    """Train everything that is not trained yet, evaluate, and write `results.json` into `folder`.

    **Arguments:** `plan`; `seed`, of weights, batches and drawn depths; `folder`, where each run gets a folder of its
    own. Finished runs are not trained again.

    **Returns:** the document of `training.results`, an entry a run, each with its `role` in the comparison.

    **Raises:** whatever `train` raises.
    """
    entries, corpus = [], {}
    runs = list(_runs(plan, seed, folder))
    for number, (config, role) in enumerate(runs, 1):
        progress.say(f"{number}/{len(runs)} {config.run}")
        result = train(config, progress)
        corpus = result.tokens.statistics
        entry = {**result.entry, "role": role}
        if role["read"]:
            entry["depth"] = at_depths_of(result, plan.read, progress)
        entries.append(entry)
    found = document("One checkpoint, every depth", corpus, entries)
    write_results(folder / files.RESULTS, found)
    return found


def _runs(plan: Plan, seed: int, folder: Path) -> Iterator[tuple[Config, dict[str, Any]]]:
    """The config of each run and what it is for."""
    shipped = {kind: read_yaml(shipped_configs()[name]) for kind, name in CONFIGS.items()}

    def config_of(kind: str, name: str, updates: int) -> Config:
        config = shipped[kind]
        every = max(1, updates // EVALUATIONS)
        trainer = replace(
            config.trainer, updates=updates, evaluate_every=every, evaluate_batches=0, keep_best=0, seed=seed
        )
        return replace(config, run=str(folder / name), trainer=trainer, data=plan.data)

    elastic = config_of("elastic", "elastic", max(1, round(shipped["elastic"].trainer.updates * plan.scale)))
    compute = compute_of(elastic)
    yield elastic, {"kind": "elastic", "compute": compute, "read": True}
    for steps in plan.depths:
        for kind in ("dedicated", "vanilla"):
            config = config_of(kind, f"{kind}-{steps}", max(1, round(compute / steps)))
            config = replace(config, model=replace(config.model, steps=steps))
            read = kind == "dedicated" and steps == elastic.model.steps
            yield config, {"kind": kind, "compute": compute_of(config), "read": read}


def records(found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The documents of `reproduce`, one a seed, as the rows that figure and tables are made of.

    **Returns:** for each model and each depth that it was read at: `kind` (`elastic`, `dedicated`, `vanilla`, and
    `fixed` for a dedicated model away from its own depth), `steps`, `seed`, `loss`, `perplexity`, `updates`, `compute`.
    """
    rows = []
    for one in found:
        for entry in one["models"]:
            kind, own = entry["role"]["kind"], entry["steps"]
            shared = {
                "seed": entry["config"]["trainer"]["seed"],
                "updates": entry["updates"],
                "compute": entry["role"]["compute"],
            }
            for point in entry["depth"] or [{"steps": own, **entry["validation"]}]:
                here = "fixed" if kind == "dedicated" and point["steps"] != own else kind
                values = {name: point[name] for name in ("steps", "loss", "perplexity")}
                rows.append({"kind": here, **values, **shared})
    return rows
