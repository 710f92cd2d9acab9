"""What experiments share: the search for a learning rate."""

import math
from types import SimpleNamespace

from diffeqformer.config import Config, OptimizerConfig
from diffeqformer.errors import Diverged
from diffeqformer.progress import Silent
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
