"""The figure of loss against size."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from diffeqformer.plain import Values
from diffeqformer.report.figures import INK, WIDE, drawing, key, legend, look, perplexity_scale
from diffeqformer.report.text import finite
from diffeqformer.studies.compression import WAYS


def loss_against_size(found: Sequence[Values], known: Values, *, width: float = WIDE) -> Figure:
    """Perplexity of every way against the share of the blocks' numbers; dashed where nothing is shared over depth."""
    looks = {way: look(i, linestyle="--" if way.startswith("rank") else "-") for i, way in enumerate(WAYS)}
    with drawing(width, 3.9 if width >= 5 else 4.6) as (figure, axes):
        axis, seen = axes[0, 0], [float(np.exp(known["original"]))]
        axis.axhline(seen[0], color=INK, linewidth=0.8, alpha=0.5)
        for way, own in looks.items():
            points = [
                (row["numbers"] / known["block_numbers"], float(np.exp(row["loss"])))
                for row in found
                if row["way"] == way and finite(float(np.exp(row["loss"])))
            ]
            if points:
                axis.plot(*zip(*points, strict=True), **own)
            seen += [y for _, y in points]
        perplexity_scale(axis, seen)
        axis.set_xlabel("numbers of the blocks, of the whole model's")
        axis.set_ylabel("perplexity")
        legend(figure, [key(**own) for own in looks.values()], list(WAYS.values()), width)
    return figure
