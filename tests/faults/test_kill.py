"""Killed at random moments, in the middle of checkpoint writes too, and resumed: no later loss differs by a bit."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import jax
import pytest

from diffeqformer.config import read_yaml
from diffeqformer.training.checkpoint import Checkpoints
from diffeqformer.training.metrics import read_metrics
from diffeqformer.training.update import initial_state

PROGRAM = Path(__file__).with_name("small_run.py")
PATIENCE = 300.0
"""Seconds after which a process that does not come to the point is a failure."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Text, token cache and compilation cache, shared by all runs."""
    folder = tmp_path_factory.mktemp("faults")
    draw = random.Random(0)
    words = [["the", "a", "one"], ["cat", "dog", "river"], ["sees", "eats", "likes"], ["stars", "fish", "songs"]]
    lines = (" ".join(draw.choice(kind) for kind in words) + ".\n" for _ in range(400))
    (folder / "text.txt").write_text("".join(lines))
    return folder


def start(folder: Path, run: str, updates: int) -> subprocess.Popen:
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    command = [sys.executable, str(PROGRAM), str(updates), *(str(folder / name) for name in (run, "text.txt", "cache"))]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(folder: Path, run: str, updates: int) -> None:
    """Train to the end; nothing that was killed may have left a damaged checkpoint."""
    with start(folder, run, updates) as process:
        output = process.stdout.read()
        assert process.wait(PATIENCE) == 0 and "damaged" not in output, output


def lasting(folder: Path) -> list[dict]:
    return [record for record in read_metrics(folder / "metrics.jsonl") if record["kind"] != "timing"]


def wait_for_writing(process: subprocess.Popen, folder: Path) -> None:
    """Wait until the process has written a checkpoint, or has ended."""
    began = {path.name for path in (folder / "checkpoints").glob("*")}
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None and {path.name for path in (folder / "checkpoints").glob("*")} <= began:
        assert time.monotonic() < deadline, "no checkpoint was written"
        time.sleep(0.005)


def kill(folder: Path, run: str, updates: int, draw: random.Random) -> str:
    """Start the run, kill it at a random moment, and return where that was."""
    with start(folder, run, updates) as process:
        if early := draw.random() < 0.1:
            time.sleep(draw.uniform(0.0, 3.0))
        else:
            wait_for_writing(process, folder / run)
            time.sleep(draw.uniform(0.0, 0.25))
        process.send_signal(signal.SIGKILL)
        assert process.wait(PATIENCE) == -signal.SIGKILL, f"ended before it was killed: {process.stdout.read()}"
    if any((folder / run / "checkpoints").glob("writing-*")):
        return "in a checkpoint write"
    return "at the start" if early else "between two checkpoints"


def survives(place: Path, kills: int, updates: int, seed: int) -> None:
    whole, killed = f"whole-{updates}", f"killed-{updates}"
    finish(place, whole, updates)
    draw = random.Random(seed)
    print(Counter(kill(place, killed, updates, draw) for _ in range(kills)))
    finish(place, killed, updates)
    assert [r["step"] for r in lasting(place / killed) if r["kind"] == "update"] == list(range(1, updates + 1))
    assert lasting(place / killed) == lasting(place / whole)
    assert final_state(place / killed, updates) == final_state(place / whole, updates)


def final_state(folder: Path, updates: int) -> dict[str, bytes]:
    """Every array of the last checkpoint's model and optimiser."""
    like = jax.eval_shape(lambda: initial_state(read_yaml(folder / "config.yaml")))
    restored = Checkpoints(folder / "checkpoints").latest({"model": like.model, "optimizer": like.optimizer}, print)
    assert restored is not None and restored.step == updates
    return {jax.tree_util.keystr(path): x.tobytes() for path, x in jax.tree_util.tree_leaves_with_path(restored.items)}


def test_three_kills(place):
    survives(place, kills=3, updates=24, seed=1)


@pytest.mark.slow
def test_twenty_kills(place):
    survives(place, kills=20, updates=160, seed=2)


def test_a_second_process_is_refused_while_the_first_trains(place):
    with start(place, "two", 100) as first:
        try:
            wait_for_writing(first, place / "two")
            with start(place, "two", 100) as second:
                assert second.wait(PATIENCE) == 1
                assert f"is being written by process {first.pid}" in second.stdout.read()
        finally:
            first.kill()
