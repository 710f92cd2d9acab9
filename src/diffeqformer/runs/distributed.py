"""Several processes that train one run: how they find each other, which one writes and prints, and how they agree.

All processes compile and run the same program, each on its own devices. Only the main process prints, sends to
trackers and writes the run's folder, except that each process writes its own parts of the arrays of checkpoints. So
all processes must be able to see that folder.
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
"""Seconds without a sign of life after which a process is considered dead, and the others end. 30 are too few: they
took processes for dead that a busy machine starved."""
STATUS = re.compile("(UNKNOWN|UNAVAILABLE|INTERNAL|ABORTED|CANCELLED|DEADLINE_EXCEEDED|FAILED_PRECONDITION): ")
START_AGAIN = "start all of them again, and the run goes on from its last checkpoint"
ABORTED = (
    "diffeqformer: JAX has ended this process (its words are above), most often because another one is lost or does "
    f"not answer, which its last lines explain; {START_AGAIN}.\n"
)


class ReportedElsewhere(Interrupted):
    """Raised when another process has failed and reported the error."""

    def __init__(self, exit_code: int):
        super().__init__("another process has failed.")
        self.exit_code = exit_code


def join(coordinator: str, processes: int | None = None, process: int | None = None) -> None:
    """Join the processes that train one run; call this before anything is computed.

    **Arguments:** `coordinator`, HOST:PORT of the main process, or `auto`: what Slurm, Kubernetes, Open MPI or a Cloud
    TPU describe in the environment, as JAX reads it; `processes`, how many; `process`, the index of this one, from 0.

    **Raises:** `BadInput` if these do not agree with each other, no cluster is recognised, or the others are not found.
    """
    auto = coordinator == AUTO
    for name, value in {"--distributed.processes": processes, "--distributed.process": process}.items():
        if auto and value is not None:
            raise BadInput(f"{name} is {value}, but {AUTO!r} finds it.")
        if not auto and value is None:
            raise BadInput(f"{name} is missing, but --distributed.coordinator {coordinator!r} needs it.")
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
    """Return whether the loss of another process may have caused an error: JAX's runtime raised it, in one of several.

    When a compiled function is called again, its errors are `ValueError`s that start with the status.
    """
    raised = isinstance(error, jax.errors.JaxRuntimeError) or (type(error) is ValueError and STATUS.match(str(error)))
    return bool(raised) and jax.process_count() > 1


def lost(error: Exception) -> RunFailed:
    """Return the failure to raise after `error` ended the work with other processes; this one exits without them."""
    time.sleep(1)  # if the main process is lost, JAX aborts this one now, which prints its own message
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
    """End with a message where JAX's runtime would abort this process with only a stack dump.

    The runtime does so in a thread of its own, as soon as the main process is gone, and `SILENCE` seconds after any
    other process has fallen silent. Python's signal handlers would be too late: they run after `abort` has ended the
    process.
    """
    ctypes.CDLL(None).signal(signal.SIGABRT, _at_abort)


# At the level of the module, since C's pointer does not keep it alive.
@ctypes.CFUNCTYPE(None, ctypes.c_int)
def _at_abort(_: int) -> None:
    os.write(2, ABORTED.encode())
    os._exit(RunFailed.exit_code)


def is_main() -> bool:
    """Return whether this process is the main one, which prints and writes."""
    return jax.process_index() == 0


def by_main(work: Callable[[], T]) -> T:
    """Call `work` on the main process only, and return its result on every process; it is sent as JSON.

    **Raises:** on the main process, what `work` raises; elsewhere `ReportedElsewhere`.
    """
    if jax.process_count() == 1:
        return work()
    error, message = None, {}
    if is_main():
        try:
            message = {"found": work()}
        except Exception as found:  # the others must not wait forever
            error, message = found, {"status": found.exit_code if isinstance(found, DiffEqFormerError) else 1}
    message = _from_main(message)
    if error is not None:
        raise error
    if "status" in message:
        raise ReportedElsewhere(message["status"])
    return message["found"]


def main_first(work: Callable[[], T]) -> T:
    """Call `work` on the main process first, then on the others, which find what it left.

    **Raises:** as `by_main`, and on the other processes what `work` raises.
    """
    found: list[T] = []
    by_main(lambda: found.append(work()))
    return found[0] if found else work()


def require_same(what: str, value: str) -> None:
    """Check that `value`, a digest, is the same on all processes.

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
    """Tells all processes, at the same update, whether any of them wants something.

    The answer is the one to the previous question, so that no process waits for the devices. A single process gets its
    own answer, at once.
    """

    def __init__(self) -> None:
        devices = Mesh(np.asarray(jax.devices()), "device")
        self.each = NamedSharding(devices, P("device"))
        self.either = jax.jit(lambda answers: answers.any(0), out_shardings=NamedSharding(devices, P()))
        self.asked: Any = None

    def any(self, *mine: bool) -> tuple[bool, ...]:
        """Return, for each question, whether any process answered yes."""
        if jax.process_count() == 1:
            return mine
        shape = (len(jax.devices()), len(mine))
        answers = jax.make_array_from_callback(shape, self.each, lambda _: np.asarray([mine]))
        before, self.asked = self.asked, self.either(answers)
        return (False,) * len(mine) if before is None else tuple(map(bool, jax.device_get(before)))
