"""Bounds of settings and of options, declared beside each field and checked in one place."""

import dataclasses
import operator
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, TypedDict, Unpack

from diffeqformer.errors import BadInput
from diffeqformer.plain import shown

SIZES, INT32, UINT32 = 1 << 20, 2**31 - 1, 2**32 - 1
"""Largest size of an array's axis, largest number that is counted in 32 bits, and largest seed."""
MOST_ENTRIES = 16 * SIZES
"""Most entries of an embedding."""
MOST_NUMBERS = 1 << 56
"""Most numbers in all arrays of one kind: the bytes of a few kinds together are counted in 64 bits."""
SMALLEST = 2.0**-126
"""Smallest positive number; smaller ones are zero in the models' arithmetic."""
MOST_STEPS = 1 << 14
"""Most steps of depth: times and weights of all of them are computed at once."""


class Bounds(TypedDict, total=False):
    """Bounds of a setting; see `setting`."""

    least: int
    most: int
    positive: bool
    fraction: bool
    not_negative: bool


def setting(default: Any, **bounds: Unpack[Bounds]) -> Any:
    """Declare a dataclass field with bounds, which `require_bounds` checks; `None` is always within them.

    **Arguments:** `least` and `most` of a number; `positive`, `not_negative`: a finite number above, or not below,
    zero; `fraction`: at least 0, or above it if `positive`, and below 1. The bounds of a tuple apply to each of its
    numbers.
    """
    return dataclasses.field(default=default, metadata={"bounds": bounds})


def whole_numbers(text: str, name: str) -> tuple[int, ...]:
    """Parse `"6,12,24"` or `"2-6,12"` into numbers, each once.

    **Raises:** `BadInput` if a part is neither a whole number from 1 to `MOST_STEPS` nor a range of them.
    """
    ends = [[end.strip() for end in part.split("-")] for part in text.split(",")]
    # Python's `int` raises for thousands of digits, so the length is checked first.
    written = all(end.isdecimal() and len(end) < 20 and 1 <= int(end) <= MOST_STEPS for part in ends for end in part)
    if not written or any(len(part) > 2 or int(part[0]) > int(part[-1]) for part in ends):
        raise BadInput(
            f"{name} is {shown(text)}, but must be whole numbers of at least 1 and at most {MOST_STEPS}, such as 6, "
            "6,12,24 or 2-6."
        )
    return tuple(dict.fromkeys(number for part in ends for number in range(int(part[0]), int(part[-1]) + 1)))


def require_bounds(section: Any, prefix: str = "") -> None:
    """Check every setting of a config section, and of the sections in it, against its declared bounds.

    **Arguments:** `prefix` of the settings' names; two dashes make them options, and the config among a command's
    arguments is then left to `validate`.

    **Raises:** `BadInput` naming the first setting out of bounds, its value, and what would be right.
    """
    for name, value, bounds in _bounded(section, prefix):
        if "least" in bounds and value < bounds["least"]:
            raise BadInput(f"{name} {shown(value)}, but must be at least {bounds['least']}.")
        if bounds.get("fraction") and not (0 < value < 1 or (value == 0 and not bounds.get("positive"))):
            least = "above 0" if bounds.get("positive") else "at least 0"
            raise BadInput(f"{name} {shown(value)}, but must be {least} and below 1.")
        if bounds.get("positive") and not 0 < value < float("inf"):
            raise BadInput(f"{name} {shown(value)}, but must be a positive number.")
        if bounds.get("positive") and value < SMALLEST:
            raise BadInput(
                f"{name} {shown(value)}, but must be at least {SMALLEST:.2g}: smaller ones are zero in float32."
            )
        if bounds.get("not_negative") and not 0 <= value < float("inf"):
            raise BadInput(f"{name} {shown(value)}, but must be 0 or a positive number.")
        if "most" in bounds and value > bounds["most"]:
            raise BadInput(f"{name} {shown(value)}, but must be at most {bounds['most']}.")


def _bounded(section: Any, prefix: str) -> Iterator[tuple[str, Any, Bounds]]:
    """Iterate over bounded numbers: the beginning of a sentence about each (`--seed is`), the number, its bounds."""
    for field in dataclasses.fields(section):
        value, option = getattr(section, field.name), prefix.startswith("--")
        name = f"{prefix}{field.name.replace('_', '-') if option else field.name}"
        if dataclasses.is_dataclass(value) and not (option and field.name == "settings"):
            yield from _bounded(value, f"{name}.")
        elif "bounds" in field.metadata and value is not None:
            several = isinstance(value, tuple)
            for one in value if several else (value,):
                yield f"{name} {'has' if several else 'is'}", one, field.metadata["bounds"]


def require_once(option: str, named: Sequence[object]) -> None:
    """Check that nothing is named twice: a second run or reading of the same adds nothing.

    **Raises:** `BadInput` naming the first that is.
    """
    if twice := [one for one, times in Counter(named).items() if times > 1]:
        raise BadInput(f"{option} names {twice[0]} more than once; each counts once, so name it once.")


def whole(name: str, value: Any, least: int | None = None) -> int:
    """Convert a whole number, such as NumPy's, to Python's own, which compiled functions take as a constant.

    **Raises:** `BadInput` if it is not a whole number, or below `least`.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise BadInput(f"{name} is {shown(value)}, but must be a whole number.") from None
    if least is not None and number < least:
        raise BadInput(f"{name} is {number}, but must be at least {least}.")
    return number
