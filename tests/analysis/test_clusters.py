"""Particles that attend to each other, against known answers and plain loops; measures against SciPy."""

from dataclasses import replace
from itertools import pairwise
from typing import get_args

import equinox as eqx
import jax
import numpy as np
import pytest
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.linalg import expm
from scipy.spatial.distance import pdist

from diffeqformer.analysis.clusters import Variant, Weights, draw, move, simulate
from diffeqformer.analysis.gathering import directions, interaction_energy, measure, members, watch_states
from diffeqformer.errors import BadInput, RunFailed
from tests.models import KINDS, model_of, states, tokens
from tests.tolerances import roundoff

IDENTITY = np.eye(3)


def one_by_one(x, a, v, variant, grown):
    """The speed of every particle in plain loops."""
    if variant == "particles":
        x = np.array([(p - p.mean()) / np.sqrt(p.var() + 1e-5) for p in x])
    speeds = []
    for p in x:
        scores = np.array([(grown @ p) @ a @ (grown @ q) for q in x])
        weights = np.exp(scores) / (len(x) if variant == "unnormed" else np.exp(scores).sum())
        if variant == "rescaled":
            speeds.append(sum(w * v @ (q - p) for w, q in zip(weights, x, strict=True)))
            continue
        force = sum(w * v @ q for w, q in zip(weights, x, strict=True))
        speeds.append(force if variant == "particles" else force - (force @ p) * p)
    return np.array(speeds)


@pytest.mark.parametrize("variant", get_args(Variant))
@pytest.mark.parametrize("order", [0, 2])
def test_a_step_is_the_equation(variant, order):
    x, a, v = (each[0] for each in draw(1, points=7, seed=3))
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    dt, unit = 0.3, 2.0
    growth, integral = (dt / unit) ** order, unit * (dt / unit) ** (order + 1) / (order + 1)
    grown = expm(integral * v) if variant == "rescaled" else IDENTITY
    wanted = x + dt * one_by_one(x, growth * a, growth * v, variant, grown)
    if variant in ("sphere", "unnormed"):
        wanted = wanted / np.linalg.norm(wanted, axis=1, keepdims=True)
    start, moved = move(x, Weights(a, v, order, unit), variant, steps=1, dt=dt)
    np.testing.assert_allclose(start, x)
    np.testing.assert_allclose(moved, wanted, atol=1e-12)


@pytest.mark.parametrize("variant", ["sphere", "unnormed"])
def test_identity_weights_on_the_sphere_collapse_to_one_point(variant):
    found = simulate(variant, 0, systems=3, points=20, steps=400)
    assert (found.measures.distance[0] > 1).all()
    assert (found.measures.distance[-1] < 1e-6).all()
    assert (found.measures.clusters(0.05)[-1] == 1).all()
    np.testing.assert_allclose(found.measures.energy[-1], np.e / 2, rtol=1e-9)
    np.testing.assert_allclose(np.linalg.norm(found.states, axis=-1), 1)


@pytest.mark.parametrize("variant", ["sphere", "unnormed"])
@pytest.mark.parametrize("beta", [0.5, 4.0])
def test_the_energy_only_grows_where_the_motion_climbs_it(variant, beta):
    x, *_ = draw(4, points=15)
    path = list(move(x, Weights(beta * IDENTITY, IDENTITY), variant, steps=150, dt=0.02))
    energies = np.array([interaction_energy(now, beta) for now in path])
    assert (np.diff(energies, axis=0) >= -1e-13).all()
    falling = list(move(x, Weights(beta * IDENTITY, -IDENTITY), variant, steps=150, dt=0.02))
    assert (np.diff([interaction_energy(now, beta) for now in falling], axis=0) <= 1e-13).all()


def test_the_unnormed_motion_is_the_gradient_of_the_energy():
    """`n` times its gradient on the sphere, by finite differences."""
    x = next(iter(move(draw(1, points=6)[0][0], Weights(IDENTITY, IDENTITY), "sphere", steps=0, dt=0.1)))
    _, moved = move(x, Weights(2 * IDENTITY, IDENTITY), "unnormed", steps=1, dt=1e-7)
    speed = (moved - x) / 1e-7
    slope = np.zeros_like(x)
    for place in np.ndindex(*x.shape):
        step = np.zeros_like(x)
        step[place] = 1e-6
        slope[place] = (interaction_energy(x + step, 2.0) - interaction_energy(x - step, 2.0)) / 2e-6
    slope = slope - (slope * x).sum(-1, keepdims=True) * x
    np.testing.assert_allclose(speed, len(x) * slope, atol=1e-5)


@pytest.mark.parametrize("variant", get_args(Variant))
def test_shared_weights_are_a_constant_f(variant):
    x, a, v = draw(2, points=9)
    shared = list(move(x, Weights(a, v), variant, steps=20, dt=0.1))
    # Every step rounds as if V were a little different: expm, two changes of basis, scores, softmax and mean of 9.
    condition = np.abs(np.subtract(list(move(x, Weights(a, v * (1 + 1e-7)), variant, steps=20, dt=0.1)), shared)).max()
    error = roundoff(np.float64, operations=20 * 60, scale=condition / 1e-7)
    for unit in (0.5, 3.0):
        constant = list(move(x, Weights(a, v, order=0, unit=unit), variant, steps=20, dt=0.1))
        np.testing.assert_allclose(shared, constant, rtol=0, atol=error)


def test_rescaling_undoes_the_growth():
    """`exp(-int V) x` of the motion without norms is the rescaled motion, up to the error of small steps."""
    x, a, v = (each[0] for each in draw(1, points=8, reach=1.0, seed=5))
    a, v, steps, dt = 0.3 * a, 0.3 * v, 4000, 5e-4
    weights = Weights(a, v, order=1, unit=1.0)
    *_, rescaled = move(x, weights, "rescaled", steps=steps, dt=dt)
    for step in range(1, steps + 1):
        scores = step * dt * x @ a @ x.T
        attention = np.exp(scores - scores.max(1, keepdims=True))
        x = x + dt * step * dt * (attention / attention.sum(1, keepdims=True)) @ x @ v.T
    np.testing.assert_allclose(rescaled, x @ expm(-weights.integral(steps * dt) * v).T, atol=2e-3)  # 1.2e-3, by dt


def test_level_growth_has_the_same_integral():
    wanted = Weights(IDENTITY, IDENTITY).integral(20.0)
    for order in range(5):
        weights = Weights(IDENTITY, IDENTITY, order, 20.0, order + 1.0)
        assert weights.integral(20.0) == pytest.approx(wanted)
        times = np.linspace(0, 20, 20001)
        assert np.trapezoid([weights.growth(t) for t in times], times) == pytest.approx(wanted, rel=1e-6)


def test_systems_do_not_depend_on_how_many_there_are():
    few, many = (simulate("particles", 1, systems=n, points=6, steps=5) for n in (2, 5))
    np.testing.assert_array_equal(few.states, many.states)
    np.testing.assert_allclose(few.measures.heights, many.measures.heights[:, :2], atol=1e-12)


def test_measures_are_scipys(random=np.random.default_rng(1)):
    x = random.normal(size=(3, 2, 12, 4))
    found = measure(x)
    for place in np.ndindex(3, 2):
        points, pairs = x[place], pdist(x[place])
        np.testing.assert_allclose(found.heights[place], linkage(points, "single")[:, 2], atol=1e-7)
        assert found.distance[place] == pytest.approx(pairs.mean())
        for share in (0.2, 0.5, 0.8):
            groups = fcluster(linkage(points, "single"), share * pairs.mean(), "distance")
            assert found.clusters(share, of="now")[place] == groups.max()
            own = members(points, share * pairs.mean())
            assert (np.equal.outer(groups, groups) == np.equal.outer(own, own)).all()
            assert (np.diff(np.bincount(own)) <= 0).all()
        assert found.clusters(0.5)[place] == 1 + (found.heights[place] > 0.5 * found.distance[0, place[1]]).sum()
        u = points / np.linalg.norm(points, axis=1, keepdims=True)
        assert found.energy[place] == pytest.approx(np.mean([np.exp(p @ q) / 2 for p in u for q in u]))


def test_points_at_one_place_are_one_cluster():
    x = np.ones((1, 1, 5, 3))
    assert measure(x).clusters(0.1).tolist() == [[1]]
    assert (measure(x).heights == 0).all() and members(x[0, 0], 0.1).tolist() == [0] * 5


@pytest.mark.parametrize(
    ("variant", "order", "unit"), [("unnormed", 4, 1.0), ("particles", 9, 1e-36), ("rescaled", 9, 1e-300)]
)
def test_numbers_that_leave_the_range_are_told(variant, order, unit):
    with pytest.raises(RunFailed, match="leave the range of numbers at step"):
        simulate(variant, order, systems=1, points=5, unit=unit)


def test_what_is_too_long_for_its_square_has_no_direction():
    with np.errstate(over="ignore"):  # its length is infinite, and a point over that would be a finite zero
        assert np.isnan(directions(np.full(3, 1e200))).all()


@pytest.mark.parametrize("kind", ["diffeqformer", "vanilla llama, grouped queries", "macaron"])
def test_hidden_states_are_the_models_own(kind):
    model = model_of(KINDS[kind])
    ids = np.asarray(tokens(batch=3))
    found = watch_states(model, ids)
    states = np.asarray(eqx.filter_jit(model.trajectory)(ids), np.float64)
    np.testing.assert_allclose(found.norm, np.linalg.norm(states, axis=-1).mean(-1), rtol=1e-4)
    np.testing.assert_allclose(found.measures.distance, measure(states).distance, rtol=1e-4)
    assert found.times.tolist() == pytest.approx([0, 1 / 3, 2 / 3, 1])
    level = states[:, 0] / np.linalg.norm(states[:, 0], axis=-1).mean(-1)[:, None, None]
    flat = level.reshape(-1, states.shape[-1])
    singular = np.linalg.svd(flat - flat.mean(0), compute_uv=False) ** 2
    np.testing.assert_allclose(found.explained, singular[:3] / singular.sum(), rtol=1e-3)
    one = watch_states(model, ids[1:2])
    np.testing.assert_allclose(one.measures.heights, found.measures.heights[:, 1:2], rtol=1e-4)


def test_states_that_are_not_finite_are_told():
    model = model_of(KINDS["diffeqformer"])
    broken = eqx.tree_at(lambda m: m.embedding.tokens, model, model.embedding.tokens * np.nan)
    with pytest.raises(RunFailed, match="hidden states of the model are not finite"):
        watch_states(broken, np.asarray(tokens(batch=1)))


def test_states_that_are_all_zero_are_no_fault():
    model = model_of(KINDS["diffeqformer"])
    empty = eqx.tree_at(lambda m: m.embedding, model, jax.tree.map(lambda leaf: leaf * 0, model.embedding))
    found = watch_states(empty, np.asarray(tokens(batch=1)))
    assert np.isfinite(found.projection).all() and not np.ptp(found.projection[0], axis=0).any()


@pytest.mark.parametrize("width", [1, 2])
def test_states_narrower_than_three_lie_in_three_directions_too(width):
    model = model_of(replace(KINDS["vanilla"], width=width, heads=1))
    found = watch_states(model, np.asarray(tokens(batch=1)))
    assert found.projection.shape == (4, tokens(batch=1).shape[1], 3) and found.explained.shape == (3,)
    np.testing.assert_allclose(found.explained.sum(), 1.0)
    assert np.ptp(found.projection[..., 0]) > 0 and not found.projection[..., width:].any()


def test_other_depths_and_bad_ones():
    model, edges = model_of(KINDS["diffeqformer"]), np.array([0, 0.25, 0.3, 1])
    unequal, ids = watch_states(model, np.asarray(tokens(batch=1)), steps=edges), tokens(batch=1)
    np.testing.assert_array_equal(unequal.times, edges)
    lengths = np.linalg.norm(states(model, ids, tuple(edges)), axis=-1).mean((1, 2))
    np.testing.assert_allclose(unequal.norm[:, 0], lengths, rtol=1e-5)
    assert watch_states(model, np.asarray(tokens(batch=1)), steps=5).times.shape == (6,)
    with pytest.raises(BadInput, match="texts have 1 token, but distances need at least two"):
        watch_states(model, np.asarray(tokens(batch=1))[:, :1])
    with pytest.raises(BadInput, match="steps is 0"):
        watch_states(model, np.asarray(tokens(batch=1)), steps=0)


def test_arrays_of_a_simulation():
    found = simulate("sphere", 1, systems=1, points=4, steps=2)
    hidden = watch_states(model_of(KINDS["diffeqformer"]), np.asarray(tokens(batch=1)))
    assert {"times", "states", "distance", "energy", "heights"} == {*found.arrays()}
    assert all(a <= b for a, b in pairwise(hidden.times))
