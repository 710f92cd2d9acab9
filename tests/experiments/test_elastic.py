"""One checkpoint beside models of one depth each: equal compute, rows, and nothing trained twice."""

import pytest

from diffeqformer.config import Config, DataConfig, dump_yaml, from_dict, read_yaml, shipped_configs
from diffeqformer.experiments import elastic
from diffeqformer.progress import Silent
from diffeqformer.training.depths import compute_of
from tests.runs.tiny_run import write_text

TINY = {
    "model": {"width": 16, "heads": 2, "context": 16, "steps": 4, "time": {"d_emb": 4, "frequencies": 3}},
    "trainer": {"batch_size": 2, "updates": 12},
}
DEPTH = {"sample": [2, 3, 4], "weights": [1.0, 2.0, 1.0], "shallow_fraction": 0.5, "jitter": 0.5}


@pytest.fixture
def plan(tmp_path, monkeypatch) -> elastic.Plan:
    vanilla = {"weights": "layer", "scheme": "lie-trotter", "horizon": "steps"}
    points = {
        "elastic": {"model": TINY["model"] | {"first_step": 0.4}, "depth": DEPTH},
        "dedicated": {},
        "vanilla": {"model": {name: value for name, value in TINY["model"].items() if name != "time"} | vanilla},
    }
    files = {}
    for kind, settings in points.items():
        path = tmp_path / f"{kind}.yaml"
        path.write_text(dump_yaml(from_dict(Config, TINY | settings)))
        files[elastic.CONFIGS[kind]] = path
    monkeypatch.setattr(elastic, "shipped_configs", lambda: files)
    text = str(write_text(tmp_path / "text.txt", lines=300))
    data = DataConfig(source="files", train=(text,), tokenizer_vocabulary=300, cache=str(tmp_path / "cache"))
    return elastic.Plan(depths=(2, 4), read=(2, 3, 4, 6), data=data)


def test_the_shipped_recipe_spends_what_the_quickstarts_models_do():
    elastic_, dedicated, vanilla = (read_yaml(shipped_configs()[name]) for name in elastic.CONFIGS.values())
    assert compute_of(dedicated) == compute_of(vanilla) == 1500 * 6
    assert compute_of(elastic_) == pytest.approx(9000, rel=0.003)
    assert min(elastic_.depth.depths) < elastic_.model.steps < max(elastic_.depth.depths)


@pytest.mark.slow
def test_all_spend_the_same_compute_and_finished_runs_are_kept(plan, tmp_path):
    found = elastic.reproduce(plan, 1, tmp_path / "seed-1", Silent())
    compute = {entry["role"]["kind"] + str(entry["steps"]): entry["role"]["compute"] for entry in found["models"]}
    spent = compute.pop("elastic4")
    # six updates at 2 steps, six drawn from 2, 3, 3, 4
    assert 6 * 2 + 6 * 2 < spent < 6 * 2 + 6 * 4
    assert set(compute) == {"dedicated2", "dedicated4", "vanilla2", "vanilla4"}
    assert all(abs(one - spent) <= int(name[-1]) / 2 for name, one in compute.items())
    assert all(entry["config"]["trainer"]["seed"] == 1 for entry in found["models"])
    assert found["models"][0]["name"] == "Elastic DiffEqFormer"

    rows = elastic.records([found])
    at = {(row["kind"], row["steps"]): row["perplexity"] for row in rows}
    assert {steps for kind, steps in at if kind == "elastic"} == {2, 3, 4, 6}
    assert {steps for kind, steps in at if kind == "fixed"} == {2, 3, 6}
    assert {kind for kind, steps in at if steps == 2} == {"elastic", "dedicated", "vanilla", "fixed"}

    checkpoints = {path: path.stat().st_mtime_ns for path in (tmp_path / "seed-1").glob("*/checkpoints/**/*")}
    assert checkpoints
    again = elastic.records([elastic.reproduce(plan, 1, tmp_path / "seed-1", Silent())])
    assert again == rows
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "seed-1").glob("*/checkpoints/**/*")} == checkpoints
