"""The page that links all pages of a run."""

import re
from collections.abc import Mapping
from html import unescape
from pathlib import Path

from diffeqformer.report.page import from_template
from diffeqformer.store.files import write_output
from diffeqformer.store.regular import open_to_read

_HEADLINE = re.compile(r'<p class="headline">(.*?)</p>', re.DOTALL)
_START = 1 << 17
"""Bytes of a page in which its headline stands."""


def write_contents(folder: Path, title: str, known: Mapping[str, str]) -> Path:
    """Write `index.html` beside the folders of a run's analyses, with the headline of each; returns its path.

    **Arguments:** `folder`, which holds them; `title` of the page; `known` analyses and what each does, in order.

    **Raises:** `RunFailed` if it cannot be written.
    """
    pages = [(name, about, f"{name}/index.html") for name, about in known.items()]
    pages += [("report", "the report of training", f"{up}report.html") for up in ("../", "../../")]
    entries = [
        {"name": name, "about": about, "address": address, "headline": headline}
        for name, about, address in pages
        if (headline := headline_of(folder / address)) is not None
    ]
    values = {"title": title, "name": "contents", "findings": (), "entries": entries}
    text = from_template("contents.html", scripts=("contents.js",), **values)
    write_output(folder / "index.html", text.encode(), "analysis file")
    return folder / "index.html"


def headline_of(page: Path) -> str | None:
    """The first sentence of a page; nothing if it has none, `None` if there is no page."""
    try:
        with open_to_read(page) as file:
            found = _HEADLINE.search(file.read(_START).decode(errors="replace"))
    except OSError:
        return None
    return unescape(re.sub(r"<[^>]*>", "", found[1])) if found else ""
