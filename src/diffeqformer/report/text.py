"""Formatting of the numbers and text in reports."""

import math
import numbers
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from rich import filesize

from diffeqformer.plain import Document

MISSING = "–"


def finite(value: object) -> TypeGuard[float]:
    """Whether `value` is a number that can be ranked and drawn."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(float(value))


def finite_points(points: Sequence[Any]) -> list[tuple[float, float]]:
    """The (step, nats) pairs of a curve that can be drawn."""
    return [(float(x), float(y)) for x, y in points if finite(x) and finite(y)]


def number(value: object, decimals: int = 0) -> str:
    """Format a number: `12,345.678`, `−1.5`; a dash for a missing value, `not finite` for an infinity or a NaN."""
    if value is None:
        return MISSING
    # `z`: a value that rounds to zero has no minus sign.
    return f"{value:z,.{decimals}f}".replace("-", "−") if finite(value) else "not finite"


def speed(value: object) -> str:
    """Format tokens per second; a dash for 0, which means that the run was too short to measure them."""
    return number(value or None)


def signed(value: object, decimals: int = 0) -> str:
    """Format as `number`, always with a sign: `+0.34`, `−0.18`."""
    return f"{value:+z,.{decimals}f}".replace("-", "−") if finite(value) else number(value)


def percent(share: object, decimals: int = 0) -> str:
    """Format a share as `95 %`."""
    return f"{number(100 * share, decimals)} %" if finite(share) else number(share)


def depths(times: Sequence[float]) -> list[str]:
    """Format depths from 0 to 1: as fractions (`1/6`) if they are equally spaced, else with three decimals."""
    steps = len(times) - 1
    if 1 < steps <= 1000 and all(abs(time - i / steps) <= 1e-6 for i, time in enumerate(times)):
        return ["0", *(f"{i}/{steps}" for i in range(1, steps)), "1"]
    return [f"{time:.3f}" for time in times]


def ranges(numbers: Iterable[int]) -> str:
    """List integers in order, three or more consecutive ones as a range: `2 to 9, 11 and 16`."""
    rows: list[list[int]] = []
    for one in sorted(set(numbers)):
        if rows and one == rows[-1][-1] + 1:
            rows[-1].append(one)
        else:
            rows.append([one])
    return join([part for row in rows for part in ([f"{row[0]} to {row[-1]}"] if len(row) > 2 else map(str, row))])


def digits(value: float) -> str:
    """Format a number to three significant digits, trailing zeros included: `0.100`, `17.0`."""
    return f"{value:#.3g}".removesuffix(".") if 1e-4 <= abs(value) < 1e3 else f"{value:.3g}"


def factor(value: float) -> str:
    """Format a factor to three significant digits, as prose does: `1.5`, `8,100`, `1.23e+07`."""
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if 1e3 <= rounded < 1e6 else f"{value:.3g}"


def probability(value: float) -> str:
    """Format a probability: `0.75`, `0.0049`: two decimals or, if it is small, two significant digits."""
    return f"{value:.2f}" if value >= 0.095 else f"{value:#.2g}"  # below, two decimals are one significant digit


def unbroken(text: str) -> str:
    """Keep numbers and their percent signs on one line of a page."""
    return re.sub(r"(?<=\d) %", "\u00a0%", text)


def nats(value: object) -> str:
    """Format a loss or a difference of losses, in nats."""
    return number(value, 3)


def gap(worse: float, better: float) -> str:
    """Format by how much two losses differ that are not written alike, which may still be less than is written."""
    return nats(worse - better) if worse - better >= 0.0005 else "less than 0.001"  # else `nats` writes 0.000


def perplexity(value: object) -> str:
    """Format a perplexity to about four significant digits; as a power of ten when it is huge."""
    if not finite(value):
        return number(value)
    return f"{value:.2e}" if value >= 1e6 else number(value, 2 if value < 100 else 1 if value < 1000 else 0)


def with_spread(values: Sequence[object], write: Callable[[object], str] = perplexity) -> str:
    """Format the mean and standard deviation over seeds, finite values only: `21.40 ± 0.12`; a dash for none."""
    known = [float(value) for value in values if finite(value)]
    if not known:
        return MISSING
    mean = write(statistics.fmean(known))
    if len(known) == 1:
        return mean
    spread, decimals = statistics.stdev(known), len(mean.partition(".")[2])
    return f"{mean} ± {f'{spread:.2e}' if 'e' in mean else number(spread, decimals)}"


def compact(value: object) -> str:
    """Format a count to about three digits: `9,999`, `12.3 k`, `1.62 M`, `1.24 B`."""
    if not finite(value) or abs(value) < 10_000:
        return number(value)
    # A count that would round to 1,000 of a unit is written as 1 of the next.
    scale, unit = next((s, u) for s, u in ((1e9, "B"), (1e6, "M"), (1e3, "k")) if abs(value) >= 0.9995 * s)
    scaled = value / scale
    return f"{number(scaled, 2 if abs(scaled) < 9.995 else 1 if abs(scaled) < 99.95 else 0)}\u00a0{unit}"


def evaluations(halves: Document | None) -> str:
    """Format evaluations of the field: `6`, or `6 + 12` if its attention and feed-forward halves differ; means have a
    decimal."""
    if halves is None:
        return MISSING
    cells = [number(n, 0 if not finite(n) or float(n).is_integer() else 1) for n in halves.values()]
    return " + ".join(cells if len(set(cells)) > 1 else cells[:1])


def duration(seconds: object) -> str:
    """Format a duration: `48.2 s`, `3 min 12 s`, `2 h 05 min`."""
    if not finite(seconds):
        return number(seconds)
    if seconds < 59.95:  # more would be written as 60.0 s
        return f"{seconds:.1f}\u00a0s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}\u00a0min {rest:02d}\u00a0s"
    return f"{minutes // 60:,}\u00a0h {minutes % 60:02d}\u00a0min"


def size(bytes_: object) -> str:
    """Format a number of bytes in decimal units: `12.3 MB`."""
    return filesize.decimal(int(bytes_), separator="\u00a0") if finite(bytes_) else number(bytes_)


def join(parts: Sequence[str]) -> str:
    """Join parts into a list: `a`, `a and b`, `a, b and c`."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def ends_apart(folders: Sequence[Path]) -> list[str]:
    """Return distinct display names of folders: their names or, if two of those coincide, their paths' last parts, as
    many for every folder as tell all apart."""
    parts = [folder.resolve().parts for folder in folders]
    ends = ([one[-length:] for one in parts] for length in range(1, max(map(len, parts)) + 1))
    return ["/".join(one) for one in next(some for some in ends if len({*some}) == len({*parts}))]


def counted(count: int, noun: str) -> str:
    """Format a count of a thing: `1 head`, `1,500 updates`."""
    return f"{number(count)} {noun}{'' if count == 1 else 's'}"


def counted_steps(steps: int) -> str:
    """Format a number of steps: `1 step`, `6 steps`."""
    return counted(steps, "step")
