import dataclasses
from contextlib import nullcontext

import equinox as eqx
import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

from diffeqformer.config import (
    KnotsConfig,
    LayerDropConfig,
    LevelsConfig,
    ModelConfig,
    ModulationConfig,
    TimeConfig,
)
from diffeqformer.errors import BadInput
from diffeqformer.model.build import build
from diffeqformer.model.loss import next_token_loss
from diffeqformer.ode.field import Block, BlockWeights
from diffeqformer.ode.grid import END_OF_STEP, Grid
from diffeqformer.ode.schemes import SCHEMES, OneStep
from diffeqformer.ode.weights import populated
from diffeqformer.ode.weights.source import mixed, unstack
from diffeqformer.ode.weights.time_features import frequencies, time_features
from diffeqformer.sharding import AXES
from tests.cases import slow, slow_but
from tests.models import KINDS, TINY, logits, model_of, tokens
from tests.tolerances import STATES, roundoff


def test_default_frequencies_are_the_papers():
    k = np.arange(32)
    np.testing.assert_allclose(frequencies(TimeConfig()), 1000 * 10000 ** (-k / 32), rtol=1e-12)


def test_features_of_known_times_are_right_to_the_last_bit_of_float32():
    config = TimeConfig(frequencies=4)
    times = np.array([1 / 3, 0.7, 1.0])
    got = np.asarray(time_features(times, config), np.float64)
    angles = times[:, None].astype(np.longdouble) * (1000 * 10000 ** (-np.arange(4) / 4)).astype(np.longdouble)
    want = np.concatenate([times[:, None], np.sin(angles), np.cos(angles)], axis=1)
    assert np.abs(got - want.astype(np.float64)).max() <= 2**-25 + 1e-12  # one rounding, and float64's at sin(1000 t)


def test_traced_times_give_the_same_features_to_float32s_precision_of_the_angle():
    config = TimeConfig(frequencies=4)
    traced = jax.jit(lambda t: time_features(t, config))(jnp.array([0.3, 0.9]))
    np.testing.assert_allclose(traced, time_features(np.array([0.3, 0.9]), config), atol=4000 * 2**-24)  # t, f and f t


@pytest.mark.parametrize("d_emb", [8, *slow(96)])
def test_generated_matrices_start_at_the_standard_deviation_asked_for(d_emb):
    config = ModelConfig(width=64, heads=2, steps=6, vocabulary=16, context=8, weights=TimeConfig(d_emb=d_emb))

    @jax.jit
    def generated(key):
        source = build(config, key).weights
        features = time_features(Grid.of(6).times(), config.weights)
        return source.networks.feed_forward.up.network(features), source.table(Grid(6))

    h, weights = jax.tree.map(np.asarray, generated(jax.random.key(0)))
    assert np.square(h).sum(-1).mean() == pytest.approx(1.0, rel=1e-5)
    for linear in (weights.attention.query_key_value, weights.attention.output, weights.feed_forward.up):
        assert linear.weight.std() == pytest.approx(0.02, rel=0.1)
        assert not linear.bias.any()
    assert (weights.attention.norm.scale == 1).all()


@pytest.mark.parametrize("weights", ["time", "knots", "levels", "layer", "shared", "layerdrop"])
def test_times_that_are_not_on_one_axis_are_refused(weights):
    scheme = "residual" if weights == "layerdrop" else "euler"
    source = model_of(dataclasses.replace(TINY, weights=weights, scheme=scheme)).weights
    for times in (np.array(0.5), jnp.array(0.5), np.array([[0.5]])):
        with pytest.raises(BadInput, match=r"times is .*, but must have one axis"):
            source.at(times)
        with pytest.raises(BadInput, match=r"times is .*, but must have one axis"):
            jax.eval_shape(source.at, times)


ONE_FUNCTION = [
    kind for kind in KINDS if getattr(KINDS[kind].weights, "rows", "step") == "step" and kind != "levels"
]  # not a row for each node, nor weights that know the length of a step


@pytest.mark.parametrize("kind", ONE_FUNCTION)
def test_at_and_table_agree_on_the_grid(kind):
    weights = model_of(KINDS[kind]).weights
    table = jax.jit(lambda weights: weights.table(Grid(3)))(weights)
    at = jax.jit(lambda weights: weights.at(Grid.of(3).times()))(weights)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, np.broadcast_to(b[:, 0], a.shape)), at, table)


WEIGHTS = roundoff(np.float32, 3 * TINY.time.d_emb)  # products with L1, L2 and P; generated weights are of size 1
NODES = {
    "rk4": dataclasses.replace(TINY, scheme="rk4").scheme.build().nodes,
    "macaron": dataclasses.replace(TINY, scheme="macaron").scheme.build().nodes,
}


@pytest.mark.parametrize("nodes", NODES.values(), ids=NODES.keys())
def test_a_written_out_table_holds_the_weights_of_all_nodes_of_all_steps(nodes):
    source = model_of(TINY).weights
    table = populated(source, Grid(3), nodes)
    assert (table.depth, table.nodes) == (3, nodes)
    for name in ("attention", "feed_forward"):
        times = Grid.of(3).times(getattr(nodes, name))
        rows, expected = (getattr(block, name) for block in (table.layers, source.at(times)))
        for a, b in zip(jax.tree.leaves(rows), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, atol=WEIGHTS)
    # In the middle of a step, that of the nearest node.
    found = table.at(np.array([0.51])).attention.output.weight[0]
    np.testing.assert_allclose(found, source.at(np.array([0.5])).attention.output.weight[0], atol=WEIGHTS)


def test_weights_that_are_the_same_at_all_nodes_are_written_out_once_a_step():
    for kind in ("layer", "shared"):
        source = model_of(dataclasses.replace(TINY, weights=kind)).weights
        assert populated(source, Grid(3), NODES["rk4"]).nodes is None


def test_a_table_with_rows_at_nodes_runs_with_no_other_scheme():
    model = model_of(dataclasses.replace(TINY, scheme="rk4")).populate()
    other = model.replace(scheme=SCHEMES["heun"])
    with pytest.raises(BadInput, match=r"rows at the nodes .* but the scheme needs rows at .*1\.0"):
        other(tokens())


def test_one_mlp_for_all_weights_is_held_once():
    """Appendix D.2: every P, G and S of its own, L1 and L2 shared."""
    own, shared = (
        model_of(dataclasses.replace(TINY, weights=dataclasses.replace(TINY.weights, kind=kind))).weights
        for kind in ("time", "time-shared-mlp")
    )
    assert own.shared is None
    assert shared.networks.attention.output.network is None
    mlp = sum(leaf.size for leaf in jax.tree.leaves(shared.shared))
    count = lambda tree: sum(leaf.size for leaf in jax.tree.leaves(tree))
    assert count(own) - count(shared) == 5 * mlp  # two norms and four matrices have one instead of six


OWN_SCHEMES = [name for name, scheme in SCHEMES.items() if isinstance(scheme, OneStep) and ":" not in name]


@pytest.mark.parametrize(
    ("weights", "scheme"),
    [
        *slow_but([("time", "lie-trotter-middle"), ("time", "rk4")], [("time", scheme) for scheme in OWN_SCHEMES]),
        ("time-shared-mlp", "macaron"),
    ],
)
def test_constant_time_networks_are_the_shared_weight_model(weights, scheme):
    """With P, B, G and S zero the weights are C at every depth."""
    config = dataclasses.replace(TINY, weights=dataclasses.replace(TINY.weights, kind=weights), scheme=scheme)
    model, shared = model_of(config), model_of(dataclasses.replace(config, weights="shared"))

    def silence(path, leaf):
        return jnp.zeros_like(leaf) if "projection" in jax.tree_util.keystr(path) else leaf

    model = jax.tree_util.tree_map_with_path(silence, model)
    row = model.weights.at(np.array([0.5]))
    shared = dataclasses.replace(
        shared, embedding=model.embedding, final_norm=model.final_norm, weights=type(shared.weights)(row)
    )
    np.testing.assert_array_equal(logits(model, tokens(), 4), logits(shared, tokens(), 4))


def test_weights_are_generated_for_the_whole_grid_in_one_product():
    """P must not appear in the scan over steps: it is read once, whatever the number of steps."""
    model = model_of(TINY)
    program = jax.make_jaxpr(model)(tokens())
    scans = [equation for equation in program.jaxpr.eqns if "scan" in equation.primitive.name]
    assert len(scans) == 1
    d_emb, width = TINY.weights.d_emb, TINY.width
    assert f"f32[{width},{width},{d_emb}]" in str(program)
    assert all(f",{d_emb}]" not in str(variable.aval) for scan in scans for variable in scan.invars)


class _Mixed(eqx.Module):
    """One half's rows serve all steps, and single leaves all nodes, as `WeightSource.table` allows."""

    rows: BlockWeights
    whole: str = eqx.field(static=True)

    def at(self, times):
        raise NotImplementedError

    def table(self, grid, nodes=END_OF_STEP):
        def half(name, nodes):
            rows = unstack(getattr(self.rows, name), grid.steps, len(nodes))
            rows = jax.tree.map(lambda leaf: leaf[:1], rows) if name == self.whole else rows
            return dataclasses.replace(rows, norm=jax.tree.map(lambda leaf: leaf[:, :1], rows.norm))

        return Block(half("attention", nodes.attention), half("feed_forward", nodes.feed_forward))


@pytest.mark.parametrize(("whole", "last"), [("attention", "down"), *slow(("feed_forward", "output"))])
def test_rows_that_serve_all_steps_stand_beside_rows_of_each_step(whole, last):
    model = model_of(KINDS["macaron"])
    both = model.replace(weights=_Mixed(model.weights.layers, whole))
    populated = both.populate()
    np.testing.assert_allclose(logits(both, tokens()), logits(populated, tokens()), rtol=0, atol=STATES)
    gradient = jax.grad(lambda weights: next_token_loss(both.replace(weights=weights), tokens()))(both.weights)
    other = "feed_forward" if whole == "attention" else "attention"
    assert (abs(getattr(getattr(gradient.rows, other), last).weight).max((1, 2)) > 0).all()  # all steps' rows learn


@pytest.mark.parametrize("divided", [False, True])
@pytest.mark.parametrize("shape", [(), (2,), (2, 3), (2, 3, 4)], ids=len)
def test_rows_are_mixed_by_their_shares_and_so_are_gradients_on_their_way_back(shape, divided):
    keys = jax.random.split(jax.random.key(0), 3)
    shares, rows, back = (
        np.asarray(jax.random.normal(key, axes), np.float64)
        for key, axes in zip(keys, [(5, 3), (3, *shape), (5, *shape)], strict=True)
    )
    mesh = jax.make_mesh((1, 1, 1), AXES, devices=jax.devices()[:1]) if divided else None
    with jax.enable_x64(True), jax.set_mesh(mesh) if mesh else nullcontext():
        found, transposed = jax.vjp(lambda rows: mixed(jnp.asarray(shares), {"rows": rows}), jnp.asarray(rows))
        (gradient,) = transposed({"rows": jnp.asarray(back)})
    expected = [sum(shares[t, k] * rows[k] for k in range(3)) for t in range(5)]
    np.testing.assert_allclose(found["rows"], expected, rtol=0, atol=1e-14)
    np.testing.assert_allclose(
        gradient, [sum(shares[t, k] * back[t] for t in range(5)) for k in range(3)], rtol=0, atol=1e-14
    )


def _products(jaxpr):
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            yield equation.params["precision"]
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from _products(inner)


@pytest.mark.parametrize(
    "config",
    [
        TINY,
        dataclasses.replace(TINY, weights=TimeConfig(d_emb=3, frequencies=2, kind="time-shared-mlp")),
        dataclasses.replace(TINY, weights=KnotsConfig(knots=4, average=True, rank=2)),
        dataclasses.replace(TINY, weights=KnotsConfig(knots=4, basis="cubic")),
        dataclasses.replace(TINY, weights=LevelsConfig((2, 4)), scheme="residual"),
        dataclasses.replace(TINY, weights=LayerDropConfig(layers=6, nested=True, rank=2), scheme="residual"),
        dataclasses.replace(TINY, weights="shared", modulation=ModulationConfig(knots=3, halvings=2)),
    ],
    ids=lambda config: config.weights.kind,
)
def test_weights_are_products_in_float32_where_the_default_is_less(config):
    model = model_of(config)
    traced = lambda edges: model.weights.table(Grid.of(edges), model.scheme.nodes)
    taken = [jax.make_jaxpr(lambda: model.weights.table(Grid.of(3), model.scheme.nodes))()]
    if isinstance(config.weights, TimeConfig | KnotsConfig) or config.modulation:
        taken.append(jax.make_jaxpr(traced)(jnp.asarray([0.0, 0.2, 0.7, 1.0])))
    found = [precision for jaxpr in taken for precision in _products(jaxpr.jaxpr)]
    highest = (jax.lax.Precision.HIGHEST,) * 2
    assert all(precision == highest for precision in found)
    assert found or isinstance(config.weights, LevelsConfig)  # rows as they are: no product
