"""Report pages: sentences, token maps, animations, figures and tables in one HTML file that opens offline.

A new page is one call, `write(folder, name, title, findings, tables=..., figures=...)`, or a template of its own that
begins with `{% extends "page.html" %}`, fills the blocks `header`, `content` and `footer`, and is rendered by
`from_template`. Every string that enters is cleaned and escaped. Nothing is fetched. Token maps and animations need a
script. It is inlined, and the page's content security policy allows it by its digest, so that no other can run.
"""

import base64
import hashlib
import io
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from matplotlib.figure import Figure as Drawing

from diffeqformer.plain import Document, clean
from diffeqformer.report.figures import BOTH, NARROW, RISING, WIDE, save, shades, svg
from diffeqformer.report.table import Table, named
from diffeqformer.report.terms import terms_of
from diffeqformer.report.text import unbroken
from diffeqformer.store.files import write_outputs

ENVIRONMENT = Environment(
    loader=PackageLoader("diffeqformer.report"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    # Every string passes through here and is then escaped. The only markup is that of our own figures and tables.
    finalize=lambda value: clean(value) if isinstance(value, str) and not hasattr(value, "__html__") else value,
)


def code(text: str) -> Markup:
    """Mark up backticked parts of a text as code, and keep options (`--to`) from being broken across lines.

    A “token” in quotation marks is left unchanged: its backticks are the user's own.
    """
    marked = re.sub(
        "(“[^”]*”)|`([^`]+)`", lambda found: found[1] or f"<code>{found[2]}</code>", str(escape(unbroken(clean(text))))
    )
    return Markup(re.sub(r"(?<![\w-])--[a-z][\w-]*", r'<span class="option">\g<0></span>', marked))


ENVIRONMENT.filters |= {"code": code, "unbroken": unbroken, "named": lambda text: Markup(named(text))}
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
_GLOSSARY = Markup("<!-- glossary -->")
"""Placeholder for the glossary, which is known only once the rest of the page is; no text can hold it unescaped."""
_MOST_FRAMES = 67
_MARKS = {" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍"}


@dataclass(frozen=True)
class Figure:
    """A figure, written as `name.png` and `name.svg`, and inlined in the page."""

    name: str
    caption: str
    figure: Drawing
    narrow: Drawing | None = None
    """The figure as drawn for a phone; if `None`, a phone scrolls the wide one sideways."""
    output: int | None = None
    """The token whose output the figure shows; it is faded while another is selected in a token map."""


def both_widths(
    name: str, caption: str, draw: Callable[..., Drawing], *arguments: Any, output: int | None = None
) -> Figure:
    """Draw a figure by `draw(*arguments, width=...)` at desktop and at phone width."""
    return Figure(name, caption, draw(*arguments, width=WIDE), draw(*arguments, width=NARROW), output)


@dataclass(frozen=True)
class TokenMap:
    """An interactive heat map: scores of every input token for each analysed output, by several methods."""

    tokens: tuple[str, ...]
    """The pieces of the text as displayed; see `visible`."""
    outputs: tuple[int, ...]
    """Positions whose output was analysed."""
    methods: dict[str, np.ndarray]
    """Scores by method, of shape (len(outputs), len(tokens)); NaN where an input comes after the output."""
    descriptions: Mapping[str, str]
    """One line per method: what the map shows, and how it was computed."""
    headlines: tuple[str, ...] = ()
    """One sentence per output; the last output's, among the page's findings, is replaced by the selected output's."""
    captions: tuple[str, ...] = ()
    """One caption per output, for a table whose columns are methods; its rows follow the selection too."""
    signed: Sequence[str] = ()
    """Methods whose colour scale is centred at zero; the others' runs from the lowest score to the highest.
    Logarithms belong to the others: their zero is a factor of one, not a centre."""

    def to_html(self) -> str:
        """Render the text, coloured by the last output's scores by the first method, for a notebook."""
        (name, scores), own = next(iter(self.methods.items())), self.outputs[-1]
        row, pieces = scores[-1], []
        for token, score, (shade, ink) in zip(
            self.tokens, row, shades(row, own, signed=name in self.signed), strict=True
        ):
            look = f"background:{shade};color:{ink}" if np.isfinite(score) else "opacity:.5"
            pieces.append(f'<span style="{look}" title="{score:.4g}">{escape(clean(token))}</span>')
        said = escape(clean(f"{name}, output at token {own}: {self.descriptions[name]}"))
        return f'<p>{said}</p><p style="font-family:monospace;line-height:1.8">{" ".join(pieces)}</p>'


@dataclass(frozen=True)
class Cloud:
    """Moving points in one panel of an animation."""

    title: str
    states: np.ndarray
    """Positions, (time, point, 3)."""
    series: tuple[int, ...]
    """The colour of every point, as an index into `figures.COLORS`; -1 for ink."""


@dataclass(frozen=True)
class Animation:
    """Clouds of points that the reader can play, rotate and scrub together. All share the same times."""

    caption: str
    clouds: tuple[Cloud, ...]
    times: np.ndarray
    unit: str
    """What the times are: `time`, or `depth`."""


def visible(piece: str) -> str:
    """Mark the spaces (·), newlines (⏎) and tabs (⇥) of a piece of text; an empty one becomes ∅."""
    return "".join(_MARKS.get(character, character) for character in piece) or "∅"


def write(folder: Path, name: str, title: str, findings: Sequence[str], **shown: Any) -> Path:
    """Write a page to a folder: `name.npz`, every figure as `.png` and `.svg`, and `index.html`.

    Everything is drawn before anything is written. All files are written aside and then renamed, `index.html` last, so
    an existing page always matches the numbers in its folder. Equal contents give equal bytes.

    **Arguments:** `folder`, made if needed; the others as for `render`; `arrays` holds all numbers by name, as
    `numpy.load(folder / "name.npz")` gives them back.

    **Returns:** the path of `index.html`.

    **Raises:** `ValueError` for a page that contradicts itself; `RunFailed` if a file cannot be written.
    """
    text = render(name, title, findings, **shown)
    contents = {f"{name}.npz": _npz(shown.get("arrays", {}))}
    for one in shown.get("figures", ()):
        contents |= {f"{one.name}.{kind}": save(one.figure, kind) for kind in ("png", "svg")}
    contents["index.html"] = text.encode()
    write_outputs(folder, contents, "analysis file")
    return folder / "index.html"


def render(
    name: str,
    title: str,
    findings: Sequence[str],
    *,
    notes: Sequence[str] = (),
    tables: Sequence[Table] = (),
    figures: Sequence[Figure] = (),
    maps: Sequence[TokenMap] = (),
    animations: Sequence[Animation] = (),
    arrays: Mapping[str, np.ndarray] | None = None,
    home: str = "",
) -> str:
    """Render a page as HTML, in this order: findings, token maps, animations, figures, tables, notes, names of the
    arrays.

    **Arguments:** `name` of the study and of its files; `findings`, sentences, the first of which is the headline;
    `home`, the address of the page that links to this one, if any.

    **Raises:** `ValueError` for a page that contradicts itself.
    """
    _check(name, figures, maps)
    drawing = ("colours.js", "token_maps.js", "clouds.js") if maps or animations else ()
    return from_template(
        "page.html", scripts=(*(("home.js",) if home or maps else ()), *drawing),
        name=name, title=title, findings=findings, notes=notes, home=home,
        figures=list(map(drawn, figures)), animations=[(one.caption, _animation(one)) for one in animations],
        tables=tables, maps=[_map(one) for one in maps],
        arrays=[(k, "×".join(map(str, v.shape)) or "scalar", str(v.dtype)) for k, v in (arrays or {}).items()],
    )  # fmt: skip


def from_template(template: str, *, scripts: Sequence[str] = (), **values: Any) -> str:
    """Render a template of this package: `page.html`, or one that extends it. `{{ glossary }}` becomes an explanation
    of the terms that the page uses.

    **Arguments:** `scripts`, files of this package that are joined into the page's one script.
    """
    folder = resources("diffeqformer.report") / "templates"
    # The scripts' colours are those of the figures, which are made here.
    stops = f'"use strict";\nconst [RISING, BOTH] = {json.dumps((RISING, BOTH))};\n'
    script = stops + "".join((folder / name).read_text(encoding="utf-8") for name in scripts)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = ENVIRONMENT.get_template(template).render(
        glossary=_GLOSSARY,
        script=Markup(script) if scripts else None,
        script_source=f"'sha256-{digest}'" if scripts else "'none'",
        **values,
    )
    return page.replace(_GLOSSARY, ENVIRONMENT.get_template("glossary.html").render(terms=terms_of(page)), 1)


def _check(name: str, figures: Sequence[Figure], maps: Sequence[TokenMap]) -> None:
    names = [name, *(one.name for one in figures)]
    for one in names:
        if not _NAME.fullmatch(one):
            raise ValueError(f"{one!r} is not a file name of small letters, digits, - and _.")
    if len({*names}) < len(names):
        raise ValueError(f"names of files are used twice: {names}.")
    for one in maps:
        shape = (len(one.outputs), len(one.tokens))
        if not one.methods or not one.outputs or set(one.descriptions) != set(one.methods):
            raise ValueError("a token map needs an output, a method, and one line for each method.")
        if wrong := {m: s.shape for m, s in one.methods.items() if s.shape != shape}:
            raise ValueError(f"scores of a token map are {wrong}, but must be {shape}.")
        if any(said and len(said) != len(one.outputs) for said in (one.headlines, one.captions)):
            raise ValueError("a token map needs a headline and a caption for each output, or none.")
        if not all(0 <= o < len(one.tokens) for o in one.outputs):
            raise ValueError(f"outputs {one.outputs} are not all positions of {len(one.tokens)} tokens.")


def _npz(arrays: Mapping[str, np.ndarray]) -> bytes:
    raw = io.BytesIO()
    np.savez_compressed(raw, allow_pickle=False, **{key: np.asarray(value) for key, value in arrays.items()})
    return raw.getvalue()


def drawn(one: Figure) -> Document:
    """Convert a figure to the values that a template needs."""
    return {
        "name": one.name,
        "caption": one.caption,
        "output": one.output,
        "wide": Markup(svg(one.figure, f"{one.name}-wide", one.caption)),
        "narrow": one.narrow and Markup(svg(one.narrow, f"{one.name}-narrow", one.caption)),
    }


def _animation(one: Animation) -> Document:
    """Convert an animation for the script: positions per frame, in thousandths of half the side of a cloud's cube."""
    kept = np.unique(np.linspace(0, len(one.times) - 1, _MOST_FRAMES).astype(int))
    clouds = []
    for cloud in one.clouds:
        middle, reach = frame_of(cloud.states)
        places = np.rint(1000 * (cloud.states[kept] - middle) / reach).astype(int).reshape(len(kept), -1)
        clouds.append({"title": clean(cloud.title), "frames": places.tolist(), "series": list(cloud.series)})
    return {"clouds": clouds, "times": [float(f"{t:.4g}") for t in one.times[kept]], "unit": one.unit}


def frame_of(states: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the centre and half the side of the cube around all points (time, point, 3)."""
    low, high = states.min((0, 1)), states.max((0, 1))
    return (low + high) / 2, max(float((high - low).max()) / 2, np.finfo(float).tiny)


def _map(one: TokenMap) -> Document:
    methods = [
        {
            "name": clean(name),
            "description": clean(one.descriptions[name]),
            "signed": name in one.signed,
            "scores": list(map(_row, scores.tolist())),
        }
        for name, scores in one.methods.items()
    ]
    said = {"headlines": [unbroken(clean(line)) for line in one.headlines], "captions": list(map(clean, one.captions))}
    return {"tokens": list(map(clean, one.tokens)), "outputs": list(one.outputs), "methods": methods} | said


def _row(scores: Sequence[float]) -> list[float | None]:
    """Round scores so that the script writes them as Python does in tables (`analysis.tables.decimals`); `None` where a
    score is not finite, and such trailing scores are dropped."""
    digits = lambda score: float(f"{score:.6f}" if abs(score) >= 0.01 else f"{score:.7g}")
    known = [digits(score) if math.isfinite(score) else None for score in scores]
    while known and known[-1] is None:
        known.pop()
    return known
