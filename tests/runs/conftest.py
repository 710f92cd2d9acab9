"""The smallest run that is a real one: a text file, a trained tokenizer, two steps of width 16."""

from pathlib import Path

import pytest

from diffeqformer.config import Config, DataConfig, ModelConfig, OptimizerConfig, TrainerConfig
from tests.runs.tiny_run import write_text


@pytest.fixture(scope="module", autouse=True)
def compiled(compile_once):
    """These tests train, again and again, the same small models."""


@pytest.fixture(scope="session")
def text(tmp_path_factory) -> Path:
    return write_text(tmp_path_factory.mktemp("text") / "text.txt")


@pytest.fixture(scope="session")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def config(text, cache, tmp_path) -> Config:
    return Config(
        run=str(tmp_path / "run"),
        model=ModelConfig(
            weights="shared", scheme="lie-trotter", horizon="steps", steps=2, width=16, heads=2, context=16, hidden=32
        ),
        data=DataConfig(source="files", train=(str(text),), tokenizer_vocabulary=280, cache=str(cache)),
        optimizer=OptimizerConfig(learning_rate=1e-2),
        trainer=TrainerConfig(
            updates=12, batch_size=4, log_every=3, evaluate_every=5, evaluate_batches=2, checkpoint_every=4
        ),
    )  # fmt: skip
