"""Where depth pays: what is trained, how it is judged, and what the figures show."""

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from diffeqformer.cli import main
from diffeqformer.config import LevelsConfig, to_dict, validate
from diffeqformer.errors import BadInput
from diffeqformer.progress import Silent
from diffeqformer.studies.reproduce import reproduce_depth
from diffeqformer.studies.reproduce.reproduce_depth import SAME_COMPUTE, Arguments, about, runs_of
from diffeqformer.studies.reproduce.reproduce_depth_figures import (
    NAMES,
    by_steps,
    caption_of,
    equivalent_depths,
    exponent,
    headline,
    judgement,
    means,
    reach_of,
    result_of,
)
from diffeqformer.training.depths import compute_of
from tests.studies.drawn import legend, points

CORPUS = {"name": "hops", "train_tokens": 9, "validation_tokens": 9}


def record(kind: str, steps: int, loss: float, seed: int = 0, accuracy=None, energy: float = 0.5) -> dict:
    return {
        "kind": kind, "steps": steps, "seed": seed, "loss": loss, "perplexity": math.exp(loss), "accuracy": accuracy,
        "updates": 100, "compute": 100 * steps, "energy": energy,
    }  # fmt: skip


def records(deep: float = 2.9, gpt: float = 3.0, seeds: int = 2, energy: float = 0.5) -> list[dict]:
    """An elastic model that falls from 3.0 at 4 steps to `deep` at 16, and dedicated models of loss `gpt`."""
    found = []
    for seed in range(seeds):
        for steps, loss in ((2, 3.2), (4, 3.0), (16, deep + 0.001 * seed), (32, deep + 0.002)):
            found.append(record("elastic", steps, loss, seed, energy=energy))
        found += [record("gpt", 4, gpt, seed), record("layerdrop", 4, 3.3, seed), record("layerdrop", 16, 2.8, seed)]
    return found


def test_what_lies_above_the_frame_is_told_of_every_model():
    found = [*records(seeds=1), record("loop", 2, 9.0), record("loop", 32, 7.5), record("elastic", 1, 8.0)]
    said = caption_of(found)
    assert said.endswith(
        " Above the frame: elastic: one checkpoint, 8.00 at 1; LoopFormer-style, 9.00 at 2 and 7.50 at 32."
    )
    assert "Above" not in caption_of(records())


def verdicts(found: list[dict]) -> dict[str, str]:
    return {row[0]: row[2] for row in judgement(found).rows}


DEEPER = "16 steps at least 5 % below 4, by more than two standard deviations"
NEAR = "within 2 % of the best model of that depth"
RISES = "never rises by more than 0.5 % up to 32 steps"
ENERGY = "at least 20 % of the weights' energy is change over depth"


@pytest.mark.parametrize(
    ("change", "mark", "verdict"),
    [
        ({}, DEEPER, "holds"),
        ({"deep": 2.96, "seeds": 1}, DEEPER, "fails"),  # 3.9 % below, whatever the spread
        ({"seeds": 1}, DEEPER, "untested"),  # no spread, no verdict in favour
        ({}, NEAR, "holds"),
        ({"gpt": 2.97}, NEAR, "fails"),  # exp(0.03) is 3 % more
        ({"gpt": 2.985}, NEAR, "holds"),
        ({}, RISES, "holds"),
        ({"deep": 3.01}, RISES, "fails"),
        ({}, ENERGY, "holds"),
        ({"energy": 0.1}, ENERGY, "fails"),
        ({}, "better than LayerDrop at every depth", "fails"),
        ({"deep": 2.7}, "better than LayerDrop at every depth", "holds"),
    ],
)
def test_each_mark_follows_its_rule(change, mark, verdict):
    assert verdicts(records(**change))[mark] == verdict


def test_a_gain_within_the_spread_of_seeds_does_not_hold():
    noisy = [record("elastic", n, loss, seed) for seed, pair in enumerate(((3.0, 2.7), (3.0, 3.0))) for n, loss in
             zip((4, 16), pair, strict=True)]  # fmt: skip
    assert verdicts(noisy)[DEEPER] == "fails"


def test_depths_are_compared_within_each_seed():
    read = {(0, 4): 3.0, (1, 4): 2.0, (1, 16): 1.9, (2, 4): 2.1, (2, 16): 2.0}
    found = [record("elastic", steps, loss, seed) for (seed, steps), loss in read.items()]
    (row,) = [row for row in judgement(found).rows if row[0] == DEEPER]
    assert row[1:] == ("−9.5 % ± 0.0", "holds")
    assert DEEPER not in verdicts(found[:1])  # no seed has both


def test_the_spread_of_a_gain_is_in_per_cent_as_the_gain_is():
    falls = (0.171, 0.223, 0.139)  # of perplexity: their standard deviation is 4.24 per cent, but 0.0518 nats
    found = [record("elastic", steps, loss, seed) for seed, fall in enumerate(falls)
             for steps, loss in ((4, 2.0), (16, 2.0 + math.log1p(-fall)))]  # fmt: skip
    (row,) = [row for row in judgement(found).rows if row[0] == DEEPER]
    assert row[1:] == ("−17.8 % ± 4.2", "holds")


@pytest.mark.parametrize(("steps", "mark"), [(16, DEEPER), (4, DEEPER), (4, NEAR), (16, RISES)])
def test_no_mark_holds_where_one_seed_is_not_finite(steps, mark):
    found = [
        r | {"loss": None} if (r["kind"], r["steps"], r["seed"]) == ("elastic", steps, 1) else r for r in records()
    ]
    (row,) = [row for row in judgement(found).rows if row[0] == mark]
    assert row[2] == "fails" and "not finite" in row[1]
    assert f"not finite at {steps}" in caption_of(found)
    losses = next(table for table in result_of(found).tables if table.caption.startswith("Loss"))
    assert next(row for row in losses.rows if row[0] == str(steps))[1] == "not finite"


def test_a_diverged_reference_is_no_reference():
    found = [*records(), record("gpt", 16, math.inf)]
    assert (
        verdicts(found)[NEAR] == "holds" and "16" not in next(row for row in judgement(found).rows if row[0] == NEAR)[1]
    )


def test_models_are_the_shipped_configs_on_the_same_batches(tmp_path):
    arguments = Arguments(updates=40, depths=(2, 3), models=("elastic", "gpt", "loop", "layerdrop"), same_compute=True)
    runs = list(runs_of(arguments, 7, tmp_path))
    assert [config.run.rpartition("/")[2] for config, _ in runs] == [
        "elastic", "gpt-2", "gpt-2-same-compute", "gpt-3", "gpt-3-same-compute", "loop", "layerdrop"
    ]  # fmt: skip
    assert len({(c.data, c.trainer.batch_size, c.trainer.seed, c.model.context, c.model.width) for c, _ in runs}) == 1
    elastic = runs[0][1]["compute"]
    for config, role in runs:
        validate(config)
        assert role["compute"] == compute_of(config)
        if role["kind"].endswith(SAME_COMPUTE):
            assert abs(role["compute"] - elastic) <= config.model.steps / 2
        else:
            assert config.trainer.updates == 40


@pytest.mark.parametrize("kind", reproduce_depth.Kind.__args__)
def test_every_kind_is_a_shipped_config_for_text(kind, tmp_path):
    *before, (config, role) = runs_of(Arguments(task="text", models=(kind,), depths=(2,)), 0, tmp_path)
    updates = [validate(one).trainer.updates for one, _ in (*before, (config, role))]
    assert role["kind"] == kind and sum(updates) == 10_000


def test_ten_depths_get_tables_after_a_third_of_the_updates():
    (sharing, before), (own, role) = runs_of(Arguments(task="text", models=("tables",), updates=9000), 3, Path("to"))
    assert own.base.run == sharing.run == "to/sharing" and own.run == "to/tables" and own.base.method == "levels"
    assert (sharing.trainer.updates, own.trainer.updates, role["updates"]) == (3000, 6000, 9000)
    assert sharing.trainer.seed == own.trainer.seed == 3
    assert own.model.weights == LevelsConfig((2, 3, 4, 5, 6, 8, 10, 12, 14, 16)) == LevelsConfig(own.depth.always)
    assert (sharing.model.spacing, sharing.depth.always) == ("thirds", (2, 4, 16)) and own.model.spacing == "equal"
    assert (sharing.optimizer.schedule.kind, own.optimizer.schedule.kind) == ("constant", "cosine")
    assert role["compute"] == before["compute"] + compute_of(own)
    assert all({*one.depth.always, *one.depth.sample} >= {*range(2, 17)} for one in (sharing, own))


def test_lines_are_checkpoints_and_hollow_marks_models_of_one_depth():
    found = records()
    figure = by_steps(found, "loss")
    (axis,) = figure.axes
    looks = legend(figure)
    assert set(looks) == {NAMES["elastic"], NAMES["gpt"], NAMES["layerdrop"]}
    assert looks[NAMES["gpt"]][2:] == ("None", True) and looks[NAMES["elastic"]][2:] == ("-", False)
    lines = [points(line) for line in axis.lines]
    assert [(float(steps), loss) for steps, loss in means(found, "elastic").items()] in lines
    assert axis.get_ylabel() == "validation loss (nats)" and axis.get_xlabel() == "steps run (depth)"
    seeds = [line for line in axis.lines if line.get_marker() == "."]
    assert all(len(line.get_xdata()) == 2 for line in seeds) and len(seeds) == 7


def test_no_two_kinds_look_alike():
    looks = legend(by_steps([record(kind, n, 3.0) for kind in NAMES for n in (2, 4)], "loss"))
    assert len(looks) == len(NAMES) == len(set(looks.values()))


def test_steps_are_read_on_the_curve_of_the_gpts():
    """GPTs lose 1 nat per factor of two in depth; the elastic model half a nat: a step is the root of a layer."""
    found = [record("gpt", n, 5 - math.log2(n)) for n in (2, 4, 8)]
    found += [record("elastic", n, 5 - 0.5 * math.log2(n) - 0.2) for n in (1, 2, 4, 16, 32, 64)]
    expected = {n: 2 ** (0.5 * math.log2(n) + 0.2) for n in (4, 16, 32)}  # elsewhere there is no GPT of that loss
    assert equivalent_depths(found) == pytest.approx(expected)
    assert exponent(found) == pytest.approx(0.5)
    assert exponent(found[:2]) is None and "to the power 0.50" in result_of(found).tables[2].caption


def test_a_puzzle_shows_how_far_it_reaches():
    accuracy = {2: [1.0, 0.4], 4: [0.95, 0.91]}
    found = [record("elastic", n, 1.0, accuracy=accuracy[n]) for n in accuracy]
    assert [reach_of(r) for r in found] == [1, 2]
    result = result_of(found)
    assert [figure.name for figure in result.figures] == ["depth-reach", "depth-loss"]
    (line,) = [line for line in by_steps(found, "reach").axes[0].lines]
    assert points(line) == [(2, 1), (4, 2)]
    assert "answers 1.0 hops at 2 and 2.0 hops at 4 steps, most at 4." in result.findings[0]
    assert np.array_equal(result.arrays["steps"], [2, 4])


def test_the_marks_of_a_puzzle_are_its_hops():
    """Two seeds of an elastic model, and models of one depth: level at 2 layers, ahead at 8 in one case only."""
    right = lambda hops: [1.0] * hops + [0.5] * (8 - hops)
    elastic = [record("elastic", n, 1.0, seed, right(hops)) for seed in (0, 1) for n, hops in ((2, 3), (8, 7))]
    assert {row[0]: row[2] for row in judgement(elastic).rows}["8 steps answer more hops than 2"] == "holds"
    for of_8, verdict in ((7, "holds"), (8, "fails")):
        gpt = [record("gpt", n, 1.0, seed, right(hops)) for seed in (0, 1) for n, hops in ((2, 3), (8, of_8))]
        (row,) = [row for row in judgement([*elastic, *gpt]).rows if row[0] == "as many hops as models of that depth"]
        assert row[1:] == (f"3.0 against 3.0 at 2 and 7.0 against {of_8}.0 at 8", verdict)
    flat = [record("elastic", n, 1.0, 0, right(3)) for n in (2, 8)]
    assert {row[0]: row[2] for row in judgement(flat).rows}["8 steps answer more hops than 2"] == "fails"
    assert not any("hops" in row[0] for row in judgement(records()).rows)


def test_each_model_is_trained_at_the_best_rate_of_its_own_search(tmp_path, monkeypatch):
    """The first seed searches, the others take its rates; the run at a shipped rate keeps its folder. A run that goes
    on from another keeps the rate of both."""
    trained = []

    def train(config, progress):
        Path(config.run).mkdir(parents=True, exist_ok=True)
        rate = config.optimizer.learning_rate
        trained.append((config.run.removeprefix(f"{tmp_path}/"), config.trainer.seed))
        best = 0.01 if config.model.steps == 2 else 0.003
        entry = {
            "validation": {"loss": 1 + abs(math.log(rate / best))}, "updates": 40, "config": {
                **to_dict(config), "model": {**to_dict(config.model), "vocabulary": 16}
            },
        }  # fmt: skip
        return SimpleNamespace(entry=entry, model=None, config=config, tokens=SimpleNamespace(statistics=CORPUS))

    monkeypatch.setattr("diffeqformer.runs.trainer.train", train)
    monkeypatch.setattr(reproduce_depth, "energy", lambda model: 0.5)
    monkeypatch.setattr(reproduce_depth, "readings", lambda result, alone, progress: [
        {"steps": result.config.model.steps, "loss": 1.0, "perplexity": math.e, "accuracy": [1.0]}
    ])  # fmt: skip
    asked = Arguments(to=str(tmp_path), seeds=(0, 1), depths=(2, 4), models=("gpt", "tables"), updates=40, search=True)
    result = reproduce_depth.study(asked, Silent())
    assert trained == [
        *((f"hops/seed-0/gpt-2{rate}", 0) for rate in ("-rate-0.0015", "", "-rate-0.006", "-rate-0.012",
                                                     "-rate-0.024", "-rate-0.012")),
        *((f"hops/seed-0/gpt-4{rate}", 0) for rate in ("-rate-0.0015", "", "-rate-0.006", "")),
        ("hops/seed-0/sharing", 0), ("hops/seed-0/tables", 0),
        ("hops/seed-1/gpt-2-rate-0.012", 1), ("hops/seed-1/gpt-4", 1),
        ("hops/seed-1/sharing", 1), ("hops/seed-1/tables", 1),
    ]  # fmt: skip
    table = result.tables[-1]
    assert table.rows[0][:3] == ("gpt-2", "0.012", "yes") and table.rows[1][:3] == ("gpt-4", "0.003", "yes")
    trained.clear()
    reproduce_depth.study(replace(asked, search=False, seeds=(0,), models=("gpt",)), Silent())
    assert trained == [("hops/seed-0/gpt-2", 0), ("hops/seed-0/gpt-4", 0)]


def test_the_list_says_what_is_finished_and_what_the_rest_takes(tmp_path, monkeypatch, capsys):
    words = ["reproduce", "depth", "--list", "--to", str(tmp_path), "--seeds", "0", "1", "--depths", "2", "4"]
    words += ["--models", "gpt", "elastic", "--json"]
    ended = Arguments(seeds=(0, 1), depths=(2, 4), models=("gpt", "elastic"))
    folder = tmp_path / "hops"
    planned = [config for seed in (0, 1) for config, _ in runs_of(ended, seed, folder / f"seed-{seed}")]
    shallow = {config.run: {"seconds": 10.0, "config": to_dict(config)} for config in planned if "gpt-2" in config.run}
    found = lambda folder: {"models": [shallow[str(folder)]]} if str(folder) in shallow else None
    monkeypatch.setattr("diffeqformer.runs.results.results_of", found)
    assert main(words) == 0
    gpt, elastic = json.loads(capsys.readouterr().out)["runs"]
    assert (gpt["finished"], gpt["of"]) == (2, 4) and (elastic["finished"], elastic["of"]) == (0, 2)
    assert gpt["seconds_left"] == pytest.approx(2 * 20)  # twice the depth takes twice the time
    assert not list(tmp_path.iterdir())
    for entry in shallow.values():  # as after a run on another text, too
        entry["config"]["data"]["split_seed"] += 1
    assert main(words) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [one["finished"] for one in printed["runs"]] == [0, 0]  # nor is there a pace
    assert main(words[:-1]) == 0 and "2 with other settings are in the way" in " ".join(capsys.readouterr().out.split())
    assert main([*words, "--search"]) == 2 and "--list is given with --search" in capsys.readouterr().err


def test_a_finished_run_is_listed_as_such_with_the_settings_that_training_filled_in(tmp_path, monkeypatch, capsys):
    words = ["reproduce", "depth", "--list", "--to", str(tmp_path), "--depths", "2", "--models", "diffeqformer"]
    ((config, _),) = runs_of(Arguments(depths=(2,), models=("diffeqformer",)), 0, tmp_path / "hops" / "seed-0")
    ended = {"models": [{"seconds": 10.0, "config": to_dict(validate(config))}]}
    monkeypatch.setattr("diffeqformer.runs.results.results_of", lambda folder: ended)
    assert main([*words, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["runs"]
    assert (found["finished"], found["of"]) == (1, 1)


def test_a_folder_that_cannot_be_is_refused():
    with pytest.raises(BadInput, match="path '~nobody-at-all/runs' cannot be used"):
        reproduce_depth.study(Arguments(to="~nobody-at-all/runs"), Silent())


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"models": ("gpt", "gpt")}, "--models names gpt more than once"),
        ({"depths": (2, 4, 2)}, "--depths names 2 more than once"),
        ({"models": ("elastic",), "same_compute": True}, "--same-compute is True, but --models has none"),
        ({"task": "text", "data": ("nothere.txt",), "list": True}, "--data: file '.*nothere.txt' does not exist"),
    ],
)
def test_what_would_do_nothing_or_count_twice_is_refused(given, sentence, tmp_path):
    with pytest.raises(BadInput, match=sentence):
        reproduce_depth.study(Arguments(to=str(tmp_path), **given), Silent())


def test_without_the_elastic_model_nothing_is_judged():
    alone = [record("gpt", 2, 3.0, 0), record("gpt", 4, 2.5, 0)]
    assert headline(alone) == "The lowest loss is 2.500 nats, of GPT of that depth at 4 steps."
    assert all("Criteria" not in table.caption for table in result_of(alone).tables)


def test_the_headline_tells_how_near_losses_are_in_nats():
    """0.005 nats are half a per cent of perplexity, but a sixth of one of a loss of 2.9 nats."""
    said = headline([*records(seeds=1), record("elastic", 8, 2.904)])
    assert "2.904 at 8 and 2.900 at 16 steps, lowest at 16, from 8 on within 0.005 nats of that." in said


def test_the_page_says_that_tables_begin_with_the_first_batches_again():
    both = [record("elastic", 2, 3.0, 0), record("tables", 2, 2.5, 0)]
    said = [" ".join(result_of(some).findings) for some in (both, both[:1])]
    assert ["again from the first batch" in one for one in said] == [True, False]


def test_the_updates_told_of_all_models_are_not_those_of_equal_compute():
    config = {"model": {"vocabulary": 9, "width": 8, "heads": 2, "context": 4}, "trainer": {"batch_size": 3}}
    entry = lambda kind, updates: {"role": {"kind": kind}, "updates": updates, "config": config}
    said = about({"corpus": CORPUS, "models": [entry("gpt", 100), entry(f"gpt{SAME_COMPUTE}", 350)]})
    assert said.endswith("3 sequences per update, 100 updates.")
