"""Where text comes from: Python's standard library, files, a Hugging Face dataset, a puzzle; and how it is split."""

import math
import os
import sys
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from diffeqformer.config import DataConfig, to_dict
from diffeqformer.data import documents as formats
from diffeqformer.data.decoding import TextFile
from diffeqformer.data.documents import Reader, TextDocument, find_files, require_field, text_of
from diffeqformer.data.split import Part, TokenPart, hold_out, require_fraction, split_single
from diffeqformer.data.stream import Shard, Source, divided
from diffeqformer.errors import BadInput, DiffEqFormerError, Missing, RunFailed, reason
from diffeqformer.progress import Progress, Stage
from diffeqformer.store.digests import file_digest, json_digest
from diffeqformer.store.paths import path_of

NOT_LIBRARY = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "lib2to3", "__pycache__"})
"""Folders of the standard library that are not counted as its text."""
HELD_OUT = ("validation", "valid", "val", "dev", "test")
"""Names of the split that a dataset keeps for validation; the first that exists is used."""


@dataclass(frozen=True)
class Corpus:
    """Text that has been found but not read yet."""

    name: str
    fingerprint: str
    """Changes whenever the text, or the way it is split, may have changed."""
    split: Callable[[], tuple[Part | TokenPart, Part | TokenPart]]
    """Scans the documents and divides them into training part and validation part."""
    tokenizer: Tokenizer | None = None
    """The corpus's own tokenizer, if it is generated as tokens."""
    stream: Callable[[], Sequence[Source]] | None = None
    """The sources that training reads in order, if not packed; `split` then gives their beginning."""


def open_corpus(config: DataConfig, progress: Progress) -> Corpus:
    """Find the corpus that `config` names; its documents are read when they are iterated.

    Without validation files, documents drawn by `split_seed` are held out until they hold `validation_fraction` of
    the bytes; of a single document the tail is held out. A Hugging Face dataset keeps its own validation or test
    split; if it has none, `train_test_split` holds out that fraction of its rows.

    **Raises:** `BadInput` for anything missing, empty or unreadable; here or when the documents are read.
    """
    sources = {"stdlib": _standard_library, "files": _files, "huggingface": _hugging_face, "puzzle": _puzzle}
    return sources[config.source](config, progress)


def _standard_library(config: DataConfig, progress: Progress) -> Corpus:
    root = Path(sysconfig.get_path("stdlib"))
    files = _library_files(root)
    if not files:
        raise BadInput(f"Python's standard library has no source files in {str(root)!r}; use data.source 'files'.")
    content = [(f.path.relative_to(root).as_posix(), file_digest(f.path)) for f in files]
    name = f"Python {sys.version_info.major}.{sys.version_info.minor} standard library"
    fingerprint = json_digest([_settings(config), content])
    return Corpus(name, fingerprint, lambda: _split_files(name, [files], [], config, progress))


def _library_files(root: Path) -> list[TextFile]:
    paths = []
    for folder, folders, names in os.walk(root):
        folders[:] = [f for f in folders if f not in NOT_LIBRARY]
        paths += [Path(folder, name) for name in names if name.endswith(".py")]
    # Their order decides the fingerprint and the split, so it is not the disk's.
    return [TextFile.at(path) for path in sorted(paths, key=lambda path: path.relative_to(root).as_posix())]


def _files(config: DataConfig, progress: Progress) -> Corpus:
    # Each pattern by itself, without weights too: one that names nothing is refused.
    sources = [find_files([pattern], "data.train") for pattern in config.train]
    sources = sources if config.weights else [find_files(config.train, "data.train")]
    train = [file for files in sources for file in files]
    validation = find_files(config.validation, "data.validation") if config.validation else []
    (file, count), *_ = Counter(train).most_common(1)
    if count > 1:
        raise BadInput(f"file {str(file.path)!r} is in two of data.train, each of which has one of data.weights.")
    for file in train + validation if config.targets == "completions" else ():
        if not file.path.name.lower().endswith(formats.JSON_LINES):
            raise BadInput(f"file {str(file.path)!r} is no .jsonl, which data.targets 'completions' is read from.")
    both = {file.path.resolve() for file in train} & {file.path.resolve() for file in validation}
    if both:
        raise BadInput(f"file {str(min(both))!r} is in data.train and in data.validation; leave it in one of them.")
    if config.stream:
        return _streamed_files(sources, validation, config, progress)
    with progress.stage("Checking the text", sum(file.size for file in train + validation)) as stage:
        listed = [[(str(file.path), _digest(file, stage)) for file in files] for files in (train, validation)]
    name, sizes = ", ".join(config.train), [[len(files) for files in sources]] if config.weights else []
    # Only if they are set, so that caches packed before these settings existed keep their name.
    later_settings = [*sizes, *([config.targets] if config.targets != "all" else [])]
    fingerprint = json_digest([_settings(config), listed, *later_settings])
    return Corpus(name, fingerprint, lambda: _split_files(name, sources, validation, config, progress))


def _streamed_files(
    sources: list[list[TextFile]], validation: list[TextFile], config: DataConfig, progress: Progress
) -> Corpus:
    """Stream files during training. They are identified by name and size, since digests would read them all."""
    reader = Reader(config, progress.say)
    names = [f"data.train {pattern!r}" for pattern in config.train] if config.weights else ["data.train"]
    shards = lambda files: [partial(reader.documents, file) for file in files]
    found = [Source(name, shards(files)) for name, files in zip(names, sources, strict=True)]
    held = lambda: chain.from_iterable(map(reader.documents, validation))
    size = sum(file.size for file in validation)
    given = Part(len(validation), size, held, (), reader.completions) if validation else None
    listed = [[(str(file.path), file.size) for file in files] for files in (*sources, validation)]
    return _streamed(", ".join(config.train), found, given, config, listed)


def _streamed(name: str, sources: list[Source], given: Part | None, config: DataConfig, listed: Any) -> Corpus:
    masked = config.targets == "completions"

    @cache  # reads the beginning of each source, perhaps over the network; the split and the stream both need it
    def parts() -> tuple[Part, Part, tuple[Source, ...]]:
        return divided(sources, given, config.stream, config.validation_fraction, config.split_seed, masked)

    fingerprint = json_digest([_settings(config), config.stream, config.targets, listed])
    told = f"{name}, a stream whose beginning is counted"
    return Corpus(told, fingerprint, lambda: parts()[:2], stream=lambda: parts()[2])


def _digest(file: TextFile, stage: Stage) -> str:
    """Return the SHA-256 of a text file: neither its size nor its time tells whether it was replaced."""
    try:
        found = file_digest(file.path)
    except OSError as error:
        raise BadInput(f"file {str(file.path)!r} cannot be read: {error.strerror}.") from None
    stage.advance(file.size)
    return found


def _split_files(
    name: str,
    sources: Sequence[Sequence[TextFile]],
    validation: list[TextFile],
    config: DataConfig,
    progress: Progress,
) -> tuple[Part, Part]:
    """Divide files into a training and a validation part; `sources`, the files of each of a mixture, or all at once."""
    reader, train = Reader(config, progress.say), [file for files in sources for file in files]
    documents = lambda files: chain.from_iterable(map(reader.documents, files))
    total = sum(file.size for file in train + validation)
    with progress.stage("Reading the corpus", total) as stage:

        def sizes(files: Sequence[TextFile]) -> np.ndarray:
            """Return the sizes of the files' documents in bytes."""
            counted = []
            for file in files:
                counted += _document_sizes(file, reader)
                stage.advance(file.size)
            return np.array(counted, int)

        train_sizes, held_sizes = list(map(sizes, sources)), [sizes(validation)]

    empty = "has no text; give files with at least one document that is not empty."
    if not sum(map(len, train_sizes)):
        raise BadInput(f"the corpus ({name}) {empty}")
    if validation and not len(held_sizes[0]):
        raise BadInput(f"data.validation ({', '.join(config.validation)}) {empty}")
    for pattern, own in zip(config.train, train_sizes, strict=False):
        if not len(own):
            raise BadInput(f"data.train {pattern!r} has no text, but needs at least one document that is not empty.")

    def part(files: list[TextFile], sizes: list[np.ndarray], chosen: list[np.ndarray]) -> Part:
        these, counts = np.concatenate(chosen), tuple(int(own.sum()) for own in chosen) if config.weights else ()
        read = lambda: (each for each, kept in zip(documents(files), these, strict=True) if kept)
        return Part(int(these.sum()), int(np.concatenate(sizes)[these].sum()), read, counts, reader.completions)

    if validation:
        whole = lambda sizes: [np.ones(len(own), bool) for own in sizes]
        return part(train, train_sizes, whole(train_sizes)), part(validation, held_sizes, whole(held_sizes))
    if sum(map(len, train_sizes)) == 1:
        if reader.completions:
            raise BadInput(f"the corpus ({name}) is a single conversation, which is not split; give data.validation.")
        return split_single(lambda: documents(train), int(train_sizes[0][0]), config, progress)
    held = [hold_out(own, config.validation_fraction, config.split_seed) for own in train_sizes]
    if not any(own.any() for own in held):
        raise BadInput("each source of data.train is a single document, which is not split; give data.validation.")
    total = sum(int(own.sum()) for own in train_sizes)
    out = sum(int(own[drawn].sum()) for own, drawn in zip(train_sizes, held, strict=True))
    if out < config.validation_fraction * total / 2:
        progress.say(
            f"The validation part has {out:,} of {total:,} bytes only: the other documents are too long to be held "
            "out, or the only ones of their source; data.validation names files for it."
        )
    return part(train, train_sizes, [~own for own in held]), part(train, train_sizes, held)


def _document_sizes(file: TextFile, reader: Reader) -> list[int]:
    if file.path.name.lower().endswith(formats.OF_DOCUMENTS):
        return [formats.bytes_of(document) for document in reader.documents(file)]
    return [file.size for _ in reader.documents(file)]  # at most one, which need not be read


def _puzzle(config: DataConfig, progress: Progress) -> Corpus:
    settings = config.puzzle
    assert settings is not None
    puzzle = settings.build()

    def part(split: int, count: int) -> TokenPart:
        return TokenPart(count, lambda: ((ids, puzzle.difficulty(ids) > 0) for ids in puzzle.problems(split, count)))

    split = lambda: (part(0, settings.problems), part(1, settings.validation_problems))
    return Corpus(f"puzzle {settings.kind}", json_digest(to_dict(settings)), split, puzzle.tokenizer())


def _hugging_face(config: DataConfig, progress: Progress) -> Corpus:
    try:
        import datasets
    except ImportError:
        raise BadInput(f"data.source 'huggingface' needs the package datasets; {formats.NEEDS_EXTRA}.") from None
    name = f"{config.dataset} ({config.dataset_name})" if config.dataset_name else config.dataset
    if config.stream:
        return _streamed_rows(datasets, config, name)
    train, validation = _hugging_face_splits(datasets, config)
    splits = [train] if validation is None else [train, validation]
    for rows in splits:
        require_field(rows.column_names, config.text_field, f"dataset {name!r}")
    prints = [_rows_digest(rows) for rows in splits]

    def split() -> tuple[Part, Part]:
        if validation is not None:
            return _rows(train, config, name), _rows(validation, config, name)
        if len(train) == 1:
            whole = _rows(train, config, name)
            size = sum(map(formats.bytes_of, whole.read()))
            return split_single(whole.read, size, config, progress)
        require_fraction(config.validation_fraction)
        if math.ceil(config.validation_fraction * len(train)) == len(train):  # as `train_test_split` rounds
            raise BadInput(
                f"data.validation_fraction is {config.validation_fraction}, which leaves none of the {len(train)} rows "
                f"of dataset {name!r} for training; give a smaller one."
            )
        # Row numbers are split, not rows, so that nothing is written beside the dataset: its folder may be read-only.
        numbers = datasets.Dataset.from_dict({"row": np.arange(len(train))})
        parts = numbers.train_test_split(test_size=config.validation_fraction, seed=config.split_seed, shuffle=True)
        kept, held = (train.select(parts[part]["row"][:], keep_in_memory=True) for part in ("train", "test"))
        return _rows(kept, config, name), _rows(held, config, name)

    return Corpus(name, json_digest([_settings(config), prints]), split)


def _streamed_rows(datasets: Any, config: DataConfig, name: str) -> Corpus:
    """Stream a dataset whose files are read during training, over the network if they are remote."""
    folder = path_of(config.dataset)
    with _loading(config):
        builder = datasets.load_dataset_builder(
            str(folder) if folder.is_dir() else config.dataset, config.dataset_name or None
        )
        loaded = builder.as_streaming_dataset()
        files = builder.config.data_files or {}
        # A revision, an ETag or a time of modification: what changes with the files, without reading them.
        listed = {str(split): [list(map(str, own)), own.origin_metadata] for split, own in files.items()}
    train, validation = _train_and_validation(loaded, config)

    def shards(rows: Any) -> list[Shard]:
        return [
            partial(_texts, rows.shard(num_shards=rows.num_shards, index=i), config, name)
            for i in range(rows.num_shards)
        ]

    given = None
    if validation is not None:
        held = Source(name, shards(validation))
        given = Part(config.stream, None, lambda: (text for *_, text in islice(held.documents(), config.stream)))
    return _streamed(name, [Source(f"dataset {name!r}", shards(train))], given, config, listed)


def _texts(rows: Any, config: DataConfig, name: str) -> Iterator[TextDocument]:
    """Iterate over the documents of some rows, without empty ones.

    **Raises:** `RunFailed` if they cannot be read to the end.
    """
    number = 0
    try:
        for number, row in enumerate(rows, start=1):
            if text := text_of(row, config.text_field, f"row {number} of dataset {name!r}"):
                yield (text,)
    except DiffEqFormerError:
        raise
    except Exception as error:  # the network and every file format have exceptions of their own
        broke = f"dataset {name!r} broke off after row {number} ({reason(error)})"
        again = "goes on from the last checkpoint" if config.stream else "reads it again from its beginning"
        raise RunFailed(f"{broke}; the same command {again}.") from error


@contextmanager
def _loading(config: DataConfig) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the hub, the network and every file format have exceptions of their own
        first: BaseException = error  # `datasets` wraps what happened in errors that name only its own step
        while first.__cause__ is not None:
            first = first.__cause__
        raise Missing(f"dataset {config.dataset!r} cannot be loaded: {reason(first)}.") from error


def _hugging_face_splits(datasets: Any, config: DataConfig) -> tuple[Any, Any]:
    """Load the training rows, and the validation rows if the dataset has such a split."""
    folder = path_of(config.dataset)
    saved = any((folder / name).is_file() for name in ("dataset_dict.json", "state.json"))  # by `save_to_disk`
    path = str(folder) if saved or folder.is_dir() else config.dataset
    with _loading(config):
        loaded = datasets.load_from_disk(path) if saved else datasets.load_dataset(path, config.dataset_name or None)
    return (loaded, None) if isinstance(loaded, datasets.Dataset) else _train_and_validation(loaded, config)


def _train_and_validation(loaded: Any, config: DataConfig) -> tuple[Any, Any]:
    if "train" not in loaded:
        raise BadInput(f"dataset {config.dataset!r} has no split 'train', but {', '.join(map(repr, loaded))}.")
    return loaded["train"], next((loaded[name] for name in HELD_OUT if name in loaded), None)


def _rows_digest(rows: Any) -> list[object]:
    """Digest the files that hold a dataset's rows, since its own fingerprint does not change when they do."""
    files = [(Path(file["filename"]).name, file_digest(Path(file["filename"]))) for file in rows.cache_files]
    return [rows._fingerprint, files]


def _rows(rows: Any, config: DataConfig, name: str) -> Part:
    if not len(rows):
        raise BadInput(f"dataset {name!r} has an empty split, but needs rows for training and for validation.")
    field = config.text_field
    batches = lambda: rows.select_columns([field]).iter(batch_size=256)
    values = lambda: ({field: value} for batch in batches() for value in batch[field])
    return Part(len(rows), None, lambda: _texts(values(), config, name))


def _settings(config: DataConfig) -> list[str | int | float]:
    """The settings that decide which text is read and how it is split."""
    return [
        config.source, config.dataset, config.dataset_name, config.text_field, config.validation_fraction,
        config.split_seed, config.strict,
    ]  # fmt: skip
