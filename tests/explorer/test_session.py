"""What the explorer answers: the model's own numbers, sentences for what cannot be, and nothing to strangers."""

import dataclasses
import json
import socket
import struct
import threading
import urllib.error
import urllib.request
from html import unescape
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from diffeqformer.analysis.attribution import ATTRIBUTIONS
from diffeqformer.analysis.faithfulness import END_TO_END, PAIRWISE
from diffeqformer.analysis.reading import eigenvalues_of
from diffeqformer.analysis.spectra import spectra
from diffeqformer.cli import main
from diffeqformer.config import DepthConfig, LayerDropConfig, ToleranceConfig
from diffeqformer.config.bounds import MOST_STEPS
from diffeqformer.errors import BadInput, RunFailed
from diffeqformer.explorer.page import OVERLAYS, portable_page, served_page, told_apart
from diffeqformer.explorer.server import MOST_BYTES, pages_of, serve
from diffeqformer.explorer.session import about_run
from diffeqformer.model.solving import with_scheme
from diffeqformer.ode.early_exit import EarlyExit
from diffeqformer.ode.schemes import EULER
from diffeqformer.studies.inputs import ids_of, pieces_of
from tests.explorer.made import TEXT, run_of, session_of
from tests.models import model_of
from tests.tolerances import STATES

ASKED = {"run": 0, "text": TEXT, "steps": 5, "scheme": "heun", "rtol": None}


@pytest.fixture(scope="module")
def session():
    return session_of(run_of("diffeqformer"), run_of("vanilla"))


def test_a_reading_is_the_models(session):
    run, found = session.runs[0], session.read({**ASKED, "scheme": "euler"})
    ids = ids_of(run, TEXT)
    states = run.model.trajectory(jnp.asarray(ids)[None], steps=5)
    p = np.asarray(jax.nn.softmax(run.model.unembed(run.model.normalise(states)), axis=-1))[:, 0]
    np.testing.assert_allclose(found["p"], p.max(-1), atol=STATES)
    np.testing.assert_allclose(np.asarray(found["next"]), p[:, np.arange(len(ids) - 1), ids[1:]], atol=STATES)
    np.testing.assert_allclose(found["loss"], -np.log(np.asarray(found["next"])).mean(-1), atol=1e-3)  # six digits of p
    assert found["ids"] == ids.tolist() and found["top_ids"] == p.argmax(-1).tolist()
    assert found["top"] == [list(pieces_of(run, row)) for row in p.argmax(-1)]
    assert found["times"] == [0, 0.2, 0.4, 0.6, 0.8, 1] and found["kl"][-1] == [0] * len(ids)
    assert np.shape(found["moved"]["attention"]) == (5, len(ids)) and len(found["top"]) == 6
    cell = session.cell({**ASKED, "scheme": "euler", "step": 5, "position": 3})
    assert cell["top"][0] == (found["top"][5][3], pytest.approx(found["p"][5][3], abs=1e-5))
    assert np.shape(cell["attention"]) == (2, 4) and np.shape(cell["eigenvalues"]["OV"]) == (2, 8, 2)
    np.testing.assert_allclose(np.sum(cell["attention"], -1), 1, atol=1e-4)
    first = session.cell({**ASKED, "step": 0, "position": 0})
    assert first["attention"] is None and first["eigenvalues"] is None


def test_a_continuation_is_the_models_greedy_one_and_exits_as_early_exit_does(session):
    run, asked = session.runs[0], {**ASKED, "scheme": "euler"}
    read = session.read(asked)
    length = len(read["tokens"])
    found = session.predict({**asked, "since": 0})
    assert (found["pieces"], found["p"], found["taken"]) == (read["top"][-1], read["p"][-1], [5] * length)
    further = session.predict({**asked, "added": [7, 9], "since": length + 1})
    longer = jnp.asarray([*ids_of(run, TEXT), 7, 9])
    assert further["ids"] == [int(run.model(longer, steps=5)[-1].argmax())]
    early = session.predict({**asked, "since": 0, "threshold": 1})
    exits = run.model.integrate(jnp.asarray(ids_of(run, TEXT))[None], steps=EarlyExit(5, 1.0))
    assert early["taken"] == exits.carry.taken[0, :, 0].tolist() and 1 < min(early["taken"]) < 5
    assert early["ids"] == run.model.unembed(run.model.normalise(exits.state))[0].argmax(-1).tolist()


def test_an_overlay_is_the_attribution_of_the_named_prediction(session, monkeypatch):
    """Which analysis answers, and with what; its numbers are those of its own tests, and of the browser's."""
    asked, calls = {**ASKED, "scheme": None, "position": 4}, []
    length = session._padded(0, ids_of(session.runs[0], TEXT)).shape
    scores = np.arange(float(*length))[None] / 8

    def answer(model, ids, outputs, **settings):
        calls.append((model is session.runs[0].model, ids.shape, outputs, settings["steps"]))
        every = {name: scores + place for place, name in enumerate(ATTRIBUTIONS)}
        return SimpleNamespace(scores=every, leading=scores - 1, growth=scores - 2)

    for name in ("attribute", "pairwise", "end_to_end"):
        monkeypatch.setattr(f"diffeqformer.explorer.session.{name}", answer)
    read = session.read(asked)
    offsets = {PAIRWISE: -1, END_TO_END: -2} | {name: place for place, name in enumerate(ATTRIBUTIONS)}
    assert [one["name"] for one in OVERLAYS] == [*offsets]
    for name, offset in offsets.items():
        found = session.explain({**asked, "method": name})
        assert found["piece"] == read["top"][-1][4] and found["p"] == pytest.approx(read["p"][-1][4], abs=STATES)
        assert found["scores"] == (scores[0, :5] + offset).tolist()
    assert calls == [(True, length, (4,), 5)] * 3  # what is computed together once
    with pytest.raises(BadInput, match="method is 'random'"):
        session.explain({**asked, "method": "random"})


def test_weights_at_a_time_have_the_eigenvalues_of_the_spectra(session):
    found, model = session.weights({"run": 0, "time": 0.5}), session.runs[0].model
    found_at = spectra(model, times=3)
    for name, values in found.items():
        own = np.asarray(values) @ [1, 1j]
        radius = found_at.pairs[name].radius[np.flatnonzero(found_at.times == 0.5)[0]]
        np.testing.assert_allclose(np.abs(own).max(-1), radius, atol=1e-4)


def test_weights_at_a_stop_are_those_that_a_step_takes(session):
    """Of layers that are left out, the ones of the grid: no layer is shown twice."""
    own = session_of(run_of("layers left out"))
    model = own.runs[0].model
    table = model.weights.table(model.grid())
    for step, time in enumerate(np.round([1 / 3, 2 / 3, 1], 9)):
        rows = jax.tree.map(lambda leaf, step=step: np.asarray(leaf)[step, 0], table)
        wanted = eigenvalues_of(rows, model.config, ("QK",))["QK"]
        found = np.asarray(own.weights({"run": 0, "time": float(time)})["QK"]) @ np.array([1, 1j])
        np.testing.assert_allclose(found, wanted, atol=1e-5)  # five decimals


def test_what_a_run_offers(session):
    free, table = session.about()
    assert (free["least"], free["most"], free["schemes"][0]) == (1, MOST_STEPS, "euler") and 1e-3 in free["tolerances"]
    assert (table["least"], table["most"], table["schemes"], table["tolerances"]) == (3, 3, ["lie-trotter"], [])
    fewer = run_of("layers left out")  # trained at fewer steps than it has layers
    config = dataclasses.replace(fewer.config.model, steps=2, weights=LayerDropConfig(layers=5))
    fewer = dataclasses.replace(fewer, config=dataclasses.replace(fewer.config, model=config), model=model_of(config))
    assert [session_of(fewer).about()[0][name] for name in ("least", "steps", "most")] == [1, 2, 5]
    assert (free["name"], table["name"]) == ("DiffEqFormer", "Vanilla GPT") and free["folder"] == "diffeqformer"
    assert free["said"].endswith("by a network for each matrix, scheme euler, trained at 3 steps")
    assert table["said"].startswith("blocks as in GPT, weights that are a table of layers, scheme lie-trotter")


def test_depths_of_training_are_those_that_were_drawn():
    run = run_of("diffeqformer")
    elastic = dataclasses.replace(run, config=dataclasses.replace(run.config, depth=DepthConfig(sample="4-6")))
    assert (about_run(run)["trained"], about_run(elastic)["trained"]) == ([3], [4, 5, 6])
    assert about_run(elastic)["said"].endswith("trained at 4 to 6 steps")
    adaptive = dataclasses.replace(run.config.model, tolerance=ToleranceConfig(1e-2))
    said = about_run(dataclasses.replace(run, config=dataclasses.replace(run.config, model=adaptive)))
    assert said["trained"] == [] and said["said"].endswith("trained with adaptive steps (rtol 0.01)")
    assert about_run(run)["stops"] == pytest.approx([1 / 3, 2 / 3, 1])  # between these nothing was trained
    assert about_run(elastic)["stops"] == []


def test_runs_of_one_name_are_told_apart():
    runs = [{"name": "a", "update": 1}, {"name": "a", "update": 2}, {"name": "b", "update": 1}]
    names = lambda runs, *folders: [one["name"] for one in told_apart(runs, [*map(Path, folders)])]
    assert names(runs, "x", "x", "y/x") == ["a (x, update 1)", "a (x, update 2)", "b"]
    assert names(runs[:1] * 2, "x", "y") == ["a (x)", "a (y)"]
    assert names(runs[:1] * 2, "p/q/x", "p/y/x") == ["a (q/x)", "a (y/x)"]  # of one name, folder and update


def test_one_scale_holds_the_eigenvalues_of_every_step(session):
    cells = [session.cell({**ASKED, "step": step, "position": 0})["eigenvalues"] for step in range(1, 6)]
    assert session.reach(ASKED) == {name: max(np.abs(one[name]).max() for one in cells) for name in ("QK", "OV")}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"run": 2}, "run is 2"),
        ({"run": True}, "run is True"),
        ({"steps": 0}, "steps is 0"),
        ({"steps": 10**9}, "steps is 1000000000"),
        ({"steps": "6"}, "steps is '6'"),
        ({"run": 1, "steps": 4, "scheme": None}, "table of 3 layers"),
        ({"run": 1, "steps": 3}, "cannot run by 'heun'"),
        ({"scheme": "nosuch"}, "scheme is 'nosuch'"),
        ({"scheme": ["euler"]}, "scheme is ['euler']"),
        ({"rtol": -1.0}, "rtol is -1.0"),
        ({"rtol": "x"}, "rtol is 'x'"),
        ({"text": ""}, "the text is empty"),
        ({"text": 5}, "text must be"),
        ({"text": "x" * 100_000}, "text must be"),
        ({"text": "猫" * 30}, "context is 40"),
        ({"step": 9}, "step is 9"),
        ({"position": -1}, "position is -1"),
        ({"since": 99}, "since is 99"),
        ({"threshold": 0}, "threshold is 0"),
        ({"threshold": "x"}, "threshold is 'x'"),
        ({"threshold": float("nan")}, "threshold is nan"),
        ({"added": [-1]}, "added must be a list of tokens"),
        ({"added": "12"}, "added must be a list of tokens"),
        ({"added": [1] * 40}, "context is 40"),
        ({"time": 2}, "time is 2"),
    ],
)
def test_what_cannot_be_is_a_sentence(session, change, said):
    ask = (
        session.weights if "time" in change else session.predict if {"since", "threshold"} & {*change} else session.cell
    )
    with pytest.raises(BadInput) as error:
        ask({**ASKED, "step": 1, "position": 0, "since": 0, **change})
    assert said in str(error.value)


def test_a_state_that_overflows_is_a_sentence_and_so_are_weights_without_numbers():
    run = run_of("vanilla")
    scaled = lambda by: dataclasses.replace(
        run, model=run.model.replace(weights=jax.tree.map(lambda leaf: leaf * by, run.model.weights))
    )
    session, asked = session_of(scaled(1e37)), {**ASKED, "steps": 3, "scheme": None, "position": 2}
    assert None in session.read(asked)["p"][-1]
    json.dumps([session.cell({**asked, "step": 0}), session.reach(asked)], allow_nan=False)
    for ask in ("cell", "predict", "explain"):
        with pytest.raises(BadInput, match="the prediction is not finite: a state overflows"):
            session.answers[ask]({**asked, "step": 3, "since": 0, "method": END_TO_END})
    for ask in ("reach", "weights"):
        with pytest.raises(RunFailed, match="weights of the model are not finite"):
            session_of(scaled(np.nan)).answers[ask]({**asked, "time": 1.0})


def test_only_the_page_is_answered():
    answers = {"read": lambda asked: {"got": asked}, "fail": lambda asked: asked["nothing"]}
    server, address = serve("<p>page</p>", answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    root = address.rsplit("/", 2)[0] + "/"

    def ask(url, content=None, **headers):
        request = urllib.request.Request(url, content, headers)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)["error"]

    with server:
        assert address.startswith("http://127.0.0.1:") and len(address.split("/")[-2]) >= 20
        assert ask(address) == (200, "<p>page</p>")
        assert ask(f"{address}read", b'{"a": 1}') == (200, '{"got": {"a": 1}}')
        for url, content, headers in (
            (root, None, {}),
            (f"{address}../", None, {}),
            (f"{root}read", b"{}", {}),
            (f"{address}nosuch", b"{}", {}),
            (address, None, {"Host": "rebound.example"}),
            (f"{address}read", b"{}", {"Host": "rebound.example"}),
        ):
            assert ask(url, content, **headers)[0] == 404
        for content in (b"{", b"[]", b"\xff", b"[" * 100_000):
            assert ask(f"{address}read", content)[0] == 400
        assert ask(f"{address}read", b"{}", **{"Content-Length": str(MOST_BYTES + 1)})[0] == 413
        assert ask(f"{address}fail", b"{}") == (500, "failed with KeyError: 'nothing'")
        with pytest.raises(BadInput, match="cannot be used"):
            serve("", {}, server.server_port)
        server.shutdown()


def test_a_connection_that_ends_before_its_question_is_no_error(capsys):
    """Browsers open some in advance; each printed a traceback."""
    server, _ = serve("", {})
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with socket.create_connection(server.server_address) as page:
        page.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # gone at once
        page.sendall(b"GET ")
        threading.Event().wait(0.2)
    threading.Event().wait(0.3)
    server.shutdown()
    server.server_close()
    assert capsys.readouterr() == ("", "")


def test_a_page_that_is_closed_before_its_answer_is_no_error(capsys):
    answered = threading.Event()

    def slow(asked):
        left.wait(10)
        answered.set()
        return {"long": "x" * 1_000_000}

    left = threading.Event()
    server, address = serve("", {"slow": slow})
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with socket.create_connection(server.server_address) as page:
        page.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # gone at once
        path, host = address.removeprefix("http://").partition("/")[2], address.split("/")[2]
        page.sendall(f"POST /{path}slow HTTP/1.0\r\nHost: {host}\r\nContent-Length: 2\r\n\r\n{{}}".encode())
        threading.Event().wait(0.2)
    left.set()
    assert answered.wait(10)
    threading.Event().wait(0.3)  # for what it would say of the connection that is gone
    server.shutdown()
    server.server_close()
    assert capsys.readouterr().err == ""


def test_ctrl_c_ends_the_server_as_it_ends_any_command(monkeypatch, capsys):
    """By an exception, for which the process ends without a teardown: an answer may still be computed."""

    def interrupted(server):
        raise KeyboardInterrupt

    monkeypatch.setattr("diffeqformer.explorer.server.ThreadingHTTPServer.serve_forever", interrupted)
    monkeypatch.setattr("diffeqformer.runs.opening.load_run", lambda *given: run_of("diffeqformer"))
    assert main(["explore", "run", "--text", TEXT]) == 130
    said = capsys.readouterr()
    assert "http://127.0.0.1:" in said.out and said.err.endswith("diffeqformer: interrupted.\n")


def test_the_runs_own_pages_are_served_and_nothing_else_of_their_folders(tmp_path):
    run = tmp_path / "runs" / "my run"
    for name in ("analysis/index.html", "analysis/steps/steps.svg", "report.html", "config.yaml", "analysis/notes.txt"):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text(name)
    (run.parent / "report.html").write_text("the report of all runs")
    (run.parent / "private.html").write_text("private")
    (tmp_path / "secret.html").write_text("secret")
    (run / "analysis/link.html").symlink_to(tmp_path / "secret.html")
    assert pages_of([run, tmp_path / "none"]) == ["runs-0/my%20run/analysis/index.html", ""]
    page = served_page(session_of(dataclasses.replace(run_of("diffeqformer"), folder=run), run_of("vanilla")))
    assert '"pages": "runs-0/my%20run/analysis/index.html"' in page and page.count('"pages": ""') == 1
    server, address = serve("the explorer", {}, runs=[run])
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def ask(path, host=None):
        request = urllib.request.Request(f"{address}{path}", headers={"Host": host} if host else {})
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.read().decode(), answer.headers["Content-Type"]
        except urllib.error.HTTPError as error:
            return error.code

    with server:
        assert ask(pages_of([run])[0]) == ("analysis/index.html", "text/html; charset=utf-8")
        assert ask("runs-0/my%20run/analysis/steps/steps.svg") == ("analysis/steps/steps.svg", "image/svg+xml")
        assert ask("runs-0/my%20run/report.html")[0] == "report.html"
        assert ask("runs-0/report.html")[0] == "the report of all runs"
        for path in ("config.yaml", "analysis/notes.txt", "analysis/link.html", "analysis", "analysis/../config.yaml",
                     "analysis/../../private.html", "analysis/%2e%2e/%2e%2e/%2e%2e/secret.html", "analysis/none.html",
                     "analysis/a%00.html", f"analysis/{'a' * 300}.html"):  # fmt: skip
            assert ask(f"runs-0/my%20run/{path}") == 404, path
        for path in ("runs-0/private.html", "runs-0/", "runs-1/my%20run/report.html", "runs-0//etc/hosts.html"):
            assert ask(path) == 404, path
        assert ask(pages_of([run])[0], host="rebound.example") == 404
        server.shutdown()


def words(vocabulary, *added):
    """A tokenizer of whole words, and of some that are cut out of a text first."""
    tokenizer = Tokenizer(models.WordLevel(vocabulary))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_tokens(list(added))
    return tokenizer


def test_a_page_that_cannot_run_the_model_is_not_written(tmp_path, capsys):
    for kind, said in (("time, reversible", "scheme 'reversible'"), ("head norms", "has head norms")):
        with pytest.raises(BadInput, match=said):
            portable_page(session_of(run_of(kind)))
    run = run_of("diffeqformer")
    adaptive = dataclasses.replace(run.config.model, tolerance=ToleranceConfig())
    with pytest.raises(BadInput, match="chooses its steps by a tolerance, but a page has fixed ones"):
        portable_page(session_of(dataclasses.replace(run, config=dataclasses.replace(run.config, model=adaptive))))
    own = with_scheme(run.model, dataclasses.replace(EULER, c=(0.25,)))  # the config still says euler
    with pytest.raises(BadInput, match=r"has a part of your own, .*RungeKutta, which a browser cannot run"):
        portable_page(session_of(dataclasses.replace(run, model=own)))
    for tokenizer in (words({"a": 0}), words({"a": 0, "<unk>": 1}, "b"), words({"a": 0}, "<unk>")):
        with pytest.raises(BadInput, match="has a tokenizer that a page does not run"):
            portable_page(session_of(dataclasses.replace(run, tokenizer=tokenizer), text="a"))
    assert main(["explore", str(tmp_path), "--to", str(tmp_path / "page.txt")]) == 2
    assert "must end with .html" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_the_page_reaches_nothing_and_hostile_text_is_inert():
    page = unescape(portable_page(session_of(run_of("shared"), text="<script>alert(1)</script>")))
    assert "connect-src 'none'" in page and "default-src 'none'" in page and "<script>alert" not in page
