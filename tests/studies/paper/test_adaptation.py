"""Measures of figure 5, on rows of fine-tuned models."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from diffeqformer.config import Config, DataConfig, ModelConfig, TrainerConfig, to_dict
from diffeqformer.errors import BadInput, Diverged
from diffeqformer.progress import Silent
from diffeqformer.store.files import write_sealed
from diffeqformer.studies.paper import adaptation as by
from diffeqformer.studies.paper.claims import Finished, Trained
from diffeqformer.studies.paper.items import ITEMS

THERE, BACK = "own → other", "other → own"


def row(direction: str, method: str, system: str, steps: int, loss: float, *curve: float) -> dict:
    return {"direction": direction, "method": method, "system": system, "steps": steps, "final": {"loss": loss},
            "curve": [[10 * k, one] for k, one in enumerate(curve)]}  # fmt: skip


ROWS = [
    row(THERE, "lora", "DiffEqFormer 6 → 3", 3, 4.5),
    row(THERE, "lora", "DiffEqFormer 6", 6, 4.0),
    row(THERE, "lora", "GPT 8", 8, 4.25),
    row(BACK, "lora", "DiffEqFormer 6 → 3", 3, 4.0),
    row(BACK, "lora", "DiffEqFormer 6", 6, 3.0),
    row(BACK, "lora", "GPT 8", 8, 4.5),
    row(THERE, "full", "DiffEqFormer 6 → 3", 3, 3.5, 5.0, 3.25),
    row(THERE, "full", "DiffEqFormer 6", 6, 4.0, 5.0, 3.0),
    row(THERE, "full", "GPT 8", 8, 3.0, 5.0),
    row(THERE, "scratch", "DiffEqFormer 6", 6, 4.125),
    row(THERE, "scratch", "GPT 8", 8, 5.125),
]


@pytest.fixture
def found(tmp_path, monkeypatch) -> Trained:
    monkeypatch.setattr(by, "_adapted", lambda found, seed: {} if seed == 0 else None)
    monkeypatch.setattr(by, "records", lambda documents: ROWS)
    return Trained({}, 0, tmp_path, Silent())


def test_systems_are_compared_at_one_depth_by_method_and_direction(found):
    assert by.adapted(6)(found) == (0.25 + 1.5) / 2
    assert by.adapted(3)(found) == (-0.25 + 0.5) / 2
    assert by.adapted(3, "lora", THERE)(found) == -0.25
    assert by.adapted(6, "lora", BACK)(found) == 1.5
    assert by.adapted(6, "full", THERE)(found) == -1.0
    assert by.adapted(6, "scratch", THERE)(found) == 1.0


def test_fine_tuning_is_compared_with_training_from_scratch_at_its_depth(found):
    assert by.transferred("lora", THERE)(found) == 0.125
    assert by.transferred("full", THERE)(found) == 0.125


def test_overfitting_is_the_rise_from_the_lowest_loss_to_the_last(found):
    assert by.overfits_less(3, 6, THERE)(found) == 1.0 - 0.25
    falling = [row(THERE, "full", "DiffEqFormer 6", n, 3.0, 5.0, 4.0) for n in (3, 6)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(by, "records", lambda documents: falling)
        assert by.overfits_less(3, 6, THERE)(found) == 0.0


def test_runs_on_another_second_text_are_not_taken(tmp_path):
    runs = [{"config": {"data": {"train": [text]}}, "role": {"text": text}} for text in ("own", "other")]
    runs[1]["config"]["data"]["train"] = ["a.txt"]
    (tmp_path / "adapt/seed-0").mkdir(parents=True)
    write_sealed(tmp_path / "adapt/seed-0/results.json", {"models": runs})
    assert [by.adapted_runs(tmp_path, 0, other) is None for other in ((), ("a.txt",), ("b.txt",))] == [
        False,
        False,
        True,
    ]
    assert by.adapted_runs(tmp_path, 1, ()) is None


def test_runs_on_a_second_text_that_has_changed_since_are_refused(tmp_path, monkeypatch):
    run = tmp_path / "adapt/seed-0/other/gpt"
    run.mkdir(parents=True)
    config = Config(run=str(run), model=ModelConfig(steps=6), data=DataConfig(source="files", train=("a.txt",)))
    entry = {"config": to_dict(config), "role": {"text": "other"}}
    write_sealed(tmp_path / "adapt/seed-0/results.json", {"models": [entry]})
    write_sealed(run / "data.json", {"content": "before"})
    monkeypatch.setattr(by, "records", lambda documents: ROWS)
    found = Trained({by.OURS: Finished(config, {}, lambda: None)}, 0, tmp_path, Silent(), ("a.txt",))
    monkeypatch.setattr(by, "prepare", lambda data, progress: SimpleNamespace(content="after"))
    with pytest.raises(BadInput, match="the text or the tokenizer of run folder .* has changed since the run began"):
        by.adapted(6)(found)
    assert by.adapted(6)(replace(found, train=False)) == (0.25 + 1.5) / 2  # the text may be elsewhere
    monkeypatch.setattr(by, "prepare", lambda data, progress: SimpleNamespace(content="before"))
    assert by.adapted(6)(found) == (0.25 + 1.5) / 2


def test_rates_on_record_are_not_searched_again(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(by, "reproduce", lambda *given: asked.append((given[2], given[5])) or {"models": []})
    config = Config(model=ModelConfig(steps=6), trainer=TrainerConfig(updates=16))
    found = Trained({by.OURS: Finished(config, {}, lambda: None)}, 3, tmp_path, Silent(), ("a.txt",))
    by._adapted(replace(found, rates={"own-to-other/gpt-lora": 0.01}), 3)
    assert asked == [(3, {"own-to-other/gpt-lora": 0.01})]
    by._adapted(found, 3)
    assert asked[1:] == [(0, {}), (3, {})]  # searched with the first seed


def test_fine_tuning_that_diverges_has_no_effect_and_is_not_tried_again(tmp_path, monkeypatch):
    asked = []

    def reproduce(*given):
        asked.append(given)
        raise Diverged("the loss became nan at update 3")

    monkeypatch.setattr(by, "reproduce", reproduce)
    config = Config(model=ModelConfig(steps=6), trainer=TrainerConfig(updates=8))
    ours = Finished(config, {}, lambda: None)
    found = Trained({by.OURS: ours}, 0, tmp_path, Silent(), ("a.txt",))
    assert by.adapted(6)(found) is None and by.adapted(3)(found) is None and len(asked) == 1
    deep = Finished(replace(config, model=ModelConfig(steps=12)), {}, lambda: None)
    assert by.adapted(6)(replace(found, models={by.OURS: deep})) is None and len(asked) == 1


def test_without_runs_nothing_of_figure_5_has_an_effect(tmp_path):
    nothing = Trained({}, 0, tmp_path, Silent(), train=False)
    assert [claim.measure(nothing) for claim in ITEMS["figure-5"].claims] == [None] * len(ITEMS["figure-5"].claims)


def test_claims_of_an_item_have_sentences_of_their_own():
    """Records are kept by them."""
    for item in ITEMS.values():
        assert len({claim.sentence for claim in item.claims}) == len(item.claims)
