"""The page of an analysis: whole, escaped, closed to other scripts, and equal for equal contents."""

import base64
import hashlib
import json
import re
from html import unescape
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure as Drawing

from diffeqformer.errors import RunFailed
from diffeqformer.report.figures import BOTH, RISING, style
from diffeqformer.report.page import Animation, Cloud, Figure, TokenMap, visible, write
from diffeqformer.report.table import Table

HOSTILE = "</script><script>alert(1)</script><b onclick='x'>&amp;\u202e\x00\u2028"


def example(word: str = "cat") -> dict[str, Any]:
    """A page with one of everything."""
    with style():
        drawing = Drawing(figsize=(4, 3), layout="constrained")
        axes = drawing.subplots()
        axes.plot([0, 1], [1, 0])
        axes.imshow(np.eye(3), extent=(0, 1, 0, 1))
    scores = np.array([[0.5, 0.25, np.nan], [-1.0, np.inf, 2.0]])
    return {
        "title": f"title {word}",
        "findings": (f"found {word}",),
        "figures": (Figure("curve", f"caption {word}", drawing),),
        "tables": (Table(f"table {word}", ("name", "value", "note"), ((word, "−1.5", word), ("b", "2", ""))),),
        "maps": (
            TokenMap(("the", word, visible(" sat\n")), (1, 2), {f"m {word}": scores}, {f"m {word}": f"line {word}"}),
        ),
        "animations": (
            Animation(f"moving {word}", (Cloud(word, np.zeros((3, 2, 3)), (0, -1)),), np.arange(3), "time"),
        ),
    }


def scripts(page: str) -> list[tuple[str, str]]:
    """(type, text) of every script that a browser finds."""

    class Parser(HTMLParser):
        found: list[tuple[str, str]] = []
        kind: str | None = None

        def handle_starttag(self, tag, attrs):
            self.kind = (dict(attrs).get("type") or "") if tag == "script" else None

        def handle_data(self, data):
            if self.kind is not None:
                self.found.append((self.kind, data))

        def handle_endtag(self, tag):
            self.kind = None

    parser = Parser()
    parser.found = []
    parser.feed(page)
    return parser.found


def test_every_file_is_written_and_numbers_come_back(tmp_path):
    arrays = {"a": np.arange(3), "z": np.array([1 + 2j])}
    written = write(tmp_path / "new" / "demo", "demo", **example(), arrays=arrays)
    assert written == tmp_path / "new" / "demo" / "index.html"
    assert {p.name for p in written.parent.iterdir()} == {"index.html", "demo.npz", "curve.png", "curve.svg"}
    with np.load(written.with_name("demo.npz")) as back:
        assert {*back} == {"a", "z"}
        np.testing.assert_array_equal(back["z"], arrays["z"])
    assert written.with_name("curve.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in written.with_name("curve.svg").read_bytes()


def test_equal_contents_give_equal_bytes(tmp_path):
    first, second = (write(tmp_path / name, "demo", **example(), arrays={"a": np.arange(3)}).parent for name in "ab")
    for path in first.iterdir():
        assert path.read_bytes() == (second / path.name).read_bytes(), path.name


def test_text_cannot_become_markup(tmp_path):
    page = write(tmp_path, "demo", **example(HOSTILE), arrays={}).read_text()
    found = scripts(page)
    assert [kind for kind, _ in found] == ["application/json", "application/json", ""]
    assert "alert(1)" not in found[-1][1]
    assert "<b onclick" not in page and "<script>alert" not in page
    data = json.loads(found[0][1])
    assert data["tokens"][1] == "</script><script>alert(1)</script><b onclick='x'>&amp;\ufffd␀\u2028"
    assert data["methods"][0]["scores"] == [[0.5, 0.25], [-1.0, None, 2.0]]
    assert not any(control in page for control in "\u202e\x00")


def test_only_the_pages_own_script_may_run_and_nothing_is_fetched(tmp_path):
    page = write(tmp_path, "demo", **example(), arrays={}).read_text()
    digest = base64.b64encode(hashlib.sha256(scripts(page)[-1][1].encode()).digest()).decode()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', unescape(page))
    assert policy and policy[1].startswith("default-src 'none';") and f"script-src 'sha256-{digest}'" in policy[1]
    addresses = re.findall(r"""(?:src|href|srcset|action)\s*=\s*["']([^"']*)["']""", page)
    assert all(a.startswith(("data:", "#")) for a in addresses)
    assert not re.search(r"url\((?!#)", page)


def test_without_maps_there_is_no_script(tmp_path):
    page = write(tmp_path, "demo", "t", ("s",)).read_text()
    assert not scripts(page) and "script-src 'none'" in unescape(page)


def test_a_table_aligns_numbers(tmp_path):
    page = write(tmp_path, "demo", **example(), arrays={}).read_text()
    assert '<th scope="col" class="number">value</th><th scope="col">note</th>' in page


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"methods": {"m": np.zeros((2, 3))}, "descriptions": {"m": ""}}, "must be"),
        ({"outputs": (3,)}, "not all positions"),
        ({"descriptions": {}}, "one line for each method"),
        ({"headlines": ("a", "b")}, "a headline and a caption for each output"),
    ],
)
def test_a_map_that_contradicts_itself_is_refused(tmp_path, change, said):
    right = {"tokens": ("a", "b"), "outputs": (0,), "methods": {"m": np.zeros((1, 2))}, "descriptions": {"m": ""}}
    with pytest.raises(ValueError, match=said):
        write(tmp_path / "new", "demo", "t", (), maps=(TokenMap(**(right | change)),))
    assert not (tmp_path / "new").exists()


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFailed, match="cannot be written"):
        write(tmp_path / "file", "demo", "t", ())


def test_spaces_are_visible():
    assert [visible(piece) for piece in (" a", "\n", "\t", "")] == ["·a", "⏎", "⇥", "∅"]


def test_a_map_in_a_notebook_has_the_pages_colours():
    """Zero in the middle of a signed scale, the output's own score left out of it, unseen tokens without a colour."""
    scores = np.array([[0.5, -1.0, 9.0, np.nan]])
    found = TokenMap(("a", "<b>", "c", "d"), (2,), {"m": scores}, {"m": "what"}, signed=("m",)).to_html()
    shades = re.findall(r'<span style="([^"]*)" title="([^"]*)">([^<]*)</span>', found)
    assert [piece for *_, piece in shades] == ["a", "&lt;b&gt;", "c", "d"]
    assert [look.split(";")[0] for look, *_ in shades[1:]] == [
        f"background:{BOTH[0]}",
        f"background:{BOTH[-1]}",
        "opacity:.5",
    ]
    assert "#ffffff" in shades[1][0] and "<p>m, output at token 2: what</p>" in found


def test_logarithms_of_both_signs_run_from_light_to_dark():
    scores = np.array([[0.5, -1.0, 9.0, np.nan]])
    found = TokenMap(("a", "b", "c", "d"), (2,), {"m": scores}, {"m": "what"}).to_html()
    assert re.findall(r"background:(#\w+)", found) == [RISING[-1], RISING[0], RISING[-1]]
