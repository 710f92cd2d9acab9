"""Tokens packed once into memory-mapped files, found again by the fingerprint of text and tokenizer, and verified."""

import errno
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from diffeqformer.config import DataConfig
from diffeqformer.data.corpus import Corpus, open_corpus
from diffeqformer.data.documents import JSON_LINES, Given, Reader, find_files
from diffeqformer.data.encode import LostText, encoded, pieces_of
from diffeqformer.data.split import Part, TokenPart
from diffeqformer.data.stream import Source
from diffeqformer.data.tokenizer import end_of_text, train_tokenizer, vocabulary_size
from diffeqformer.data.tokenizer_files import load_tokenizer
from diffeqformer.errors import BadInput, Damaged, RunFailed, reason
from diffeqformer.plain import Document
from diffeqformer.progress import Progress
from diffeqformer.store.digests import file_digest, json_digest
from diffeqformer.store.files import flush, is_of, read_sealed, sync_folder, write_sealed, write_whole
from diffeqformer.store.folders import candidate, install, made
from diffeqformer.store.paths import path_of

PACKING_VERSION = 2
"""Version of the packing, part of every fingerprint; raised whenever the same text would be packed differently."""
LOSSY = 0.005
"""The largest share of a text's characters that a tokenizer may lose before bits per byte mislead."""
FINGERPRINT = 32
"""Number of hexadecimal digits of a fingerprint, which names a cache's folder."""
SPLITS = ("train", "validation")


@dataclass(frozen=True)
class TokenCache:
    """A corpus as tokens: every document followed by end-of-text, one array for each split.

    Masks are true for the tokens that count as targets, or `None` if all tokens do.
    """

    folder: Path
    """Folder named by the fingerprint of text, split and tokenizer."""
    tokenizer: Tokenizer
    train: np.memmap
    validation: np.memmap
    validation_bytes: int | None
    """UTF-8 bytes of the validation text; `None` if not all of it is predicted or the tokenizer loses some of it."""
    statistics: Document
    """`name`, `vocabulary`; for each split `_documents`, `_bytes`, `_tokens`, and `_targets` if not all count; of a
    mixture, `train_sources`, the tokens of each."""
    content: str
    """Digest of tokens, masks and tokenizer: equal for equal text, wherever and whenever it was read."""
    train_mask: np.memmap | None = None
    """Which tokens of the training split count as targets."""
    validation_mask: np.memmap | None = None
    stream: tuple[Source, ...] = ()
    """What training reads instead of `train`, if streamed; `train` is then only its beginning, for the tokenizer."""


def prepare(
    config: DataConfig,
    progress: Progress,
    accept: Callable[[TokenCache], object] = lambda tokens: None,
    corpus: Corpus | None = None,
) -> TokenCache:
    """Open the packed tokens of a corpus; pack them first if no sound cache has the same fingerprint.

    A tokenizer that is to be trained sees the training part only.

    **Arguments:** `config`, the corpus, its split, the tokenizer and the folder of caches; `progress`, where stages
    and lines are shown; `accept`, called with the tokens before they are kept or returned: if it raises, nothing is
    left behind; `corpus`, text of your own in place of `data.source`.

    **Returns:** the tokens, memory-mapped.

    **Raises:** `BadInput` for a corpus or tokenizer that cannot be used; `RunFailed` if the disk is full, or reads back
    other bytes than were written.
    """
    corpus = corpus or open_corpus(config, progress)
    tokenizer = corpus.tokenizer if config.tokenizer == "train" else load_tokenizer(config.tokenizer)
    if tokenizer and corpus.tokenizer and tokenizer.get_vocab() != corpus.tokenizer.get_vocab():
        raise BadInput(f"data.tokenizer is {config.tokenizer!r}, but a {corpus.name} has its own: leave it 'train'.")
    if tokenizer is not None:
        end_of_text(tokenizer)  # a tokenizer that cannot end a document is refused before anything is written
    how = ["train", config.tokenizer_vocabulary] if tokenizer is None else ["load", tokenizer.to_str()]
    fingerprint = json_digest([PACKING_VERSION, corpus.name, corpus.fingerprint, how])[:FINGERPRINT]
    root = path_of(config.cache)
    folder = root / fingerprint
    with _disk_errors(root):
        if folder.exists():
            if (damage := _damage(folder, progress)) is None:
                tokens = _open(folder, corpus)
                accept(tokens)
                return tokens
            progress.say(f"The token cache {folder} is damaged ({damage}): it is built again.")
    parts = corpus.split()  # finds most mistakes, so it comes before anything is written
    with _disk_errors(root):
        with made(root), candidate(folder) as building:
            _build(building, config, corpus, parts, tokenizer, progress)
            accept(_open(building, corpus))
            install(building, folder, lambda other: _damage(other, progress) is None)
        damage = _damage(folder, progress)
    if damage is not None:
        raise RunFailed(f"the token cache {str(folder)!r} reads back damaged ({damage}): check the disk that holds it.")
    return _open(folder, corpus)


def cached_by_content(config: DataConfig, content: str | None, progress: Progress) -> TokenCache | None:
    """Find the tokens of a text that no longer exists, if an intact cache in `config.cache` has them; else `None`.

    **Arguments:** `content`, `TokenCache.content` of the tokens.
    """
    # A name that begins with a dot is that of a cache being built.
    for path in sorted(path_of(config.cache).glob("[!.]*/meta.json")):
        with suppress(OSError, Damaged):
            meta = read_sealed(path)
            files, corpus = meta.get("files"), meta.get("corpus")  # of caches packed before it was kept: `None`
            digests = json_digest(files), json_digest([files, corpus])
            if content in digests and _damage(path.parent, progress) is None:
                return _open(path.parent)
    return None


def tokens_of(
    patterns: Sequence[str], config: DataConfig, tokenizer: Tokenizer, progress: Progress
) -> tuple[np.ndarray, int | None, np.ndarray | None]:
    """Tokenise all text of some files, every document followed by end-of-text; nothing is kept on disk.

    **Arguments:** `patterns`, paths or globs; `config`, for `text_field`, `strict` and, for JSON lines, `targets`;
    `tokenizer`, as `load_tokenizer` returns it.

    **Returns:** tokens `(tokens,)`; the UTF-8 bytes of the text; which tokens count as targets, `(tokens,)`. The number
    of bytes is `None` if not all tokens count or the tokenizer loses a part of the text; the mask is `None` if all
    count.

    **Raises:** `BadInput` for files that are missing, unreadable or empty; `RunFailed` if there is no room for tokens
    among temporary files.
    """
    files = find_files(patterns, "--data")
    reader = Reader(config, progress.say)
    masked = reader.completions and any(file.path.name.lower().endswith(JSON_LINES) for file in files)
    read = lambda: chain.from_iterable(map(reader.documents, files))
    part, dtype = Part(len(files), sum(file.size for file in files), read, masked=masked), np.dtype("<u4")
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "tokens.bin"
            counts = _pack(part, tokenizer, path, dtype, "evaluation", progress)
            mask = np.fromfile(path.with_suffix(".mask"), bool) if masked else None
            return np.fromfile(path, dtype), counts["evaluation_bytes"], mask
    except OSError as error:
        if error.filename is not None and not is_of(error, Path(tempfile.gettempdir())):
            raise
        raise RunFailed(
            f"tokens cannot be written to a temporary folder: {reason(error)}; name another one with TMPDIR."
        ) from error


def _build(
    folder: Path,
    config: DataConfig,
    corpus: Corpus,
    parts: tuple[Part | TokenPart, Part | TokenPart],
    tokenizer: Tokenizer | None,
    progress: Progress,
) -> None:
    """Write all files of a cache into `folder`, `meta.json` last."""
    if tokenizer is None:
        assert isinstance(parts[0], Part)  # tokens have a tokenizer
        tokenizer = _train(parts[0], config.tokenizer_vocabulary, progress)
    vocabulary = vocabulary_size(tokenizer)
    dtype = np.dtype("<u2") if vocabulary <= 1 << 16 else np.dtype("<u4")
    statistics: Document = {"name": corpus.name, "vocabulary": vocabulary}
    write_whole(folder / "tokenizer.json", tokenizer.to_str())
    for split, part in zip(SPLITS, parts, strict=True):
        if isinstance(part, TokenPart):
            statistics |= _pack_tokens(part, folder, dtype, split, progress)
        else:
            statistics |= _pack(part, tokenizer, folder / f"{split}.bin", dtype, split, progress)
    files = sorted(folder.iterdir())
    meta = {
        "version": PACKING_VERSION,
        "dtype": dtype.str,
        "statistics": statistics,
        "files": {path.name: {"bytes": path.stat().st_size, "sha256": file_digest(path)} for path in files},
        "corpus": corpus.fingerprint,
    }
    write_sealed(folder / "meta.json", meta)
    sync_folder(folder)


def _train(part: Part, vocabulary: int, progress: Progress) -> Tokenizer:
    # The untrained tokenizer pre-tokenises as the trained one will, so documents may be cut in the same way.
    blank = train_tokenizer([], 257)  # 256 bytes and end-of-text
    with progress.stage("Training the tokenizer", part.length) as stage:

        def texts() -> Iterator[str]:
            for text, last in pieces_of(part, blank):
                stage.advance(part.amount(text, last))
                yield text

        tokenizer = train_tokenizer(texts(), vocabulary)
    if vocabulary_size(tokenizer) < vocabulary:
        progress.say(
            f"The training split is enough for a tokenizer of {vocabulary_size(tokenizer)} entries only, "
            f"not of {vocabulary}."
        )
    return tokenizer


def _pack(part: Part, tokenizer: Tokenizer, path: Path, dtype: np.dtype, split: str, progress: Progress) -> Document:
    """Write the tokens of `part` to `path` as they are made, and a mask next to it if masked; return its counts."""
    documents = text_bytes = tokens = targets = 0
    lost = LostText(tokenizer)
    ends, sources = np.cumsum(part.sources), []  # of a mixture's sources, in documents and in tokens
    with ExitStack() as stack:
        file = stack.enter_context(path.open("wb"))
        masks = stack.enter_context(path.with_suffix(".mask").open("wb")) if part.masked else None
        stage = stack.enter_context(progress.stage(f"Tokenising the {split} split", part.length))
        for text, last, ids in encoded(part, tokenizer):
            counts = not isinstance(text, Given)
            file.write(np.array(ids, dtype).tobytes())
            if masks is not None:
                masks.write(np.full(len(ids), counts).tobytes())
            documents, tokens = documents + last, tokens + len(ids)
            targets, text_bytes = targets + counts * len(ids), text_bytes + len(text.encode())
            # Each source has at least one training document, so no two sources end at the same one.
            sources += [tokens] if last and documents in ends else []
            lost.see(text, ids)
            stage.advance(part.amount(text, last))
        for written in (file, masks) if masks else (file,):
            flush(written)
    if not text_bytes:
        raise BadInput(f"the {split} split has no text, but needs at least one document that is not empty.")
    if not targets:
        raise BadInput(f"the {split} split has {tokens} tokens, but none of them counts as a target.")
    if lost.share > LOSSY:
        progress.say(
            f"The tokenizer loses {100 * lost.share:.1f} % of the characters of the {split} split: it has no tokens "
            "for them, or makes them others. Bits per byte, which only a whole text has, are not given."
        )
    known = not part.masked and lost.share <= LOSSY
    found = {"documents": documents, "bytes": text_bytes if known else None, "tokens": tokens}
    found |= {"targets": targets} if part.masked else {}
    found |= {"sources": np.diff(sources, prepend=0).tolist()} if part.sources and split == "train" else {}
    return {f"{split}_{name}": count for name, count in found.items()}


def _pack_tokens(
    part: TokenPart, folder: Path, dtype: np.dtype, split: str, progress: Progress
) -> dict[str, int | None]:
    """Write the tokens of `part`, and a byte for each that says whether it counts as a target; return its counts."""
    tokens = targets = 0
    stage = progress.stage(f"Making the {split} split", part.documents)
    with (folder / f"{split}.bin").open("wb") as file, (folder / f"{split}.mask").open("wb") as masks, stage as stage:
        for ids, mask in part.blocks():
            file.write(ids.astype(dtype).tobytes())
            masks.write(mask.tobytes())
            tokens, targets = tokens + ids.size, targets + int(mask.sum())
            stage.advance(len(ids))
        flush(file)
        flush(masks)
    if not targets:
        raise BadInput(f"the {split} split has {tokens} tokens, but none of them counts as a target.")
    counts = {"documents": part.documents, "bytes": None, "tokens": tokens, "targets": targets}
    return {f"{split}_{name}": count for name, count in counts.items()}


@contextmanager
def _disk_errors(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if not is_of(error, root):  # an error of a corpus, or of the user's own code
            raise
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RunFailed(
                f"the disk that holds the token cache {str(root)!r} is full: "
                "nothing was kept; free some space or set data.cache to a folder on another disk."
            ) from error
        raise BadInput(f"data.cache is {str(root)!r}, but that folder cannot be used: {reason(error)}.") from error


def _damage(folder: Path, progress: Progress) -> str | None:
    """Return what is wrong with a cache, or `None` if all its files are as written."""
    try:
        meta = read_sealed(folder / "meta.json")
        files = {name: (entry["bytes"], entry["sha256"]) for name, entry in meta["files"].items()}
        complete = {f"{split}.bin" for split in SPLITS} <= set(files) and "validation_bytes" in meta["statistics"]
    except (OSError, Damaged, KeyError, TypeError, AttributeError):
        complete = False
    if not complete:
        return "meta.json is missing or not what was written"
    with progress.stage("Checking the token cache", len(files)) as stage:
        for name, (size, digest) in files.items():
            path = folder / name
            if not path.is_file():
                return f"{name} is missing"
            if path.stat().st_size != size:
                return f"{name} has {path.stat().st_size} bytes instead of {size}"
            if file_digest(path) != digest:
                return f"{name} does not match its digest"
            stage.advance()
    return None


def _open(folder: Path, corpus: Corpus | None = None) -> TokenCache:
    """Open the tokens in a folder; `corpus`, which they come from, provides what is streamed."""
    stream = tuple(corpus.stream()) if corpus and corpus.stream else ()
    meta = read_sealed(folder / "meta.json")
    statistics = meta["statistics"]
    train, validation = (np.memmap(folder / f"{s}.bin", dtype=np.dtype(meta["dtype"]), mode="r") for s in SPLITS)
    masks = {s: np.memmap(folder / f"{s}.mask", bool, "r") for s in SPLITS if f"{s}.mask" in meta["files"]}
    return TokenCache(
        folder=folder,
        tokenizer=load_tokenizer(folder / "tokenizer.json"),
        train=train,
        validation=validation,
        validation_bytes=statistics["validation_bytes"],
        statistics=statistics,
        # The tokens of a stream are only its beginning; its fingerprint stands for the rest.
        content=json_digest([meta["files"], corpus.fingerprint] if corpus and stream else meta["files"]),
        train_mask=masks.get("train"),
        validation_mask=masks.get("validation"),
        stream=stream,
    )
