"""A page in a headless Chromium: a click on a token changes the map. CHROMIUM names the browser if need be."""

import json
import re
import subprocess
from html import unescape
from pathlib import Path

import numpy as np
import pytest

from diffeqformer.analysis.tables import scores_table
from diffeqformer.report.contents import write_contents
from diffeqformer.report.page import Animation, Cloud, TokenMap, both_widths, write
from diffeqformer.report.table import Table
from diffeqformer.studies.attribution_figures import occluded
from tests.browser.driver import FLAGS, browser

pytestmark = pytest.mark.browser
TOKENS = ("The", "·cat", "·sat", "·down", "⏎")
SCORES = np.array([[0.1, 0.9, np.nan, np.nan, np.nan], [0.3, 0.2, 0.1, 0.7, np.nan], [0.0, 0.5, 0.25, 0.1, 1.0]])
SIGNED = np.where(np.isnan(SCORES), np.nan, SCORES - 0.4)
SEEN = """
    const seen = (what) => ({ what,
      colours: [...document.querySelectorAll(".tokens button")].map((b) => getComputedStyle(b).backgroundColor),
      pressed: [...document.querySelectorAll(".tokens button")].findIndex((b) => b.ariaPressed === "true"),
      low: document.querySelector(".low").textContent, high: document.querySelector(".high").textContent,
      about: document.querySelector(".scale .output").textContent,
      headline: document.querySelector(".headline").textContent,
      table: [...document.querySelectorAll("h2.caption, table.plain tbody tr")].map((one) => one.textContent),
      reading: document.querySelector(".reading").textContent, says: document.querySelector(".description").textContent,
      behind: document.querySelectorAll(".tokens .behind").length,
      picture: document.querySelector(".matrix canvas").toDataURL(),
      hash: location.hash, another: !document.querySelector(".another").hidden,
      faded: getComputedStyle(document.querySelector("figure:has(.another) .wide")).opacity,
      moved: document.querySelector(".clouds canvas")?.toDataURL(), time: document.querySelector("output").textContent,
      sideways: document.documentElement.scrollWidth - document.documentElement.clientWidth });
    const all = [seen("start")];
    const buttons = [...document.querySelectorAll(".tokens button")];
    const press = (key) => document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
    const set = (name, value, event) => {
      const element = document.querySelector(name);
      element.value = value;
      element.dispatchEvent(new Event(event));
    };
    buttons[1].click(); all.push(seen("click"));
    buttons[0].dispatchEvent(new PointerEvent("pointerover", { bubbles: true })); all.push(seen("hover"));
    buttons[2].click(); all.push(seen("not analysed"));
    buttons[1].focus(); press("End"); press("ArrowLeft"); document.activeElement.click(); all.push(seen("keys"));
    set(".span", "all", "change"); all.push(seen("all outputs"));
    set(".method", "1", "change"); all.push(seen("signed"));
    document.querySelector(".strip button").click(); all.push(seen("named"));
    set(".time", "2", "input"); all.push(seen("wound"));
    const tap = (button) => {
      for (const type of ["pointerdown", "pointerover", "pointerleave"]) {
        button.dispatchEvent(new PointerEvent(type, { bubbles: true, pointerType: "touch" }));
      }
      button.click();
    };
    tap(buttons[1]); all.push(seen("tapped")); tap(buttons[1]); all.push(seen("tapped again"));
    const textContent = JSON.stringify(all);
    document.body.append(Object.assign(document.createElement("pre"), { id: "seen", textContent }));
"""


def dump(path: Path, folder: Path, width: int, place: str = "") -> str:
    """The page as the browser has it once its scripts have run."""
    command = [browser(), *FLAGS, f"--user-data-dir={folder / 'profile'}", f"--window-size={width},900",
               "--virtual-time-budget=1000", "--dump-dom", path.as_uri() + place]  # fmt: skip
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout


@pytest.fixture
def page(tmp_path):
    says = {"attention": "How much is looked at.", "gradient": "Which way it pulls."}
    methods = {"attention": SCORES, "gradient": SIGNED}
    headlines, captions = (tuple(f"{said} {output}" for output in (1, 3, 4)) for said in ("explained", "scores of"))
    token_map = TokenMap(TOKENS, (1, 3, 4), methods, says, headlines, captions, signed=("gradient",))
    table = Table(captions[-1], ("input", "attention"), [("as Python has it", "0")])
    path = np.random.default_rng(0).normal(size=(5, 6, 3))
    cloud = Animation("Points.", (Cloud("f", path, (0, 1, 2, 3, -1, -1)),), np.arange(5), "time")
    drawn = both_widths("bars", "Of token 4.", occluded, TOKENS, SCORES[2], output=4)
    return write(
        tmp_path / "page", "demo", "t", headlines[-1:],
        maps=(token_map,), tables=(table,), animations=(cloud,), figures=(drawn,),
    )  # fmt: skip


@pytest.mark.parametrize("width", [1280, 500])  # a headless window is not narrower
def test_a_click_changes_the_map(page, tmp_path, width):
    text = re.sub(r"<meta http-equiv=.Content-Security-Policy.[^>]*>", "", page.read_text())  # so that the test may act
    acting = tmp_path / "acting.html"
    acting.write_text(text.replace("</body>", f"<script>{{{SEEN}}}</script></body>"))
    found = re.search(r'<pre id="seen">(.*?)</pre>', dump(acting, tmp_path, width), re.DOTALL)
    assert found, "the script of the test did not come to its end"
    start, click, hover, other, keys, every, signed, named, wound, tapped, again = json.loads(unescape(found[1]))
    colours = start["colours"]
    assert (start["pressed"], start["behind"], start["low"], start["high"]) == (
        4,
        0,
        "0.0000",
        "0.5000",
    )  # without itself
    assert "its own token, 1.0000, is beyond the scale" in start["about"]
    light = [sum(map(int, re.findall(r"\d+", c)[:3])) for c in colours]
    assert light[4] == min(light) < 250 and light[0] == max(light) > 600  # the highest is the darkest

    assert (click["pressed"], click["behind"], click["low"], click["high"]) == (1, 3, "0.1000", "0.1000")
    assert click["colours"] != colours and click["colours"][1] == colours[4]
    assert click["picture"] != start["picture"]
    assert (start["headline"], start["table"]) == ("explained 4", ["scores of 4", "as Python has it0"])
    assert (click["headline"], click["table"]) == ("explained 1", ["scores of 1", "0 The0.1000", "1 ·cat0.9000"])
    # A figure of the last output alone says so while another is chosen.
    assert [(one["another"], one["faded"]) for one in (start, click)] == [(False, "1"), (True, "0.3")]
    assert (start["hash"], click["hash"]) == ("", "#token=1")
    assert "Output at token 1 ·cat, input token 0 The: 0.1000 (rank 2 of 2)." in hover["reading"]
    assert "gradient: −0.3000" in hover["reading"] and hover["picture"] != click["picture"]
    assert "it, or it was not scored. Its own output was not analysed" in other["reading"] and other["pressed"] == 1

    assert (keys["pressed"], keys["low"], keys["high"]) == (3, "0.1000", "0.3000")
    assert (every["low"], every["high"]) == ("0.0000", "0.5000") and every["colours"] != keys["colours"]
    assert (signed["low"], signed["high"], signed["says"]) == ("−0.4000", "0.4000", "Which way it pulls.")
    assert (named["says"], named["colours"]) == (every["says"], every["colours"])
    assert wound["time"] == "time 2" and wound["moved"] != signed["moved"]
    assert "input token 1 ·cat: 0.2000 (rank 3 of 4)." in tapped["reading"] and tapped["pressed"] == 3
    assert again["pressed"] == 1 and "input token 1 ·cat: 0.9000" in again["reading"]
    assert all(state["sideways"] <= 0 for state in (start, click, hover, other, keys, every, signed))


def test_the_page_as_it_is_runs_its_script_and_no_other(page, tmp_path):
    assert dump(page, tmp_path, 1280).count("background: rgb(") >= 5
    sent = dump(page, tmp_path, 1280, "#token=1")
    assert re.search(r'<p class="headline"[^>]*>explained 1</p>', sent) and "Output at token 1 <b>·cat</b>" in sent
    intruder = tmp_path / "intruder.html"
    intruder.write_text(page.read_text().replace("</body>", "<script>document.title = 'intruded'</script></body>"))
    assert "<title>t</title>" in dump(intruder, tmp_path, 1280)


def test_numbers_are_written_as_python_writes_them_in_the_table(tmp_path):
    scores = np.array([[-1234.56789, 0.00001, -0.000023, 0.05, 12.00004]])
    methods = {"m": np.concatenate([scores, scores]), "small": np.concatenate([scores, scores]) * 1e-6}
    one = TokenMap(TOKENS, (3, 4), methods, {"m": "what", "small": "what"}, ("a", "b"), ("first", "second"))
    tables = (scores_table("second", 4, {name: rows[1] for name, rows in methods.items()}, TOKENS),)
    page = write(tmp_path / "page", "demo", "t", ("b",), maps=(one,), tables=tables)
    rows = lambda text: re.findall(r'<td class="number">([^<]*)</td>', text)
    before, after = page.read_text(), dump(page, tmp_path, 1280, "#token=4")
    assert rows(before)[::2] == ["−1,234.5679", "0.0000", "0.0000", "0.0500", "12.0000"]
    assert rows(before)[1::2] == ["−0.00123", "0.00000", "0.00000", "0.00000", "0.00001"]
    assert rows(after) == rows(before)
    assert "m: −2.30e−5" in after


def test_the_way_back_keeps_the_token(tmp_path):
    page = write(tmp_path / "steps", "steps", "t", ("s",), home="../index.html")
    assert 'index.html#token=3">all pages' in dump(page, tmp_path, 1280, "#token=3")
    assert 'href="../index.html">all pages' in dump(page, tmp_path, 1280, "#table-2")


def test_a_token_chosen_in_the_page_of_all_is_the_one_of_its_sentences_and_links(page, tmp_path):
    index = write_contents(tmp_path, "run", {"page": "a demo"})
    sent = dump(index, tmp_path, 1280, "#token=1")
    assert '<p data-name="page">explained 1</p>' in sent and '<a href="#token=1" aria-current="true">·cat</a>' in sent
    assert 'page/index.html#token=1">t</a>' in sent
    assert '<p data-name="page">explained 4</p>' in dump(index, tmp_path, 1280)
