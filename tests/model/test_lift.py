"""Lifting: the function of depth that is made of a table is that table at its own depth, and runs at any other."""

import dataclasses
from dataclasses import replace
from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffeqformer.config import GPTConfig, KnotsConfig, LayerConfig, LayerDropConfig, LlamaConfig, LoRAConfig
from diffeqformer.errors import BadInput
from diffeqformer.model import lift as lifting
from diffeqformer.model.lift import aligned, left_out, levelled, lift, table_of, table_of_whole_steps
from diffeqformer.ode.field import Block
from diffeqformer.ode.lora import attach
from diffeqformer.ode.weights.alignment import align
from tests.cases import slow, slow_but
from tests.models import KINDS, TINY, logits, model_of, of_dtype, solved, tokens
from tests.tolerances import STATES, roundoff

VANILLA, KEY = KINDS["vanilla"], jax.random.key(0)
TABLES = {
    "gpt": VANILLA,
    "llama, grouped queries": KINDS["vanilla llama, grouped queries"],
    "neox": replace(KINDS["parallel blocks"], field=GPTConfig(rotary=0.5, exact_gelu=True), tied=False),
    "qwen, of wider heads": replace(VANILLA, field=LlamaConfig(head_width=10, biases=True, head_norms=True)),
    "weights in the middle, as populated": replace(VANILLA, scheme="euler-middle", horizon=2.5),
}
UNEQUAL = replace(TABLES["llama, grouped queries"], edges=(0.0, 0.2, 0.6, 1.0))
BETWEEN_KNOTS = replace(TINY, weights=KnotsConfig(2, place="end"), scheme="lie-trotter", horizon=6.0)


@pytest.mark.parametrize("kind", ["time", *slow("knots")])
def test_steps_that_add_layers_whole_become_those_of_a_flow(kind):
    """Of twice as many steps each is half as long, so that what more of them change gets less."""
    table = model_of(replace(VANILLA, scheme="residual"))
    lifted = lift(table, kind, key=KEY).model
    np.testing.assert_allclose(logits(lifted, tokens()), logits(table, tokens()), atol=1e-4)
    ends = [solved(lifted, tokens(), steps).state for steps in (24, 48, 96)]
    first, second = (float(jnp.abs(b - a).max()) for a, b in pairwise(ends))
    assert second < 0.7 * first
    with pytest.raises(BadInput, match="steps are of unequal lengths"):
        lift(model_of(replace(VANILLA, scheme="residual", edges=(0.0, 0.2, 0.6, 1.0))), kind, key=KEY)


@pytest.mark.parametrize("kind", slow_but(["gpt", "neox", "qwen, of wider heads"], TABLES))
def test_with_as_many_knots_as_layers_it_is_the_table_to_the_bit(kind):
    model, ids = model_of(TABLES[kind]), tokens()
    found = lift(model, key=KEY)
    populated = found.model.populate(3)
    assert found.difference == 0 and found.condition == 1 and found.model.config.weights.knots == 3
    jax.tree.map(np.testing.assert_array_equal, populated.weights, model.weights)
    np.testing.assert_array_equal(logits(populated, ids), logits(model, ids))
    np.testing.assert_allclose(logits(found.model, ids), logits(model, ids), atol=STATES)
    assert found.model.config.interval == model.config.interval  # at twice the steps each is half as long
    deeper, shallower = (logits(found.model, ids, steps) for steps in (6, 2))
    assert np.isfinite(deeper).all() and np.abs(deeper - logits(model, ids)).max() > 100 * STATES
    assert np.isfinite(shallower).all()


@pytest.mark.parametrize(
    "config", [TABLES["gpt"], replace(TABLES["llama, grouped queries"], edges=(0.0, 0.2, 0.6, 1.0))]
)
def test_time_networks_pass_through_all_rows(config):
    model = model_of(config)
    found = lift(model, "time", key=KEY)
    section = found.model.config.weights
    assert (section.kind, section.d_emb, section.highest_frequency) == ("time", 6, 6.0)
    assert 1 < found.condition < lifting.WELL_CONDITIONED and found.difference <= STATES
    # Rows are sums of d_emb products, which the system enlarges.
    close = {"rtol": 0, "atol": roundoff(np.float32, section.d_emb, scale=found.condition)}
    populated = found.model.populate(model.grid())
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **close), populated.weights, model.weights)
    assert np.isfinite(logits(found.model, tokens(), 5)).all()


def test_fewer_knots_are_the_least_squares_and_find_what_there_were():
    knots = model_of(BETWEEN_KNOTS)
    table = knots.populate(6)
    found = lift(table, knots=2, key=KEY)
    close = {"rtol": 0, "atol": roundoff(np.float32, 6)}
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **close), found.model.weights, knots.weights)
    assert found.difference <= STATES
    # Of a table that no two knots make, they are the nearest: any change is further away.
    other = model_of(replace(VANILLA, steps=6))
    nearest = lift(other, knots=2, key=KEY)
    assert nearest.difference > 100 * STATES  # smaller, and another model: it says so

    def squares(weights):
        rows = jax.tree.leaves(nearest.model.replace(weights=weights).populate(6).weights)
        return sum(float(np.square(a - b).sum()) for a, b in zip(rows, jax.tree.leaves(other.weights), strict=True))

    least = squares(nearest.model.weights)
    for factor in (0.99, 1.01):
        assert squares(jax.tree.map(lambda leaf, f=factor: f * leaf, nearest.model.weights)) > least


def test_more_knots_are_the_same_function():
    model, ids = model_of(VANILLA), tokens()
    found = lift(model, knots=6, key=KEY)
    assert found.model.weights.knots == 6 and found.difference <= STATES
    plain = lift(model, key=KEY).model
    np.testing.assert_allclose(logits(found.model, ids, 6), logits(plain, ids, 6), atol=STATES)


def test_rows_of_an_only_node_are_those_of_steps():
    model = model_of(replace(VANILLA, weights=LayerConfig(rows="node")))
    assert model.weights.nodes is not None and table_of(model) is model.weights


def test_a_float64_model_is_lifted_in_float64():
    """Without a cast, which strict promotion would refuse, or a number that was float32 on the way."""
    with jax.enable_x64(True):
        table, knots = of_dtype(model_of(VANILLA), np.float64), of_dtype(model_of(BETWEEN_KNOTS), np.float64)
        lifted = lift(table, "time", key=KEY)
        assert {leaf.dtype for leaf in jax.tree.leaves(lifted.model)} == {jnp.dtype(jnp.float64)}
        rounding = roundoff(np.float64, TINY.width, scale=lifted.condition)
        assert lifted.difference <= rounding < np.finfo(np.float32).eps
        found = lift(knots.populate(6), knots=2, key=KEY).model
        close = {"rtol": 0, "atol": roundoff(np.float64, 6)}
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **close), found.weights, knots.weights)


@pytest.mark.parametrize(("kind", "settings"), [("knots", {"knots": 2}), ("knots", {"knots": 5}), ("time", {})])
def test_a_table_of_bfloat16_is_lifted_in_float32(kind, settings):
    """Its sums of rows were taken by promotion, and refused where it is strict."""
    table = of_dtype(model_of(VANILLA), jnp.bfloat16)
    found = lift(table, kind, **settings, key=KEY)
    assert {leaf.dtype for leaf in jax.tree.leaves(found.model.weights)} == {jnp.dtype(jnp.float32)}
    if kind == "time":
        assert found.difference == 0  # bfloat16 weights are as near as float32 gets, and are rounded back to them


def test_a_model_that_computes_in_bfloat16_is_lifted_as_exactly():
    """Weights that are equal to float32 rounding may be rounded apart, so both are compared in float32."""
    found = lift(model_of(replace(TABLES["gpt"], compute_dtype="bfloat16")), "time", key=KEY)
    assert found.difference <= STATES and found.model.config.compute_dtype == "bfloat16"


@pytest.mark.parametrize("kind", ["gpt", "llama, grouped queries", "qwen, of wider heads"])
def test_aligned_layers_compute_what_they_did_and_are_nearer(kind):
    model, ids = model_of(TABLES[kind]), tokens()
    found = aligned(model)
    np.testing.assert_allclose(logits(found, ids), logits(model, ids), atol=STATES)
    apart = lambda one: sum(
        float(jnp.square(leaf[1:] - leaf[:-1]).sum()) for leaf in jax.tree.leaves(one.weights) if leaf.ndim > 2
    )
    assert apart(found) < apart(model)
    # A layer that is the one before, with its units and heads in another order, is found again.
    field, own = model.field, jax.tree.map(lambda leaf: leaf[:1], found.weights.layers)
    units = np.arange(field.hidden)[::-1]
    backwards = np.arange(field.kv_heads)[::-1]
    columns = lambda heads: (heads[:, None] * field.head_width + np.arange(field.head_width)).ravel()
    query = columns(np.arange(field.heads).reshape(field.kv_heads, -1)[backwards].ravel())
    both = np.concatenate([query, len(query) + columns(np.concatenate([backwards, field.kv_heads + backwards]))])
    taken = lambda one, order: jax.tree.map(lambda leaf: leaf[..., order], one)
    attention, half = own.attention, own.feed_forward
    output, down = attention.output, half.down
    other = Block(
        replace(attention, query_key_value=taken(attention.query_key_value, both),
                output=replace(output, weight=output.weight[:, query])),
        replace(half, up=taken(half.up, units), gate=taken(half.gate, units),
                down=replace(down, weight=down.weight[:, units])),
    )  # fmt: skip
    twice = align(jax.tree.map(lambda a, b: jnp.concatenate([a, b]), own, other), field)
    jax.tree.map(lambda leaf: np.testing.assert_allclose(leaf[1], leaf[0], atol=STATES), twice)


def with_adapters(model):
    section = LoRAConfig(2)
    config = replace(model.config, weights=dataclasses.replace(model.config.weights, lora=section))
    return model.replace(weights=model.weights.changed(partial(attach, lora=section, key=KEY)), config=config)


BAD = {
    "continuous": (lambda: model_of(TINY), {}, "functions of depth already (time): it runs at any number of steps"),
    "shared": (lambda: model_of(KINDS["shared"]), {}, "functions of depth already (shared)"),
    "layers left out": (
        lambda: model_of(replace(VANILLA, weights=LayerDropConfig())),
        {}, "model.weights is 'layerdrop', but only a table of layers ('layer') can be lifted.",
    ),
    "rows of nodes": (
        lambda: model_of(KINDS["macaron"]), {},
        "model.scheme is 'macaron', for which a layer has weights at several times of its step (its fractions 0.25, "
        "0.5, 0.75), but only layers with weights at one can be taken.",
    ),
    "several nodes": (
        lambda: model_of(KINDS["ode transformer"]), {},
        "model.scheme is 'rk4', which needs weights at the fractions [0.0, 0.5, 1.0] of a step; only schemes",
    ),
    "adapters": (lambda: with_adapters(model_of(VANILLA)), {}, "has low-rank adapters beside its table; merge them"),
    "narrow": (
        lambda: model_of(VANILLA), {"kind": "time", "d_emb": 2},
        "d_emb is 2, but must be at least 3, the number of layers to pass through.",
    ),
    "unequal steps": (lambda: model_of(replace(VANILLA, first_step=0.5)), {}, "but knots are equally spaced; 'time'"),
    "a text for as many knots as layers": (
        lambda: model_of(VANILLA), {"knots": 3, "moments": []},
        "a text is given, but only fewer knots than the model's 3 layers read it.",
    ),
    "too many numbers": (
        lambda: model_of(VANILLA), {"kind": "time", "d_emb": 2**50}, "model.weights.d_emb is",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("make", "settings", "sentence"), BAD.values(), ids=BAD)
def test_what_cannot_be_lifted_is_refused(make, settings, sentence):
    with pytest.raises(BadInput) as refused:
        lift(make(), **settings, key=KEY)
    assert sentence in str(refused.value)


@pytest.mark.parametrize("scheme", ["lie-trotter", "residual"])
def test_levels_are_layers_left_out_whole_the_table_and_layers_in_parts(scheme):
    model, ids, order = model_of(replace(VANILLA, scheme=scheme)), tokens(), (2, 0, 1)
    made = levelled(model, (5, 2), order)
    assert made.config.weights.levels == (2, 3, 5) and made.config.interval == 3
    np.testing.assert_array_equal(logits(made.populate(3), ids), logits(model, ids))
    dropped = left_out(model_of(replace(VANILLA, scheme="lie-trotter")), order)
    np.testing.assert_allclose(logits(made, ids, 2), logits(dropped, ids, 2), atol=STATES)
    # Without a table of their own, 5 steps divide the middle one of 3; with one, they are five equal steps.
    alone = levelled(model, ())
    assert not alone.grid(5).equal and made.grid(5).equal
    np.testing.assert_allclose(logits(made, ids, 5), logits(alone, ids, 5), atol=STATES)
    thirds = alone.weights.blocks.attention.output.weight[1]
    np.testing.assert_allclose(made.weights.blocks.attention.output.weight[7], thirds * 5 / 9, rtol=1e-6)


def test_levels_of_other_tables_are_refused():
    with pytest.raises(BadInput, match=r"order is \[0, 1\], but must be that of all 3 layers, some of which level 2"):
        levelled(model_of(VANILLA), (2,), (0, 1))
    with pytest.raises(BadInput, match="unequal lengths, but a level has a table of equal steps"):
        levelled(model_of(UNEQUAL), ())
    with pytest.raises(BadInput, match="levels is 0, but must be at least 1"):
        levelled(model_of(VANILLA), (0,), (0, 1, 2))


def test_unequal_steps_cannot_be_left_out():
    model = model_of(replace(VANILLA, scheme="lie-trotter", horizon="steps", edges=(0.0, 0.5, 0.75, 1.0)))
    with pytest.raises(BadInput, match="steps are 0.5, 0.25, 0.25 of depth, but layers can only be left out of equal"):
        table_of_whole_steps(model)


def test_what_would_not_be_exact_is_refused(monkeypatch):
    monkeypatch.setattr(lifting, "EXACT", 1e-12)
    monkeypatch.setattr(lifting, "WELL_CONDITIONED", 1.0)  # so that wider bands are tried, too
    with pytest.raises(BadInput, match=r"would not be the same: logits differ by \d\.\de-0\d of the largest, but must"):
        lift(model_of(VANILLA), "time", key=KEY)
