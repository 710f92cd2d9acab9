"""A run on a puzzle: its loss is that of answers alone, it resumes to the bit, and what it learns is seen by k."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from diffeqformer import config as configuration
from diffeqformer.cli import eval as eval_verb
from diffeqformer.data.cache import prepare
from diffeqformer.data.loader import spread_windows
from diffeqformer.errors import BadInput, Interrupted
from diffeqformer.evaluation.accuracy import accuracy
from diffeqformer.progress import Silent
from diffeqformer.runs.opening import load_run
from diffeqformer.runs.readings import participation_of
from diffeqformer.runs.trainer import train
from diffeqformer.studies import compression, inputs, steps
from diffeqformer.studies.study import Result
from tests.runs.test_trainer import lasting, same_model, stop_after
from tests.runs.tiny_run import changed

PUZZLE = configuration.PHopConfig(letters=3, length=8, most_hops=2, problems=100, validation_problems=10)


@pytest.fixture
def puzzle(config, tmp_path):
    """The smallest run, on a puzzle whose problems have different numbers of answers."""
    data = configuration.DataConfig(source="puzzle", puzzle=PUZZLE, cache=str(tmp_path / "cache"))
    return changed(config, data=data, model__context=PUZZLE.context)


def test_results_and_analyses_count_the_targets_alone(puzzle, capsys, monkeypatch):
    result = train(puzzle, Silent())
    corpus = json.loads((Path(puzzle.run) / "results.json").read_text())["corpus"]
    assert corpus["validation_targets"] == int(result.tokens.validation_mask.sum()) < corpus["validation_tokens"] / 2
    assert result.entry["validation"]["bits_per_byte"] is None
    eval_verb.run([puzzle.run, "--steps", "2"], as_json=True)
    (row,) = json.loads(capsys.readouterr().out)["evaluations"]
    assert row["tokens"] == corpus["validation_targets"] and row["bits_per_byte"] is None
    assert row["loss"] == pytest.approx(result.entry["validation"]["loss"], rel=1e-6)
    assert set(row["accuracy"]) == {"1", "2"}
    problems = result.tokens.validation.reshape(10, -1)
    found = accuracy(result.model, problems, PUZZLE.build().difficulty(problems), batch_size=3)
    assert [row["accuracy"][k] for k in "12"] == pytest.approx(found.tolist())
    eval_verb.run([puzzle.run], as_json=False)
    assert "k = 2" in capsys.readouterr().out
    analyses_count_the_same_targets(result, load_run(puzzle.run), monkeypatch)


def analyses_count_the_same_targets(result, opened, monkeypatch):
    mask, length = result.tokens.validation_mask.astype(np.int8), PUZZLE.context + 1
    texts, counted = inputs.evaluation_windows(opened, (), 3, length, Silent())
    assert texts.shape == counted.shape and not counted.all()
    assert (counted == spread_windows(mask, 3, length, PUZZLE.context)).all()
    problems = {tuple(problem) for problem in result.tokens.validation.reshape(10, -1).tolist()}
    for own in (length, PUZZLE.context):  # whole problems, from their beginning, as in training
        windows, _ = inputs.evaluation_windows(opened, (), 5, own, Silent())
        assert len({tuple(text) for text in windows[:, : PUZZLE.context].tolist()} & problems) == 5
    with pytest.raises(BadInput, match=rf"split has {len(mask)} tokens, but one text takes 99999\."):
        inputs.evaluation_windows(opened, (), None, 99999, Silent())
    seen = []
    monkeypatch.setattr("diffeqformer.analysis.participation.participation", lambda *given, **_: seen.append(given))
    monkeypatch.setattr(steps, "result", lambda _, about, *__: Result("steps", "", (about,)))
    (about,) = steps.study(steps.Arguments(run=str(opened.folder), texts=3), Silent()).findings
    assert (seen[0][1] == texts).all() and (seen[0][2] == counted[:, 1:]).all()
    assert f"of which {counted[:, 1:].sum()} count as targets" in about
    seen.clear()
    monkeypatch.setattr("diffeqformer.evaluation.perplexity.evaluate", lambda _, batches, **__: seen.extend(batches))
    with pytest.raises(AttributeError):  # there is no loss
        compression.study(compression.Arguments(run=str(opened.folder), texts=6), Silent())
    ((ids, judged),) = seen
    assert (judged == spread_windows(mask, 6, length, PUZZLE.context)[1::2, 1:]).all()
    assert judged.shape == ids[:, 1:].shape
    seen.clear()
    given = lambda *given, **_: seen.append(given) or SimpleNamespace(document=dict)
    monkeypatch.setattr("diffeqformer.runs.readings.participation", given)
    assert participation_of(result, Silent()) == {}
    ((_, texts, counted),) = seen
    at = np.arange(0, len(mask) - PUZZLE.context, PUZZLE.context)[:, None] + np.arange(length)
    assert (texts == result.tokens.validation[at]).all() and (counted == mask[at][:, 1:]).all()


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_resumed_run_with_a_mask_is_the_uninterrupted_one_to_the_bit(puzzle, monkeypatch, tmp_path, accumulation):
    puzzle = changed(puzzle, trainer__accumulation=accumulation)
    whole = train(changed(puzzle, run=str(tmp_path / "whole")), Silent())
    with monkeypatch.context() as patch:
        stop_after(patch, 5)
        with pytest.raises(Interrupted):
            train(puzzle, Silent())
    resumed = train(puzzle, Silent())
    assert lasting(puzzle.run) == lasting(tmp_path / "whole") and same_model(resumed.model, whole.model)


def test_other_problems_are_another_run(puzzle):
    train(puzzle, Silent())
    other = changed(puzzle, data__puzzle=dataclasses.replace(PUZZLE, seed=1))
    with pytest.raises(BadInput, match=r"belongs to another config: data\.puzzle\.seed is 0 there, but 1 here"):
        train(other, Silent())


@pytest.mark.slow
def test_a_tiny_model_learns_to_hop_once(tmp_path):
    problems = configuration.HopsConfig(nodes=4, most_hops=1, queries=8, problems=20_000, validation_problems=200)
    model = configuration.ModelConfig(
        weights="layer", scheme="lie-trotter", horizon="steps", steps=2, width=32, heads=2, context=problems.context,
        embedding_norm=True,
    )  # fmt: skip
    config = configuration.Config(
        run=str(tmp_path / "run"),
        model=model,
        data=configuration.DataConfig(source="puzzle", puzzle=problems, cache=str(tmp_path / "cache")),
        optimizer=configuration.OptimizerConfig(learning_rate=3e-3),
        trainer=configuration.TrainerConfig(updates=2500, batch_size=32, evaluate_every=2500, checkpoint_every=0),
    )
    result = train(config, Silent())
    ids = prepare(config.data, Silent()).validation.reshape(-1, problems.context)
    first = np.arange(problems.context) == problems.nodes + 2  # which no earlier answer tells anything about
    found = accuracy(result.model, ids, problems.build().difficulty(ids) * first)
    assert found.shape == (1,) and found[0] > 0.9  # chance is 1/4 of 200 answers, give or take 0.03
