"""`analyze` as a list of what there is, and `analyze clusters` from words to files."""

import dataclasses
import json
import math
import re
from pathlib import Path
from unittest.mock import Mock

import jax
import numpy as np
import pytest

from diffeqformer.errors import RunFailed
from diffeqformer.runs.opening import load_run
from diffeqformer.studies import ANALYSES

SMALL = ("--systems", "2", "--particles", "6", "--steps", "4", "--orders", "0", "2")


def test_lists_the_analyses(call):
    for words in ([], ["--help"], ["help"]):
        called = call("analyze", *words)
        assert called.status == 0 and all(name in called.out for name in ANALYSES)
    assert json.loads(call("analyze", "--json").out) == ANALYSES


@pytest.mark.parametrize("what", ANALYSES)
def test_help_of_each_shows_an_example(call, what):
    called = call("analyze", what, "--help")
    assert called.status == 0 and f"Example: diffeqformer analyze {what}" in " ".join(called.out.split())


def test_an_unknown_analysis_is_refused_with_the_nearest(call):
    for words, said in ((["cluster"], "did you mean 'clusters'?"), (["xyz"], "the analyses are spectra,"),
                        (["--run", "x"], "needs one of spectra,")):  # fmt: skip
        called = call("analyze", *words)
        assert called.status == 2 and said in called.err and called.err.count("\n") == 1


def test_simulates(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    called = call("analyze", "clusters", *SMALL, "--variants", "particles", "sphere", "--json")
    assert called.status == 0, called.err
    told = json.loads(called.out)
    assert told["page"] == "analysis/clusters/index.html"
    assert [(r["variant"], r["order"]) for r in told["simulations"]] == [
        (variant, order) for variant in ("particles", "sphere") for order in (0, 2)
    ]
    folder = tmp_path / "analysis" / "clusters"
    assert {p.suffix for p in folder.iterdir()} == {".html", ".npz", ".png", ".svg"}
    with np.load(folder / "clusters.npz") as arrays:
        assert arrays["sphere_order2_states"].shape == (5, 6, 3)
        assert arrays["particles_order0_energy"].shape == (5, 2)
    level = ("--level", "--variants", "rescaled", "--to", tmp_path / "other")
    assert "f = τ²" in call("analyze", "clusters", *SMALL, *level).out


def test_watches_a_runs_hidden_states(call, place, tmp_path):
    called = call("analyze", "clusters", place.run("layer"), "--texts", "2", "--to", tmp_path, "--json")
    assert called.status == 0, called.err
    told = json.loads(called.out)
    assert [depth["depth"] for depth in told["depths"]] == [0, 0.5, 1]
    with np.load(tmp_path / "clusters.npz") as arrays:
        assert arrays["heights"].shape == (3, 2, 15) and arrays["projection"].shape == (3, 16, 3)
    assert "at depth 0 and after each of 2 steps." in (tmp_path / "index.html").read_text()
    text = ("--text", "the <b>cat</b> eats", "--steps", "1")
    called = call("analyze", "clusters", place.run("time"), *text)
    page = (place.run("time") / "analysis" / "clusters" / "index.html").read_text(encoding="utf-8")
    assert "at depth 0 and after the one step." in page
    text = ("--text", "the <b>cat</b> eats", "--steps", "3")
    called = call("analyze", "clusters", place.run("time"), *text)
    assert called.status == 0, called.err
    page = (place.run("time") / "analysis" / "clusters" / "index.html").read_text(encoding="utf-8")
    assert "the·&lt;b&gt;cat&lt;/b&gt;·eats" in page and "<b>cat" not in page


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--text", "x"], "no RUN is given"),
        (["--systems", "0"], "--systems is 0"),
        (["--particles", "1"], "--particles is 1"),
        (["--dt", "0"], "--dt is 0"),
        (["--unit", "-1"], "--unit is -1"),
        (["--share", "0"], "--share is 0"),
        (["--orders", "1", "1"], "each must be named once"),
        (["--orders", "10"], "--orders has 10, but must be at most 9"),
        (["--variants", "sphere", "sphere"], "named once"),
        (["--variants", "cube"], "cube"),
        (["--seed", "-1"], "--seed is -1"),
        (["nowhere"], "does not exist"),
        (["{run}", "--texts", "0"], "--texts is 0"),
        (["{run}", "--texts", "999999"], "--texts is 999999"),
        (["{run}", "--text", "a " * 100], "context is 16"),
        (["{run}", "--text", ""], "has no tokens"),
        (["{run}", "--steps", "0"], "--steps is 0"),
    ],
)
def test_bad_input_is_one_sentence_and_writes_nothing(call, place, tmp_path, words, said):
    words = [word.format(run=place.run("time")) for word in words]
    called = call("analyze", "clusters", *words, "--to", tmp_path / "new")
    told = [line for line in called.err.splitlines() if not line.endswith("…")]  # what was being done
    assert called.status == 2 and len(told) == 1 and said in told[0], called.err
    assert not (tmp_path / "new").exists()


def test_a_file_is_no_folder(call, tmp_path):
    (tmp_path / "file").write_text("")
    called = call("analyze", "clusters", *SMALL, "--to", tmp_path / "file")
    assert called.status == 2 and "is a file; name a folder" in called.err


def test_steps_of_a_run_with_a_tuned_lens_and_a_text(place, call):
    found = call("analyze", "steps", place.run("layer"), "--texts", 1, "--tuned", 2, "--text", "the cat", "--json")
    assert found.status == 0, found.err
    told = json.loads(found.out)
    arrays = np.load(place.run("layer") / "analysis" / "steps" / "steps.npz")
    assert arrays["tuned_kl"].shape == arrays["kl"].shape and arrays["tuned_kl"][-1] == 0
    page = Path(told["page"]).read_text()
    assert len(told["lens_top"]) == len(arrays["loss"]) and "With a tuned lens" in page
    entry = json.loads((place.run("layer") / "results.json").read_text())["models"][0]
    assert f"On its whole validation split the run has {entry['validation']['loss']:.3f} nats per token" in page


def test_texts_of_a_tuned_lens_are_counted_as_they_are_asked_for(place, call):
    called = call("analyze", "steps", place.run("layer"), "--texts", 9999, "--tuned", 2)
    said = r"--texts is 9999, but must be from 1 to \d+: as many texts of 17 tokens as there are, 2 times\."
    assert called.status == 2 and re.search(said, called.err), called.err


@pytest.mark.parametrize(
    ("scale", "what", "words"),
    [
        (math.nan, "weights", ("spectra",)),
        (math.nan, "weights", ("compression",)),
        (1e38, "hidden states", ("lyapunov", "--text", "the cat")),
        (1e38, "hidden states", ("all", "--only", "attribution", "clusters", "--text", "the cat")),
        (1e38, "hidden states or losses", ("steps", "--texts", "1")),
    ],
)
def test_a_model_without_numbers_is_one_sentence_and_no_page(place, call, tmp_path, monkeypatch, scale, what, words):
    opened = load_run(place.run("layer"))
    blown = jax.tree.map(lambda leaf: leaf * scale, opened.model.weights)
    broken = dataclasses.replace(opened, model=opened.model.replace(weights=blown))
    monkeypatch.setattr("diffeqformer.runs.opening.load_run", lambda *_: broken)
    called = call("analyze", words[0], place.run("layer"), *words[1:], "--to", tmp_path / "new")
    last, refused = called.err.splitlines()[-1], words[0] == "all"  # of which each is told
    assert f"{what} of the model are not finite" in last and last.count("not finite") == 1 + refused, called.err
    assert called.status == 1 + refused and not [*tmp_path.glob("new/*/*")]


def test_all_analyses_read_one_text_and_are_linked_by_one_page(call, place, tmp_path):
    words = ("--only", "induction", "lyapunov", "clusters", "steps", "depth", "--steps", 3, "--to", tmp_path / "all")
    called = call("analyze", "all", place.run("time"), "--text", "the <b>cat</b> eats", *words, "--json")
    assert called.status == 0, called.err
    told = json.loads(called.out)
    assert told["page"] == str(tmp_path / "all" / "index.html") and told["text"] == "the <b>cat</b> eats"
    assert [*told["analyses"]] == ["lyapunov", "clusters", "steps", "depth"]
    assert [*told["refused"]] == ["induction"] and "context" in told["refused"]["induction"]
    assert "induction cannot be made of this run" in called.err
    tokens = told["analyses"]["lyapunov"]["tokens"]
    assert len(tokens) == len(told["analyses"]["steps"]["ids"])
    assert len(told["analyses"]["clusters"]["depths"]) == 4  # depth 0 and 3 steps
    page = (tmp_path / "all" / "index.html").read_text()
    assert (
        "can be chosen: lyapunov opens" in page and "<b>cat" not in page and "<b>induction</b> cannot be made" in page
    )
    assert "Not made yet: spectra, attribution, compression." in page
    for name in told["analyses"]:
        assert (
            re.search(rf'<h2><a href="{name}/index.html">.+</a></h2>', page) and f'<p class="note">{name}</p>' in page
        )
        assert 'href="../index.html"' in (tmp_path / "all" / name / "index.html").read_text()
    for place_of in range(len(tokens)):
        assert f'<a href="#token={place_of}">' in page
        assert f'id="token={place_of}"' in (tmp_path / "all" / "steps" / "index.html").read_text()


@pytest.mark.slow
def test_all_analyses_without_a_text_read_the_middle_of_the_validation_split(call, place):
    run = place.run("layer")
    called = call("analyze", "all", run, "--only", "clusters", "compression")
    assert called.status == 0, called.err
    assert "2 of 2 analyses of" in called.out and "16 tokens of the run's validation split" in called.out
    assert "1/2 clusters: whether" in called.err and "2/2 compression: a table" in called.err
    text = json.loads(call("analyze", "all", run, "--only", "clusters", "--json").out)["text"]
    assert text and text in place.text.read_text()
    assert (run / "analysis" / "index.html").is_file() and not (run / "analysis" / "all").exists()


def test_all_analyses_read_the_text_that_is_named(call, place, tmp_path):
    (tmp_path / "other.txt").write_text("a mouse hears the moon.\n" * 400)
    words = ("--only", "clusters", "steps", "compression", "--data", tmp_path / "other.txt", "--to", tmp_path / "all")
    called = call("analyze", "all", place.run("layer"), *words, "--json")
    assert called.status == 0 and not json.loads(called.out)["refused"], called.err
    assert json.loads(called.out)["text"] in (tmp_path / "other.txt").read_text()
    for name in ("steps", "compression"):
        page = (tmp_path / "all" / name / "index.html").read_text()
        assert "other.txt" in re.sub("<wbr>", "", page) and "On its whole validation split" not in page


def test_analyses_that_cannot_be_made_are_refused(call, place, tmp_path):
    for words, said in (
        (["--only", "spectrum"], "--only has 'spectrum', but the analyses are spectra,"),
        (["--text", "the cat " * 40], "but the model's context is 16"),
        (["--text", "", "--only", "steps"], "has no tokens"),
        (["--only", "induction"], "no analysis can be made of"),
    ):
        called = call("analyze", "all", place.run("time"), *words, "--to", tmp_path / "all")
        assert called.status == 2 and said in called.err
    assert not (tmp_path / "all" / "induction").exists()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (IndexError("nothing is there"), "it failed with IndexError"),
        (RunFailed("the states are not finite."), "the states are not finite."),
    ],
)
def test_a_fault_in_one_analysis_is_told_once_the_others_are_made(call, place, tmp_path, monkeypatch, error, reason):
    monkeypatch.setattr("diffeqformer.studies.clusters.study", Mock(side_effect=error))
    called = call("analyze", "all", place.run("layer"), "--only", "clusters", "compression", "--to", tmp_path / "all")
    assert called.status == 1 and reason.split()[-1] in called.err.splitlines()[-1], called.err
    assert (tmp_path / "all" / "compression" / "index.html").is_file()
    page = (tmp_path / "all" / "index.html").read_text()
    assert "<b>clusters</b> cannot be made" in page and reason in page
