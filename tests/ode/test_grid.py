from fractions import Fraction

import numpy as np
import pytest

from diffeqformer.ode import grid


@pytest.mark.parametrize("steps", [1, 2, 3, 6, 7, 49, 93, 99, 1000])
def test_times_are_the_ends_of_the_steps_and_find_their_layers(steps):
    times = grid.times(steps)
    assert times.dtype == np.float64
    assert times[-1] == 1.0
    assert [float(Fraction(step, steps)) for step in range(1, steps + 1)] == times.tolist()
    assert grid.layer_of(times, steps).tolist() == list(range(steps))


def test_nodes_come_step_by_step():
    np.testing.assert_allclose(grid.times(2, (0.0, 0.5, 1.0)), [0, 0.25, 0.5, 0.5, 0.75, 1.0])


def test_a_layer_is_in_force_after_its_step_begins():
    assert grid.layer_of(np.array([0.0, 0.1, 0.5, 0.51, 1.0]), 2).tolist() == [0, 0, 0, 1, 1]
