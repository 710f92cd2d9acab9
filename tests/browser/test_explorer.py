"""The explorer in a real browser: clicked through, by keyboard alone, at two widths, and against Python's numbers."""

import json
import threading

import numpy as np
import pytest

from diffeqformer.explorer import portable
from diffeqformer.explorer.page import portable_page, served_page
from diffeqformer.explorer.server import serve
from tests.browser.driver import Browser
from tests.explorer.made import TEXT, run_of, session_of

pytestmark = pytest.mark.browser
SEEN = """
    const text = (id) => document.getElementById(id).textContent;
    const cells = [...document.querySelectorAll("#grid td[data-step]")];
    return { headline: text("headline"), status: text("status"), place: text("place"), changes: text("changes"),
      cells: cells.map((c) => [c.firstChild.textContent, c.querySelector("small").textContent]),
      chosen: cells.filter((c) => c.ariaSelected === "true").map((c) => [+c.dataset.step, +c.dataset.position]),
      top: [...document.querySelectorAll("#top li")].map((li) => [...li.children].map((c) => c.textContent)),
      focus: document.activeElement.id || document.activeElement.dataset.step,
      rows: document.querySelectorAll("#grid tbody tr").length,
      changed: document.querySelectorAll("#grid .changed").length, trained: text("trained"), swipe: text("swipe"),
      dots: document.querySelectorAll("#QK circle").length, strips: document.querySelectorAll("#heads rect").length,
      hash: location.hash, sideways: document.documentElement.scrollWidth - document.documentElement.clientWidth };
"""


CHOOSE = """
    const element = document.getElementById(arguments[0]);
    element.value = arguments[1];
    element.dispatchEvent(new Event("change"));
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    opened = Browser(tmp_path_factory.mktemp("browser"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def session():
    return session_of(run_of("diffeqformer"), run_of("vanilla"))


@pytest.fixture(scope="module")
def address(session):
    server, found = serve(served_page(session), session.answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield found
    server.shutdown()
    server.server_close()


def opened(browser, address, width=1280):
    browser.look(width)
    browser.open("about:blank")
    browser.open(address)
    browser.wait("document.body?.dataset.ready")
    return browser.run(SEEN)


def after(browser, act):
    """What is seen once the page has answered to what a person does."""
    before = browser.run("return document.body.dataset.ready")
    act()
    browser.wait(f"Number(document.body.dataset.ready) > {before}")
    return browser.run(SEEN)


def asked(session, **change):
    return {"run": 0, "text": TEXT, "steps": 3, "scheme": "euler", "rtol": None, **change}


def cells_of(found):
    return [
        [top, f"{p:.2f} · {kl:.2f}"]
        for rows in zip(found["top"], found["p"], found["kl"], strict=True)
        for top, p, kl in zip(*rows, strict=True)
    ]


def test_a_model_trained_with_a_tolerance_has_no_number_of_steps(browser, address):
    opened(browser, address, 1280)
    about = "{ trained: [], least: 1, most: 64, scheme: 'heun' }"
    of = lambda rtol: browser.run(f"return trainedAt({about}, {{ steps: 6, scheme: 'heun', rtol: {rtol} }})")
    assert of("0.01") == ["Trained with a tolerance, by which the solver chooses its own steps.", ""]
    assert of("null")[0].endswith("by which the solver chooses its own steps; these are others.")


@pytest.mark.parametrize("width", [1280, 390])
def test_a_turn_of_the_dial_shows_what_python_gives(browser, session, address, width):
    start = opened(browser, address, width)
    found = session.read(asked(session))
    assert start["cells"] == cells_of(found) and start["rows"] == 4 + 1
    assert found["top"][-1][-1] in start["headline"] and "at 3 steps" in start["headline"]
    assert start["headline"].startswith("Most likely next after") and start["trained"] == "Trained at 3 steps."
    last = len(found["tokens"]) - 1
    assert start["chosen"] == [[3, last]] and start["dots"] == 2 * 8 and start["strips"] == 2 * (last + 1)
    cell = session.cell(asked(session, step=3, position=last))
    assert [[name, p] for name, _, p in start["top"]] == [[name, f"{p:.3f}"] for name, p in cell["top"]]

    turned = after(browser, lambda: browser.run("dial.value = 9; dial.dispatchEvent(new Event('input'));"))
    assert turned["cells"] == cells_of(session.read(asked(session, steps=9))) and "steps=9" in turned["hash"]
    assert turned["trained"] == "Trained at 3 steps alone; other depths may mean little."
    assert browser.run("return [...document.getElementById('depths').children].map((option) => option.value)") == ["3"]
    assert turned["swipe"] == f"{last + 1} tokens: swipe or scroll sideways."
    clicked = after(browser, lambda: browser.click(f"#grid td[data-step='2'][data-position='{last}']"))
    assert clicked["chosen"] == [[2, last]] and "step 2 of 9" in clicked["place"]
    answer = "const box = document.getElementById('top').getBoundingClientRect();"
    browser.wait(f"(() => {{ {answer} return box.top >= 0 && box.bottom <= innerHeight; }})()")
    cell = session.cell(asked(session, steps=9, step=2, position=last))
    assert [name for name, *_ in clicked["top"]] == [name for name, _ in cell["top"]]

    compared = after(browser, lambda: browser.run("other.value = 1; other.dispatchEvent(new Event('change'));"))
    other = session.read({**asked(session), "run": 1, "scheme": "lie-trotter"})["top_ids"][-1]
    own = session.read(asked(session, steps=9))["top_ids"][-1]  # some are bytes, which all read alike
    number = sum(a != b for a, b in zip(own, other, strict=True))
    assert compared["changed"] == number > 0 and compared["changes"].startswith(f"{number} of {last + 1} predictions")
    again = opened(browser, f"{address}{compared['hash']}", width)
    assert {**again, "status": ""} == {**compared, "status": "", "focus": again["focus"]}
    assert all(state["sideways"] <= 0 for state in (start, turned, clicked, compared))
    assert not browser.complaints()


def test_a_number_of_tokens_below_1_is_refused(browser, address):
    opened(browser, address)
    browser.run("count.value = -3;")
    browser.click("#go")
    browser.wait("Number(document.getElementById('written').dataset.done ?? 0) === 1")
    said = browser.run("return document.getElementById('tally').textContent")
    assert said == "Tokens is -3, but must be at least 1."


def test_a_text_goes_on_is_explained_and_weights_are_wound(browser, session, address):
    opened(browser, address, 390)
    last = len(session.read(asked(session))["tokens"]) - 1
    done = "Number(document.getElementById('written').dataset.done ?? 0)"
    browser.run("draft.value = 1; draft.dispatchEvent(new Event('change')); count.value = 6;")
    browser.click("#go")
    browser.wait(f"{done} === 1")
    spans = "return [...document.querySelectorAll('#written [title]')].map((s) => [s.firstChild.data, s.className])"
    found, text = browser.run(spans), []
    for _ in range(6):
        question = asked(session, added=text, since=last + len(text))
        predicted = session.predict(question)
        assert found[len(text)][0] == predicted["pieces"][0]
        text.append(predicted["ids"][0])
    assert len(found) == 6 and {kind for _, kind in found} <= {"drafted", "replaced", "own"}
    drafts = sum(kind == "drafted" for _, kind in found)
    tally = "return document.getElementById('tally').textContent"
    assert f"Drafts at 1 step gave {drafts} of them" in browser.run(tally)
    assert not browser.run("return document.getElementById('kinds').hidden")
    for choice in (("exit", 1), ("draft", -1)):
        browser.run(CHOOSE, *choice)
    browser.click("#go")
    browser.wait(f"{done} === 2")
    numbers = browser.run("return [...document.querySelectorAll('#written small')].map((s) => s.textContent)")
    taken = [int(number) for number in numbers]
    assert min(taken) >= 1 and f"{np.mean(taken):.1f} steps on average" in browser.run(tally)

    kinds = (
        "const of = (id) => document.getElementById(id);"
        "return [of('kinds').hidden, of('written').textContent, of('tally').textContent.slice(0, 8)]"
    )
    assert browser.run(kinds)[:1] == [True]  # no drafts any more, and so no legend of them
    after(browser, lambda: browser.run("dial.value = 4; dial.dispatchEvent(new Event('input'));"))
    assert browser.run(kinds) == [True, "", "The most"]  # what went on by 3 steps is gone at 4
    after(browser, lambda: browser.run("dial.value = 3; dial.dispatchEvent(new Event('input'));"))

    choose = (
        "const o = document.getElementById('overlay'); o.value = 'occlusion'; o.dispatchEvent(new Event('change'));"
    )
    explained = after(browser, lambda: browser.run(choose))
    wanted = session.explain(asked(session, position=last, method="occlusion"))
    said = browser.run("return document.getElementById('explained').textContent")
    assert f"“{wanted['piece']}” (probability {wanted['p']:.2f})" in said and "rests by occlusion" in said
    shades = "return [...document.querySelectorAll('#grid thead th')].slice(1).map((th) => th.style.background)"
    assert all(browser.run(shades)) and "overlay=occlusion" in explained["hash"]

    after(browser, lambda: browser.click("#depth summary"))
    dots = "return ['QK', 'OV', 'FF'].map((n) => document.querySelectorAll(`#depth${n} circle:not(.past)`).length)"
    assert browser.run(dots) == [16, 16, 16]
    wound = after(browser, lambda: browser.run("time.value = 1; time.dispatchEvent(new Event('input'));"))
    assert (
        browser.run("return document.querySelectorAll('#depthFF .past').length") == 16
        and "time=0.6666" in wound["hash"]
    )
    assert wound["sideways"] <= 0 and not browser.complaints()


def test_a_token_chosen_in_another_page_is_the_one_it_opens_at(browser, session, address):
    assert opened(browser, f"{address}#token=2")["chosen"] == [[3, 2]]
    assert opened(browser, f"{address}#token=2&position=1&step=0")["chosen"] == [[0, 1]]


def test_eigenvalues_of_all_steps_have_one_scale(browser, session, address):
    most = session.reach(asked(session))
    ends = set()
    for step in (1, 2, 3):
        opened(browser, f"{address}#step={step}")
        ends.add(tuple(browser.run("return ['QK', 'OV'].map((n) => document.querySelector(`#${n} svg`).ariaLabel)")))
    (shown,) = ends
    for said, reach in zip(shown, most.values(), strict=True):
        assert reach <= float(said.split(" to ")[1]) <= 1.51 * reach


def test_a_long_text_has_more_shares_of_attention_than_a_call_has_arguments(browser, address):
    opened(browser, address)
    assert browser.run("return strips(Array(2).fill(Array(100000).fill(0.5))).length") == 4


def test_by_keyboard_alone(browser, session, address):
    start = opened(browser, address)
    browser.press("Tab")
    assert browser.run(SEEN)["focus"] == "text"
    browser.press("Tab", "Tab")
    assert browser.run(SEEN)["focus"] == "dial"
    turned = after(browser, lambda: browser.press("ArrowRight"))
    assert "at 4 steps" in turned["headline"] and turned["focus"] == "dial"
    for _ in range(12):
        browser.press("Tab")
        if browser.run("return document.activeElement.matches('#grid td')"):
            break
    moved = after(browser, lambda: browser.press("ArrowUp"))
    assert moved["chosen"] == [[3, start["chosen"][0][1]]] and moved["focus"] == "3"
    first = after(browser, lambda: browser.press("Home"))
    assert first["chosen"] == [[3, 0]]


def test_text_is_edited_and_mistakes_are_sentences(browser, session, address):
    opened(browser, address)
    edited = after(browser, lambda: browser.type("#text", " the"))
    browser.wait("document.getElementById('grid').rows[0].cells.length > 0")
    assert edited["status"].startswith("Computed")
    wrong = after(browser, lambda: browser.run("text.value = ''; text.dispatchEvent(new Event('input'));"))
    assert "the text is empty" in wrong["status"]
    assert all("400" in line for line in browser.complaints())
    right = after(browser, lambda: browser.run("text.value = 'the cat'; text.dispatchEvent(new Event('input'));"))
    assert right["cells"] == cells_of(session.read(asked(session, text="the cat")))


def test_views_are_exported(browser, session, address):
    opened(browser, address)
    browser.run("window.saved = []; URL.createObjectURL = (blob) => { saved.push(blob); return 'blob:none'; };"
                "HTMLAnchorElement.prototype.click = () => {}; picture.click(); data.click();")  # fmt: skip
    image, numbers = browser.run("return Promise.all(saved.map((blob) => blob.text()))")
    found = session.read(asked(session))
    assert image.startswith("<svg") and image.count("<rect") == 1 + 4 * len(found["tokens"])
    assert json.loads(numbers)["reading"] == json.loads(json.dumps(found))


@pytest.mark.parametrize(
    ("kind", "steps", "scheme"),
    [
        ("diffeqformer", 5, "rk4"),
        ("one mlp, strang", 4, "strang"),
        ("time, llama, nested norm", 4, "heun"),
        ("vanilla llama, grouped queries", 3, "lie-trotter"),
        ("wide heads, biases", 3, "lie-trotter"),
        ("macaron", 3, "macaron"),
        ("ode transformer", 3, "rk4"),
        ("knots, normalised", 5, "lie-trotter-middle"),
        ("knots, modulated", 3, "lie-trotter-middle"),
        ("knots, means over steps", 3, "strang"),
        ("knots, corrected", 3, "lie-trotter-middle"),
        ("knots, corrected", 5, "lie-trotter-middle"),
        ("knots, corrected, by two nodes", 3, "heun"),
        ("levels", 3, "lie-trotter-middle"),
        ("levels", 7, "lie-trotter-middle"),
        ("levels", 5, "heun"),
        ("time, llama, nested norm, macaron", 3, "macaron"),
        ("nested layers, corrected", 4, "residual"),
        ("layers left out", 2, "lie-trotter"),
        ("time, long first step", 4, "euler-middle"),
        ("shared", 2, "midpoint"),
    ],
)
def test_the_model_in_the_browser_is_pythons(browser, tmp_path, kind, steps, scheme):
    """Single precision on both sides; sums in another order."""
    compare(browser, tmp_path, run_of(kind), {"steps": steps, "scheme": scheme}, 1e-4)


def test_eigenvalues_of_a_matrix_of_equal_numbers_are_finite(browser, tmp_path):
    """Apart from one they are zero: what is left of the matrix is rounding of rounding, down to 1e-250."""
    page = tmp_path / "page.html"
    page.write_text(portable_page(session_of(run_of("shared"))))
    opened(browser, page.as_uri())
    found = browser.run("return eigenvalues(new Float64Array(256).fill(1), 16)")
    np.testing.assert_allclose(np.sort(np.hypot(*np.transpose(found))), [0] * 15 + [16], atol=1e-12)


def test_half_precision_moves_a_prediction_by_less_than_a_thousandth(browser, tmp_path, monkeypatch):
    monkeypatch.setattr(portable, "WHOLE_PARAMETERS", 0)
    compare(browser, tmp_path, run_of("diffeqformer"), {"steps": 6, "scheme": "euler"}, 1e-3)


def compare(browser, tmp_path, run, settings, tolerance):
    """Readings and a cell of a page that runs the model, beside the model's."""
    session = session_of(run)
    page = tmp_path / "page.html"
    page.write_text(portable_page(session))
    opened(browser, page.as_uri())
    question = asked(session, **settings)
    found, wanted = browser.run("return backend.read(arguments[0])", question), session.read(question)
    assert all(found[name] == wanted[name] for name in ("tokens", "ids", "top", "top_ids"))
    for name in ("times", "p", "kl", "next", "loss"):
        np.testing.assert_allclose(found[name], wanted[name], atol=tolerance, rtol=tolerance, err_msg=name)
    for half, values in wanted["moved"].items():
        np.testing.assert_allclose(found["moved"][half], values, atol=tolerance, rtol=tolerance)
    found, wanted = browser.run("return backend.reach(arguments[0])", question), session.reach(question)
    assert found == {name: pytest.approx(value, rel=0.01) for name, value in wanted.items()}
    place = {**question, "step": 2, "position": 4}
    found, wanted = browser.run("return backend.cell(arguments[0])", place), session.cell(place)
    np.testing.assert_allclose(found["attention"], wanted["attention"], atol=tolerance)
    assert found["top"][0][0] == wanted["top"][0][0]
    spectra = [(found["eigenvalues"], wanted["eigenvalues"])]
    for time in (0.4, *session.about()[0]["stops"]):  # between steps, and where steps take weights
        at = {"run": 0, "time": time}
        spectra.append((browser.run("return backend.weights(arguments[0])", at), session.weights(at)))
    for found, wanted in spectra:
        for pair, values in wanted.items():
            size = lambda of: np.sort(np.linalg.norm(np.asarray(of), axis=-1), axis=-1)
            np.testing.assert_allclose(size(found[pair]), size(values), atol=10 * tolerance * max(1, np.max(values)))
    for threshold in (None, 0.5):
        going = {**question, "added": [5, 6], "since": 3, "threshold": threshold}
        found, wanted = browser.run("return backend.predict(arguments[0])", going), session.predict(going)
        assert {**found, "p": None} == {**wanted, "p": None}
        np.testing.assert_allclose(found["p"], wanted["p"], atol=tolerance)
    assert not browser.complaints()
