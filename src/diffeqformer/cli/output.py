"""What a command leaves on standard output: a table for people, or one JSON document for programs."""

import json
from collections.abc import Sequence
from textwrap import fill
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table


def print_json(value: Any) -> None:
    """One strict JSON document."""
    print(json.dumps(value, allow_nan=False, ensure_ascii=False, indent=1))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table; the first column is text, the others are right-aligned numbers.

    Numbers are never broken, headers at spaces only: a table too wide for the terminal goes on below, its first column
    again in front.
    """
    console = Console(highlight=False, markup=False)
    cells = [max((cell_len(row[i]) for row in rows), default=0) for i in range(len(columns))]
    needed = lambda widths, group: sum(widths[i] + 2 for i in group) - 2
    widths = [max(cells[i], cell_len(name)) for i, name in enumerate(columns)]
    if needed(widths, range(len(columns))) > console.width:
        widths = [max(cells[i], *map(cell_len, name.split() or [""])) for i, name in enumerate(columns)]
    groups: list[list[int]] = [[0]]
    for column in range(1, len(columns)):
        if len(groups[-1]) > 1 and needed(widths, [*groups[-1], column]) > console.width:
            groups.append([0])
        groups[-1].append(column)
    for number, group in enumerate(groups):
        about = None if number else title
        table = Table(title=about, title_justify="left", box=None, pad_edge=False, header_style="bold")
        for i in group:
            name = fill(columns[i], max(widths[i], 1), break_long_words=False, break_on_hyphens=False)
            table.add_column(name, justify="right" if i else "left", overflow="fold")
        for row in rows:
            table.add_row(*(row[i] for i in group))
        console.print(table)


def human(number: float | int, unit: str = "") -> str:
    """A number with a decimal prefix: 1.25 M."""
    for scale, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= scale:
            return f"{number / scale:.4g} {prefix}{unit}"
    return f"{number:.4g} {unit}".strip()
