"""The page that links a run's pages: those that are there, in their own words, which can do nothing."""

import os
from html import unescape
from types import SimpleNamespace

import numpy as np
import pytest

from diffeqformer.report.contents import look, write_contents
from diffeqformer.report.page import TokenMap, write
from diffeqformer.studies import run_report
from diffeqformer.studies.all import write_index

KNOWN = {
    "spectra": "eigenvalues",
    "steps": "what each step does",
    "depth": "at several depths",
    "clusters": "gathering",
}


def test_pages_that_are_there_are_linked_with_their_headlines(tmp_path):
    write(
        tmp_path / "analysis" / "steps",
        "steps",
        "Steps",
        ("One `step` <b>does</b> it & all.", "more"),
        home="../index.html",
    )
    (tmp_path / "analysis" / "clusters").mkdir()
    (tmp_path / "analysis" / "clusters" / "index.html").write_text(
        "<p>no headline, and cut \udcff", errors="surrogateescape"
    )
    (tmp_path / "analysis" / "depth").mkdir()
    os.mkfifo(tmp_path / "analysis" / "depth" / "index.html")
    (tmp_path / "report.html").write_text(
        '<p class="headline">Of <script>alert(1)</script> &lt;img src=x&gt; models</p>'
    )
    page = write_contents(tmp_path / "analysis", "run: all pages", KNOWN).read_text()
    links = [part.split('"')[0] for part in page.split('<a href="')[1:]]
    assert links == ["steps/index.html", "clusters/index.html", "../report.html"]
    assert "One step &lt;b&gt;does&lt;/b&gt; it &amp; all." in page and "what each step does" not in page
    assert ">Steps</a>" in page and ">clusters</a>" in page and "clusters: gathering" in page  # a page without a title
    assert page.count("<script") == 1 and "<img" not in page and "script-src 'sha256-" in unescape(page)
    steps = (tmp_path / "analysis" / "steps" / "index.html").read_text()
    assert '<a class="home" href="../index.html">' in steps and "One <code>step</code> &lt;b&gt;" in steps
    assert "Depth, step" in steps and "Logit lens" not in steps and "`" not in steps.split("<body>")[1]


def test_the_report_is_linked_before_there_is_any_analysis(tmp_path):
    (tmp_path / "report.html").write_text('<p class="headline">Of two models</p>')
    page = write_contents(tmp_path / "run" / "analysis", "run: all pages", KNOWN).read_text()
    assert '<a href="../../report.html">' in page and "No analysis of it has been run yet." in page


def mapped(folder, name, tokens=("a", "<b>", "⏎"), outputs=(1, 2), said=("of one", "of two")):
    """A page that maps a text."""
    scores = {"method": np.zeros((len(outputs), len(tokens)))}
    one = TokenMap(tokens, outputs, scores, {"method": "What it is."}, said)
    return write(folder / name, name, name, (said[-1] if said else "found", "more"), maps=(one,))


def test_a_text_stands_once_with_the_sentences_about_its_tokens(tmp_path):
    mapped(tmp_path, "spectra")
    mapped(tmp_path, "steps", outputs=(0, 2), said=())
    mapped(tmp_path, "depth", tokens=("another", "text", "."))
    text = write_contents(tmp_path, "run", KNOWN, {"clusters": "why <not>", "steps": "as it was"}, "do it").read_text()
    assert (
        text.count('<section class="text">') == 2 and "Underlined tokens can be chosen: spectra and steps open" in text
    )
    assert text.index('<p class="headline">of two</p>') < text.index("What 3 analyses say")  # of the page of depth
    first = text.split('<section class="text">')[1]
    assert '{"spectra": {"1": "of one", "2": "of two"}}' in unescape(first)
    assert all(f'<a href="#token={i}">{token}</a>' in first for i, token in enumerate(("a", "&lt;b&gt;", "⏎")))
    assert "<span>another</span>" in text
    assert "<b>clusters</b> cannot be made of this run: why &lt;not&gt;" in text and "<b>steps</b>" not in text


def test_what_is_absent_is_told_with_the_command_that_makes_it(tmp_path):
    mapped(tmp_path, "spectra")
    text = write_contents(tmp_path, "run", KNOWN, make="diffeqformer analyze all r").read_text()
    assert "Not made yet: steps, depth, clusters. <code>diffeqformer analyze all r</code> makes all of them." in text
    assert "<code>diffeqformer explore r</code>" in text
    spaced = unescape(write_index(tmp_path, "my runs/r").read_text())  # a command is there to be copied
    assert all(f"<code>diffeqformer {words} 'my runs/r'</code>" in spaced for words in ("analyze all", "explore"))
    bare = write_contents(tmp_path, "run", KNOWN).read_text()
    assert "Not made yet" not in bare and "diffeqformer explore" not in bare
    write_contents(tmp_path, "run", KNOWN, {"steps": "a <b> & c", "depth": "why"})  # by `analyze all`
    mapped(tmp_path, "depth")  # and a single analysis later
    later = write_contents(tmp_path, "run", KNOWN, {"clusters": "no"}, make="do it").read_text()
    assert "<b>steps</b> cannot be made of this run: a &lt;b&gt; &amp; c</p>" in later and "<b>clusters</b>" in later
    assert "<b>depth</b>" not in later and "Not made yet" not in later


def test_comparisons_are_linked_and_the_pages_that_follow_a_token_named(tmp_path):
    mapped(tmp_path, "spectra")
    mapped(tmp_path, "steps", outputs=(0, 2), said=())
    write(tmp_path / "depth", "depth", "Depth", ("no text",))
    write(tmp_path / "compare-gpt", "compare", "Two runs", ("One is better.",))
    text = write_contents(tmp_path, "run", KNOWN).read_text()
    assert 'href="compare-gpt/index.html">Two runs</a>' in text and "One is better." in text
    assert "Underlined tokens can be chosen: spectra and steps open at that token" in text


@pytest.mark.parametrize(
    "shown",
    ["{", "[1]", "7", '{"tokens": 3}', '{"tokens": [1], "outputs": [0]}', '{"tokens": ["a"], "outputs": [1]}',
     '{"tokens": ["a"], "outputs": [true]}', '{"tokens": ["a"], "outputs": ["0"]}', "[" * 100_000],
)  # fmt: skip
def test_a_damaged_map_is_no_text(tmp_path, shown):
    page = mapped(tmp_path, "spectra")
    begin, rest = page.read_text().split('<script type="application/json">', 1)
    page.write_text(f'{begin}<script type="application/json">{shown}</script>{rest.split("</script>", 1)[1]}')
    seen = look(page)
    assert seen is not None and (seen.headline, seen.tokens) == ("of two", ())


@pytest.mark.parametrize("copied", [False, True])
def test_a_comparison_that_was_moved_or_copied_is_linked_where_it_is(tmp_path, monkeypatch, copied):
    monkeypatch.setattr(run_report, "run_report", lambda results, inside: SimpleNamespace(page=lambda: repr(inside)))
    (tmp_path / "new/gpt").mkdir(parents=True)
    (tmp_path / "new/gpt/config.yaml").write_text("")
    if copied:
        (tmp_path / "old/gpt").mkdir(parents=True)
        (tmp_path / "old/gpt/config.yaml").write_text("")
    results = {"models": [{"config": {"run": str(tmp_path / "old/gpt")}}]}
    run_report.write_linked_report(results, tmp_path / "new/report.html")
    assert "'gpt/analysis/index.html'" in (tmp_path / "new/report.html").read_text()
    assert (tmp_path / "new/gpt/analysis/index.html").is_file()
    assert [path.name for path in tmp_path.glob("old/gpt/*")] == ["config.yaml"] * copied
