"""Checkpoints that are written while training continues."""

from concurrent.futures import Future, ThreadPoolExecutor

import jax
import numpy as np

from diffeqformer.plain import Document
from diffeqformer.runs.arrays import Items
from diffeqformer.runs.checkpoint import Checkpoints


class Writer:
    """Saves the checkpoints of a run in the background; a context manager that ends when all are written.

    The arrays are copied to the host's memory, and one thread writes the copy. Several processes synchronise while they
    write, which only their main threads may do: with them, `save` returns only when the checkpoint is written.

    **Arguments:** `checkpoints`, where they are saved.
    """

    def __init__(self, checkpoints: Checkpoints):
        self.checkpoints = checkpoints
        self.thread = ThreadPoolExecutor(1, "checkpoint")
        self.pending: Future[None] | None = None

    def save(self, step: int, items: Items, metadata: Document, metric: float | None) -> None:
        """Save as `Checkpoints.save`, once the previous checkpoint is written; `items` may be donated afterwards.

        **Raises:** what saving the previous checkpoint raised.
        """
        self.require_sound(wait=True)
        if jax.process_count() > 1:
            return self.checkpoints.save(step, items, metadata, metric)
        # On a CPU, JAX returns the array's own memory, which the next update overwrites.
        copied = jax.tree.map(np.array, jax.device_get(dict(items)))
        self.pending = self.thread.submit(self.checkpoints.save, step, copied, metadata, metric)

    def require_sound(self, wait: bool = False) -> None:
        """Raise the error of the last save, if it failed; with `wait`, wait for the save to end first."""
        if self.pending is not None and (wait or self.pending.done()):
            written, self.pending = self.pending, None
            written.result()

    def settle(self) -> None:
        """Wait until nothing is being written, whether saving succeeds or fails."""
        if self.pending is not None:
            self.pending.exception()

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.thread.shutdown()
        # An error that is already being raised is the one to report.
        if error is None:
            self.require_sound(wait=True)
