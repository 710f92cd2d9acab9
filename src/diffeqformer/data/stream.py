"""Training batches from text that is read, tokenised and discarded, so that a source may be larger than any disk."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int32
from tokenizers import Tokenizer

from diffeqformer.data.documents import Given, TextDocument, bytes_of
from diffeqformer.data.encode import encoded
from diffeqformer.data.loader import HostBatch
from diffeqformer.data.split import Part, hold_out
from diffeqformer.data.tokenizer import end_of_text
from diffeqformer.errors import BadInput

Shard = Callable[[], Iterator[TextDocument]]
"""Reads the documents of a file in order, anew at every call; each must be used before the next is requested."""
FAR = 1 << 40
"""More windows than a source ever gives."""


@dataclass(frozen=True)
class Source:
    """Text that is read in order, again and again."""

    name: str
    shards: Sequence[Shard]
    held: frozenset[tuple[int, int]] = frozenset()
    """Validation documents, by shard and number, which training does not read."""

    def documents(self, shard: int = 0, document: int = 0) -> Iterator[tuple[int, int, TextDocument]]:
        """Iterate from a document to the end, each with its shard and number; earlier shards are not opened."""
        for s in range(shard, len(self.shards)):
            for d, found in enumerate(self.shards[s]()):
                if (s, d) not in self.held and (s > shard or d >= document):
                    yield s, d, found


def divided(
    sources: Sequence[Source], validation: Part | None, most: int, fraction: float, seed: int, masked: bool
) -> tuple[Part, Part, tuple[Source, ...]]:
    """Divide streamed sources into packed training and validation parts, and the sources that training reads.

    **Arguments:** `sources`; `validation`, or `None` to hold documents out of each source's beginning; `most`, the
    number of documents to read of each source; `fraction` and `seed`, as for `hold_out`; `masked`, as for `Part`.

    **Raises:** `BadInput` for a source without text, or with a single document if no validation is given.
    """
    found, kept = [], []
    for source in sources:
        beginning = [(s, d, bytes_of(text)) for s, d, text in islice(source.documents(), most)]
        sizes = np.array([size for *_, size in beginning], int)
        if not sizes.sum():
            raise BadInput(f"{source.name} has no text, but needs at least one document that is not empty.")
        if validation is None and len(sizes) == 1:
            raise BadInput(
                f"{source.name} has a single document among the first {most}, which is not split; give "
                "data.validation, or raise data.stream."
            )
        out = np.zeros(len(sizes), bool) if validation else hold_out(sizes, fraction, seed)
        held = frozenset((s, d) for (s, d, _), is_held in zip(beginning, out, strict=True) if is_held)
        found.append(Source(source.name, source.shards, held))
        kept.append((len(sizes) - len(held), int(sizes[~out].sum()), int(sizes[out].sum())))

    def training() -> Iterator[TextDocument]:
        for source, (count, *_) in zip(found, kept, strict=True):
            yield from (text for *_, text in islice(source.documents(), count))

    def validating() -> Iterator[TextDocument]:
        for source, read, (count, *_) in zip(sources, found, kept, strict=True):
            beginning = islice(source.documents(), count + len(read.held))
            yield from (text for s, d, text in beginning if (s, d) in read.held)

    counts, sizes, held_sizes = zip(*kept, strict=True)
    packed = Part(sum(counts), sum(sizes), training, counts if len(counts) > 1 else (), masked)
    return (
        packed,
        validation or Part(sum(len(s.held) for s in found), sum(held_sizes), validating, (), masked),
        tuple(found),
    )


class Place(NamedTuple):
    """Where a window begins in a source; the shard's earlier documents are read, but not tokenised."""

    shard: int = 0
    document: int = 0
    token: int = 0


class Window(NamedTuple):
    """A training window, and where the next one begins."""

    ids: Int32[np.ndarray, " window"]
    counts: Bool[np.ndarray, " context"]
    """Which targets count."""
    after: Place


class Stream:
    """An endless series of training batches from text in its own order, batch `k` a function of `k` alone.

    A batch is found from the place where it begins. Places are known for the batch last read, for the next one, and for
    the one that `remember` names; other batches are reached by reading on from the nearest earlier one, or from the
    beginning. Windows are those of `packed_windows`, or of `document_windows` if documents are kept apart. Those of
    several sources are interleaved in proportion to their weights (Grain's order).

    **Arguments:** `sources`; `weights`, one for each if there are several; `tokenizer`; `context` and `batch_size`,
    positive; `apart`, whether no window has text of two documents; `masked`, whether some text is `Given`: a window of
    only such text is left out.

    **Raises:** `BadInput`, when a batch is requested, if a source gives no window at all.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        weights: Sequence[float],
        tokenizer: Tokenizer,
        context: int,
        batch_size: int,
        apart: bool = False,
        masked: bool = False,
    ):
        import grain  # takes a second or two, which no other command should wait for

        self.sources, self.tokenizer, self.context, self.batch_size = sources, tokenizer, context, batch_size
        self.apart, self.masks, self.end = apart, apart or masked, end_of_text(tokenizer)
        # Source n has the numbers from n FAR on, so a number of the mixture identifies its source.
        ranges = [grain.MapDataset.range(n * FAR, (n + 1) * FAR) for n in range(len(sources))]
        shares = [weight / sum(weights) for weight in weights]
        self._order: Any = grain.MapDataset.mix(ranges, shares) if len(sources) > 1 else ranges[0]
        self._known = {0: [Place() for _ in sources]}
        self._open(0)

    def memory(self) -> Any:
        """Return where the next batch begins, as values for JSON."""
        return {"batch": self._next, "places": self._known[self._next]}

    def remember(self, memory: Any) -> None:
        """Restore what `memory` returned; if it is not understood, the next batch is found from the beginning."""
        try:
            batch, places = int(memory["batch"]), [Place(*map(int, place)) for place in memory["places"]]
        except (KeyError, TypeError, ValueError):
            return
        if len(places) == len(self.sources) and min(batch, *chain(*places)) >= 0:
            self._known[batch] = places

    def __getitem__(self, k: int) -> HostBatch:
        """Return the ids `(batch, context + 1)` of batch `k`; with masks, a pair of ids and of which targets count.

        **Raises:** `IndexError` for a negative `k`.
        """
        if k < 0:
            raise IndexError(f"batch {k} was asked for, but they are numbered from 0")
        if k != self._next:
            self._open(max(batch for batch in self._known if batch <= k))
        while self._next < k:
            self._read()
        ids, counts = self._read()
        return (ids, counts) if self.masks else ids

    def _open(self, batch: int) -> None:
        self._next, self._places = batch, list(self._known[batch])
        self._windows = [self._of(source, place) for source, place in zip(self.sources, self._places, strict=True)]

    def _read(self) -> tuple[np.ndarray, np.ndarray]:
        rows = []
        for row in range(self._next * self.batch_size, (self._next + 1) * self.batch_size):
            source = int(self._order[row]) // FAR
            window = next(self._windows[source])
            self._places[source] = window.after
            rows.append(window)
        self._next += 1
        # The batch just read can be asked for again; others are forgotten, so that nothing grows.
        self._known = {0: self._known[0], self._next - 1: self._known[self._next - 1], self._next: list(self._places)}
        return np.stack([row.ids for row in rows]), np.stack([row.counts for row in rows])

    def _of(self, source: Source, place: Place) -> Iterator[Window]:
        """Iterate over the windows of a source from a place on; after its last document comes its first."""
        size, ids, counts, places = self.context + 1, np.zeros(0, np.int32), np.zeros(0, bool), []

        def window(stop: int, after: Place) -> Window:
            padding = (0, size - stop)
            return Window(
                np.pad(ids[:stop], padding, constant_values=self.end), np.pad(counts[:stop], padding)[1:], after
            )

        before, passes = None, 0  # passes that ended since the last target that counts
        for at, last, own, own_counts in self._tokens(source, place):
            passes = 0 if own_counts.any() else passes + (before is not None and at <= before)
            before = at
            if passes > 1:
                raise BadInput(f"{source.name} has no text whose prediction is learned.")
            places.append((len(ids), at))
            ids, counts = np.concatenate([ids, own]), np.concatenate([counts, own_counts])
            while len(ids) >= size:
                # The piece with the first token of the next window, which is the last token of this one.
                start, piece = next(found for found in reversed(places) if found[0] <= self.context)
                if counts[1:size].any():  # without a target there is no loss
                    yield window(size, piece._replace(token=piece.token + self.context - start))
                ids, counts = ids[self.context :], counts[self.context :]
                places = [(first - self.context, piece) for first, piece in places if first >= start]
            if self.apart and last:
                if counts[1:].any():
                    yield window(len(ids), Place(at.shard, at.document + 1))
                ids, counts, places = ids[:0], counts[:0], []

    def _tokens(self, source: Source, place: Place) -> Iterator[tuple[Place, bool, np.ndarray, np.ndarray]]:
        """Iterate over pieces: where each begins, whether it is its document's last, its tokens, and which count."""
        empty = False
        while not empty:
            numbers: deque[tuple[int, int]] = deque()  # of documents already read, some of them ahead

            # Defaults bind this pass's place and numbers: the loop gives both names other values.
            def read(place: Place = place, numbers: deque[tuple[int, int]] = numbers) -> Iterator[TextDocument]:
                for shard, number, document in source.documents(place.shard, place.document):
                    numbers.append((shard, number))
                    yield document

            # Only a pass from the very beginning can tell that there is no text.
            token, empty = 0, place == Place()
            for text, last, own in encoded(Part(0, None, read), self.tokenizer):
                # A document is tokenised from its start; what lies before the place was in earlier windows.
                skipped = place.token - token if numbers[0] == place[:2] else 0
                ids = np.array(own[max(skipped, 0) :], np.int32)
                if len(ids):
                    counts = np.full(len(ids), not isinstance(text, Given))
                    yield Place(*numbers[0], token + max(skipped, 0)), last, ids, counts
                token, empty = token + len(own), False
                if last:
                    numbers.popleft()
                    token = 0
            place = Place()
        raise BadInput(f"{source.name} has no text to train on.")
