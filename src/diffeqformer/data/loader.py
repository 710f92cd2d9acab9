"""Batches of a token array: random access by number for training, every token once for evaluation."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Int32, Integer

from diffeqformer.config.bounds import INT32, whole
from diffeqformer.errors import BadInput
from diffeqformer.plain import shown

HostBatch = np.ndarray | tuple[np.ndarray, np.ndarray]
"""Ids, or the pair of ids and of which targets count, in the memory of this process."""


def require_batches(tokens: np.ndarray, context: int, batch_size: int) -> None:
    """Check the tokens and sizes of batches.

    **Raises:** `BadInput` for tokens that are not whole numbers of 32 bits, or sizes that are not positive.
    """
    for name, size in (("context", context), ("batch_size", batch_size)):
        whole(name, size, 1)
    if not hasattr(tokens, "dtype"):
        raise BadInput(f"tokens are {shown(tokens)}, but must be an array of whole numbers.")
    if not np.issubdtype(tokens.dtype, np.integer):
        raise BadInput(f"tokens are {tokens.dtype}, but must be whole numbers.")
    if tokens.dtype.itemsize > 4 and len(tokens) and not 0 <= tokens.min() <= tokens.max() <= INT32:
        raise BadInput(f"tokens go from {tokens.min()} to {tokens.max()}, but must be from 0 to {INT32}.")


class Spans:
    """Windows of a token array: the start and the exclusive stop of each, in tokens."""

    def __init__(self, starts: Integer[np.ndarray, " window"], stops: Integer[np.ndarray, " window"]):
        self.starts, self.stops = starts, stops

    def __len__(self) -> int:
        return len(self.starts)

    def span(self, index: int) -> tuple[int, int]:
        """Return the start and the exclusive stop of window `index`."""
        return self.starts[index].item(), self.stops[index].item()

    def counted(self, mask: Bool[np.ndarray, " token"]) -> "Spans":
        """Return the windows with a target that counts, and so a loss; `mask` is true where a token counts as one."""
        counted = np.flatnonzero(mask)
        # The first token of a window is not one of its targets.
        own = np.searchsorted(counted, self.stops) > np.searchsorted(counted, self.starts + 1)
        return Spans(self.starts[own], self.stops[own])


def packed_windows(tokens: Integer[np.ndarray, " token"], context: int) -> Spans:
    """Return overlapping windows of tokens: `i` holds tokens `i * context` to `(i + 1) * context`, both included.

    The last token of a window is the first of the next, so every token but the very first is a target exactly once.
    Fewer than `context` tokens at the end, which fill no window, are left out.
    """
    starts = context * np.arange(max(len(tokens) - 1, 0) // context)
    return Spans(starts, starts + context + 1)


def document_windows(tokens: Integer[np.ndarray, " token"], context: int, end: int) -> Spans:
    """Return windows of each document by itself, so that none has text of two; the last of a document may be shorter.

    **Arguments:** `tokens (tokens,)`; `context`; `end`, the token that ends a document and belongs to it.
    """
    stops = np.flatnonzero(tokens == end) + 1
    firsts = np.concatenate([[0], stops])[:-1]
    counts = -(-(stops - firsts - 1) // context)  # none for an empty document
    starts = np.repeat(firsts, counts) + context * _ranges(counts)
    return Spans(starts, np.minimum(np.repeat(stops, counts), starts + context + 1))


def _ranges(counts: Integer[np.ndarray, " range"]) -> Integer[np.ndarray, " number"]:
    """Concatenate the ranges 0, 1, ..., count - 1 for each count."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


class Loader:
    """An endless series of training batches, each computed from its number alone.

    Windows of `context + 1` tokens are shuffled anew in every epoch (Grain's pseudo-random permutation, evaluated at
    one index at a time); batch `k` holds windows `k * batch_size` to `(k + 1) * batch_size - 1` of that order.

    In a mixture each source has its own such order, and their windows are interleaved in proportion to the weights (by
    Grain). Documents that are kept apart have windows of their own, padded at the end. Windows without a target that
    counts are left out.

    **Arguments:** `tokens (tokens,)`; `context`, `batch_size`, positive; `seed`, from 0 to 2^32 - 1; `mask (tokens,)`,
    true where a token counts as a target, if not all do; `mixture`, number of tokens and weight of each source, if
    there are several; `end`, the token that ends a document, if documents are kept apart.

    **Raises:** `BadInput` as `require_batches`, if there are fewer tokens than one window needs, or for a seed out of
    range.
    """

    def __init__(
        self,
        tokens: Integer[np.ndarray, " tokens"],
        context: int,
        batch_size: int,
        seed: int,
        mask: Bool[np.ndarray, " tokens"] | None = None,
        mixture: Sequence[tuple[int, float]] = (),
        end: int | None = None,
    ):
        import grain  # takes a second or two, which no other command should wait for

        require_batches(tokens, context, batch_size)
        self.tokens, self.context, self.batch_size, self.mask, self.end = tokens, context, batch_size, mask, end
        counts = [count for count, _ in mixture] or [len(tokens)]
        self._offsets = np.cumsum([0, *counts])[:-1]
        parts = [tokens[first : first + count] for first, count in zip(self._offsets, counts, strict=True)]
        self._sources = [
            packed_windows(part, context) if end is None else document_windows(part, context, end) for part in parts
        ]
        for number, (first, windows) in enumerate(zip(self._offsets, self._sources, strict=True)):
            what = f"source {number + 1} of the mixture" if mixture else "the training split"
            if not len(windows) and end is not None:
                raise BadInput(f"{what} has {counts[number]} tokens, but no document of two.")
            if not len(windows):
                raise BadInput(
                    f"{what} has {counts[number]} tokens, but a context of {context} needs at least "
                    f"{context + 1}: give more text or a smaller model.context."
                )
            if mask is not None:
                self._sources[number] = windows.counted(mask[first : first + counts[number]])
            if not len(self._sources[number]):
                raise BadInput(f"{what} has no window of {context} tokens with a target that counts.")
        if not 0 <= seed < 1 << 32:  # Grain's limits
            raise BadInput(f"the seed of the batches is {seed}, but must be at least 0 and below {1 << 32}.")
        self._ends = np.cumsum(list(map(len, self._sources)))
        # The ranges do not overlap, so a number from the mixture identifies its source.
        ranges = [(int(end) - len(own), int(end)) for own, end in zip(self._sources, self._ends, strict=True)]
        orders = [grain.MapDataset.range(*own).seed(seed).shuffle().repeat() for own in ranges]
        weights = [weight for _, weight in mixture]
        self._order = grain.MapDataset.mix(orders, [w / sum(weights) for w in weights]) if mixture else orders[0]

    def __len__(self) -> int:
        """Batches per epoch, rounded up to hold as many windows as there are: each at least once unless mixed."""
        return (int(self._ends[-1]) + self.batch_size - 1) // self.batch_size

    @property
    def masks(self) -> bool:
        """Whether not all targets count."""
        return self.mask is not None or self.end is not None

    def __getitem__(self, k: int) -> HostBatch:
        """Return batch `k`, for any `k` from 0: ids `(batch, context + 1)`; inputs are `[:, :-1]`, targets `[:, 1:]`.

        With a mask, return the pair of ids and of which targets count, booleans `(batch, context)`.

        **Raises:** `IndexError` for a negative `k`.
        """
        ids = self.rows(k, 0, self.batch_size)
        return (ids, self.mask_rows(k, 0, self.batch_size)) if self.masks else ids

    def rows(self, k: int, start: int, stop: int) -> Int32[np.ndarray, "row window"]:
        """Return rows `start` to `stop - 1` of batch `k`; no others are read.

        **Raises:** `IndexError` for a negative `k`.
        """
        own = [np.asarray(self.tokens[first:last], np.int32) for first, last in self._spans(k, start, stop)]
        return np.stack([np.pad(row, (0, self.context + 1 - len(row)), constant_values=self.end or 0) for row in own])

    def mask_rows(self, k: int, start: int, stop: int) -> Bool[np.ndarray, "row context"]:
        """Return which targets count in rows `start` to `stop - 1` of batch `k`."""
        counts = lambda first, last: np.ones(last - first, bool) if self.mask is None else self.mask[first:last]
        own = [counts(*span) for span in self._spans(k, start, stop)]
        return np.stack([np.pad(row, (0, self.context + 1 - len(row))) for row in own])[:, 1:].astype(bool)

    def _spans(self, k: int, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Iterate over the start and the exclusive stop, in tokens, of the windows of these rows."""
        if k < 0:
            raise IndexError(f"batch {k} was asked for, but they are numbered from 0")
        for row in range(start, stop):
            number: Any = self._order[k * self.batch_size + row]
            source = int(np.searchsorted(self._ends, number, side="right"))
            windows, offset = self._sources[source], int(self._offsets[source])
            first, last = windows.span(number - int(self._ends[source]) + len(windows))
            yield offset + first, offset + last


class EvaluationBatches:
    """Batches in which every token but the first is a target exactly once, all of one shape.

    **Arguments:** `tokens (tokens,)`; `context`, `batch_size`, positive; `mask (tokens,)`, true where a token counts
    as a target, if not all do.

    **Raises:** `BadInput` as `require_batches`, and for fewer than two tokens.
    """

    def __init__(
        self,
        tokens: Integer[np.ndarray, " tokens"],
        context: int,
        batch_size: int,
        mask: Bool[np.ndarray, " tokens"] | None = None,
    ):
        require_batches(tokens, context, batch_size)
        if len(tokens) < 2:
            raise BadInput(f"the text to evaluate has {len(tokens)} tokens, but at least 2 are needed.")
        self.tokens, self.context, self.batch_size, self.mask = tokens, context, batch_size, mask

    def __len__(self) -> int:
        covered = self.batch_size * self.context
        return (len(self.tokens) - 1 + covered - 1) // covered

    def __getitem__(self, k: int) -> tuple[Int32[np.ndarray, "batch window"], Bool[np.ndarray, "batch context"]]:
        """Return batch `k`: ids `(batch, context + 1)`, padded with 0, and which of its targets count.

        **Raises:** `IndexError` outside 0 to `len - 1`.
        """
        if not 0 <= k < len(self):
            raise IndexError(f"batch {k} was asked for, but there are {len(self)}")
        covered = self.batch_size * self.context
        chosen = np.asarray(self.tokens[k * covered : (k + 1) * covered + 1], np.int32)
        padded = np.pad(chosen, (0, covered + 1 - len(chosen)))
        inputs = padded[:-1].reshape(self.batch_size, self.context)
        targets = padded[1:].reshape(self.batch_size, self.context)
        mask = np.arange(covered) < len(chosen) - 1
        if self.mask is not None:
            mask[: len(chosen) - 1] = self.mask[k * covered + 1 : k * covered + len(chosen)]
        return np.concatenate([inputs, targets[:, -1:]], axis=1), mask.reshape(self.batch_size, self.context)

    def spread(self, count: int) -> list[tuple[Int32[np.ndarray, "batch window"], Bool[np.ndarray, "batch context"]]]:
        """`count` batches at equal distances over the whole text, so that no single document decides; all for 0."""
        count = min(count or len(self), len(self))
        return [self[k * len(self) // count] for k in range(count)]

    def __iter__(self) -> Iterator[tuple[Int32[np.ndarray, "batch window"], Bool[np.ndarray, "batch context"]]]:
        return (self[k] for k in range(len(self)))


def spread_windows(
    tokens: Integer[np.ndarray, " tokens"], count: int, length: int, unit: int = 1
) -> Int32[np.ndarray, "count length"]:
    """`count` windows of `length` tokens, evenly spread over a text; as many as it has without overlap.

    **Arguments:** `unit`, tokens of each problem, if the text is of problems: every window then begins with one, and
    may share its last token with the next.
    """
    length = min(length, len(tokens))
    last = (len(tokens) - length) // unit
    starts = np.linspace(0, last, min(count, len(tokens) // max(length, 1))).astype(int) * unit
    return np.stack([np.asarray(tokens[start : start + length], np.int32) for start in starts])
