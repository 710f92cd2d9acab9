"""A run at drawn depths resumes to the bit, and reports on each depth."""

import dataclasses
from collections import Counter

import pytest

from diffeqformer.config import Config, from_dict, validate
from diffeqformer.errors import Interrupted
from diffeqformer.progress import Silent
from diffeqformer.runs.trainer import train
from tests.runs.test_trainer import lasting, same_model, stop_after
from tests.runs.test_utilization import Notes


@pytest.fixture
def config_of_run(text, cache, tmp_path):
    run = from_dict(
        Config,
        {
            "run": str(tmp_path / "run"),
            "model": {"steps": 2, "width": 16, "heads": 2, "context": 16, "hidden": 32,
                      "weights": {"d_emb": 4, "frequencies": 3, "highest_frequency": 6.0}},
            "depth": {"sample": [2, 3], "jitter": 0.5},
            "data": {"source": "files", "train": [str(text)], "tokenizer_vocabulary": 280, "cache": str(cache)},
            "optimizer": {"learning_rate": 1e-2},
            "trainer": {"updates": 11, "batch_size": 4, "log_every": 3, "evaluate_every": 5, "evaluate_batches": 2,
                        "checkpoint_every": 4},
        },
    )  # fmt: skip
    return validate(run)


def test_a_run_at_drawn_depths_resumes_to_the_bit_and_tells_of_each_depth(config_of_run, monkeypatch, tmp_path):
    whole = train(config_of_run, Silent())
    stopped = dataclasses.replace(config_of_run, run=str(tmp_path / "stopped"))
    with monkeypatch.context() as patch:
        stop_after(patch, 6)
        with pytest.raises(Interrupted):
            train(stopped, Silent())
    again = train(stopped, Silent())
    assert lasting(config_of_run.run) == lasting(stopped.run)
    assert same_model(whole.model, again.model)
    updates = [record["steps"] for record in lasting(stopped.run) if record["kind"] == "update"]
    assert len(updates) == 11 and set(updates) == {2, 3}
    told = {one["steps"]: one for one in again.entry["drawn"]}
    assert {steps: one["updates"] for steps, one in told.items()} == Counter(updates)
    last = [r["loss"] for r in lasting(stopped.run) if r["kind"] == "update" and r["steps"] == 2][-1]
    assert told[2]["loss"] == last and all(one["tokens_per_second"] > 0 for one in told.values())


def test_progress_tells_all_depths_that_a_loss_is_a_mean_over(config_of_run):
    depth = dataclasses.replace(config_of_run.depth, always=(4,), jitter=0.0)
    progress = Notes()
    train(dataclasses.replace(config_of_run, depth=depth), progress)
    shown = {note.partition(" · ")[0].partition(" at ")[2] for note in progress.notes if note.startswith("loss")}
    assert shown == {"2 and 4 steps", "3 and 4 steps"}
    assert [note.endswith("compiling") for note in progress.notes].count(True) == 2
