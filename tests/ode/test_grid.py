import itertools
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffeqformer.errors import BadInput
from diffeqformer.model.build import build
from diffeqformer.ode.grid import Grid
from tests.models import TINY


def test_edges_of_equal_steps_are_a_number_of_steps():
    assert Grid.of(np.linspace(0, 1, 7)) == Grid.of(tuple(k / 6 for k in range(7))) == Grid(6)
    assert Grid.of((0.0, 0.5 + 1e-5, 1.0)) != Grid(2)
    for steps in (48, 96, 100, 384):
        assert Grid.of(jnp.linspace(0, 1, steps + 1, dtype=jnp.float32)) == Grid(steps)  # as exact as float32 has them
    for narrow in (jnp.bfloat16, jnp.float16):  # whose rounding is longer than a part of a step
        assert Grid.of(jnp.asarray([0, 0.15, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9, 1], narrow)) != Grid(8)
    moved = np.linspace(0, 1, 97, dtype=np.float32)
    moved[5] += 2e-6
    assert Grid.of(moved) != Grid(96)


def test_the_end_of_a_step_is_the_start_of_the_next():
    edges = np.array([0, 0.08, 0.22, 0.45, 0.67, 1.0])
    np.testing.assert_array_equal(np.unique(Grid.of(edges).times((0.0, 1.0))), edges)


@pytest.mark.parametrize("steps", [1, 2, 3, 6, 7, 49, 93, 99, 1000])
def test_times_are_the_ends_of_the_steps_and_find_their_layers(steps):
    times = Grid.of(steps).times()
    assert times.dtype == np.float64
    assert times[-1] == 1.0
    assert [float(Fraction(step, steps)) for step in range(1, steps + 1)] == times.tolist()
    assert Grid(steps).layer_at(times).tolist() == list(range(steps))


@pytest.mark.parametrize("steps", [7, 24, 105, 117, 229])
def test_traced_times_find_their_layers(steps):
    edges = np.linspace(0, 1, steps + 1) ** 1.3
    for grid in (Grid(steps), Grid.of(edges)):
        times = jnp.asarray(grid.times(), jnp.float32)
        assert jax.jit(grid.layer_at)(times).tolist() == list(range(steps))


def test_nodes_come_step_by_step():
    np.testing.assert_allclose(Grid.of(2).times((0.0, 0.5, 1.0)), [0, 0.25, 0.5, 0.5, 0.75, 1.0])


def test_a_layer_is_in_force_after_its_step_begins():
    assert Grid(2).layer_at(np.array([0.0, 0.1, 0.5, 0.51, 1.0])).tolist() == [0, 0, 0, 1, 1]


def test_times_between_unequal_steps():
    edges = jnp.array([0.0, 0.1, 0.4, 1.0])
    assert Grid.of(edges).steps == 3
    np.testing.assert_allclose(Grid.of(edges).times((0.5, 1.0)), [0.05, 0.1, 0.25, 0.4, 0.7, 1.0], rtol=1e-6)
    np.testing.assert_allclose(
        Grid.of(jnp.linspace(0, 1, 8)).times((0.5, 1.0)), Grid.of(7).times((0.5, 1.0)), rtol=1e-6
    )


def test_jittered_times_stay_in_order_and_near_their_places():
    places = np.linspace(0, 1, 8)
    edges = np.stack([Grid(7).jittered(1.0, jax.random.key(seed)).edges for seed in range(200)])
    assert (edges[:, 0] == 0).all() and (edges[:, -1] == 1).all()
    assert (np.diff(edges) >= 0).all()
    away = (edges - places)[:, 1:-1] * 7
    assert -0.5 <= away.min() < -0.45 and 0.45 < away.max() <= 0.5
    np.testing.assert_allclose(Grid(7).jittered(0.0, jax.random.key(0)).edges, places, rtol=1e-6)


def test_a_first_step_keeps_its_length_whatever_the_number_of_steps():
    np.testing.assert_allclose(Grid.of(3, 1 / 3).edges, [0, 1 / 3, 2 / 3, 1], rtol=1e-15)
    np.testing.assert_allclose(Grid.of(5, 0.2).edges, np.arange(6) / 5, rtol=1e-15)
    np.testing.assert_allclose(Grid.of(4, 0.4).edges, [0, 0.4, 0.6, 0.8, 1.0], rtol=1e-15)
    assert Grid.of(1, 0.4) == Grid(1) and Grid.of(4, None) == Grid(4)
    moved = np.stack([Grid.of(4, 0.4).jittered(1.0, jax.random.key(k), first_stays=True).edges for k in range(50)])
    np.testing.assert_allclose(moved[:, :2], [[0, 0.4]] * 50, rtol=1e-6)
    assert np.ptp(moved[:, 2:-1], axis=0).min() > 0.1


def test_dyadic_steps_are_steps_of_the_two_powers_of_two_beside_their_number():
    assert Grid.of(5, spacing="dyadic").edges.tolist() == [0, 1 / 4, 2 / 4, 3 / 4, 7 / 8, 1]
    assert Grid.of(3, spacing="dyadic").edges.tolist() == [0, 1 / 2, 3 / 4, 1]
    for steps in range(1, 70):
        grid, coarse = Grid.of(steps, spacing="dyadic"), 2 ** int(np.log2(steps))
        assert grid.steps == steps and grid.equal == (steps == coarse)
        assert set(grid.lengths) <= {1 / coarse, 1 / (2 * coarse)} and (np.diff(grid.lengths) <= 0).all()
        of_equal = {edges for k in (coarse, 2 * coarse) for edges in itertools.pairwise(np.arange(k + 1) / k)}
        assert set(itertools.pairwise(grid.edges)) <= of_equal


def test_with_thirds_steps_are_of_the_two_usual_numbers_beside_theirs():
    assert Grid.of(5, spacing="thirds").edges.tolist() == [0, 1 / 4, 2 / 4, 4 / 6, 5 / 6, 1]
    assert Grid.of(7, spacing="thirds").edges.tolist() == [0, 1 / 6, 2 / 6, 3 / 6, 5 / 8, 6 / 8, 7 / 8, 1]
    usual = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96]
    for steps in range(1, 70):
        grid = Grid.of(steps, spacing="thirds")
        assert grid.steps == steps and grid.equal == (steps in usual)
        few, many = max(n for n in usual if n <= steps), min(n for n in usual if n > steps)
        of_equal = {edges for k in (few, many) for edges in itertools.pairwise((np.arange(k + 1) / k).tolist())}
        assert set(itertools.pairwise(grid.edges.tolist())) <= of_equal


@pytest.mark.parametrize(
    "asked", [4, np.int64(4), Grid(4), [0, 0.25, 0.5, 0.75, 1], np.linspace(0, 1, 5), (0.0, 0.25, 0.5, 0.75, 1.0)]
)
def test_whatever_stands_for_a_grid_is_one(asked):
    grid = Grid.of(asked)
    assert grid.steps == 4 and grid.edges.dtype == np.float64
    np.testing.assert_array_equal(grid.edges, np.arange(5) / 4)
    assert hash(grid) == hash(Grid.of(asked))


def test_no_table_is_made_for_times_that_are_traced():
    with pytest.raises(BadInput, match="the times between steps are traced, but a table of layers"):
        jax.eval_shape(lambda t: build(TINY, jax.random.key(0)).populate(jnp.array([0, t, 1])), 0.3)


@pytest.mark.parametrize(
    "edges", [[0.0, 0.6, 0.5, 1.0], [0.1, 1.0], [0.0, 0.9], [0.0, 0.5, 0.5, 1.0], [0.0], [0.0, float("nan"), 1.0]]
)
def test_edges_that_do_not_rise_from_0_to_1_are_refused(edges):
    with pytest.raises(BadInput, match="the times between steps are .*, but must rise from 0 to 1"):
        Grid.of(np.array(edges))


@pytest.mark.parametrize("asked", [np.zeros((2, 2)), [[0, 0.5], [1]], ["0", "1"], [None, 1], jnp.zeros((1, 2, 3))])
def test_what_is_neither_a_number_nor_times_on_one_axis_is_refused(asked):
    with pytest.raises(BadInput, match=r"steps is [^|]*, but must be a whole number .*, or the times between steps"):
        Grid.of(asked)
