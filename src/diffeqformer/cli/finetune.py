"""`diffeqformer finetune RUN --steps N --method lora|full|continuous|levels --data FILES`"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from diffeqformer.cli.distributed import Distributed, join, progress_of_main
from diffeqformer.cli.parse import options_of, parse, positional_first
from diffeqformer.cli.train import show
from diffeqformer.config import (
    Config,
    DataConfig,
    DepthConfig,
    DropoutConfig,
    LoRAConfig,
    MeshConfig,
    Method,
    OptimizerConfig,
    TrainerConfig,
    Which,
    read_yaml,
)
from diffeqformer.config.bounds import MOST_STEPS, SIZES, setting
from diffeqformer.errors import BadInput
from diffeqformer.plain import shown
from diffeqformer.store.paths import path_of

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
    depth: DepthConfig = field(default_factory=DepthConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)


@dataclass(frozen=True)
class Arguments:
    """Fine-tune a trained model on other text, at any depth; the same command again continues a run that was stopped.

    With the methods lora and full a continuous model is populated as a table of layers first. Settings that are not
    given are the base run's, but 500 updates, an evaluation after each 50, and for LoRA ten times the learning rate, at
    most 0.01.

    Example: diffeqformer finetune runs/quickstart/diffeqformer --steps 4 --method lora --data notes.txt
    """

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the trained run."""
    steps: Annotated[int | None, tyro.conf.arg(metavar="N")] = setting(None, least=1, most=MOST_STEPS)
    """Number of depth steps; as trained if not given. A table of layers has only its own."""
    method: Method = "lora"
    """Populate and train low-rank adapters (lora) or all weights (full); keep the weights as functions of depth and
    train those (continuous); or give each depth of --depth.always a table of layers of its own, of which depths
    in between divide some steps, and train all of them (levels)."""
    depths: Annotated[tuple[int, ...] | str, tyro.conf.arg(metavar="N")] = ()
    """Numbers of steps to draw each update's depth from, such as 4 6 9, 4-9 or 3,5-15 (methods continuous and levels),
    short for --depth.sample; those of the base run if not given."""
    data: Annotated[tuple[str, ...], tyro.conf.arg(metavar="FILES")] = ()
    """Text files or globs to train on, a part held out for validation unless --data.validation names some; the base
    run's own text if not given."""
    to: Annotated[str, tyro.conf.arg(metavar="RUN")] = ""
    """Folder of the new run; RUN-METHOD-N if not given."""
    checkpoint: Which = "latest"
    """The base run's newest checkpoint, the one of lowest validation loss, or the newest that is not damaged."""
    rank: int | None = setting(None, least=1, most=SIZES)
    """Rank of the adapters, 8 if not given (method lora); with methods continuous and levels, of adapters beside the
    knots or blocks, which alone are then trained."""
    alpha: float | None = setting(None, positive=True)
    """Adapters are scaled by alpha / rank; 16 if not given."""
    dropout: float | None = setting(None, fraction=True)
    """Probability of dropping an adapter's input; 0 if not given."""
    targets: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAMES")] = ()
    """Linear maps with adapters, by name or pattern, such as `output down` or `attention.*`; all if not given."""
    train_embeddings: bool = True
    """Train the embeddings too, as the paper does with LoRA."""
    settings: Annotated[Settings, tyro.conf.arg(name="")] = field(default_factory=Settings)
    distributed: Distributed = field(default_factory=Distributed)


def run(words: Sequence[str], as_json: bool) -> None:
    """Make the config of the fine-tuned run, train it, and write its report."""
    words = positional_first(words, options_of(Arguments))
    # With a default, sections can be chosen; without a run there is no default, and parsing asks for one.
    known = _defaults(words[0]) if words and not words[0].startswith("-") else None
    given = parse(Arguments, words, PROG, default=known)
    join(given.distributed)
    from diffeqformer.config import validate
    from diffeqformer.data.documents import find_files
    from diffeqformer.runs.finetune import RANK, as_begun, finetune_config, usual_settings
    from diffeqformer.runs.opening import load_run
    from diffeqformer.runs.trainer import train

    own = _adapter_settings(given)
    lora = replace(LoRAConfig(RANK), **own) if own or given.method == "lora" else None
    progress = progress_of_main()
    if given.data:
        find_files(given.data, "--data")  # before the base is read, which takes a while
    base = load_run(given.run, given.checkpoint, progress)
    # Options are read a second time, now that the base run's own settings are known as their defaults.
    usual = Settings(
        ModelSettings(base.config.model.dropout),
        _depth(base, given),
        _text(base, given),
        *usual_settings(base.config, lora),
    )
    settings = parse(Arguments, words, PROG, default=replace(given, settings=usual)).settings
    _require_text(base, given, settings.data)
    _require_one_of_two(given, settings)
    folder = Path(given.run)
    folder = folder.resolve() if folder.name in ("", "..") else folder
    config = finetune_config(
        base,
        given.to or f"{folder}-{given.method}-{base.model.grid(given.steps).steps}",
        steps=given.steps,
        method=given.method,
        lora=lora,
        train_embeddings=given.train_embeddings,
        checkpoint=given.checkpoint,
        depth=settings.depth,
        data=settings.data,
        optimizer=settings.optimizer,
        trainer=settings.trainer,
    )
    model = replace(config.model, dropout=settings.model.dropout)
    config = as_begun(validate(replace(config, model=model, mesh=settings.mesh)))
    progress.say(_about(config))
    show(train(config, progress, base), progress, as_json, {"base": base.which})


def _defaults(run: str) -> Arguments:
    """Return the arguments with the sections of the base run's config, whose settings can be given; with the usual ones
    if there is no such run, as reading it will say."""
    try:
        base = read_yaml(path_of(run) / "config.yaml")
    except BadInput:
        return Arguments(run)
    return Arguments(run, settings=Settings(data=base.data, optimizer=base.optimizer))


def _adapter_settings(given: Arguments) -> dict[str, object]:
    """Return the given settings of adapters.

    **Raises:** `BadInput` if there are any, but the method has no adapters.
    """
    found = {"rank": given.rank, "alpha": given.alpha, "dropout": given.dropout, "targets": given.targets or None}
    found = {name: value for name, value in found.items() if value is not None}
    if given.method == "full" and found:
        name, value = next(iter(found.items()))
        raise BadInput(f"--{name} is {value!r}, but --method full has no adapters; the others have.")
    return found


def _depth(base: "Run", given: Arguments) -> DepthConfig:
    """Return the depths of --depths, or those that the method draws from."""
    from diffeqformer.runs.finetune import usual_depth

    usual = usual_depth(base.config, given.method)
    if not given.depths:
        return usual
    # Listed shares belong to the depths that they were listed with.
    weights = usual.weights if isinstance(usual.weights, str) else "equal"
    return replace(usual, sample=given.depths, weights=weights)


def _text(base: "Run", given: Arguments) -> DataConfig:
    """Return the files of --data, or the base run's own text."""
    own = base.config.data
    if not given.data:
        return own
    new = {"validation": (), "dataset": "", "dataset_name": "", "weights": (), "puzzle": None, "stream": 0}
    return replace(own, source="files", train=given.data, **new)


def _require_text(base: "Run", given: Arguments, data: DataConfig) -> None:
    """Check that there is a text, and that its tokenizer is the base's."""
    if data.tokenizer != base.config.data.tokenizer:
        raise BadInput(f"--data.tokenizer is {data.tokenizer!r}, but the tokenizer of a fine-tuned run is its base's.")
    if base.origin == "imported" and not given.data and data == base.config.data:
        raise BadInput(
            f"run folder {given.run!r} holds an imported model, which has no text of its own; name some with --data."
        )


def _require_one_of_two(given: Arguments, settings: Settings) -> None:
    """Check that a short option and the setting that it stands for do not contradict each other."""
    short = (
        ("--depths", given.depths, "--depth.sample", settings.depth.sample),
        ("--data", given.data, "--data.train", settings.data.train),
    )
    for name, own, full, other in short:
        if own and tuple(own) != tuple(other):
            said = own if isinstance(own, str) else " ".join(map(str, own))
            raise BadInput(f"{name} is {said}, but {full} {shown(other)}; give one of them.")


def _about(config: Config) -> str:
    """Say in one line what is going to be trained."""
    from diffeqformer.model.build import abstract
    from diffeqformer.model.count import count
    from diffeqformer.report.text import counted_steps
    from diffeqformer.training.optimizer import split_trained

    m = config.model
    model = abstract(m)
    trained, whole = count(split_trained(model, config.optimizer)[0]), count(model)
    return (
        f"{config.base.system} → {counted_steps(m.steps)} ({m.weights.kind} weights): training {trained:,} of "
        f"{whole:,} parameters ({100 * trained / whole:.3g} %): {', '.join(config.optimizer.train_roles)}, at a "
        f"learning rate of {config.optimizer.learning_rate:g}"
    )
