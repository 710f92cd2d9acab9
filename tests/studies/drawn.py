"""What is seen in a figure: the data in its artists, and what its legend says of them."""

from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D


def look(line: Line2D) -> tuple[str, Any, str, bool]:
    """Colour, marker, style of a line, and whether its markers are hollow."""
    return line.get_color(), line.get_marker(), line.get_linestyle(), line.get_markerfacecolor() == "none"


def points(line: Line2D) -> list[tuple[float, float]]:
    """What a line goes through, in the numbers of its axes."""
    return list(zip(map(float, line.get_xdata()), map(float, line.get_ydata()), strict=True))


def legend(figure: Figure) -> dict[str, tuple[str, Any, str, bool]]:
    """The looks of a figure's only legend by what is written beside them."""
    (drawn,) = figure.legends
    handles = [handle for handle in drawn.legend_handles if isinstance(handle, Line2D)]
    return {text.get_text(): look(handle) for text, handle in zip(drawn.get_texts(), handles, strict=True)}


def by_look(axis: Any) -> dict[tuple[str, Any, str, bool], list[tuple[float, float]]]:
    """The points of all lines of some axes by their looks, all of which are different."""
    found = {look(line): points(line) for line in axis.lines}
    assert len(found) == len(axis.lines)
    return found
