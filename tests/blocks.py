"""The fenced blocks of a Markdown page."""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Block(NamedTuple):
    page: str
    """Its file, from the root of the repository."""
    language: str
    text: str

    @property
    def name(self) -> str:
        """Its page and its first line."""
        return f"{self.page}: {self.text.partition(chr(10))[0]}"

    def commands(self) -> list[list[str]]:
        """The words of each command of a shell block; a backslash continues a line, a comment is left out."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [words for line in lines if (words := shlex.split(line, comments=True))]


def blocks_of(page: str) -> list[Block]:
    """All fenced blocks of a page, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = [Block(page, language, body) for language, body in re.findall(r"^```(\S*)\n(.*?)^```$", text, re.M | re.S)]
    assert 2 * len(found) == len(re.findall(r"^\s*```", text, re.M)), f"{page}: a fence is indented or left open"
    return found
