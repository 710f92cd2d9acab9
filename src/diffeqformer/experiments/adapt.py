"""The paper's figure 5 at small scale: pretrain on one text, fine-tune on another, at several depths.

Both systems are pretrained on each of two texts. DiffEqFormer, pretrained at N steps, is written out at each of the
depths and fine-tuned on the other text by LoRA and in full; so is the deeper vanilla GPT, at its only depth. The models
that were pretrained on that other text are what training from scratch reaches. One tokenizer serves all.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path
from typing import Any

from diffeqformer.config import Config, DataConfig, read_yaml, shipped_configs
from diffeqformer.errors import BadInput
from diffeqformer.progress import Progress
from diffeqformer.runs import folder as files
from diffeqformer.runs.finetune import Method, finetune_config
from diffeqformer.runs.opening import load_run
from diffeqformer.runs.results import document, write_results
from diffeqformer.runs.trainer import train

METHODS: tuple[Method, ...] = ("lora", "full")
EVALUATIONS = 5
"""Of the validation split, on the way of each run."""


@dataclass(frozen=True)
class Plan:
    """What is trained."""

    texts: Mapping[str, DataConfig]
    """Two texts by name."""
    steps: int = 6
    """Depth at which DiffEqFormer is pretrained; a multiple of 6."""
    pretraining: int = 1000
    """Updates of pretraining, and of training from scratch."""
    finetuning: int = 250
    """Updates of fine-tuning."""

    @property
    def depths(self) -> tuple[int, ...]:
        """N/2, 2N/3, N and 4N/3, as 9, 12, 18 and 24 in the paper."""
        return self.steps // 2, 2 * self.steps // 3, self.steps, 4 * self.steps // 3


LEARNING_RATES: Mapping[Method, float] = {"lora": 1e-2, "full": 3e-3}
"""The best of three, for both systems alike (`docs/log.md`)."""


def reproduce(plan: Plan, seed: int, folder: Path, progress: Progress) -> dict[str, Any]:
    """Train everything that is not trained yet, and write `results.json` into `folder`.

    **Arguments:** `plan`; `seed`, of weights and batches; `folder`, where each run gets a folder of its own. Finished
    runs are not trained again.

    **Returns:** the document of `training.results`, an entry a run, each with its `role` in the comparison.

    **Raises:** `BadInput` for a plan that cannot be; whatever `train` raises.
    """
    if plan.steps < 6 or plan.steps % 6:
        raise BadInput(f"steps is {plan.steps}, but must be a multiple of 6, so that a half and two thirds exist.")
    entries, corpora = [], {}
    planned = len(plan.texts) * (2 + len(METHODS) * (len(plan.depths) + 1))
    for number, (config, role) in enumerate(_runs(plan, seed, folder, progress), 1):
        progress.say(f"{number}/{planned} {config.run}")
        result = train(config, progress)
        corpora[role["text"]] = result.tokens.statistics
        entries.append({**result.entry, "role": role})
    found = document("Adaptive fine-tuning", corpora, entries)
    write_results(folder / files.RESULTS, found)
    return found


def _runs(plan: Plan, seed: int, folder: Path, progress: Progress) -> Iterator[tuple[Config, dict[str, Any]]]:
    """The config of each run, and what it is for; those of fine-tuning open the pretrained runs, trained by then."""
    pretrained, tokenizer = {}, "train"  # on the training part of the first text, by the first run
    for text in plan.texts:
        for system, config in _systems(plan, seed).items():
            run = folder / text / system
            pretrained[text, system] = run
            data = replace(plan.texts[text], tokenizer=tokenizer)
            tokenizer = str(folder / text / system / files.TOKENIZER) if tokenizer == "train" else tokenizer
            yield replace(config, run=str(run), data=data), {"text": text, "system": system, "source": None}
    for source, text in permutations(plan.texts):
        for system in _systems(plan, seed):
            base = load_run(pretrained[source, system], progress=progress)
            depths = plan.depths if base.config.model.time_dependent else (base.config.model.steps,)
            for method in METHODS:
                for steps in depths:
                    config = finetune_config(
                        base,
                        str(folder / f"{source}-to-{text}" / f"{system}-{method}-{steps}"),
                        steps=steps,
                        method=method,
                        data=plan.texts[text],
                        optimizer=replace(base.config.optimizer, learning_rate=LEARNING_RATES[method]),
                        trainer=_length(base.config, plan.finetuning, seed).trainer,
                    )
                    yield config, {"text": text, "system": system, "source": source}


def _systems(plan: Plan, seed: int) -> dict[str, Config]:
    """DiffEqFormer, and the vanilla GPT of the greatest depth, by the names of their folders."""
    shipped = shipped_configs()
    found = {}
    for system, steps in (("diffeqformer", plan.steps), ("gpt", plan.depths[-1])):
        config = _length(read_yaml(shipped[f"quickstart-{system}"]), plan.pretraining, seed)
        found[system] = replace(config, model=replace(config.model, steps=steps))
    return found


def _length(config: Config, updates: int, seed: int) -> Config:
    every = max(1, updates // EVALUATIONS)
    trainer = replace(config.trainer, updates=updates, evaluate_every=every, evaluate_batches=0, keep_best=0, seed=seed)
    return replace(config, trainer=trainer)


def records(found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The documents of `reproduce`, one a seed, as the rows that figures and tables are made of.

    **Returns:** for each fine-tuned run, and for each model trained from scratch (`method` `scratch`): `direction`,
    `method`, `system`, `steps`, `seed`, `curve` and `final` of the validation loss, the loss `before`, `parameters`.
    """
    rows = []
    for one in found:
        for entry in one["models"]:
            source, text = entry["role"]["source"], entry["role"]["text"]
            for other in [source] if source else [name for name in one["corpus"] if name != text]:
                rows.append({"direction": f"{other} → {text}", **_row(entry)})
    return rows


def _row(entry: Mapping[str, Any]) -> dict[str, Any]:
    base, steps, curve = entry["config"]["base"], entry["steps"], entry["curve"]["validation"]
    start = curve[0][1]
    return {
        "method": base["method"] or "scratch",
        "system": _system(base["system"], steps) if base["run"] else f"{entry['name']} {steps}",
        "steps": steps,
        "seed": entry["config"]["trainer"]["seed"],
        "curve": curve,
        "final": entry["validation"],
        "before": {"loss": start, "perplexity": math.exp(start)} if base["run"] else None,
        "parameters": entry["parameters"],
    }


def _system(base: str, steps: int) -> str:
    """`DiffEqFormer 6 → 4`; without an arrow where the depth is the base's."""
    return base if base.endswith(f" {steps}") else f"{base} → {steps}"
