"""The benchmarks at a tiny size; what they time is not looked at."""

import dataclasses
import json
import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffeqformer.analysis import reading
from diffeqformer.cli import main
from diffeqformer.config import Config, TrainerConfig
from diffeqformer.progress import Silent
from diffeqformer.runs import footprint
from diffeqformer.studies.bench import (
    bench_explorer,
    bench_finetune,
    bench_generate,
    bench_memory,
    bench_schemes,
    bench_train,
)
from diffeqformer.studies.bench import benchmark as b
from diffeqformer.training.optimizer import learning_rate, optimizer
from diffeqformer.training.update import State, make_update
from tests.models import TINY, model_of

LAYERS = dataclasses.replace(TINY, weights="layer")
CONFIG = Config(model=LAYERS, trainer=TrainerConfig(batch_size=2, updates=10))


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    model = dataclasses.replace(LAYERS, scheme="reversible")
    return bench_memory.gradient_memory(model, 8, (12, 96), Silent())


@pytest.mark.slow
def test_each_method_needs_less_memory_than_the_one_before(rows):
    deep = {row["gradient"]: row["temporary_bytes"] for row in rows if row["steps"] == 96}
    assert tuple(deep) == bench_memory.METHODS
    assert deep["plain"] > 2 * deep["checkpointed"] > 4 * deep["recursive"] > 4 * deep["reversible"] > 0
    assert all(row["peak_bytes"] == 2 * row["weights_bytes"] + row["temporary_bytes"] for row in rows)


def test_the_reversible_gradient_needs_the_same_memory_at_any_depth(rows):
    grown = {method: bench_memory.growth(rows, method) for method in bench_memory.METHODS}
    assert all(found and found[:2] == (12, 96) for found in grown.values())
    ratio = {method: found[2] for method, found in grown.items() if found}
    assert ratio["reversible"] <= 1.1 < ratio["recursive"] < 2
    assert ratio["checkpointed"] > 3 and ratio["plain"] > 6


def test_generated_weights_are_stated():
    model = dataclasses.replace(TINY, scheme="reversible")
    few, many = bench_memory.gradient_memory(model, 2, (2, 4), Silent(), ("reversible",))
    assert 0 < few["generated_bytes"] == many["generated_bytes"] / 2 < many["temporary_bytes"]
    assert few["weights_bytes"] == many["weights_bytes"]


def test_memory_on_the_command_line(rows, tmp_path, monkeypatch, capsys):
    asked: list[tuple] = []
    monkeypatch.setattr(bench_memory, "gradient_memory", lambda *arguments: asked.append(arguments) or rows)
    words = ["bench", "memory", "--weights", "shared", "--steps", "96,12", "--figure"]
    assert main([*words, str(tmp_path / "memory.png"), "--json"]) == 0
    assert (tmp_path / "memory.png").read_bytes().startswith(b"\x89PNG")
    document = json.loads(capsys.readouterr().out)
    assert (
        document["rows"] == rows and document["command"] == "diffeqformer bench memory --weights shared --steps 96,12"
    )
    assert asked[0][0].weights.kind == "shared" and asked[0][2] == [12, 96]
    assert main([*words, str(tmp_path / "memory.svg")]) == 0
    drawn = (tmp_path / "memory.svg").read_text()
    assert all(word in drawn for word in (*bench_memory.METHODS, "12", "96", "MiB"))
    table = capsys.readouterr().out
    assert "MiB" in table and table.count("\nrecursive") == 2


@pytest.mark.slow
def test_a_row_a_scheme(monkeypatch, capsys):
    monkeypatch.setattr(bench_schemes, "STANDARD", CONFIG)
    monkeypatch.setattr(bench_schemes, "all_schemes", lambda: ("euler", "heun", "diffrax:Bosh3"))
    assert main(["bench", "schemes", "--rounds", "7", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    hand_written, euler, heun, bosh3 = document["rows"]
    assert document["rounds"] == 7 and hand_written["scheme"] == bench_schemes.HAND_WRITTEN
    assert [row["evaluations"]["attention"] for row in document["rows"]] == [3, 3, 6, 9]
    assert euler["measured_over_predicted"] is None and euler["ratio_of_medians"] == euler["predicted_ratio"] == 1
    assert math.isclose(heun["predicted_ratio"], heun["ratio_of_medians"])
    assert math.isclose(bosh3["predicted_ratio"], 1 + 2 * (heun["predicted_ratio"] - 1))
    assert math.isclose(bosh3["measured_over_predicted"] * bosh3["predicted_ratio"], bosh3["ratio_of_medians"])


def test_the_hand_written_update_is_the_librarys():
    ids, rule = (
        b.random_batch(CONFIG),
        optimizer(CONFIG.optimizer, learning_rate(CONFIG.optimizer, CONFIG.trainer.updates)),
    )

    def fresh() -> State:
        model = jax.tree.map(jnp.copy, model_of(LAYERS))  # the update consumes it
        return State(model, rule.init(model), jnp.zeros((), jnp.int32))  # pyright: ignore

    mine, loss = bench_schemes.hand_written_update(CONFIG)(fresh(), ids)
    librarys, measured = make_update(CONFIG)(fresh(), ids)
    np.testing.assert_allclose(loss, measured.loss, rtol=1e-5)
    for one, other in zip(jax.tree.leaves(mine.optimizer), jax.tree.leaves(librarys.optimizer), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-6)


def test_the_updates_take_turns():
    order: list[str] = []
    updates = {name: lambda name=name: order.append(name) for name in "abc"}
    found = b.take_turns(updates, 7, Silent(), shuffled=False)
    assert "".join(order) == 9 * "abc" and all(len(times) == 7 for times in found.values())
    order.clear()
    found = b.take_turns(updates, 7, Silent())
    rounds = ["".join(order[start : start + 3]) for start in range(0, 27, 3)]
    assert all(sorted(one) == ["a", "b", "c"] for one in rounds) and len({*rounds}) > 2
    assert [*found] == ["a", "b", "c"] and all(len(times) == 7 for times in found.values())


@pytest.mark.slow
def test_the_update_beside_the_vanilla_ones(monkeypatch):
    monkeypatch.setattr(b, "has_torch", lambda: False)
    found = bench_train.compare_updates(dataclasses.replace(CONFIG, model=TINY), 7, Silent())
    assert [row["model"] for row in found] == ["vanilla", "diffeqformer", "knots"] and found[0]["ratio_of_medians"] == 1
    assert found[1]["temporary_bytes"] > found[0]["temporary_bytes"] > 0
    assert found[1]["operations"] > found[0]["operations"] == found[2]["operations"]
    assert found[1]["parameters"] > found[0]["parameters"] == found[2]["parameters"]


def test_the_roofline_is_products_then_passes_over_the_parameters(monkeypatch):
    found = bench_train.roofline(64, 7)
    assert min(found.values()) > 0
    row = {"operations": 6e9, "parameters": 1_000_000}
    least = bench_train.least_seconds(row, {"operations_per_second": 2e9, "bytes_per_second": 64e6})
    assert least == 3 + 0.5


def test_only_what_is_fine_tuned_by_lora_has_adapters(monkeypatch):
    configs = []
    monkeypatch.setattr(b, "repeated", configs.append)
    monkeypatch.setattr(b, "take_turns", lambda ways, *_: {name: [1.0, 1.0] for name in ways})
    monkeypatch.setattr(footprint, "update_footprint", lambda _: SimpleNamespace(optimizer=1, temporary=1))
    bench_finetune.compare_finetuning(Config(model=TINY, trainer=CONFIG.trainer), 2, Silent())
    assert [config.model.lora and config.model.lora.rank for config in configs] == [None, None, 8, 8]


@pytest.mark.slow
def test_ways_to_fine_tune_are_timed_and_adapters_need_less_memory():
    rows = bench_finetune.compare_finetuning(Config(model=TINY, trainer=CONFIG.trainer), 2, Silent())
    names, moments = [row["way"] for row in rows], [row["optimizer_bytes"] for row in rows]
    assert names == ["vanilla, full", "populated, full", "populated, LoRA and embeddings", "populated, LoRA"]
    assert moments[0] == moments[1] > moments[2] > moments[3] > 0
    assert rows[0]["ratio_of_medians"] == 1 and all(row["median_seconds"] > 0 for row in rows)


def test_generation_is_timed_for_each_batch(monkeypatch):
    monkeypatch.setattr(b, "has_torch", lambda: False)
    model = dataclasses.replace(TINY, context=24)
    rows = bench_generate.compare_generation(model, 2, Silent(), batches=(1, 3), new_tokens=4)
    assert [(row["model"], row["batch"]) for row in rows] == [
        ("diffeqformer", 1), ("vanilla", 1), ("diffeqformer", 3), ("vanilla", 3),
    ]  # fmt: skip
    assert all(row["tokens_per_second"] == row["batch"] * 4 / row["median_seconds"] > 0 for row in rows)


def test_turns_of_the_explorers_dial_are_timed(monkeypatch):
    turned, asked, walk = [], [], reading.walk
    monkeypatch.setattr(
        reading, "walk", lambda model, ids, steps: turned.append(steps) or walk(model, ids, steps=steps)
    )
    for name in ("lens", "most_likely", "looks", "eigenvalues"):
        monkeypatch.setattr(reading, name, lambda taken, *_: asked.append(taken.grid.steps))
    monkeypatch.setattr(bench_explorer, "TOKENS", 8)
    document = {**bench_explorer.turns(TINY, 2, steps=(2, 3)), "rounds": 2}
    assert turned == [2, 3, 1, 2] * 2  # each time another number than the one before
    assert asked == [steps for steps in turned for _ in range(4)]  # the grid is that of the prediction before it
    parts = [(row["steps"], row["part"]) for row in document["rows"]]
    assert parts == [(2, "prediction"), (2, "grid"), (3, "prediction"), (3, "grid")]
    assert all(row["processor_seconds"] > 0 < row["median_seconds"] for row in document["rows"])
    (table,) = bench_explorer.BENCHMARK.tables(document)
    assert table.columns[0] == "steps" and table.columns[-1] == "processor time" and len(table.rows) == 4
    assert bench_explorer.BENCHMARK.headline(document).endswith("at 3 steps.")
    row = lambda steps, seconds, part="prediction": {"steps": steps, "part": part, "median_seconds": seconds}
    slow = {"rows": [row(12, 0.5), row(12, 9.0, "grid"), row(24, 1.5)]}
    met, missed = bench_explorer.BENCHMARK.marks(slow)
    assert missed == "Mark: prediction at 24 steps under 1 s. Here 1.5: not met." and met.endswith("Here 0.5: met.")
