"""What a command leaves on standard output: a table for people, or one JSON document for programs."""

import json
import sys
from collections.abc import Sequence

from diffeqformer.plain import CONTROL, clean


def print_json(value: object) -> None:
    """Print one strict JSON document; what a terminal could act on is escaped as JSON allows."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=False, indent=1)
    print(CONTROL.sub(lambda found: json.dumps(found[0])[1:-1], text))


def print_text(text: str) -> None:
    """Print text of unknown origin: unchanged to a file or a pipe, cleaned on a terminal."""
    print(clean(text) if sys.stdout.isatty() else text)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table, at most as wide as the terminal."""
    from rich.console import Console

    from diffeqformer.report.table import Table

    console = Console(highlight=False, markup=False)
    console.print(Table(title, columns, rows).to_rich(console.width))


def human(number: float | int, unit: str = "") -> str:
    """Format a number with a decimal prefix: 1.25 M."""
    for scale, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= scale:
            return f"{number / scale:.4g} {prefix}{unit}"
    return f"{number:.4g} {unit}".strip()
