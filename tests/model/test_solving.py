"""A trained model by another scheme, and by adaptive steps."""

import dataclasses

import jax
import numpy as np
import pytest

from diffeqformer.config import ReversibleConfig, ToleranceConfig
from diffeqformer.errors import BadInput, RunFailed
from diffeqformer.evaluation.perplexity import evaluate
from diffeqformer.model.loss import loss_sum
from diffeqformer.model.solving import with_scheme
from diffeqformer.ode.schemes import SCHEMES
from tests.models import KINDS, TINY, logits, model_of, solved, states, tokens
from tests.tolerances import STATES

SMOOTH = dataclasses.replace(TINY, horizon=0.3, weights=dataclasses.replace(TINY.weights, highest_frequency=4.0))
REVERSIBLE = dataclasses.replace(TINY, scheme=ReversibleConfig("heun", 0.9), gradient="reversible")


def test_another_scheme_is_that_schemes_model_with_the_same_weights():
    model = with_scheme(model_of(SMOOTH), "rk4")
    assert model.weights is model_of(SMOOTH).weights
    assert model.config == dataclasses.replace(SMOOTH, scheme="rk4")
    np.testing.assert_array_equal(
        logits(model, tokens()), logits(model_of(dataclasses.replace(SMOOTH, scheme="rk4")), tokens())
    )
    assert not np.allclose(logits(model, tokens()), logits(model_of(SMOOTH), tokens()), atol=1e-5)


def test_adaptive_steps_come_near_the_limit_of_many_fixed_ones():
    exact = logits(with_scheme(model_of(SMOOTH), "rk4"), tokens(), 48)
    errors, counts = [], []
    for rtol in (1e-2, 1e-5):
        model = with_scheme(model_of(SMOOTH), rtol=rtol)
        assert model.config.scheme.kind == "diffrax:Tsit5" and model.scheme == SCHEMES["diffrax:Tsit5"]
        assert model.config.tolerance == ToleranceConfig(rtol, rtol / 10)
        errors.append(np.abs(logits(model, tokens()) - exact).max())
        counts.append(int(jax.jit(loss_sum)(model, tokens(positions=13)).evaluations.attention))
    assert errors[1] < errors[0] and errors[1] < 1e-3 and counts[1] > counts[0]


def test_adaptive_steps_come_after_the_first_step_of_a_model_that_keeps_its_length():
    """Many Euler steps behind the same first one come nearer at first order."""
    config = dataclasses.replace(SMOOTH, scheme="euler-middle", first_step=0.6, steps=4)
    model, ids = model_of(config), tokens()
    exact = with_scheme(model, rtol=1e-6)
    assert exact.scheme == model.scheme  # which takes the fixed steps of this model too
    limit = np.asarray(solved(exact, ids).state)
    errors = [np.abs(np.asarray(solved(model, ids, steps).state) - limit).max() for steps in (17, 33, 65)]
    assert errors[0] / errors[1] == pytest.approx(2, abs=0.2) and errors[1] / errors[2] == pytest.approx(2, abs=0.2)
    assert np.abs(np.asarray(solved(with_scheme(model_of(SMOOTH), rtol=1e-6), ids).state) - limit).max() > errors[0]
    first, *_, last = states(exact, ids)[1:]
    np.testing.assert_allclose(first, states(model, ids)[1], rtol=0, atol=STATES)
    np.testing.assert_allclose(last, limit, rtol=0, atol=STATES)
    with pytest.raises(BadInput, match="the first step of this model is one of scheme 'lie-trotter-middle', but"):
        with_scheme(model_of(dataclasses.replace(config, scheme="lie-trotter-middle")), rtol=1e-3)


def test_adaptive_steps_look_at_later_tokens_only_up_to_the_tolerance():
    ids = tokens()
    other = ids.at[:, -4:].set((ids[:, -4:] + 1) % TINY.vocabulary)
    gap = lambda model: float(np.abs(logits(model, ids)[:, :-4] - logits(model, other)[:, :-4]).max())
    assert gap(with_scheme(model_of(SMOOTH), "diffrax:Tsit5")) == 0.0  # on a fixed grid: not at all
    assert gap(with_scheme(model_of(SMOOTH), rtol=1e-6)) < 1e-3


def test_a_models_own_scheme_is_kept_where_it_can_be():
    heun = model_of(dataclasses.replace(SMOOTH, scheme="heun"))
    assert with_scheme(heun, rtol=1e-3).config.scheme.kind == "heun"
    assert with_scheme(with_scheme(heun, rtol=1e-3), "heun").config == heun.config  # fixed steps again
    assert with_scheme(model_of(KINDS["vanilla"])).config == KINDS["vanilla"]
    reversible = model_of(REVERSIBLE)
    assert with_scheme(reversible, "reversible").config == REVERSIBLE
    assert with_scheme(reversible, "heun").config == dataclasses.replace(TINY, scheme="heun")


def test_steps_that_do_not_suffice_fail_in_one_sentence():
    config = dataclasses.replace(TINY, scheme="heun", tolerance=ToleranceConfig(1e-6, 1e-7, max_steps=3))
    batch = np.asarray(tokens(positions=13)), np.ones((2, 12), bool)
    with pytest.raises(RunFailed, match=r"more than model\.tolerance\.max_steps, 3, are needed for a tolerance"):
        evaluate(model_of(config), [batch])


@pytest.mark.parametrize(
    ("kind", "scheme", "rtol", "sentence"),
    [
        ("diffeqformer", "rk5", None, "model.scheme is 'rk5', but must be one of euler"),
        ("vanilla", "rk5", None, "model.scheme is 'rk5', but must be one of euler"),
        ("vanilla", "euler", None, "table of 3 layers for the scheme 'lie-trotter' and cannot run by 'euler'"),
        ("vanilla", None, 1e-3, "model.tolerance.rtol is given, but model.weights is 'layer'"),
        ("diffeqformer", "rk4", 1e-3, "'rk4' has no error estimate to choose steps by"),
        ("diffeqformer", None, 0.0, "model.tolerance.rtol is 0.0, but must be a positive number"),
        ("diffeqformer", None, float("nan"), "model.tolerance.rtol is nan, but must be a positive number"),
    ],
)
def test_what_a_model_cannot_do_is_refused(kind, scheme, rtol, sentence):
    with pytest.raises(BadInput, match=sentence):
        with_scheme(model_of(KINDS[kind]), scheme, rtol)
