"""What experiments share: the search for a learning rate, and runs that are in the way."""

import math
from types import SimpleNamespace

import pytest

from diffeqformer.config import Config, OptimizerConfig, dump_yaml
from diffeqformer.errors import BadInput, Diverged
from diffeqformer.progress import Silent
from diffeqformer.studies.reproduce import reproduce_adapt, reproduce_depth, reproduce_lift
from diffeqformer.studies.reproduce.experiments import search, trained_loss


def test_a_rate_at_which_training_diverges_is_not_the_best(monkeypatch):
    def train(config, progress):
        if config.optimizer.learning_rate > 0.004:
            raise Diverged(f"the loss of {config.run} is not finite.")
        return SimpleNamespace(entry={"validation": {"loss": 1 / config.optimizer.learning_rate}})

    monkeypatch.setattr("diffeqformer.runs.trainer.train", train)
    at = lambda rate: Config(optimizer=OptimizerConfig(learning_rate=rate))
    best, tried = search(lambda rate: trained_loss(at(rate), Silent()), 0.004)
    assert best == 0.004 and tried == {0.002: 500.0, 0.004: 250.0, 0.008: math.inf}


def test_a_loss_of_zero_is_the_best(monkeypatch):
    entry = {"validation": {"loss": 0.0}}
    monkeypatch.setattr("diffeqformer.runs.trainer.train", lambda config, progress: SimpleNamespace(entry=entry))
    assert trained_loss(Config(), Silent()) == 0.0


@pytest.mark.parametrize(
    ("study", "last", "given"),
    [
        (reproduce_depth, "hops/seed-1/tables", {"models": ("gpt", "tables")}),
        (reproduce_adapt, "seed-1/b/gpt", {"texts": ("a=stdlib", "b=stdlib")}),
        (reproduce_lift, "gpt-6/seed-1/dedicated-12", {}),
    ],
)
def test_a_run_of_other_settings_is_noticed_before_anything_is_trained(study, last, given, tmp_path, monkeypatch):
    monkeypatch.setattr("diffeqformer.runs.trainer.train", lambda *given, **named: pytest.fail("trained"))
    run = tmp_path / last
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(dump_yaml(Config(run=str(run))))
    with pytest.raises(BadInput, match=f"run folder '{run}' belongs to another config"):
        study.study(study.Arguments(to=str(tmp_path), seeds=(0, 1), **given), Silent())
