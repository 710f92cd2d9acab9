"""The benchmark of spectra runs and both of its ways agree."""

import numpy as np
import pytest

from diffeqformer.studies.bench.bench_spectra import compare_spectra, largest_difference


def test_both_ways_give_the_same_eigenvalues():
    found = compare_spectra(steps=2, heads=4, width=64, rounds=2, dense=None)
    assert found["dense_measured"] == 16 and found["seconds"] > 0
    assert found["largest_difference"] < 1e-9


def test_the_difference_is_of_matched_eigenvalues_over_the_radius():
    dense = np.array([1e-12, 2.0, -4.0, 0])
    assert largest_difference(np.array([-4.0, 2.1]), dense) == pytest.approx(0.1 / 4)
