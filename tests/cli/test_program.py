"""The command line as a process of its own: requests to end it, and its end."""

import subprocess
import sys

import pytest

START = """
import gc, os, runpy, signal, sys, threading, time
from pathlib import Path
from diffeqformer import cli

def _run(words, as_json, own_process):
{body}

cli._run = _run
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore Ctrl-C
sys.argv[1:] = ["info"]
runpy.run_module("diffeqformer", run_name="__main__")
"""
BUSY = """
    try:
        threading.Thread(target=time.sleep, args=(36_000,)).start()
        print("so far", end="")
        os.kill(os.getpid(), {number})
        time.sleep(36_000)
    finally:
        Path({kept!r}).write_text("saved")
"""
TWICE = """
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(36_000)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
        Path({kept!r}).write_text("saved")
"""
DROPPED = """
    def collected(phase, _):
        gc.callbacks.clear()
        os.kill(os.getpid(), {number})
        time.sleep(0)

    gc.callbacks.append(collected)
    gc.collect()
    time.sleep(3)
    return 0
"""


def ended(body: str) -> subprocess.CompletedProcess[str]:
    """A process whose command is `body`; one that waits for its threads never ends."""
    program = [sys.executable, "-c", START.format(body=body)]
    return subprocess.run(program, capture_output=True, text=True, check=False, timeout=600)


@pytest.mark.parametrize("number", ["signal.SIGINT", "signal.SIGTERM"])
def test_an_interrupted_process_has_saved_and_written_all_and_waits_for_no_thread(tmp_path, number):
    kept = tmp_path / "kept"
    done = ended(BUSY.format(number=number, kept=str(kept)))
    assert (done.returncode, done.stdout, done.stderr) == (130, "so far", "diffeqformer: interrupted.\n")
    assert kept.read_text() == "saved"


def test_a_second_signal_at_once_does_not_end_the_answer_to_the_first(tmp_path):
    done = ended(TWICE.format(kept=str(tmp_path / "kept")))
    assert (done.returncode, done.stderr) == (130, "diffeqformer: interrupted.\n")
    assert (tmp_path / "kept").read_text() == "saved"


@pytest.mark.parametrize("number", ["signal.SIGINT", "signal.SIGTERM"])
def test_an_interruption_that_python_drops_comes_again(number):
    done = ended(DROPPED.format(number=number))
    assert (done.returncode, done.stderr) == (130, "diffeqformer: interrupted.\n")


@pytest.mark.parametrize("number", ["signal.SIGINT", "signal.SIGTERM"])
def test_what_an_import_makes_of_an_interruption_is_one(number):
    body = f"    try: os.kill(os.getpid(), {number}); time.sleep(9)\n    except KeyboardInterrupt: raise ImportError"
    done = ended(body)
    assert (done.returncode, done.stderr) == (130, "diffeqformer: interrupted.\n")
    assert "failed with ImportError" in ended("    raise ImportError").stderr


def test_before_the_command_line_is_imported_ctrl_c_has_its_sentence_too():
    start = """
import os, runpy, signal, sys

class Interrupted:
    def find_spec(self, name, path, target=None):
        if name == "diffeqformer.cli":
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupted())
sys.argv[1:] = ["--help"]
runpy.run_module("diffeqformer", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", start], capture_output=True, text=True, check=False, timeout=600)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "diffeqformer: interrupted.\n")


def test_other_exceptions_that_python_drops_are_shown():
    done = ended("    gc.callbacks.append(lambda *_: gc.callbacks.clear() or 1 / 0); gc.collect(); return 0")
    assert done.returncode == 0 and "ZeroDivisionError" in done.stderr


def test_a_command_that_ends_by_itself_has_its_status():
    done = ended("    raise cli.BadInput('no.')")
    assert (done.returncode, done.stderr) == (2, "diffeqformer: no.\n")
