"""A run folder: which run it belongs to, and the files that describe the run.

config.yaml      the resolved config; what makes a folder a run
data.json        digest and statistics of the tokens
tokenizer.json   the tokenizer, whole
imported.json    where an imported model came from; such a run has no text of its own, and no data.json
checkpoints/     metrics.jsonl     results.json     profile/, traces that trainer.profile asks for

The manifest of each checkpoint says what kind of run it is (`origin_of`); the presence of files does not.
"""

import dataclasses
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Literal

from rich import filesize
from tokenizers import Tokenizer

from diffeqformer.config import Config, DataConfig, ModelConfig, dump_yaml, read_yaml
from diffeqformer.data.cache import TokenCache
from diffeqformer.errors import BadInput, Damaged, named
from diffeqformer.model.build import own_parts, settings_of_build
from diffeqformer.model.transformer import Transformer
from diffeqformer.plain import Document, is_utf8, shown
from diffeqformer.runs.checkpoint import Checkpoints
from diffeqformer.runs.distributed import by_main
from diffeqformer.runs.settings import difference, first_difference, numeric
from diffeqformer.store.digests import file_digest
from diffeqformer.store.files import read_sealed, sealed_text, write_whole
from diffeqformer.store.folders import free_bytes
from diffeqformer.store.lock import LOCK, folder_lock
from diffeqformer.store.paths import path_of, require_writable
from diffeqformer.store.regular import read_small, require_no_links

CONFIG, DATA, TOKENIZER, IMPORTED = "config.yaml", "data.json", "tokenizer.json", "imported.json"
CHECKPOINTS, METRICS, RESULTS, PROFILE = "checkpoints", "metrics.jsonl", "results.json", "profile"
Origin = Literal["trained", "fine-tuned", "imported", "lifted"]

OPTIONS = "--run (or --to, where the command has that)"
"""Options that give commands the folders of the runs that they train."""


class RunFolder:
    """The folder of the run that a config describes, from the first check to its lock. Creating this writes nothing.

    **Arguments:** `config`, whose vocabulary size may be set later.
    """

    def __init__(self, config: Config):
        self.config, self.path = config, path_of(config.run)
        self.metrics, self.results = self.path / METRICS, self.path / RESULTS
        self.checkpoints = Checkpoints(self.path / CHECKPOINTS, config.trainer.keep_last, config.trainer.keep_best)

    @property
    def data(self) -> DataConfig:
        """Settings of the text, with the base's tokenizer until a fine-tuned run has its own copy of it."""
        config = self.config
        if not config.base.run or not _owns_tokenizer(config) or (self.path / TOKENIZER).exists():
            return config.data
        return dataclasses.replace(config.data, tokenizer=str(path_of(config.base.run) / TOKENIZER))

    def require_own(self) -> None:
        """Check that the folder is free, or holds this same run.

        **Raises:** `BadInput` naming the first setting that differs and both values, or if the folder is not a run or
        cannot be written; `Damaged` for a tokenizer that has changed.
        """
        require_writable(self.path, "run folder")
        if not is_utf8(str(self.path.absolute())):  # Orbax takes only UTF-8
            raise BadInput(f"run folder {shown(str(self.path.absolute()))} has a name that is not UTF-8.")
        try:
            names = {entry.name for entry in self.path.iterdir()} if self.path.exists() else set()
        except OSError as error:
            raise BadInput(f"run folder {str(self.path)!r} cannot be opened: {error.strerror}.") from None
        remembered = metadata_of(self.path)
        if CONFIG not in names and "config" not in remembered:
            # A process killed before the first file is whole leaves the lock, and that file under its temporary name.
            if any(name != LOCK and not name.startswith(f".{CONFIG}.") for name in names):
                raise BadInput(
                    f"folder {str(self.path)!r} exists and is not a run; choose another folder with {OPTIONS}."
                )
            return
        if (origin := remembered.get("origin")) in ("imported", "lifted"):
            model = "an imported" if origin == "imported" else "a lifted"
            raise BadInput(f"run folder {str(self.path)!r} holds {model} model; choose another folder with {OPTIONS}.")
        if _owns_tokenizer(self.config):  # otherwise it is written again
            _require_tokenizer(self.path, self.config, remembered)
        # Verified settings from a checkpoint; without one, those in the file.
        kept = settings_of_run(self.path, remembered)
        if differs := difference(self.config, _compared(self.config), kept):
            name, theirs, ours = differs
            raise BadInput(
                f"run folder {str(self.path)!r} belongs to another config: {name} is {theirs} there, but {ours} here; "
                f"choose another folder with {OPTIONS}."
            )

    @contextmanager
    def held(self, tokens: TokenCache, checkpoint_bytes: int, more: Mapping[str, str]) -> Iterator[None]:
        """Create or reopen the folder, describe the run in it, and hold its lock while the `with` block runs.

        **Arguments:** `tokens`; `checkpoint_bytes`, the size of one checkpoint; `more`, contents of other files by
        name.

        **Raises:** `BadInput` if the disk has no room for all checkpoints that the run will hold at one time, or the
        folder cannot be written, is being written, or belongs to another config or text.
        """
        with ExitStack() as stack:

            def take() -> None:
                if self.config.trainer.updates not in self.checkpoints.steps():  # otherwise nothing large is written
                    self._require_space(checkpoint_bytes)
                try:
                    self.path.mkdir(parents=True, exist_ok=True)
                    stack.enter_context(folder_lock(self.path))
                    require_no_links(self.path)
                    # Again, under the lock: another process may have begun a run here meanwhile.
                    self.require_own()
                    require_same_text(self.path, tokens.content, f"choose another folder with {OPTIONS}")
                    for left in self.path.glob(".*.tmp"):  # left by killed processes, since this one holds the lock
                        left.unlink()
                    # The config first: a kill after any other file would leave a folder that is refused as not a run.
                    about = {CONFIG: dump_yaml(self.config), TOKENIZER: tokens.tokenizer.to_str(pretty=True), **more}
                    about[DATA] = sealed_text({"content": tokens.content, **tokens.statistics})
                    for name, text in about.items():
                        if not _is_there(self.path / name, text):  # a finished run may lie on a full disk
                            write_whole(self.path / name, text)
                except OSError as error:
                    raise BadInput(f"run folder {str(self.path)!r} cannot be written: {named(error)}.") from error

            # Only the main process holds the lock, until the stack outside of `take` is left.
            by_main(take)
            yield

    def _require_space(self, checkpoint_bytes: int) -> None:
        held = 0
        for here, _, names in os.walk(self.checkpoints.folder):
            with suppress(FileNotFoundError):  # rotated away by another process, whose lock refuses this one
                held += sum(Path(here, name).stat().st_size for name in names)
        # The one being written exists next to those that are kept.
        needed = (self.config.trainer.keep_last + self.config.trainer.keep_best + 1) * checkpoint_bytes - held
        if (free := free_bytes(self.path)) < needed:
            there, wanted = (filesize.decimal(size, precision=2) for size in (free, needed))
            raise BadInput(
                f"run folder {str(self.path)!r} needs {wanted} for checkpoints, but its disk has {there} left; free "
                f"some, choose another disk with {OPTIONS}, or, where there is such a setting, lower trainer.keep_last."
            )


def _is_there(path: Path, text: str) -> bool:
    wanted = text.encode()
    try:
        return read_small(path, len(wanted)) == wanted
    except OSError:
        return False


def open_config(folder: Path) -> Config:
    """Read the config of a run; check that it and the tokenizer are those that its checkpoints were written with.

    **Raises:** `BadInput` if there is no run; `Damaged` naming the file that has changed.
    """
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise BadInput(f"run folder {str(folder)!r} {what}; `diffeqformer train` makes one.")
    if not (folder / CONFIG).is_file():
        inside = [repr(str(file.parent)) for file in sorted(folder.glob(f"*/{CONFIG}"))[:4]]
        advice = f"; it holds runs, such as {', '.join(inside)}" if inside else ""
        advice = "; `diffeqformer train` with the run's config writes it again" if origin_of(folder) else advice
        raise BadInput(f"folder {str(folder)!r} is not a run: it has no {CONFIG}{advice}.")
    try:
        config = read_yaml(folder / CONFIG)
    except BadInput as error:
        raise Damaged(f"file {str(folder / CONFIG)!r} is damaged, or was edited: {error}") from None
    step, remembered = Checkpoints(folder / CHECKPOINTS).metadata()
    found, written = _compared(config), remembered.get("config", {})
    if name := first_difference(found, written):
        raise Damaged(
            f"file {str(folder / CONFIG)!r} is damaged, or was edited: {name} is {found[name]!r}, but the "
            f"checkpoint at update {step} was written with {written[name]!r}; put that back."
        )
    _require_tokenizer(folder, config, remembered)
    return _with_tokenizer_of(config, folder) if _owns_tokenizer(config) else config


def as_moved(config: Config) -> Config:
    """Return the config with paths as its run has them: that of the base as the run writes it, if it is the same
    folder, and the present one of its own tokenizer, if the config names that before a move."""
    folder = path_of(config.run)
    with suppress(BadInput):
        before, base = read_yaml(folder / CONFIG), config.base
        if base.run and before.base.run and path_of(base.run).resolve() == path_of(before.base.run).resolve():
            config = dataclasses.replace(config, base=dataclasses.replace(base, run=before.base.run))
        if _owns_tokenizer(before) and before.data.tokenizer == config.data.tokenizer:
            config = _with_tokenizer_of(config, folder)
    return config


def _owns_tokenizer(config: Config) -> bool:
    """Return whether the run's tokenizer is its own file; the paths need not exist, as the run may have been moved."""
    own, folder = (Path(os.path.expanduser(name)) for name in (config.data.tokenizer, config.run))
    return own == folder / TOKENIZER


def _with_tokenizer_of(config: Config, folder: Path) -> Config:
    return dataclasses.replace(config, data=dataclasses.replace(config.data, tokenizer=str(folder / TOKENIZER)))


def remember(config: Config, folder: Path) -> Document:
    """Return what a checkpoint records about the run's other files, so that damage to them is detected.

    **Arguments:** `folder`, in which the tokenizer and the description of the text have been written.
    """
    files = {"tokenizer": file_digest(folder / TOKENIZER), "text": text_digest_of(folder)}
    origin = "imported" if files["text"] is None else "fine-tuned" if config.base.run else "trained"
    return {"origin": origin, "config": numeric(config), **files}


def write_model(
    folder: Path,
    config: Config,
    tokenizer: Tokenizer,
    model: Transformer,
    text: str | None,
    more: Mapping[str, str],
    base: str | None = None,
) -> None:
    """Write a whole run, at update 0, whose model was not trained in it; the config, which makes it a run, comes last.

    **Arguments:** `folder`, in which the run is put together; `text`, its `text_digest_of`, `None` if it has no text of
    its own, such as an imported model; `more`, contents of other files by name; `base`, the digest of the checkpoint
    that it was made from.
    """
    for name, content in {TOKENIZER: tokenizer.to_str(pretty=True), **more}.items():
        write_whole(folder / name, content)
    own = {"origin": "imported" if text is None else "lifted", "text": text, "own": own_parts(model), "base": base}
    Checkpoints(folder / CHECKPOINTS).save(0, {"model": model}, {**remember(config, folder), **own})
    write_whole(folder / CONFIG, dump_yaml(config))


def metadata_of(folder: Path) -> Document:
    """Return the metadata in the newest sound manifest of a run; empty if it has none."""
    return Checkpoints(folder / CHECKPOINTS).metadata()[1]


def origin_of(folder: Path) -> Origin | None:
    """Return the kind of the run in a folder, from its newest sound manifest; `None` if it has none."""
    return metadata_of(folder).get("origin")


def require_own_parts(folder: Path, config: ModelConfig, model: Transformer) -> None:
    """Check that `model`, or its shapes alone, has what the run's own `build` made: the user's objects, and settings
    other than those of the run's `config`.

    **Raises:** `BadInput` naming those that are missing, or that the run does not have.
    """
    remembered = metadata_of(folder)
    theirs, here = remembered.get("own", {}), own_parts(model)
    if not remembered:
        return
    # Without modules: that of a class may have another name by now, `__main__` if it is run as a program.
    for part in theirs.keys() & here.keys():
        if theirs[part].rpartition(".")[2] != here[part].rpartition(".")[2]:
            raise BadInput(
                f"run folder {str(folder)!r} was trained with the {part} {theirs[part]}, but `build` makes "
                f"{here[part]}."
            )
    if "built" in remembered:  # not in older checkpoints
        theirs, here = theirs | remembered["built"], here | settings_of_build(config, model)
    only = lambda one, other: ", ".join(f"{part} {name}" for part, name in one.items() if part not in other)
    if missing := only(theirs, here):
        raise BadInput(
            f"run folder {str(folder)!r} was trained with parts that only Python can make ({missing}): give `train` "
            "and `load_run` the same `build` that it was trained with."
        )
    if more := only(here, theirs):
        raise BadInput(f"run folder {str(folder)!r} was trained without the parts that `build` makes: {more}.")


def settings_of_run(folder: Path, remembered: Document) -> Document:
    """Return the settings that a run's numbers depend on, by dotted names: the verified ones in its `metadata_of` or,
    without a checkpoint, those in its file."""
    return remembered.get("config") or numeric(read_yaml(folder / CONFIG))


def text_digest_of(folder: Path) -> str | None:
    """Return the `TokenCache.content` of a run's text; `None` if it has none, such as an imported model.

    **Raises:** `Damaged` if no checkpoint records it, and its file is not what was written.
    """
    remembered = metadata_of(folder)
    if "text" in remembered:
        return remembered["text"]
    try:
        return read_sealed(folder / DATA)["content"]
    except FileNotFoundError:
        return None


def require_same_text(folder: Path, content: str | None, advice: str) -> None:
    """Check that the run in `folder`, if it has begun, is trained on tokens with this `TokenCache.content`.

    **Raises:** `BadInput`, whose message ends with `advice`.
    """
    if text_digest_of(folder) not in (None, content):
        raise BadInput(
            f"the text or the tokenizer of run folder {str(folder)!r} has changed since the run began; {advice}."
        )


def _require_tokenizer(folder: Path, config: Config, remembered: Document) -> None:
    path = folder / TOKENIZER
    if "tokenizer" in remembered and (not path.is_file() or file_digest(path) != remembered["tokenizer"]):
        advice = "`diffeqformer train` with the run's config writes it again"
        if config.base.run:
            advice = f"copy that of its base, {config.base.run!r}"
        elif remembered.get("origin") == "imported":
            advice = "import the model again"
        what = "damaged, or was edited: it does not match its digest" if path.is_file() else "missing"
        raise Damaged(f"file {str(path)!r} is {what}; {advice}.")


def settings_of(config: Config) -> Document:
    """Return the settings that distinguish the run of a config from others, except for what its tokenizer decides."""
    return {k: v for k, v in _compared(config).items() if k not in ("model.vocabulary", "data.tokenizer")}


def _compared(config: Config) -> Document:
    """Return the `numeric` settings without paths whose content is compared instead: that of the run's own tokenizer,
    and that of a base which is the teacher (`finetune.teacher_digest`)."""
    by_content = {"data.tokenizer": _owns_tokenizer(config), "base.run": config.depth.teacher == "base"}
    return {name: value for name, value in numeric(config).items() if not by_content.get(name)}
