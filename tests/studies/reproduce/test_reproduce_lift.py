"""From lifted to elastic: which layers a model begins with, how it is judged, and the whole command at small size."""

import json
import math
from dataclasses import replace

import jax
import numpy as np
import pytest
import yaml

from diffeqformer.cli import main
from diffeqformer.config import read_yaml, shipped_configs
from diffeqformer.model.lift import left_out, of_rows
from diffeqformer.progress import Silent
from diffeqformer.runs.folder import RESULTS
from diffeqformer.studies.reproduce import reproduce_lift
from diffeqformer.studies.reproduce.reproduce_lift import (
    NAMES,
    Arguments,
    about,
    planned,
    result_of,
    study,
)
from tests.models import KINDS, logits, model_of, tokens
from tests.tolerances import STATES

DEPTHS = (3, 4, 6, 8, 12)


def records(elastic: dict[int, float]) -> list[dict]:
    """Losses of a lifted model beside dedicated ones of perplexity 20."""
    row = lambda kind, steps, loss: {"kind": kind, "steps": steps, "seed": 0, "loss": loss}
    found = [row("dedicated", steps, math.log(20)) for steps in DEPTHS]
    return [*found, *(row("elastic", steps, math.log(20 * elastic.get(steps, 1.0))) for steps in DEPTHS)]


def test_marks_are_stricter_at_the_models_own_depth():
    result = result_of(records({4: 1.019, 6: 1.006, 8: 1.021}), 6)
    judged = {mark.split(" steps")[0]: verdict for mark, _, verdict in result.tables[0].rows}
    assert judged == {"at 3": "holds", "at 4": "holds", "at 6": "fails", "at 8": "fails", "at 12": "holds"}
    assert result.findings[0].startswith("3 of 5 marks hold for a lifted model of 6 layers")
    assert result.tables[1].rows[0] == (NAMES["dedicated"], *["20.00"] * 5)


@pytest.mark.parametrize(("seeds", "said"), [((0,), "One seed, so a small"), ((0, 1), "Means over 2 seeds.")])
def test_a_single_seed_is_no_mean(seeds, said):
    config = {"model": {"vocabulary": 9, "width": 8, "heads": 2, "context": 4}, "trainer": {"batch_size": 2}}
    found = {"models": [{"config": config}], "corpus": {"name": "text", "train_tokens": 99}}
    assert f"each fine-tuning: 250. {said}" in about(found, Arguments(seeds=seeds))


def test_what_is_fine_tuned_at_one_depth_begins_with_layers_in_order():
    assert Arguments(layers=8).depths == (4, 5, 8, 11, 16)
    runs = {run.name: run for run in planned(Arguments(layers=6))}
    assert runs["dropped-3"].rows == (1, 3, 5) and runs["dropped-4"].rows == (0, 2, 3, 5)
    assert runs["repeated-12"].rows == (0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5)
    assert runs["stacked-8"].rows == (0, 1, 2, 3, 4, 5, 0, 1)
    assert all(runs[f"alone-{depth}"].rows is None for depth in (3, 4, 8, 12))
    assert runs["layerdrop"].depths == runs["kept"].depths == (3, 4, 6)
    assert runs["levels"].depths == (3, 4, 6, 8, 12)
    assert next(iter(runs)) == "dedicated-6" and len(runs) == 19


def test_selected_layers_do_what_they_did():
    model, ids = model_of(KINDS["vanilla"]), tokens()
    np.testing.assert_array_equal(logits(of_rows(model, [0, 1, 2]), ids), logits(model, ids))
    twice = of_rows(model, [0, 1, 1, 2])
    assert twice.config.interval == 4  # steps of 1
    identity = jax.tree.map(lambda leaf: leaf.at[1].set(0.0), model.weights.layers)  # a layer that adds nothing
    without = model.replace(weights=replace(model.weights, layers=identity))
    np.testing.assert_allclose(logits(of_rows(without, [0, 2]), ids), logits(without, ids), atol=STATES)
    # LayerDrop's table is the same at its own depth; of 2 steps it reads the layers at their middles, 0 and 2.
    kept = left_out(without)
    for steps in (3, 2):
        np.testing.assert_allclose(logits(kept, ids, steps), logits(without, ids), atol=STATES)


def test_the_list_holds_numbers_for_programs(tmp_path, monkeypatch):
    asked = Arguments(list=True, to=str(tmp_path))
    config = {"trainer": {"updates": 250, "seed": 0}, "data": {"source": "stdlib"}}
    entry = {"models": [{"seconds": 30.0, "config": config}]}
    (nothing, *_) = study(asked, Silent()).document["runs"]
    assert (nothing["finished"], nothing["seconds_left"]) == (0, None) and nothing["of"] > 1
    read = lambda folder: entry if folder.name == "elastic" else None
    monkeypatch.setattr("diffeqformer.runs.results.results_of", read)
    rows = {row["runs"]: row for row in study(asked, Silent()).document["runs"]}
    assert sum(row["finished"] > 0 for row in rows.values()) == 1
    assert all(type(row["seconds_left"]) is float for row in rows.values())
    of_another_text = Arguments(list=True, to=str(tmp_path), data=("notes.txt",))
    assert not any(row["finished"] for row in study(of_another_text, Silent()).document["runs"])


@pytest.mark.parametrize("words", [["lift"], ["paper", "table-3"], ["depth", "--models", "gpt"]])
def test_a_list_leaves_no_files(words, tmp_path, capsys):
    assert main(["reproduce", *words, "--list", "--to", str(tmp_path / "runs"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert not list(tmp_path.iterdir()) and "page" not in told and [*told.values()]


@pytest.mark.slow
def test_the_command_trains_compares_and_is_kept(tmp_path, monkeypatch):
    values = yaml.safe_load(shipped_configs()["quickstart-gpt"].read_text())
    values["model"] |= {"width": 16, "heads": 2, "context": 16}
    values["trainer"] |= {"batch_size": 8}
    values["data"] = {"tokenizer_vocabulary": 280}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(values))
    monkeypatch.setattr(reproduce_lift, "read_shipped", lambda name: read_yaml(tmp_path / "small.yaml"))
    (tmp_path / "text.txt").write_text("the cat sees the river and the stars.\n" * 200)
    arguments = Arguments(
        to=str(tmp_path / "lift"), pretraining=4, finetuning=2, data=(str(tmp_path / "text.txt"),),
        cache=str(tmp_path / "cache"), rivals=("stacked", "layerdrop", "levels"),
    )  # fmt: skip
    waiting = study(replace(arguments, list=True), Silent())
    assert waiting.findings == ("0 of 10 runs are finished.",)
    result = study(arguments, Silent())
    assert study(replace(arguments, list=True), Silent()).findings == ("10 of 10 runs are finished.",)
    kinds = {row["kind"] for row in result.document}
    assert (
        kinds == {"dedicated", "lifted", "elastic", "stacked", "layerdrop", "levels"}
        and len(result.document) == 5 + 5 + 5 + 2 + 3 + 5
    )
    at = {(row["kind"], row["steps"]): row["loss"] for row in result.document}
    assert at["lifted", 6] == pytest.approx(at["dedicated", 6], abs=1e-5)
    assert at["elastic", 6] < at["lifted", 6]
    written = (tmp_path / "lift" / "gpt-6" / "seed-0" / RESULTS).stat().st_mtime_ns
    monkeypatch.setattr("diffeqformer.training.loop.make_update", None)  # nothing is trained again
    assert study(arguments, Silent()).document == result.document
    assert (tmp_path / "lift" / "gpt-6" / "seed-0" / RESULTS).stat().st_mtime_ns > written
