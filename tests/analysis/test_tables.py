"""Every result shows itself in a notebook: a whole table, its numbers in it, and no text that became markup."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from diffeqformer.analysis.attribution import Attributions
from diffeqformer.analysis.clusters import Simulation
from diffeqformer.analysis.end_to_end import EndToEnd
from diffeqformer.analysis.faithfulness import METHODS, Faithfulness
from diffeqformer.analysis.gathering import HiddenStates, measure
from diffeqformer.analysis.inference import INFERENCE, Correlation, Induction
from diffeqformer.analysis.lyapunov import Pairwise
from diffeqformer.analysis.spectra import Spectra, Spectrum
from diffeqformer.analysis.tables import MOST_ROWS, decimals, scores_table
from diffeqformer.report.table import Table
from diffeqformer.report.text import number

HOSTILE = "</table><script>alert('1')</script>&amp;\""
ALLOWED = {"table", "caption", "thead", "tbody", "tr", "th", "td"}
SAFE = {("scope", "col"), ("scope", "row"), ("class", "number"), ("class", "plain")}


def cells(html: str) -> list[list[str]]:
    """The rows of a table, its caption first, as a browser reads them; fails for any tag that has no place there."""

    class Reader(HTMLParser):
        rows: list[list[str]] = []
        open: list[str] = []

        def handle_starttag(self, tag, attrs):
            assert tag in ALLOWED and set(attrs) <= SAFE, (tag, attrs)
            self.open.append(tag)
            if tag in ("caption", "tr"):
                self.rows.append([])
            if tag in ("caption", "th", "td"):
                self.rows[-1].append("")

        def handle_endtag(self, tag):
            assert self.open.pop() == tag

        def handle_data(self, data):
            self.rows[-1][-1] += data

    reader = Reader()
    reader.rows, reader.open = [], []
    reader.feed(html)
    assert not reader.open
    return reader.rows


def results():
    """One of each, made of a few numbers."""
    draw = np.random.default_rng(0)
    upper = np.where(np.arange(3)[None] <= np.array([[1], [2]]), draw.normal(size=(2, 3)), np.nan)
    spectrum = Spectrum(draw.normal(size=(2, 1, 3)).astype(complex), np.ones((2, 1, 3)))
    heads = {name: draw.random((2, 2)) for name in ("prefix matching", "copying")}
    points = draw.normal(size=(2, 1, 4, 3))
    shape = (3, len(METHODS))
    curves = np.zeros((*shape, 2))
    return {
        "spectra": Spectra(np.array([0.0, 1.0]), *2 * [np.ones(2, bool)], True, np.array([0.0, 1.0]),
                           {HOSTILE: spectrum}),
        "induction": Induction(np.array([0.5, 1.0]), heads, heads, (Correlation(*INFERENCE, 0.5, (0.1, 0.9)),
                               Correlation(HOSTILE, HOSTILE, 0.0, (0.0, 0.0))), 0.1, 4.0, 1.0, 3.5, 4, 3, 2),
        "pairwise": Pairwise((1, 2), np.stack([upper, upper - 1], -1), upper, upper[..., None], 16, 1.0),
        "end-to-end": EndToEnd((1, 2), upper, abs(upper), upper[..., None]),
        "attributions": Attributions((1, 2), np.array([5, 6]), np.zeros(2), {HOSTILE: upper}, np.zeros(2)),
        "faithfulness": Faithfulness((*METHODS[:-1], HOSTILE), np.arange(3), np.array([1, 2]),
                                     draw.random(shape), draw.random(shape), curves, curves),
        "simulation": Simulation("sphere", 1, np.arange(2.0), points[:, 0], measure(points)),
        "hidden states": HiddenStates(np.arange(2.0), measure(points), np.ones((2, 1)), points[:, 0], np.ones(3)),
    }  # fmt: skip


COLOURED = {"pairwise": "leading", "end-to-end": "growth"}


@pytest.mark.parametrize("name", results())
def test_a_result_is_a_whole_table_with_its_numbers(name):
    found = results()[name]
    rows = cells(found._repr_html_())
    assert len({len(row) for row in rows[1:]}) == 1 and len(rows) > 2
    text = [cell for row in rows for cell in row]
    if name in ("spectra", "induction", "attributions", "faithfulness"):
        assert any(HOSTILE in cell for cell in text)
    known = {
        "spectra": lambda f: f"{f.pairs[HOSTILE].radius[0].mean():.3g}",
        "induction": lambda f: "+0.10 to +0.90",
        "pairwise": lambda f: number(f.leading[-1, 2], 4),
        "end-to-end": lambda f: number(f.growth[-1, 0], 4),
        "attributions": lambda f: number(f.scores[HOSTILE][-1, 1], 4),
        "faithfulness": lambda f: str(f.estimates("direction")["occlusion"]),
        "simulation": lambda f: f"{f.measures.energy[-1].mean():.4g}",
        "hidden states": lambda f: f"{f.measures.distance[0].mean():.4g}",
    }
    assert known[name](found) in text


@pytest.mark.parametrize("name", results())
def test_in_a_terminal_a_result_is_the_shapes_of_its_arrays(name):
    found = repr(results()[name])
    assert found.startswith(type(results()[name]).__name__ + "(")
    assert "array(" not in found and re.search(r"f64\[[\d,]+\]", found)


@pytest.mark.parametrize("name", ["pairwise", "end-to-end", "attributions"])
def test_a_text_whose_tokens_are_known_is_shown_in_the_colours_of_its_scores(name):
    found = results()[name]
    bare, shown = (one._repr_html_() for one in (found, replace(found, tokens=("a b", HOSTILE, "c"))))
    assert "background" not in bare
    assert "<script" not in shown
    text, table = shown.split("<table", 1)
    places = [row[0] for row in cells("<table" + table)[2:]]
    assert places[0] == "0 a·b" and len(places) == 3
    coloured = re.findall(r'background:(#[0-9a-f]{6}).*?title="(.*?)"', text)
    row = next(iter(found.scores.values()) if name == "attributions" else iter([found.arrays()[COLOURED[name]]]))[-1]
    assert [float(score) for _, score in coloured] == pytest.approx(list(row), rel=1e-3)
    assert len({colour for colour, _ in coloured}) > 1


def test_of_a_long_text_the_highest_scores_are_shown_in_the_order_of_the_text():
    scores = np.arange(100.0)
    scores[7], scores[99] = 1000.0, np.nan
    rows = cells(scores_table("s", 99, {"a": scores}, most=MOST_ROWS).to_html())
    assert rows[0] == [f"s ({MOST_ROWS} of 100 inputs: the highest by a)"]
    places = [int(row[0]) for row in rows[2:]]
    assert places == [7, *range(99 - MOST_ROWS + 1, 99)]


def test_a_table_escapes_everything():
    html = Table(HOSTILE, (HOSTILE, "b"), [(HOSTILE, HOSTILE)]).to_html()
    assert "<script" not in html and cells(html) == [[HOSTILE], [HOSTILE, "b"], [HOSTILE, HOSTILE]]


@pytest.mark.parametrize(
    ("scores", "places"),
    [([1234.5, 0.1], 4), ([0.0123], 4), ([-0.00123, 1e-9], 5), ([4e-5, np.nan], 7), ([0.0], 4), ([np.nan], 4)],
)
def test_the_largest_score_of_a_column_has_at_least_three_digits(scores, places):
    assert decimals(np.array(scores)) == places
    if largest := np.nanmax(np.abs([*scores, 0.0])):
        assert abs(float(f"{largest:.{places}f}") / largest - 1) < 5e-3
