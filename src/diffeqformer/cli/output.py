"""What a command leaves on standard output: a table for people, or one JSON document for programs."""

import json
from collections.abc import Sequence
from typing import Any


def print_json(value: Any) -> None:
    """One strict JSON document."""
    print(json.dumps(value, allow_nan=False, ensure_ascii=False, indent=1))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table, as wide as the terminal at most."""
    from rich.console import Console

    from diffeqformer.report.table import Table

    console = Console(highlight=False, markup=False)
    console.print(Table(title, columns, rows).to_rich(console.width))


def human(number: float | int, unit: str = "") -> str:
    """A number with a decimal prefix: 1.25 M."""
    for scale, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= scale:
            return f"{number / scale:.4g} {prefix}{unit}"
    return f"{number:.4g} {unit}".strip()
