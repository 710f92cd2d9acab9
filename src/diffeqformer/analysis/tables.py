"""Scores of the tokens of a text as a table."""

from collections.abc import Mapping, Sequence

import numpy as np

from diffeqformer.report.table import Table
from diffeqformer.report.text import number

MOST_ROWS = 40
"""Of a table in a notebook; of longer texts those of highest score are shown."""


def scores_table(
    caption: str, output: int, columns: Mapping[str, np.ndarray], tokens: Sequence[str] = (), most: int | None = None
) -> Table:
    """One row per input that one output can see.

    **Arguments:** `output`, a position; `columns`, name to scores of shape (input,); `tokens`, pieces of the text, to
    stand beside their positions; `most`, rows of a long text, chosen by the first of the columns.
    """
    name, first = next(iter(columns.items()))
    order = np.argsort(-np.nan_to_num(first[: output + 1], nan=-np.inf), kind="stable")
    shown = np.sort(order[:most])
    if len(shown) <= output:
        caption = f"{caption} ({len(shown)} of {output + 1} inputs: the highest by {name})"
    where = lambda i: f"{i} {tokens[i]}" if tokens else str(i)
    rows = [(where(i), *(number(scores[i], 4) for scores in columns.values())) for i in shown]
    return Table(caption, ("input", *columns), rows)
