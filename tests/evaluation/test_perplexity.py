"""Losses over batches in which not every prediction counts."""

import math

import numpy as np
import pytest

from diffeqformer.errors import BadInput
from diffeqformer.evaluation import perplexity
from diffeqformer.evaluation.perplexity import _Tally, evaluate
from diffeqformer.ode.early_exit import EarlyExit
from tests.models import TINY, model_of

IDS = np.arange(2 * 7).reshape(2, 7) % 40


def batch(counts: bool) -> tuple[np.ndarray, np.ndarray]:
    return IDS, np.full((2, 6), counts)


def test_a_batch_without_a_target_counts_for_nothing():
    """Such as one that lies inside a long prompt, where completions alone are targets."""
    model = model_of(TINY)
    assert evaluate(model, [batch(False), batch(True)]).loss == evaluate(model, [batch(True)]).loss


def test_evaluations_are_a_mean_over_tokens_that_count():
    """With early exit, rows that fill a batch up count for nothing, and a smaller batch for less."""
    model, early = model_of(TINY), EarlyExit(np.int64(8), 0.4)
    ids = np.random.default_rng(0).integers(0, 40, (3, 7))
    alone = [evaluate(model, [(ids[k : k + 1], np.ones((1, 6), bool))], steps=early) for k in range(3)]
    filled = (np.concatenate([ids[2:], np.zeros((1, 7), int)]), np.array([[True] * 6, [False] * 6]))
    whole = evaluate(model, [(ids[:2], np.ones((2, 6), bool)), filled], steps=early)
    taken = [one.attention_evaluations for one in alone]
    assert len(set(taken)) > 1
    assert whole.attention_evaluations == pytest.approx(np.mean(taken), rel=1e-6)


def test_without_any_target_there_is_no_loss():
    with pytest.raises(BadInput, match="no prediction counts in the 1 batch to be evaluated.*data.targets"):
        evaluate(model_of(TINY), [batch(False)])


def test_a_single_batch_is_timed_without_its_compilation(monkeypatch):
    """Where everything is in the first batch, it would be the speed of the compiler."""
    clock, real = [0.0], perplexity._loss_sum

    def compiles_first(*given, **named):
        clock[0] += 1.0 if clock[0] else 100.0
        return real(*given, **named)

    monkeypatch.setattr(perplexity, "_loss_sum", compiles_first)
    monkeypatch.setattr(perplexity.time, "perf_counter", lambda: clock[0])
    model = model_of(TINY)
    found = evaluate(model, [batch(True)])
    assert found.tokens_per_second == found.tokens == IDS.size - len(IDS)
    assert found.loss == evaluate(model, [batch(True), batch(False)]).loss


def test_a_perplexity_that_no_float_holds_is_not_a_number_of_304_digits():
    tally = _Tally(model_of(TINY), None, 16)
    tally.count = tally.seconds = 1.0
    for nats, expected in ((2.0, math.exp(2.0)), (800.0, math.inf), (math.inf, math.inf)):
        tally.nats = nats
        assert tally.evaluation(1, None).perplexity == expected
