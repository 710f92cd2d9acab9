"""Text and values of unknown origin, made safe to show on any terminal, page or message."""

import difflib
import math
import re
import reprlib
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

Document = dict[str, Any]
"""A JSON or YAML document: values by name, each a number, a string, a list or another document."""
Values = Mapping[str, Any]
"""Values by name, for reading only."""
CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufdd0-\ufdef"
    + "".join(chr(plane + last) for plane in range(0, 0x110000, 0x10000) for last in (0xFFFE, 0xFFFF))
    + "]"
)
"""Characters that a terminal may act on or a page must not hold: ASCII and C1 controls except tabs and newlines,
bidirectional controls (which can reorder the surrounding text), lone surrogates, noncharacters."""
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 100


def finite_or_none(value: float) -> float | None:
    """Return a number as JSON can hold it: `None`, which becomes `null`, if it is not finite."""
    return float(value) if math.isfinite(value) else None


def version_of(package: str) -> str:
    """Return a package's version, or "not installed": its source may merely be on Python's path."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def clean(text: str) -> str:
    """Replace `CONTROL` characters by visible marks, so that any terminal, HTML or XML may hold the text.

    ASCII controls become their Unicode control pictures, the others U+FFFD.
    """
    return CONTROL.sub(_visible, text)


def _visible(found: re.Match[str]) -> str:
    code = ord(found[0])
    return chr(0x2400 + code) if code < 0x20 else "\u2421" if code == 0x7F else "\ufffd"


def brief(text: str) -> str:
    """Cut words to about 400 characters: a message may quote a value of any length."""
    return re.sub(r"\S{400,}", lambda word: f"{word[0][:200]}…{word[0][-200:]}", text)


def nearest(name: str, known: Iterable[str], otherwise: str) -> str:
    """Return advice about an unknown name: the most similar known name, or else `otherwise`."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else otherwise


def is_utf8(text: str) -> bool:
    """Whether the text can be written to files and passed to the system: no lone surrogates, no NUL."""
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def shown(value: Any) -> str:
    """Format a value for a message, cut if it is long: a few lines of YAML can expand to one without end."""
    try:
        return _SHORT.repr(value)
    except ValueError:  # Python refuses to print integers of thousands of digits
        return "a number of thousands of digits"
