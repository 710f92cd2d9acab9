"""What a terminal shows: tables that do not fit go on below, no number is broken, nothing controls it."""

import io
import json
import os
import subprocess
import sys

from diffeqformer.cli import main
from diffeqformer.cli.eval import _cells
from diffeqformer.cli.output import print_json, print_table, print_text
from diffeqformer.plain import CONTROL
from diffeqformer.progress import Terminal
from diffeqformer.report.table import Table
from diffeqformer.studies.study import Result


def printed(capsys, columns, rows, title="A title") -> list[str]:
    print_table(title, columns, rows)
    return capsys.readouterr().out.splitlines()


def test_help_ends_in_a_terminal_without_room_for_its_boxes():
    """In a process of its own: it did not."""
    words = [sys.executable, "-m", "diffeqformer", "eval", "--help"]
    narrow = os.environ | {"COLUMNS": "5"}
    ended = subprocess.run(words, env=narrow, capture_output=True, text=True, timeout=120, check=True)
    assert "--steps" in ended.stdout


def test_a_table_that_fits_is_one(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    assert [line.split() for line in printed(capsys, ["name", "a b"], [["x", "1.5"]])] == [
        ["A", "title"], ["name", "a", "b"], ["x", "1.5"],
    ]  # fmt: skip


def test_headers_are_broken_at_spaces_before_a_table_is(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    lines = printed(capsys, ["name", "rank correlation", "long header"], [["x", "1.5", "2.5"]])
    assert [line.split() for line in lines[1:]] == [["rank", "long"], ["name", "correlation", "header"],
                                                    ["x", "1.5", "2.5"]]  # fmt: skip


def test_a_wide_table_goes_on_below_with_its_first_column(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    cell = "0.546 [0.530, 0.561]"
    lines = printed(capsys, ["method", "one", "two", "three"], [["occlusion", cell, cell, cell]])
    assert sum(line.startswith("occlusion") and line.count(cell) == 1 for line in lines) == 3
    assert max(map(len, lines)) <= 40 and sum("A title" in line for line in lines) == 1


HOSTILE = "run\x1b[2J\x1b]0;title\x07\x9b1m\u202enur\x7f"


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_names_and_texts_do_not_control_a_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")  # to which Rich itself writes no escapes
    terminal = FakeTerminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(sys, "stderr", terminal)
    print_table(HOSTILE, [HOSTILE, "a"], [[HOSTILE, "1"]])
    print_text(HOSTILE)
    print_json({HOSTILE: HOSTILE})
    Result(HOSTILE, HOSTILE, (HOSTILE,), (Table(HOSTILE, (HOSTILE,), ((HOSTILE,),)),)).show()
    progress = Terminal()
    progress.say(HOSTILE)
    with progress.stage(HOSTILE, 2) as stage:
        stage.advance(1, HOSTILE)
    assert main(["eval", HOSTILE]) == 2 and main(["train", "none.yaml", f"--{HOSTILE}"]) == 2
    assert terminal.getvalue().count("run") > 9 and not CONTROL.search(terminal.getvalue())


def test_a_pipe_gets_text_as_it_is_and_json_says_the_same(capsys):
    print_text(HOSTILE)
    assert capsys.readouterr().out == HOSTILE + "\n"
    print_json({"text": HOSTILE + "\n\tü🙂"})
    shown = capsys.readouterr().out
    assert json.loads(shown) == {"text": HOSTILE + "\n\tü🙂"} and "ü🙂" in shown and not CONTROL.search(shown)


def test_the_help_of_a_strangers_config_does_not_control_a_terminal(tmp_path, capsys):
    (tmp_path / "c.yaml").write_text('run: "a\\e[31mb\\u202e"\ndata: {source: files, train: ["x\\e[2J"]}\n')
    assert main(["train", str(tmp_path / "c.yaml"), "--help"]) == 0
    shown = capsys.readouterr().out
    assert "a␛[31mb\ufffd" in shown and "x␛[2J" in shown
    assert "\x1b[31mb" not in shown and "\u202e" not in shown


def test_large_and_infinite_numbers_of_an_evaluation_are_told_as_such():
    """A perplexity had all of its digits, and a loss that is not finite was a dash, as if it were not known."""
    row = {"steps": 2, "early_exit": None, "rtol": None, "attention_evaluations": 2.0, "feed_forward_evaluations": 2.0}
    row |= {"loss": 50.0, "perplexity": 5.18e21, "bits_per_byte": 20.0, "tokens_per_second": 10.0}
    assert _cells(row)[2:5] == ["50.0000", "5.18e+21", "20.0000"]
    lost = _cells(row | {"loss": None, "perplexity": None, "bits_per_byte": None})
    assert lost[2:5] == ["not finite", "not finite", "–"]
