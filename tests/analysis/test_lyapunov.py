"""Token sensitivities against dense Jacobians in float64, taken by reverse mode through all positions."""

import dataclasses
import re
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffeqformer.analysis.end_to_end import _growth, end_to_end
from diffeqformer.analysis.exponents import first_tangents
from diffeqformer.analysis.in_blocks import attention_in_blocks
from diffeqformer.analysis.lyapunov import (
    flow_and_transpose,
    pairwise,
    pairwise_growth,
    populated,
)
from diffeqformer.config import LlamaConfig
from diffeqformer.errors import BadInput, RunFailed
from diffeqformer.ode import grid
from diffeqformer.ode.field import Block, TransformerField
from tests.cases import slow, slow_but
from tests.models import COVERING, KINDS, TINY, model_of, of_dtype, tokens

POSITIONS = 7
EXACT = {"atol": 1e-10, "rtol": 1e-10}


def double(model):
    """The model in float64; to be called where that is enabled."""
    return of_dtype(model, np.float64)


def text():
    return tokens(1, POSITIONS)[0]


@cache
def both(config):
    """Half A or M of a field, whatever gives it its weights, and its Jacobian: compiled once a session."""
    field = config.field.build(config)
    take = lambda w, x, half: field.attention(w, x)[0] if half == "A" else field.feed_forward(w, x)
    twice = lambda y: (y, y)
    jacobian = lambda w, x, half: jax.jacrev(lambda x: twice(take(w, x[None], half)[0]), has_aux=True)(x)
    return jax.jit(jacobian, static_argnames="half")


class Dense:
    """Every half of the field with its Jacobian through all positions, and the weights of any node by its time."""

    def __init__(self, model):
        weights = populated(model).weights
        self.table, self.nodes, self.steps = weights.layers, weights.nodes or grid.END_OF_STEP, model.config.steps
        self.both = both(dataclasses.replace(TINY, field=model.config.field, heads=model.config.heads))

    def at(self, step, node, half, x):
        """(A(x) or M(x), its Jacobian [output, :, input, :]) with the weights of a node of a step."""
        place = lambda kind: step * len(kind) + (kind.index(node) if node in kind else 0)
        row = lambda tree, at: jax.tree.map(lambda leaf: np.asarray(leaf)[at], tree)
        weights = Block(
            row(self.table.attention, place(self.nodes.attention)),
            row(self.table.feed_forward, place(self.nodes.feed_forward)),
        )
        jacobian, value = self.both(weights, x, half)
        return np.asarray(value), np.asarray(jacobian)


def step_euler(dense, n, dt, x, q, block):
    a, ja = dense.at(n, 1.0, "A", x)
    m, jm = dense.at(n, 1.0, "M", x)
    return x + dt * (a + m), q + dt * block(ja + jm) @ q


def step_lie_trotter(dense, n, dt, x, q, block):
    a, ja = dense.at(n, 1.0, "A", x)
    x, q = x + dt * a, q + dt * block(ja) @ q
    m, jm = dense.at(n, 1.0, "M", x)
    return x + dt * m, q + dt * block(jm) @ q


def step_macaron(dense, n, dt, x, q, block):
    for node, half, length in ((0.25, "M", dt / 2), (0.5, "A", dt), (0.75, "M", dt / 2)):
        f, jf = dense.at(n, node, half, x)
        x, q = x + length * f, q + length * block(jf) @ q
    return x, q


def slope(dense, n, node, x, q, block):
    (a, ja), (m, jm) = dense.at(n, node, "A", x), dense.at(n, node, "M", x)
    return a + m, block(ja + jm) @ q


def step_rk4(dense, n, dt, x, q, block):
    k, slopes = (np.zeros_like(x), np.zeros_like(q)), []
    for node, reach in ((0.0, 0.0), (0.5, dt / 2), (0.5, dt / 2), (1.0, dt)):
        k = slope(dense, n, node, x + reach * k[0], q + reach * k[1], block)
        slopes.append(k)
    weighted = [sum(w * s[part] for w, s in zip((1, 2, 2, 1), slopes, strict=True)) for part in (0, 1)]
    return x + dt / 6 * weighted[0], q + dt / 6 * weighted[1]


def step_strang(dense, n, dt, x, q, block):
    for half, length in (("M", dt / 2), ("A", dt), ("M", dt / 2)):
        f, jf = dense.at(n, 0.5, half, x)
        f, jm = dense.at(n, 0.5, half, x + length / 2 * f)
        x, q = x + length * f, q + length * block(jm) @ (q + length / 2 * block(jf) @ q)
    return x, q


STEPS = {
    "euler": step_euler,
    "lie-trotter": step_lie_trotter,
    "macaron": step_macaron,
    "rk4": step_rk4,
    "strang": step_strang,
}


def dense_exponents(model, ids, output, first):
    """The paper's formula as it stands: whole Jacobians, one block of which multiplies Q."""
    dense, dt = Dense(model), model.config.interval / model.config.steps
    found = []
    for i in range(output + 1):
        block = lambda jacobian, i=i: jacobian[output, :, i, :]
        x, q, sums = np.asarray(model.embed(ids[None])[0]), np.asarray(first), 0.0
        for n in range(dense.steps):
            x, q = STEPS[model.config.scheme.kind](dense, n, dt, x, q, block)
            q, r = np.linalg.qr(q)
            sums = sums + np.log(abs(np.diag(r)))
        found.append(sums)
    return np.stack(found)


WIDE_HEADS = dataclasses.replace(
    KINDS["vanilla llama, grouped queries"], field=LlamaConfig(kv_heads=2, head_width=6), steps=2
)
SOLVED = {kind: config for kind, config in KINDS.items() if config.scheme.kind in STEPS} | {"wide heads": WIDE_HEADS}


@pytest.mark.parametrize("kind", slow_but(COVERING | {"wide heads", "one mlp, strang"}, SOLVED))
def test_pairwise_equals_dense_jacobians(kind):
    model, ids = model_of(SOLVED[kind]), text()
    with jax.enable_x64(True):
        exact = double(model)
        wanted = -np.sort(-dense_exponents(exact, ids, 4, np.eye(TINY.width)), axis=-1)
        found = pairwise(exact, ids, [4], tangents=None)
    assert found.exponents.dtype == np.float64
    assert np.allclose(found.exponents[0, :5], wanted, **EXACT)
    assert np.isnan(found.exponents[0, 5:]).all()
    if kind in ("diffeqformer", "vanilla"):
        single = pairwise(model, ids, [4], tangents=None)
        half = TINY.width // 2  # what is left of a direction that shrinks to nothing is rounding
        assert np.allclose(single.exponents[0, :5, :half], wanted[:, :half], atol=1e-4)
    assert np.allclose(found.leading[0, :5], wanted[:, 0], **EXACT)
    assert np.allclose(found.mean[0, :5], wanted.mean(-1), **EXACT)
    assert np.isfinite(found.dimension[0, :5]).all()


def test_pairwise_of_a_scheme_that_carries_two_states():
    """The reversible scheme: both of its states have a tangent, and all are multiplied with the same inverse of R."""
    config = dataclasses.replace(KINDS["time, reversible"], steps=2)
    config = dataclasses.replace(config, scheme=dataclasses.replace(config.scheme, base="euler"))
    model, ids, output = model_of(config), text(), 3
    with jax.enable_x64(True):
        model = double(model)
        dense, dt, lam = Dense(model), 0.5, config.scheme.coupling**0.5
        found = pairwise(model, ids, [output], tangents=2, iterations=0).exponents[0]
        first = np.asarray(first_tangents(TINY.width, 2, jax.random.key(0), jnp.float64))
        for i in range(output + 1):
            block = lambda jacobian, i=i: jacobian[output, :, i, :]
            y = z = np.asarray(model.embed(ids[None])[0])
            p = q = first
            for n in range(2):
                f, g = slope(dense, n, 1.0, z, q, block)
                y, p = lam * y + (1 - lam) * z + dt * f, lam * p + (1 - lam) * q + dt * g
                f, g = slope(dense, n, 0.0, y, p, block)
                z, q = z + dt * f, q + dt * g
            r = np.linalg.qr(p)[1]  # of the whole product: the same diagonal as step by step
            assert np.allclose(found[i], -np.sort(-np.log(abs(np.diag(r)))), **EXACT)


@pytest.mark.parametrize("kind", ["diffeqformer", *slow("time, reversible")])
def test_leading_exponents_are_the_singular_values_of_the_whole_flow_whatever_the_seed(kind):
    """Against the flow's dense matrix; the growth of random directions, the paper's, is below and depends on them."""
    model, ids, output, width = model_of(KINDS[kind]), text(), 5, TINY.width
    with jax.enable_x64(True):
        model = double(model)
        of = populated(model), ids, jnp.asarray(output), jnp.arange(text().size)
        columns = [
            jnp.broadcast_to(jnp.eye(width)[:, at : at + 4], (text().size, width, 4)) for at in range(0, width, 4)
        ]
        images, transposes = zip(*(flow_and_transpose(*of, some) for some in columns), strict=True)
        whole = np.concatenate(images, -1)
        back = [transpose(some) for transpose, some in zip(transposes, columns, strict=True)]
        assert np.allclose(np.concatenate(back, -1), whole.swapaxes(-1, -2), **EXACT)
        wanted = np.log(np.linalg.svd(whole[: output + 1], compute_uv=False)[:, 0])
        refined = [pairwise(model, ids, [output], tangents=4, iterations=200, seed=seed) for seed in (0, 1)]
        drawn = pairwise(model, ids, [output], tangents=4, iterations=0)
    for found in refined:
        error = found.error[0, : output + 1]
        assert (np.abs(found.leading[0, : output + 1] - wanted) <= error + 1e-10).all() and (error <= 0.01).all()
        assert np.allclose(found.over_depth[0, : output + 1, -1], found.leading[0, : output + 1], **EXACT)
        assert np.isnan(found.leading[0, output + 1 :]).all() and np.isnan(found.error[0, output + 1 :]).all()
    assert (drawn.leading[0, : output + 1] < wanted).all() and np.isnan(drawn.error).all()


@pytest.mark.parametrize("tangents", [None, 4])
def test_the_leading_exponent_over_depth_ends_at_the_leading_exponent(tangents):
    """Without refinement the first tangent need not be the one that grows most."""
    found = pairwise(model_of(TINY), text(), (POSITIONS - 1,), tangents=tangents, iterations=0)
    np.testing.assert_allclose(found.over_depth[..., -1], found.leading, rtol=1e-6, atol=1e-6)


def test_pairwise_of_many_outputs_in_blocks(monkeypatch):
    """Blocks of inputs and several outputs give what one call for one output gives; later tokens do not matter."""
    model, ids = model_of(TINY), text()
    whole = pairwise(model, ids, [2, 6], tangents=2, iterations=0)
    monkeypatch.setattr("diffeqformer.analysis.lyapunov.TANGENT_NUMBERS", 3 * 2 * TINY.width)
    blocks = pairwise(model, ids, [2, 6], tangents=2, iterations=0)
    assert np.allclose(whole.exponents, blocks.exponents, atol=1e-6, equal_nan=True)
    short = pairwise(model, ids[:3], [2], tangents=2, iterations=0)
    assert np.allclose(whole.exponents[0, :3], short.exponents[0], atol=1e-6)
    assert set(whole.arrays()) >= {"exponents", "leading", "mean", "kaplan_yorke_dimension"}


@pytest.mark.parametrize("kind", ["diffeqformer", "vanilla llama, grouped queries"])
def test_attention_in_blocks_of_queries_is_the_models(kind, monkeypatch):
    monkeypatch.setattr("diffeqformer.analysis.in_blocks.QUERIES", 3)
    model, ids = populated(model_of(KINDS[kind])), text()
    field, layers = model.field, model.weights.layers
    first = jax.tree.map(lambda leaf: leaf[0], layers)
    found = jax.jit(lambda x: attention_in_blocks(field, first, x))(model.embed(ids[None]))
    wanted = jax.jit(lambda x: field.attention(first, x)[0])(model.embed(ids[None]))
    assert np.allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize("kind", ["diffeqformer", "vanilla"])
def test_a_model_that_computes_in_bfloat16_is_analysed_in_the_precision_of_its_parameters(kind):
    in_16_bits, in_32 = (
        pairwise(model_of(dataclasses.replace(KINDS[kind], compute_dtype=dtype)), text(), [6], iterations=0).exponents
        for dtype in ("bfloat16", "float32")
    )
    assert np.array_equal(in_16_bits, in_32, equal_nan=True)


def test_pairwise_at_another_depth():
    model, ids = model_of(TINY), text()
    found, wanted = (pairwise(m, ids, [6], steps=s, iterations=0) for m, s in ((model, 5), (populated(model, 5), None)))
    assert np.allclose(found.exponents, wanted.exponents, atol=1e-6) and found.over_depth.shape == (1, 7, 5)


def test_memory_is_linear_in_tokens_and_lapack_is_called_once_at_a_time():
    """As compiled: twice the additional tokens take about twice the additional memory, not four times, and the two
    calls of the one QR wait for each other. (XLA runs independent calls at the same time, and on two cores LAPACK's can
    wait for ever.)"""
    config = dataclasses.replace(TINY, context=1024, width=64)
    model = populated(model_of(config))
    first = first_tangents(64, 1, jax.random.key(0), jnp.float32)

    def planned(positions):
        ids = jnp.zeros(positions, jnp.int32)
        lowered = pairwise_growth.lower(model, ids, jnp.asarray(0), jnp.arange(positions), first)
        compiled = lowered.compile()
        calls = re.findall(r'custom_call_target="(lapack\w+)"', compiled.as_text())
        assert calls == ["lapack_sgeqrf_ffi", "lapack_sorgqr_ffi"]
        return compiled.memory_analysis().temp_size_in_bytes

    few, more, most = (planned(positions) for positions in (256, 512, 1024))
    assert most - more < 2.5 * (more - few)


@pytest.mark.parametrize("kind", ["diffeqformer", "vanilla llama, grouped queries", *slow("time, reversible")])
def test_end_to_end_equals_the_singular_values_of_the_whole_derivative(kind):
    model, ids, output = model_of(KINDS[kind]), text(), 5
    with jax.enable_x64(True):
        model = double(model)
        found = end_to_end(model, ids, [output], probes=TINY.width)
        derivative = jax.jit(jax.jacrev(lambda x, model: model.flow(x[None]).state[0, output]))
        whole = derivative(model.embed(ids[None])[0], model)
        wanted = np.linalg.svd(np.asarray(whole).swapaxes(0, 1)[: output + 1], compute_uv=False)
    # Not their logarithms: LayerNorm makes one singular value zero.
    assert np.allclose(np.exp(found.exponents[0, : output + 1]), wanted, **EXACT)
    growth = np.log(np.square(wanted).mean(-1)) / 2
    assert np.allclose(found.growth[0, : output + 1], growth, **EXACT)
    assert np.allclose(found.error[0, : output + 1], 0.0)
    assert np.isnan(found.growth[0, output + 1 :]).all()


def test_a_few_probes_bound_the_exponents_from_below():
    with jax.enable_x64(True):
        model = double(model_of(TINY))
        few, every = (end_to_end(model, text(), [5], probes=probes).exponents[0, :6] for probes in (4, TINY.width))
    assert (np.exp(few) <= np.exp(every[:, :4]) + 1e-9).all()


def test_error_estimate_of_the_probing():
    """Over many draws, the estimates scatter as their own errors say."""
    model, ids, output = model_of(TINY), text(), 6
    truth = end_to_end(model, ids, [output], probes=TINY.width).growth[0]
    draws = [end_to_end(model, ids, [output], probes=8, seed=seed) for seed in range(40)]
    off = np.stack([(draw.growth[0] - truth) / draw.error[0] for draw in draws])
    assert 0.6 < np.sqrt(np.square(off).mean()) < 1.6


def test_growth_that_is_known_has_no_error():
    """It was NaN: at width 1, where one probe is all, and where a token has no influence."""
    growth, error = _growth(np.array([[[2.0]], [[0.0]]]), 1)
    np.testing.assert_allclose(growth, [np.log(2.0), -np.inf])
    np.testing.assert_array_equal(error, 0.0)


@pytest.mark.parametrize(
    "function, outputs, settings, names",
    [
        (pairwise, [7], {}, "output token 7 does not exist: the text has 7 tokens"),
        (end_to_end, [-1], {}, "output token -1 does not exist"),
        (pairwise, [], {}, "outputs is empty"),
        (pairwise, [0], {"tangents": 17}, "tangents is 17"),
        (end_to_end, [0], {"probes": 1}, "probes is 1"),
    ],
)
def test_bad_input(function, outputs, settings, names):
    with pytest.raises(BadInput, match=names):
        function(model_of(TINY), text(), outputs, **settings)


def test_attention_of_ones_own_has_no_pairwise_exponents():
    """Its derivative would be that of the library's attention instead."""

    class Halved(TransformerField):
        def attention(self, weights, x, **others):
            y, cache = super().attention(weights, x, **others)
            return y / 2, cache

    model = model_of(TINY)
    model = model.replace(field=Halved(**dataclasses.asdict(model.field)))
    with pytest.raises(BadInput, match="the field is Halved, which has attention of its own, but must have"):
        pairwise(model, text(), [0], iterations=0)


def test_a_text_that_is_empty_or_too_long():
    model = model_of(TINY)
    with pytest.raises(BadInput, match="the text is empty"):
        pairwise(model, jnp.zeros(0, jnp.int32), [0])
    with pytest.raises(BadInput, match="the text has 13 tokens, but the model's context is 12"):
        pairwise(model, jnp.zeros(13, jnp.int32), [0])


@pytest.mark.parametrize(("tangents", "iterations"), [(None, 0), (1, 0), (1, 2)])
def test_derivatives_that_are_not_finite_are_told(tangents, iterations):
    model = model_of(TINY)
    broken = model.replace(embedding=jax.tree.map(lambda leaf: leaf * np.nan, model.embedding))
    with pytest.raises(RunFailed, match="derivatives of the model are not finite"):
        pairwise(broken, text(), [2], tangents=tangents, iterations=iterations)
