"""How results show themselves in notebooks: one small table, every text escaped."""

from collections.abc import Sequence
from html import escape

import numpy as np

MOST_ROWS = 40
"""Of a table of tokens; of longer texts those of highest score are shown."""


def html_table(caption: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as HTML that needs nothing around it; the first cell of a row names the row."""
    line = lambda cells, tags: "".join(f"<{tag}>{escape(cell)}</{tag}>" for tag, cell in zip(tags, cells, strict=True))
    head = f"<thead><tr>{line(columns, ['th'] * len(columns))}</tr></thead>"
    body = "".join(f"<tr>{line(row, ['th'] + ['td'] * (len(row) - 1))}</tr>" for row in rows)
    return f"<table><caption>{escape(caption)}</caption>{head}<tbody>{body}</tbody></table>"


def html_scores(caption: str, output: int, columns: dict[str, np.ndarray]) -> str:
    """A table of the scores of every input for one output.

    **Arguments:** `output`, a position; `columns`, name to scores of shape (input,), of which the first one chooses the
    rows of a long text.
    """
    first = np.nan_to_num(next(iter(columns.values()))[: output + 1], nan=-np.inf)
    shown = np.sort(np.argsort(-first, kind="stable")[:MOST_ROWS])
    if len(shown) <= output:
        caption = f"{caption} ({len(shown)} of {output + 1} inputs: the highest by {next(iter(columns))})"
    rows = [(str(i), *(f"{scores[i]:.4f}" for scores in columns.values())) for i in shown]
    return html_table(caption, ("input", *columns), rows)
