"""Tables, rendered for the terminal, a page, a notebook and Markdown."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from textwrap import fill

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from diffeqformer.plain import clean
from diffeqformer.report.text import unbroken

_NUMBER = re.compile(r"[+−-]?[\d.,∞]|[+−-]?inf|nan|–$|$|not finite")


@dataclass(frozen=True)
class Table:
    """A caption, columns and rows of text; the first cell of a row names the row."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    anchor: str = ""
    """Prefix of a row's anchor in a page, followed by its number from 0; empty if rows have no anchors."""

    @property
    def numeric(self) -> tuple[bool, ...]:
        """Whether each column holds only numbers; such columns are right-aligned in every format."""
        columns = range(len(self.columns))
        return tuple(i > 0 and all(_NUMBER.match(row[i]) for row in self.rows) for i in columns)

    def to_rich(self, width: int) -> Group:
        """Render for a terminal of `width` columns, to be printed by Rich's console; without control characters.

        Cells are never broken, and headers only at spaces. A table that is too wide continues below, with its first
        column repeated.
        """
        rows, columns = [list(map(clean, row)) for row in self.rows], list(map(clean, self.columns))
        cells = [max((cell_len(row[i]) for row in rows), default=0) for i in range(len(columns))]
        needed = lambda widths, group: sum(widths[i] + 2 for i in group) - 2
        widths = [max(cells[i], cell_len(name)) for i, name in enumerate(columns)]
        if needed(widths, range(len(widths))) > width:
            widths = [max(cells[i], *map(cell_len, name.split() or [""])) for i, name in enumerate(columns)]
        groups: list[list[int]] = [[0]]
        for column in range(1, len(widths)):
            if len(groups[-1]) > 1 and needed(widths, [*groups[-1], column]) > width:
                groups.append([0])
            groups[-1].append(column)
        shown: list[RenderableType] = [Text(clean(self.caption), style="italic")] if self.caption else []
        for group in groups:
            table = RichTable(box=None, pad_edge=False, header_style="bold")
            for i in group:
                name = fill(columns[i], max(widths[i], 1), break_long_words=False, break_on_hyphens=False)
                table.add_column(name, justify="right" if self.numeric[i] else "left", overflow="fold")
            for row in rows:
                table.add_row(*(row[i] for i in group))
            shown.append(table)
        return Group(*shown)

    def to_html(self, *, caption: bool = True) -> str:
        """Render as a self-contained `<table>` of escaped text; columns of numbers have the class `number`."""
        said = f"<caption>{_text(self.caption)}</caption>" if caption else ""
        kinds = [' class="number"' if numeric else "" for numeric in self.numeric]
        head = "".join(f'<th scope="col"{k}>{_text(name)}</th>' for name, k in zip(self.columns, kinds, strict=True))
        anchor = lambda row: f' id="{_text(self.anchor)}{row}"' if self.anchor else ""
        body = "".join(
            f'<tr{anchor(row)}><th scope="row">{named(first)}</th>'
            + "".join(f"<td{k}>{_text(cell)}</td>" for cell, k in zip(rest, kinds[1:], strict=True))
            + "</tr>"
            for row, (first, *rest) in enumerate(self.rows)
        )
        return f'<table class="plain">{said}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'

    def to_markdown(self) -> str:
        """Render the caption, if there is one, and the table as GitHub's Markdown."""
        marks = ["---:" if numeric else "---" for numeric in self.numeric]
        plain = lambda text: clean(text).replace("\n", " ")  # one line; `cell` escapes all markup but underscores
        cell = lambda text: "".join(f"\\{c}" if c in "\\`*[]<>|#$~&" else c for c in plain(text))
        lines = ["| " + " | ".join(map(cell, row)) + " |" for row in (self.columns, marks, *self.rows)]
        return (f"{cell(self.caption)}:\n\n" if self.caption else "") + "\n".join(lines)


def named(text: str) -> str:
    """Escape a row's name, such as a setting or a path, and allow line breaks after its `.`, `_` and `/`."""
    return re.sub(r"(?<=\w[._/])(?=[A-Za-z])", "<wbr>", _text(text))


def _text(text: str) -> str:
    return escape(unbroken(clean(text)))
