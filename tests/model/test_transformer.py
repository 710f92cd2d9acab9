import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffeqformer.analysis.spectra import spectra
from diffeqformer.config import LlamaConfig
from diffeqformer.errors import BadInput
from diffeqformer.model.build import abstract, build, require_part
from diffeqformer.model.generate import generate
from diffeqformer.model.loss import next_token_loss
from diffeqformer.ode.early_exit import EarlyExit
from diffeqformer.ode.field import TransformerField
from diffeqformer.ode.grid import Grid
from diffeqformer.ode.schemes import SCHEMES, Reversible
from diffeqformer.ode.weights import WeightSource
from tests.cases import slow_but
from tests.models import (
    COVERING,
    KINDS,
    TINY,
    Wrapped,
    covering_kinds,
    logits,
    model_of,
    of_dtype,
    programs,
    states,
    tokens,
)
from tests.tolerances import STATES

every_kind = pytest.mark.parametrize("config", KINDS.values(), ids=KINDS.keys())


@every_kind
def test_no_logit_before_a_changed_token_changes_by_a_bit(config):
    require_causal(model_of(config), tokens())


@covering_kinds
def test_no_logit_before_a_changed_token_changes_by_a_bit_in_bfloat16(config):
    require_causal(model_of(dataclasses.replace(config, compute_dtype="bfloat16")), tokens())


def require_causal(model, ids):
    """Check that each token changes all logits from its own position on, and none before."""
    before = np.asarray(logits(model, ids))
    for changed in range(ids.shape[1]):
        after = np.asarray(logits(model, ids.at[:, changed].set((ids[:, changed] + 1) % 40)))
        assert (after[:, :changed] == before[:, :changed]).all()
        assert (after[:, changed:] != before[:, changed:]).any(-1).all()


@pytest.mark.parametrize(
    ("scheme", "family"),
    [
        pytest.param(scheme, family, marks=() if (number + of_two) % 2 == 0 else pytest.mark.slow)
        for number, scheme in enumerate(SCHEMES)
        for of_two, family in enumerate(("gpt", "llama"))
    ],
)
def test_no_scheme_sees_the_future(scheme, family):
    model, ids = model_of(dataclasses.replace(TINY, scheme=scheme, field=family, steps=2)), tokens()
    before = np.asarray(logits(model, ids))
    after = np.asarray(logits(model, ids.at[:, 6].set((ids[:, 6] + 1) % 40)))
    assert (after[:, :6] == before[:, :6]).all()
    assert (after[:, 6:] != before[:, 6:]).any(-1).all()


@covering_kinds
def test_the_cached_path_sees_no_future_either_and_agrees(config):
    model, ids = model_of(config).populate(), tokens()
    decode = jax.jit(lambda model, *rest: model.decode(*rest))
    whole = logits(model, ids)
    cache = model.empty_cache(ids.shape[0], ids.shape[1])
    first, cache = decode(model, ids[:, :5], cache, jnp.int32(0))
    rows = [first]
    for position in range(5, ids.shape[1]):
        one, cache = decode(model, ids[:, position : position + 1], cache, jnp.int32(position))
        rows.append(one)
    np.testing.assert_allclose(jnp.concatenate(rows, axis=1), whole, atol=STATES)
    other, _ = decode(model, ids.at[:, 4].set(0)[:, :5], model.empty_cache(2, 12), jnp.int32(0))
    assert (np.asarray(other[:, :4]) == np.asarray(first[:, :4])).all()


@pytest.mark.parametrize(
    ("config", "steps"),
    [
        pytest.param(KINDS[kind], steps, id=f"{kind}-{steps}", marks=() if quick else pytest.mark.slow)
        for kind in KINDS
        for quick in [kind in COVERING]
        for steps, quick in ((3, quick), (7, quick), (1, kind in ("diffeqformer", "knots, normalised")))
    ],
)
def test_a_populated_model_is_an_ordinary_model_with_the_same_output(config, steps):
    model, ids = model_of(config), tokens()
    if config.weights.kind == "layer" and steps != config.steps:
        with pytest.raises(BadInput, match=r"a table of 3 layers and cannot run at \d steps"):
            model.populate(steps)
        return
    populated = model.populate(steps)
    assert type(populated) is type(model)
    assert (populated.config.weights.kind, populated.config.steps) == ("layer", steps)
    np.testing.assert_allclose(logits(populated, ids), logits(model, ids, steps=steps), atol=STATES)
    np.testing.assert_allclose(logits(populated.populate(), ids), logits(populated, ids), atol=0)


def test_the_trajectory_is_euler_by_hand():
    model, ids = model_of(TINY), tokens()
    found = states(model, ids)
    weights, x = jax.jit(lambda model: (model.weights.at(Grid.of(3).times()), model.embed(ids)))(model)
    weights = jax.tree.map(np.asarray, weights)
    assert (np.asarray(found[0]) == np.asarray(x)).all()

    field = model.field
    step_of = jax.jit(lambda row, x: x + (field.attention(row, x)[0] + field.feed_forward(row, x)) / 3)
    for step in range(3):
        x = step_of(jax.tree.map(lambda leaf, step=step: leaf[step], weights), x)
        np.testing.assert_allclose(found[step + 1], x, atol=STATES)


def test_the_trajectory_ends_where_the_logits_begin():
    model, ids = model_of(TINY), tokens()
    last = states(model, ids, 5)[-1]
    np.testing.assert_allclose(model.unembed(model.normalise(last)), logits(model, ids, 5), atol=STATES)


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(config, id=kind, marks=() if kind in ("vanilla", "time, llama, nested norm") else pytest.mark.slow)
        for kind, config in KINDS.items()
    ],
)
def test_gradients_against_finite_differences_in_float64(config):
    single = model_of(config)
    with jax.enable_x64(True):
        model = of_dtype(single, np.float64)
        ids = tokens(positions=13)
        draw = np.random.default_rng(0).normal
        direction = jax.tree.map(lambda leaf: draw(size=leaf.shape), model)
        along = jax.jit(lambda h: next_token_loss(jax.tree.map(lambda a, d: a + h * d, model, direction), ids))
        gradient = jax.jit(jax.grad(next_token_loss))(model, ids)
        exact = sum(np.vdot(g, d) for g, d in zip(*map(jax.tree.leaves, (gradient, direction)), strict=True))
        h = 1e-4
        # Fourth-order central difference: error h^4, about 1e-16 / h from rounding.
        measured = (8 * (along(h) - along(-h)) - (along(2 * h) - along(-2 * h))) / (12 * h)
        assert exact.dtype == np.float64
        np.testing.assert_allclose(exact, measured, rtol=1e-7)


def test_one_row_of_ids_works_as_a_batch_does():
    model, ids = model_of(TINY), tokens()
    np.testing.assert_allclose(logits(model, ids[0]), logits(model, ids)[0], atol=1e-6)


@pytest.mark.parametrize("wrong", [-1, 40, 4_000_000])
def test_token_ids_that_do_not_exist_are_refused(wrong):
    """JAX would take the nearest one that does."""
    model, ids = model_of(TINY), tokens(1, 3).at[0, 1].set(wrong)
    sentence = rf"token id {wrong} does not exist: the model's vocabulary has 40 entries, 0 to 39\."
    with pytest.raises(BadInput, match=sentence):
        model(ids)
    with pytest.raises(BadInput, match=sentence):
        generate(model, ids, 2, key=jax.random.key(0))


def test_too_long_a_text_and_too_few_steps_are_refused():
    model = model_of(TINY)
    with pytest.raises(BadInput, match="the text has 13 tokens, but the model's context is 12"):
        model(tokens(positions=13))
    with pytest.raises(BadInput, match="steps is 0, but must be a whole number of at least 1"):
        model(tokens(), steps=0)


@pytest.mark.parametrize("steps", [2.5, 6.0, True, -1])
def test_a_depth_that_is_not_a_positive_whole_number_is_refused(steps):
    with pytest.raises(BadInput, match=rf"steps is {steps}, but must be a whole number of at least 1"):
        Grid.of(steps)


def test_weights_of_every_source_can_be_asked_for_inside_a_jit():
    times = np.array([0.2, 1 / 3, 0.9])
    for model in (model_of(TINY), model_of(TINY).populate(5), model_of(KINDS["shared"])):
        inside = jax.jit(lambda t, model=model: model.weights.at(t))(jnp.asarray(times, jnp.float32))
        for a, b in zip(jax.tree.leaves(inside), jax.tree.leaves(model.weights.at(times)), strict=True):
            np.testing.assert_allclose(a, b, atol=2e-3)


def test_a_model_without_a_vocabulary_is_refused():
    with pytest.raises(BadInput, match=r"model\.vocabulary is not set"):
        build(dataclasses.replace(TINY, vocabulary=None), jax.random.key(0))


@pytest.mark.parametrize("which", ["embedding", "attention", "residual"])
def test_each_dropout_acts_with_a_key_and_only_then(which):
    config = dataclasses.replace(TINY, dropout=dataclasses.replace(TINY.dropout, **{which: 0.5}))
    model, ids = model_of(config), tokens()
    assert (np.asarray(logits(model, ids)) == np.asarray(logits(model_of(TINY), ids))).all()
    one, again, two = (logits(model, ids, key=jax.random.key(seed)) for seed in (1, 1, 2))
    assert (np.asarray(one) == np.asarray(again)).all()
    assert (np.asarray(one) != np.asarray(two)).any()


def test_dropout_of_attention_still_sees_no_future():
    model = model_of(dataclasses.replace(TINY, dropout=dataclasses.replace(TINY.dropout, attention=0.5)))
    ids, key = tokens(), jax.random.key(3)
    a, b = logits(model, ids, key=key), logits(model, ids.at[:, 8].set(0), key=key)
    assert (np.asarray(a[:, :8]) == np.asarray(b[:, :8])).all()


@pytest.mark.parametrize("kind", slow_but(["time, llama, nested norm", "levels", "time, reversible"], KINDS))
def test_a_model_that_never_drops_gives_the_dropping_path_its_answer(kind):
    """With a vanishing rate the path with dropout must compute what the plain path computes."""
    tiny_rate = dataclasses.replace(TINY.dropout, embedding=1e-9, attention=1e-9, residual=1e-9)
    model, ids = model_of(dataclasses.replace(KINDS[kind], dropout=tiny_rate)), tokens()
    np.testing.assert_allclose(logits(model, ids, key=jax.random.key(0)), logits(model, ids), atol=STATES)


def test_a_field_of_ones_own_keeps_the_settings_of_the_one_in_whose_place_it_stands():
    class Same(TransformerField):
        """Llama's, under another name."""

    config = dataclasses.replace(
        TINY, heads=4, norm_epsilon=1e-6, field=LlamaConfig(final_norm_epsilon=0.5, kv_heads=1), vocabulary=41
    )
    theirs = build(config, jax.random.key(0))
    own = build(config, jax.random.key(0), field=Same(**dataclasses.asdict(config.field.build(config))))
    np.testing.assert_array_equal(logits(own, tokens()), logits(theirs, tokens()))
    for name, pair in spectra(theirs, times=2).pairs.items():
        np.testing.assert_array_equal(spectra(own, times=2).pairs[name].radius, pair.radius)
    assert build(own.config, jax.random.key(0), field=own.field).config == own.config


def test_a_field_in_another_ones_place_stays_when_the_model_is_populated():
    """`generate` populates, and sampled from the field that the config describes."""
    model = model_of(dataclasses.replace(TINY, weights="shared"))
    model = model.replace(field=dataclasses.replace(model.field, exact_gelu=True))
    assert eqx.filter_eval_shape(lambda model: model.populate(), model).field == model.field


def test_a_table_in_other_weights_place_is_the_librarys_when_it_is_populated():
    """It stayed one of the user's own, which neither `lift` nor `export` takes."""
    own = abstract(KINDS["vanilla"], lambda config, key: build(config, key, weights=build(config, key).weights))
    populated = eqx.filter_eval_shape(lambda model: model.populate(), own)
    assert (own.config.weights.kind, populated.config) == ("own", KINDS["vanilla"])


def test_a_field_of_other_sizes_than_the_config_is_refused():
    """Spectra would take its four heads of width 4 for two of width 8."""
    field = dataclasses.replace(TINY.field.build(TINY), heads=4, kv_heads=4, head_width=4)
    with pytest.raises(BadInput, match="the field's heads is 4, but must be that of the config, which is 2"):
        build(TINY, jax.random.key(0), field=field)
    with pytest.raises(BadInput, match="the field's heads is 2, but must be that of the config, which is 4"):
        model_of(TINY).replace(config=dataclasses.replace(TINY, heads=4))


@pytest.mark.parametrize("array", [np.ones(8, np.float32), jnp.ones(8)])
def test_a_field_that_holds_an_array_is_refused(array):
    """A compiled call failed in JAX's own words, and training left the array as it was."""

    @dataclasses.dataclass(frozen=True)
    class Gated(TransformerField):
        gate: np.ndarray | jax.Array | None = None

    with pytest.raises(BadInput, match="field is Gated, which cannot be hashed .* belongs to the weights"):
        build(TINY, jax.random.key(0), field=Gated(**dataclasses.asdict(TINY.field.build(TINY)), gate=array))


def test_weights_that_hold_anything_but_arrays_are_refused():
    """A compiled call failed in JAX's own words, such as for the activation of Equinox's MLP."""

    class Plain:
        at, table = Wrapped.at, Wrapped.table

    class Networked(Wrapped):
        network: eqx.nn.MLP

    network = lambda activation: eqx.nn.MLP(1, 1, 2, 1, activation, activation, key=jax.random.key(0))
    source = abstract(TINY).weights
    with pytest.raises(BadInput, match=r"weights is .*Plain object.*, but must be a PyTree of arrays"):
        build(TINY, jax.random.key(0), weights=Plain())
    with pytest.raises(BadInput, match=r"weights is Networked, whose network\.activation is .*, but all that it holds"):
        build(TINY, jax.random.key(0), weights=Networked(source, network(jax.nn.relu)))
    require_part("weights", Networked(source, network(jax.tree_util.Partial(jax.nn.relu))), WeightSource)


def test_calls_outside_compiled_functions_are_compiled_once():
    """Their number of programs does not grow: JAX keeps each loop that it runs there."""
    model, ids = model_of(KINDS["shared"]), tokens()
    call = lambda: (model(ids), model.trajectory(ids), model(ids, steps=EarlyExit(2, 0.1)))
    found = call()
    before = programs()
    again = call()
    assert programs() == before
    assert all(np.array_equal(*pair) for pair in zip(found, again, strict=True))
    assert model.integrate(ids, steps=2).evaluations == (2, 2)


@pytest.mark.parametrize("part", ["field", "scheme", "base of a scheme"])
def test_a_part_of_ones_own_is_asked_anew_at_each_call(part):
    """What it reads may have changed, and a program that is kept would not know."""
    factor = 1.0

    class Field(TransformerField):
        def attention(self, *args, **settings):
            y, slot = super().attention(*args, **settings)
            return factor * y, slot

    class Scheme(type(SCHEMES["euler"])):
        def advance(self, field, x, dt):
            return super().advance(field, x, factor * dt)

    given = model_of(TINY).field if part == "field" else SCHEMES["euler"]
    settings = {one.name: getattr(given, one.name) for one in dataclasses.fields(given)}
    own = (Field if part == "field" else Scheme)(**settings)
    reversible = lambda base: model_of(TINY).replace(scheme=Reversible(base, 1.0))
    if part == "base of a scheme":
        model, ours = reversible(own), reversible(given)
    else:
        model, ours = model_of(TINY).replace(**{part: own}), model_of(TINY)
    ids = tokens()
    before, as_ours = model(ids), ours(ids)
    np.testing.assert_allclose(before, as_ours, rtol=0, atol=STATES)
    factor = 2.0
    assert np.abs(model(ids) - before).max() > 0.01
