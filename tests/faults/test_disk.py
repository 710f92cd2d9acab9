"""Disks that fill up or cannot be written, files that vanish, clocks that jump: a clear error, then the work goes on.

The disks are small file systems in memory, which only root can mount; elsewhere these tests are skipped, and those of
`tests/training` and `tests/data`, which let single calls fail, remain.
"""

import random
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from diffeqformer.config import Config
from diffeqformer.data.cache import prepare
from diffeqformer.errors import BadInput, RunFailed
from diffeqformer.progress import Stage
from diffeqformer.runs.checkpoint import Checkpoints
from diffeqformer.runs.opening import load_run
from diffeqformer.runs.trainer import train
from tests.faults.conftest import Lines
from tests.faults.small_run import config as config_of
from tests.faults.test_kill import final_state, lasting
from tests.runs.tiny_run import write_text

pytestmark = pytest.mark.slow  # processes of their own, one after the other

UPDATES = 8


@pytest.fixture(scope="module")
def disk(tmp_path_factory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("disk")
    command = ["mount", "-t", "tmpfs", "-o", "size=16m", "none", folder]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


@contextmanager
def read_only(disk: Path) -> Iterator[None]:
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    try:
        yield
    finally:
        subprocess.run(["mount", "-o", "remount,rw", disk], check=True)


def fill(disk: Path, leave: int) -> Path:
    """Write a file that leaves so many bytes."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        with pytest.raises(OSError, match="No space left"):
            while file.write(bytes(4096)):
                pass
        file.truncate(max(0, filler.stat().st_size - leave))
    return filler


def settings(place: Path, disk: Path, run: str) -> Config:
    return config_of(UPDATES, str(disk / run), str(place / "text.txt"), str(place / "cache"))


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder on an ordinary disk, with a run that met no fault."""
    folder = tmp_path_factory.mktemp("place")
    write_text(folder / "text.txt")
    train(settings(folder, folder, "whole"), Lines())
    return folder


def ends_as_the_whole(config: Config, place: Path) -> None:
    train(config, Lines())
    assert lasting(Path(config.run)) == lasting(place / "whole")
    assert final_state(Path(config.run), UPDATES) == final_state(place / "whole", UPDATES)


class FillsUp(Lines):
    """Fills a disk when so many updates are done, and, of a run there, the checkpoints that are written beside them."""

    def __init__(self, disk: Path, after: int, leave: int, run: str = ""):
        super().__init__()
        self.disk, self.after, self.leave, self.checkpoints = disk, after, leave, Path(run, "checkpoints")
        self.latest = 2 * ((after - 1) // 2) if run else 0
        """The newest of them, 0 for none."""

    @contextmanager
    def stage(self, name: str, total: int, done: int = 0) -> Iterator[Stage]:
        with super().stage(name, total, done) as stage:
            yield self if name == "Training" else stage  # pyright: ignore[reportReturnType]

    def advance(self, amount: int = 1, note: str = "") -> None:
        self.after -= amount
        if amount and not self.after:
            written = lambda: (self.checkpoints / str(self.latest)).exists() and not [*self.checkpoints.glob("*ing-*")]
            for _ in range(3000):
                if not self.latest or written():
                    break
                time.sleep(0.01)
            fill(self.disk, self.leave)


def survives(place: Path, disk: Path, after: int, leave: int) -> str:
    """Train on a disk that fills up, look at what is there, free it, train to the end; returns what was said."""
    config = settings(place, disk, f"run-{after}-{leave}")
    filling = FillsUp(disk, after, leave, config.run)
    try:
        with pytest.raises(RunFailed) as failure:
            train(config, filling)
        said = Lines()
        if after > 2:
            run = load_run(config.run, progress=said)
            assert run.step == filling.latest and said.lines == []
    finally:
        (disk / "filler").unlink(missing_ok=True)
    assert not list(Path(config.run).rglob("writing-*")) and not list(Path(config.run).rglob(".*.tmp"))
    ends_as_the_whole(config, place)
    shutil.rmtree(config.run)  # the disk is a small one
    return str(failure.value)


@pytest.mark.parametrize(("after", "leave"), [(1, 0), (5, 40 << 10)])
def test_a_disk_that_fills_up_while_training(place, disk, after, leave):
    said = survives(place, disk, after, leave)
    safe = "the last good (one|checkpoint) is at update 4" if after == 5 else "there is no (earlier one|checkpoint yet)"
    assert re.search(rf"could not be written.*\(No space left on device\); {safe}\.$", said) and str(disk) in said


def test_a_disk_that_fills_up_at_many_points(place, disk):
    draw = random.Random(0)
    for _ in range(30):
        said = survives(place, disk, draw.randrange(1, UPDATES), draw.choice([0, 4, 8, 16, 32, 64, 128, 256]) << 10)
        assert "No space left on device" in said and "\n" not in said


@pytest.mark.parametrize("leave", [0, 4 << 10, 12 << 10])
def test_a_disk_that_fills_up_while_text_is_packed(place, disk, leave):
    config = replace(settings(place, disk, "none").data, cache=str(disk / f"cache-{leave}"))
    filler = fill(disk, leave)
    try:
        with pytest.raises(RunFailed, match="the disk that holds the token cache '.*' is full: nothing was kept; free"):
            prepare(config, Lines())
        assert not list(disk.glob(f"cache-{leave}/*"))
    finally:
        filler.unlink()
    assert len(prepare(config, Lines()).train) > 1000


def test_a_read_only_disk(place, disk):
    config = settings(place, disk, "finished")
    ends_as_the_whole(config, place)
    with read_only(disk):
        assert load_run(config.run, progress=Lines()).step == UPDATES
        with pytest.raises(BadInput, match=r"run folder '.*finished' cannot be written: Read-only file system\."):
            train(config, Lines())
        with pytest.raises(BadInput, match=r"run folder '.*new' cannot be written: Read-only file system\."):
            train(replace(config, run=str(disk / "new")), Lines())
        with pytest.raises(BadInput, match="data.cache is '.*', but that folder cannot be used: Read-only file system"):
            prepare(replace(config.data, cache=str(disk / "new")), Lines())


def test_a_text_that_has_vanished_and_is_back(place, tmp_path):
    config = settings(place, tmp_path, "run")
    with pytest.raises(RuntimeError, match="stopped"):
        train(config, Stops())
    text = place / "text.txt"
    text.rename(place / "gone.txt")
    with pytest.raises(BadInput, match=f"data.train: file '{text}' does not exist"):
        train(config, Lines())
    assert load_run(config.run).step == 4
    (place / "gone.txt").rename(text)
    ends_as_the_whole(config, place)


class Stops(FillsUp):
    """Ends the process, in effect, when five updates are done."""

    def __init__(self):
        super().__init__(Path(), 5, 0)

    def advance(self, amount: int = 1, note: str = "") -> None:
        self.after -= amount
        if not self.after:
            raise RuntimeError("stopped")


def test_clocks_that_jump(place, tmp_path, monkeypatch):
    """To 1970, to 2100 and back; what is measured in seconds is measured by a clock that cannot jump."""
    draw, now = random.Random(0), time.time
    monkeypatch.setattr(time, "time", lambda: draw.choice([0.0, 4e9, now(), now() - 86400]))
    monkeypatch.setattr(time, "time_ns", lambda: draw.choice([0, 4 * 10**18]))
    config = settings(place, tmp_path, "run")
    with pytest.raises(RuntimeError, match="stopped"):
        train(config, Stops())
    ends_as_the_whole(config, place)


@pytest.mark.parametrize("arrays", [3, 12])
def test_writes_that_end_after_the_first_that_failed_print_nothing(disk, capfd, arrays):
    """Orbax closes its event loop at the first, and the others' callbacks printed tracebacks of asyncio."""
    draw = np.random.default_rng(0)
    filler = fill(disk, 4 << 10)
    try:
        for size in (3_000, 20_000, 60_000):
            tree = {str(i): draw.standard_normal(size).astype(np.float32) for i in range(arrays)}
            with pytest.raises(RunFailed, match="No space left on device"):
                Checkpoints(disk / f"late-{size}").save(1, {"model": tree}, {})
    finally:
        filler.unlink()
    assert capfd.readouterr().err == ""
