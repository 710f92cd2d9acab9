"""`analyze spectra` and `analyze induction` from words to files."""

import json

import numpy as np
import pytest

# A context of 16: three tokens, five times.
FEW = ("--sequences", "2", "--length", "3", "--repeats", "5")


@pytest.mark.slow  # tests/studies/test_spectra.py draws two models
def test_spectra_of_two_runs_side_by_side(place, call):
    found = call("analyze", "spectra", place.run("time"), "--against", place.run("layer"), "--times", 5, "--ranks", 4,
                 "--json")  # fmt: skip
    assert found.status == 0, found.err
    told = json.loads(found.out)
    folder = place.run("time") / "analysis" / "spectra"
    assert told["page"] == str(folder / "index.html") and (folder / "real-parts-qk.png").is_file()
    assert (folder / "flow-ov.svg").is_file() and (folder / "flow-ov-against.svg").is_file()
    page = (folder / "index.html").read_text(encoding="utf-8")
    assert (
        page.count('class="narrow"') == 4 + 1 + 6
        and "Share of positive real parts from the first step to the last" in page
    )
    assert "time: Signs of the eigenvalues" in page
    arrays = np.load(folder / "spectra.npz")
    assert arrays["QK_eigenvalues"].dtype == complex and arrays["FF_4_eigenvalues"].shape[-1] == 4
    assert set(told["models"][0]["pairs"]) == {"QK", "OV", "FF", "FF 4"}
    assert len(told["models"][1]["times"]) == 2


@pytest.mark.slow
def test_nothing_is_read_between_the_steps_of_shared_weights(place, call, tmp_path):
    words = ["--run", tmp_path / "run", "--model.weights", "shared", "--trainer.updates", 1]
    assert call("train", place.time, *words).status == 0
    found = call("analyze", "spectra", tmp_path / "run", "--json")
    assert found.status == 0 and len(json.loads(found.out)["models"][0]["times"]) == 2
    page = (tmp_path / "run" / "analysis" / "spectra" / "index.html").read_text(encoding="utf-8")
    assert "its weights are the same at all depths" in page


def test_induction_heads_of_a_run(place, call):
    found = call("analyze", "induction", place.run("layer"), *FEW, "--to", place.folder / "heads")
    assert found.status == 0, found.err
    assert "prefix matching ~ QK positive share" in found.out
    page = (place.folder / "heads" / "index.html").read_text(encoding="utf-8")
    assert "Rank correlations" in page and "data:image/png" in page
    assert np.load(place.folder / "heads" / "induction.npz")["prefix_matching"].shape == (2, 2)


def test_bad_input_is_one_sentence_and_writes_nothing(place, call):
    for words, sentence in {
        ("spectra", place.run("time"), "--ranks", "33"): "rank is 33, but must be between 1 and 32",
        ("spectra", place.run("time"), "--ranks", "x"): "--ranks is 'x'",
        ("spectra", place.run("time"), "--times", "1"): "times is 1",
        ("spectra", place.run("layer"), "--steps", "7"): "7",
        ("spectra", place.folder / "none"): "does not exist",
        ("induction", place.run("time")): "4 repeats of 25 tokens are 100 positions, but the model's context is 16",
        ("induction", place.run("time"), "--length", "5", "--repeats", "1"): "repeats is 1",
    }.items():
        found = call("analyze", *words, "--to", place.folder / "nothing")
        assert found.status == 2 and sentence in found.err and found.err.count("\n") == 1, found.err
    assert not (place.folder / "nothing").exists()
