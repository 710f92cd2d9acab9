"""Two processes of the command line: the first one speaks, both stop together, mistakes are told once."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest

from diffeqformer.cli import distributed as command
from diffeqformer.cli.distributed import Distributed
from diffeqformer.errors import BadInput
from diffeqformer.runs import distributed
from diffeqformer.runs.distributed import START_AGAIN
from diffeqformer.runs.metrics import read_metrics

PATIENCE = 900.0
SETTINGS = (
    "--model.width 16 --model.heads 2 --model.steps 2 --model.context 16 --trainer.batch-size 4 --trainer.log-every 1 "
    "--data.tokenizer-vocabulary 288 --data.source files --mesh.data -1 --data.cache cache"
)


def two(folder: Path, *words: str, run: str = "run") -> list[subprocess.Popen]:
    """The same command in two processes of one device each."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    folder.joinpath("text.txt").write_text("the cat sees stars, one dog eats songs.\n" * 400)
    environment = {
        **{name: value for name, value in os.environ.items() if name != "XLA_FLAGS"},
        "JAX_PLATFORMS": "cpu",
        "GLIBC_TUNABLES": "",
        "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    start = [sys.executable, "-m", "diffeqformer", "train", "quickstart-gpt", *SETTINGS.split()]
    start += ["--data.train", "text.txt", "--run", run, *words]
    others = ["--distributed.coordinator", address, "--distributed.processes", "2", "--distributed.process"]
    pipe = subprocess.PIPE
    return [
        subprocess.Popen([*start, *others, str(i)], cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True)
        for i in range(2)
    ]


def ends(processes: list[subprocess.Popen]) -> list[tuple[int, str, str]]:
    """Exit status, standard output and standard error of each."""
    said = [process.communicate(timeout=PATIENCE) for process in processes]
    return [(process.returncode, *both) for process, both in zip(processes, said, strict=True)]


@pytest.mark.slow
def test_two_processes_stop_together_go_on_and_speak_with_one_voice(tmp_path):
    processes = two(tmp_path, "--trainer.updates", "4000")
    deadline = time.monotonic() + PATIENCE
    while len(read_metrics(tmp_path / "run" / "metrics.jsonl")) < 6:
        assert time.monotonic() < deadline and processes[0].poll() is None, ends(processes)
        time.sleep(0.1)
    processes[1].send_signal(signal.SIGTERM)  # the one that does not speak
    (first, out, told), (second, quiet, nothing) = ends(processes)
    assert (first, second) == (130, 130), told + nothing
    assert "stopped at update" in told and (out, quiet) == ("", "")
    assert "update" not in nothing and "Training" not in nothing

    stopped = max(r["step"] for r in read_metrics(tmp_path / "run" / "metrics.jsonl") if r["kind"] == "update")
    (status, out, told), (_, _, nothing) = ends(two(tmp_path, "--trainer.updates", "4001"))
    assert status == 2 and told.count("trainer.updates is 4000 there, but 4001 here") == 1 and out == ""
    assert "trainer.updates" not in nothing

    short = tmp_path / "short"
    short.mkdir()
    (status, out, told), (other, quiet, _) = ends(two(short, "--trainer.updates", "5", "--json"))
    assert (status, other) == (0, 0), told
    assert json.loads(out)["models"][0]["updates"] == 5 and quiet == "" and stopped > 4


LONG = ("--trainer.updates", "120", "--trainer.checkpoint-every", "10", "--trainer.evaluate-every", "30")


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A folder with a run of two processes that nobody disturbed."""
    folder = tmp_path_factory.mktemp("pair")
    assert [status for status, *_ in ends(two(folder, *LONG, run="whole"))] == [0, 0]
    return folder


def found(run: Path) -> tuple[list[dict], dict]:
    """The losses of a run, and its final evaluation."""
    losses = [record for record in read_metrics(run / "metrics.jsonl") if record["kind"] != "timing"]
    return losses, json.loads((run / "results.json").read_text())["models"][0]["validation"]


@pytest.mark.slow
@pytest.mark.parametrize("lost, how", [(1, signal.SIGKILL), (0, signal.SIGKILL), (1, signal.SIGSTOP)])
def test_a_lost_process_ends_the_other_with_a_sentence_and_both_go_on_when_started_again(whole, lost, how):
    run = whole / f"lost-{lost}-{how.name}"
    processes = two(whole, *LONG, run=run.name)
    deadline = time.monotonic() + PATIENCE
    while len([entry for entry in run.glob("checkpoints/*") if entry.name.isdecimal()]) < 2:
        assert time.monotonic() < deadline and processes[0].poll() is None, ends(processes)
        time.sleep(0.01)
    processes[lost].send_signal(how)
    began, left = time.monotonic(), processes[1 - lost]
    out, told = left.communicate(timeout=PATIENCE)
    print(f"process {1 - lost} has ended {time.monotonic() - began:.1f} seconds after {how.name} of the other")
    processes[lost].kill()
    processes[lost].communicate()
    assert (left.returncode, out) == (1, ""), told
    assert told.count(START_AGAIN) == 1 and "Traceback" not in told
    assert told.splitlines()[-1].startswith("diffeqformer: ") and told.splitlines()[-1].endswith(f"{START_AGAIN}.")
    assert not (run / "results.json").exists()

    assert [status for status, *_ in ends(two(whole, *LONG, run=run.name))] == [0, 0]
    assert found(run) == found(whole / "whole")


@pytest.mark.parametrize(
    "asked, words",
    [
        (
            Distributed("nowhere"),
            "--distributed.processes is missing, but --distributed.coordinator 'nowhere' needs it.",
        ),
        (Distributed("nowhere", 2, 0), "--distributed.coordinator is 'nowhere', but must be HOST:PORT or 'auto'."),
        (Distributed("a:1", 2, 2), "--distributed.process is 2, but must be from 0 to 1."),
        (Distributed("auto", 2), "--distributed.processes is 2, but 'auto' finds it."),
        (
            Distributed("", 2),
            "--distributed.processes is 2, but --distributed.coordinator, which it needs, is missing.",
        ),
    ],
)
def test_what_does_not_agree_is_named(asked, words, monkeypatch):
    monkeypatch.setattr(command, "_keep_standard_output", lambda: None)
    with pytest.raises(BadInput) as told:
        command.join(asked)
    assert str(told.value) == words


def test_one_process_has_its_own_way():
    assert distributed.is_main() and distributed.by_main(lambda: {"any": object}) == {"any": object}
    assert distributed.Agreement().any(True, False) == (True, False)
    assert distributed.main_first(lambda: 3) == 3


def test_what_ends_work_with_others_is_told_from_other_failures(monkeypatch):
    raised = [
        jax.errors.JaxRuntimeError("UNKNOWN: Gloo all-reduce failed: Connection closed by peer"),
        ValueError("UNAVAILABLE: Gloo all-reduce failed: Connection closed by peer"),  # of functions called again
        ValueError("RESOURCE_EXHAUSTED: No space left on device"),
        ValueError("a value: wrong"),
        OSError("UNKNOWN: a"),
    ]
    assert not any(map(distributed.is_loss, raised))
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    assert list(map(distributed.is_loss, raised)) == [True, True, False, False, False]


def test_a_process_that_is_aborted_ends_with_a_sentence():
    program = "import os; from diffeqformer.runs import distributed as d; d._explain_abort(); os.abort()"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", distributed.ABORTED)
