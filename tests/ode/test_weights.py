import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffeqformer.config import ModelConfig, TimeConfig
from diffeqformer.model.build import build
from diffeqformer.ode import grid
from diffeqformer.ode.time_features import frequencies, time_features
from tests.models import KINDS, TINY, model_of, tokens


def test_default_frequencies_are_the_papers():
    k = np.arange(32)
    np.testing.assert_allclose(frequencies(TimeConfig()), 1000 * 10000 ** (-k / 32), rtol=1e-12)


def test_features_of_known_times_are_right_to_the_last_bit_of_float32():
    config = TimeConfig(frequencies=4)
    times = np.array([1 / 3, 0.7, 1.0])
    got = np.asarray(time_features(times, config), np.float64)
    angles = times[:, None].astype(np.longdouble) * (1000 * 10000 ** (-np.arange(4) / 4)).astype(np.longdouble)
    want = np.concatenate([times[:, None], np.sin(angles), np.cos(angles)], axis=1)
    assert np.abs(got - want.astype(np.float64)).max() < 6e-8


def test_traced_times_give_the_same_features_to_float32s_precision_of_the_angle():
    config = TimeConfig(frequencies=4)
    traced = jax.jit(lambda t: time_features(t, config))(jnp.array([0.3, 0.9]))
    np.testing.assert_allclose(traced, time_features(np.array([0.3, 0.9]), config), atol=2e-4)


@pytest.mark.parametrize("d_emb", [8, 96])
def test_generated_matrices_start_at_the_standard_deviation_asked_for(d_emb):
    config = ModelConfig(width=64, heads=2, steps=6, vocabulary=16, context=8, time=TimeConfig(d_emb=d_emb))
    source = build(config, jax.random.key(0)).weights
    features = time_features(grid.times(6), config.time)
    h = source.networks.feed_forward.up.network(features)
    assert float(jnp.square(h).sum(-1).mean()) == pytest.approx(1.0, rel=1e-5)
    weights = source.table(6)
    for linear in (weights.attention.query_key_value, weights.attention.output, weights.feed_forward.up):
        assert float(linear.weight.std()) == pytest.approx(0.02, rel=0.1)
        assert not np.asarray(linear.bias).any()
    assert (np.asarray(weights.attention.norm.scale) == 1).all()


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS.keys())
def test_at_and_table_agree_on_the_grid(config):
    weights = model_of(config).weights
    rows = jax.tree.map(lambda x: jnp.broadcast_to(x, (3, *x.shape[1:])), weights.table(3))
    for a, b in zip(jax.tree.leaves(weights.at(grid.times(3))), jax.tree.leaves(rows), strict=True):
        np.testing.assert_array_equal(a, b)


def test_constant_time_networks_are_the_shared_weight_model():
    """With P, B, G and S zero the weights are C at every depth."""
    model, shared = model_of(TINY), model_of(dataclasses.replace(TINY, weights="shared"))

    def silence(path, leaf):
        return jnp.zeros_like(leaf) if "projection" in jax.tree_util.keystr(path) else leaf

    model = jax.tree_util.tree_map_with_path(silence, model)
    row = model.weights.at(np.array([0.5]))
    shared = dataclasses.replace(
        shared, embedding=model.embedding, final_norm=model.final_norm, weights=type(shared.weights)(row)
    )
    for steps in (1, 4):
        np.testing.assert_allclose(model(tokens(), steps=steps), shared(tokens(), steps=steps), atol=1e-6)


def test_weights_are_generated_for_the_whole_grid_in_one_product():
    """P must not appear in the scan over steps: it is read once, whatever the number of steps."""
    model = model_of(TINY)
    program = jax.make_jaxpr(model)(tokens())
    scans = [equation for equation in program.jaxpr.eqns if "scan" in equation.primitive.name]
    assert len(scans) == 1
    d_emb, width = TINY.time.d_emb, TINY.width
    assert f"f32[{width},{width},{d_emb}]" in str(program)
    assert all(f",{d_emb}]" not in str(variable.aval) for scan in scans for variable in scan.invars)
