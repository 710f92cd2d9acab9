"""Tokenise documents piece by piece, so that text of any length needs bounded memory only."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from tokenizers import Tokenizer

from diffeqformer.data.split import Part
from diffeqformer.data.tokenizer import decode, encode, encode_all, end_of_text, pieces

PIECE_CHARACTERS = 1 << 16
BATCH_CHARACTERS = 1 << 20
"""Characters that are tokenised at a time, over all cores."""


def pieces_of(part: Part, tokenizer: Tokenizer) -> Iterator[tuple[str, bool]]:
    """Iterate over the pieces of all documents, each with whether it is its document's last; `Given` is preserved."""
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
    """Iterate over `pieces_of` a part with their tokens; end-of-text follows the last piece of each document."""
    end = end_of_text(tokenizer)
    for batch in _batches(part, tokenizer):
        for (text, last), ids in zip(batch, encode_all(tokenizer, [text for text, _ in batch]), strict=True):
            yield text, last, [*ids, end] if last else ids


class LostText:
    """Counts the characters of a text that its tokens do not preserve: unknown ones, and those dropped or normalised,
    such as capitals. Only the first `PIECE_CHARACTERS` of each `BATCH_CHARACTERS` are examined. With `special`, special
    tokens are decoded to their names."""

    def __init__(self, tokenizer: Tokenizer, *, special: bool = False) -> None:
        self._tokenizer, self._seen, self._lost, self._passed, self._special = tokenizer, 0, 0, 0, special
        unknown = getattr(tokenizer.model, "unk_token", None)
        self._unknown = None if unknown is None else tokenizer.token_to_id(unknown)

    def see(self, text: str, ids: Sequence[int]) -> None:
        """Include a piece and its tokens in the count."""
        length = len(text)
        if self._passed % BATCH_CHARACTERS < PIECE_CHARACTERS:
            if len(text) > PIECE_CHARACTERS:  # a text that cannot be cut into pieces
                text = text[:PIECE_CHARACTERS]
                ids = encode(self._tokenizer, text)
            known = [one for one in ids if one != self._unknown]
            told = decode(self._tokenizer, known, special=self._special)
            self._seen += len(text)
            self._lost += 0 if told == text else (Counter(text) - Counter(told)).total()
        self._passed += length

    @property
    def share(self) -> float:
        """Share of the examined characters that are lost, from 0 to 1."""
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
