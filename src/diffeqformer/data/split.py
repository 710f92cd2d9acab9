"""How a corpus is divided into its training and its validation part."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np

from diffeqformer.config import DataConfig
from diffeqformer.data.documents import TextDocument
from diffeqformer.errors import BadInput
from diffeqformer.progress import Progress


@dataclass(frozen=True)
class Part:
    """The training or the validation part of a corpus."""

    documents: int
    size: int | None
    """Bytes of text, for progress (replaced bytes may change it a little); `None` if not counted."""
    read: Callable[[], Iterator[TextDocument]]
    """Reads the documents in order, anew at every call; each must be used before the next is requested."""
    sources: tuple[int, ...] = ()
    """Number of consecutive documents from each source of a mixture."""
    masked: bool = False
    """Whether some text is `Given`."""

    @property
    def length(self) -> int:
        """Length of a progress bar: bytes, or documents if bytes are not counted."""
        return self.documents if self.size is None else self.size

    def amount(self, text: str, last: bool) -> int:
        """Return what a piece of a document adds to the progress; `last`, whether it is the document's last."""
        return int(last) if self.size is None else len(text.encode())


@dataclass(frozen=True)
class TokenPart:
    """The training or the validation part of a corpus generated as tokens, not all of which are worth predicting."""

    documents: int
    blocks: Callable[[], Iterator[tuple[np.ndarray, np.ndarray]]]
    """Generates the tokens of some documents at a time, shape (document, token), and which of them are targets."""


def hold_out(sizes: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """Draw the validation documents in a seeded order until they hold `fraction` of the bytes.

    At least one document is held out and at least one is left. A document of more than twice the bytes wanted is
    skipped, so that a single long one does not become the whole validation part. If less than half of the bytes wanted
    is in the others, the shortest of several that are skipped is drawn too: a few short files are no validation part.

    **Arguments:** `sizes (documents,)`, bytes; `fraction`, of all bytes; `seed`, of NumPy's default generator.

    **Returns:** booleans `(documents,)`.

    **Raises:** `BadInput` if `fraction` is 0.
    """
    require_fraction(fraction)
    order = np.random.default_rng(seed).permutation(len(sizes))
    wanted = fraction * sizes.sum()
    drawn = sizes <= 2 * wanted
    if sizes[drawn].sum() < wanted / 2 and (~drawn).sum() > 1:
        drawn |= sizes == sizes[~drawn].min()
    order = order[drawn[order]]
    filled = np.searchsorted(np.cumsum(sizes[order]), wanted) + 1
    held = np.zeros(len(sizes), dtype=bool)
    held[order[: min(int(filled), len(sizes) - 1)]] = True
    return held


def split_single(
    documents: Callable[[], Iterator[TextDocument]], size: int, config: DataConfig, progress: Progress
) -> tuple[Part, Part]:
    """Hold out the tail of the only document, from the start of a line on.

    **Raises:** `BadInput` if `validation_fraction` is 0, or there is only one line.
    """
    require_fraction(config.validation_fraction)
    cut, length = _line_start(lambda: chain.from_iterable(documents()), config.validation_fraction)
    progress.say(
        f"The corpus is a single document: its last {length - cut} of {length} characters are the validation part."
    )

    def head(document: TextDocument) -> Iterator[str]:
        left = cut
        for block in document:
            yield block[:left]
            left -= len(block)
            if left <= 0:
                return

    def tail(document: TextDocument) -> Iterator[str]:
        left = cut
        for block in document:
            if left < len(block):
                yield block[max(left, 0) :]
            left -= len(block)

    held = round(size * (length - cut) / length)
    return (
        Part(1, size - held, lambda: (head(document) for document in documents())),
        Part(1, held, lambda: (tail(document) for document in documents())),
    )


def _line_start(blocks: Callable[[], Iterator[str]], fraction: float) -> tuple[int, int]:
    """Count the characters before the line that begins about the last `fraction` of a text, and those of all of it.

    **Raises:** `BadInput` if no line starts inside the text.
    """
    length = sum(map(len, blocks()))  # a first pass: only one block is in memory at a time
    target, position, cut = min(int(length * (1 - fraction)), length - 1), 0, 0
    for block in blocks():
        within = max(target - position, 0)
        last = block.rfind("\n", 0, within)
        cut = position + last + 1 if last >= 0 else cut
        if within < len(block):
            if not cut:  # no line starts before the target: take the first one after it
                cut = position + block.find("\n", within) + 1 if "\n" in block[within:] else 0
            if 0 < cut < length:
                return cut, length
        position += len(block)
    raise BadInput(
        "the corpus is a single document of a single line, which cannot be split: "
        "give a second document or data.validation."
    )


def require_fraction(fraction: float) -> None:
    """Check that something is held out.

    **Raises:** `BadInput` if nothing is.
    """
    if fraction <= 0:
        raise BadInput(f"data.validation_fraction is {fraction}, but must be above 0 when nothing else is validation.")
