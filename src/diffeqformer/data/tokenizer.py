"""Byte-level BPE tokenizers: trained on a corpus, or loaded from files or from the Hugging Face hub."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from diffeqformer.config.bounds import MOST_ENTRIES
from diffeqformer.data.beside import TOKENIZER_BYTES, settings_of, special_tokens
from diffeqformer.errors import BadInput, reason
from diffeqformer.plain import Document, shown
from diffeqformer.store.hub import TOKENIZER_FILES, Repository, fetch
from diffeqformer.store.paths import path_of
from diffeqformer.store.regular import read_small

END_OF_TEXT = "<|endoftext|>"
ENDS_OF_TEXT = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "[EOS]", "<｜end▁of▁sentence｜>")
"""Names that published tokenizers give to the token that ends a document."""
ENDS_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>")
"""Names that those of chat models (Qwen, Llama 3, Gemma, Phi) give to the token that ends what one side says."""
ADDED = "added_tokens.json"
"""Beside the files of a vocabulary; tokenizer.json has itself what it says, unless it is older."""
_LARGE = re.compile(rb"\d{%d}" % len(str(MOST_ENTRIES)))
_SAFE_CUT = re.compile(r"(?<=\S)\n(?=\S)")


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    """Train a byte-level BPE tokenizer with GPT-2's pre-tokenisation (Radford et al. 2019).

    Any text can be encoded and comes back unchanged, since all 256 bytes are entries. The same texts give the same
    tokenizer.

    **Arguments:** `texts`, whole documents or their `pieces`; `vocabulary`, entries wanted, end-of-text included (a
    small corpus may give fewer).

    **Returns:** the tokenizer.
    """
    tokenizer = _byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _plain_text(tokenizer)


def load_tokenizer(spec: str | Path) -> Tokenizer:
    """Load a tokenizer and set it to read text as nothing but text: no truncation, padding or special tokens, and no
    merges that are left out at random.

    **Arguments:** `spec`, a `tokenizer.json`, a folder that holds `tokenizer.json`, or `vocab.json` and `merges.txt`,
    or `encoder.json` and `vocab.bpe` (GPT-2's own names), or else a name on the Hugging Face hub.

    **Raises:** `BadInput` if there is no such tokenizer, or if it cannot be read or fetched.
    """
    path = path_of(spec)
    if path.is_dir():
        return _plain_text(_from_folder(path))
    if path.is_file():
        return _plain_text(_from_file(path))
    repository = None if path.suffix == ".json" else Repository.named(spec)
    if repository is None:
        raise BadInput(f"tokenizer {str(spec)!r} does not exist; give a file, a folder, a hub name or 'train'.")
    return _plain_text(_from_folder(fetch(repository, TOKENIZER_FILES)))


def end_of_text(tokenizer: Tokenizer) -> int:
    """The id of the token that ends a document.

    **Raises:** `BadInput` if the tokenizer has none.
    """
    ids = (tokenizer.token_to_id(name) for name in ENDS_OF_TEXT)
    found = next((i for i in ids if i is not None), None)
    if found is None:
        raise BadInput(f"the tokenizer has no token that ends a document; it needs one of {', '.join(ENDS_OF_TEXT)}.")
    return found


def ends_of_generation(tokenizer: Tokenizer) -> list[int]:
    """The tokens at which generated text ends: `end_of_text` first, then others that end a document or a turn.

    **Raises:** as `end_of_text`.
    """
    others = (tokenizer.token_to_id(name) for name in (*ENDS_OF_TEXT, *ENDS_OF_TURN))
    return list(dict.fromkeys((end_of_text(tokenizer), *(i for i in others if i is not None))))


def encode(tokenizer: Tokenizer, text: str, *, around: bool = False) -> list[int]:
    """The tokens of a text; `around`, with those that the tokenizer puts before and after it.

    **Raises:** `BadInput` if the tokenizer cannot encode it.
    """
    try:
        return tokenizer.encode(text, add_special_tokens=around).ids
    except BaseException as error:
        if not _of_library(error):
            raise
        raise BadInput(
            f"the tokenizer cannot encode {shown(text)}: {reason(error)}; it needs tokens for all that a text may "
            "have, such as one for what is unknown, named by its unk_token or unk_id and in its vocabulary."
        ) from None


def encode_all(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """The same of many texts, over all cores."""
    try:
        return [one.ids for one in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
    except BaseException as error:
        if not _of_library(error):
            raise
        return [encode(tokenizer, text) for text in texts]  # of which one is named


def _of_library(error: BaseException) -> bool:
    """Whether it is an error of the tokenizers library: a bare exception, or a panic, which is none."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def leading(tokenizer: Tokenizer) -> list[int]:
    """The special tokens that the tokenizer puts before a text, such as Llama's `<s>`; none that it puts after one."""
    whole, alone = encode(tokenizer, "a", around=True), encode(tokenizer, "a")
    starts = range(len(whole) - len(alone) + 1)
    return whole[: next((k for k in starts if whole[k : k + len(alone)] == alone), 0)]


def adding_nothing(tokenizer: Tokenizer) -> Tokenizer:
    """The same tokenizer, which puts no special tokens around a text in Transformers either."""
    if len(encode(tokenizer, "a", around=True)) == len(encode(tokenizer, "a")):
        return tokenizer
    return _plain_text(Tokenizer.from_str(json.dumps(json.loads(tokenizer.to_str()) | {"post_processor": None})))


def without_special(tokenizer: Tokenizer, entries: int) -> tuple[Tokenizer, list[str]]:
    """The same tokenizer without the special tokens whose ids are `entries` or more, and the names of these.

    One that is in the vocabulary proper, put around texts or ends documents stays.
    """
    found = json.loads(tokenizer.to_str())
    # As text: a name in its quotes is found wherever it stands, whatever the kind of post-processor.
    used = json.dumps([found["model"]["vocab"], found["post_processor"], ENDS_OF_TEXT])
    beyond = [token for token in found["added_tokens"] if token["id"] >= entries and token["special"]]
    left = [token["content"] for token in beyond if json.dumps(token["content"]) not in used]
    found["added_tokens"] = [token for token in found["added_tokens"] if token["content"] not in left]
    return (_plain_text(Tokenizer.from_str(json.dumps(found))) if left else tokenizer), left


def reading_special_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """The same tokenizer, for which the name of a special token in a text is that token, as in Transformers."""
    found = Tokenizer.from_str(tokenizer.to_str())
    found.encode_special_tokens = False
    return found


def vocabulary_size(tokenizer: Tokenizer) -> int:
    """Entries that an embedding needs: the highest id and one, as ids may have holes."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1


def ordinary(tokenizer: Tokenizer) -> list[int]:
    """The entries that are no special tokens."""
    special = tokenizer.get_added_tokens_decoder()
    return sorted(set(tokenizer.get_vocab().values()) - special.keys())


def pieces(tokenizer: Tokenizer, document: Iterable[str], characters: int) -> Iterator[str]:
    """Cut a document into pieces that tokenise, one after the other, exactly as the whole does.

    GPT-2's pre-tokenisation never joins a single line break with the non-space characters around it, so a cut after
    such a line break changes nothing. A tokenizer that pre-tokenises in another way, or has added tokens that reach
    over line breaks, gets the document whole.

    **Arguments:** `document`, blocks of text; `characters`, the least length of a piece (but the last).

    **Returns:** the pieces; their concatenation is the document.
    """
    pre = tokenizer.pre_tokenizer
    byte_level = isinstance(pre, pre_tokenizers.ByteLevel) and not pre.add_prefix_space and pre.use_regex
    added = [token for token in tokenizer.get_added_tokens_decoder().values() if not token.special]
    across = any(token.lstrip or token.rstrip or "\n" in token.content for token in added)
    if not byte_level or across or tokenizer.normalizer is not None:
        yield "".join(document)
        return
    rest, searched = "", 0
    for block in document:
        rest, start = rest + block, 0
        while cut := _SAFE_CUT.search(rest, start + max(characters, searched)):
            yield rest[start : cut.end()]
            start, searched = cut.end(), 0
        rest = rest[start:]
        searched = max(len(rest) - 1, 0)  # a last line break must be looked at again, with what follows it
    yield rest


def _byte_level(model: models.BPE) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _add_tokens(tokenizer: Tokenizer, file: Path) -> None:
    """Tokens that were added to a vocabulary, with the ids that they were given; special where the settings beside the
    file declare them so, or name them as one that begins, ends or pads a text.

    **Raises:** `BadInput` for a file that is no table of ids, and for an id that would be another.
    """
    try:
        added = json.loads(read_small(file, TOKENIZER_BYTES))
        tokens = sorted(added.items(), key=lambda one: int(one[1]))
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        raise BadInput(f"file {str(file)!r} must have a table of tokens and their ids, as JSON.") from None
    declared = settings_of(file.parent).get("added_tokens_decoder")
    listed = [one for one in declared.values() if isinstance(one, dict)] if isinstance(declared, dict) else []
    said = {one["content"]: one for one in listed if isinstance(one.get("content"), str)}
    with_role = {*special_tokens(file.parent).values()}
    for name, number in tokens:
        if tokenizer.token_to_id(name) is None:
            _add(tokenizer, {"special": name in with_role, **said.get(name, {}), "content": name})
        if (own := tokenizer.token_to_id(name)) != number:
            raise BadInput(f"file {str(file)!r} gives token {shown(name)} the id {number}, but it would be {own} here.")


def _add(tokenizer: Tokenizer, declared: Document) -> None:
    """A token as `added_tokens_decoder` declares it."""
    how = ("single_word", "lstrip", "rstrip", "normalized", "special")
    token = AddedToken(declared["content"], **{name: bool(declared[name]) for name in how if name in declared})
    (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])


def _add_declared(tokenizer: Tokenizer, folder: Path) -> None:
    """Tokens that the settings beside a tokenizer declare and it has not itself, as older files do.

    Those whose id is not the next one are left out: they are not what the model was trained with.
    """
    try:
        declared = sorted(
            (int(number), dict(one)) for number, one in settings_of(folder)["added_tokens_decoder"].items()
        )
        missing = [(one, number) for number, one in declared if tokenizer.token_to_id(one["content"]) is None]
    except (KeyError, ValueError, TypeError, AttributeError):
        return
    for one, number in missing:
        if number == vocabulary_size(tokenizer):
            _add(tokenizer, one)


def _with_added(tokenizer: Tokenizer, folder: Path) -> Tokenizer:
    """The tokenizer with the tokens that files beside it add."""
    if (folder / ADDED).is_file():
        _add_tokens(tokenizer, folder / ADDED)
    _add_declared(tokenizer, folder)
    return tokenizer


def _from_folder(folder: Path) -> Tokenizer:
    if (folder / "tokenizer.json").is_file():
        return _with_added(_from_file(folder / "tokenizer.json"), folder)
    for vocabulary, merges in (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe")):
        if (folder / vocabulary).is_file() and (folder / merges).is_file():
            _require_gpt2(folder)
            with _reading(f"tokenizer folder {str(folder)!r}"):
                _require_small_ids(read_small(folder / vocabulary, TOKENIZER_BYTES))
                read_small(folder / merges, TOKENIZER_BYTES)
                model = models.BPE.from_file(str(folder / vocabulary), str(folder / merges))
            tokenizer = _with_added(_byte_level(model), folder)
            # A bare vocabulary does not say which of its entries are special.
            tokenizer.add_special_tokens([n for n in ENDS_OF_TEXT if tokenizer.token_to_id(n) is not None])
            return tokenizer
    raise BadInput(
        f"tokenizer folder {str(folder)!r} holds neither tokenizer.json, nor vocab.json and merges.txt, "
        "nor encoder.json and vocab.bpe."
    )


def _require_gpt2(folder: Path) -> None:
    """Check that a vocabulary without tokenizer.json is not said to be another class's: each cuts text in its own way.

    **Raises:** `BadInput` naming the class.
    """
    kind = settings_of(folder).get("tokenizer_class")
    if isinstance(kind, str) and not kind.startswith("GPT2"):
        raise BadInput(
            f"tokenizer folder {str(folder)!r} has the vocabulary of a {shown(kind)}, which does not cut text as GPT-2 "
            "does; AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) of Transformers writes tokenizer.json."
        )


def _from_file(path: Path) -> Tokenizer:
    with _reading(f"tokenizer file {str(path)!r}"):
        content = read_small(path, TOKENIZER_BYTES)
        if content.startswith(b"version https://git-lfs"):
            raise BadInput("it is a Git LFS pointer; `git lfs pull` fetches the file.")
        _require_small_ids(content)
        return Tokenizer.from_str(content.decode())


@contextmanager
def _reading(what: str) -> Iterator[None]:
    """**Raises:** `BadInput` that names `what` is read, if it cannot be."""
    try:
        yield
    except BadInput as error:
        raise BadInput(f"{what} cannot be read: {error}") from None
    except Exception as error:  # the library raises bare exceptions
        raise BadInput(f"{what} cannot be read: {reason(error)}.") from error


def _require_small_ids(content: bytes) -> None:
    """Check a tokenizer's JSON for an id that no embedding has: the library would make a table of that many entries.

    **Raises:** `BadInput` naming it.
    """
    # Only a file with so many digits in a row is parsed here, and then again by the library.
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


def _plain_text(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True  # "<|endoftext|>" written in a document does not end it
    if getattr(tokenizer.model, "dropout", None):
        tokenizer.model.dropout = None  # merges left out at random: a text would have other tokens each time
    return tokenizer
