"""Fine-tuning: makes the config of a new run from a trained run, a depth and a text (paper section 6.2)."""

from contextlib import suppress
from dataclasses import replace

import equinox as eqx
import jax

from diffeqformer.config import (
    BaseConfig,
    Config,
    DataConfig,
    DepthConfig,
    LoRAConfig,
    Method,
    OptimizerConfig,
    Role,
    TrainerConfig,
    Which,
    read_yaml,
)
from diffeqformer.config.bounds import whole
from diffeqformer.data.cache import TokenCache
from diffeqformer.errors import BadInput, Missing
from diffeqformer.model.adapt import Become, adapt, adapted_config, build_with
from diffeqformer.model.build import Build, own_parts
from diffeqformer.model.transformer import Transformer
from diffeqformer.plain import shown
from diffeqformer.progress import Progress
from diffeqformer.runs.checkpoint import Checkpoints
from diffeqformer.runs.folder import CHECKPOINTS, CONFIG, TOKENIZER, as_moved, metadata_of
from diffeqformer.runs.opening import Run, load_run
from diffeqformer.runs.results import name_of_run
from diffeqformer.sharding import placed
from diffeqformer.store.paths import path_of

ROLES: dict[Method, tuple[Role, ...]] = {
    "lora": ("adapter",),
    "full": ("matrix", "bias", "norm"),
    "continuous": ("time", "matrix", "bias", "norm"),
    "levels": ("matrix", "bias", "norm"),
}
"""Roles that each method trains, besides embeddings; with adapters, only the adapters."""
BECOME: dict[Method, Become] = {"lora": "layer", "full": "layer", "continuous": "same", "levels": "levels"}
RANK = 8
UPDATES, EVALUATE_EVERY = 500, 50
ADAPTER_RATE, HIGHEST_ADAPTER_RATE = 10.0, 1e-2
"""LoRA's learning rate relative to that of training all weights (Schulman & Thinking Machines 2025, "LoRA Without
Regret"), and its upper bound: higher rates harm narrow models."""


def usual_settings(base: Config, lora: LoRAConfig | None) -> tuple[OptimizerConfig, TrainerConfig]:
    """Return the base's settings with `UPDATES`, `EVALUATE_EVERY` and a learning rate that fits what is trained.

    From a base whose weights were trained, the rate with LoRA is `ADAPTER_RATE` times the base's, at most
    `HIGHEST_ADAPTER_RATE`. From a base whose adapters were trained, the rate without LoRA is the base's divided by
    `ADAPTER_RATE`. Otherwise it is the base's.
    """
    rate, adapters = base.optimizer.learning_rate, base.model.lora and "adapter" in base.optimizer.train_roles
    if lora and not adapters:
        rate = min(ADAPTER_RATE * rate, HIGHEST_ADAPTER_RATE)
    elif adapters and not lora:
        rate /= ADAPTER_RATE
    trainer = replace(base.trainer, updates=UPDATES, evaluate_every=EVALUATE_EVERY)
    return replace(base.optimizer, learning_rate=rate), trainer


def usual_depth(base: Config, method: Method) -> DepthConfig:
    """Return how the base drew its depths, if the model still runs at all depths; the default otherwise."""
    return DepthConfig() if BECOME[method] == "layer" else base.depth


def finetune_config(
    base: Run,
    folder: str,
    *,
    steps: int | None = None,
    method: Method = "lora",
    lora: LoRAConfig | None = None,
    train_embeddings: bool = True,
    checkpoint: Which = "latest",
    depth: DepthConfig | None = None,
    data: DataConfig | None = None,
    optimizer: OptimizerConfig | None = None,
    trainer: TrainerConfig | None = None,
) -> Config:
    """Return the config of a run that fine-tunes the model of `base` at any depth; `train` runs it.

    `lora` and `full` populate the model at `steps` steps and train low-rank adapters of the weights, or all weights.
    `continuous` keeps the weights as functions of depth and trains these, or with `lora` adapters of their knots, at
    the depths of `depth`. `levels` does the same, but first gives a table of its own to each depth that every update
    trains at (`depth.always`), or to 1, 2, 4, ... steps if there is none; the others divide some steps of these.

    **Arguments:** `base`, the trained run; `folder` of the new run; `steps`, the new depth, by default the trained one;
    `lora`, by default of rank `RANK` with that method; `train_embeddings`, which the paper does with LoRA too;
    `checkpoint`, which of the base's checkpoints `base` is; `depth`, how depths are drawn, by default `usual_depth`;
    `data`, by default the base's; `optimizer` and `trainer`, by default `usual_settings`. The tokenizer is the base's.

    **Raises:** `BadInput` for an unknown method, if the base cannot run at `steps`, has weights of your own or nothing
    that the method trains, or if `optimizer` asks for other roles than the method's.
    """
    model = base.config.model
    if name := own_parts(base.model).get("weights"):
        raise BadInput(
            f"fine-tuning makes weights of a config, but those of this model are an object of your own, {name}."
        )
    if method not in ROLES:
        raise BadInput(f"method is {shown(method)}, but must be one of {', '.join(ROLES)}.")
    steps = base.model.grid(None if steps is None else whole("steps", steps)).steps
    system = name_of_run(replace(base.config, model=base.model.config))
    if base.config.base.method is None:  # the name of a fine-tuned base already says its depth
        system += f"{',' if ',' in system else ''} {model.steps}"
    embeddings: tuple[Role, ...] = ("embedding",) if train_embeddings else ()
    lora = lora or (LoRAConfig(RANK) if method == "lora" else None)
    usual_optimizer, usual_trainer = usual_settings(base.config, lora)
    trained = ROLES["lora" if lora else method] + embeddings
    asked = (optimizer or usual_optimizer).train_roles
    # The base's roles and the default ones come with other settings: nobody has asked for them.
    if asked not in (trained, base.config.optimizer.train_roles, OptimizerConfig().train_roles):
        raise BadInput(
            f"optimizer.train_roles is {', '.join(asked) or 'empty'}, but what a fine-tuned run trains is decided by "
            f"--method and --train-embeddings: {', '.join(trained)}."
        )
    depth = usual_depth(base.config, method) if depth is None else depth
    adapted = adapted_config(
        model, steps, become=BECOME[method], lora=lora, levels=depth.always, build=build_with(base.model)
    )
    # What cannot be made from this base is refused here, not when training begins.
    eqx.filter_eval_shape(lambda known: adapt(known, adapted, jax.random.key(0)), base.model)
    return Config(
        run=folder,
        base=BaseConfig(str(base.folder), checkpoint, base.step, method, system, base.from_imported),
        model=adapted,
        depth=depth,
        data=replace(data or base.config.data, tokenizer=str(path_of(folder) / TOKENIZER)),
        optimizer=replace(optimizer or usual_optimizer, train_roles=trained),
        trainer=trainer or usual_trainer,
    )


def as_begun(config: Config) -> Config:
    """Return the config with the base's update that the run in its folder began from, if that run has a checkpoint:
    further training of the base does not concern it."""
    config, folder = as_moved(config), path_of(config.run)
    with suppress(BadInput):
        before = read_yaml(folder / CONFIG).base
        same = replace(before, update=config.base.update) == config.base
        if same and Checkpoints(folder / CHECKPOINTS).steps():
            return replace(config, base=before)
    return config


def open_base(base: BaseConfig, progress: Progress, build: Build | None = None) -> Run:
    """Open the run that another run starts from, at exactly the update that the config names.

    **Raises:** `BadInput` if it is gone, or has been trained further; whatever `load_run` raises.
    """
    if not path_of(base.run).is_dir():
        raise Missing(
            f"the base run {base.run!r} does not exist, from which this run starts or learns; put it back there, or "
            "name where it is now: as base.run, or as the run to fine-tune."
        )
    found = load_run(base.run, base.checkpoint, progress, build)
    if base.update not in (None, found.step):
        raise BadInput(
            f"base.update is {base.update}, but the {base.checkpoint} checkpoint of {base.run!r} is at {found.step}: "
            "the base has been trained further; start another run from it with --to."
        )
    return found


def teacher_of(base: Run | None, config: Config) -> Transformer | None:
    """Return the base, frozen and populated, if updates learn from it; to be called within the new run's mesh."""
    if base is None or config.depth.teacher != "base":
        return None
    return placed(placed(base.model).merge().populate())  # both the base and what is computed from it are placed


def teacher_digest(base: Run | None, config: Config) -> str | None:
    """Return the digest of the checkpoint that updates learn from; `None` if they learn from none.

    **Raises:** `BadInput` if the run began to learn from another one.
    """
    if base is None or config.depth.teacher != "base":
        return None
    digest = base.digest
    if metadata_of(path_of(config.run)).get("teacher", digest) != digest:
        raise BadInput(
            f"the base run {config.base.run!r} has changed since the run in {config.run!r} began to learn from it "
            "(depth.teacher is 'base'); put back what it was, or start another run with --to."
        )
    return digest


def require_same_tokenizer(base: Run | None, tokens: TokenCache) -> None:
    """Check that the text was tokenised with the base's tokenizer.

    **Raises:** `BadInput` if it was not.
    """
    if base is not None and tokens.tokenizer.to_str() != base.tokenizer.to_str():
        raise BadInput(
            f"the text is tokenised by another tokenizer than that of the base run {str(base.folder)!r}; "
            f"set data.tokenizer to {str(base.folder / TOKENIZER)!r}."
        )
