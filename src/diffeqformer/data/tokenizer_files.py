"""Tokenizers from files, as Transformers writes them, or from the Hugging Face hub."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors

from diffeqformer.config.bounds import MOST_ENTRIES
from diffeqformer.data.beside import TOKENIZER_BYTES, declared_settings, more_special_tokens, special_tokens
from diffeqformer.data.tokenizer import (
    END_OF_TEXT,
    ENDS_OF_TEXT,
    byte_level,
    encode,
    of_library,
    plain_text,
    vocabulary_size,
)
from diffeqformer.errors import BadInput, reason
from diffeqformer.plain import Document, shown
from diffeqformer.store.hub import TOKENIZER_FILES, Repository, fetch
from diffeqformer.store.paths import path_of
from diffeqformer.store.regular import POINTER, read_small

ADDED = "added_tokens.json"
"""File next to those of a vocabulary; a tokenizer.json has its content itself, unless it is an older one."""
_LARGE = re.compile(rb"\d{%d}" % len(str(MOST_ENTRIES)))


def load_tokenizer(spec: str | Path) -> Tokenizer:
    """Load a tokenizer and set it to read text as plain text: no truncation, padding or special tokens, and no BPE
    dropout.

    **Arguments:** `spec`, a `tokenizer.json`, a folder that holds `tokenizer.json`, or `vocab.json` and `merges.txt`,
    or `encoder.json` and `vocab.bpe` (GPT-2's own names), or else a name on the Hugging Face hub.

    **Raises:** `BadInput` if there is no such tokenizer, or if it cannot be read or fetched.
    """
    path = path_of(spec)
    if path.is_dir():
        return plain_text(_from_folder(path))
    if path.is_file():
        return plain_text(_from_file(path))
    repository = None if path.suffix == ".json" else Repository.named(spec)
    if repository is None:
        raise BadInput(f"tokenizer {str(spec)!r} does not exist; give a file, a folder, a hub name or 'train'.")
    return plain_text(_from_folder(fetch(repository, TOKENIZER_FILES)))


def _add_tokens(tokenizer: Tokenizer, file: Path) -> None:
    """Add a file's tokens to a tokenizer, with the ids given there. They are special if the settings next to the file
    declare them so, or name them as tokens that begin, end or pad a text, or stand for unknown ones.

    **Raises:** `BadInput` for a file that is not a table of ids, and for an id that the token would not get.
    """
    try:
        added = json.loads(read_small(file, TOKENIZER_BYTES))
        tokens = sorted(added.items(), key=lambda one: int(one[1]))
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        raise BadInput(f"file {str(file)!r} must have a table of tokens and their ids, as JSON.") from None
    declared = declared_settings(file.parent).get("added_tokens_decoder")
    listed = [one for one in declared.values() if isinstance(one, dict)] if isinstance(declared, dict) else []
    said = {one["content"]: one for one in listed if isinstance(one.get("content"), str)}
    with_role = {*special_tokens(file.parent).values()}
    for name, number in tokens:
        if tokenizer.token_to_id(name) is None:
            _add(tokenizer, {"special": name in with_role, **said.get(name, {}), "content": name})
        if (own := tokenizer.token_to_id(name)) != number:
            raise BadInput(f"file {str(file)!r} gives token {shown(name)} the id {number}, but it would be {own} here.")


def _add(tokenizer: Tokenizer, declared: Document) -> None:
    """Add a token as `added_tokens_decoder` declares it."""
    how = ("single_word", "lstrip", "rstrip", "normalized", "special")
    token = AddedToken(declared["content"], **{name: bool(declared[name]) for name in how if name in declared})
    (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])


def _add_declared(tokenizer: Tokenizer, folder: Path) -> None:
    """Add the tokens that the settings next to a tokenizer declare but it lacks, as with older files.

    Those whose id is not the next one are left out: they are not what the model was trained with.
    """
    try:
        declared = sorted(
            (int(number), dict(one)) for number, one in declared_settings(folder)["added_tokens_decoder"].items()
        )
        missing = [(one, number) for number, one in declared if tokenizer.token_to_id(one["content"]) is None]
    except (KeyError, ValueError, TypeError, AttributeError):
        return
    for one, number in missing:
        if number == vocabulary_size(tokenizer):
            _add(tokenizer, one)


def _with_added(tokenizer: Tokenizer, folder: Path) -> Tokenizer:
    """Add the tokens from files next to the tokenizer, and make those special that have a role in a text."""
    if (folder / ADDED).is_file():
        _add_tokens(tokenizer, folder / ADDED)
    _add_declared(tokenizer, folder)
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
    for name in sorted({*special_tokens(folder).values(), *more_special_tokens(folder)} - special):
        if tokenizer.token_to_id(name) is not None and not _is_text(tokenizer, name):
            tokenizer.add_special_tokens([name])
    return tokenizer


def _is_text(tokenizer: Tokenizer, name: str) -> bool:
    """Whether an entry's name is encoded as that entry anyway, such as the `!` that some pad with: it stays text."""
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    with suppress(BadInput):
        return name not in added and encode(tokenizer, name) == [tokenizer.token_to_id(name)]
    return False


def _from_folder(folder: Path) -> Tokenizer:
    own = declared_settings(folder)
    before = own.get("add_prefix_space") is True
    if (folder / "tokenizer.json").is_file():
        tokenizer = _from_file(folder / "tokenizer.json")
        # Transformers' classes of these names make this part from the settings, not from tokenizer.json.
        spaced = getattr(tokenizer.pre_tokenizer, "add_prefix_space", False)
        if before != spaced and str(own.get("tokenizer_class")).startswith(("GPT2", "GPTNeoX")):
            tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=before)
        return _with_added(tokenizer, folder)
    for vocabulary, merges in (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe")):
        if (folder / vocabulary).is_file() and (folder / merges).is_file():
            _require_gpt2(folder)
            with _reading(f"tokenizer folder {str(folder)!r}"):
                _require_small_ids(read_small(folder / vocabulary, TOKENIZER_BYTES))
                read_small(folder / merges, TOKENIZER_BYTES)  # only to refuse what is no small file
                model = models.BPE.from_file(str(folder / vocabulary), str(folder / merges))
            tokenizer = _with_added(byte_level(model, before), folder)
            # A bare vocabulary does not say which of its entries are special.
            tokenizer.add_special_tokens([n for n in ENDS_OF_TEXT if tokenizer.token_to_id(n) is not None])
            first = special_tokens(folder).get("bos_token", END_OF_TEXT)
            if own.get("add_bos_token") is True and (number := tokenizer.token_to_id(first)) is not None:
                tokenizer.post_processor = processors.TemplateProcessing(
                    single=f"{first} $A", special_tokens=[(first, number)]
                )
            return tokenizer
    raise BadInput(
        f"tokenizer folder {str(folder)!r} holds neither tokenizer.json, nor vocab.json and merges.txt, "
        "nor encoder.json and vocab.bpe."
    )


def _require_gpt2(folder: Path) -> None:
    """Check that neither the settings nor the model next to a vocabulary without tokenizer.json name another kind than
    GPT-2, which would split text differently.

    **Raises:** `BadInput` naming the class, or the kind of model.
    """
    model = declared_settings(folder, "config.json")
    kind = declared_settings(folder).get("tokenizer_class") or model.get("model_type")
    if isinstance(kind, str) and not kind.lower().startswith("gpt2"):
        raise BadInput(
            f"tokenizer folder {str(folder)!r} has the vocabulary of a {shown(kind)}, which does not cut text as GPT-2 "
            "does; AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) of Transformers writes tokenizer.json."
        )


def _from_file(path: Path) -> Tokenizer:
    with _reading(f"tokenizer file {str(path)!r}"):
        content = read_small(path, TOKENIZER_BYTES)
        if content.startswith(POINTER):
            raise BadInput("it is a Git LFS pointer; `git lfs pull` fetches the file.")
        _require_small_ids(content)
        return Tokenizer.from_str(content.decode())


@contextmanager
def _reading(what: str) -> Iterator[None]:
    """Turn any error into a `BadInput` that names `what` is read."""
    try:
        yield
    except BadInput as error:
        raise BadInput(f"{what} cannot be read: {error}") from None
    except MemoryError:  # the machine's fault, not the file's
        raise
    except BaseException as error:
        if not of_library(error):
            raise
        raise BadInput(f"{what} cannot be read: {reason(error)}.") from error


def _require_small_ids(content: bytes) -> None:
    """Refuse an id in a tokenizer's JSON that no embedding has: the library would make a table of that many entries.

    **Raises:** `BadInput` naming it.
    """
    # Only a file with that many digits in a row is parsed here, and then again by the library.
    if not _LARGE.search(content):
        return
    found: Any = json.loads(content)
    model, added = (found.get(name) for name in ("model", "added_tokens")) if isinstance(found, dict) else (None, None)
    entries = model.get("vocab") if isinstance(model, dict) else found  # a vocab.json is nothing but entries
    ids = list(entries.values()) if isinstance(entries, dict) else []
    ids += [token.get("id") for token in added if isinstance(token, dict)] if isinstance(added, list) else []
    largest = max((number for number in ids if isinstance(number, int)), default=0)
    if largest >= MOST_ENTRIES:
        raise BadInput(f"it has the id {largest}, but no model has more than {MOST_ENTRIES:,} entries.")
