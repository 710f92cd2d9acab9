"""Batches out of a token array: number k directly for training, every token once for evaluation."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Int32, Integer

from diffeqformer.errors import BadInput


class Windows:
    """Overlapping views of a token array: window `i` holds tokens `i * context` to `(i + 1) * context`, both included.

    The last token of a window is the first of the next, so every token but the very first is a target exactly once;
    fewer than `context` at the end, which fill no window, are left out.
    """

    def __init__(self, tokens: Integer[np.ndarray, " tokens"], context: int):
        self.tokens, self.context = tokens, context

    def __len__(self) -> int:
        return max(len(self.tokens) - 1, 0) // self.context

    def __getitem__(self, index: int) -> Int32[np.ndarray, " window"]:
        start = int(index) * self.context
        return np.asarray(self.tokens[start : start + self.context + 1], np.int32)


class Loader:
    """An endless series of training batches, each computed from its number alone.

    Windows of `context + 1` tokens are shuffled anew in every epoch (a pseudo-random permutation that is evaluated at
    one index, Grain's); batch `k` holds windows `k * batch_size` to `(k + 1) * batch_size - 1` of that order.

    Of a mixture each source has such an order of its own, and their windows are interleaved in proportion to the
    weights (Grain's).

    **Arguments:** `tokens (tokens,)`; `context`, `batch_size`, positive; `seed`, from 0 to 2^32 - 1; `mask (tokens,)`,
    true where a token counts as a target, if not all do; `mixture`, tokens and weight of each source, if several are.

    **Raises:** `BadInput` if there are fewer tokens than one window needs, or for a seed out of range.
    """

    def __init__(
        self,
        tokens: Integer[np.ndarray, " tokens"],
        context: int,
        batch_size: int,
        seed: int,
        mask: Bool[np.ndarray, " tokens"] | None = None,
        mixture: Sequence[tuple[int, float]] = (),
    ):
        import grain  # takes a second or two, which no other command should wait for

        # The order depends on the seed and the number of windows alone, so masks are read as their tokens are.
        self.masks = None if mask is None else Loader(mask.view(np.uint8), context, batch_size, seed, mixture=mixture)
        parts = np.split(tokens, np.cumsum([count for count, _ in mixture])[:-1]) if mixture else [tokens]
        sources, self.batch_size = [Windows(part, context) for part in parts], batch_size
        self._windows = sum(map(len, sources))
        for number, part in enumerate(parts, start=1):
            if len(part) <= context:
                what = f"source {number} of the mixture" if mixture else "the training split"
                raise BadInput(
                    f"{what} has {len(part)} tokens, but a context of {context} needs at least "
                    f"{context + 1}: give more text or a smaller model.context."
                )
        if not 0 <= seed < 1 << 32:
            raise BadInput(f"the seed of the batches is {seed}, but must be at least 0 and below {1 << 32}.")
        orders = [grain.MapDataset.source(windows).seed(seed).shuffle().repeat() for windows in sources]
        weights = [weight for _, weight in mixture]
        self._order = grain.MapDataset.mix(orders, [w / sum(weights) for w in weights]) if mixture else orders[0]

    def __len__(self) -> int:
        """Batches an epoch, rounded up: so many show every window at least once."""
        return (self._windows + self.batch_size - 1) // self.batch_size

    def __getitem__(self, k: int) -> Any:
        """Batch number `k`, from 0, without end: ids `(batch, context + 1)`; inputs are `[:, :-1]`, targets `[:, 1:]`.

        With a mask, the pair of ids and of which targets count, booleans `(batch, context)`.

        **Raises:** `IndexError` for a negative `k`.
        """
        ids = self.rows(k, 0, self.batch_size)
        return ids if self.masks is None else (ids, self.mask_rows(k, 0, self.batch_size))

    def rows(self, k: int, start: int, stop: int) -> Int32[np.ndarray, "row window"]:
        """Rows `start` to `stop - 1` of batch `k`; no others are read.

        **Raises:** `IndexError` for a negative `k`.
        """
        if k < 0:
            raise IndexError(f"batch {k} was asked for, but they are numbered from 0")
        return np.stack([np.asarray(self._order[k * self.batch_size + row]) for row in range(start, stop)])

    def mask_rows(self, k: int, start: int, stop: int) -> Bool[np.ndarray, "row context"]:
        """Which targets of the same rows count."""
        assert self.masks is not None
        return self.masks.rows(k, start, stop)[:, 1:].astype(bool)


class EvaluationBatches:
    """Batches in which every token but the first is a target exactly once, all of one shape.

    **Arguments:** `tokens (tokens,)`; `context`, `batch_size`, positive; `mask (tokens,)`, true where a token counts
    as a target, if not all do.

    **Raises:** `BadInput` for fewer than two tokens.
    """

    def __init__(
        self,
        tokens: Integer[np.ndarray, " tokens"],
        context: int,
        batch_size: int,
        mask: Bool[np.ndarray, " tokens"] | None = None,
    ):
        if len(tokens) < 2:
            raise BadInput(f"the text to evaluate has {len(tokens)} tokens, but at least 2 are needed.")
        self.tokens, self.context, self.batch_size, self.mask = tokens, context, batch_size, mask

    def __len__(self) -> int:
        covered = self.batch_size * self.context
        return (len(self.tokens) - 1 + covered - 1) // covered

    def __getitem__(self, k: int) -> tuple[Int32[np.ndarray, "batch window"], Bool[np.ndarray, "batch context"]]:
        """Batch `k`: ids `(batch, context + 1)`, padded with 0, and which of its targets count.

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


def evaluation_batches(
    tokens: Integer[np.ndarray, " tokens"],
    context: int,
    batch_size: int,
    mask: Bool[np.ndarray, " tokens"] | None = None,
) -> EvaluationBatches:
    """The batches of a whole evaluation, in order; see `EvaluationBatches`.

    **Raises:** `BadInput` for fewer than two tokens.
    """
    return EvaluationBatches(tokens, context, batch_size, mask)
