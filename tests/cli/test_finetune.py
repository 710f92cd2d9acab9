"""`finetune` from the command line: its run, its numbers, its report, its second call."""

import dataclasses
import json
from types import SimpleNamespace

import pytest

from diffeqformer.cli.finetune import Arguments, _about, _depth, _text
from diffeqformer.config import BaseConfig, Config, DataConfig, DepthConfig, ModelConfig, OptimizerConfig, dump_yaml
from diffeqformer.runs.opening import load_run
from diffeqformer.store.files import read_sealed, write_sealed


@pytest.fixture
def other_text(tmp_path):
    path = tmp_path / "other.txt"
    path.write_text("THE RIVER LIKES SONGS.\n" * 300)
    return path


SHORT = ("--trainer.updates", 4, "--trainer.evaluate-every", 2)


def test_another_depth_by_lora_becomes_a_run_with_a_report(call, place, tmp_path, other_text):
    words = ("finetune", place.run("time"), "--steps", 3, "--data", other_text, "--to", tmp_path / "run", "--rank", 2)
    called = call(*words, *SHORT, "--json")
    assert called.status == 0, called.err
    entry = json.loads(called.out)["models"][0]
    run = load_run(tmp_path / "run")
    assert (entry["steps"], run.config.model.weights.lora.rank, run.step) == (3, 2, 4)
    start, end = entry["curve"]["validation"][0], entry["curve"]["validation"][-1]
    assert start[0] == 0 and end[0] == 4 and end[1] < start[1]
    assert f"training {entry['parameters']['trained']:,} of {entry['parameters']['stored']:,} parameters" in called.err
    assert run.config.optimizer.learning_rate == 1e-2  # the base's, and the highest that is taken unasked
    report = (tmp_path / "run" / "report.html").read_text()
    assert "LoRA of rank 2" in report
    again = call(*words, *SHORT, "--json")
    assert again.status == 0 and json.loads(again.out) == json.loads(called.out)
    evaluated = call("eval", tmp_path / "run", "--json")
    assert json.loads(evaluated.out)["evaluations"][0]["loss"] == pytest.approx(entry["validation"]["loss"], abs=1e-5)


def test_without_words_it_adapts_to_its_own_text(call, place):
    called = call("finetune", place.run("layer"), "--method", "full", "--no-train-embeddings", *SHORT)
    assert called.status == 0, called.err
    run = load_run(f"{place.run('layer')}-full-2")
    assert run.config.optimizer.train_roles == ("matrix", "bias", "norm")
    assert run.config.data.train == load_run(place.run("layer")).config.data.train


def test_an_imported_model_needs_a_text(call, place, tmp_path):
    import shutil

    shutil.copytree(place.run("layer"), tmp_path / "imported")
    for manifest in tmp_path.glob("imported/checkpoints/*/manifest.json"):
        content = read_sealed(manifest)
        content["metadata"]["origin"] = "imported"
        write_sealed(manifest, content)
    called = call("finetune", tmp_path / "imported", *SHORT)
    assert called.status == 2 and "holds an imported model, which has no text of its own; name some" in called.err


def test_settings_of_a_section_that_the_base_chose_can_be_given(call, tmp_path):
    base = Config(model=ModelConfig(vocabulary=280), optimizer=OptimizerConfig(schedule="trapezoidal"))
    (tmp_path / "config.yaml").write_text(dump_yaml(base))
    called = call("finetune", tmp_path, "--optimizer.schedule.decay-fraction", 0.5)
    assert called.status == 2 and "has no checkpoint yet" in called.err


def test_new_files_are_not_mixed_by_the_weights_of_the_bases_own():
    own = DataConfig(source="files", train=("a.txt", "b.txt"), weights=(3.0, 1.0), stream=100)
    found = _text(SimpleNamespace(config=SimpleNamespace(data=own)), Arguments("base", data=("c.txt",)))
    assert (found.train, found.weights, found.stream, found.puzzle) == (("c.txt",), (), 0, None)


def test_new_depths_are_not_drawn_by_the_shares_of_the_bases_own():
    base = SimpleNamespace(config=Config(depth=DepthConfig((2, 4), weights=(1.0, 5.0), jitter=0.5)))
    found = _depth(base, Arguments("base", method="continuous", depths=(3, 9)))
    assert found == DepthConfig((3, 9), jitter=0.5)
    assert _depth(base, Arguments("base", method="continuous")) == base.config.depth


def test_all_parameters_are_a_hundred_per_cent():
    model = ModelConfig(steps=2, width=16, heads=2, context=16, vocabulary=280)
    said = _about(Config(base=BaseConfig(system="DiffEqFormer 3"), model=model))
    assert said.startswith("DiffEqFormer 3 → 2 steps (time weights): training ") and "parameters (100 %)" in said
    one = _about(Config(base=BaseConfig(system="DiffEqFormer 3"), model=dataclasses.replace(model, steps=1)))
    assert one.startswith("DiffEqFormer 3 → 1 step (time weights)")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--depths", 2, 3, "--depth.sample", 3), "--depths is 2 3, but --depth.sample (3,); give one of them."),
        (("--data", "a.txt", "--data.train", "b.txt"), "--data is a.txt, but --data.train ('b.txt',); give one"),
    ],
)
def test_a_short_option_and_the_full_one_do_not_contradict_each_other(call, place, tmp_path, words, sentence):
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("some text of its own\n" * 50)
    words = [str(tmp_path / word) if str(word).endswith(".txt") else word for word in words]
    called = call("finetune", place.run("time"), "--method", "continuous", *words, "--to", tmp_path / "to")
    assert called.status == 2 and called.err.replace(f"{tmp_path}/", "").count(sentence) == 1
    assert not (tmp_path / "to").exists()
