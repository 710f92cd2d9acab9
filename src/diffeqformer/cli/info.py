"""`diffeqformer info CONFIG|RUN`"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffeqformer.cli.output import human, print_json, print_table
from diffeqformer.cli.parse import ConfigArguments, arguments_from
from diffeqformer.config import Config
from diffeqformer.devices import DEVICES, USABLE
from diffeqformer.errors import BadInput
from diffeqformer.progress import Terminal
from diffeqformer.validation import validate

D_EMB_TABLE = (20, 48, 72, 96, 120, 144)


@dataclass(frozen=True)
class InfoArguments(ConfigArguments):
    """A config, its settings, and what it would be trained on; --mesh.data, .fsdp and .tensor say on how many."""

    card: str = ""
    """Say whether the update fits each device of this kind, such as h100 or a100-40gb."""


def run(words: Sequence[str], as_json: bool) -> None:
    """Print what a model costs, beside the vanilla transformer of its size, and what d_emb would change."""
    words = list(words)
    if words and (Path(words[0]) / "config.yaml").is_file():
        words[0] = str(Path(words[0]) / "config.yaml")
    asked = arguments_from(words, "info", InfoArguments)
    if asked.card and asked.card not in DEVICES:
        raise BadInput(f"--card is {asked.card!r}, but must be one of {', '.join(DEVICES)}.")
    config = _with_vocabulary(validate(asked.settings))
    from diffeqformer.model.count import vanilla_twin

    progress = Terminal()
    cases, twin = {"this model": config}, vanilla_twin(config.model)
    if twin != config.model:
        cases["vanilla twin"] = dataclasses.replace(config, model=twin)
    with progress.stage("Compiling the training update", len(cases)) as stage:
        columns: dict[str, dict[str, Any]] = {}
        for name, one in cases.items():
            columns[name] = _measure(one)
            stage.advance(1, name)
    choices = _d_emb_choices(config) if config.model.time_dependent else []
    fits = {name: _fits(cell, asked.card) for name, cell in columns.items()} if asked.card else None
    if as_json:
        return print_json({"models": columns, "d_emb": choices, **({"fits": fits} if fits else {})})
    _print(config, columns)
    if fits:
        usable = human(USABLE * DEVICES[asked.card].memory, "B")
        verdict = ", ".join(f"{name} {'fits' if fit else 'does not fit'}" for name, fit in fits.items())
        print(f"{asked.card}: {usable} of its memory can be used; {verdict}.")
    if choices:
        _print_d_emb(config, choices)


def _with_vocabulary(config: Config) -> Config:
    if config.model.vocabulary is not None:
        return config
    if config.data.tokenizer == "train":
        size = config.data.tokenizer_vocabulary
    else:
        from diffeqformer.data.tokenizer import load_tokenizer, vocabulary_size

        size = vocabulary_size(load_tokenizer(config.data.tokenizer))
    return dataclasses.replace(config, model=dataclasses.replace(config.model, vocabulary=size))


def _measure(config: Config) -> dict[str, Any]:
    from diffeqformer.model.count import flops, parameters
    from diffeqformer.ode.schemes import scheme_of
    from diffeqformer.runs.footprint import update_footprint

    tokens = config.trainer.batch_size * config.model.context
    operations, memory = flops(config.model), update_footprint(config)
    return {
        "parameters": parameters(config.model)._asdict(),
        "evaluations": scheme_of(config.model).evaluations.times(config.model.steps)._asdict(),
        "flops": operations._asdict() | {"generating_weights_per_token": operations.generating_weights / tokens},
        "memory_bytes": memory._asdict() | {"rest": memory.rest, "total": memory.total},
    }


def _fits(cell: dict[str, Any], card: str) -> bool:
    """Whether what a model needs of a device is there."""
    return cell["memory_bytes"]["total"] <= USABLE * DEVICES[card].memory


def _d_emb_choices(config: Config) -> list[dict[str, Any]]:
    from diffeqformer.model.count import flops, parameters

    tokens = config.trainer.batch_size * config.model.context
    choices = []
    for d_emb in sorted({*D_EMB_TABLE, config.model.time.d_emb}):
        model = dataclasses.replace(config.model, time=dataclasses.replace(config.model.time, d_emb=d_emb))
        operations = flops(model)
        share = operations.generating_weights / (tokens * operations.training_per_token)
        choices.append({"d_emb": d_emb, "stored": parameters(model).stored, "generation_share": share})
    return choices


def _print(config: Config, columns: dict[str, dict[str, Any]]) -> None:
    from diffeqformer.report.text import evaluations

    cells = list(columns.values())
    row = lambda name, unit, group, key: [name, *(human(cell[group][key], unit) for cell in cells)]
    m = config.model
    print_table(
        f"{m.family}, {m.weights} weights, {m.scheme}: {m.steps} steps, width {m.width}, {m.heads} heads, "
        f"context {m.context}, vocabulary {m.vocabulary}, batch {config.trainer.batch_size} "
        f"in {config.trainer.accumulation} part(s), {m.compute_dtype}",
        ["", *columns],
        [
            row("parameters, stored", "", "parameters", "stored"),
            row("parameters, populated", "", "parameters", "effective"),
            ["evaluations of the field, a forward pass", *(evaluations(cell["evaluations"]) for cell in cells)],
            row("inference, a token", "FLOP", "flops", "inference_per_token"),
            row("training, a token", "FLOP", "flops", "training_per_token"),
            row("  and generating weights, a token", "FLOP", "flops", "generating_weights_per_token"),
            row("memory: weights", "B", "memory_bytes", "weights"),
            row("  optimiser", "B", "memory_bytes", "optimizer"),
            row("  gradients", "B", "memory_bytes", "gradients"),
            row("  generated weights", "B", "memory_bytes", "generated"),
            row("  activations, workspace", "B", "memory_bytes", "rest"),
            row("  all of it", "B", "memory_bytes", "total"),
        ],
    )
    print(_about_memory(config))
    if m.adaptive:
        print(f"Evaluations and operations are those of {m.steps} fixed steps; the tolerance will choose its own.")


def _about_memory(config: Config) -> str:
    """Of which device the memory is, and where its numbers come from."""
    import jax

    mesh = dataclasses.asdict(config.mesh)
    devices = math.prod(mesh.values())
    here = devices <= len(jax.devices())
    kind = jax.devices()[0].platform.upper() if here else "CPU"
    words = ", ".join(f"{axis} {size}" for axis, size in mesh.items())
    each = f" of each of {devices} devices ({words})" if devices > 1 else ""
    return f"Memory{each} as the compiled update plans it for {kind}s, at its peak."


def _print_d_emb(config: Config, choices: list[dict[str, Any]]) -> None:
    from diffeqformer.model.count import smallest_useful_d_emb

    print()
    print_table(
        "d_emb",
        ["d_emb", "parameters, stored", "share of operations for weights"],
        [[str(c["d_emb"]), human(c["stored"]), f"{100 * c['generation_share']:.2g} %"] for c in choices],
    )
    least = smallest_useful_d_emb(config.model)
    print(
        f"A weight is P h(t) + C with d_emb columns in P, so from d_emb = {least} on the matrices of this "
        "grid's times can take any values; below that they are tied to each other. At GPT-large size the authors' runs "
        "passed GPT at 144 (perplexity 19.7, 18.7, 18.3 at 48, 96, 144; GPT 18.5; see the paper's appendix D.1). "
        "Stored parameters and optimiser state grow with d_emb; activations and the populated model do not."
    )
