"""`analyze lyapunov` and `analyze attribution` on tiny trained runs."""

import json

import numpy as np
import pytest

TEXT = "the cat sees <b>stars."


def test_lyapunov_writes_a_page(call, place, tmp_path):
    done = call("analyze", "lyapunov", place.run("time"), "--text", TEXT, "--to", tmp_path, "--probes", 4, "--json")
    assert done.status == 0, done.err
    found = json.loads(done.out)
    arrays = np.load(tmp_path / "lyapunov.npz")
    outputs, positions = len(found["outputs"]), len(found["tokens"])
    assert arrays["pairwise_exponents"].shape == (outputs, positions, 4)
    assert arrays["end_to_end_growth_error"].shape == (outputs, positions)
    assert found["scores"]["pairwise, leading"][0][1:] == [None] * (positions - 1)
    page = (tmp_path / "index.html").read_text()
    assert "<b>stars" not in page
    assert {path.name for path in tmp_path.iterdir()} == {
        "index.html", "lyapunov.npz", "exponents.png", "exponents.svg", "over_depth.png", "over_depth.svg",
    }  # fmt: skip


def test_lyapunov_of_one_output_with_the_whole_spectrum(call, place, tmp_path):
    words = ["--method", "pairwise", "--output-token", 2, "--tangents", 16]
    done = call("analyze", "lyapunov", place.run("layer"), "--text", TEXT, "--to", tmp_path, *words)
    assert done.status == 0 and "index.html" in done.out
    assert np.isfinite(np.load(tmp_path / "lyapunov.npz")["pairwise_kaplan_yorke_dimension"][0, :3]).all()


@pytest.mark.slow  # tests/studies/test_attribution.py makes the same page
def test_attribution_explains_and_tests(call, place):
    words = ["--text", TEXT, "--faithfulness", 3, "--context-tokens", 6, "--draws", 1, "--points", 4, "--probes", 4]
    done = call("analyze", "attribution", place.run("time"), *words, "--json")
    assert done.status == 0, done.err
    found = json.loads(done.out)
    folder = place.run("time") / "analysis" / "attribution"
    assert len(found["predicted"]) == len(found["outputs"]) == len(found["log_probabilities"])
    assert "Lyapunov" in found["faithfulness"]["verdict"] and len(found["faithfulness"]["ranking"]) == 9
    assert {path.suffix for path in folder.iterdir()} == {".html", ".npz", ".png", ".svg"}
    assert np.load(folder / "attribution.npz")["faithfulness_strength"].shape == (3, 9)
    missed = np.load(folder / "attribution.npz")["integrated_gradients_incompleteness"]
    page = (folder / "index.html").read_text()
    assert ("Integrated gradients miss" in page) == (np.abs(missed).max() > 0.1)


@pytest.mark.parametrize(
    "words, says",
    [
        (["--text", ""], "which has no tokens"),
        (["--text", "the cat " * 40], "but the model's context is 16"),
        (["--text", TEXT, "--output-token", 99], "--output-token is 99, but the text has"),
        (["--text", TEXT, "--tangents", 17], "--tangents is 17"),
        (["--text", TEXT, "--probes", 1], "--probes is 1"),
        (["--text", TEXT, "--seed", -1], "--seed is -1"),
        (["--text", TEXT, "--method", "far"], "invalid choice"),
    ],
)
def test_bad_input_of_lyapunov(call, place, tmp_path, words, says):
    to = tmp_path / "page"
    done = call("analyze", "lyapunov", place.run("time"), *words, "--to", to)
    assert done.status == 2 and (says in done.err or "--method" in done.err), done.err
    assert len(done.err.strip().splitlines()) == 1 and not to.exists()


@pytest.mark.parametrize(
    "words, says",
    [
        ([], "there is nothing to do"),
        (["--faithfulness", 1], "--faithfulness is 1"),
        (["--faithfulness", 2, "--draws", 0], "--draws is 0"),
        (["--text", TEXT, "--points", 0], "--points is 0"),
        (["--text", "the cat " * 40], "but the model's context is 16"),
    ],
)
def test_bad_input_of_attribution(call, place, tmp_path, words, says):
    to = tmp_path / "page"
    done = call("analyze", "attribution", place.run("time"), *words, "--to", to)
    assert done.status == 2 and says in done.err and not to.exists()


def test_a_run_without_weights(call, place, tmp_path):
    (tmp_path / "config.yaml").write_text((place.run("time") / "config.yaml").read_text())
    for what in ("lyapunov", "attribution"):
        done = call("analyze", what, tmp_path, "--text", TEXT)
        assert done.status == 2 and "no checkpoint yet" in done.err
