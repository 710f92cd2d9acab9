"""A run folder: whose it is, and the files that say so.

config.yaml      the resolved config; what makes a folder a run
data.json        digest and statistics of the tokens
tokenizer.json   the tokenizer, whole
imported.json    where an imported model came from; such a run has no text of its own, and no data.json
checkpoints/     metrics.jsonl     results.json
"""

import dataclasses
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from diffeqformer.config import Config, DataConfig, dump_yaml, read_yaml, to_dict
from diffeqformer.data.cache import TokenCache
from diffeqformer.data.tokenizer import vocabulary_size
from diffeqformer.errors import BadInput, Damaged
from diffeqformer.storage import file_digest, read_sealed, write_sealed, write_whole
from diffeqformer.training.checkpoint import Checkpoints
from diffeqformer.training.lock import RunLock

CONFIG, DATA, TOKENIZER, IMPORTED = "config.yaml", "data.json", "tokenizer.json", "imported.json"
CHECKPOINTS, METRICS, RESULTS = "checkpoints", "metrics.jsonl", "results.json"

MAY_CHANGE = frozenset(
    ["run", "data.cache", "mesh.data", "mesh.fsdp", "mesh.tensor"]
    + [f"trainer.{name}" for name in ("log_every", "evaluate_every", "evaluate_batches", "keep_last", "keep_best")]
    + [
        f"trainer.{name}"
        for name in ("checkpoint_every", "checkpoint_minutes", "trackers", "tracker_project", "profile")
    ]
)
"""Settings that a run may be continued with other values of, because no update's numbers depend on them."""


def run_folder(config: Config) -> Path:
    """Where the run lies."""
    return Path(config.run).expanduser()


def open_config(folder: Path) -> Config:
    """The config of a run, once it and the tokenizer are found to be those that its checkpoints were written with.

    **Raises:** `BadInput` if there is no run; `Damaged` naming the file that is not what it was.
    """
    if not folder.is_dir():
        raise BadInput(f"run folder {str(folder)!r} does not exist; `diffeqformer train` makes one.")
    if not (folder / CONFIG).is_file():
        raise BadInput(f"folder {str(folder)!r} is not a run: it has no {CONFIG}.")
    try:
        config = read_yaml(folder / CONFIG)
    except BadInput as error:
        raise Damaged(f"file {str(folder / CONFIG)!r} is damaged, or was edited: {error}") from None
    step, remembered = _remembered(folder)
    found, written = _counting(config), remembered.get("config", {})
    for name in found.keys() & written.keys():
        if found[name] != written[name]:
            raise Damaged(
                f"file {str(folder / CONFIG)!r} is damaged, or was edited: {name} is {found[name]!r}, but the "
                f"checkpoint at update {step} was written with {written[name]!r}; put that back."
            )
    _require_tokenizer(folder, config, remembered)
    if config.data.tokenizer == str(run_folder(config) / TOKENIZER):  # the run may have been moved since
        config = dataclasses.replace(config, data=dataclasses.replace(config.data, tokenizer=str(folder / TOKENIZER)))
    return config


def remember(config: Config, folder: Path) -> dict[str, Any]:
    """What a checkpoint says of the run's other files, so that damage to them is seen.

    **Arguments:** `folder`, in which the tokenizer, and what describes the text, have been written.
    """
    return {"config": _counting(config), "tokenizer": file_digest(folder / TOKENIZER), "text": text_of(folder)}


def _remembered(folder: Path) -> tuple[int, dict[str, Any]]:
    return Checkpoints(folder / CHECKPOINTS).metadata()


def _require_tokenizer(folder: Path, config: Config, remembered: dict[str, Any]) -> None:
    path = folder / TOKENIZER
    if "tokenizer" in remembered and (not path.is_file() or file_digest(path) != remembered["tokenizer"]):
        advice = "`diffeqformer train` with the run's config writes it again"
        if config.base.run:
            advice = f"copy that of its base, {config.base.run!r}"
        elif (folder / IMPORTED).is_file():
            advice = "import the model again"
        raise Damaged(f"file {str(path)!r} is damaged, or was edited: it does not match its digest; {advice}.")


def _counting(config: Config) -> dict[str, Any]:
    """The settings that numbers depend on."""
    return {name: value for name, value in _dotted(to_dict(config)).items() if name not in MAY_CHANGE}


def readable_data(config: Config) -> DataConfig:
    """The text's settings, with the base's tokenizer until the run of `finetune` has its own copy of it."""
    own = Path(config.data.tokenizer).expanduser()
    if not config.base.run or own != run_folder(config) / TOKENIZER or own.exists():
        return config.data
    return dataclasses.replace(config.data, tokenizer=str(Path(config.base.run).expanduser() / TOKENIZER))


def require_own_folder(config: Config) -> None:
    """Check that the run's folder is free, or holds this very run. Writes nothing.

    A vocabulary size that `config` does not give (the tokenizer decides it) differs from none.

    **Raises:** `BadInput` naming the first setting that differs and both values, or that the folder is not a run;
    `Damaged` for a tokenizer that is not what it was.
    """
    folder = run_folder(config)
    try:
        names = {entry.name for entry in folder.iterdir()} if folder.exists() else set()
    except OSError as error:
        raise BadInput(f"run folder {str(folder)!r} cannot be opened: {error.strerror}.") from None
    if CONFIG not in names:
        if names - {".lock", f".{CONFIG}.tmp"}:
            raise BadInput(f"folder {str(folder)!r} exists and is not a run; choose another folder with --run.")
        return
    if IMPORTED in names:
        raise BadInput(f"run folder {str(folder)!r} holds an imported model; choose another folder with --run.")
    _, remembered = _remembered(folder)
    if Path(config.data.tokenizer).expanduser() == folder / TOKENIZER:  # else it is written again
        _require_tokenizer(folder, config, remembered)
    # What a checkpoint remembers is verified; without one there is the file.
    theirs, ours = remembered.get("config") or _dotted(to_dict(read_yaml(folder / CONFIG))), _dotted(to_dict(config))
    theirs = _dotted(to_dict(Config())) | theirs  # of earlier versions, which had not all settings
    for name, value in ours.items():
        if name in MAY_CHANGE or theirs[name] == value or (name == "model.vocabulary" and value is None):
            continue
        raise BadInput(
            f"run folder {str(folder)!r} belongs to another config: {name} is {theirs[name]!r} there, but {value!r} "
            f"here; choose another folder with --run."
        )


def resolve(config: Config, tokens: TokenCache) -> Config:
    """The config with the vocabulary's size filled in.

    **Raises:** `BadInput` if the tokenizer has more entries than `model.vocabulary`.
    """
    entries, vocabulary = vocabulary_size(tokens.tokenizer), config.model.vocabulary
    if vocabulary is None:
        return dataclasses.replace(config, model=dataclasses.replace(config.model, vocabulary=entries))
    if entries > vocabulary:
        raise BadInput(f"model.vocabulary is {vocabulary}, but must be at least {entries}, the tokenizer's size.")
    return config


def require_space(config: Config, checkpoint_bytes: int) -> None:
    """Check that the disk can take all checkpoints that the run will hold at one time. Writes nothing.

    **Arguments:** `checkpoint_bytes`, the size of one.

    **Raises:** `BadInput` naming what is needed and what is free.
    """
    folder = run_folder(config).absolute()
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    held = sum(path.stat().st_size for path in (folder / CHECKPOINTS).rglob("*") if path.is_file())
    # The one being written lies beside those that are kept.
    needed = (config.trainer.keep_last + config.trainer.keep_best + 1) * checkpoint_bytes - held
    free = shutil.disk_usage(there).free
    if free < needed:
        raise BadInput(
            f"run folder {str(run_folder(config))!r} needs {needed / 1e6:,.0f} MB for checkpoints, but its disk has "
            f"{free / 1e6:,.0f} MB left; free some, choose another disk with --run, or lower trainer.keep_last."
        )


@contextmanager
def own_folder(config: Config, tokens: TokenCache) -> Iterator[Path]:
    """Make or reopen the run's folder, and hold its lock while the `with` block runs.

    **Raises:** `BadInput` if it cannot be written, is being written, or belongs to another config or other text.
    """
    folder = run_folder(config)
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(RunLock(folder))
            require_own_folder(config)
            require_same_text(folder, tokens, "choose another folder with --run")
            _describe(folder, config, tokens)
        except OSError as error:
            raise BadInput(f"run folder {str(folder)!r} cannot be written: {error.strerror}.") from error
        yield folder


def _describe(folder: Path, config: Config, tokens: TokenCache) -> None:
    write_whole(folder / CONFIG, dump_yaml(config))
    write_whole(folder / TOKENIZER, tokens.tokenizer.to_str(pretty=True))
    write_sealed(folder / DATA, {"content": tokens.content, **tokens.statistics})


def text_of(folder: Path) -> str | None:
    """`TokenCache.content` of a run's text; `None` if it has none, as an imported model.

    **Raises:** `Damaged` if no checkpoint remembers it, and its file is not what was written.
    """
    _, remembered = _remembered(folder)
    if "text" in remembered:
        return remembered["text"]
    try:
        return read_sealed(folder / DATA)["content"]
    except FileNotFoundError:
        return None


def require_same_text(folder: Path, tokens: TokenCache, advice: str) -> None:
    """Check that `tokens` are those that the run in `folder` is trained on, if it has begun.

    **Raises:** `BadInput` that ends with `advice`.
    """
    if text_of(folder) not in (None, tokens.content):
        raise BadInput(
            f"the text or the tokenizer of run folder {str(folder)!r} has changed since the run began; {advice}."
        )


def _dotted(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as one level: `model.time.d_emb`."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _dotted(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat
