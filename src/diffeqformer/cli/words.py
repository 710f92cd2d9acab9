"""The words of a command line, spelled as tyro reads them."""

from collections.abc import Iterator, Sequence
from types import NoneType
from typing import Any, get_args, get_origin

from diffeqformer.config.strict import Hints
from diffeqformer.errors import BadInput


def joined(words: Sequence[str], options: Hints) -> list[str]:
    """Attach text that starts with a dash, but is not an option, to the option before it: `--prompt=--x`."""
    found: list[str] = []
    for word in words:
        before = found[-1] if found else ""
        takes_text = before.startswith("--") and options.get(option_of(before)) in (str, str | None)
        if takes_text and word.startswith("-") and option_of(word) not in ("help", *options):
            found[-1] = f"{before}={word}"
        else:
            found.append(word)
    return found


def spelled(words: Sequence[str], options: Hints) -> list[str]:
    """Spell `true`, `false` and `null` as tyro does, where an option takes one of them as its value."""
    of_tyro = {"true": (bool, "True"), "false": (bool, "False"), "null": (NoneType, "None")}

    def spell(value: str, taken: Sequence[Any]) -> str:
        kind, spelling = of_tyro.get(value, (str, value))
        return spelling if kind in taken and str not in taken else value

    return [option + equals + spell(value, get_args(hint)) for option, equals, value, hint in _parts(words, options)]


def separated(words: Sequence[str], options: Hints) -> list[str]:
    """Split lists of numbers such as `2,4,8` or `[2,4,8]` into words, as tyro reads them: `--depth.always 2 4 8`.

    A list with a range, `3,5-15`, stays whole where the option may be text.
    """
    found: list[str] = []
    for option, equals, value, hint in _parts(words, options):
        parts = [part.strip() for part in value.strip(" ,[]()").split(",")]  # `2, 4, 8` is three words, two with commas
        numbers = any(get_args(one)[0] in (int, float) for one in _lists(hint))
        if numbers and str in get_args(hint) and "-" in value:
            parts = [",".join(parts)]
        divided = numbers and parts != [value] and all(parts)
        found += [*([option] if equals else []), *parts] if divided else [option + equals + value]
    return found


def require_lists_once(words: Sequence[str], options: Hints) -> None:
    """Refuse a list that is given twice, since only the last would be read."""
    names = [option_of(word) for word in words if word.startswith("--")]
    for name in (name for name in names if names.count(name) > 1):
        if _lists(options.get(name)):
            raise BadInput(f"--{name} is given {names.count(name)} times; name all that it has after one of them.")


def option_of(word: str) -> str:
    """Return the option that a word begins with, without its dashes, as in `options_of`."""
    return word.partition("=")[0][2:].replace("_", "-")


def _parts(words: Sequence[str], options: Hints) -> Iterator[tuple[str, str, str, Any]]:
    """Split each word into option, `=` and value, each empty if absent, and add the type of the option it is for."""
    hint = None
    for word in words:
        option, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        hint = options.get(option_of(option)) if option else hint
        yield option, equals, value, hint


def _lists(hint: Any) -> list[Any]:
    """Return those of an option's types that are lists."""
    return [one for one in (hint, *get_args(hint)) if get_origin(one) is tuple]
