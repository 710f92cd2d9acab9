"""Options of commands that several processes run together."""

import os
import sys
from dataclasses import dataclass

from diffeqformer.config.bounds import SIZES, setting
from diffeqformer.errors import BadInput
from diffeqformer.progress import Progress, Silent, Terminal


@dataclass(frozen=True)
class Distributed:
    """Several processes that train one run, each started with the same command (`docs/devices.md`)."""

    coordinator: str = ""
    """HOST:PORT of the main process, or `auto`: as Slurm, Kubernetes, Open MPI or a Cloud TPU define it."""
    processes: int | None = setting(None, least=1, most=SIZES)
    """Number of processes."""
    process: int | None = setting(None, least=0, most=SIZES)
    """Index of this process; 0 is the main process."""


def join(given: Distributed) -> None:
    """Join the other processes if a coordinator is given; call this before anything is computed.

    **Raises:** `BadInput` as `runs.distributed.join`, and for settings that nothing reads.
    """
    if given.coordinator:
        from diffeqformer.runs import distributed

        _keep_standard_output()
        return distributed.join(given.coordinator, given.processes, given.process)
    for name, value in (("processes", given.processes), ("process", given.process)):
        if value is not None:
            raise BadInput(
                f"--distributed.{name} is {value}, but --distributed.coordinator, which it needs, is missing."
            )


def _keep_standard_output() -> None:
    """Let only Python write to standard output: Gloo, which connects CPUs, prints there, too."""
    own = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    sys.stdout = os.fdopen(own, "w")


def progress_of_main() -> Progress:
    """Return progress that is shown on the terminal by the main process only."""
    from diffeqformer.runs.distributed import is_main

    return Terminal() if is_main() else Silent()
