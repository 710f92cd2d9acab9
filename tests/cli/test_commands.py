"""Every verb from its arguments to what it prints, on runs that take a second."""

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import pytest

from diffeqformer.cli import VERBS, parse, quickstart, sample
from diffeqformer.cli.parse import ConfigArguments, arguments_from
from diffeqformer.config import (
    Config,
    LoRAConfig,
    RotaryScalingConfig,
    ToleranceConfig,
    dump_yaml,
    read_yaml,
    validate,
)
from diffeqformer.errors import BadInput
from diffeqformer.runs import compare
from diffeqformer.runs.opening import load_run
from diffeqformer.store import paths
from diffeqformer.store.files import SEAL
from diffeqformer.training import loop
from tests.cli.conftest import write_config
from tests.runs.tiny_run import forget, write_text

CONFIGS = parse.shipped_configs()


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def strict_json(text: str):
    def refuse(constant: str):
        raise AssertionError(constant)

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("verb", VERBS)
def test_help_shows_an_example(call, verb):
    called = call(verb, "--help")
    assert called.status == 0 and called.err == ""
    assert f"Example: diffeqformer {verb}" in called.out and "traceback" not in called.out.lower()


def test_help_of_all(call):
    for words in ([], ["--help"], ["-h"], ["help"]):
        called = call(*words)
        assert called.status == 0 and all(verb in called.out for verb in VERBS)


def test_help_of_train_shows_groups_and_the_configs_own_defaults(call):
    called = call("train", "--help")
    for group in ("model", "model.weights", "model.dropout", "data", "optimizer", "trainer"):
        assert f" {group} options " in called.out
    assert "CONFIG" in called.out and "quickstart-gpt" in called.out
    assert "runs/quickstart/gpt" in call("train", "quickstart-gpt", "--help").out


def test_version(call):
    called = call("--version")
    assert called.status == 0 and called.out.startswith("diffeqformer ") and f"jax {jax.__version__}" in called.out
    document = strict_json(call("--version", "--json").out)
    assert document["jax"] == jax.__version__ and len(document["devices"]) == len(jax.devices())
    assert strict_json(call("--json").out) == VERBS


@pytest.mark.parametrize("name", CONFIGS)
def test_shipped_configs_are_valid(name):
    config = validate(read_yaml(CONFIGS[name]))
    assert config.run.startswith("runs/")


def test_training_again_returns_the_same_results(call, place, monkeypatch):
    report = place.run("time") / "report.html"
    report.unlink()
    monkeypatch.setattr(loop, "make_update", None)
    called = call("train", place.time, "--json")
    document = strict_json(called.out)
    kept = strict_json((place.run("time") / "results.json").read_text())
    del kept[SEAL]
    assert called.status == 0 and document == kept
    assert [model["key"] for model in document["models"]] == ["diffeqformer"]
    assert 'href="analysis/index.html"' in report.read_text()
    assert 'href="../report.html"' in (report.parent / "analysis" / "index.html").read_text()
    assert "<html" in report.read_text() and str(report) in called.err
    table = call("train", place.layer)
    entry = strict_json((place.run("layer") / "results.json").read_text())["models"][0]
    assert table.status == 0 and f"{entry['validation']['loss']:.4f}" in table.out and "NFE" in table.out
    assert entry["evaluations"] == {"attention": 2, "feed_forward": 2}


def test_a_copied_runs_config_does_not_train_the_one_that_it_was_copied_from(call, place, tmp_path):
    copy = shutil.copytree(place.run("time"), tmp_path / "copy")
    report = (place.run("time") / "report.html").read_bytes()
    called = call("train", copy / "config.yaml")
    assert (
        called.status == 2
        and f"lies in the run folder {str(copy)!r}, but names {str(place.run('time'))!r}" in called.err
    )
    (copy / "report.html").unlink()
    shutil.rmtree(copy / "analysis", ignore_errors=True)
    assert call("train", copy / "config.yaml", "--run", copy).status == 0
    assert (copy / "analysis" / "index.html").is_file() and (copy / "report.html").is_file()
    assert (place.run("time") / "report.html").read_bytes() == report


@pytest.mark.slow
def test_a_run_at_drawn_depths_tells_of_each(call, place, tmp_path):
    called = call("train", place.time, "--run", tmp_path / "run", "--depth.sample", "2", "3", "--trainer.updates", "6")
    assert called.status == 0, called.err
    _, table = called.out.split("in training, by depth")
    rows = [line.split() for line in table.strip().splitlines()]
    assert [row[0] for row in rows[1:]] == ["2", "3"] and sum(int(row[1]) for row in rows[1:]) == 6


@pytest.mark.parametrize(("word", "tied"), [("true", True), ("False", False), ("null", None), ("None", None)])
def test_true_and_false_are_spelled_as_in_yaml_or_in_python(word, tied):
    for words in (["--model.tied", word], [f"--model.tied={word}"]):
        assert arguments_from(["quickstart-llama", *words], "train", ConfigArguments).settings.model.tied is tied


@pytest.mark.parametrize("kind", ["layer", "knots", "levels"])
def test_a_setting_of_adapters_adds_them(kind):
    words = ["quickstart-gpt", "--model.weights", kind, "--model.weights.lora.rank", "2"]
    assert arguments_from(words, "train", ConfigArguments).settings.model.lora == LoRAConfig(2)


def test_a_section_inside_a_choice_is_added_by_its_settings_and_removed_by_none(tmp_path):
    read = lambda *words: arguments_from(words, "train", ConfigArguments).settings.model
    added = read("quickstart-llama", "--model.field.rope-scaling.low_freq_factor", "2", "--model.weights.lora.rank=2")
    assert added.field.rope_scaling == RotaryScalingConfig(low_freq_factor=2.0) and added.lora == LoRAConfig(2)
    path = tmp_path / "config.yaml"
    path.write_text(dump_yaml(Config(model=added)))
    for words in (["None"], ["null"]):
        removed = read(str(path), "--model.field.rope_scaling", *words, "--model.weights.lora", *words)
        assert removed.field.rope_scaling is None and removed.lora is None
    with pytest.raises(BadInput, match="^--model.weights.lora is 'yes', but must be one of 'None'"):
        read(str(path), "--model.weights.lora", "yes")


def test_null_is_none_wherever_a_setting_may_be_absent():
    words = ["quickstart-gpt", "--model.hidden", "null", "--optimizer.spike=null", "--data.text-field", "null"]
    found = arguments_from(words, "train", ConfigArguments).settings
    assert (found.model.hidden, found.optimizer.spike, found.data.text_field) == (None, None, "null")


def test_lists_of_numbers_may_have_commas():
    for words in (["2", "4", "8"], ["2,4,8"], ["2,4", "8"], ["2,", "4", ",8"], ["[2, 4, 8]"], ["[2,", "4", "8]"]):
        given = ["--depth.always", *words, "--depth.sample=16,32", "--model.edges", "0,.5,1", "--data.train", "a,b"]
        found = arguments_from(["depth-nested", *given], "train", ConfigArguments).settings
        assert (found.depth.always, found.depth.sample, found.model.edges) == ((2, 4, 8), (16, 32), (0, 0.5, 1))
        assert found.data.train == ("a,b",)  # which is a file's name
    for wrong in ("2,,4", ",", "2,x"):
        with pytest.raises(BadInput, match="--depth.always is .*, but must be numbers, such as 2 4 8 or 2,4,8"):
            arguments_from(["depth-nested", "--depth.always", wrong], "train", ConfigArguments)
    found = arguments_from(["depth-nested", "--depth.sample", "[12,4-9]"], "train", ConfigArguments).settings
    assert found.depth.depths == (12, 4, 5, 6, 7, 8, 9)
    with pytest.raises(BadInput, match="--depth.sample is '4-9', '12', but must be numbers, .*, or a single word"):
        arguments_from(["depth-nested", "--depth.sample", "4-9", "12"], "train", ConfigArguments)
    with pytest.raises(BadInput, match="--depth.always is '2', 'x', but must be numbers, such as 2 4 8 or 2,4,8"):
        arguments_from(["depth-nested", "--depth.always=2,x"], "train", ConfigArguments)


def test_a_list_that_is_given_twice_is_refused():
    for name, again in (("data.train", "data.train=b.txt"), ("depth.always", "depth.always"), ("model.edges",) * 2):
        with pytest.raises(BadInput, match=f"^--{name} is given 2 times; name all that it has after one of them"):
            arguments_from(["depth-nested", f"--{name}", "1", f"--{again}", "2"], "train", ConfigArguments)
    found = arguments_from(["quickstart-gpt", "--run", "a", "--run", "b"], "train", ConfigArguments)
    assert found.settings.run == "b"  # as in any shell: the last one counts


def test_a_horizon_is_a_word_or_a_number():
    for word, horizon in {"unit": "unit", "steps": "steps", "6": 6.0, "2.5": 2.5}.items():
        words = ["quickstart-gpt", "--model.horizon", word]
        assert arguments_from(words, "train", ConfigArguments).settings.model.horizon == horizon


def test_options_may_stand_before_the_config(call, place, tmp_path):
    words = ["--run", tmp_path / "run", "--trainer.updates=1", "--model.norm-epsilon", "1e-4", place.layer, "--json"]
    called = call("train", *words)
    assert called.status == 0
    config = strict_json(called.out)["models"][0]["config"]
    assert (config["trainer"]["updates"], config["model"]["norm_epsilon"], config["model"]["width"]) == (1, 1e-4, 16)


def test_evaluates_at_any_steps(call, place):
    called = call("eval", "--steps", "1,2,3", place.run("time"), "--json")
    found = strict_json(called.out)
    results = strict_json((place.run("time") / "results.json").read_text())
    losses = {row["steps"]: row["loss"] for row in found["evaluations"]}
    assert called.status == 0 and found["update"] == 8 and list(losses) == [1, 2, 3]
    assert losses[2] == pytest.approx(results["models"][0]["validation"]["loss"], rel=1e-5)
    assert len(set(losses.values())) == 3
    assert {row["tokens"] for row in found["evaluations"]} == {results["corpus"]["validation_tokens"] - 1}
    table = call("eval", place.run("time"), "--steps", "1")
    assert table.status == 0 and f"{losses[1]:.4f}" in table.out


def test_evaluates_on_other_text(call, place, tmp_path):
    other = write_text(tmp_path / "other.txt", lines=20, seed=1)
    called = call("eval", place.run("layer"), "--data", other, "--json")
    assert called.status == 0, called.err
    (row,) = strict_json(called.out)["evaluations"]
    tokens = len(load_run(place.run("layer")).tokenizer.encode(other.read_text()).ids) + 1
    assert row["tokens"] == tokens - 1


def test_evaluates_on_another_field_than_the_run_was_trained_on(call, place, tmp_path):
    path = tmp_path / "other.jsonl"
    path.write_text('{"content": "THE RIVER LIKES SONGS."}\n' * 30)
    words = ("eval", place.run("layer"), "--data", path)
    called = call(*words)
    assert called.status == 2 and "no field 'text', but 'content'; name the right one as data.text_field" in called.err
    assert call(*words, "--text-field", "content").status == 0
    called = call("eval", place.run("layer"), "--text-field", "content")
    assert called.status == 2 and "--text-field is content, but without --data nothing reads it" in called.err


def test_evaluates_by_other_schemes_and_with_adaptive_steps(call, place):
    run = place.run("time")
    by_heun = strict_json(call("eval", run, "--scheme", "heun", "--steps", "2,3", "--json").out)["evaluations"]
    assert [(row["steps"], row["scheme"], row["attention_evaluations"]) for row in by_heun] == [
        (2, "heun", 4.0), (3, "heun", 6.0)
    ]  # fmt: skip
    split = call("eval", run, "--scheme", "macaron")
    assert split.status == 0 and "macaron" in split.out and " 2 + 4 " in split.out
    adaptive = call("eval", run, "--tolerance", "1e-2", "--json")
    assert "the run's scheme, euler, has no error estimate to choose steps by; diffrax:Tsit5 is used." in adaptive.err
    (row,) = strict_json(adaptive.out)["evaluations"]
    assert (row["steps"], row["scheme"], row["rtol"]) == (None, "diffrax:Tsit5", 0.01)
    assert row["attention_evaluations"] == row["feed_forward_evaluations"] > 6
    table = call("eval", run, "--scheme", "heun", "--tolerance", "1e-2")
    assert table.status == 0 and "adaptive (rtol 0.01)" in table.out and "is used" not in table.err


@pytest.fixture
def adaptive_run(place, tmp_path) -> Path:
    """The run `time` with a tolerance in its config."""
    run = forget(shutil.copytree(place.run("time"), tmp_path / "run"))
    config = read_yaml(run / "config.yaml")
    model = dataclasses.replace(config.model, scheme="diffrax:Bosh3", tolerance=ToleranceConfig(rtol=0.1))
    (run / "config.yaml").write_text(dump_yaml(dataclasses.replace(config, model=model)))
    return run


def test_a_run_with_a_tolerance_is_evaluated_adaptively_and_sampled_on_the_grid(call, adaptive_run):
    adaptive, fixed, other = (
        strict_json(call("eval", adaptive_run, *more, "--json").out)["evaluations"][0]
        for more in ([], ["--steps", 2], ["--scheme", "rk4"])
    )
    assert adaptive["attention_evaluations"] > 6 and (adaptive["rtol"], adaptive["steps"]) == (0.1, None)
    assert (fixed["steps"], fixed["attention_evaluations"], fixed["rtol"]) == (2, 6.0, None)
    assert (other["steps"], other["attention_evaluations"], other["scheme"]) == (2, 8.0, "rk4")
    assert call("sample", adaptive_run, "--prompt", "the", "--tokens", 2).status == 0
    refused = call("eval", adaptive_run, "--early-exit", "0.1")
    assert refused.status == 2 and "but model.tolerance chooses the steps; give --steps." in refused.err
    depth = strict_json(call("analyze", "depth", adaptive_run, "--steps", 2, "--json").out)
    assert "trained with adaptive steps (rtol 0.1)" in depth["finding"]
    assert depth["adaptive"]["loss"] == pytest.approx(adaptive["loss"], abs=1e-5) and depth["trained_at"] == []
    assert [point["steps"] for point in depth["depths"]] == [2]


@pytest.mark.slow
def test_trains_with_adaptive_steps(call, place, tmp_path):
    words = ["--model.scheme", "diffrax:Bosh3", "--model.tolerance.rtol", "1e-2", "--trainer.updates", 1]
    words += ["--model.weights.highest-frequency", 4, "--trainer.evaluate-batches", 1]
    called = call("train", place.time, "--run", tmp_path / "run", *words, "--json")
    assert called.status == 0, called.err
    (entry,) = strict_json(called.out)["models"]
    assert entry["evaluations"]["attention"] == entry["evaluations"]["feed_forward"] > 6
    assert "adaptive (rtol 0.01)" in (tmp_path / "run" / "report.html").read_text()
    told = call("info", tmp_path / "run" / "config.yaml")
    assert told.status == 0 and "the tolerance will choose its own" in told.out


@pytest.mark.parametrize("prompt", ["--- a/cat", "- the cat", "--seed=1 cat"])
def test_a_prompt_may_start_with_dashes(prompt):
    words = [f"--prompt={prompt}"] if prompt.startswith("--seed") else ["--prompt", prompt]
    assert parse.parse(sample.Arguments, ["run", *words], "diffeqformer sample").prompt == prompt


def test_a_solver_that_gives_up_is_reported_in_one_sentence(call, monkeypatch):
    class EquinoxRuntimeError(Exception):
        pass

    def give_up(words, as_json):
        raise EquinoxRuntimeError("The maximum number of solver steps was reached.\n----\nmany lines")

    monkeypatch.setattr(sample, "run", give_up)
    called = call("sample", "run", "--prompt", "x")
    assert called.status == 1 and called.err == (
        "diffeqformer: adaptive steps did not reach the end of depth: more than model.tolerance.max_steps are needed, "
        "or the state is not finite; a larger tolerance, or fixed steps, may get there.\n"
    )


def test_samples(call, place):
    words = ["sample", place.run("time"), "--prompt", "the cat", "--tokens", 5, "--count", 2]
    first = call(*words)
    assert first.status == 0 and first.out.count("the cat") == 2
    assert call(*words).out == first.out
    assert call(*words, "--seed", 1).out != first.out
    document = strict_json(call(*words, "--json").out)
    assert document["prompt"] == "the cat" and len(set(document["continuations"])) == 2
    assert all(f"the cat{text}" in first.out for text in document["continuations"])
    assert call(*words, "--temperature", 0, "--steps", 3, "--checkpoint", "best").status == 0
    assert call(*words, "--scheme", "strang").status == 0


def test_drafts_leave_greedy_text_as_it_is(call, place):
    words = ["sample", place.run("time"), "--prompt", "the cat", "--tokens", 6, "--steps", 4]
    words += ["--temperature", 0, "--json"]
    plain = strict_json(call(*words).out)
    assert "of the tokens drafted at 1 step were accepted" in call(*words, "--draft-steps", 1).err
    called = call(*words, "--draft-steps", 2, "--draft-length", 3)
    document = strict_json(called.out)
    assert document["continuations"] == plain["continuations"]
    assert 0 <= document["drafts"]["acceptance"] <= 1 and 1 <= document["drafts"]["tokens_per_verification"] <= 4
    assert "of the tokens drafted at 2 steps were accepted" in called.err
    assert "tokens per verification at 4 steps" in called.err
    alone = call(*(1 if word == 6 else word for word in words), "--draft-steps", 1)
    assert strict_json(alone.out)["drafts"] == {"acceptance": None, "tokens_per_verification": None}
    assert "Nothing was drafted: a single new token comes from reading the prompt." in alone.err


def test_early_exit_takes_fewer_steps_the_larger_its_threshold(call, place):
    words = ["eval", place.run("time"), "--steps", 6, "--early-exit", "1e-9,1e9", "--json"]
    whole, none, most = strict_json(call(*words).out)["evaluations"]
    assert [row["early_exit"] for row in (whole, none, most)] == [None, 1e-9, 1e9]
    assert whole["attention_evaluations"] == none["attention_evaluations"] == 6 > most["attention_evaluations"] == 2
    assert none["loss"] == pytest.approx(whole["loss"], rel=1e-5) and most["loss"] != pytest.approx(
        whole["loss"], rel=1e-5
    )
    assert "6 at most (settled within 1e+09)" in call(*words[:-1]).out


@pytest.mark.parametrize("kind", ["time", "layer"])
def test_info_of_a_run_counts_its_parameters(call, place, kind):
    run = load_run(place.run(kind))
    document = strict_json(call("info", "--no-memory", place.run(kind), "--json").out)  # in any order
    counts = document["models"]["this model"]["parameters"]
    count = lambda model: sum(leaf.size for leaf in jax.tree.leaves(model))
    assert counts == {"stored": count(run.model), "effective": count(run.model.populate(run.config.model.steps))}
    assert (kind == "time") == bool(document["d_emb"])
    memory = document["models"]["this model"]["memory_bytes"]
    assert memory["weights"] > 0 and memory["total"] is None  # nothing was compiled


def test_info_of_a_damaged_run_has_no_numbers(call, place, tmp_path):
    folder = shutil.copytree(place.run("time"), tmp_path / "run")
    text = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(text.replace("  width: 16\n", "  width: 32\n"))
    called = call("info", folder)
    assert called.status == 1 and "model.width is 32, but the checkpoint" in called.err and not called.out
    (folder / "config.yaml").write_text(text)
    (folder / "results.json").write_text((folder / "results.json").read_text().replace("1", "2", 1))
    compared = call("report", "compare", folder, place.run("layer"))
    assert compared.status == 1 and "does not match its digest; the run's own command writes it again." in compared.err


def test_an_analysis_is_refused_where_its_page_could_not_be_linked(call, place, monkeypatch):
    access = paths.os.access
    monkeypatch.setattr(paths.os, "access", lambda path, mode: Path(path).name != "analysis" and access(path, mode))
    (place.run("time") / "analysis").mkdir(exist_ok=True)
    called = call("analyze", "spectra", place.run("time"))
    assert called.status == 2 and "analysis' cannot be written: Permission denied." in called.err


@pytest.mark.slow
def test_info_of_a_config(call, place):
    table = call("info", place.time, "--model.vocabulary", 280)
    assert table.status == 0, table.err
    assert "parameters, stored" in table.out and "d_emb" in table.out and "--memory" in table.out
    planned = call("info", place.time, "--model.vocabulary", 280, "--memory")
    assert "activations, workspace" in planned.out and "as the compiled update plans it" in planned.out
    strang = call("info", place.time, "--model.scheme", "strang", "--json")
    assert strict_json(strang.out)["models"]["this model"]["evaluations"] == {"attention": 4, "feed_forward": 8}
    document = strict_json(call("info", place.time, "--json").out)
    counts = [document["models"][name]["parameters"] for name in ("this model", "vanilla twin")]
    assert counts[0]["effective"] == counts[1]["stored"] == counts[1]["effective"]


@pytest.mark.slow
def test_quickstart_compares_three_models_and_goes_on_where_it_was_stopped(call, place, tmp_path, monkeypatch):
    kinds = {"diffeqformer": "time", "gpt": "layer", "shared": "shared"}
    for key, kind in kinds.items():
        write_config(tmp_path / f"tiny-{key}.yaml", kind, tmp_path / "unused", place.text, place.cache)
    monkeypatch.setattr(quickstart, "MODELS", {f"tiny-{key}.yaml": 0.0 for key in kinds})
    monkeypatch.setattr(quickstart, "DEPTHS", (1, 2, 3))
    monkeypatch.setattr(quickstart, "MINUTES", 1.0)
    monkeypatch.setattr(quickstart, "PROMPT", "the")
    monkeypatch.setattr(compare, "plan", lambda costs, *_, **__: [20] * len(costs))
    called = call("quickstart", "--minutes", 0.5, "--json")
    assert called.status == 0, called.err
    folder = Path("runs/quickstart-0.5-minutes")
    document = strict_json(called.out)
    kept = strict_json((folder / "results.json").read_text())
    assert kept.pop("digest") and document == kept
    keys = [model["key"] for model in document["models"]]
    assert keys == ["diffeqformer", "vanilla", "shared"]
    assert [[row["steps"] for row in model["depth"]] for model in document["models"]] == [[1, 2, 3], [2], [1, 2, 3]]
    assert all(model["updates"] == 20 and model["sample"]["text"] for model in document["models"])
    records = [strict_json(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert {record["model"] for record in records} == set(keys)
    assert all(record["step"] >= 1 for record in records)
    updates = [record for record in records if record["kind"] == "update"]
    assert len(updates) == 3 * 20
    assert "<html" in (folder / "report.html").read_text() and str(folder / "report.html") in called.err
    assert {path.name for path in folder.iterdir() if path.is_dir()} == set(kinds)
    assert "plan: DiffEqFormer 20 updates, Vanilla GPT 20 updates, Shared weights 20 updates; until about" in called.err
    assert {path.name for path in folder.glob("*/checkpoints/*/*")} == {"model", "manifest.json"}

    # Killed while the second model was trained, the same command keeps to the plan, and every number is the same.
    measured = []
    monkeypatch.setattr(compare, "measure", lambda *_: measured.append(1))
    shutil.rmtree(folder / "shared")
    (folder / "gpt" / "results.json").unlink()
    shutil.rmtree(folder / "gpt" / "checkpoints")
    called = call("quickstart", "--minutes", 0.5, "--json")
    assert f"going on with the plan in {folder / 'plan.json'}: diffeqformer 20 updates, gpt 20" in called.err
    again = strict_json(called.out)
    for model in (*again["models"], *document["models"]):
        del model["seconds"], model["tokens_per_second"]
    assert not measured and again["models"] == document["models"]
