"""The page that links all pages of a run."""

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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
"""Bytes of a page in which all of that stands."""


@dataclass(frozen=True)
class Seen:
    """What the page of an analysis shows that the page of all tells again."""

    headline: str
    """Its first sentence; empty if it has none."""
    picture: str
    """File beside it of its first figure; empty if there is none."""
    title: str = ""
    """The question that it answers."""
    tokens: tuple[str, ...] = ()
    """The text that it maps, if there is one."""
    outputs: tuple[int, ...] = ()
    """Tokens whose outputs it explains."""
    headlines: tuple[str, ...] = ()
    """Its first sentence, as it is for each of these."""


def write_contents(
    folder: Path, title: str, known: Mapping[str, str], refused: Mapping[str, str] | None = None, make: str = ""
) -> Path:
    """Write `index.html` beside the folders of a run's analyses, with what each found; returns its path.

    Of pages that map a text, the text stands above, each of them opening at the token that is chosen in it; those that
    compare the run, in folders `compare-...`, and its report are linked if they are there.

    **Arguments:** `folder`, which holds them; `title` of the page; `known` analyses and what each does, in order;
    `refused`, those that cannot be made of this run and why, beside those that the page told before; `make`, a command
    that makes the others, `diffeqformer analyze all RUN`, beside which the explorer's stands.

    **Raises:** `RunFailed` if it cannot be written.
    """
    pages = [(name, about, f"{name}/index.html") for name, about in known.items()]
    beside = sorted(page.parent.name for page in folder.glob("compare-*/index.html"))
    pages += [(name, "this run beside another", f"{name}/index.html") for name in beside]
    pages += [("report", "the report of training", f"{up}report.html") for up in ("../", "../../")]
    told = {name: unescape(why) for name, why in _REFUSED.findall(_begin(folder / "index.html")) if name in known}
    refused = told | dict(refused or {})
    # `..` of a folder that is not there yet leads nowhere, so it is taken out first.
    found = [(*page, seen) for page in pages if (seen := look(Path(os.path.abspath(folder / page[2])))) is not None]
    entries = [
        {"name": name, "title": seen.title or name, "about": about, "address": address, "headline": seen.headline,
         "picture": f"{name}/{seen.picture}" if seen.picture else ""}
        for name, about, address, seen in found
    ]  # fmt: skip
    there = {name for name, *_ in found}
    made = len(there & {*known})
    say = "analysis says" if made == 1 else "analyses say"
    said = f"What {made} {say} of it." if made else "No analysis was made of it yet."
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
    """What a page shows; `None` if there is no page. Nothing of it is trusted."""
    if not (text := _begin(page)):
        return None
    headline, picture, drawn = (pattern.search(text) for pattern in (_HEADLINE, _PICTURE, _MAP))
    plain = lambda found: unescape(re.sub(r"<[^>]*>", "", found[1])) if found else ""
    said, title = plain(headline), plain(_TITLE.search(text))
    file = f"{picture[1]}.png" if picture else ""
    seen = Seen(said, file if file and (page.parent / file).is_file() else "", title)
    try:
        shown = json.loads(drawn[1]) if drawn else {}
        tokens, outputs, headlines = (tuple(shown.get(name, ())) for name in ("tokens", "outputs", "headlines"))
    except (AttributeError, TypeError, ValueError, RecursionError):
        return seen
    of_text = all(isinstance(one, str) for one in (*tokens, *headlines))
    if not of_text or not all(type(one) is int and 0 <= one < len(tokens) for one in outputs):
        return seen
    follows = len(headlines) == len(outputs) and headlines[-1:] == (said,)
    return Seen(said, seen.picture, title, tokens, outputs, headlines if follows else ())


def _begin(page: Path) -> str:
    """The beginning of a page; empty if it cannot be read."""
    try:
        with open_to_read(page) as file:
            return file.read(_START).decode(errors="replace")
    except OSError:
        return ""


def texts_of(pages: Iterable[tuple[str, Seen]]) -> list[Document]:
    """Every text that pages map, once, with the pages that do, and those of their sentences that go with its tokens."""
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
