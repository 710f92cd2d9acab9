"""Small corpora on disk, and a progress that remembers."""

from contextlib import contextmanager

import pytest

from diffeqformer.config import DataConfig
from tests.hub import hub  # noqa: F401


class Recorder:
    """A progress that keeps the lines that were said, and of every stage its name, total and amount done."""

    def __init__(self):
        self.lines, self.stages = [], []

    @contextmanager
    def stage(self, name, total, done=0):
        record = [name, total, done]
        self.stages.append(record)

        class Stage:
            def advance(self, amount=1, note=""):
                record[2] += amount

        yield Stage()

    def say(self, line):
        self.lines.append(line)


@pytest.fixture
def progress():
    return Recorder()


@pytest.fixture
def files_config(tmp_path):
    """Makes a config of ten text files (or of other paths), with a cache inside the test's folder."""

    def make(*train, **settings):
        if not train:
            folder = tmp_path / "corpus"
            if not folder.exists():
                folder.mkdir()
                for i in range(10):
                    (folder / f"{i}.txt").write_text(f"This is file {i}.\n\nIt says {'word ' * (i + 1)}é.\n" * 5)
            train = (f"{folder}/*.txt",)
        defaults = {"tokenizer_vocabulary": 280, "validation_fraction": 0.2, "cache": str(tmp_path / "cache")}
        return DataConfig(source="files", train=tuple(map(str, train)), **(defaults | settings))

    return make
