"""Every option of every command, with what a stranger or a slip of the hand may put there: a sentence, never Python's.

Options and their types are read from the commands themselves. What is accepted is not computed here. The quick tests
take a part of the cases, the slow ones all.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin

import pytest

from diffeqformer.cli import main
from diffeqformer.cli.completion import commands
from diffeqformer.cli.parse import options_of
from diffeqformer.runs.trainer import train
from tests.faults.conftest import Lines
from tests.faults.small_run import config as config_of
from tests.runs.tiny_run import write_text

PATHS = [
    "~nosuchuser/x",
    "a" * 300,
    "/".join(["a" * 200] * 30),
    "a\0b",
    "loop",
    "loop/x",
    "\udce9",
    "\ud800",
    "file/x",
    "folder",
    "/dev/full",
    "/dev/null/x",
    "[",
    "\x1b[2J\u202e",
]
NUMBERS = ["1e400", str(10**30), str(-(10**30)), "-1", "nan", "", "9" * 5000, "inf", "-inf", "1e308", "٣", "x", "0x10"]
BEYOND = [str(-(10**30)), "nan", "1e400", str(10**30)]
"""What no number may be; the last may be one that is not counted in."""
REFUSALS = ("must ", "no such setting", "there is nothing that")
"""The last two of settings that another kind of section has."""
LISTS = {"steps", "early-exit", "ranks", "draft-steps", "draft-length"}
"""Options whose text is a list of numbers."""
WORDS = {
    "train": "c.yaml --run other",
    "info": "c.yaml",
    "sweep": "c.yaml --over optimizer.learning_rate=1e-3 --to swept",
    "finetune": "run --to tuned",
    "eval": "run",
    "sample": "run --prompt the --tokens 2",
    "explore": "run --text the",
    "report compare": "run run --to compared",
    "import": "run --to imported",
    "lift": "run --to lifted",
    "export": "run --to exported",
    "completion": "bash",
    "analyze clusters": "--to page",
    "analyze lyapunov": "run --text the --to page",
    "analyze attribution": "run --text the --to page",
    "bench drafts": "--run run",
    "bench page": "folder --to page.md",
    "reproduce adapt": "--texts a=text.txt b=text.txt --cache cache --to adapted",
    "reproduce depth": "--task text --data text.txt --cache cache --to there",
    "reproduce lift": "--data text.txt --cache cache --to there",
    **{f"analyze {name}": "run --to page" for name in ("all", "spectra", "induction", "steps", "depth", "compression")},
}
"""What else a command needs; the option comes after it, and replaces its own."""
COMPUTES = [
    "analysis.clusters.simulate",
    "analysis.faithfulness.explain",
    "analysis.induction.measure_induction",
    "analysis.lyapunov.pairwise",
    "analysis.participation.participation",
    "analysis.spectra.spectra",
    "evaluation.depth.at_depths",
    "explorer.server.serve",
    "explorer.page.portable_page",
    "evaluation.perplexity.evaluate_in_turns",
    "interop.tasks.Tasks",
    "model.generate.generate",
    "runs.compare.compare",
    "runs.footprint.update_footprint",
    "runs.lifting.lift",
    "runs.sampling.generate",
    "runs.sampling.speculate",
    "runs.trainer.Beginning",
    "studies.bench.benchmark.take_turns",
]
"""Where work begins."""


class Accepted(Exception):
    pass


class Case(NamedTuple):
    command: str
    option: str
    kind: Any
    value: str

    @property
    def words(self) -> list[str]:
        return [*self.command.split(), *WORDS.get(self.command, "").split(), f"--{self.option}={self.value}"]


def is_number(option: str, kind: Any) -> bool:
    return bool({int, float} & {kind, *get_args(kind)}) or (option in LISTS and kind is str)


def values(option: str, kind: Any) -> list[str]:
    """What to try, by the type."""
    if kind is bool:
        return ["maybe"]
    if get_origin(kind) is Literal:
        return ["no-such", "", "\udce9"]
    return [*(NUMBERS if is_number(option, kind) else []), *(PATHS if str in (kind, *get_args(kind)) else [])] or PATHS


OPTIONS = [(command, option, kind) for command, cls in commands() for option, kind in options_of(cls).items()]
CASES = [Case(*one, value) for one in OPTIONS for value in values(*one[1:])]
OUTSIDE = [
    Case(*one, value)
    for one in OPTIONS
    if is_number(*one[1:])
    for value in (BEYOND[:-1] if float in (one[2], *get_args(one[2])) else BEYOND)
]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with a run, its config, its text, and things that are in the way."""
    folder = tmp_path_factory.mktemp("options")
    config = config_of(2, str(folder / "run"), str(write_text(folder / "text.txt")), str(folder / "cache"))
    train(config, Lines())
    (folder / "c.yaml").write_text((folder / "run" / "config.yaml").read_text())
    (folder / "loop").symlink_to("loop")
    (folder / "file").write_text("x")
    (folder / "folder").mkdir()
    (folder / "folder" / "x").write_text("x")
    return folder


@pytest.fixture
def answer(place, monkeypatch, capsys) -> Callable[[list[str]], tuple[int, str]]:
    """The exit status of a command that computes nothing, and its last line."""
    monkeypatch.chdir(place)

    class Stop:  # a class, since some of these are named in the types of modules that are imported from now on
        def __init__(self, *_: object, **__: object) -> None:
            raise Accepted

    for name in COMPUTES:
        monkeypatch.setattr(f"diffeqformer.{name}", Stop)

    def ask(words: list[str]) -> tuple[int, str]:
        capsys.readouterr()
        status = main(words)
        err = capsys.readouterr().err
        assert "Traceback" not in err, words
        return status, (err.splitlines() or [""])[-1]

    return ask


def no_word_fails_in_python(answer: Callable, cases: list[Case]) -> None:
    answers = [(case, *answer(case.words)) for case in cases]
    strange = [
        (case.words, status, line[:300])
        for case, status, line in answers
        if status not in (0, 1, 2) or len(line) >= 1500 or ("failed with" in line and "with Accepted" not in line)
    ]
    assert strange == [], "\n".join([f"{len(strange)} of {len(answers)}", *map(str, strange)])


def no_number_is_without_bound(answer: Callable, cases: list[Case]) -> None:
    def is_refused(case: Case, status: int, line: str) -> bool:
        named = case.option.rpartition(".")[2] in line.replace("_", "-") or "numbers" in line
        return status == 2 and named and any(word in line for word in REFUSALS)

    answers = [(case, *answer(case.words)) for case in cases]
    strange = [(case.words, status, line[:300]) for case, status, line in answers if not is_refused(case, status, line)]
    assert strange == [], "\n".join([f"{len(strange)} of {len(answers)}", *map(str, strange)])


@pytest.mark.slow
def test_a_part_of_all_words(answer):
    assert len(CASES) > 3000 and len({case.command for case in CASES}) > 25
    no_word_fails_in_python(answer, CASES[::157])


@pytest.mark.slow
def test_no_word_fails_in_python(answer):
    no_word_fails_in_python(answer, CASES)


def test_a_part_of_all_numbers(answer):
    assert len(OUTSIDE) > 500
    no_number_is_without_bound(answer, OUTSIDE[::97])


@pytest.mark.slow
def test_no_number_is_without_bound(answer):
    no_number_is_without_bound(answer, OUTSIDE)


@pytest.mark.parametrize(
    "words,sentence",
    [
        ("train c.yaml --run file/x", "run folder 'file/x' cannot be written: '{here}/file' is not a folder."),
        ("analyze clusters --to file/x", "--to 'file/x' cannot be written: '{here}/file' is not a folder."),
        ("bench train --to file/x.json", "--to 'file/x.json' cannot be written: '{here}/file' is not a folder."),
        ("quickstart --run file/x", "folder 'file/x' cannot be written: '{here}/file' is not a folder."),
        ("info quickstart-gpt --model.width 1048576 --model.heads 1 --model.steps 16384 --model.context 1048576",
         "model activations (steps x batch x context x width) are 16384 x 16 x 1048576 x 4194304 numbers"),
        ("info c.yaml --mesh.data 1000000", "must be divisible by mesh.data x mesh.fsdp, which is 1000000 x 1."),
        (
            "info c.yaml --memory --mesh.data 2048 --trainer.batch-size 2048",
            "mesh has 2048 devices, but memory can be planned for at most 1024.",
        ),
        ("sample run --prompt x --draft-steps 1 --draft-length 1000000", "--draft-length is 1000000, but must be at m"),
        ("analyze clusters --systems 1000000000", "--systems is 1000000000, but must be at most 10000."),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_before_anything_is_computed_or_written(place, monkeypatch, capsys, words, sentence):
    monkeypatch.chdir(place)
    before = sorted(map(str, place.rglob("*")))
    assert main([*words.split(), "--data.cache", "new"] if words.startswith("train") else words.split()) == 2
    assert sentence.replace("{here}", str(place)) in capsys.readouterr().err
    assert sorted(map(str, place.rglob("*"))) == before


# ------------------------------------------------------------------------------------------------ what lies in a run


def harm(path: Path, how: str) -> Callable[[], None]:
    """Put something in the place of a file or a folder; returns what puts it back."""
    aside = path.with_name(f"aside-{path.name}")
    if path.exists():
        path.rename(aside)
    if how == "folder":
        path.mkdir()
    elif how == "loop":
        path.symlink_to(path.name)
    else:
        path.write_bytes(b"\xff\x00" if how == "bytes" else b"")

    def back() -> None:
        path.rmdir() if how == "folder" else path.unlink()
        if aside.exists():
            aside.rename(path)

    return back


@pytest.mark.slow
@pytest.mark.parametrize("verb", WORDS)
def test_nothing_in_a_run_fails_in_python(place, answer, verb):
    """A stray `checkpoints/999` did, and a folder in the place of a file."""
    words = [*verb.split(), *WORDS[verb].replace("c.yaml --run other", "c.yaml").split()]
    names = ["checkpoints/999", "checkpoints", "config.yaml", "tokenizer.json", "data.json", "metrics.jsonl"]
    for name in (*names, "results.json", "checkpoints/2/manifest.json", "checkpoints/2/model"):
        for how in ("folder", "loop", "bytes", "empty"):
            back = harm(place / "run" / name, how)
            try:
                status, line = answer(words)
            finally:
                back()
            assert status in (0, 1, 2), (name, how)
            assert "failed with" not in line or "failed with Accepted" in line, (name, how, line)


# ------------------------------------------------------------------------------------------------- standard output


@pytest.mark.parametrize("words", ["--help", "sample --help", "completion bash"])
def test_standard_output_that_is_full_or_closed_is_one_sentence(words):
    command = [sys.executable, "-m", "diffeqformer", *words.split()]
    with open("/dev/full", "w") as full:
        ran = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert ran.returncode == 1 and ran.stderr.count("\n") == 1 and "No space left on device" in ran.stderr
    closed = ["sh", "-c", 'exec "$@" >&-', "sh", *command]
    ran = subprocess.run(closed, stderr=subprocess.PIPE, text=True, check=False)
    assert ran.returncode == 2 and ran.stderr.startswith("diffeqformer: standard output is closed;")


@pytest.mark.parametrize(
    "error,sentence",
    [
        (
            MemoryError("Unable to allocate 7 TiB"),
            "this needs more memory than there is; a smaller model, batch or number",
        ),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory"), "this needs more memory than there is; a smaller model, "),
        (PermissionError(13, "Permission denied", "/x"), "'/x' cannot be used: Permission denied.\n"),
        (OSError(5, "Input/output error"), "standard output, or a file, cannot be used: Input/output error.\n"),
    ],
)
def test_what_the_machine_refuses_is_one_sentence(monkeypatch, capsys, error, sentence):
    def run(words: list[str], as_json: bool) -> None:
        raise error

    monkeypatch.setattr("diffeqformer.cli.sample.run", run)
    assert main(["sample"]) == 1
    assert capsys.readouterr().err.startswith(f"diffeqformer: {sentence}")


def test_far_too_little_memory_is_one_sentence():
    """Python itself starts, but what it imports does not fit."""
    limited = ["sh", "-c", 'ulimit -v 200000; exec "$@"', "sh", sys.executable, "-m", "diffeqformer", "--version"]
    ran = subprocess.run(limited, capture_output=True, text=True, check=False)
    assert ran.returncode == 1 and ran.stderr.startswith("diffeqformer: this needs more memory than there is;")
