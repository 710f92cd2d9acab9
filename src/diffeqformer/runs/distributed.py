"""Several processes that train one run: how they find each other, which one writes and prints, and how they agree.

All of them compile and run the same program, each on its own devices. The main process alone prints, tracks and
writes the run's folder, except for the arrays of checkpoints, of which each writes its own parts. So all of them need
to see that folder.
"""

import atexit
import ctypes
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from diffeqformer.errors import BadInput, DiffEqFormerError, Interrupted, RunFailed, reason

T = TypeVar("T")
AUTO = "auto"
SILENCE = 50
"""Seconds without a sign of life after which a process is taken for dead, and the others end."""
STATUS = re.compile("(UNKNOWN|UNAVAILABLE|INTERNAL|ABORTED|CANCELLED|DEADLINE_EXCEEDED|FAILED_PRECONDITION): ")
START_AGAIN = "start all of them again, and the run goes on from its last checkpoint"
ABORTED = (
    "diffeqformer: JAX has ended this process (its words are above), most often because another one is lost or does "
    f"not answer, which its last lines explain; {START_AGAIN}.\n"
)


class ReportedElsewhere(Interrupted):
    """Another process has failed, and reported it."""

    def __init__(self, exit_code: int):
        super().__init__("another process has failed.")
        self.exit_code = exit_code


def join(coordinator: str, processes: int | None = None, process: int | None = None) -> None:
    """Become one of several processes; before anything is computed.

    **Arguments:** `coordinator`, HOST:PORT of the main process, or `auto`: what Slurm, Kubernetes, Open MPI or a Cloud
    TPU describe in the environment, as JAX reads it; `processes`, how many; `process`, which of them, from 0.

    **Raises:** `BadInput` if these do not agree with each other, no cluster is recognised, or the others are not found.
    """
    auto = coordinator == AUTO
    given = {"--distributed.processes": processes, "--distributed.process": process}
    for name, value in given.items():
        if auto != (value is None):
            missing = f"{name} is missing, but --distributed.coordinator {coordinator!r} needs it"
            raise BadInput(f"{name} is {value}, but {AUTO!r} finds it." if auto else f"{missing}.")
    if processes is not None and process is not None and not 0 <= process < processes:
        raise BadInput(f"--distributed.process is {process}, but must be from 0 to {processes - 1}.")
    if processes == 1:
        raise BadInput("--distributed.processes is 1, but several are joined; leave all --distributed options out.")
    _, colon, port = coordinator.rpartition(":")
    if not auto and not (colon and port.isdecimal()):
        raise BadInput(f"--distributed.coordinator is {coordinator!r}, but must be HOST:PORT or {AUTO!r}.")
    _explain_abort()
    try:
        jax.distributed.initialize(None if auto else coordinator, processes, process, heartbeat_timeout_seconds=SILENCE)
    except (ValueError, RuntimeError) as error:
        what = reason(error, 200)
        raise BadInput(
            f"--distributed.coordinator is {coordinator!r}, but the processes did not meet: {what}."
        ) from error


def is_loss(error: Exception) -> bool:
    """Whether an error can be the end of work with another process: JAX's runtime has raised it, in one of several.

    Where a compiled function is called again, its errors are `ValueError`s that start with the status.
    """
    raised = isinstance(error, jax.errors.JaxRuntimeError) or (type(error) is ValueError and STATUS.match(str(error)))
    return bool(raised) and jax.process_count() > 1


def lost(error: Exception) -> RunFailed:
    """The failure of a process whose work with the others has ended in `error`; it then exits without them."""
    time.sleep(1)  # if it is the main process that is lost, JAX aborts this one just now, which prints its sentence
    atexit.register(_exit)  # JAX's own exit would wait for the lost one
    return RunFailed(
        f"process {jax.process_index()} of {jax.process_count()} cannot go on ({reason(error, 120)}), most often "
        f"because another one is lost, which its last lines explain; {START_AGAIN}."
    )


def _exit() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(RunFailed.exit_code)


def _explain_abort() -> None:
    """End with a sentence where JAX's runtime would abort this process with a stack dump alone.

    It does so in a thread of its own, as soon as the main process is gone, and `SILENCE` after any other one has
    become silent. Python's own handlers of signals would come too late: they run after `abort` has ended the process.
    """
    ctypes.CDLL(None).signal(signal.SIGABRT, _at_abort)


@ctypes.CFUNCTYPE(None, ctypes.c_int)
def _at_abort(_: int) -> None:
    os.write(2, ABORTED.encode())
    os._exit(RunFailed.exit_code)


def is_main() -> bool:
    """Whether this process is the main one, which prints and writes."""
    return jax.process_index() == 0


def by_main(work: Callable[[], T]) -> T:
    """What `work` returns on the main process, on every process; JSON carries it.

    **Raises:** there, what `work` raises; elsewhere `ReportedElsewhere`.
    """
    if jax.process_count() == 1:
        return work()
    error, message = None, {}
    if is_main():
        try:
            message = {"found": work()}
        except Exception as found:  # the others must not wait for ever
            error, message = found, {"status": found.exit_code if isinstance(found, DiffEqFormerError) else 1}
    message = _from_main(message)
    if error is not None:
        raise error
    if "status" in message:
        raise ReportedElsewhere(message["status"])
    return message["found"]


def main_first(work: Callable[[], T]) -> T:
    """`work`, done by the main process, and by the others once they can find what it left.

    **Raises:** as `by_main`, and what `work` raises elsewhere.
    """
    found: list[T] = []
    by_main(lambda: found.append(work()))
    return found[0] if found else work()


def require_same(what: str, value: str) -> None:
    """Check that all processes have the same `value`, a digest.

    **Raises:** `RunFailed` on those where it differs from the main process's.
    """
    if by_main(lambda: value) != value:
        raise RunFailed(f"process {jax.process_index()} has found another {what} than process 0.")


def _from_main(value: Any) -> Any:
    from jax.experimental.multihost_utils import broadcast_one_to_all

    text = np.frombuffer(json.dumps(value).encode(), np.uint8).astype(np.int32)
    # The length first: all processes must give arrays of one shape.
    length = int(broadcast_one_to_all(np.int32(len(text))))
    received = broadcast_one_to_all(text if is_main() else np.zeros(length, np.int32))
    return json.loads(np.asarray(received).astype(np.uint8).tobytes())


class Agreement:
    """Whether any process wants something, answered on all of them at the same update.

    The answer is to the question before: nobody then waits for the devices. A process alone has its own, at once.
    """

    def __init__(self) -> None:
        devices = Mesh(np.asarray(jax.devices()), "device")
        self.each = NamedSharding(devices, P("device"))
        self.either = jax.jit(lambda answers: answers.any(0), out_shardings=NamedSharding(devices, P()))
        self.asked: Any = None

    def any(self, *mine: bool) -> tuple[bool, ...]:
        """For each question, whether some process answered yes."""
        if jax.process_count() == 1:
            return mine
        shape = (len(jax.devices()), len(mine))
        answers = jax.make_array_from_callback(shape, self.each, lambda _: np.asarray([mine]))
        before, self.asked = self.asked, self.either(answers)
        return (False,) * len(mine) if before is None else tuple(map(bool, jax.device_get(before)))
