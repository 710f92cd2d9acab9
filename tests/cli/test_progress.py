"""What a log shows of long work, and what fits into a narrow terminal."""

import io
import subprocess
import sys
from types import SimpleNamespace

import pytest
from rich.console import Console
from rich.progress import Progress

from diffeqformer import progress
from diffeqformer.cli import main
from diffeqformer.data.tokenizer import train_tokenizer
from diffeqformer.progress import Terminal

NOTE = "loss 4.083 · validation 4.102 · 12,345 tok/s"


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is set."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_a_log_gets_a_line_now_and_then_and_one_at_the_end(capsys, clock):
    with Terminal().stage("Training", 1500, 100) as stage:
        for _ in range(45):
            clock[0] += 1.0
            stage.advance(1, NOTE)
    assert capsys.readouterr().err.splitlines() == [
        "Training …",
        f"Training: 120/1500 · {NOTE}",
        f"Training: 140/1500 · {NOTE}",
        f"Training: 145/1500 · {NOTE} · 45 s",
    ]


def test_a_short_stage_is_only_named_and_a_large_total_is_a_percentage(capsys, clock):
    with Terminal().stage("Checking", 3) as stage:
        stage.advance(3)
    with Terminal().stage("Reading", 2_000_000) as stage:
        stage.advance(1_000_000)
        clock[0] += 3.0
    assert capsys.readouterr().err.splitlines() == ["Checking …", "Reading …", "Reading: 50% · 3 s"]


@pytest.mark.parametrize("width", [80, 100, 160])
@pytest.mark.parametrize("name,total", [("Training", 1500), ("Tokenising the validation split", 12_345_678)])
def test_a_line_fits_the_terminal_and_the_note_is_whole(width, name, total):
    shown = io.StringIO()
    console = Console(file=shown, width=width, force_terminal=True, color_system=None)
    bars = Progress(*progress._columns(width), console=console, auto_refresh=False)
    note = NOTE if name == "Training" else ""
    bars.add_task(name, total=total, completed=total - 1, note=note)
    console.print(bars.get_renderable())
    (line,) = shown.getvalue().splitlines()
    assert len(line) <= width and "…" not in line
    assert name in line and note in line and ("1499/1500" if name == "Training" else "100%") in line


def test_a_terminal_sees_bars(monkeypatch):
    class FakeTerminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", FakeTerminal())
    with Terminal().stage("Training", 2) as stage:
        stage.advance(2, NOTE)
    assert "✓" in sys.stderr.getvalue() and "━" in sys.stderr.getvalue()


def test_nobody_reading_ends_only_the_display(tmp_path):
    """As in `train ... 2>&1 | head`: what is computed is not lost."""
    code = (
        "import time; from diffeqformer.progress import Terminal; t = Terminal()\n"
        "for n in range(5): t.say(f'line {n}' * 1000); time.sleep(0.05)\n"
        f"open({str(tmp_path / 'done')!r}, 'w').write('x')"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE)
    process.stderr.close()
    assert process.wait() == 0 and (tmp_path / "done").exists()


def test_sampling_shows_that_it_computes(capsys, monkeypatch):
    """It was silent until the text was there, for minutes with a large model."""
    opened = SimpleNamespace(model=None, prompts=train_tokenizer([], 257), start=[], stops=[], which={})
    monkeypatch.setattr("diffeqformer.runs.opening.load_run", lambda *_: opened)
    monkeypatch.setattr("diffeqformer.runs.sampling.continue_text", lambda *_, **__: [" sat"])
    assert main(["sample", "run", "--prompt", "the cat"]) == 0
    assert capsys.readouterr() == ("the cat sat\n", "Generating …\n")
