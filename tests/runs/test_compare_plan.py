"""What the quickstart trains in the time it has: a pure plan, and a new one when the machine becomes slower."""

import dataclasses
import os

import pytest

from diffeqformer.config import Config, ModelConfig, ToleranceConfig, TrainerConfig
from diffeqformer.errors import BadInput, Damaged
from diffeqformer.progress import Silent
from diffeqformer.runs import compare
from diffeqformer.runs.compare import Cost, plan
from diffeqformer.runs.readings import Readings
from diffeqformer.store.files import write_sealed
from diffeqformer.store.lock import folder_lock

WHOLE, LEAST = (1500, 1500, 3473), (0.0, 0.1, 0.2)
COSTS = (Cost(20.0, 0.1), Cost(10.0, 0.1), Cost(30.0, 0.05))


def needed(updates):
    return sum(cost.fixed + cost.update * n for cost, n in zip(COSTS, updates, strict=False))


@pytest.mark.parametrize("seconds", [60.0, 90.0, 150.0, 300.0, 600.0, 3600.0])
def test_what_is_planned_fits_and_uses_the_time(seconds):
    updates = plan(COSTS, WHOLE, LEAST, seconds)
    assert 0.99 * seconds < needed(updates) <= seconds
    shares = [n / whole for n, whole in zip(updates, WHOLE, strict=False)]
    assert max(shares) - min(shares) < 0.001  # the same compute
    assert all(share >= least for share, least in zip(shares, LEAST, strict=False))


def test_with_less_time_there_are_fewer_models():
    assert [len(plan(COSTS, WHOLE, LEAST, seconds)) for seconds in (20.0, 59.0, 61.0, 150.0, 160.0)] == [1, 1, 2, 2, 3]
    assert plan(COSTS, WHOLE, LEAST, -5.0) == [compare.FEWEST]  # one is always trained
    assert plan(COSTS, WHOLE, LEAST, 50.0) == [300]


def test_later_models_are_shortened_or_left_out_and_never_get_more():
    assert plan(COSTS[1:], WHOLE[1:], LEAST[1:], 1000.0, most=0.5) == [750, 1736]
    assert plan(COSTS[1:], WHOLE[1:], LEAST[1:], 137.3, most=0.5) == [450, 1044]
    assert plan(COSTS[1:], WHOLE[1:], LEAST[1:], 60.0, most=0.5) == [500]
    assert plan(COSTS[1:], WHOLE[1:], LEAST[1:], 20.0, most=0.5) == []


@pytest.fixture
def clock(monkeypatch):
    """Seconds that stand still, and say what is measured without training."""
    now = [100.0]
    monkeypatch.setattr(compare.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(compare, "prepare", lambda *_: None)
    costs = {"a": COSTS[0], "b": COSTS[1], "c": COSTS[2]}
    monkeypatch.setattr(compare, "measure", lambda config, *_: costs[config.run])
    return now


def pace(ends):
    configs = [Config(run=name, trainer=TrainerConfig(updates=n)) for name, n in zip("abc", WHOLE, strict=True)]
    return compare._Pace(configs, LEAST, Readings("the", (3, 6)), ends, Silent())


def test_a_slower_machine_shortens_the_models_that_have_not_begun(clock):
    kept = pace(ends=700.0)
    assert kept.changed(0) and not kept.changed(0)  # told once
    first, second, third = kept.updates
    assert needed(kept.updates) < 600.0
    clock[0] += COSTS[0].fixed + COSTS[0].update * first
    assert not kept.changed(1) and kept.updates == [first, second, third]  # as fast as measured
    clock[0] += 100.0
    assert kept.changed(1)
    slower = (clock[0] - 100.0) / (COSTS[0].fixed + COSTS[0].update * first)
    assert kept.updates[0] == first and kept.updates[1] < second and kept.updates[2] < third
    assert clock[0] + slower * (needed(kept.updates) - needed(kept.updates[:1])) < 700.0
    clock[0] = 690.0
    assert kept.changed(2) and len(kept.updates) == 2


def test_a_faster_machine_takes_in_what_was_left_out(clock, monkeypatch):
    timed = []
    slow = {name: Cost(4 * cost.fixed, 4 * cost.update) for name, cost in zip("abc", COSTS, strict=True)}
    monkeypatch.setattr(compare, "measure", lambda config, *_: timed.append(config.run) or slow[config.run])
    kept = pace(ends=370.0)  # busy while it was measured: there is time for one
    assert timed == ["a", "b"] and len(kept.updates) == 1 and kept.changed(0)
    clock[0] += COSTS[0].fixed + COSTS[0].update * kept.updates[0]  # four times as fast
    monkeypatch.setattr(
        compare,
        "measure",
        lambda config, *_: timed.append(config.run) or dict(zip("abc", COSTS, strict=True))[config.run],
    )
    assert kept.changed(1) and timed == ["a", "b", "c"]
    share = kept.updates[0] / WHOLE[0]
    assert kept.updates[1:] == [int(share * whole) for whole in WHOLE[1:]]  # as many updates
    assert clock[0] + needed(kept.updates) - needed(kept.updates[:1]) < 370.0
    clock[0] = 360.0
    assert kept.changed(2) and len(kept.updates) == 2  # and lets go of it when it becomes slow again


def test_a_model_that_cannot_fit_is_not_even_timed(clock, monkeypatch):
    timed = []
    monkeypatch.setattr(compare, "measure", lambda config, *_: timed.append(config.run) or COSTS[0])
    assert len(pace(ends=130.0).updates) == 1 and timed == ["a"]


def test_one_process_compares_in_a_folder(clock, monkeypatch, tmp_path):
    """Another one's plan would replace that of the first, whose runs could never be continued."""

    def refuse(*_):
        raise BadInput("no such text")

    monkeypatch.setattr(compare, "prepare", refuse)
    begin = lambda folder: compare.compare(
        [Config(run=str(folder / "a"))], [0.0], folder, "", Readings("the", (3,)), 700.0, Silent()
    )
    (tmp_path / "taken").mkdir()
    with folder_lock(tmp_path / "taken"), pytest.raises(BadInput, match=f"is being written by process {os.getpid()}"):
        begin(tmp_path / "taken")
    with pytest.raises(BadInput, match="no such text"):
        begin(tmp_path / "new" / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_models_of_a_plan_that_goes_on_are_measured_as_the_first_were(tmp_path):
    first, later = Readings("the", (3, 6), 0.25), Readings("an", (3,), 1.0)
    assert compare._kept_plan(tmp_path, first) == ({}, first)
    write_sealed(tmp_path / "plan.json", {"updates": {"a": 20}, "readings": dataclasses.asdict(first)})
    updates, kept = compare._kept_plan(tmp_path, later)
    assert updates == {"a": 20} and dataclasses.asdict(kept) == dataclasses.asdict(first) | {"depths": [3, 6]}
    write_sealed(tmp_path / "plan.json", {"updates": {"a": 20}})  # of an earlier version
    assert compare._kept_plan(tmp_path, later) == ({"a": 20}, later)


def test_a_folder_with_a_lost_or_damaged_plan_is_refused_with_advice(tmp_path):
    """What its runs were trained for is nowhere else; another plan would call them another config's."""
    begin = lambda: compare.compare(
        [Config(run=str(tmp_path / "a"))], [0.0], tmp_path, "", Readings("the", (3,)), 700.0, Silent()
    )
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "config.yaml").write_text("model: {}\n")
    with pytest.raises(BadInput, match=r"has a run 'a', but no plan\.json, .*: put it back, or choose another folder"):
        begin()
    sealed = '{"updates": {"a": 20}, "digest": "0"}'
    for content in ("{}", '{"updates": {"a": "20"}}', '{"updates": [20]}', "{", sealed):
        (tmp_path / "plan.json").write_text(content)
        with pytest.raises(Damaged, match=r"plan\.json' is damaged.*; put it back, or choose another folder"):
            begin()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "plan.json"]


def test_a_models_own_depth_is_read_on_the_batches_of_the_others():
    """Else what lies above it or below would be of two texts."""
    of = lambda depths, **chosen: Readings("the", depths).of(ModelConfig(steps=6, **chosen))
    assert of((1, 2, 4, 12)) == (1, 2, 4, 6, 12) and of((3, 6)) == (3, 6)
    assert of((3, 12), weights="layer") == (6,) and of((3, 12), tolerance=ToleranceConfig()) == ()
