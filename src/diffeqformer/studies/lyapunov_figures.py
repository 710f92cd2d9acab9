"""Figures of the scores of one output's inputs."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from diffeqformer.plain import clean
from diffeqformer.report.figures import INK, WIDE, color, drawing, is_narrow, legend, look, shades

CHARACTER = 5.4
"""Width of a character of a text in points."""
MOST_LABELS = 48
"""Most tokens whose pieces fit under a figure."""


def token_exponents(
    tokens: Sequence[str], panels: dict[str, tuple[np.ndarray, np.ndarray | None]], *, width: float = WIDE
) -> Figure:
    """Plot scores of the inputs of one output, one panel per method.

    **Arguments:** `panels`, by axis label: scores and their standard errors, if any, of shape (input,).
    """
    few = len(tokens) <= MOST_LABELS and not is_narrow(width)
    with drawing(width, (0.9 if few else 0.4) + 2.0 * len(panels), len(panels), sharex=True) as (figure, column):
        axes = column[:, 0]
        x = np.arange(len(tokens))
        for index, (axis, (label, (scores, errors))) in enumerate(zip(axes, panels.items(), strict=True)):
            shown = np.where(np.isfinite(scores), scores, np.nan)  # a zero derivative has an exponent of minus infinity
            axis.errorbar(
                x, shown, yerr=errors, color=color(index), marker="o", markersize=3.5, linestyle="None", elinewidth=1.2
            )
            axis.set_ylabel(label)
            axis.margins(x=0.02)
        name_tokens(axes[-1], tokens, few)
    return figure


def shaded_text(tokens: Sequence[str], scores: np.ndarray, *, width: float = WIDE) -> Figure:
    """Draw a text whose tokens are shaded by the scores of its last token's inputs: the darker, the higher.

    **Arguments:** `scores`, of shape (token,); where one is not finite, its token is not shaded.
    """
    pieces = [clean(token) for token in tokens]
    places, line, end, most = [], 0, 0, int(72 * width / CHARACTER)
    for piece in pieces:
        if end and end + len(piece) > most:
            line, end = line + 1, 0
        places.append((end, line))
        end += len(piece)
    with drawing(width, 0.22 * (line + 1)) as (figure, axes):
        axis = axes[0, 0]
        axis.set(xlim=(0, most), ylim=(line + 1, 0))
        axis.axis("off")
        for piece, (start, row), score, (shade, ink) in zip(
            pieces, places, scores, shades(scores, len(pieces) - 1), strict=True
        ):
            known = bool(np.isfinite(score))
            axis.add_patch(
                Rectangle((start, row + 0.06), len(piece), 0.88, facecolor=shade, linewidth=0, visible=known)
            )
            axis.text(
                start + len(piece) / 2, row + 0.5, piece, color=ink if known else INK, fontsize=8, ha="center",
                va="center", parse_math=False,
            )  # fmt: skip
    return figure


def name_tokens(axis: Axes, tokens: Sequence[str], few: bool) -> None:
    """Label a horizontal axis of positions with the tokens if they are `few`, else with the positions alone."""
    if few:
        pieces = [f"{place} {clean(token)[:14]}" for place, token in enumerate(tokens)]
        axis.set_xticks(range(len(tokens)), pieces, rotation=60, ha="right", rotation_mode="anchor", parse_math=False)
    else:
        axis.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
        axis.set_xlabel("position of the input token")


def exponents_over_depth(times: np.ndarray, lines: dict[str, np.ndarray], *, width: float = WIDE) -> Figure:
    """Plot the exponents of inputs, by name, up to each of `times`: 0 and the end of each step."""
    with drawing(width, 3.0) as (figure, axes):
        axis = axes[0, 0]
        for index, values in enumerate(lines.values()):
            axis.plot(times, [0.0, *np.where(np.isfinite(values), values, np.nan)], **look(index))
        axis.set(xlabel="time (0: embedding, 1: last step)", ylabel="exponent so far (nats)")
        legend(figure, [(look(index), name) for index, name in enumerate(lines)], width)
    return figure
