"""Tokenizers: byte-level BPE trained on a corpus, and functions of any (`tokenizer_files.py` loads others)."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from diffeqformer.errors import BadInput, reason
from diffeqformer.plain import shown

END_OF_TEXT = "<|endoftext|>"
ENDS_OF_TEXT = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "[EOS]", "<｜end▁of▁sentence｜>")
"""Names that published tokenizers give to the token that ends a document."""
ENDS_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>")
"""Names that tokenizers of chat models (Qwen, Llama 3, Gemma, Phi) give to the token that ends a turn."""
_SAFE_CUT = re.compile(r"(?=\n\S)")


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    """Train a byte-level BPE tokenizer with GPT-2's pre-tokenisation (Radford et al. 2019).

    Any text can be encoded and comes back unchanged, since all 256 bytes are entries. The same texts give the same
    tokenizer.

    **Arguments:** `texts`, whole documents or their `pieces`; `vocabulary`, entries wanted, end-of-text included (a
    small corpus may give fewer).

    **Returns:** the tokenizer.
    """
    tokenizer = byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return plain_text(tokenizer)


def end_of_text(tokenizer: Tokenizer) -> int:
    """Return the id of the token that ends a document.

    **Raises:** `BadInput` if the tokenizer has none.
    """
    ids = (tokenizer.token_to_id(name) for name in ENDS_OF_TEXT)
    found = next((i for i in ids if i is not None), None)
    if found is None:
        raise BadInput(f"the tokenizer has no token that ends a document; it needs one of {', '.join(ENDS_OF_TEXT)}.")
    return found


def ends_of_generation(tokenizer: Tokenizer) -> list[int]:
    """Return the tokens at which generated text ends: `end_of_text`, then others that end a document or a turn.

    **Raises:** as `end_of_text`.
    """
    others = (tokenizer.token_to_id(name) for name in (*ENDS_OF_TEXT, *ENDS_OF_TURN))
    return list(dict.fromkeys((end_of_text(tokenizer), *(i for i in others if i is not None))))


def encode(tokenizer: Tokenizer, text: str, *, around: bool = False) -> list[int]:
    """Return the tokens of a text; with `around`, also those that the tokenizer puts before and after it.

    **Raises:** `BadInput` if the tokenizer cannot encode it.
    """
    try:
        return tokenizer.encode(text, add_special_tokens=around).ids
    except BaseException as error:
        if not of_library(error):
            raise
        raise BadInput(
            f"the tokenizer cannot encode {shown(text)}: {reason(error)}; it needs tokens for all that a text may "
            "have, such as one for what is unknown, named by its unk_token or unk_id and in its vocabulary."
        ) from None


def encode_all(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Return the tokens of each of many texts, using all cores."""
    try:
        # The fast kind leaves out each token's place in the text, which nothing here needs.
        return [one.ids for one in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
    except BaseException as error:
        if not of_library(error):
            raise
        return [encode(tokenizer, text) for text in texts]  # the error names the one that fails


def decode(tokenizer: Tokenizer, ids: Sequence[int], *, special: bool = False) -> str:
    """Return the text of some tokens; with `special`, special tokens are in it by name.

    **Raises:** `BadInput` if the tokenizer cannot decode them.
    """
    try:
        return tokenizer.decode(ids, skip_special_tokens=not special)
    except BaseException as error:
        if not of_library(error):
            raise
        raise BadInput(
            f"the tokenizer cannot decode the tokens {shown([*ids])}: {reason(error)}; its decoder must take all of its"
            " tokens."
        ) from None


def of_library(error: BaseException) -> bool:
    """Whether an error is the tokenizers library's: a bare exception, or a panic, which is not an `Exception`."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def leading(tokenizer: Tokenizer) -> list[int]:
    """Return the special tokens that the tokenizer puts before a text, such as Llama's `<s>`, not those after it."""
    text, alone = _any_text(tokenizer)
    whole = encode(tokenizer, text, around=True)
    starts = range(len(whole) - len(alone) + 1)
    return whole[: next((k for k in starts if whole[k : k + len(alone)] == alone), 0)]


def _any_text(tokenizer: Tokenizer) -> tuple[str, list[int]]:
    """Return a text that has tokens, and its tokens: some vocabularies, such as one of proteins, lack the letter a."""
    for text in chain("a", (tokenizer.id_to_token(entry) or "" for entry in ordinary(tokenizer))):
        with suppress(BadInput):
            if ids := encode(tokenizer, text):
                return text, ids
    return "", []


def adding_nothing(tokenizer: Tokenizer) -> Tokenizer:
    """Return a tokenizer that puts no special tokens around a text in Transformers either."""
    text, alone = _any_text(tokenizer)
    if len(encode(tokenizer, text, around=True)) == len(alone):
        return tokenizer
    return plain_text(Tokenizer.from_str(json.dumps(json.loads(tokenizer.to_str()) | {"post_processor": None})))


def without_special(tokenizer: Tokenizer, entries: int) -> tuple[Tokenizer, list[str]]:
    """Return the tokenizer without the special tokens whose ids are `entries` or more, and the names of those removed.

    Tokens that are in the vocabulary proper, are put around texts, or end documents stay.
    """
    found = json.loads(tokenizer.to_str())
    # As text: a name in its quotes is found wherever it stands, whatever the kind of post-processor.
    used = json.dumps([found["model"]["vocab"], found["post_processor"], ENDS_OF_TEXT])
    beyond = [token for token in found["added_tokens"] if token["id"] >= entries and token["special"]]
    left = [token["content"] for token in beyond if json.dumps(token["content"]) not in used]
    found["added_tokens"] = [token for token in found["added_tokens"] if token["content"] not in left]
    return (plain_text(Tokenizer.from_str(json.dumps(found))) if left else tokenizer), left


def reading_special_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """Return a copy of the tokenizer that reads a special token's name in a text as that token, as in Transformers."""
    found = Tokenizer.from_str(tokenizer.to_str())
    found.encode_special_tokens = False
    return found


def vocabulary_size(tokenizer: Tokenizer) -> int:
    """Return the number of entries that an embedding needs: the highest id plus one, since ids may have gaps."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1


def ordinary(tokenizer: Tokenizer) -> list[int]:
    """Return the ids of all entries but the added tokens, which include the special ones."""
    special = tokenizer.get_added_tokens_decoder()
    return sorted(set(tokenizer.get_vocab().values()) - special.keys())


def pieces(tokenizer: Tokenizer, document: Iterable[str], characters: int) -> Iterator[str]:
    """Cut a document into pieces that tokenise, one after the other, exactly as the whole does.

    GPT-2's pre-tokenisation never joins a line break that a non-space character follows with anything around it, so a
    cut before such a line break changes nothing. A tokenizer that pre-tokenises in another way, or has added tokens
    that reach over line breaks, gets the document whole.

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
            yield rest[start : cut.start()]
            start, searched = cut.start(), 0
        rest = rest[start:]
        searched = max(len(rest) - 1, 0)  # a last line break must be looked at again, with what follows it
    yield rest


def byte_level(model: models.BPE, prefix_space: bool = False) -> Tokenizer:
    """Make a tokenizer that splits text as GPT-2's does; with `prefix_space`, as if a space preceded the first word."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def plain_text(tokenizer: Tokenizer) -> Tokenizer:
    """Set the tokenizer to read text as plain text: no truncation, padding or special tokens, and no BPE dropout."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True  # "<|endoftext|>" written in a document does not end it
    if getattr(tokenizer.model, "dropout", None):
        tokenizer.model.dropout = None  # merges left out at random: a text would have different tokens each time
    return tokenizer
