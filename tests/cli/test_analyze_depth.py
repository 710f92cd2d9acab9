"""`analyze depth` from words to files."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from diffeqformer.config import Config, dump_yaml, from_dict, read_yaml, to_dict
from tests.runs.tiny_run import forget, write_text


def rewritten(from_: Path, to: Path, **base: str) -> Path:
    """A copy of a run that says that it was fine-tuned."""
    forget(shutil.copytree(from_, to))
    config = to_dict(read_yaml(to / "config.yaml"))
    config["base"] |= base
    (to / "config.yaml").write_text(dump_yaml(from_dict(Config, config)))
    return to


def test_a_run_beside_a_tuned_and_a_vanilla_one(place, call, tmp_path):
    run, vanilla = place.run("time"), place.run("layer")
    tuned = rewritten(run, tmp_path / "tuned", run=str(run), method="continuous", system="DiffEqFormer 2")
    found = call("analyze", "depth", run, "--steps", "3", "--against", tuned, vanilla, "--to", tmp_path / "a", "--json")
    assert found.status == 0, found.err
    told = json.loads(found.out)
    assert [point["steps"] for point in told["depths"]] == [2, 3] and told["own_steps"] == 2
    assert [(m["group"], m["fine_tuned"], m["steps"]) for m in told["against"]] == [
        ("continuous", True, 2), ("Vanilla GPT", False, 2)
    ]  # fmt: skip
    # The copy has the same weights, and `eval` says the same of each.
    assert told["against"][0]["loss"] == pytest.approx(told["depths"][0]["loss"], abs=1e-6)
    by_eval = json.loads(call("eval", run, "--steps", "2,3", "--json").out)["evaluations"]
    for point, row in zip(told["depths"], by_eval, strict=True):
        for name in ("loss", "perplexity", "bits_per_byte", "tokens", "attention_evaluations"):
            assert point[name] == pytest.approx(row[name], rel=1e-5), name
    arrays = np.load(tmp_path / "a" / "depth.npz")
    assert arrays["steps"].tolist() == [2, 3] and arrays["against_steps"].tolist() == [2, 2]
    page = (tmp_path / "a" / "index.html").read_text(encoding="utf-8")
    assert told["finding"].split(";")[0] in page and "fine-tuned: continuous" in page
    assert (tmp_path / "a" / "perplexity-steps.png").is_file() and told["page"] == str(tmp_path / "a" / "index.html")


def test_early_exit_is_drawn_at_its_mean_number_of_steps(place, call, tmp_path):
    words = (place.run("time"), "--steps", "2,5", "--early-exit", "1e9,1e-9", "--to", tmp_path / "a", "--json")
    found = call("analyze", "depth", *words)
    assert found.status == 0, found.err
    early = json.loads(found.out)["early_exit"]
    assert [(row["threshold"], row["grid"], row["mean_steps"]) for row in early] == [(1e-9, 5, 5.0), (1e9, 5, 2.0)]
    arrays = np.load(tmp_path / "a" / "depth.npz")
    assert arrays["early_exit_threshold"].tolist() == [1e-9, 1e9] and arrays["early_exit_steps"].tolist() == [5.0, 2.0]
    assert "Early exit from 5 steps" in (tmp_path / "a" / "index.html").read_text(encoding="utf-8")


def test_another_text_is_evaluated_when_it_is_named(place, call, tmp_path):
    text = write_text(tmp_path / "other.txt", lines=40, seed=5)
    found = call("analyze", "depth", place.run("layer"), "--data", text, "--to", tmp_path / "a")
    assert found.status == 0, found.err
    assert "Vanilla GPT, trained at 2 steps alone, has perplexity" in found.out and "2 (own)" in found.out
    assert "other.txt" in (tmp_path / "a" / "index.html").read_text(encoding="utf-8")


def test_bad_input_is_one_sentence_and_writes_nothing(place, call, tmp_path):
    run, vanilla = place.run("time"), place.run("layer")
    spelled = rewritten(run, tmp_path / "spelled")
    tokenizer = json.loads((spelled / "tokenizer.json").read_text())
    tokenizer["added_tokens"][0]["special"] = not tokenizer["added_tokens"][0]["special"]
    (spelled / "tokenizer.json").write_text(json.dumps(tokenizer))
    elsewhere = rewritten(run, tmp_path / "elsewhere")
    (elsewhere / "data.json").write_text(json.dumps({"content": "another"}))
    for words, sentence in {
        (run, "--steps", "0"): "--steps is '0'",
        (run, "--batch-size", "0"): "--batch-size is 0",
        (run, "--against", tmp_path / "none"): "does not exist",
        (run, "--data", tmp_path / "none.txt"): "none.txt",
        (vanilla, "--steps", "5"): "a table of 2 layers and cannot run at 5 steps",
        (run, "--against", spelled): "has another tokenizer than",
        (run, "--against", vanilla, elsewhere): "do not share one validation text",
    }.items():
        found = call("analyze", "depth", *words, "--to", tmp_path / "nothing")
        assert found.status == 2 and sentence in found.err and found.err.count("\n") == 1, found.err
    assert not (tmp_path / "nothing").exists()
