"""`bench start`: time of commands that have next to nothing to do."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from diffeqformer.errors import BadInput
from diffeqformer.progress import Progress
from diffeqformer.store.paths import path_of
from diffeqformer.studies.bench import benchmark as b
from diffeqformer.studies.study import Result

PYTHON = "python -c pass"
COMMANDS = {
    PYTHON: ("-c", "pass"),
    "python -c 'import diffeqformer'": ("-c", "import diffeqformer"),
    "diffeqformer --help": ("-m", "diffeqformer", "--help"),
    "diffeqformer train --help": ("-m", "diffeqformer", "train", "--help"),
    "python -c 'import jax'": ("-c", "import jax"),
    "diffeqformer --version": ("-m", "diffeqformer", "--version"),
}
"""Commands as displayed, and their arguments to this Python."""
SHORT_TEXT = "def main(arguments):\n    return arguments\n" * 20
"""A text so short that starting takes nearly all the time."""


@dataclass(frozen=True)
class Arguments(b.Timed):
    """Time commands that have next to nothing to do, as processes of their own.

    Example: diffeqformer bench start --run runs/quickstart/gpt --to benchmarks/start.json
    """

    run: str = ""
    """Folder of a trained run, whose `info`, `eval` and `sample` are timed as well, with what an earlier call
    compiled."""


def study(arguments: Arguments, progress: Progress) -> Result:
    """Time `COMMANDS`, and those of a run if one is given.

    **Raises:** `BadInput` for a run that does not exist.
    """
    with TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        text.write_text(SHORT_TEXT, encoding="utf-8")
        commands = {**COMMANDS, **(commands_of(arguments.run, text) if arguments.run else {})}
        rows = compare_start(arguments.rounds, progress, commands)
    return BENCHMARK.measured(arguments, rows=rows)


def commands_of(run: str, text: Path) -> dict[str, tuple[str, ...]]:
    """Return the commands that are timed on a run, with little to do.

    **Raises:** `BadInput` if the folder has no run.
    """
    from diffeqformer.runs.folder import open_config

    open_config(path_of(run))
    words = {
        "info": ("info", run), "eval": ("eval", run, "--data", str(text)),
        "sample": ("sample", run, "--prompt", "def main(", "--tokens", "8"),
    }  # fmt: skip
    return {f"diffeqformer {name} RUN, again": ("-m", "diffeqformer", *rest) for name, rest in words.items()}


def compare_start(rounds: int, progress: Progress, commands: Mapping[str, Sequence[str]]) -> list[b.Document]:
    """Time each command from start to end as a process of its own, in turns; files are then in the system's cache.

    **Returns:** one row per command, `PYTHON` among them: the numbers of `summary`, ratios to Python's own start.
    """
    # A command not started by another of ours sets up glibc and restarts itself, which is part of its time.
    surroundings = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    once = {name: partial(_run, [sys.executable, *words], surroundings) for name, words in commands.items()}
    seconds = b.take_turns(once, rounds, progress)
    return [{"command": name, **b.summary(times, seconds[PYTHON])} for name, times in seconds.items()]


def _run(command: Sequence[str], surroundings: Mapping[str, str]) -> None:
    """Run a command. **Raises:** `BadInput` with its last message if it fails."""
    done = subprocess.run(command, check=False, env=surroundings, capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"status {done.returncode}."]
        raise BadInput(f"`{' '.join(command[2:])}` failed: {said[-1].removeprefix('diffeqformer: ')}")


BENCHMARK = b.Benchmark(
    "start",
    "Start-up",
    "Each command in its own process, from start to end, compared with a Python process that does nothing. Importing "
    "the package and asking for help do not load JAX. A command repeated on a run finds its programs already compiled.",
    b.times_over(PYTHON, b.entry("command")),
    b.timed_table("Start of a command", {"command": b.entry("command")}),
)
