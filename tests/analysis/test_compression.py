"""Smaller tables: what weights their squares, that each way is the nearest of its kind, and what it takes to store."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffeqformer.analysis.compression import depth_modes, fewer_knots, low_rank, second_moments
from diffeqformer.model.count import count
from diffeqformer.nn.linear import Linear, normalise
from diffeqformer.ode.weights.lifting import joined, ridged
from diffeqformer.ode.weights.source import is_unit
from tests.models import KINDS, TINY, model_of, tokens
from tests.tolerances import STATES, roundoff

MODEL = model_of(KINDS["vanilla"])
ROWS, LAYERS = MODEL.weights.layers, 3
IDS = np.asarray(tokens(3, 11))
CLOSE = {"rtol": 0, "atol": roundoff(np.float32, 256)}


@pytest.fixture(scope="module")
def moments():
    return second_moments(MODEL, IDS, batch=2)


def linears(rows):
    return [unit for unit in jax.tree.leaves(rows, is_leaf=is_unit) if isinstance(unit, Linear)]


def squares(rows, moments=None) -> float:
    """How far a table is from the whole one, `sum_l |X_l (W_l - W'_l)|^2`."""
    total = 0.0
    for number, (near, own) in enumerate(zip(linears(rows), linears(ROWS), strict=True)):
        d = np.asarray(joined(near) - joined(own), np.float64)
        s = np.eye(d.shape[1])[None] if moments is None else np.asarray(ridged(moments[number]), np.float64)
        total += float(np.einsum("lao,lab,lbo->", d, np.broadcast_to(s, (3, *s.shape[1:])), d))
    return total


def test_moments_are_those_of_what_each_map_is_given(moments):
    found = moments
    x = MODEL.embed(jnp.asarray(IDS))
    row = jax.tree.map(lambda leaf: leaf[0], ROWS)
    norm = lambda norm, x: np.asarray(normalise(norm, x, MODEL.field.norm_epsilon)).reshape(-1, 16)
    y = norm(row.attention.norm, x)
    after = x + MODEL.field.attention(row, x)[0]
    up = norm(row.feed_forward.norm, after)
    hidden = np.asarray(jax.nn.gelu(row.feed_forward.up(jnp.asarray(up))))
    for place, inputs in ((0, y), (2, up), (3, hidden)):
        known = np.concatenate([inputs, np.ones((len(inputs), 1))], 1)
        np.testing.assert_allclose(found[place][0], known.T @ known / len(known), atol=STATES)
    assert [one.shape for one in found] == [(3, n, n) for n in (17, 17, 17, 65)]


def test_weighted_knots_are_the_least_of_weighted_squares(moments):
    plain, weighted = fewer_knots(ROWS, 2), fewer_knots(ROWS, 2, moments)
    assert squares(weighted.rows, moments) < squares(plain.rows, moments)
    assert squares(plain.rows) < squares(weighted.rows)
    assert plain.numbers == weighted.numbers == 2 * count(ROWS) // LAYERS
    least = squares(weighted.rows, moments)
    for other in (fewer_knots(jax.tree.map(lambda leaf: leaf[::-1], ROWS), 2), plain):  # any way leads up
        way = jax.tree.map(lambda a, b: a + 0.01 * (b - a), weighted.rows, other.rows)
        assert squares(way, moments) > least
    # Where all moments are alike the weights do not matter for as many knots as rows need.
    between = jax.tree.map(lambda leaf: jnp.stack([leaf[0], (leaf[0] + leaf[1]) / 2, leaf[1]]), ROWS)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=10 * STATES), fewer_knots(between, 2, moments).rows,
                 fewer_knots(between, 2).rows)  # fmt: skip


def test_modes_over_depth_are_the_whole_table_at_its_size():
    one, two, whole = depth_modes(ROWS, (1, 2, 3))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **CLOSE), whole.rows, ROWS)
    mean = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf.mean(0), leaf.shape), ROWS)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **CLOSE), one.rows, mean)
    assert squares(whole.rows) < squares(two.rows) < squares(fewer_knots(ROWS, 2).rows)  # the nearest of two
    assert one.numbers == count(ROWS) // LAYERS < two.numbers < whole.numbers


def test_low_rank_within_layers_is_the_nearest_of_its_rank(moments):
    (plain,), (weighted,), (around,) = (
        low_rank(ROWS, (2,)), low_rank(ROWS, (2,), moments), low_rank(ROWS, (2,), around_mean=True),
    )  # fmt: skip
    for found, mean in ((plain, 0), (weighted, 0), (around, 1)):
        assert found.numbers <= 2 / 3 * count(ROWS) + 3 * 5 * 64  # biases and norms are kept
        left = np.asarray(found.rows.feed_forward.up.weight)
        rank = np.linalg.matrix_rank(left[0] - mean * np.asarray(ROWS.feed_forward.up.weight).mean(0), tol=1e-4)
        assert rank == int((2 - mean) / 3 * 16 * 64 / 80)
    own = moments_without_ones(moments)
    assert squares(plain.rows) < squares(weighted.rows) and squares(weighted.rows, own) < squares(plain.rows, own)
    # A table of low rank is found again, whatever the weights.
    again = low_rank(weighted.rows, (2,), moments)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=10 * STATES), next(again).rows, weighted.rows)


def test_a_map_that_is_given_nothing_but_zeros_is_made_smaller_all_the_same(moments):
    silent = [one.at[1].set(0) for one in moments]
    (found,) = low_rank(ROWS, (2,), silent)
    (plain,) = low_rank(ROWS, (2,))
    # Of weights alone, where no input says which matter.
    np.testing.assert_allclose(found.rows.feed_forward.up.weight[1], plain.rows.feed_forward.up.weight[1], atol=1e-4)


def moments_without_ones(moments):
    """Biases are equal, so that only the inputs' own part counts."""
    return [one.at[:, -1].set(0).at[:, :, -1].set(0).at[:, -1, -1].set(1) for one in moments]


@pytest.mark.parametrize("scheme", ["lie-trotter", "macaron", "rk4"])
def test_moments_are_means_over_inputs_however_often_a_step_evaluates_a_half(scheme):
    """The input that is always 1 has a mean square of 1."""
    model = model_of(replace(TINY, weights="shared", scheme=scheme, steps=2))
    for one in second_moments(model, IDS):
        np.testing.assert_allclose(one[:, -1, -1], 1, rtol=1e-6)


def test_a_rank_is_the_largest_whose_factors_fit_exactly():
    """Of 3 layers of 10 x 30, two thirds are 5 x (10 + 30) each; 2 / 3 * 10 * 30 / 40 in floats falls short of 5."""
    (found,) = low_rank(model_of(replace(KINDS["vanilla"], width=10)).weights.layers, (2,))
    assert np.linalg.matrix_rank(np.asarray(found.rows.attention.query_key_value.weight)[0], tol=1e-4) == 5


def test_a_llama_with_grouped_queries_has_its_own_maps():
    model = model_of(replace(KINDS["vanilla llama, grouped queries"]))
    found = second_moments(model, IDS)
    assert [one.shape[1] for one in found] == [
        1 + unit.weight.shape[1] for unit in linears(model.weights.layers)
    ]  # fmt: skip
    assert fewer_knots(model.weights.layers, 2, found).numbers == 2 * count(model.weights.layers) // 3
