"""Only one process writes to a run folder."""

import os
import subprocess
import sys

import pytest

from diffeqformer.errors import BadInput
from diffeqformer.store.lock import folder_lock

HOLD = """
import sys
from pathlib import Path
from diffeqformer.store.lock import folder_lock
with folder_lock(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_a_second_process_is_refused_and_told_who_writes(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout.readline() == "locked\n"
            with pytest.raises(BadInput) as refusal, folder_lock(tmp_path):
                pass
            assert str(refusal.value) == (
                f"run folder {str(tmp_path)!r} is being written by process {holder.pid}; "
                f"wait until it ends or choose another folder."
            )
        finally:
            holder.kill()
            holder.wait()
        with folder_lock(tmp_path):  # the kernel released what the killed process held
            assert (tmp_path / ".lock").read_text() == f"{os.getpid()}\n"


def test_a_lock_can_be_taken_again(tmp_path):
    for _ in range(2):
        with folder_lock(tmp_path):
            pass
