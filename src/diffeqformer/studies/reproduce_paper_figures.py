"""The figure of `reproduce paper`."""

from collections.abc import Sequence
from textwrap import fill

import numpy as np
from matplotlib.figure import Figure as Drawing

from diffeqformer.report.figures import WIDE, drawing
from diffeqformer.studies.paper import Verdict

COLOURS = {"holds": "#1b7837", "fails": "#b2182b", "within noise": "#555555", "untested": "#999999"}
"""Beside the words, which say the same."""


def effects(rows: Sequence[tuple[str, str, Verdict]], *, width: float = WIDE) -> Drawing:
    """Every measured claim as a row: its seeds, mean and interval, on an axis that is linear near zero.

    **Arguments:** `rows`, item, claim and verdict.
    """
    with drawing(width, 0.5 * len(rows) + 0.9) as (figure, grid):
        axes = grid[0, 0]
        for place, (_, _, verdict) in enumerate(rows):
            colour = COLOURS[verdict.word]
            axes.plot(verdict.effects, np.full(len(verdict.effects), place), "|", color=colour, markersize=7)
            axes.plot([verdict.mean], [place], "o", color=colour, markersize=5)
            axes.plot([verdict.low, verdict.high], [place, place], "-", color=colour)
        axes.axvline(0, color="#888888", linewidth=0.8)
        axes.set_xscale("symlog", linthresh=0.1)
        line = 44 if width >= WIDE else 24
        axes.set_yticks(
            range(len(rows)), [fill(f"{item}: {claim} ({verdict.word})", line) for item, claim, verdict in rows]
        )
        axes.tick_params(axis="y", labelsize=7)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlabel("effect, in the claim's unit")
    return figure
