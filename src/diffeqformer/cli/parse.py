"""From words on the command line to dataclasses, with every mistake told in one sentence."""

import contextlib
import difflib
import io
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import tyro

from diffeqformer.config import Config, read_yaml, validate
from diffeqformer.errors import BadInput

T = TypeVar("T")


def parse(cls: type[T], words: Sequence[str], prog: str, *, default: Any = None, about: str = "") -> T:
    """Fill the dataclass `cls` from command-line words; `--help` prints and exits.

    **Raises:** `BadInput` with the parser's complaint as one sentence.
    """
    heard = io.StringIO()
    try:
        with contextlib.redirect_stderr(heard):
            options = {} if default is None else {"default": default}
            return tyro.cli(cls, args=list(words), prog=prog, description=about or None, **options)
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise BadInput(f"{_sentence(heard.getvalue())} See `{prog} --help`.") from None


def _sentence(box: str) -> str:
    """The message of one of tyro's boxes, without the frame, the rule and the help below it."""
    lines = [line.strip("│ ").strip() for line in box.splitlines() if line.strip().startswith("│")]
    message: list[str] = []
    for line in lines:
        if line.startswith("─"):
            break
        message.append(line)
    near = next((re.split(r"\s", line)[0] for line in lines[len(message) :] if line.startswith("--")), None)
    guessed = any(line.startswith("Perhaps you meant") for line in lines)
    text = " ".join(message).rstrip(".") or "the arguments could not be read"
    return f"{text}; did you mean {near}?" if near and guessed else f"{text}."


def whole_numbers(text: str, name: str) -> tuple[int, ...]:
    """`"6,12,24"` as numbers.

    **Raises:** `BadInput` if a part is not a whole number of at least 1.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) >= 1 for part in parts):
        raise BadInput(f"{name} is {text!r}, but must be whole numbers of at least 1, such as 6 or 6,12,24.")
    return tuple(int(part) for part in parts)


def shipped_configs() -> dict[str, Path]:
    """The configs that come with the package, by name."""
    folder = Path(str(files("diffeqformer") / "configs"))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def find_config(name: str) -> Path:
    """A config file by path, or one of the shipped ones by name.

    **Raises:** `BadInput` if there is neither, with the nearest name.
    """
    shipped = shipped_configs()
    if Path(name).is_file() or Path(name).suffix in (".yaml", ".yml"):
        return Path(name)
    if name in shipped:
        return shipped[name]
    near = difflib.get_close_matches(name, shipped, n=1)
    advice = f"did you mean {near[0]!r}?" if near else f"the shipped ones are {', '.join(shipped)}."
    raise BadInput(f"config {name!r} is neither a file nor the name of a shipped config; {advice}")


def config_from(words: Sequence[str], verb: str) -> Config:
    """`CONFIG --key value ...`: a file or shipped config, then overrides by dotted key.

    **Raises:** `BadInput` for a missing or unreadable config, an unknown key, or a value that does not fit.
    """
    prog = f"diffeqformer {verb} CONFIG"
    if words and words[0] in ("-h", "--help"):
        parse(Config, ["--help"], prog, default=Config(), about=f"Example: diffeqformer {verb} quickstart-gpt")
    if not words or words[0].startswith("-"):
        raise BadInput(
            f"`diffeqformer {verb}` needs a config as its first argument: a YAML file or one of "
            f"{', '.join(shipped_configs())}."
        )
    return validate(parse(Config, words[1:], prog, default=read_yaml(find_config(words[0]))))
