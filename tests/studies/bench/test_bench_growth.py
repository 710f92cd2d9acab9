"""What grows with what, how fast text becomes batches, and how long a command takes to start, at a tiny size."""

import dataclasses
import math
import sys

import pytest

from diffeqformer.config import Config, DataConfig, TrainerConfig
from diffeqformer.errors import BadInput
from diffeqformer.model.count import parameters, update_operations
from diffeqformer.progress import Silent
from diffeqformer.runs import folder
from diffeqformer.studies.bench import bench_scaling, bench_start, bench_text
from diffeqformer.studies.bench import benchmark as b
from tests.models import TINY

CONFIG = Config(model=TINY, trainer=TrainerConfig(batch_size=2, updates=10))


def operations(config):
    return update_operations(config.model, config.trainer.batch_size)


def test_the_exponent_of_a_power_is_found():
    slope, error = bench_scaling.exponent([2, 4, 8, 16], [3 * size**1.5 for size in (2, 4, 8, 16)])
    assert math.isclose(slope, 1.5) and error < 1e-6
    # Residuals of 1, -2, 1 times r of log2: the slope stays, its error is sqrt(6 r^2 / 1 / 2).
    slope, error = bench_scaling.exponent([1, 2, 4], [2**0.1, 2 * 2**-0.2, 4 * 2**0.1])
    assert math.isclose(slope, 1) and math.isclose(error, math.sqrt(0.06 / 2))


@pytest.fixture(scope="module")
def grown():
    """Rows in which an update takes a nanosecond an operation; what was timed."""
    timed: list[Config] = []

    def repeated(config):
        timed.append(config)
        return config

    def take_turns(updates, rounds, progress):
        assert rounds == 7 and len(set(updates.values())) == len(updates)
        return {name: [1e-9 * operations(one)] * rounds for name, one in updates.items()}

    growth = {"width": (8, 16, 32), "steps": (3, 6, 12), "context": (12, 24, 48), "d_emb": (6, 12, 24)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(b, "repeated", repeated)
        patch.setattr(b, "take_turns", take_turns)
        return bench_scaling.compare_scaling(CONFIG, 7, Silent(), growth), timed


def test_one_size_grows_at_a_time_and_a_point_is_timed_once(grown):
    rows, timed = grown
    assert [(row["axis"], row["model"]) for row in rows] == [
        ("width", "diffeqformer"), ("width", "vanilla"), ("steps", "diffeqformer"), ("steps", "vanilla"),
        ("context", "diffeqformer"), ("context", "vanilla"), ("d_emb", "diffeqformer"),
    ]  # fmt: skip
    assert len(timed) == 9 + 7  # (4 axes of 3 points, of which 4 are one) of DiffEqFormer; 3 axes of the vanilla model
    assert CONFIG in timed and {one.model.width for one in timed} == {8, 16, 32}
    assert {one.model.weights.d_emb for one in timed if one.model.time} == {6, 12, 24}


def test_time_is_fitted_beside_what_is_counted(grown):
    found = {(row["axis"], row["model"]): row for row in grown[0]}
    for row in found.values():
        assert row["exponents"]["time"] == pytest.approx(row["exponents"]["flops"])
    steps = found["steps", "vanilla"]
    assert steps["parameters"] == [
        parameters(dataclasses.replace(bench_scaling.as_model(CONFIG, "vanilla").model, steps=n)).stored
        for n in (3, 6, 12)
    ]
    assert found["steps", "diffeqformer"]["exponents"]["parameters"] == pytest.approx((0, 0))  # shared over depth
    assert 1 < found["context", "vanilla"]["exponents"]["flops"][0] < 2  # attention
    assert 0 < found["d_emb", "diffeqformer"]["exponents"]["flops"][0] < 1  # generation is a part
    point = found["d_emb", "diffeqformer"]["seconds"][0]
    assert point["ratio_of_medians"] == pytest.approx(
        operations(CONFIG) / operations(bench_scaling.as_model(CONFIG, "vanilla"))
    )


def test_text_tokens_and_batches_are_counted(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("one two three four\n" * 400)
    (tmp_path / "b.txt").write_text("five six seven\n" * 400)
    data = DataConfig(source="files", train=(str(tmp_path / "*.txt"),), tokenizer_vocabulary=280)
    updates: list[int] = []
    monkeypatch.setattr(b, "repeated", lambda config: lambda: updates.append(config.trainer.batch_size))
    rows = bench_text.compare_text(dataclasses.replace(CONFIG, data=data), 2, Silent(), characters=1)
    trained, packed, loaded, update = rows
    assert len(updates) == 2 + 2 and update["what"] == bench_text.UPDATE and update["tokens"] == 2 * TINY.context
    assert trained["bytes"] == packed["bytes"] in (19 * 400, 15 * 400)  # one document is enough
    assert loaded["bytes"] is None and loaded["tokens"] % update["tokens"] == 0
    assert packed["tokens"] <= loaded["tokens"] + TINY.context and packed["tokens"] < packed["bytes"]
    assert update["ratio_of_medians"] == 1 and all(row["median_seconds"] > 0 for row in rows)


def test_the_quickstarts_config_is_what_text_is_for():
    config = bench_text.shipped("quickstart-diffeqformer")
    assert config.data.source == "stdlib" and config.model.vocabulary == config.data.tokenizer_vocabulary == 2048


def test_commands_are_started_as_they_are_shown():
    for shown, (option, what, *rest) in bench_start.COMMANDS.items():
        assert shown.replace("'", "") == " ".join(["python", option, what, *rest] if option == "-c" else [what, *rest])
    rows = bench_start.compare_start(
        2, Silent(), {bench_start.PYTHON: ("-c", "pass"), "slow": ("-c", "import time; time.sleep(1)")}
    )
    assert [row["command"] for row in rows] == [bench_start.PYTHON, "slow"]
    assert rows[0]["ratio_of_medians"] == 1 and rows[1]["median_seconds"] > 1
    failing = {bench_start.PYTHON: ("-c", "import sys; sys.exit('diffeqformer: there is no run.')")}
    with pytest.raises(BadInput, match="failed: there is no run."):
        bench_start.compare_start(1, Silent(), failing)


def test_a_run_is_asked_again(tmp_path, monkeypatch):
    with pytest.raises(BadInput, match="run folder '.*nowhere' does not exist"):
        bench_start.study(bench_start.Arguments(run=str(tmp_path / "nowhere")), Silent())
    opened = []
    monkeypatch.setattr(folder, "open_config", opened.append)
    monkeypatch.setattr(b, "take_turns", lambda once, rounds, progress: {name: [1.0] * rounds for name in once})
    result = bench_start.study(bench_start.Arguments(run=str(tmp_path)), Silent())
    assert opened == [tmp_path]
    assert [row["command"] for row in result.document["rows"]] == [
        *bench_start.COMMANDS, *(f"diffeqformer {name} RUN, again" for name in ("info", "eval", "sample"))
    ]  # fmt: skip


def test_the_machine_is_described():
    found = b.machine()
    assert found["processor"] and found["cores"] >= 1 and found["device"] == "cpu"
    assert found["versions"]["python"] == ".".join(map(str, sys.version_info[:3])) and "jax" in found["versions"]
    assert b.sizes(CONFIG) == {
        "width": 16, "steps": 3, "heads": 2, "context": 12, "vocabulary": 40, "d_emb": 6, "batch": 2,
    }  # fmt: skip
