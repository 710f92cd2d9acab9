from fractions import Fraction

import jax
import jax.numpy as jnp
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


def test_times_between_unequal_steps():
    edges = jnp.array([0.0, 0.1, 0.4, 1.0])
    assert grid.number(edges) == 3
    np.testing.assert_allclose(grid.times(edges, (0.5, 1.0)), [0.05, 0.1, 0.25, 0.4, 0.7, 1.0], rtol=1e-6)
    np.testing.assert_allclose(grid.times(jnp.linspace(0, 1, 8), (0.5, 1.0)), grid.times(7, (0.5, 1.0)), rtol=1e-6)


def test_jittered_times_stay_in_order_and_near_their_places():
    places = np.linspace(0, 1, 8)
    edges = np.stack([grid.jittered(7, 1.0, jax.random.key(seed)) for seed in range(200)])
    assert (edges[:, 0] == 0).all() and (edges[:, -1] == 1).all()
    assert (np.diff(edges) >= 0).all()
    away = (edges - places)[:, 1:-1] * 7
    assert -0.5 <= away.min() < -0.45 and 0.45 < away.max() <= 0.5
    np.testing.assert_allclose(grid.jittered(7, 0.0, jax.random.key(0)), places, rtol=1e-6)


def test_a_first_step_keeps_its_length_whatever_the_number_of_steps():
    np.testing.assert_allclose(grid.with_first(3, 1 / 3), [0, 1 / 3, 2 / 3, 1], rtol=1e-15)
    np.testing.assert_allclose(grid.with_first(5, 0.2), np.arange(6) / 5, rtol=1e-15)
    np.testing.assert_allclose(grid.with_first(4, 0.4), [0, 0.4, 0.6, 0.8, 1.0], rtol=1e-15)
    assert grid.with_first(1, 0.4) == 1 and grid.with_first(4, None) == 4
    moved = np.stack(
        [grid.jittered(grid.with_first(4, 0.4), 1.0, jax.random.key(k), first_stays=True) for k in range(50)]
    )
    np.testing.assert_allclose(moved[:, :2], [[0, 0.4]] * 50, rtol=1e-6)
    assert np.ptp(moved[:, 2:-1], axis=0).min() > 0.1
