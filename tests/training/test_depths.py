"""Training at drawn depths: drawn in the right proportions, each as if it were the only one."""

import itertools
from collections import Counter
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffeqformer.config import (
    Config,
    DepthConfig,
    LayerDropConfig,
    ModelConfig,
    TimeConfig,
    TrainerConfig,
    from_dict,
    validate,
)
from diffeqformer.errors import BadInput
from diffeqformer.model.count import flops
from diffeqformer.model.loss import next_token_loss
from diffeqformer.ode.grid import Grid
from diffeqformer.training.depths import (
    Pass,
    compute_of,
    depth_of_update,
    largest_drawn,
    mean_operations,
    passes,
    trained_depths,
)
from diffeqformer.training.update import initial_state, make_update
from tests.cases import slow
from tests.runs.tiny_run import changed
from tests.tolerances import GRADIENT, LOSS

IDS = jax.random.randint(jax.random.key(1), (4, 9), 0, 40)
MODEL = ModelConfig(
    steps=3, width=16, heads=2, hidden=32, context=8, vocabulary=40,
    weights=TimeConfig(d_emb=6, frequencies=4, highest_frequency=6.0),
)  # fmt: skip


def config(accumulation: int = 1, **depth) -> Config:
    trainer = TrainerConfig(updates=50, batch_size=4, accumulation=accumulation)
    return Config(model=MODEL, depth=DepthConfig(**depth), trainer=trainer)


def drawn(updates: int, seed: int = 0, first: int = 0, **depth) -> list[int | None]:
    depth_of = depth_of_update(changed(config(**depth), trainer__seed=seed, trainer__updates=1000))
    return [depth_of(update) for update in range(first, first + updates)]


def norm(gradient) -> float:
    return np.sqrt(sum(np.square(np.asarray(leaf)).sum(dtype=np.float64) for leaf in jax.tree.leaves(gradient)))


@pytest.mark.parametrize(
    ("depth", "shares"),
    [
        ({"sample": (4, 6, 9)}, {4: 1 / 3, 6: 1 / 3, 9: 1 / 3}),
        ({"sample": "2-4", "weights": "inverse"}, {2: 6 / 13, 3: 4 / 13, 4: 3 / 13}),
        ({"sample": (9, 4), "weights": (3.0, 1.0)}, {9: 0.75, 4: 0.25}),
    ],
)
def test_depths_are_drawn_in_proportion_in_every_stretch(depth, shares):
    for seed, first in itertools.product((0, 1), (0, 500)):
        counts = Counter(drawn(100, seed, first, **depth))
        assert counts.keys() == shares.keys()
        # 100 numbers k phi mod 1 are within 100 D < 3 of every share; nothing here is rounded
        assert all(abs(counts[steps] - 100 * share) <= 3 for steps, share in shares.items())


def test_seeds_draw_other_depths_and_none_if_there_is_nothing_to_draw():
    assert drawn(20, 0, sample="2-9") == drawn(20, 0, sample="2-9") != drawn(20, 1, sample="2-9")
    assert drawn(3) == [None, None, None]


def test_depths_are_the_same_with_x64():
    usual = drawn(20, sample=(4, 9), weights=(1.0, 1.0))
    with jax.enable_x64(True):
        assert drawn(20, sample=(4, 9), weights=(1.0, 1.0)) == usual


def test_the_first_updates_are_shallow():
    found = drawn(1000, sample="3-8", shallow_fraction=0.4)
    assert set(found[:400]) == {3} and set(found[400:410]) > {3}


@pytest.mark.parametrize("steps", [5, *slow(2)])
def test_an_update_at_a_depth_takes_the_gradient_at_this_depth(steps):
    state = initial_state(config())
    gradient_of = jax.jit(jax.value_and_grad(lambda model: next_token_loss(model, IDS, steps=steps)))
    loss, gradient = gradient_of(state.model)
    length = norm(gradient)
    _, measured = make_update(config(sample="2-5"))(state, IDS, steps)
    np.testing.assert_allclose(measured.loss, loss, rtol=LOSS)
    np.testing.assert_allclose(measured.gradient_norm, length, rtol=GRADIENT)


@pytest.mark.slow
def test_parts_of_a_batch_at_a_drawn_depth_equal_the_whole():
    for jitter in (0.0, 0.8):
        found = [
            make_update(config(parts, sample="2-5", jitter=jitter))(initial_state(config()), IDS, 4)[1]
            for parts in (1, 2)
        ]
        np.testing.assert_allclose(found[0].loss, found[1].loss, rtol=LOSS)
        np.testing.assert_allclose(found[0].gradient_norm, found[1].gradient_norm, rtol=GRADIENT)


def test_jitter_moves_the_times_anew_each_update():
    one, update = config(jitter=0.9), make_update(config(jitter=0.9))
    state, losses, expected = initial_state(one), [], []
    frozen = jax.tree.map(np.asarray, state.model)
    loss = jax.jit(lambda model, key: next_token_loss(model, IDS, steps=Grid(3).jittered(0.9, key)))
    for step in range(2):
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(one.trainer.seed), 3), step)
        expected.append(float(loss(frozen, key)))
        state, measured = update(state._replace(model=jax.tree.map(jnp.asarray, frozen)), IDS)
        losses.append(float(measured.loss))
    np.testing.assert_allclose(losses, expected, rtol=LOSS)
    assert losses[0] != losses[1]


REFUSED = [
    (
        {"sample": "9-4"},
        "depth.sample is '9-4', but must be whole numbers of at least 1 and at most 16384, such as 6, 6,12,24 or 2-6.",
    ),
    ({"sample": [0, 4]}, "depth.sample is 0, but must be at least 1."),
    ({"sample": [4, 4]}, "depth.sample names 4 more than once; each counts once, so name it once."),
    ({"sample": [4, 6], "always": [2, 2]}, "depth.always names 2 more than once; each counts once, so name it once."),
    (
        {"always": [2, 4]},
        "depth.always is (2, 4), but without depth.sample nothing is drawn; move one of these depths there.",
    ),
    ({"weights": "inverse"}, "depth.weights is 'inverse', but without depth.sample nothing is drawn."),
    ({"shallow_fraction": 0.5}, "depth.shallow_fraction is 0.5, but without depth.sample nothing is drawn."),
    ({"sample": [4, 6], "shallow_fraction": 1.5}, "depth.shallow_fraction is 1.5, but must be at least 0 and below 1."),
    (
        {"sample": [4, 6], "weights": [1]},
        "depth.weights is [1.0], but must have as many numbers as depth.sample has depths, 2.",
    ),
    ({"sample": [4, 6], "weights": [1, -1]}, "depth.weights has -1.0, but must have positive numbers only."),
    ({"jitter": 1.5}, "depth.jitter is 1.5, but must be at most 1."),
]  # fmt: skip


@pytest.mark.parametrize(("depth", "sentence"), REFUSED, ids=[str(depth) for depth, _ in REFUSED])
def test_refused(depth, sentence):
    with pytest.raises(BadInput) as refusal:
        validate(from_dict(Config, {"depth": depth}))
    assert str(refusal.value) == sentence


def test_a_model_of_one_depth_refuses_to_draw():
    for depth in ({"sample": [4, 6]}, {"jitter": 0.5}):
        with pytest.raises(BadInput, match=r"model.weights is 'layer': a table of layers has one depth"):
            validate(from_dict(Config, {"model": {"weights": "layer"}, "depth": depth}))
        adaptive = {"scheme": "heun", "tolerance": {"rtol": 1e-3}}
        with pytest.raises(BadInput, match=r"model.tolerance.rtol, 0.001, chooses the steps"):
            validate(from_dict(Config, {"model": adaptive, "depth": depth}))


@pytest.mark.parametrize(
    ("weights", "given", "sample", "filled_in"),
    [
        ("time", None, [2, 4], 6.0),
        ("time", 30.0, [2, 4], 30.0),
        ("time", None, [], 1000.0),
    ],
)
def test_features_are_smooth_by_default_where_depths_are_drawn(weights, given, sample, filled_in):
    model = {"weights": {"kind": weights, "highest_frequency": given}, "steps": 3}
    found = validate(from_dict(Config, {"depth": {"sample": sample}, "model": model}))
    assert found.model.weights.highest_frequency == filled_in and validate(found) == found


def test_an_update_trains_at_the_depths_that_it_always_trains_at_too():
    asked = config(sample=(3, 4), always=(2, 6))
    assert trained_depths(asked, 3) == ((6, 4), (3, 4), (2, 4)) and trained_depths(asked, 2) == ((6, 4), (2, 4))
    assert trained_depths(config(sample=(3, 4)), 3) == ((3, 4),) and asked.trained_at == (2, 3, 4, 6)
    assert not asked.depth.alone and config(sample=(3, 4)).depth.alone
    assert compute_of(changed(asked, depth__weights=(1.0, 1.0))) == 50 * 8 + sum(
        drawn(50, sample=(3, 4), always=(2, 6))
    )
    state, model = initial_state(asked), initial_state(asked).model
    _, measured = make_update(asked)(state, IDS, 3)
    loss = lambda model: sum(next_token_loss(model, IDS, steps=steps) for steps in (2, 3, 6)) / 3
    value, gradient = jax.jit(jax.value_and_grad(loss))(model)
    np.testing.assert_allclose(measured.loss, value, rtol=LOSS)
    np.testing.assert_allclose(measured.gradient_norm, norm(gradient), rtol=1e-4)


@pytest.mark.parametrize(
    ("depth", "found"),
    [
        ({"together": "rows"}, "depth.always is .*2, 6.*, but with depth.together 'rows' no sequence is read at two"),
        ({"always": [0, 2]}, "depth.always has 0, but must be at least 1."),
        ({"sample": [2], "always": [2], "distill": 0.5}, "distill is 0.5, but all updates train at 2 steps alone"),
        ({"sample": []}, "depth.always is .*2, 6.*, but without depth.sample nothing is drawn"),
    ],
)
def test_depths_that_updates_cannot_always_train_at_are_refused(depth, found):
    with pytest.raises(BadInput, match=found):
        validate(from_dict(Config, {"depth": {"sample": [3, 4], "always": [2, 6]} | depth}))


def test_early_exits_take_one_pass_for_all_depths_of_a_sequence():
    weights = LayerDropConfig(6, nested=True, order=tuple(range(6)))
    asked = changed(
        config(sample=(3, 4), always=(2, 6)), model=replace(MODEL, weights=weights, scheme="residual", horizon="steps")
    )
    assert passes(asked, 3) == (Pass(6, 4, readings=3),) and compute_of(asked) == 50 * 6
    assert passes(changed(asked, model=MODEL), 3) == (Pass(6, 4), Pass(3, 4), Pass(2, 4))
    for own, others in [(1, (1, 1)), (3, (3, 2))]:
        order = tuple(range(6 - own))
        landings = replace(MODEL, weights=replace(weights, order=order, landings=own), scheme="residual")
        assert passes(changed(asked, model=landings), 3) == (Pass(6, 4), *(Pass(steps, 4) for steps in others))
    by_rows = changed(asked, depth=DepthConfig(sample=(2, 6), together="rows"))
    assert passes(by_rows, None) == (Pass(6, 2), Pass(2, 2)) and compute_of(by_rows) == 50 * 4
    shared = changed(asked, model=replace(MODEL, weights="shared", scheme="residual"), depth__jitter=0.5)
    assert passes(shared, 3) == (Pass(6, 4), Pass(3, 4), Pass(2, 4))  # each with times of its own


def test_operations_are_those_of_all_depths_that_a_run_is_trained_at():
    def at(steps: int) -> tuple[float, float]:
        found = flops(replace(MODEL, steps=steps))
        return found.training_per_token * MODEL.context, found.generating_weights

    training, generating = mean_operations(config())
    assert (training, generating) == (4 * at(3)[0], at(3)[1])
    asked = config(sample=(2, 4), always=(6,))
    twos, fours = (drawn(50, sample=(2, 4), always=(6,)).count(steps) / 50 for steps in (2, 4))
    expected = [4 * (at(6)[0] + twos * at(2)[0] + fours * at(4)[0]), at(6)[1] + twos * at(2)[1] + fours * at(4)[1]]
    np.testing.assert_allclose(mean_operations(asked), expected, rtol=1e-12)
    by_rows = config(sample=(2, 4), weights=(1.0, 3.0), together="rows")
    np.testing.assert_allclose(mean_operations(by_rows), [3 * at(4)[0] + at(2)[0], at(4)[1] + at(2)[1]], rtol=1e-12)


@pytest.mark.parametrize(
    "weights", [LayerDropConfig(nested=True, order=(2, 0, 1)), LayerDropConfig(nested=True, landings=2)]
)
def test_operations_at_fewer_steps_are_counted_where_steps_give_the_number_of_layers(weights):
    asked = changed(config(sample=(1, 2, 3)), model=replace(MODEL, weights=weights, scheme="residual"))
    named = changed(asked, model=replace(asked.model, weights=replace(weights, layers=3)))
    assert mean_operations(asked) == mean_operations(named)


def test_memory_is_planned_for_the_update_that_takes_the_most_steps():
    assert largest_drawn(config()) is None and largest_drawn(config(sample=(2, 9, 4))) == 9
    assert largest_drawn(config(sample=(2, 9, 4), always=(9,))) == 4  # 9 and 4 are more than 9 alone
    weights = LayerDropConfig(9, nested=True, order=tuple(range(9)))
    exits = changed(config(sample=(2, 9, 4), always=(9,)), model=replace(MODEL, weights=weights, scheme="residual"))
    assert largest_drawn(exits) == 4  # nine steps in any case, but two readings


@pytest.mark.parametrize(
    ("shares", "rows"), [("equal", (4, 2, 2)), ((1.0, 5.0, 1.0), (4, 2, 2)), ((1.0, 1.0, 18.0), (2, 2, 4))]
)
def test_depths_share_the_rows_of_each_part_of_a_batch(shares, rows):
    asked = changed(config(2, sample=(4, 6, 2), weights=shares, together="rows"), trainer__batch_size=8)
    assert trained_depths(asked, None) == tuple(zip((6, 4, 2), rows, strict=True))


def test_an_update_by_rows_is_one_over_the_rows_of_each_depth():
    asked = config(sample=(2, 4), weights=(1.0, 3.0), together="rows")
    assert trained_depths(asked, None) == ((4, 3), (2, 1)) and depth_of_update(asked)(0) is None
    assert compute_of(asked) == 50 * (4 * 3 + 2) / 4
    state, model = initial_state(asked), initial_state(asked).model
    _, measured = make_update(asked)(state, IDS)

    def loss(model):
        return (3 * next_token_loss(model, IDS[:3], steps=4) + next_token_loss(model, IDS[3:], steps=2)) / 4

    value, gradient = jax.jit(jax.value_and_grad(loss))(model)
    np.testing.assert_allclose(measured.loss, value, rtol=LOSS)
    np.testing.assert_allclose(measured.gradient_norm, norm(gradient), rtol=1e-4)


def test_an_update_at_several_depths_has_the_mean_of_their_gradients():
    asked = config(sample=(2, 4), always=(2, 4), jitter=0.5)
    state = initial_state(asked)
    _, measured = make_update(asked)(state, IDS, 4)
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), 3), 0)
    model = initial_state(asked).model
    grids = [model.grid(steps).jittered(0.5, key) for steps in (4, 2)]
    both = jax.jit(lambda model: [jax.value_and_grad(next_token_loss)(model, IDS, steps=grid) for grid in grids])
    found = both(model)
    losses, gradients = zip(*found, strict=True)
    mean = jax.tree.map(lambda *parts: sum(map(np.asarray, parts)) / 2, *gradients)
    np.testing.assert_allclose(measured.loss, sum(losses) / 2, rtol=1e-5)
    np.testing.assert_allclose(measured.gradient_norm, norm(mean), rtol=1e-4)


@pytest.mark.parametrize("with_it", ["rows", *slow("one")])
def test_a_frozen_teacher_is_learned_from_at_every_depth(with_it):
    """Cross-entropy with a mixture of the targets and the predictions of the teacher, by its own head."""
    base = {"base__run": "b", "base__method": "continuous"}
    asked = changed(config(2, sample=(2, 4), distill=0.25, teacher="base", together=with_it), **base)
    state, teacher = initial_state(asked), initial_state(changed(asked, trainer__seed=5)).model
    model = initial_state(asked).model
    read = ((2, IDS),) if with_it == "one" else ((4, IDS[::2]), (2, IDS[1::2]))  # of each part of the batch
    _, measured = make_update(asked, teacher=teacher)(state, IDS, 2 if with_it == "one" else None)

    def loss(model):
        total = 0.0
        for steps, ids in read:
            told = jax.nn.softmax(teacher(ids[:, :-1])), jax.nn.one_hot(ids[:, 1:], 40)
            logits = jax.nn.log_softmax(model(ids[:, :-1], steps=steps))
            total -= ((0.25 * told[0] + 0.75 * told[1]) * logits).sum(-1).mean() / len(read)
        return total

    value, gradient = jax.jit(jax.value_and_grad(loss))(model)
    np.testing.assert_allclose(measured.loss, value, rtol=LOSS)
    np.testing.assert_allclose(measured.gradient_norm, norm(gradient), rtol=1e-4)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, "depth.teacher is 'base', but base.run is not given; `diffeqformer finetune` starts from a base."),
        ({"base": {"run": "b"}}, "depth.teacher is 'base', but depth.distill is 0: nothing is learned"),
    ],
)
def test_a_teacher_that_is_not_there_is_refused(given, found):
    with pytest.raises(BadInput, match=found):
        validate(from_dict(Config, {"depth": {"sample": [2, 4], "teacher": "base"}, **given}))


@pytest.mark.parametrize(
    ("depth", "found"),
    [
        ({"distill": 0.5}, "depth.distill is 0.5, but with depth.together 'rows' no sequence is read at two depths"),
        ({"shallow_fraction": 0.5}, "depth.shallow_fraction is 0.5, but with depth.together 'rows' each update has"),
        ({"sample": [1, 2, 3, 4, 5]}, "depth.sample has 5 numbers of steps, .* at most 4 "),
    ],
)
def test_rows_that_cannot_be_shared_are_refused(depth, found):
    with pytest.raises(BadInput, match=found):
        validate(
            from_dict(Config, {"depth": {"sample": [2, 4], "together": "rows"} | depth, "trainer": {"batch_size": 4}})
        )


def test_the_compute_counts_every_depth_of_an_update():
    asked = config(sample=(2, 4), always=(2, 4))
    assert compute_of(asked) == 50 * 6
