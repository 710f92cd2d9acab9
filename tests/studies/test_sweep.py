"""A sweep tries what it is asked to, ranks it, goes on where it was stopped, and survives a trial that diverges."""

import json
import math
from pathlib import Path

import pytest

from diffeqformer.cli import main
from diffeqformer.config import Config, dump_yaml
from diffeqformer.errors import BadInput
from diffeqformer.progress import Silent
from diffeqformer.runs import rehearsal, trainer
from diffeqformer.studies.sweep import Arguments, _findings, _name, study, trials_of
from tests.runs.conftest import cache, compiled, config, text  # noqa: F401
from tests.runs.tiny_run import changed


@pytest.fixture
def file(config, tmp_path) -> str:  # noqa: F811
    path = tmp_path / "base.yaml"
    path.write_text(dump_yaml(changed(config, trainer__updates=4, trainer__log_every=2)))
    return str(path)


def test_a_grid_has_all_combinations_in_order():
    found = trials_of(["optimizer.learning-rate=1e-3,3e-3", "optimizer.rule=adamw,muon"], None)
    assert found[0] == {"optimizer.learning_rate": 1e-3, "optimizer.rule": "adamw"}
    assert found[1] == {"optimizer.learning_rate": 1e-3, "optimizer.rule": "muon"} and len(found) == 4


def test_drawn_trials_lie_in_their_ranges_and_do_not_depend_on_their_number():
    over = ["optimizer.learning_rate=1e-4..1e-2", "model.steps=2..5", "optimizer.rule=adamw,lion"]
    many = trials_of(over, 200)
    assert many[:20] == trials_of(over, 20)
    rates = [trial["optimizer.learning_rate"] for trial in many]
    assert 1e-4 <= min(rates) < 2e-4 and 5e-3 < max(rates) <= 1e-2
    assert 80 < sum(rate < 1e-3 for rate in rates) < 120  # evenly on a logarithmic scale, four standard deviations
    assert {trial["model.steps"] for trial in many} == {2, 3, 4, 5}
    assert {trial["optimizer.rule"] for trial in many} == {"adamw", "lion"}
    assert trials_of(["data.tokenizer=../of.json,train"], None) == [
        {"data.tokenizer": "../of.json"}, {"data.tokenizer": "train"},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("over", "trials", "sentence"),
    [
        (["learning_rate=1"], None, "--over has 'learning_rate=1', but must be KEY=VALUES"),
        (["optimizer.learning_rate="], None, "must be KEY=VALUES"),
        (["optimizer.learning_rate=1e-3..1e-2"], None, "is a range, of which a grid has no points; give --trials"),
        (["optimizer.learning_rate=1e-2..1e-3"], 3, "a range must be two positive numbers that rise"),
        (["optimizer.rule=a..b"], 3, "a range must be two positive numbers that rise"),
        (["model.steps=2", "model.steps=3"], None, "--over has 2 settings, but 1 different names; name each once"),
        (["model.steps=2,3,2"], None, "--over model.steps has 2 more than once; each is a trial, so name it once"),
        (["trainer.seed=1,2"], None, "is no setting to search; --seeds are given by themselves"),
        (["model.steps=[1"], None, "is no value of a setting, but must be a number"),
    ],
)
def test_words_that_are_no_search_are_refused(over, trials, sentence):
    with pytest.raises(BadInput, match=sentence.replace("[", r"\[")):
        trials_of(over, trials)


def test_a_wrong_setting_or_value_is_refused_before_anything_is_trained(file, tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "train", None)
    with pytest.raises(BadInput, match=r"--updates is 5, but --over has trainer.updates; give one of them"):
        study(Arguments(file, ("trainer.updates=2,3",), updates=5, to=str(tmp_path / "sweep")), Silent())
    for over, sentence in [
        ("model.context=8,100000", "a context of 100000 needs at least 100001"),
        ("mesh.data=1,64", "mesh is data 64, which needs 64 devices"),
        ("optimizer.lerning_rate=1", "unknown key 'optimizer.lerning_rate': did you mean 'learning_rate'"),
        ("optimizer.learning_rate=1e-3,-1", "optimizer.learning_rate is -1.*must be a positive number"),
        ("optimizer.rule=adamw,sgd", "optimizer.rule is 'sgd', but must be one of"),
    ]:
        with pytest.raises(BadInput, match=sentence):
            study(Arguments(file, (over,), to=str(tmp_path / "sweep")), Silent())
    assert not (tmp_path / "sweep").exists()


def test_a_rule_that_nothing_follows_is_refused_before_anything_is_trained(config, tmp_path, monkeypatch):  # noqa: F811
    file = tmp_path / "norms.yaml"
    file.write_text(dump_yaml(changed(config, optimizer__train_roles=("norm",))))
    monkeypatch.setattr(trainer, "train", None)
    with pytest.raises(BadInput, match=r"optimizer.rule is 'muon', but none of the trained parameters"):
        study(Arguments(str(file), ("optimizer.rule=muon,adamw",), to=str(tmp_path / "sweep")), Silent())


def test_a_run_of_other_settings_is_refused_before_anything_is_trained(config, file, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(trainer, "train", None)
    second = tmp_path / "sweep" / "optimizer.learning_rate=0.001" / "seed-0"
    second.mkdir(parents=True)
    (second / "config.yaml").write_text(dump_yaml(changed(config, trainer__updates=3)))
    with pytest.raises(BadInput, match=r"belongs to another config: .* is .* there, but"):
        study(Arguments(file, ("optimizer.learning_rate=1e-2,1e-3",), to=str(tmp_path / "sweep")), Silent())


def test_a_folder_that_holds_a_run_is_refused(file, tmp_path, monkeypatch):
    monkeypatch.setattr(rehearsal, "made_ready", lambda *_: pytest.fail("the search went on"))
    (tmp_path / "config.yaml").write_text("run: other")
    with pytest.raises(BadInput, match=r"holds a run of its own; choose another folder with --to\.$"):
        study(Arguments(file, ("optimizer.learning_rate=1e-3",), to=str(tmp_path)), Silent())
    assert {path.name for path in tmp_path.iterdir()} == {"base.yaml", "config.yaml"}


def test_a_sweep_ranks_keeps_what_is_done_and_survives_a_divergent_trial(file, tmp_path, capsys, monkeypatch):
    words = ["sweep", file, "--over", "optimizer.learning_rate=1e-2,1e-3,1e18", "--seeds", "0", "1"]
    words += ["--to", str(tmp_path / "sweep"), "--updates", "4", "--json"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    ranked = found["trials"]
    assert [row["settings"]["optimizer.learning_rate"] for row in ranked] == [1e-2, 1e-3, 1e18]
    assert ranked[0]["loss"] < ranked[1]["loss"] and ranked[2]["loss"] is None and None in ranked[2]["losses"]
    assert math.isclose(ranked[0]["loss"], sum(ranked[0]["losses"]) / 2)
    page = Path(found["page"]).read_text()
    assert "has optimizer.learning_rate 0.01." in page and "2 seeds" in page and "1 stopped being finite" in page
    run = tmp_path / "sweep" / "optimizer.learning_rate=0.01" / "seed-1"
    entry = json.loads((run / "results.json").read_text())["models"][0]
    assert entry["validation"]["loss"] == ranked[0]["losses"][1] and entry["config"]["trainer"]["seed"] == 1
    before = (run / "results.json").read_bytes()
    assert main([word.replace(",1e18", "") for word in words]) == 0  # again, with fewer: what is done is kept
    assert (run / "results.json").read_bytes() == before
    assert json.loads(capsys.readouterr().out)["trials"] == ranked[:2]


def test_trials_whose_names_would_be_one_have_folders_of_their_own():
    """Beyond 200 characters, and where characters that no folder should have are replaced."""
    long = [f"optimizer.{name}=1e-3" for name in ("learning_rate", "b1", "b2", "epsilon", "weight_decay", "clip_norm")]
    long += [f"optimizer.{name}=0.5" for name in ("warmup_fraction", "final_fraction", "embedding_rate")]
    for over in ([*long, "optimizer.spike=2,3"], ["data.tokenizer=a/b,a b"]):
        first, second = trials_of(over, None)
        assert _name(first) != _name(second) and max(map(len, map(_name, (first, second)))) < 220
    for trial in ({"model.steps": 2, "optimizer.b2": 0.9}, {"optimizer.b2": 0.9, "model.steps": 2}):
        assert _name(trial) == "model.steps=2,optimizer.b2=0.9"


def test_trials_of_other_batches_or_lengths_are_not_called_alike():
    rows = [{"settings": {"a": k}, "loss": 3.0 + k} for k in range(2)]
    of = lambda *changes: _findings(
        rows, [changed(Config(), **one) for one in changes], Arguments("c.yaml", ("a=0,1",))
    )[1]
    assert of({}, {}).endswith("Each is on the same batches of 16 x 128 tokens.")
    assert of({}, {"trainer__batch_size": 8}).endswith("They do not see the same tokens.")
    longer = of({"trainer__updates": 10}, {"trainer__updates": 20})
    assert "of 10 to 20 updates" in longer and longer.endswith("They do not see the same tokens.")
    assert "Their texts differ" in of({}, {"data__train": ("a.txt",)})


def test_where_no_trial_ends_none_is_advised():
    rows = [{"settings": {"a": k}, "loss": math.inf} for k in range(3)]
    said = _findings(rows, [Config()] * 3, Arguments("c.yaml", ("a=0,1,2",)))
    assert said[0] == "No trial came to an end with finite numbers." and len(said) == 2
    ended = [row | {"loss": float(k)} for k, row in enumerate(rows)]
    assert (
        "The best a lies at the end of what was tried"
        in _findings(ended, [Config()] * 3, Arguments("c.yaml", ("a=0,1,2",)))[2]
    )
    assert _findings(ended[:1], [Config()], Arguments("c.yaml", ("a=0,1,2",)))[1].startswith("1 trial of ")


def test_a_seed_is_named_once(file, tmp_path):
    with pytest.raises(BadInput, match="--seeds names 0 more than once"):
        study(Arguments(file, ("optimizer.rule=adamw",), seeds=(0, 1, 0), to=str(tmp_path / "sweep")), Silent())
