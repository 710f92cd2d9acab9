"""Documents to tokens, piece by piece: text of any length passes through bounded memory."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from tokenizers import Tokenizer

from diffeqformer.data.split import Part
from diffeqformer.data.tokenizer import encode, encode_all, end_of_text, pieces

PIECE_CHARACTERS = 1 << 16
BATCH_CHARACTERS = 1 << 20
"""Characters that are tokenised at one time, over all cores."""


def pieces_of(part: Part, tokenizer: Tokenizer) -> Iterator[tuple[str, bool]]:
    """Pieces of all documents in order, each with whether it is the last of its document; what is `Given` stays so."""
    for document in part.read():
        # One piece behind: only the next one, or the end, tells whether it was the last.
        previous = None
        for kind, blocks in groupby(document, type):
            for piece in pieces(tokenizer, blocks, PIECE_CHARACTERS):
                if previous is not None:
                    yield previous, False
                previous = kind(piece)
        yield "" if previous is None else previous, True


def encoded(part: Part, tokenizer: Tokenizer) -> Iterator[tuple[str, bool, list[int]]]:
    """The same with their tokens; the last piece of a document has end-of-text after it."""
    end = end_of_text(tokenizer)
    for batch in _batches(part, tokenizer):
        for (text, last), ids in zip(batch, encode_all(tokenizer, [text for text, _ in batch]), strict=True):
            yield text, last, [*ids, end] if last else ids


class LostText:
    """Counts the characters of a text that its tokens no longer tell: unknown ones, and what is left out or made alike,
    such as capitals; in the first `PIECE_CHARACTERS` of each `BATCH_CHARACTERS`. With `special` the names of special
    tokens stand for them."""

    def __init__(self, tokenizer: Tokenizer, *, special: bool = False) -> None:
        self._tokenizer, self._seen, self._lost, self._passed, self._special = tokenizer, 0, 0, 0, special
        unknown = getattr(tokenizer.model, "unk_token", None)
        self._unknown = None if unknown is None else tokenizer.token_to_id(unknown)

    def see(self, text: str, ids: Sequence[int]) -> None:
        """Count in a piece and its tokens."""
        length = len(text)
        if self._passed % BATCH_CHARACTERS < PIECE_CHARACTERS:
            if len(text) > PIECE_CHARACTERS:  # of what cannot be cut into pieces
                text = text[:PIECE_CHARACTERS]
                ids = encode(self._tokenizer, text)
            known = [one for one in ids if one != self._unknown]
            told = self._tokenizer.decode(known, skip_special_tokens=not self._special)
            self._seen += len(text)
            self._lost += 0 if told == text else (Counter(text) - Counter(told)).total()
        self._passed += length

    @property
    def share(self) -> float:
        """From 0 to 1."""
        return self._lost / max(self._seen, 1)


def _batches(part: Part, tokenizer: Tokenizer) -> Iterator[list[tuple[str, bool]]]:
    batch, characters = [], 0
    for text, last in pieces_of(part, tokenizer):
        batch.append((text, last))
        characters += len(text)
        if characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
