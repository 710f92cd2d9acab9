"""Two tiny trained runs, and a command line that is called in this process."""

from pathlib import Path
from typing import NamedTuple

import pytest

from diffeqformer.cli import main
from tests.runs.tiny_run import write_text

TINY = """
run: {run}
model: {{weights: {weights}, scheme: {scheme}, horizon: {horizon}, steps: 2, width: 16, heads: 2, context: 16,
  hidden: 32}}
data: {{source: files, train: [{text}], tokenizer_vocabulary: 280, cache: {cache}}}
optimizer: {{learning_rate: 1.0e-2}}
trainer: {{updates: 8, batch_size: 4, log_every: 4, evaluate_every: 8, evaluate_batches: 2, checkpoint_every: 4}}
"""


class Called(NamedTuple):
    status: int
    out: str
    err: str


class Place(NamedTuple):
    """A folder with a text, a token cache, and a config file for each of two trained runs."""

    folder: Path
    text: Path
    time: Path
    layer: Path

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    def run(self, kind: str) -> Path:
        return self.folder / "runs" / kind


@pytest.fixture(scope="module", autouse=True)
def compiled(compile_once, plain_pictures):
    """These tests train, again and again, the same small models."""


def write_config(path: Path, kind: str, run: Path, text: Path, cache: Path) -> Path:
    scheme, horizon = ("lie-trotter", "steps") if kind == "layer" else ("euler", "unit")
    weights = "{d_emb: 4, frequencies: 3}" if kind == "time" else kind
    path.write_text(TINY.format(weights=weights, scheme=scheme, horizon=horizon, run=run, text=text, cache=cache))
    return path


@pytest.fixture(scope="session")
def place(tmp_path_factory) -> Place:
    """The runs `time` and `layer`, trained by the command."""
    folder = tmp_path_factory.mktemp("place")
    text = write_text(folder / "text.txt")
    configs = [
        write_config(folder / f"{kind}.yaml", kind, folder / "runs" / kind, text, folder / "cache")
        for kind in ("time", "layer")
    ]
    for path in configs:
        assert main(["train", str(path)]) == 0
    return Place(folder, text, *configs)


@pytest.fixture
def call(capsys):
    """Run a command; returns its exit status and what it printed."""

    def run(*words: object) -> Called:
        capsys.readouterr()
        status = main([str(word) for word in words])
        return Called(status, *capsys.readouterr())

    return run
