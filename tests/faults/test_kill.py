"""Killed at random moments, in the middle of checkpoint writes too, and resumed: no later number differs by a bit."""

import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import pytest

from diffeqformer.config import read_yaml
from diffeqformer.errors import BadInput
from diffeqformer.model.build import abstract
from diffeqformer.runs.checkpoint import Checkpoints
from diffeqformer.runs.distributed import START_AGAIN
from diffeqformer.runs.metrics import read_metrics
from diffeqformer.runs.opening import load_run
from diffeqformer.runs.trainer import train
from diffeqformer.training.update import initial_state
from tests.faults.conftest import Lines
from tests.faults.small_run import config as config_of
from tests.runs.tiny_run import write_text

PATIENCE = 900.0
"""Seconds after which a process that does not come to the point is a failure."""


class Place:
    """A folder with a text, a token cache and a compilation cache, and processes that start runs in it.

    **Arguments:** `folder`; `processes`, how many train each run together, each on one device.
    """

    def __init__(self, folder: Path, processes: int = 1):
        self.folder, self.text = folder, write_text(folder / "text.txt")
        self.children: list[int] = []
        flags = os.environ.get("XLA_FLAGS", "").split()  # the same here as there, but for the number of devices
        environment = {
            **os.environ,
            "XLA_FLAGS": " ".join(flag for flag in flags if "device_count" not in flag),
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        command = [sys.executable, "-m", "tests.faults.small_run"]
        pipe, root = subprocess.PIPE, Path(__file__).parents[2]
        self.starters = [
            subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, cwd=root, start_new_session=True)
            for _ in range(processes)
        ]

    def settings(self, run: str, updates: int, base: str | None) -> list:
        base = str(self.folder / base) if base else None
        paths = (self.folder / run, self.text, self.folder / "cache")
        return [updates, *map(str, paths), base, len(self.starters)]

    def start(self, run: str, updates: int, base: str | None = None) -> None:
        with socket.socket() as free:
            free.bind(("localhost", 0))
            address = f"localhost:{free.getsockname()[1]}"
        alone, several = {"settings": self.settings(run, updates, base)}, len(self.starters)
        for i, starter in enumerate(self.starters):
            asked = alone | {"log": str(self.log(run, i)), "joined": [address, several, i] if several > 1 else None}
            assert starter.stdin is not None
            starter.stdin.write(json.dumps(asked).encode() + b"\n")
            starter.stdin.flush()
        self.children = self.answers()

    def log(self, run: str, process: int = 0) -> Path:
        """What a process of a run has said."""
        return self.folder / f"{run}.{process}.log"

    def answers(self) -> list[int]:
        """The next number that each starter prints."""
        found = []
        for starter in self.starters:
            assert starter.stdout is not None
            assert select.select([starter.stdout], [], [], PATIENCE)[0], "no answer"
            found.append(int(starter.stdout.readline()))
        return found

    def end(self, number: int, which: Sequence[int] = (0,)) -> list[int]:
        """Send running children a signal; returns the exit status of each child."""
        for i in which:
            os.kill(self.children[i], number)
        return self.answers()

    def lives(self) -> bool:
        return not select.select([starter.stdout for starter in self.starters if starter.stdout], [], [], 0)[0]

    def train(self, run: str, updates: int, base: str | None = None) -> list[str]:
        """Train to the end, a process alone in this one; returns what was said."""
        if len(self.starters) > 1:
            self.start(run, updates, base)
            assert self.answers() == [0] * len(self.starters), self.log(run).read_text()
            return self.log(run).read_text().splitlines()
        said = Lines()
        train(config_of(*self.settings(run, updates, base)), said)
        return said.lines

    def close(self) -> None:
        for starter in self.starters:
            os.killpg(starter.pid, signal.SIGKILL)  # and its child
            starter.wait()


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("faults"))
    yield made
    made.close()


@pytest.fixture
def pair(tmp_path) -> Iterator[Place]:
    """The same for runs of two processes."""
    made = Place(tmp_path, processes=2)
    yield made
    made.close()


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
    """Start the run, kill it at a random moment, and return where that was.

    Of several processes all are killed, or one: then the others end by themselves, and say why.
    """
    place.start(run, updates, base)
    moment, several = draw.choices(("start", "after", "write"), (0.15, 0.4, 0.45))[0], len(place.children)
    if moment == "start":
        time.sleep(draw.uniform(0.0, 2.0))
    else:
        wait_for(place, run, "[0-9]*" if moment == "after" else "writing-*")
        time.sleep(draw.uniform(0.0, 0.25 if moment == "after" else 0.06))
    one = several > 1 and moment != "start" and draw.random() < 0.7  # before they have met, one waits for the other
    which = [draw.randrange(several)] if one else range(several)
    statuses = place.end(signal.SIGKILL, which)
    for i, status in enumerate(statuses):
        last = place.log(run, i).read_text()
        assert status == (-signal.SIGKILL if i in which else 1), last
        assert i in which or last.endswith(f"{START_AGAIN}.\n"), last
    folder, who = place.folder / run / "checkpoints", f", process {which[0]} of {several}" if one else ""
    if any(folder.glob("writing-*")) or any(folder.glob("removing-*")):
        return f"in a checkpoint write{who}"
    return f"{'between two checkpoints' if Checkpoints(folder).steps() else 'before the first checkpoint'}{who}"


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
    assert not [line for line in said if "damaged" in line]
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


@pytest.mark.slow
def test_three_kills_of_a_run_on_a_stream(place, monkeypatch):
    lines = [json.dumps({"text": line}) for line in place.text.read_text().splitlines()]
    monkeypatch.setattr(place, "text", place.folder / "text.jsonl")
    place.text.write_text("\n".join(lines))
    survives(place, kills=3, updates=24, seed=1)


@pytest.mark.slow
def test_sixty_kills_of_training(place):
    survives(place, kills=60, updates=400, seed=2)


@pytest.mark.slow
def test_forty_kills_of_fine_tuning(place):
    place.train("base", 4)
    survives(place, kills=40, updates=280, seed=3, base="base")


@pytest.mark.slow
def test_ten_kills_of_one_or_both_of_two_processes(pair):
    survives(pair, kills=10, updates=60, seed=4)


@pytest.mark.slow  # tests/store/test_lock.py has both, of processes that do nothing else
def test_a_second_process_is_refused_while_the_first_trains_and_a_killed_ones_lock_is_no_obstacle(place):
    place.start("two", 400)
    wait_for(place, "two", "[0-9]*")
    (child,) = place.children
    with pytest.raises(BadInput, match=f"is being written by process {child}; wait until it ends or choose"):
        place.train("two", 400)
    assert place.end(signal.SIGKILL) == [-signal.SIGKILL]
    assert (place.folder / "two" / ".lock").read_text() == f"{child}\n"
    place.start("two", 400)
    wait_for(place, "two", "[0-9]*")
    assert place.end(signal.SIGKILL) == [-signal.SIGKILL]


@pytest.mark.slow  # tests/runs/test_trainer.py stops runs by it, and tests/cli/test_program.py commands
def test_sigterm_saves_within_a_grace_of_thirty_seconds(place):
    place.start("terminated", 100_000)
    wait_for(place, "terminated", "[0-9]*")
    began = time.monotonic()
    assert place.end(signal.SIGTERM) == [130]
    assert time.monotonic() - began < 30
    told = place.log("terminated").read_text()
    last = Checkpoints(place.folder / "terminated" / "checkpoints").steps()[-1]
    assert f"stopped at update {last} of 100000; saved; run the same command again to go on." in told
    assert lasting(place.folder / "terminated")[-1]["step"] == last
