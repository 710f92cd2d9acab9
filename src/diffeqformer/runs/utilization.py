"""How well a run uses its devices: its MFU (model FLOPs utilisation), and traces that show where the rest goes."""

from collections.abc import Callable, Sequence
from pathlib import Path

import jax

from diffeqformer.config import Config, OptimizerConfig, with_steps
from diffeqformer.devices import device_of
from diffeqformer.model.count import update_operations
from diffeqformer.training.depths import Pass

WARM_UP = 3
"""Updates of a process before the traced ones: compilation, and what follows it."""


def utilization(config: Config, passes: Sequence[Pass], seconds: float) -> float | None:
    """Compute the MFU: the operations that the passes of updates need, divided by those that their devices could do.

    Operations are the model's own (`model.count.flops`), without any that are repeated to save memory; the peak is that
    of bfloat16. Source: Chowdhery et al. 2022, PaLM, appendix B.

    **Returns:** a fraction; `None` if the device is not in the table of `devices`, if a tolerance chooses the steps, or
    if some parameters are frozen (the count includes their gradients, which are not computed).
    """
    device, m = device_of(jax.local_devices()[0].device_kind), config.model
    absent = {role for role, part in (("time", m.time), ("adapter", m.lora)) if part is None}
    frozen = {*OptimizerConfig().train_roles} - absent - {*config.optimizer.train_roles}
    if device is None or m.tolerance or frozen:
        return None
    mesh = jax.sharding.get_mesh()
    devices = 1 if mesh.empty else mesh.size
    operations = sum(update_operations(with_steps(m, one.steps), one.sequences, one.readings) for one in passes)
    return operations / (seconds * devices * device.peak)


class Trace:
    """A trace of what the devices do in some updates of this process, for XProf and TensorBoard; a context manager.

    **Arguments:** `folder`, where the trace is written; `updates`, how many to trace, 0 for none.
    """

    def __init__(self, folder: Path, updates: int):
        self.folder, self.updates, self.done, self.running = folder, updates, 0, False

    def before_update(self, wait: Callable[[], None]) -> None:
        """Begin or end the trace when due, after calling `wait`, which waits for the updates so far."""
        if self.updates and self.done in (WARM_UP, WARM_UP + self.updates):
            wait()
            if self.running:
                self._end()
            else:
                jax.profiler.start_trace(str(self.folder))
                self.running = True
        self.done += 1

    def _end(self) -> None:
        jax.profiler.stop_trace()
        self.running = False

    def __enter__(self) -> "Trace":
        return self

    def __exit__(self, *_: object) -> None:
        if self.running:
            self._end()
