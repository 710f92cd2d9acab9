"""Trackers: they get each number once, however often it is continued, and none of them can end a training."""

import json
import math
import os
import sqlite3
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event

from diffeqformer.config import dump_yaml, read_yaml
from diffeqformer.errors import BadInput, Interrupted
from diffeqformer.progress import Silent
from diffeqformer.runs import recorder, trackers
from diffeqformer.runs.metrics import read_metrics
from diffeqformer.runs.opening import load_run
from diffeqformer.runs.trackers import Kind
from diffeqformer.runs.trainer import train
from tests.runs.tiny_run import changed


def events(folder: Path) -> list[tuple[int, str, float]]:
    """(step, name, number) of all event files, in the order of their making; records are framed by 12 and 4 bytes."""
    found = []
    for path in sorted(folder.glob("events*"), key=lambda path: path.stat().st_mtime_ns):
        raw = path.read_bytes()
        while raw:
            length = int.from_bytes(raw[:8], "little")
            event = Event.FromString(raw[12 : 12 + length])
            found += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
            raw = raw[16 + length :]
    return found


IN_ANOTHER_PROCESS = """
import sys
from diffeqformer.config import read_yaml
from diffeqformer.errors import Interrupted
from diffeqformer.progress import Silent
from diffeqformer.runs import recorder, trainer

collect = recorder.Recorder.collect

def collect_and_stop(self):
    collect(self)
    if self.step >= int(sys.argv[2]):
        raise Interrupted("stopped")

recorder.Recorder.collect = collect_and_stop
try:
    trainer.train(read_yaml(sys.argv[1]), Silent())
except Interrupted:
    pass
print(*sorted({"tensorboardX", "wandb", "trackio"} & set(sys.modules)))
"""


def in_another_process(config, folder, update, **environment) -> str:
    """The same there; returns what it printed: the trackers that were imported."""
    path = folder / "config.yaml"
    path.write_text(dump_yaml(config))
    words = [sys.executable, "-c", IN_ANOTHER_PROCESS, str(path), str(update)]
    ran = subprocess.run(words, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


class Recorded:
    """A tracker that remembers, and fails when it is told to."""

    fails_at = ""

    def __init__(self, run):
        self.rows, self.run, self.closed = [], run, None
        self.fail("open")
        RECORDED.append(self)

    def fail(self, call):
        if self.fails_at == call:
            raise ConnectionError("no route to host\nsecond line")

    def send(self, rows):
        self.fail("send")
        self.rows += [(step, dict(numbers)) for step, numbers in rows]
        print("trackers may print")

    def close(self, failed):
        self.fail("close")
        self.closed = failed


RECORDED: list[Recorded] = []


@pytest.fixture
def recorded(monkeypatch):
    """Trackio's place is taken by one that remembers."""
    RECORDED.clear()
    monkeypatch.setitem(trackers.KINDS, "trackio", Kind("Trackio", "json", Recorded))
    return RECORDED


class Said(Silent):
    def __init__(self):
        self.lines = []

    def say(self, line):
        self.lines.append(line)


def interrupted(config, monkeypatch, update):
    """Train as far as `update`, and end as if killed there: nothing is saved."""
    collect = recorder.Recorder.collect

    def collect_and_stop(self):
        collect(self)
        if self.step >= update:
            raise Interrupted("stopped")

    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(recorder.Recorder, "collect", collect_and_stop)
        train(config, Silent())


def rows_of(recorded):
    return [row for tracker in recorded for row in tracker.rows]


def test_every_number_is_sent_once_though_the_run_was_killed_twice(config, monkeypatch, recorded, capsys):
    config = changed(config, trainer__trackers=("trackio",), trainer__log_every=1)
    interrupted(config, monkeypatch, 7)  # the checkpoint is at 4: 5 to 7 are repeated
    interrupted(config, monkeypatch, 6)  # dies again before it gets as far as it was
    entry = train(config, Silent()).entry
    assert capsys.readouterr().out == ""  # `--json` has standard output to itself

    assert len({tracker.run.id for tracker in recorded}) == 1
    assert [tracker.run.continued for tracker in recorded] == [False, True, True]
    assert [tracker.closed for tracker in recorded] == [True, True, False]
    rows = rows_of(recorded)
    assert all(first <= second for (first, _), (second, _) in pairwise(rows))
    metrics = read_metrics(Path(config.run) / "metrics.jsonl")
    for kind, theirs, ours in [
        ("update", "train/loss", "loss"),
        ("update", "train/gradient_norm", "gradient_norm"),
        ("update", "train/learning_rate", "learning_rate"),
        ("validation", "validation/loss", "loss"),
    ]:
        sent = [(step, numbers[theirs]) for step, numbers in rows if theirs in numbers]
        assert sent == [(record["step"], record[ours]) for record in metrics if record["kind"] == kind]
    assert sum("train/tokens_per_second" in numbers for _, numbers in rows) == 12
    step, final = rows[-1]
    assert step == 12 and final["final/loss"] == entry["validation"]["loss"]
    assert final["final/parameters_stored"] == entry["parameters"]["stored"]


@pytest.mark.parametrize("call", ["open", "send", "close"])
def test_a_tracker_that_fails_is_left_out_with_one_line(config, monkeypatch, recorded, call):
    monkeypatch.setattr(Recorded, "fails_at", call)
    progress = Said()
    train(changed(config, trainer__trackers=("trackio", "tensorboard")), progress)
    said = [line for line in progress.lines if "Trackio" in line]
    assert said == [
        "Trackio failed (ConnectionError: no route to host second line); the run goes on without it, and metrics.jsonl "
        "has every number."
    ]
    assert len([name for _, name, _ in events(Path(config.run) / "tensorboard") if name == "train/loss"]) == 12


def test_a_package_that_is_missing_is_told_before_anything_is_written(config, monkeypatch):
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    with pytest.raises(BadInput) as caught:
        train(changed(config, trainer__trackers=("wandb",)), Silent())
    assert str(caught.value) == (
        "trainer.trackers has 'wandb', but wandb is not installed; pip install 'diffeqformer[wandb]' brings it."
    )
    assert not Path(config.run).exists()


def test_trackers_are_imported_only_when_asked_for(config, tmp_path):
    assert in_another_process(changed(config, trainer__updates=1), tmp_path, 99) == ""


def test_event_files_hold_the_run_and_its_config(config, monkeypatch):
    config = changed(config, trainer__trackers=("tensorboard",), trainer__log_every=1)
    interrupted(config, monkeypatch, 7)
    result = train(config, Silent())
    found = events(Path(config.run) / "tensorboard")
    records = read_metrics(Path(config.run) / "metrics.jsonl")
    losses = [(step, number) for step, name, number in found if name == "train/loss"]
    expected = [(record["step"], record["loss"]) for record in records if record["kind"] == "update"]
    assert [step for step, _ in losses] == [step for step, _ in expected] == list(range(1, 13))
    # event files hold float32, good to 6e-8
    assert all(math.isclose(one, other, rel_tol=1e-6) for (_, one), (_, other) in zip(losses, expected, strict=True))
    final = {name: (step, number) for step, name, number in found if name.startswith("final/")}
    assert final["final/loss"] == (12, pytest.approx(result.entry["validation"]["loss"], rel=1e-6))
    assert [name for step, name, _ in found].count("config/text_summary") == 1


def test_settings_of_trackers_may_change_and_are_kept(config, recorded):
    train(config, Silent())
    config = changed(config, trainer__trackers=("trackio",), trainer__tracker_project="mine")
    train(config, Silent())  # finished: nothing is opened
    assert recorded == []
    assert load_run(config.run).config.trainer.tracker_project == "mine"
    assert read_yaml(Path(config.run) / "config.yaml").trainer.trackers == ("trackio",)


@pytest.mark.trackers
def test_trackio_keeps_one_run(config, tmp_path):
    config = changed(config, trainer__trackers=("trackio",), trainer__log_every=1)
    for update in (7, 99):
        assert in_another_process(config, tmp_path, update, TRACKIO_DIR=str(tmp_path / "trackio")) == "trackio"
    (database,) = (tmp_path / "trackio").glob("*.db")
    with sqlite3.connect(database) as connection:
        rows = connection.execute("select run_name, step, metrics from metrics order by id").fetchall()
    assert len({name for name, _, _ in rows}) == 1
    assert [step for _, step, numbers in rows if "train/loss" in json.loads(numbers)] == list(range(1, 13))
    assert any("final/perplexity" in json.loads(numbers) for _, _, numbers in rows)


def parts(raw: bytes) -> list[bytes]:
    """The records of a log of LevelDB's format, whose blocks of 32 KiB hold whole or broken records."""
    found, place = [], 7  # after the file's own header
    while place + 7 <= len(raw):
        if (left := -place % 32768) < 7 and left:
            place += left
        length, kind = int.from_bytes(raw[place + 4 : place + 6], "little"), raw[place + 6]
        content = raw[place + 7 : place + 7 + length]
        found = [*found, content] if kind in (1, 2) else [*found[:-1], found[-1] + content]
        place += 7 + length
    return found


@pytest.mark.trackers
def test_weights_and_biases_offline_is_one_run_in_two_processes(config, tmp_path):
    from wandb.proto.wandb_internal_pb2 import Record

    config = changed(config, trainer__trackers=("wandb",), trainer__log_every=1)
    for update in (7, 99):
        assert in_another_process(config, tmp_path, update, WANDB_MODE="offline") == "wandb"
    files = sorted((Path(config.run) / "wandb").glob("offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime)
    assert len(files) == 2 and len({path.name for path in files}) == 1  # its id
    steps, names, configs = [], set(), []
    for path in files:
        for record in map(Record.FromString, parts(path.read_bytes())):
            row = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            names |= row.keys()
            steps += [row["_step"]] if "train/loss" in row else []
            configs += [item.key for item in record.run.config.update]
    assert steps == list(range(1, 13))
    assert {"validation/loss", "train/tokens_per_second", "final/loss"} <= names
    assert {"model", "optimizer", "trainer"} <= set(configs)
