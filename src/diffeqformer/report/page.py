"""The page of an analysis: its figures, tables, animations and token maps in one HTML file that opens offline.

Nothing is fetched. Token maps and animations need a script; it stands in the page, and the page's policy names it by
its digest, so that no other can run.
"""

import base64
import hashlib
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure as Drawing

from diffeqformer.report.figures import save, svg
from diffeqformer.report.html import ENVIRONMENT
from diffeqformer.report.text import clean
from diffeqformer.store.files import write_output as write

_SCRIPT = (files("diffeqformer.report") / "templates" / "page.js").read_text(encoding="utf-8")
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
_MOST_FRAMES = 67
_MARKS = {" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍"}


@dataclass(frozen=True)
class Figure:
    """A figure, written as `name.png` and `name.svg`, and drawn in the page."""

    name: str
    caption: str
    figure: Drawing
    narrow: Drawing | None = None
    """The same for a phone; without it the figure can be scrolled sideways there."""


@dataclass(frozen=True)
class Table:
    """A table; a column whose every cell is a number is aligned as one."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class TokenMap:
    """Scores of every token of a text for each of some outputs, by several methods: an interactive heat map."""

    tokens: tuple[str, ...]
    """The pieces of the text as a reader is to see them; see `visible`."""
    outputs: tuple[int, ...]
    """Positions whose output was analysed."""
    methods: dict[str, np.ndarray]
    """Name to scores of shape (len(outputs), len(tokens)); NaN where an input lies behind the output."""
    says: dict[str, str]
    """Name to one line: what is seen, and how it was computed."""


@dataclass(frozen=True)
class Cloud:
    """Points on the move in one panel of an animation."""

    title: str
    states: np.ndarray
    """(time, point, 3)"""
    series: tuple[int, ...]
    """The colour of every point, by its number in `figures.COLORS`; -1 for ink."""


@dataclass(frozen=True)
class Animation:
    """Clouds of points that move together: played, turned and wound by the reader. All have the same times."""

    caption: str
    clouds: tuple[Cloud, ...]
    times: np.ndarray
    unit: str
    """What the times are: `time`, or `depth`."""


@dataclass(frozen=True)
class Page:
    """What a page shows, in this order: text, token maps, animations, figures, tables."""

    title: str
    says: tuple[str, ...]
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()
    maps: tuple[TokenMap, ...] = ()
    animations: tuple[Animation, ...] = ()


def visible(piece: str) -> str:
    """A piece of text with marks for its spaces (·), newlines (⏎) and tabs (⇥); a mark for nothing (∅)."""
    return "".join(_MARKS.get(character, character) for character in piece) or "∅"


def write_page(folder: Path, name: str, page: Page, arrays: Mapping[str, np.ndarray]) -> Path:
    """Write an analysis to a folder: `name.npz`, every figure as `.png` and `.svg`, and `index.html`.

    Everything is drawn before anything is written, each file is written aside and renamed, and `index.html` last.
    Equal contents give equal bytes.

    **Arguments:** `folder`, made if needed; `name`, of the analysis; `arrays`, all numbers of it by name, as
    `numpy.load(folder / "name.npz")` will give them back.

    **Returns:** the path of `index.html`.

    **Raises:** `ValueError` for a page that contradicts itself; `RunFailed` if a file cannot be written.
    """
    _check(name, page)
    contents = {f"{name}.npz": _npz(arrays)}
    for one in page.figures:
        contents[f"{one.name}.png"] = save(one.figure, "png")
        contents[f"{one.name}.svg"] = save(one.figure, "svg")
    contents["index.html"] = render(name, page, arrays).encode()
    folder = Path(folder)
    for file, content in contents.items():
        write(folder / file, content, "analysis file")
    return folder / "index.html"


def render(name: str, page: Page, arrays: Mapping[str, np.ndarray]) -> str:
    """The text of `index.html`; see `write_page`."""
    digest = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
    return ENVIRONMENT.get_template("page.html").render(
        name=name,
        page=page,
        figures=[_figure(one) for one in page.figures],
        animations=[(one.caption, _animation(one)) for one in page.animations],
        tables=[_table(one) for one in page.tables],
        maps=[_map(one) for one in page.maps],
        arrays=[(key, "×".join(map(str, value.shape)) or "scalar", str(value.dtype)) for key, value in arrays.items()],
        script=Markup(_SCRIPT) if page.maps or page.animations else None,
        script_source=f"'sha256-{digest}'" if page.maps or page.animations else "'none'",
    )


def _check(name: str, page: Page) -> None:
    names = [name, *(one.name for one in page.figures)]
    for one in names:
        if not _NAME.fullmatch(one):
            raise ValueError(f"{one!r} is not a file name of small letters, digits, - and _.")
    if len({*names}) < len(names):
        raise ValueError(f"names of files are used twice: {names}.")
    for one in page.maps:
        shape = (len(one.outputs), len(one.tokens))
        if not one.methods or not one.outputs or set(one.says) != set(one.methods):
            raise ValueError("a token map needs an output, a method, and one line for each method.")
        if wrong := {m: s.shape for m, s in one.methods.items() if s.shape != shape}:
            raise ValueError(f"scores of a token map are {wrong}, but must be {shape}.")
        if not all(0 <= o < len(one.tokens) for o in one.outputs):
            raise ValueError(f"outputs {one.outputs} are not all positions of {len(one.tokens)} tokens.")


def _npz(arrays: Mapping[str, np.ndarray]) -> bytes:
    raw = io.BytesIO()
    np.savez_compressed(raw, allow_pickle=False, **{key: np.asarray(value) for key, value in arrays.items()})
    return raw.getvalue()


def _figure(one: Figure) -> dict[str, Any]:
    return {
        "name": one.name,
        "caption": one.caption,
        "wide": Markup(svg(one.figure, f"{one.name}-wide", one.caption)),
        "narrow": one.narrow and Markup(svg(one.narrow, f"{one.name}-narrow", one.caption)),
    }


def _animation(one: Animation) -> dict[str, Any]:
    """What the script needs: positions as thousandths of the half side of the cube around a cloud, frame by frame."""
    kept = np.unique(np.linspace(0, len(one.times) - 1, _MOST_FRAMES).astype(int))
    clouds = []
    for cloud in one.clouds:
        middle, reach = frame_of(cloud.states)
        places = np.rint(1000 * (cloud.states[kept] - middle) / reach).astype(int)
        places = places.reshape(len(kept), -1).tolist()
        clouds.append({"title": clean(cloud.title), "frames": places, "series": list(cloud.series)})
    return {"clouds": clouds, "times": [float(f"{t:.4g}") for t in one.times[kept]], "unit": one.unit}


def frame_of(states: np.ndarray) -> tuple[np.ndarray, float]:
    """Middle and half side of the cube around all points (time, point, 3)."""
    low, high = states.min((0, 1)), states.max((0, 1))
    return (low + high) / 2, max(float((high - low).max()) / 2, np.finfo(float).tiny)


def _table(one: Table) -> dict[str, Any]:
    number = [
        all(re.match(r"([+−-]?[\d.,∞]|–$|$|not finite)", row[i]) for row in one.rows) and i > 0
        for i in range(len(one.columns))
    ]
    return {"caption": one.caption, "columns": list(zip(one.columns, number, strict=True)), "rows": one.rows}


def _map(one: TokenMap) -> dict[str, Any]:
    methods = [
        {"name": clean(name), "says": clean(one.says[name]), "scores": [_row(row) for row in scores.tolist()]}
        for name, scores in one.methods.items()
    ]
    tokens = [clean(token) for token in one.tokens]
    return {"tokens": tokens, "outputs": list(one.outputs), "methods": methods}


def _row(scores: Sequence[float]) -> list[float | None]:
    """Four significant digits of each score; nothing for what is not a number, and for what follows the last one."""
    known = [float(f"{score:.4g}") if math.isfinite(score) else None for score in scores]
    while known and known[-1] is None:
        known.pop()
    return known
