"""Paired tests of whether two models differ on the same items of a task, and their correction for many tasks."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

MCNEMAR, T_TEST = "exact McNemar", "paired t"


class Difference(NamedTuple):
    """Difference of two models, first minus second, over the items that both answered."""

    value: float
    """Difference of the mean scores."""
    stderr: float
    """Standard error of that difference, from the differences per item."""
    p: float
    """Probability of a difference at least as large if the models were alike; two-sided."""
    test: str


def paired_difference(first: Float[np.ndarray, " item"], second: Float[np.ndarray, " item"]) -> Difference:
    """Compare two models item by item.

    Scores that are all 0 or 1 are compared by the exact test of McNemar (1947): if the models were alike, each item
    that only one gets right would be either's with probability 1/2. Other scores are compared by Student's t of the
    differences.

    **Arguments:** the scores of both models on the same items, at least two, in the same order.
    """
    from scipy.stats import binomtest, ttest_rel

    differences = first - second
    value, stderr = float(differences.mean()), float(differences.std(ddof=1) / len(differences) ** 0.5)
    if np.isin([first, second], (0.0, 1.0)).all():
        alone, disagree = int((differences > 0).sum()), int(np.count_nonzero(differences))
        return Difference(value, stderr, float(binomtest(alone, disagree).pvalue) if disagree else 1.0, MCNEMAR)
    if stderr == 0:  # every item differs by the same amount
        return Difference(value, stderr, float(value == 0), T_TEST)
    return Difference(value, stderr, float(ttest_rel(first, second)[1]), T_TEST)


def holm(p: Sequence[float]) -> list[float]:
    """Correct the p-values of several tests so that 0.05 bounds the chance of any false finding (Holm 1979).

    The i-th smallest of n (i from 0) becomes the largest of `(n - j) p_j` for j up to i, at most 1.
    """
    order, corrected = np.argsort(p, kind="stable"), np.empty(len(p))
    raised = np.arange(len(p), 0, -1) * np.asarray(p)[order]
    corrected[order] = np.maximum.accumulate(np.minimum(raised, 1.0))
    return corrected.tolist()
