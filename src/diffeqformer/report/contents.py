"""The page that links to all pages of a run."""

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from html import unescape
from pathlib import Path

from diffeqformer.plain import Document
from diffeqformer.report.page import from_template
from diffeqformer.store.files import write_output
from diffeqformer.store.regular import open_to_read

_HEADLINE = re.compile(r'<p class="headline"[^>]*>(.*?)</p>', re.DOTALL)
_REFUSED = re.compile(r'<p class="note"><b>(\w+)</b> cannot be made of this run: (.*?)</p>', re.DOTALL)
_TITLE = re.compile(r"<h1>(.*?)</h1>", re.DOTALL)
_MAP = re.compile(r'<section class="map" id="map-0">\s*<script type="application/json">(.*?)</script>', re.DOTALL)
_PICTURE = re.compile(r'<section id="([a-z0-9][a-z0-9_-]*)">\s*<figure>')
_START = 1 << 22
"""Bytes at the beginning of a page that are searched for these patterns."""


@dataclass(frozen=True)
class Seen:
    """The parts of an analysis's page that the contents page repeats."""

    headline: str
    """The page's first sentence; empty if it has none."""
    picture: str
    """File of the page's first figure, in the page's folder; empty if there is none."""
    title: str = ""
    """The page's title: the question that it answers."""
    tokens: tuple[str, ...] = ()
    """Tokens of the page's token map; empty if it has none."""
    outputs: tuple[int, ...] = ()
    """Positions of the tokens whose outputs the page explains."""
    headlines: tuple[str, ...] = ()
    """The page's first sentence for each of these outputs; empty if it does not depend on the output."""


def write_contents(
    folder: Path, title: str, known: Mapping[str, str], refused: Mapping[str, str] | None = None, make: str = ""
) -> Path:
    """Write `index.html` next to the folders of a run's analyses, with the findings of each; returns its path.

    Texts with token maps are shown at the top; selecting a token there makes the pages that map the text open at it.
    Comparisons of the run, in folders `compare-...`, and its report are linked if they exist.

    **Arguments:** `folder`, which holds the analyses; `title` of the page; `known` analyses and what each does, in
    order; `refused`, the analyses that cannot be made of this run and why, added to those that an existing page lists;
    `make`, the command that makes the missing ones, `diffeqformer analyze all RUN`, shown with the explorer's.

    **Raises:** `RunFailed` if the page cannot be written.
    """
    pages = [(name, about, f"{name}/index.html") for name, about in known.items()]
    beside = sorted(page.parent.name for page in folder.glob("compare-*/index.html"))
    pages += [(name, "this run beside another", f"{name}/index.html") for name in beside]
    pages += [("report", "the report of training", f"{up}report.html") for up in ("../", "../../")]
    told = {name: unescape(why) for name, why in _REFUSED.findall(_begin(folder / "index.html")) if name in known}
    refused = told | dict(refused or {})
    # `..` cannot be resolved through a folder that does not exist yet, so it is removed first.
    found = [(*page, seen) for page in pages if (seen := look(Path(os.path.abspath(folder / page[2])))) is not None]
    entries = [
        {"name": name, "title": seen.title or name, "about": about, "address": address, "headline": seen.headline,
         "picture": f"{name}/{seen.picture}" if seen.picture else ""}
        for name, about, address, seen in found
    ]  # fmt: skip
    there = {name for name, *_ in found}
    made = len(there & {*known})
    say = "analysis says" if made == 1 else "analyses say"
    said = f"What {made} {say} of it." if made else "No analysis of it has been run yet."
    lead = [seen.headline for name, _, _, seen in found if name == "depth" and seen.headline]
    run = make.removeprefix("diffeqformer analyze all ")
    values = {
        "title": title, "name": "contents", "findings": (*lead, said), "entries": entries, "make": make,
        "images": "'self'",
        "explore": f"diffeqformer explore {run}" if run != make else "",
        "texts": texts_of((name, seen) for name, _, _, seen in found),
        "refused": {name: why for name, why in refused.items() if name not in there},
        "absent": [name for name in known if name not in there and name not in refused],
    }  # fmt: skip
    text = from_template("contents.html", scripts=("contents.js",), **values)
    write_output(folder / "index.html", text.encode(), "analysis file")
    return folder / "index.html"


def look(page: Path) -> Seen | None:
    """Read what a page shows; `None` if there is no page. Nothing in the file is trusted."""
    if not (text := _begin(page)):
        return None
    headline, picture, drawn = (pattern.search(text) for pattern in (_HEADLINE, _PICTURE, _MAP))
    plain = lambda found: unescape(re.sub(r"<[^>]*>", "", found[1])) if found else ""
    file = f"{picture[1]}.png" if picture else ""
    there = file and (page.parent / file).is_file()
    seen = Seen(plain(headline), file if there else "", plain(_TITLE.search(text)))
    try:
        shown = json.loads(drawn[1]) if drawn else {}
        tokens, outputs, headlines = (tuple(shown.get(name, ())) for name in ("tokens", "outputs", "headlines"))
    except (AttributeError, TypeError, ValueError, RecursionError):
        return seen
    of_text = all(isinstance(one, str) for one in (*tokens, *headlines))
    if not of_text or not all(type(one) is int and 0 <= one < len(tokens) for one in outputs):
        return seen
    follows = len(headlines) == len(outputs) and headlines[-1:] == (seen.headline,)
    return replace(seen, tokens=tokens, outputs=outputs, headlines=headlines if follows else ())


def _begin(page: Path) -> str:
    """Read the beginning of a page; empty if it cannot be read."""
    try:
        with open_to_read(page) as file:
            return file.read(_START).decode(errors="replace")
    except OSError:
        return ""


def texts_of(pages: Iterable[tuple[str, Seen]]) -> list[Document]:
    """List every mapped text once, with the pages that map it and their headlines for its tokens."""
    texts: dict[tuple[str, ...], list[tuple[str, Seen]]] = {}
    for name, seen in pages:
        if seen.tokens and seen.outputs:
            texts.setdefault(seen.tokens, []).append((name, seen))
    return [
        {
            "tokens": tokens,
            "names": [name for name, _ in several],
            "outputs": sorted({place for _, seen in several for place in seen.outputs}),
            "said": {
                name: dict(zip(map(str, seen.outputs), seen.headlines, strict=True))
                for name, seen in several
                if seen.headlines
            },
        }
        for tokens, several in texts.items()
    ]
