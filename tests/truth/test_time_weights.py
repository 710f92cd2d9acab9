"""Time features and generated weights, computed a second time: plain Python, float64, one number after another."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffeqformer.config import ModelConfig, TimeConfig
from diffeqformer.model.build import build
from diffeqformer.ode.grid import Grid
from diffeqformer.ode.weights.time_features import time_features
from tests.tolerances import roundoff

LINEAR = [("attention", name) for name in ("query_key_value", "output")]
LINEAR += [("feed_forward", name) for name in ("up", "down")]
NORMS = [("attention", "norm"), ("feed_forward", "norm")]
TIMES = [0.0, 1 / 6, 0.37, 0.5, 5 / 6, 1.0]
EPS = float(np.finfo(np.float32).eps)
"""Features are of size one, and are rounded once."""
GENERATED = roundoff(np.float32, 7 + 5 + 5, scale=4.0)
"""Of weights: seven features, five hidden units and five terms of the projection are summed; numbers are up to four."""
BANDS = {"paper": (1000.0, 0.1), "band-limited": (20.0, 0.1), "equal": (7.0, 7.0)}


def features_at(t, time):
    """`[t, sin(f_k t), cos(f_k t)]` with `f_k = high (low / high)^(k / K)`."""
    high, low, count = time.fastest, time.lowest_frequency, time.frequencies
    f = [high * math.pow(low / high, k / count) for k in range(count)]
    return np.array([t] + [math.sin(f_k * t) for f_k in f] + [math.cos(f_k * t) for f_k in f])


def hidden_at(t, network, time):
    """`h(t) = L2 silu(L1 e(t) + b1) + b2`."""

    def affine(layer, x):
        weight, bias = np.asarray(layer.weight, np.float64), np.asarray(layer.bias, np.float64)
        return np.array([sum(x[i] * weight[i, j] for i in range(len(x))) + bias[j] for j in range(len(bias))])

    inner = affine(network.first, features_at(t, time))
    return affine(network.second, np.array([z / (1.0 + math.exp(-z)) for z in inner]))


def combine(h, projection):
    """`sum_k h_k projection[..., k]`."""
    columns = np.moveaxis(np.asarray(projection, np.float64), -1, 0)
    return sum(h_k * column for h_k, column in zip(h, columns, strict=True))


@pytest.fixture(scope="module", params=BANDS.values(), ids=BANDS.keys())
def model(request):
    """A tiny model whose every parameter is random: at the start many are zero, and would hide a mistake."""
    high, low = request.param
    time = TimeConfig(d_emb=5, frequencies=3, highest_frequency=high, lowest_frequency=low)
    config = ModelConfig(width=4, heads=2, hidden=6, context=8, vocabulary=11, weights=time)
    leaves, structure = jax.tree.flatten(build(config, jax.random.key(0)))
    keys = jax.random.split(jax.random.key(1), len(leaves))
    values = [0.5 * jax.random.normal(key, leaf.shape) for key, leaf in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, values)


@pytest.mark.parametrize(("high", "low"), BANDS.values(), ids=BANDS.keys())
def test_time_features(high, low):
    time = TimeConfig(frequencies=32, highest_frequency=high, lowest_frequency=low)
    expected = np.stack([features_at(t, time) for t in TIMES])
    assert expected.shape == (len(TIMES), 65)
    np.testing.assert_allclose(time_features(np.array(TIMES), time), expected, rtol=0, atol=EPS)


def test_default_frequencies_are_the_papers():
    """`w_k = 10000^(-k/K)` times s = 1000."""
    last = math.sin(1000 * 10000 ** (-31 / 32) * 0.37)
    features = time_features(np.array([0.37]), TimeConfig(frequencies=32))
    np.testing.assert_allclose(features[0, [1, 32, 33]], [math.sin(370), last, math.cos(370)], rtol=0, atol=EPS)


def test_features_of_traced_times():
    """Times that are known only at run time are featured in float32: as good as `1000 t` is there.

    Time, frequency, their product and the sine are rounded, each by half an eps at most.
    """
    time = TimeConfig()
    traced = jax.jit(lambda t: time_features(t, time))(jnp.array(TIMES))
    np.testing.assert_allclose(
        traced, np.stack([features_at(t, time) for t in TIMES]), rtol=0, atol=2 * EPS * time.fastest
    )


@pytest.mark.parametrize(("part", "name"), LINEAR, ids=lambda value: value)
def test_generated_linear_maps(model, part, name):
    """`W(t) = P h(t) + C`, `b(t) = B h(t)`."""
    unit = getattr(getattr(model.weights.networks, part), name)
    generated = getattr(getattr(model.weights.at(np.array(TIMES)), part), name)
    assert generated.weight.shape == (len(TIMES), *unit.constant.shape)
    for i, t in enumerate(TIMES):
        h = hidden_at(t, unit.network, model.config.weights)
        weight = combine(h, unit.projection) + np.asarray(unit.constant, np.float64)
        np.testing.assert_allclose(generated.weight[i], weight, rtol=0, atol=GENERATED)
        np.testing.assert_allclose(generated.bias[i], combine(h, unit.bias_projection), rtol=0, atol=GENERATED)


@pytest.mark.parametrize(("part", "name"), NORMS, ids=lambda value: value)
def test_generated_norms(model, part, name):
    """Scale `1 + G h(t)`, shift `S h(t)`."""
    unit = getattr(getattr(model.weights.networks, part), name)
    generated = getattr(getattr(model.weights.at(np.array(TIMES)), part), name)
    for i, t in enumerate(TIMES):
        h = hidden_at(t, unit.network, model.config.weights)
        np.testing.assert_allclose(generated.scale[i], 1.0 + combine(h, unit.scale_projection), rtol=0, atol=GENERATED)
        np.testing.assert_allclose(generated.shift[i], combine(h, unit.shift_projection), rtol=0, atol=GENERATED)


@pytest.mark.parametrize("steps", [1, 6, 7, 93, 99])
def test_weights_of_a_grid_are_those_at_the_ends_of_its_steps(model, steps):
    """`t_l = l / L`, l = 1..L, and the last is exactly 1; the table has a row for each."""
    ends = [(step + 1) / steps for step in range(steps)]
    assert Grid.of(steps).times().tolist() == ends
    at_ends = model.weights.at(np.array(ends))
    for ours, expected in zip(jax.tree.leaves(model.weights.table(Grid(steps))), jax.tree.leaves(at_ends), strict=True):
        assert ours.shape[:2] == (steps, 1)
        np.testing.assert_allclose(ours[:, 0], expected, rtol=0, atol=GENERATED)  # compiled with other sums
