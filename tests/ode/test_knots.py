"""Weights between knots: the basis is SciPy's, a table at its own nodes, and continuous in between."""

import dataclasses
from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.interpolate import CubicSpline

from diffeqformer.config import KnotsConfig, ToleranceConfig, validate_model
from diffeqformer.errors import BadInput
from diffeqformer.model.build import build
from diffeqformer.model.count import parameters
from diffeqformer.ode.grid import ODD, Grid, Nodes, mixed_edges
from diffeqformer.ode.lora import linear_maps
from diffeqformer.ode.weights.knots import PLACES, cardinal_basis, mean_basis
from tests.cases import slow
from tests.models import TINY, logits, model_of, tokens

KEY = jax.random.key(0)
TIMES = np.linspace(0, 1, 57)
SINGLE = float(np.finfo(np.float32).eps)
"""Of values of at most about one, which are computed in float64 and rounded once."""


def places(knots: int, place: str) -> np.ndarray:
    return (np.arange(knots) + PLACES[place]) / knots


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("knots", [1, 2, 3, 6, 12])
def test_the_basis_is_that_of_interpolation_between_the_knots(knots, place):
    at, inside = places(knots, place), np.clip(TIMES, *places(knots, place)[[0, -1]])
    hat = np.stack([np.interp(TIMES, at, one) for one in np.eye(knots)], 1)
    np.testing.assert_allclose(cardinal_basis(TIMES, knots, "hat", place), hat, rtol=0, atol=SINGLE)
    distance = np.abs(TIMES[:, None] - at[None])
    nearest = distance < distance.min(1, keepdims=True) + 1e-9
    box = nearest / nearest.sum(1, keepdims=True)
    np.testing.assert_array_equal(cardinal_basis(TIMES, knots, "box", place), box)
    if knots > 2:
        spline = CubicSpline(at, np.eye(knots), bc_type="natural")(inside)
        np.testing.assert_allclose(cardinal_basis(TIMES, knots, "cubic", place), spline, rtol=0, atol=2 * SINGLE)


@pytest.mark.parametrize("basis", ["hat", "cubic", "box"])
def test_it_is_cardinal_and_sums_to_one(basis):
    for place, node in PLACES.items():
        for knots in (6, 26, 49):  # 26 * (l / 26) is not always l
            found = np.asarray(cardinal_basis(Grid(knots).times((node,)), knots, basis, place))
            np.testing.assert_array_equal(found, np.eye(knots, dtype=np.float32))
        np.testing.assert_allclose(cardinal_basis(TIMES, 6, basis, place).sum(1), 1, atol=4 * SINGLE)


def test_in_double_precision_it_is_exact_between_knots():
    with jax.enable_x64(True):
        found = np.asarray(cardinal_basis(np.array([1 / 3]), 5, "hat", "middle", jnp.float64))
        mean = np.asarray(mean_basis(np.array([0.0, 1 / 3, 1.0]), 5, "hat", "middle", jnp.float64))
    share = 5 / 3 - 0.5 - 1
    np.testing.assert_allclose(found, [[0, 1 - share, share, 0, 0]], atol=1e-15)
    assert abs(mean[0, 2] - 3 / 5 * share**2 / 2) < 1e-15  # a triangle, a fifth as wide in t, over a third


@pytest.mark.parametrize("place", PLACES)
def test_traced_times_halfway_between_knots_are_halfway_between_boxes(place):
    """Which float32 does not always have: 7 * (1 / 7) - 1/2 is off by an eps."""
    times = np.concatenate([np.arange(2 * steps + 1) / (2 * steps) for steps in range(1, 12)])
    for knots in (3, 5, 7):
        boxes = partial(cardinal_basis, knots=knots, basis="box", place=place)
        np.testing.assert_array_equal(jax.jit(boxes)(times.astype(np.float32)), boxes(times))


def test_traced_times_give_the_same_basis():
    traced = jax.jit(lambda t: cardinal_basis(t, 6, "cubic"))(jnp.asarray(TIMES, jnp.float32))
    # A time is rounded to float32, half an eps, and multiplied by 6; the basis has slopes below 2 per knot.
    np.testing.assert_allclose(traced, cardinal_basis(TIMES, 6, "cubic"), atol=20 * SINGLE)


@pytest.mark.parametrize(("place", "node"), PLACES.items())
@pytest.mark.parametrize("basis", ["hat", "cubic", "box"])
def test_at_its_own_nodes_it_is_the_table_of_its_knots_to_the_bit(place, node, basis):
    section = KnotsConfig(3, basis=basis, place=place)
    weights = model_of(dataclasses.replace(TINY, weights=section)).weights
    table = weights.table(Grid(3), Nodes.same(node))
    for row, leaf in zip(jax.tree.leaves(table), jax.tree.leaves(weights.rows), strict=True):
        np.testing.assert_array_equal(row[:, 0], leaf)


def test_a_constant_start_is_one_layer_at_all_times_as_large_as_any():
    sections = [KnotsConfig(3, start=start) for start in ("constant", "independent")]
    models = [build(dataclasses.replace(TINY, weights=section), jax.random.key(0)) for section in sections]
    constant, independent = ([np.asarray(one.weight) for one in linear_maps(m.weights.rows).values()] for m in models)
    for ours, usual in zip(constant, independent, strict=True):
        np.testing.assert_array_equal(ours, ours[:1].repeat(3, 0))
        assert not np.array_equal(usual[0], usual[1])
        # The standard deviation of n normal numbers is off by 1 / sqrt(2 n) of it; five times that, of two samples.
        assert ours[0].std() == pytest.approx(usual[1].std(), rel=5 * usual[0].size ** -0.5)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("knots", "basis"), [(1, "hat"), (2, "cubic"), (5, "hat"), (6, "cubic"), (3, "box")])
def test_the_mean_over_a_step_is_the_integral_over_its_length(knots, basis, place):
    edges = np.array([0, 0.03, 0.2, 0.21, 0.5, 0.77, 0.97, 1.0])
    # Gauss and Legendre's rule of four points is exact for cubics, piece by piece between the knots and their middles.
    at = places(knots, place)
    pieces = np.unique(np.concatenate([edges, at, (at[1:] + at[:-1]) / 2]))
    at, share = np.polynomial.legendre.leggauss(4)
    expected = np.zeros((len(edges) - 1, knots))
    for start, end in pairwise(pieces):
        times = (start + end) / 2 + (end - start) / 2 * at
        values = np.asarray(cardinal_basis(times, knots, basis, place), np.float64)
        step = np.searchsorted(edges, start, side="right") - 1
        expected[step] += share @ values * (end - start) / 2 / (edges[step + 1] - edges[step])
    # The reference's values are rounded to float32, and a mean of them is no further off.
    np.testing.assert_allclose(mean_basis(edges, knots, basis, place), expected, rtol=0, atol=4 * SINGLE)
    traced = jax.jit(lambda t: mean_basis(t, knots, basis, place))(jnp.asarray(edges, jnp.float32))
    # Edges are rounded to float32, which is 2 * SINGLE / 0.01 of the shortest step, and more of the slopes of knots.
    np.testing.assert_allclose(traced, expected, rtol=0, atol=8 * knots * SINGLE / 0.01)


def test_boxes_are_hats_where_dyadic_steps_are_long_and_give_short_ones_the_knot_that_they_lie_in():
    dyadic = lambda steps, basis: cardinal_basis(Grid.of(steps, spacing="dyadic").times((0.5,)), 8, basis)
    for steps in range(1, 9):
        np.testing.assert_array_equal(dyadic(steps, "box"), dyadic(steps, "hat"))
    np.testing.assert_array_equal(dyadic(32, "box"), np.eye(8).repeat(4, 0))
    assert not np.array_equal(dyadic(32, "hat"), dyadic(32, "box"))


def test_the_mean_over_a_step_without_length_is_the_value_there():
    edges = np.array([0, 0.4, 0.4, 1.0])
    np.testing.assert_array_equal(mean_basis(edges, 4)[1], cardinal_basis(np.array([0.4]), 4)[0])
    assert np.isfinite(jax.jit(lambda t: mean_basis(t, 4))(jnp.asarray(edges))).all()


def test_a_long_step_has_the_mean_weights_of_the_short_ones_that_it_stands_for():
    section = KnotsConfig(5, average=True)
    weights = model_of(dataclasses.replace(TINY, weights=section)).weights
    fine, coarse = (weights.table(Grid(steps), Nodes((0.5,), (0.0, 1.0))) for steps in (6, 2))
    for short, long in zip(jax.tree.leaves(fine), jax.tree.leaves(coarse), strict=True):
        assert long.shape[1] == 1  # for all nodes
        mean = np.asarray(short, np.float64).reshape(2, 3, *short.shape[1:]).mean(1)
        np.testing.assert_allclose(long, mean, rtol=0, atol=16 * SINGLE * max(1.0, np.abs(short).max()))


def test_the_parameters_are_those_of_a_table_of_as_many_layers():
    for knots in (3, 5):
        own = dataclasses.replace(TINY, weights=KnotsConfig(knots), steps=knots)
        assert parameters(own) == parameters(dataclasses.replace(own, weights="layer"))
    assert model_of(dataclasses.replace(TINY, weights="knots", steps=4)).weights.knots == 4


def test_gradients_reach_the_knots_through_any_grid():
    model, ids = model_of(dataclasses.replace(TINY, weights=KnotsConfig(3))), tokens()
    loss = lambda rows: jnp.square(
        logits(model.replace(weights=dataclasses.replace(model.weights, rows=rows)), ids, 5)
    ).sum()
    for leaf in jax.tree.leaves(jax.grad(loss)(model.weights.rows)):
        assert (np.abs(leaf).reshape(3, -1).max(1) > 0).all()


def test_a_normalised_embedding_has_unit_length_whatever_its_scale():
    model, ids = model_of(dataclasses.replace(TINY, embedding_norm=True, norm_epsilon=1e-12)), tokens()
    np.testing.assert_allclose(np.square(model.embed(ids)).mean(-1), 1, rtol=1e-5)
    larger = model.replace(embedding=jax.tree.map(lambda leaf: 3.0 * leaf, model.embedding))
    np.testing.assert_allclose(larger.embed(ids), model.embed(ids), rtol=0, atol=20 * SINGLE)
    assert not np.allclose(np.square(model_of(TINY).embed(ids)).mean(-1), 1, atol=0.1)


@pytest.mark.parametrize(("average", "nodes"), [(True, Nodes.same(0.5)), (False, Nodes((0.5,), (0.0, 1.0)))])
@pytest.mark.parametrize(
    "edges",
    [
        (0, 1),
        mixed_edges(6, ODD["dyadic"]),
        (0, 0.1, 0.25, 0.4, 0.8, 1),
        np.arange(13) / 12,
        *slow([0, 1 / 3, 2 / 3, 1], [0, 0.25, 0.5, 0.75, 1], [0, 0.3, 0.55, 1]),
    ],
)
def test_linear_maps_are_corrected_by_the_length_of_each_step(average, nodes, edges):
    """As written down for each step alone, in float64; steps shorter than 1/4 are as those of 1/4."""
    weights = model_of(dataclasses.replace(TINY, weights=KnotsConfig(4, average=average, rank=2))).weights
    grid, plain = Grid.of(np.asarray(edges, float)), dataclasses.replace(weights, corrections=None)
    found, usual = (jax.jit(lambda weights: weights.table(grid, nodes))(one) for one in (weights, plain))
    traced = jax.jit(lambda edges: weights.table(Grid.of(edges), nodes))(jnp.asarray(edges, jnp.float32))
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5), found, traced)
    for half, name in (("attention", "query_key_value"), ("feed_forward", "down")):
        row, mean = (getattr(getattr(table, half), name) for table in (found, usual))
        change = getattr(getattr(weights.corrections, half), name)
        products = np.einsum("jkir,jkro->jkio", *(np.asarray(part, float) for part in (change.a, change.b)))
        own = getattr(nodes, half)
        basis = mean_basis(grid.edges, 4) if average else cardinal_basis(grid.times(own), 4)
        basis = np.asarray(basis, float).reshape(grid.steps, -1, 4)
        halvings = np.clip(-np.log2(grid.lengths), 0, 2)
        shares = np.maximum(0, 1 - np.abs(halvings[:, None] - np.arange(3)))
        expected = np.asarray(mean.weight, float) + np.einsum("lj,lnk,jkio->lnio", shares, basis, products)
        np.testing.assert_allclose(row.weight, expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(row.bias, mean.bias, rtol=0, atol=4 * SINGLE)


def test_corrections_begin_as_none_and_the_limit_has_those_of_short_steps():
    config = dataclasses.replace(TINY, scheme="lie-trotter-middle", weights=KnotsConfig(4, average=True, rank=2))
    new, plain = (
        build(dataclasses.replace(config, weights=KnotsConfig(4, average=True, rank=r)), KEY) for r in (2, None)
    )
    jax.tree.map(np.testing.assert_array_equal, new.populate(5), plain.populate(5))
    assert parameters(config).stored - parameters(plain.config).stored == 3 * 4 * 2 * sum(
        sum(shape) for shape in ((16, 48), (16, 16), (16, 64), (64, 16))
    )
    deeper = build(dataclasses.replace(config, steps=9), KEY).weights.corrections.attention.output
    assert len(deeper.a) == 5  # 1, 1/2, 1/4, 1/8 and 1/16: those of as many knots or steps as there are
    model, edges = model_of(config), (0.0, 0.3, 0.55, 1.0)
    for steps in (1, 3, 9, edges):
        np.testing.assert_allclose(logits(model.populate(steps), tokens()), logits(model, tokens(), steps), atol=1e-5)
    short, limit = model.weights.table(Grid(64), Nodes.same(0.5)), model.weights.at(Grid(64).times((0.5,)))
    inner = slice(8, -8)  # knots are joined by lines, of which a mean over a step within one is the value at its middle
    np.testing.assert_allclose(
        short.feed_forward.up.weight[inner, 0], limit.feed_forward.up.weight[inner], rtol=0.05, atol=0.02
    )
    with pytest.raises(
        BadInput, match="model.weights.rank is 17, but attention.query_key_value is 16 x 48: at most 16"
    ):
        build(dataclasses.replace(config, weights=KnotsConfig(4, rank=17)), KEY)
    with pytest.raises(BadInput, match="model.weights.halvings is 3, but without model.weights.rank nothing"):
        validate_model(dataclasses.replace(config, weights=KnotsConfig(4, halvings=3)))
    with pytest.raises(BadInput, match="model.weights.rank is 2, but model.tolerance is given"):
        adaptive = {"scheme": "heun", "tolerance": ToleranceConfig(1e-2), "weights": KnotsConfig(4, rank=2)}
        validate_model(dataclasses.replace(config, **adaptive))
