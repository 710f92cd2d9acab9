"""`diffeqformer finetune RUN --steps N --method lora|full|continuous --data FILES`"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from diffeqformer.cli.distributed import Distributed, join, shown
from diffeqformer.cli.parse import parse
from diffeqformer.cli.train import show
from diffeqformer.config import (
    Config,
    DataConfig,
    DropoutConfig,
    LoRAConfig,
    MeshConfig,
    OptimizerConfig,
    TrainerConfig,
)
from diffeqformer.errors import BadInput

if TYPE_CHECKING:
    from diffeqformer.runs.opening import Run

PROG = "diffeqformer finetune"


@dataclass(frozen=True)
class ModelSettings:
    """What may differ from the base's model besides depth and adapters."""

    dropout: DropoutConfig = DropoutConfig()


@dataclass(frozen=True)
class Settings:
    """Sections of a config."""

    model: ModelSettings = field(default_factory=ModelSettings)
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)


@dataclass(frozen=True)
class Arguments:
    """Fine-tune a trained model on other text, at any depth; the same command again continues a run that was stopped.

    A continuous model is written out as a table of layers first. Settings that are not given are the base run's, but
    500 updates, and for LoRA ten times the learning rate, at most 0.01.

    Example: diffeqformer finetune runs/quickstart/diffeqformer --steps 4 --method lora --data notes.txt
    """

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the trained run."""
    steps: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Number of depth steps; as trained if not given. A table of layers has but its own."""
    method: Literal["lora", "full", "continuous"] = "lora"
    """Train low-rank adapters, or all weights of the layers; or keep the weights as functions of depth and train
    their networks."""
    data: Annotated[tuple[str, ...], tyro.conf.arg(metavar="FILES")] = ()
    """Text files or globs to train on, a part held out for validation unless --data.validation names some; the base
    run's own text if not given."""
    to: Annotated[str, tyro.conf.arg(metavar="RUN")] = ""
    """Folder of the new run; RUN-METHOD-N if not given."""
    checkpoint: Literal["latest", "best"] = "latest"
    """The base run's newest checkpoint, or the one of lowest validation loss."""
    rank: int | None = None
    """Rank of the adapters (method lora); 8 if not given."""
    alpha: float | None = None
    """Adapters are scaled by alpha / rank; 16 if not given."""
    dropout: float | None = None
    """Probability of dropping an adapter's input; 0 if not given."""
    targets: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAMES")] = ()
    """Linear maps with adapters, by name or pattern, such as `output down` or `attention.*`; all if not given."""
    train_embeddings: bool = True
    """Train the embeddings too, as the paper does with LoRA."""
    settings: Annotated[Settings, tyro.conf.arg(name="")] = field(default_factory=Settings)
    distributed: Distributed = field(default_factory=Distributed)


def run(words: Sequence[str], as_json: bool) -> None:
    """Make the config of the fine-tuned run, train it, and write its report."""
    asked = parse(Arguments, words, PROG)
    join(asked.distributed)
    lora = _lora(asked)
    from diffeqformer.runs.finetune import finetune_config
    from diffeqformer.runs.opening import load_run
    from diffeqformer.runs.trainer import train
    from diffeqformer.validation import validate

    progress = shown()
    base = load_run(asked.run, asked.checkpoint, progress)
    settings = parse(Arguments, words, PROG, default=replace(asked, settings=_usual(base, asked))).settings
    _require_text(base, asked, settings.data)
    folder = asked.to or f"{asked.run.rstrip('/')}-{asked.method}-{base.model.depth(asked.steps)}"
    config = finetune_config(
        base,
        folder,
        steps=asked.steps,
        method=asked.method,
        lora=lora,
        train_embeddings=asked.train_embeddings,
        checkpoint=asked.checkpoint,
        data=settings.data,
        optimizer=settings.optimizer,
        trainer=settings.trainer,
    )
    config = replace(config, model=replace(config.model, dropout=settings.model.dropout), mesh=settings.mesh)
    config = validate(config)
    progress.say(_about(config))
    show(train(config, progress, base), progress, as_json)


def _lora(asked: Arguments) -> LoRAConfig:
    """The adapters that were asked for.

    **Raises:** `BadInput` if some of their settings are given for a method that has none.
    """
    from diffeqformer.runs.finetune import RANK

    given = {"rank": asked.rank, "alpha": asked.alpha, "dropout": asked.dropout, "targets": asked.targets or None}
    given = {name: value for name, value in given.items() if value is not None}
    if asked.method != "lora" and given:
        name, value = next(iter(given.items()))
        raise BadInput(f"--{name} is {value!r}, but --method {asked.method} has no adapters; --method lora has.")
    return replace(LoRAConfig(RANK), **given)


def _usual(base: "Run", asked: Arguments) -> Settings:
    """The base run's settings as fine-tuning usually changes them, with the files of --data if there are any."""
    from diffeqformer.runs.finetune import usual_settings

    text = base.config.data
    if asked.data:
        text = replace(text, source="files", train=asked.data, validation=(), dataset="", dataset_name="")
    return Settings(ModelSettings(base.config.model.dropout), text, *usual_settings(base.config, asked.method))


def _require_text(base: "Run", asked: Arguments, data: DataConfig) -> None:
    """Check that there is a text, and that nobody wants it cut into other tokens than the base's."""
    if data.tokenizer != base.config.data.tokenizer:
        raise BadInput(f"--data.tokenizer is {data.tokenizer!r}, but the tokenizer of a fine-tuned run is its base's.")
    from diffeqformer.runs.folder import IMPORTED

    imported = (base.folder / IMPORTED).is_file()
    if imported and not asked.data and data == base.config.data:
        raise BadInput(
            f"run folder {asked.run!r} holds an imported model, which has no text of its own; name some with --data."
        )


def _about(config: Config) -> str:
    """What is going to be trained, in one line."""
    from diffeqformer.model.build import abstract
    from diffeqformer.model.count import count
    from diffeqformer.training.optimizer import split_trained

    model = abstract(config.model)
    trained, whole = count(split_trained(model, config.optimizer)[0]), count(model)
    what = ", ".join(config.optimizer.train_roles)
    m = config.model
    return (
        f"{config.base.system} → {m.steps} steps ({m.weights} weights): training {trained:,} of {whole:,} parameters "
        f"({100 * trained / whole:.2g} %): {what}"
    )
