"""How scores of the tokens of a text show themselves in a notebook: the text in their colours, and a table."""

import math
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
    places = {name: decimals(scores[: output + 1]) for name, scores in columns.items()}
    rows = [(where(i), *(number(scores[i], places[name]) for name, scores in columns.items())) for i in shown]
    return Table(caption, ("input", *columns), rows)


def decimals(scores: np.ndarray) -> int:
    """Decimal places of a column: four, or more if its largest score had fewer than three digits then."""
    largest = float(np.max(np.abs(scores), where=np.isfinite(scores), initial=0.0))
    return 4 if largest == 0 else min(max(4, 2 - math.floor(math.log10(largest))), 12)


def scores_html(
    caption: str,
    outputs: Sequence[int],
    scores: Mapping[str, np.ndarray],
    tokens: Sequence[str] = (),
    colour: str = "",
    signed: Sequence[str] = (),
) -> str:
    """The last output's scores, and before them the text in their colours if its tokens are known.

    **Arguments:** `outputs`, positions; `scores`, name to scores of shape (output, input); `tokens`, pieces of the
    text; `colour`, whose scores are the colours, the first one's if not given; `signed`, the names of those
    whose zero is the middle of the colours.
    """
    # Pages load Jinja and Matplotlib, which nothing but a notebook needs here.
    from diffeqformer.report.page import TokenMap, visible

    own, seen = outputs[-1], tuple(map(visible, tokens))
    last = {name: rows[-1] for name, rows in scores.items()}
    table = scores_table(f"{caption} of output {own}", own, last, seen, most=MOST_ROWS).to_html()
    if not seen:
        return table
    name = colour or next(iter(scores))
    return TokenMap(seen, tuple(outputs), {name: scores[name]}, {name: caption}, signed=signed).to_html() + table
