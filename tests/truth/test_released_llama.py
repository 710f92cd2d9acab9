"""The authors' Llama can be built: logits by a golden file that `make_golden.py` wrote, of formulas in NumPy."""

from dataclasses import replace
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import released_llama as r

from diffeqformer.config import LlamaConfig, ModelConfig, TimeConfig
from diffeqformer.model.build import build
from diffeqformer.nn.linear import Linear, Norm
from diffeqformer.ode.weights.time import is_time_unit
from diffeqformer.ode.weights.time_networks import TimeLinear, TimeNetwork, TimeNorm
from tests.models import TINY, tokens
from tests.models import logits as tiny_logits
from tests.models import model_of as model_of_kind
from tests.tolerances import STATES

FIELD = LlamaConfig(
    kv_heads=r.SIZES["kv_heads"],
    nested_norm=True,
    rope_theta=r.ROPE_THETA,
    norm_shift=True,
    final_norm_epsilon=r.FINAL_EPSILON,
)
CONFIG = ModelConfig(
    weights=TimeConfig(
        d_emb=r.D_EMB, frequencies=r.FREQUENCIES, highest_frequency=r.HIGHEST, lowest_frequency=r.LOWEST
    ),
    field=FIELD,
    norm_epsilon=r.BLOCK_EPSILON,
    **{name: size for name, size in r.SIZES.items() if name != "kv_heads"},
)


@pytest.fixture(scope="module")
def golden():
    with np.load(Path(__file__).with_name("released_llama_golden.npz")) as arrays:
        return dict(arrays)


def model_of(arrays, config=CONFIG):
    """The model with the golden parameters."""
    p = {name: jnp.asarray(array, jnp.float32) for name, array in arrays.items() if name not in ("ids", "logits")}
    ours = build(config, jax.random.key(0))
    exchanged = {"embedding.tokens": p["tokens"], "final_norm.scale": p["final_norm"], "head": p["head"]}

    def unit(path, own):
        name = ".".join(key.name for key in path)
        first, second = (Linear(p[f"{name}.L{i}"], p[f"{name}.b{i}"]) for i in (1, 2))
        network = TimeNetwork(first, second)
        if isinstance(own, TimeNorm):
            return TimeNorm(network, p[f"{name}.G"], p[f"{name}.S"] if config.field.norm_shift else None)
        return TimeLinear(network, p[f"{name}.P"], p[f"{name}.C"], None)

    networks = jax.tree_util.tree_map_with_path(unit, ours.weights.networks, is_leaf=is_time_unit)
    model = eqx.tree_at(
        lambda m: (m.embedding.tokens, m.final_norm, m.head, m.weights.networks),
        ours,
        (exchanged["embedding.tokens"], Norm(exchanged["final_norm.scale"], None), exchanged["head"], networks),
    )
    assert jax.tree.map(jnp.shape, model) == jax.tree.map(jnp.shape, ours)
    return model


@eqx.filter_jit
def run(model, ids):
    return model(ids)


def difference(golden, config=CONFIG, **exchanged):
    """Largest difference from the golden logits of the golden model, or of one with something exchanged."""
    found = run(model_of(golden | exchanged, config), jnp.asarray(golden["ids"]))
    return np.abs(np.asarray(found) - golden["logits"]).max()


def test_logits_equal_those_of_the_formulas(golden):
    print(f"largest difference of a logit: {difference(golden):.1e} of {np.abs(golden['logits']).max():.1f}")
    assert difference(golden) <= STATES


def test_the_golden_file_is_of_the_formulas(golden):
    """Logits are stored in float32, parameters exactly."""
    p = {name: array.astype(np.float64) for name, array in golden.items() if name not in ("ids", "logits")}
    for ids, logits in zip(golden["ids"], golden["logits"], strict=True):
        np.testing.assert_allclose(r.logits_of(p, ids), logits, rtol=np.finfo(np.float32).eps)


def test_the_same_populated(golden):
    found = run(model_of(golden).populate(), jnp.asarray(golden["ids"]))
    np.testing.assert_allclose(found, golden["logits"], rtol=0, atol=STATES)


def test_every_parameter_matters(golden):
    """The golden file can tell: no parameter may be reversed without the logits leaving the tolerance."""
    parameters = [name for name in golden if name not in ("ids", "logits")]
    assert len(parameters) == 3 + 7 * 4 + 5 * 2 + 2 * 2
    for name in parameters:
        assert difference(golden, **{name: golden[name][..., ::-1]}) > 1e-2, name


@pytest.mark.parametrize(
    "config",
    [
        replace(CONFIG, field=replace(FIELD, norm_shift=False)),
        replace(CONFIG, field=replace(FIELD, final_norm_epsilon=None)),
        replace(CONFIG, field=replace(FIELD, nested_norm=False)),
        replace(CONFIG, norm_epsilon=r.FINAL_EPSILON),
    ],
    ids=["no shift", "one epsilon, the blocks'", "no nested norm", "one epsilon, the last"],
)
def test_every_setting_matters(golden, config):
    assert difference(golden, config) > 1e-2


def test_the_nested_norm_is_that_of_the_same_time():
    """Else Heun's method, which needs weights at two times in a step, would not be of order 2."""
    weights = TimeConfig(d_emb=6, frequencies=5, highest_frequency=2.0)
    model = model_of_kind(replace(TINY, weights=weights, field=LlamaConfig(nested_norm=True), scheme="heun"))
    smooth = lambda path, leaf: leaf * (0.3 if path[-1].name in ("projection", "scale_projection", "constant") else 1.0)
    model = model.replace(weights=jax.tree_util.tree_map_with_path(smooth, model.weights))
    found = {steps: np.asarray(tiny_logits(model, tokens(), steps)) for steps in (4, 8, 16, 64)}
    errors = [np.abs(found[steps] - found[64]).max() for steps in (4, 8, 16)]
    orders = np.log2(np.array(errors[:-1]) / errors[1:])
    print(f"errors {errors}, orders {orders}")
    assert (orders > 1.8).all()


def test_they_are_off_by_default():
    assert not LlamaConfig().norm_shift and LlamaConfig().final_norm_epsilon is None
    model = build(replace(CONFIG, field="llama"), jax.random.key(0))
    assert model.weights.networks.attention.norm.shift_projection is None
    assert model.config.final_norm_epsilon == r.BLOCK_EPSILON
