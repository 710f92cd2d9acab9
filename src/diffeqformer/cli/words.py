"""The words of a command line, spelled as tyro reads them."""

from collections.abc import Sequence
from typing import get_args, get_origin

from diffeqformer.config.strict import Hints
from diffeqformer.errors import BadInput


def joined(words: Sequence[str], options: Hints) -> list[str]:
    """The words with text that starts with a dash, and is no option, written as its option's: `--prompt=--x`."""
    joined: list[str] = []
    for word in words:
        before = joined[-1] if joined else ""
        takes_text = before.startswith("--") and options.get(before[2:].replace("_", "-")) in (str, str | None)
        name = word.partition("=")[0][2:].replace("_", "-")
        if takes_text and word.startswith("-") and name not in ("help", *options):
            joined[-1] = f"{before}={word}"
        else:
            joined.append(word)
    return joined


def spelled(words: Sequence[str], options: Hints) -> list[str]:
    """The words with `true`, `false` and `null` as tyro spells them, where an option takes one of them for value."""
    spelled, asked = [], False
    for word in words:
        name, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        if name:
            asked = bool in get_args(options.get(name[2:].replace("_", "-")))
        value = {"true": "True", "false": "False", "null": "None"}.get(value, value) if asked else value
        spelled.append(name + equals + value)
    return spelled


def separated(words: Sequence[str], options: Hints) -> list[str]:
    """The words with lists of numbers as tyro reads them, `--depth.always 2 4 8`, if given as `2,4,8` or `[2,4,8]`."""
    separated, numbers = [], False
    for word in words:
        name, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        if name:
            hint = options.get(name[2:].replace("_", "-"))
            lists = [one for one in (hint, *get_args(hint)) if get_origin(one) is tuple]
            numbers = any(get_args(one)[0] in (int, float) for one in lists)
        parts = [part.strip() for part in value.strip(" ,[]()").split(",")]  # `2, 4, 8` is three words, two with commas
        if numbers and parts != [value] and all(parts):
            separated += [*([name] if equals else []), *parts]
        else:
            separated.append(word)
    return separated


def require_lists_once(words: Sequence[str], options: Hints) -> None:
    """Refuse a list that is given twice, of which only the last would be read."""
    names = [word.partition("=")[0][2:].replace("_", "-") for word in words if word.startswith("--")]
    for name in (name for name in names if names.count(name) > 1):
        hint = options.get(name)
        if any(get_origin(one) is tuple for one in (hint, *get_args(hint))):
            raise BadInput(f"--{name} is given {names.count(name)} times; name all that it has after one of them.")
