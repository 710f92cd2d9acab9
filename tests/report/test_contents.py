"""The page that links a run's pages: those that are there, in their own words, which can do nothing."""

import os
from html import unescape

from diffeqformer.report.contents import write_contents
from diffeqformer.report.page import write

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
    assert "One step &lt;b&gt;does&lt;/b&gt; it &amp; all." in page and "what each step does" in page
    assert page.count("<script") == 1 and "<img" not in page and "script-src 'sha256-" in unescape(page)
    steps = (tmp_path / "analysis" / "steps" / "index.html").read_text()
    assert '<a class="home" href="../index.html">' in steps and "One <code>step</code> &lt;b&gt;" in steps
    assert "Logit lens" in steps and "`" not in steps.split("<body>")[1]
