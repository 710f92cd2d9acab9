"""Text and values from elsewhere, so that any terminal, page or message may show them."""

import difflib
import math
import re
import reprlib
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

Document = dict[str, Any]
"""What a file of JSON or YAML holds, and what becomes one: values by name, each a number, a text, a list or another."""
Values = Mapping[str, Any]
"""Values by name that are only read."""
CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufdd0-\ufdef"
    + "".join(chr(plane + last) for plane in range(0, 0x110000, 0x10000) for last in (0xFFFE, 0xFFFF))
    + "]"
)
"""What a terminal may act on or a page must not hold: ASCII and C1 controls but tabs and newlines, bidirectional
controls (which could reorder what stands around them), lone surrogates, noncharacters."""
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 100


def finite_or_none(value: float) -> float | None:
    """A number as JSON has it: `None`, which becomes `null`, for one that is not finite."""
    return float(value) if math.isfinite(value) else None


def version_of(package: str) -> str:
    """A package's version, or that it is not installed: its source may be on Python's path alone."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def clean(text: str) -> str:
    """Text that any terminal, HTML or XML may hold: `CONTROL` becomes visible marks.

    ASCII controls become their Unicode control pictures, the others U+FFFD.
    """
    return CONTROL.sub(_visible, text)


def _visible(found: re.Match[str]) -> str:
    code = ord(found[0])
    return chr(0x2400 + code) if code < 0x20 else "\u2421" if code == 0x7F else "\ufffd"


def brief(text: str) -> str:
    """Text whose words are cut to 400 characters: a message may quote a value of any length."""
    return re.sub(r"\S{400,}", lambda word: f"{word[0][:200]}…{word[0][-200:]}", text)


def nearest(name: str, known: Iterable[str], otherwise: str) -> str:
    """Advice after a name that is not known: the known one that is most alike, or else `otherwise`."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else otherwise


def is_utf8(text: str) -> bool:
    """Whether files can hold the text and the system can be given it: no lone surrogates, no NUL."""
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def shown(value: Any) -> str:
    """A value as a message shows it: cut if it is long, since a few lines of YAML can stand for one without end."""
    try:
        return _SHORT.repr(value)
    except ValueError:  # Python refuses to print whole numbers of thousands of digits
        return "a number of thousands of digits"
