"""Claims of the paper's registry that need no run: each holds of the shipped configs, and fails where it should."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import jax
import jax.numpy as jnp
import pytest

from diffeqformer.config import Config
from diffeqformer.progress import Silent
from diffeqformer.studies.paper import checks
from diffeqformer.studies.paper.claims import Trained
from diffeqformer.studies.paper.items import ITEMS
from diffeqformer.studies.paper.models import MODELS
from diffeqformer.studies.paper.runs import Arguments, Runs


@pytest.fixture
def nothing(tmp_path) -> Trained:
    return Trained({}, 0, tmp_path, Silent())


@pytest.fixture
def changed(monkeypatch) -> Callable[..., None]:
    """Shipped configs of GPT, or of the named one, with other settings of the model or the trainer."""
    shipped = checks.shipped

    def change(name: str = "quickstart-gpt", section: str = "model", **settings):
        def other(asked: str) -> Config:
            config = shipped(asked)
            return replace(config, **{section: replace(getattr(config, section), **settings)}) if asked == name else (
                config
            )  # fmt: skip

        monkeypatch.setattr(checks, "shipped", other)

    return change


@pytest.mark.slow
def test_counts_are_the_published_ones(nothing, changed):
    assert checks.counts(nothing) > 0
    assert checks.llama_count(nothing) > 0
    assert checks.twin_counts(nothing) > 0
    changed("llama-1b", width=2080)
    assert checks.llama_count(nothing) < 0
    changed("gpt-small", steps=13)
    assert checks.counts(nothing) < 0
    changed("diffeqformer-gpt-large", steps=36, vocabulary=50000)
    assert checks.twin_counts(nothing) == pytest.approx(0.5 - 257 * 1280 / 1e6, abs=0.5)
    assert checks.twin_counts(nothing) < 0.2


TINY = {"width": 16, "heads": 2, "steps": 2, "context": 12, "vocabulary": 40}


@pytest.mark.parametrize("name", ["quickstart-gpt", "quickstart-diffeqformer"])
def test_a_logit_that_sees_a_later_token_is_found(nothing, changed, monkeypatch, name):
    changed(name, **TINY)
    assert checks.causal(name)(nothing) == 1.0
    one_hot = lambda ids: jax.nn.one_hot(ids, 40)
    seen = {"all": lambda ids: one_hot(ids) + one_hot(ids).sum(1, keepdims=True), "none": lambda ids: one_hot(0 * ids)}
    for model in seen.values():
        monkeypatch.setattr(checks, "build", lambda config, key, model=model: model)
        assert checks.causal(name)(nothing) == -1.0
    ahead = lambda ids: one_hot(jnp.where(jnp.arange(12) == 0, ids[:, 1:2], ids))
    monkeypatch.setattr(checks, "build", lambda config, key: ahead)
    assert checks.causal(name)(nothing) == -1 / checks.CHANGED


def test_a_baseline_of_other_sizes_is_none(nothing, changed):
    assert checks.true_baseline(nothing) == 1.0
    changed(width=64, heads=2)
    assert checks.true_baseline(nothing) == -2.0


def test_batches_in_another_order_are_found(nothing, changed):
    changed("quickstart-diffeqformer", "trainer", updates=8, batch_size=16)
    short = checks._windows(checks.shipped("quickstart-diffeqformer"), 0)
    assert short.shape == (8, 16, 129)
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patch:
        patch.setattr(checks, "_windows", lambda config, seed: short)
        assert checks.same_batches(nothing) == 1.0
        both = iter((short, short[::-1]))
        patch.setattr(checks, "_windows", lambda config, seed: next(both))
        assert checks.same_batches(nothing) == -1.0


def test_models_that_are_compared_by_their_losses_see_the_same_batches(tmp_path):
    runs = Runs(Arguments(to=str(tmp_path), other=("other.txt",)), MODELS, Silent())
    claims = [claim for item in ITEMS.values() for claim in item.claims if len(claim.models) == 2]
    for claim in claims:
        configs = [runs.config(name, 1, 1e-3) for name in claim.models if name != "gpt-equal-compute"]
        for one, other in pairwise(configs):
            assert (one.data, one.model.context) == (other.data, other.model.context), claim.sentence
            seen = lambda config: (config.trainer.seed, config.trainer.batch_size, config.trainer.updates)
            assert seen(one) == seen(other), claim.sentence


def test_gpt_with_equal_compute_has_at_least_as_many_operations_and_not_many_more(nothing, changed, tmp_path):
    runs = Runs(Arguments(to=str(tmp_path)), MODELS, Silent())
    total = lambda name: runs.operations(name) * runs.config(name, 0, 1e-3).trainer.updates
    assert 1 <= total("gpt-equal-compute") / total("diffeqformer") < 1.005
    assert checks.equal_compute(nothing) > 0
    changed("quickstart-diffeqformer", steps=7)
    assert checks.equal_compute(nothing) < 0
