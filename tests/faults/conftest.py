"""Small runs to be damaged, and what is asked of them."""

import pytest

from diffeqformer.progress import Silent


class Lines(Silent):
    """Keeps what is said."""

    def __init__(self):
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


@pytest.fixture(scope="module", autouse=True)
def compiled(compile_once):
    """These tests open and train, again and again, the same small models."""


@pytest.fixture
def said() -> Lines:
    return Lines()
