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
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure as Drawing

from diffeqformer.errors import RunFailed
from diffeqformer.report.figures import BOTH, ON_PAPER, RISING, SIGNED, VERDICTS, style, svg
from diffeqformer.report.page import Animation, Cloud, Figure, TokenMap, code, render, visible, write
from diffeqformer.report.table import Table
from diffeqformer.report.terms import TERMS, terms_of

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


def test_backticks_of_a_token_are_no_markup_and_the_sentence_that_follows_the_map_is_marked():
    said = "After token 3, “`”, the model expects “`x”, says `--tuned` of `a“b`."
    assert code(said) == (
        'After token 3, “`”, the model expects “`x”, says <code><span class="option">--tuned</span></code> of '
        "<code>a“b</code>."
    )
    one = TokenMap(("`",), (0,), {"m": np.zeros((1, 1))}, {"m": "line"}, (said,))
    assert f'<p class="headline" data-said="{said}">' in render("demo", "t", (said, "more"), maps=(one,))


def test_without_maps_there_is_no_script(tmp_path):
    page = write(tmp_path, "demo", "t", ("s",)).read_text()
    assert not scripts(page) and "script-src 'none'" in unescape(page)


def test_a_table_aligns_numbers(tmp_path):
    page = write(tmp_path, "demo", **example(), arrays={}).read_text()
    assert '<th scope="col" class="number">value</th><th scope="col">note</th>' in page


def test_a_captions_first_line_is_its_title_and_the_rest_a_note(tmp_path):
    table = Table("Claims of `--to`\nThe paper: 95 % <b>\nMissing: --other FILES", ("a",), [("5 % of b",)])
    page = write(tmp_path, "demo", "t", ("s",), tables=(table,)).read_text()
    option = '<span class="option">{}</span>'.format
    assert f">Claims of <code>{option('--to')}</code></h2>" in page
    notes = re.findall(r'<p class="note under">(.*?)</p>', page)
    assert notes == ["The paper: 95\u00a0% &lt;b&gt;", f"Missing: {option('--other')} FILES"]
    assert 'aria-label="Claims of --to"' in page and "5\u00a0% of b" in page


def test_the_words_of_a_page_are_explained_and_no_others(tmp_path):
    said = lambda *findings: re.findall("<dt>(.*?)</dt>", write(tmp_path, "demo", "t", findings).read_text())
    assert said("A sentence.") == []
    assert said("By occlusion a table of knots has perplexity 3.") == ["Occlusion", "Knots", "Perplexity"]
    assert said("Run `diffeqformer analyze depth`.") == []  # a command is no prose
    assert said("<!-- glossary --> d_emb") == ["d_emb"]


@pytest.mark.parametrize("term", TERMS, ids=lambda term: term.name)
def test_a_term_is_found_by_its_own_name(term):
    words = [re.split(" … |, ", term.name)[0]] if term.name[0].isalpha() else ["⏎"]
    assert all(term in terms_of(f"<p>x {word} y</p><th>{word.split()[0].lower()}</th>") for word in words)


def test_colours_of_a_figure_have_the_contrast_of_text_on_either_paper():
    linear = lambda part: part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
    light = lambda shade: sum(w * linear(c) for w, c in zip((0.2126, 0.7152, 0.0722), to_rgb(shade), strict=True))
    contrast = lambda a, b: (max(light(a), light(b)) + 0.05) / (min(light(a), light(b)) + 0.05)
    for on_light, on_dark in ON_PAPER.values():
        assert contrast(on_light, "#ffffff") >= 4.5 and contrast(on_dark, "#14171b") >= 4.5
    with style():
        drawing = Drawing(figsize=(2, 2))
        drawing.subplots().plot([0, 1], color=VERDICTS["untested"])
    assert "stroke: #6b7280; stroke: light-dark(#6b7280, #8f99a5)" in svg(drawing, "p", "label")


def test_a_page_that_another_links_keeps_the_token_by_its_own_script_alone(tmp_path):
    page = write(tmp_path, "demo", "t", ("s",), home="../index.html").read_text()
    ((_, script),) = scripts(page)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert "a.home" in script and f"script-src 'sha256-{digest}'" in unescape(page)
    assert "All numbers are in" not in page  # where there are none


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


@pytest.mark.parametrize(
    ("row", "own", "signed", "colours"),
    [
        ([0.0, 0.0, 0.5], 2, True, ["middle", "middle", BOTH[-1]]),
        ([0.0, 0.0, 0.0], 2, False, [RISING[0]] * 3),
        ([0.7], 0, False, [RISING[0]]),
        ([-0.7], 0, True, [BOTH[0]]),
    ],
)
def test_scores_that_are_all_alike_have_the_middle_colour_or_the_lightest(row, own, signed, colours):
    tokens, by = tuple("abc"[: len(row)]), ("m",) if signed else ()
    found = TokenMap(tokens, (own,), {"m": np.array([row])}, {"m": "what"}, signed=by).to_html()
    middle = to_hex(SIGNED(0.5))
    assert re.findall(r"background:(#\w+)", found) == [middle if one == "middle" else one for one in colours]


def test_logarithms_of_both_signs_run_from_light_to_dark():
    scores = np.array([[0.5, -1.0, 9.0, np.nan]])
    found = TokenMap(("a", "b", "c", "d"), (2,), {"m": scores}, {"m": "what"}).to_html()
    assert re.findall(r"background:(#\w+)", found) == [RISING[-1], RISING[0], RISING[-1]]
