"""Killed at random moments, in the middle of checkpoint writes too, and resumed: no later number differs by a bit."""

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from diffeqformer.config import read_yaml
from diffeqformer.errors import BadInput
from diffeqformer.model.build import abstract
from diffeqformer.training.checkpoint import Checkpoints
from diffeqformer.training.metrics import read_metrics
from diffeqformer.training.run import load_run
from diffeqformer.training.trainer import train
from diffeqformer.training.update import initial_state
from tests.faults.conftest import Lines, write_text
from tests.faults.small_run import config as config_of

PATIENCE = 300.0
"""Seconds after which a process that does not come to the point is a failure."""


class Place:
    """A folder with a text, a token cache and a compilation cache, and a process that starts runs in it."""

    def __init__(self, folder: Path):
        self.folder, self.text = folder, write_text(folder / "text.txt")
        self.child = 0
        environment = {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        command = [sys.executable, "-m", "tests.faults.small_run"]
        self.starter = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
        )

    def settings(self, run: str, updates: int, base: str | None) -> list:
        paths = (self.folder / run, self.text, self.folder / "cache", *([self.folder / base] if base else []))
        return [updates, *map(str, paths)]

    def start(self, run: str, updates: int, base: str | None = None) -> None:
        assert self.starter.stdin is not None
        self.starter.stdin.write(json.dumps(self.settings(run, updates, base)).encode() + b"\n")
        self.starter.stdin.flush()
        self.child = self.answer()

    def answer(self) -> int:
        assert self.starter.stdout is not None
        assert select.select([self.starter.stdout], [], [], PATIENCE)[0], "no answer"
        return int(self.starter.stdout.readline())

    def end(self, number: int) -> int:
        """Send the running child a signal; returns its exit status."""
        os.kill(self.child, number)
        return self.answer()

    def lives(self) -> bool:
        assert self.starter.stdout is not None
        return not select.select([self.starter.stdout], [], [], 0)[0]

    def train(self, run: str, updates: int, base: str | None = None) -> Lines:
        """Train to the end, in this process."""
        said = Lines()
        train(config_of(*self.settings(run, updates, base)), said)
        return said


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("faults"))
    yield made
    made.starter.kill()
    made.starter.wait()


def lasting(folder: Path) -> list[dict]:
    return [record for record in read_metrics(folder / "metrics.jsonl") if record["kind"] != "timing"]


def wait_for(place: Place, run: str, what: str) -> None:
    """Wait until the run has a new checkpoint (`[0-9]*`), or is in the middle of writing one (`writing-*`)."""
    seen = lambda: {path.name for path in (place.folder / run / "checkpoints").glob(what)}
    before, deadline = seen(), time.monotonic() + PATIENCE
    while place.lives() and seen() <= before:
        assert time.monotonic() < deadline, "no checkpoint was written"
        time.sleep(0.001)


def kill(place: Place, run: str, updates: int, base: str | None, draw: random.Random) -> str:
    """Start the run, kill it at a random moment, and return where that was."""
    place.start(run, updates, base)
    moment = draw.choices(("start", "after", "write"), (0.15, 0.4, 0.45))[0]
    if moment == "start":
        time.sleep(draw.uniform(0.0, 2.0))
    else:
        wait_for(place, run, "[0-9]*" if moment == "after" else "writing-*")
        time.sleep(draw.uniform(0.0, 0.25 if moment == "after" else 0.06))
    assert place.end(signal.SIGKILL) == -signal.SIGKILL, (place.folder / f"{run}.log").read_text()
    folder = place.folder / run / "checkpoints"
    if any(folder.glob("writing-*")) or any(folder.glob("removing-*")):
        return "in a checkpoint write"
    return "before the first checkpoint" if not Checkpoints(folder).steps() else "between two checkpoints"


def survives(place: Place, kills: int, updates: int, seed: int, base: str | None = None) -> None:
    """Kill and continue a run; it is never unusable, and ends as the one that nobody killed."""
    kind = "tuned" if base else "trained"
    whole, killed = f"whole-{kind}-{updates}", f"killed-{kind}-{updates}"
    place.train(whole, updates, base)
    draw, moments = random.Random(seed), Counter()
    for _ in range(kills):
        moments[kill(place, killed, updates, base, draw)] += 1
        if Checkpoints(place.folder / killed / "checkpoints").steps():
            said = Lines()
            load_run(place.folder / killed, progress=said)
            assert said.lines == []
    print(dict(moments))
    said = place.train(killed, updates, base)
    assert not [line for line in said.lines if "damaged" in line]
    assert [r["step"] for r in lasting(place.folder / killed) if r["kind"] == "update"] == list(range(1, updates + 1))
    assert lasting(place.folder / killed) == lasting(place.folder / whole)
    assert final_state(place.folder / killed, updates) == final_state(place.folder / whole, updates)


def final_state(folder: Path, updates: int) -> dict[str, bytes]:
    """Every array of the last checkpoint's model and optimiser."""
    config = read_yaml(folder / "config.yaml")
    base = abstract(read_yaml(Path(config.base.run) / "config.yaml").model) if config.base.run else None
    like = jax.eval_shape(lambda base: initial_state(config, base), base)
    restored = Checkpoints(folder / "checkpoints").latest({"model": like.model, "optimizer": like.optimizer}, print)
    assert restored is not None and restored.step == updates
    return {jax.tree_util.keystr(path): x.tobytes() for path, x in jax.tree_util.tree_leaves_with_path(restored.items)}


def test_three_kills(place):
    survives(place, kills=3, updates=24, seed=1)


@pytest.mark.slow
def test_sixty_kills_of_training(place):
    survives(place, kills=60, updates=400, seed=2)


@pytest.mark.slow
def test_forty_kills_of_fine_tuning(place):
    place.train("base", 4)
    survives(place, kills=40, updates=280, seed=3, base="base")


def test_a_second_process_is_refused_while_the_first_trains_and_a_killed_ones_lock_is_no_obstacle(place):
    place.start("two", 400)
    wait_for(place, "two", "[0-9]*")
    with pytest.raises(BadInput, match=f"is being written by process {place.child}; wait until it ends or choose"):
        place.train("two", 400)
    assert place.end(signal.SIGKILL) == -signal.SIGKILL
    assert (place.folder / "two" / ".lock").read_text() == f"{place.child}\n"
    place.start("two", 400)
    wait_for(place, "two", "[0-9]*")
    assert place.end(signal.SIGKILL) == -signal.SIGKILL


def test_sigterm_saves_within_a_grace_of_thirty_seconds(place):
    place.start("terminated", 100_000)
    wait_for(place, "terminated", "[0-9]*")
    began = time.monotonic()
    assert place.end(signal.SIGTERM) == 130
    assert time.monotonic() - began < 30
    told = (place.folder / "terminated.log").read_text()
    last = Checkpoints(place.folder / "terminated" / "checkpoints").steps()[-1]
    assert f"stopped at update {last} of 100000; saved; run the same command again to go on." in told
    assert lasting(place.folder / "terminated")[-1]["step"] == last
