"""Small runs to be damaged, and what is asked of them."""

import random
from pathlib import Path

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


def write_text(path: Path, lines: int = 400, seed: int = 0) -> Path:
    draw = random.Random(seed)
    words = [["the", "a", "one"], ["cat", "dog", "river"], ["sees", "eats", "likes"], ["stars", "fish", "songs"]]
    path.write_text("".join(" ".join(draw.choice(kind) for kind in words) + ".\n" for _ in range(lines)))
    return path
