"""How results display: the shapes of arrays in a terminal; in a notebook, a text coloured by score, and tables."""

import math
from collections.abc import Mapping, Sequence

import equinox as eqx
import numpy as np

from diffeqformer.report.table import Table
from diffeqformer.report.text import number

MOST_ROWS = 40
"""Most rows of a table in a notebook; a longer text shows the inputs with the highest scores."""


class Summarised:
    """A result whose `repr` gives, as that of a model does, the shapes of its arrays and not their numbers."""

    def __repr__(self) -> str:
        return eqx.tree_pformat(self)


def scores_table(
    caption: str, output: int, columns: Mapping[str, np.ndarray], tokens: Sequence[str] = (), most: int | None = None
) -> Table:
    """Make a table with one row per input that one output can see.

    **Arguments:** `output`, a position; `columns`, name to scores of shape (input,); `tokens`, pieces of the text,
    shown next to their positions; `most`, the most rows, chosen by the highest scores in the first column.
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
    """Choose the decimal places of a column: four, or more if its largest score then had fewer than three digits."""
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
    """Render the last output's scores as a table, after the text coloured by score if its tokens are known.

    **Arguments:** `outputs`, positions; `scores`, name to scores of shape (output, input); `tokens`, pieces of the
    text; `colour`, the name of the scores used for colouring, the first if not given; `signed`, the names of those
    whose zero is the middle of the colours.
    """
    # Imported here: pages load Jinja and Matplotlib, which only a notebook needs.
    from diffeqformer.report.page import TokenMap, visible

    own, seen = outputs[-1], tuple(map(visible, tokens))
    last = {name: rows[-1] for name, rows in scores.items()}
    table = scores_table(f"{caption} of output {own}", own, last, seen, most=MOST_ROWS).to_html()
    if not seen:
        return table
    name = colour or next(iter(scores))
    return TokenMap(seen, tuple(outputs), {name: scores[name]}, {name: caption}, signed=signed).to_html() + table
