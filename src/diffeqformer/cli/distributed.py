"""Options of commands that several processes run together."""

import os
import sys
from dataclasses import dataclass

from diffeqformer.errors import BadInput
from diffeqformer.progress import Progress, Silent, Terminal


@dataclass(frozen=True)
class Distributed:
    """Several processes that train one run, each started with the same command (`docs/devices.md`)."""

    coordinator: str = ""
    """HOST:PORT of the first process, or `auto`: what Slurm, Kubernetes, Open MPI or a Cloud TPU say."""
    processes: int | None = None
    """How many there are."""
    process: int | None = None
    """Which of them this is, from 0."""


def join(asked: Distributed) -> None:
    """Become one of several processes, if asked to; before anything is computed.

    **Raises:** `BadInput` as `training.distributed.join`, and for settings that nothing reads.
    """
    if asked.coordinator:
        from diffeqformer.runs import distributed

        _keep_standard_output()
        return distributed.join(asked.coordinator, asked.processes, asked.process)
    for name, value in (("processes", asked.processes), ("process", asked.process)):
        if value is not None:
            raise BadInput(
                f"--distributed.{name} is {value}, but --distributed.coordinator, which it needs, is missing."
            )


def _keep_standard_output() -> None:
    """Let Python alone write to standard output: Gloo, which connects CPUs, says there that it has."""
    own = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    sys.stdout = os.fdopen(own, "w")


def shown() -> Progress:
    """Progress on the terminal, of the first process alone."""
    from diffeqformer.runs.distributed import is_main

    return Terminal() if is_main() else Silent()
