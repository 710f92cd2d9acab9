"""The work of `bench start`: how long a command takes that has next to nothing to do."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from diffeqformer.benchmarks.timing import summary, take_turns
from diffeqformer.progress import Progress

PYTHON = "python -c pass"
COMMANDS = {
    PYTHON: ("-c", "pass"),
    "python -c 'import diffeqformer'": ("-c", "import diffeqformer"),
    "diffeqformer --help": ("-m", "diffeqformer", "--help"),
    "diffeqformer train --help": ("-m", "diffeqformer", "train", "--help"),
    "python -c 'import jax'": ("-c", "import jax"),
    "diffeqformer --version": ("-m", "diffeqformer", "--version"),
}
"""What is shown, and the words behind this Python."""


def compare_start(
    rounds: int, progress: Progress, commands: Mapping[str, Sequence[str]] = COMMANDS
) -> list[dict[str, Any]]:
    """Time each command from start to end as a process of its own, in turns; files are in the system's cache by then.

    **Arguments:** `rounds`, as for `take_turns`; `commands`, with `PYTHON`.

    **Returns:** a row a command: `command`, and the numbers of `summary`, ratios to Python's own start.
    """
    # A command that has not been started by another one sets glibc up and starts itself again, which is part of it.
    surroundings = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    once = {
        name: partial(subprocess.run, [sys.executable, *words], env=surroundings, capture_output=True, check=True)
        for name, words in commands.items()
    }
    seconds = take_turns(once, rounds, progress)
    return [{"command": name, **summary(times, seconds[PYTHON])} for name, times in seconds.items()]
