"""Measurements of a run's updates, and the time that they took."""

import time

import jax

from diffeqformer.config import Config
from diffeqformer.runs.metrics import Record
from diffeqformer.runs.resume import Clock
from diffeqformer.runs.utilization import utilization
from diffeqformer.training.depths import passes
from diffeqformer.training.update import Measured


class Meter:
    """Keeps the measurements of updates on the device, and fetches them together rather than after each update.

    **Arguments:** `config`; `clock`, which is advanced.
    """

    def __init__(self, config: Config, clock: Clock):
        self.config, self.clock = config, clock
        self.measured: list[tuple[int | None, Measured]] = []
        self.ready: list[float] = []
        """Times at which each of these was ready."""
        self.compiled: set[int | None] = set()
        """Depths whose update has been compiled."""
        self.mark = time.perf_counter()

    def add(self, steps: int | None, measured: Measured) -> None:
        """Add the measurements of an update at depth `steps`, once the previous update is done.

        So one update runs while the next batch is made: the device never idles, and no queue builds up that a request
        to stop would have to wait for.
        """
        self.wait()
        self.measured.append((steps, measured))

    def wait(self) -> None:
        """Wait until all measurements are ready, and note the time."""
        if len(self.ready) < len(self.measured):
            jax.block_until_ready(self.measured[-1])
            self.ready.append(time.perf_counter())

    def fetch(self, step: int) -> tuple[list[Record], Record, bool]:
        """Return records of the updates up to `step`, their timing record, and whether any update was timed."""
        self.wait()
        timing, timed = self._timing(step)
        depths, fetched = zip(*jax.device_get(self.measured), strict=True)
        first = step - len(fetched) + 1
        self.measured, self.ready = [], []
        records = [
            {"kind": "update", "step": first + i}
            | ({"steps": steps} if steps else {})
            | {name: float(value) for name, value in one._asdict().items() if value is not None}
            for i, (steps, one) in enumerate(zip(depths, fetched, strict=True))
        ]
        return records, timing, timed

    def _timing(self, step: int) -> tuple[Record, bool]:
        depths: dict[str, list[float]] = {}
        for (steps, _), begin, end in zip(self.measured, [self.mark, *self.ready], self.ready, strict=False):
            if steps in self.compiled:  # the first update of a depth compiles, and is not counted
                self.clock.update_seconds += end - begin
                self.clock.updates += 1
                number, seconds = depths.get(str(steps), (0, 0.0))
                depths[str(steps)] = [number + 1, seconds + end - begin]
        seconds = self.ready[-1] - self.mark
        run = [one for steps, _ in self.measured for one in passes(self.config, steps)]
        used = utilization(self.config, run, seconds)
        record: Record = {"kind": "timing", "step": step, "seconds": seconds}
        record["tokens_per_second"] = len(self.ready) * self.config.tokens_per_update / seconds
        record |= {} if used is None else {"utilization": used}
        record |= {"depths": depths} if self.config.depth.drawn else {}
        self.restart()
        return record, bool(depths)

    def restart(self) -> None:
        """Count the time since the last call as training, but not as an update."""
        now = time.perf_counter()
        self.clock.seconds += now - self.mark
        self.mark = now
