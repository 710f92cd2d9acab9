"""Paired tests: against sums done by hand, and against a permutation of every sign."""

from itertools import product
from math import comb, sqrt

import numpy as np
import pytest

from diffeqformer.evaluation.paired import MCNEMAR, T_TEST, holm, paired_difference


def test_right_and_wrong_is_the_exact_test_of_mcnemar():
    first = np.array([1.0] * 9 + [0.0] * 2 + [1.0] * 5 + [0.0] * 4)
    second = np.array([0.0] * 9 + [1.0] * 2 + [1.0] * 5 + [0.0] * 4)
    found = paired_difference(first, second)  # 9 alone right, 2 alone right, 9 agree
    assert found.test == MCNEMAR and found.value == pytest.approx(7 / 20)
    assert found.p == pytest.approx(2 * sum(comb(11, k) for k in range(3)) / 2**11)
    spread = (11 - 20 * 0.35**2) / 19
    assert found.stderr == pytest.approx(sqrt(spread / 20))
    assert paired_difference(second, first)[:3] == pytest.approx((-found.value, found.stderr, found.p))


def test_models_that_agree_do_not_differ():
    assert paired_difference(np.ones(5), np.ones(5)).p == 1.0
    assert paired_difference(np.full(5, -2.5), np.full(5, -2.5)).p == 1.0


def test_other_scores_are_tested_by_student_t():
    draw = np.random.default_rng(0)
    first = draw.normal(size=12)
    second = first + draw.normal(0.4, 0.7, 12)
    found = paired_difference(first, second)
    differences = first - second
    flipped = [abs((differences * signs).mean()) for signs in product((1, -1), repeat=12)]
    assert found.test == T_TEST
    # Student's t is the permutation test to first order: 12 items differ from it in the second digit
    assert found.p == pytest.approx(np.mean(np.array(flipped) >= abs(differences.mean()) - 1e-12), abs=0.02)


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0] and holm([]) == []
