"""Reading figures back: what a reader would see, from Matplotlib's own artists."""

from typing import Any

import numpy as np
from matplotlib.colors import to_rgb

WIDTHS = (9.4, 3.7)


def legend(figure: Any) -> dict[str, str]:
    """Names in the legend, and the colour of each."""
    (found,) = figure.legends
    return {text.get_text(): hexed(line) for text, line in zip(found.get_texts(), found.get_lines(), strict=True)}


def hexed(line: Any) -> str:
    return "#" + "".join(f"{round(255 * part):02x}" for part in to_rgb(line.get_color()))


def points(line: Any) -> np.ndarray:
    """The points of a line, (point, 2)."""
    return np.asarray(line.get_xydata(), float)


def band(collection: Any, at: float) -> tuple[float, float]:
    """The lowest and highest point of a band at one place of the horizontal axis."""
    corners = collection.get_paths()[0].vertices
    there = corners[np.isclose(corners[:, 0], at), 1]
    return float(there.min()), float(there.max())


def blue_is_high(image: Any) -> bool:
    """Whether a signed map goes from brown at its low end to blue at its high end, with the middle pale."""
    low, middle, high = (image.cmap(share) for share in (0.1, 0.5, 0.9))
    return high[2] > high[0] + 0.2 and low[0] > low[2] + 0.2 and min(middle[:3]) > 0.9


def dark_is_high(image: Any) -> bool:
    """Whether an unsigned map is pale at its low end and dark at its high end."""
    low, high = (sum(image.cmap(share)[:3]) for share in (0.0, 1.0))
    return low > 2.5 and high < 1.5


def green_is_early(image: Any) -> bool:
    """Whether depth is drawn from green at 0 to purple at 1, which no scale of signed values has."""
    start, end = image.cmap(image.norm(0.0)), image.cmap(image.norm(1.0))
    green, purple = start[1] - max(start[0], start[2]), min(end[0], end[2]) - end[1]
    return green > 0.05 and purple > 0.3 and (image.norm.vmin, image.norm.vmax) == (0, 1)


def title(axis: Any) -> str:
    """The title of a panel, which stands at its left."""
    return axis.get_title(loc="left")
