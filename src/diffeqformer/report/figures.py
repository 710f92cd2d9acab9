"""Shared parts of the Matplotlib figures in reports: style, colours, axes, legends, and output as PNG and SVG.

Figures are made with Matplotlib's object interface under its default settings, so nothing here depends on, or
changes, the state of a caller's own plots.
"""

import io
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal
from xml.etree import ElementTree

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import LinearSegmentedColormap, Normalize, to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, Locator, LogLocator, MaxNLocator, NullLocator, StrMethodFormatter

from diffeqformer.plain import clean

# Okabe and Ito's palette (2008), without its black and its yellow, which vanish on dark and on white paper.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
RISING = ("#f4f6ee", "#cbe5d3", "#7fc6c6", "#3593bf", "#2858a0", "#191d5c")
BOTH = ("#6b1f04", "#c5601d", "#efc39a", "#f1f1ee", "#a8cbe4", "#3778b4", "#0b2a63")
"""Colour stops of the two scales on all pages. `RISING` darkens from low to high. `BOTH`, for signed values, is pale at
zero and dark at both ends, brown below and blue above."""
SIGNED, UNSIGNED = (
    LinearSegmentedColormap.from_list(name, stops) for name, stops in (("signed", BOTH), ("rising", RISING))
)
DEPTH = LinearSegmentedColormap.from_list("depth", ("#97b312", "#27a07c", "#7a72c8", "#a33a90"))
"""Colour map of depth, from green to purple: shares no shade with `SIGNED`; legible on white and on dark paper."""
# Verdicts on claims are printed as coloured words, so their colours have the contrast of text.
VERDICTS = {"holds": "#1b7837", "fails": "#b2182b", "within noise": "#555555", "untested": "#999999"}
ON_PAPER = {
    "#1b7837": ("#1b7837", "#5cc47c"), "#b2182b": ("#b2182b", "#ff8a80"),
    "#555555": ("#555555", "#b4bcc6"), "#999999": ("#6b7280", "#8f99a5"),
}  # fmt: skip
"""The colours of `VERDICTS` on white and on dark paper."""
Look = dict[str, Any]
"""Colour, marker and other keyword arguments of `Line2D`."""
MARKERS = ("o", "s", "^", "D", "v", "P")
INK = "#1c2128"
WIDE, NARROW = 9.4, 3.7
"""Widths in inches: for a page or a desktop, and for a phone, where panels are stacked."""


def is_narrow(width: float) -> bool:
    """Whether a figure of this width is for a phone."""
    return width < 5


_MOST_POINTS = 600
_STYLE: dict[Any, Any] = {
    "font.size": 9, "axes.labelsize": 9, "axes.titlesize": 9, "xtick.labelsize": 8.5, "ytick.labelsize": 8.5,
    "legend.fontsize": 9, "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK, "axes.titlecolor": INK,
    "xtick.color": INK, "ytick.color": INK, "axes.linewidth": 0.7, "xtick.major.width": 0.7, "ytick.major.width": 0.7,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": INK, "grid.alpha": 0.12,
    "grid.linewidth": 0.6, "axes.axisbelow": True, "lines.linewidth": 1.6, "lines.markersize": 4.5,
    "legend.frameon": False, "axes.titlelocation": "left",
    "svg.fonttype": "none",  # text stays text, in the page's font
    "svg.hashsalt": "diffeqformer",  # else identifiers, and so the file, differ each time
}  # fmt: skip


@contextmanager
def style() -> Iterator[None]:
    """Use this project's figure style within the `with` block; the caller's own settings are restored after it."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


@contextmanager
def drawing(
    width: float, height: float, rows: int = 1, columns: int = 1, *, panels: int | None = None, **shape: Any
) -> Iterator[tuple[Figure, Any]]:
    """Open a new figure of `width` x `height` inches and its axes, of shape (row, column), in this project's style.

    **Arguments:** `panels`, how many of the axes are used, the others are hidden; `shape`, further arguments of
    Matplotlib's `subplots`.
    """
    with style():
        figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
        axes = figure.subplots(rows, columns, squeeze=False, **shape)
        for axis in axes.flat[axes.size if panels is None else panels :]:
            axis.set_visible(False)
        yield figure, axes


def shades(scores: np.ndarray, own: int, *, signed: bool = False) -> list[tuple[str, str]]:
    """Return the colours of tokens and of the letters on them, by the scores of one output's inputs.

    An output's score for itself, at place `own`, may be many times the others, so it does not set the scale (as in
    colours.js). Scores that are all equal get the middle of a `signed` scale, and the low end of an unsigned one.
    """
    others = np.isfinite(scores) & (np.arange(len(scores)) != own)
    known = scores[others] if others.any() else scores[np.isfinite(scores)]
    low, high = (known.min(), known.max()) if known.size else (0.0, 0.0)
    low, high = (-max(-low, high), max(-low, high)) if signed else (low, high)
    alike = np.where(scores > high, 1.0, 0.5 if signed else 0.0)
    colours = (SIGNED if signed else UNSIGNED)(Normalize(low, high, clip=True)(scores) if high > low else alike)
    # Luma (Rec. 601): dark letters on pale colours, white ones on dark.
    return [(to_hex(one), "#000000" if one[:3] @ (0.3, 0.59, 0.11) > 0.55 else "#ffffff") for one in colours]


def color(index: int) -> str:
    """The colour of the model at this index in the results."""
    return COLORS[index % len(COLORS)]


def look(index: int, **more: Any) -> Look:
    """Colour, marker and line style of the model at this index in the results, and `more` arguments of `Line2D`."""
    rounds = index // len(COLORS)
    again = {"linestyle": ("--", ":", "-.")[(rounds - 1) % 3]} if rounds else {}
    return {"color": color(index), "marker": MARKERS[index % len(MARKERS)], **again, **more}


def thin(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Thin a curve to `_MOST_POINTS` at most that keep its envelope: lowest and highest of each stretch, the ends."""
    if len(points) <= _MOST_POINTS:
        return list(points)
    stretch = math.ceil(2 * len(points) / (_MOST_POINTS - 2))
    kept = {0, len(points) - 1}
    for start in range(0, len(points), stretch):
        places = range(start, min(start + stretch, len(points)))
        kept |= {min(places, key=lambda i: points[i][1]), max(places, key=lambda i: points[i][1])}
    return [points[i] for i in sorted(kept)]


def legend(figure: Figure, shown: Sequence[tuple[Look | Line2D, str]], width: float) -> None:
    """Draw a legend above all panels, in as many columns as `width` inches allow.

    **Arguments:** `shown`, pairs of a line and its name, which may be any text. The line is one that is drawn, or the
    arguments of `Line2D` for one that appears only in the legend.
    """
    # Texts are set afterwards: in a label, Matplotlib interprets a leading underscore or a pair of dollar signs.
    lines = [" ".join(clean(name).split()) for _, name in shown]
    handle, letter = 48, 5.2  # points: a handle with a gap, and a letter
    most = max(48, int((72 * width - handle) / letter))
    lines = [line if len(line) <= most else f"{line[: most - 1]}…" for line in lines]
    points_a_column = handle + letter * max(map(len, lines), default=0)
    handles = [one if isinstance(one, Line2D) else Line2D([], [], **one) for one, _ in shown]
    drawn = figure.legend(
        handles, [f"series {i}" for i in range(len(lines))], loc="outside upper left",
        ncols=max(1, min(len(lines), int(72 * width / points_a_column))), handlelength=2.2, columnspacing=2.0,
        borderaxespad=0.2,
    )  # fmt: skip
    for text, line in zip(drawn.get_texts(), lines, strict=True):
        text.set_parse_math(False)
        text.set_text(line)


class PlainTicks(Locator):
    """Ticks of a logarithmic axis at round numbers: at least four, whatever range it spans."""

    def __call__(self) -> Sequence[float]:
        """Tick positions for the current view of the axis."""
        assert self.axis is not None
        return self.tick_values(*self.axis.get_view_interval())

    def tick_values(self, vmin: float, vmax: float) -> Sequence[float]:
        """Tick positions between two positive numbers."""
        low, high = sorted((vmin, vmax))
        ways = [LogLocator(subs=subs, numticks=10) for subs in ((1,), (1, 3), (1, 2, 5))]
        ways += [MaxNLocator(number, steps=[1, 2, 5, 10]) for number in (5, 8, 12)]
        ticks: list[float] = []
        for way in ways:
            ticks = [tick for tick in way.tick_values(low, high) if low <= tick <= high]
            if len(ticks) > 3:
                break
        return ticks


def log_axis(axes: Axes, name: Literal["x", "y"], ticks: Sequence[float | int] | None = None, base: int = 10) -> None:
    """Make the axis of this name logarithmic, with ticks at plain numbers and no unlabelled ones."""
    getattr(axes, f"set_{name}scale")("log", base=base)
    axis: Axis = getattr(axes, f"{name}axis")
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_locator(NullLocator())
    axis.set_major_locator(PlainTicks() if ticks is None else FixedLocator(ticks))


def steps_axis(
    axis: Axes, steps: set[int], first: set[int], width: float, *, own: str = "", logarithmic: bool | None = None
) -> None:
    """Set up the x axis for numbers of steps: logarithmic if they span more than a factor of eight, or as asked.

    **Arguments:** `first`, the steps whose ticks take precedence; `own`, a label above a vertical line at each of them.
    """
    for x in sorted(first if own else ()):
        axis.axvline(x, color=INK, alpha=0.35, linewidth=0.8, zorder=0.5)
        place: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
        axis.annotate(own, (x, 1), xytext=(0, 3), ha="center", va="bottom", **place)
    if logarithmic is None:
        logarithmic = bool(steps) and max(steps) > 8 * min(steps)
    if logarithmic:
        log_axis(axis, "x", base=2)
    least = 0.2 / width  # a label has 0.2 inches
    axis.xaxis.set_major_locator(FixedLocator(spaced(steps, first, least, logarithmic=logarithmic)))
    axis.set_xlabel("steps run (depth)")


def from_zero(axis: Axes) -> None:
    """Let y begin at zero and end 5 % above the highest point, however little the points differ."""
    axis.set_ylim(0, 1.05 * axis.dataLim.y1 if axis.dataLim.y1 > 0 else 1.0)


def band(axis: Axes, x: np.ndarray, values: np.ndarray, color: str, **look: Any) -> None:
    """Draw the median of `values` (x, sample), and a band from the first to the third quartile."""
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75), axis=1)
    axis.plot(x, middle, color=color, **look)
    axis.fill_between(x, low, high, color=color, alpha=0.13, linewidth=0)


def perplexity_scale(axis: Axes, values: Sequence[float], label: str = "") -> None:
    """Label the y axis; make it logarithmic, with plain numbers, if perplexities span more than a factor of four."""
    axis.margins(y=0.1)
    if values and max(values) > 4 * min(values):
        log_axis(axis, "y")
        label = f"{label} (log scale)" if label else ""
    axis.set_ylabel(label)


def spaced(steps: set[int], first: set[int], least: float, *, logarithmic: bool) -> list[int]:
    """Select the `steps` whose labels fit on an axis, at least `least` of its length apart; `first` take precedence."""
    place = {s: math.log(s) if logarithmic else s for s in steps}
    room = least * (max(place.values(), default=0) - min(place.values(), default=0))
    kept: list[int] = []
    for step in sorted(steps, key=lambda s: (s not in first, s)):
        if all(abs(place[step] - place[other]) >= room for other in kept):
            kept.append(step)
    return sorted(kept)


def save(figure: Figure, kind: str) -> bytes:
    """Save the figure as the bytes of a `png` or `svg` file, on white. Equal figures give equal bytes."""
    metadata = {"Software": None} if kind == "png" else dict.fromkeys(("Date", "Creator"))
    return _saved(figure, format=kind, dpi=160, facecolor="white", metadata=metadata)


def _saved(figure: Figure, **how: Any) -> bytes:
    raw = io.BytesIO()
    with style():
        figure.savefig(raw, **how)
    figure.set_layout_engine(None)  # stays as it is; after "none" Matplotlib would still draw everything twice
    return raw.getvalue()


def svg(figure: Figure, prefix: str, label: str) -> str:
    """Convert the figure to an `<svg>` element to be placed inline in an HTML page.

    Ink takes the page's text colour (`currentColor`) and series the custom properties `--series-0`, `--series-1`, ...,
    with the printed colour as fallback; colours of `ON_PAPER` have a shade for each paper. Fonts are the page's.
    Equal figures give equal bytes.

    **Arguments:** `prefix` of every identifier, since a page's identifiers share one namespace; `label`, a description
    of the figure for screen readers.
    """
    metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    root = ElementTree.fromstring(_saved(figure, format="svg", transparent=True, metadata=metadata))
    for parent in list(root.iter()):
        for child in list(parent):
            # Matplotlib's style sheet would apply to the whole page, whose own has the same rule for figures.
            if _local(child.tag) in ("metadata", "style"):
                parent.remove(child)
    used = {m for e in root.iter() for v in e.attrib.values() for m in re.findall(r"(?:^|url\()#([^)]+)", v)}
    for element in root.iter():
        element.tag, old = _local(element.tag), dict(element.attrib)
        element.attrib.clear()
        for key, value in old.items():
            name = _local(key)
            if name == "id":
                if value in used:
                    element.set(name, f"{prefix}-{value}")
            elif name == "href":
                inside = value.startswith("#")  # else an embedded picture
                element.set(name, f"#{prefix}-{value[1:]}" if inside else value)
            elif name == "style":
                element.set(name, _themed(value))
            else:
                own = value.replace("url(#", f"url(#{prefix}-")
                element.set(name, _rounded(own) if name in ("d", "x", "y", "transform") else own)
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.attrib.update({"role": "img", "aria-label": clean(label)})
    return ElementTree.tostring(root, encoding="unicode")


def _local(name: str) -> str:
    return name.rsplit("}", 1)[-1]


def _rounded(coordinates: str) -> str:
    """Round coordinates to hundredths of a point: finer than any screen, and half the file size."""
    short = re.sub(r"-?\d+\.\d{3,}", lambda m: f"{float(m[0]):.2f}".rstrip("0").rstrip("."), coordinates)
    return " ".join(short.split())


def _themed(rules: str) -> str:
    rules = re.sub(r"font-family: [^;]*;? ?", "", rules).replace(INK, "currentColor")
    for index, shade in enumerate(COLORS):
        rules = rules.replace(shade, f"var(--series-{index}, {shade})")
    # The first declaration is for browsers that do not know the second one.
    own = lambda m: f"{m[1]}: {ON_PAPER[m[2]][0]}; {m[1]}: light-dark({', '.join(ON_PAPER[m[2]])})"
    return re.sub(rf"([a-z-]+): ({'|'.join(map(re.escape, ON_PAPER))})(?![0-9a-f])", own, rules)
