"""Losses over batches in which not every prediction counts."""

import numpy as np
import pytest

from diffeqformer.errors import BadInput
from diffeqformer.evaluation.perplexity import evaluate
from tests.models import TINY, model_of

IDS = np.arange(2 * 7).reshape(2, 7) % 40


def batch(counts: bool) -> tuple[np.ndarray, np.ndarray]:
    return IDS, np.full((2, 6), counts)


def test_a_batch_without_a_target_counts_for_nothing():
    """Such as one that lies inside a long prompt, where completions alone are targets."""
    model = model_of(TINY)
    assert evaluate(model, [batch(False), batch(True)]).loss == evaluate(model, [batch(True)]).loss


def test_without_any_target_there_is_no_loss():
    with pytest.raises(BadInput, match="no prediction counts in the 1 batches to be evaluated.*data.targets"):
        evaluate(model_of(TINY), [batch(False)])
