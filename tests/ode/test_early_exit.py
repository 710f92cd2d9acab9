"""Early exit: never with a threshold of nothing, at once with a large one, and as written down by hand between."""

import dataclasses
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffeqformer.errors import BadInput
from diffeqformer.ode.early_exit import EarlyExit
from diffeqformer.ode.grid import Grid
from tests.cases import slow
from tests.models import KINDS, TINY, model_of, of_dtype, solved, states, tokens
from tests.tolerances import STATES


@pytest.mark.parametrize(
    "name", ["diffeqformer", "time, llama, nested norm", "vanilla", *slow("time, lie-trotter", "shared")]
)
def test_without_a_threshold_to_speak_of_nothing_changes(name):
    model, ids = model_of(KINDS[name]), tokens()
    whole, found = solved(model, ids), solved(model, ids, EarlyExit(3, 1e-12))
    np.testing.assert_allclose(found.state, whole.state, atol=STATES)
    assert [float(x) for x in found.evaluations] == [float(x) for x in whole.evaluations]


def test_with_a_key_it_drops_what_the_whole_solve_drops():
    """It dropped entries of the embedding alone."""
    dropout = dataclasses.replace(TINY.dropout, embedding=0.1, attention=0.1, residual=0.5)
    model, key = model_of(dataclasses.replace(TINY, dropout=dropout)), jax.random.key(1)
    both = jax.jit(lambda model: [model.integrate(tokens(), steps=n, key=key).state for n in (3, EarlyExit(3, 1e-12))])
    whole, found = both(model)
    np.testing.assert_allclose(found, whole, atol=STATES)


def test_unequal_steps_of_a_bfloat16_model_promote_nothing():
    model, edges = of_dtype(model_of(TINY), jnp.bfloat16), (0.0, 0.2, 0.5, 1.0)
    whole, found = (solved(model, tokens(), steps).state for steps in (edges, EarlyExit(edges, 1e-12)))
    assert found.dtype == jnp.bfloat16
    close = 8 * float(jnp.finfo(jnp.bfloat16).eps) * float(jnp.abs(whole).max())  # some roundings of the largest state
    np.testing.assert_allclose(found.astype(jnp.float32), whole.astype(jnp.float32), rtol=0, atol=close)


@jax.jit
def end_of_flow(model, x: jax.Array) -> jax.Array:
    """Compiled once for steps of one length, which eager calls would be for each."""
    return model.flow(x).state


def by_hand(model, ids, edges: list[float], threshold: float) -> tuple[np.ndarray, float]:
    """The same with a loop over steps and positions, from whole Euler steps of the populated model."""
    steps = len(edges) - 1
    layers = model.populate(steps)
    x = np.asarray(model.embed(ids))
    normalise = lambda x: np.asarray(model.normalise(jnp.asarray(x)))
    slope, end, settled = np.zeros_like(x), normalise(x), np.zeros(ids.shape, bool)
    taken = np.zeros(ids.shape)
    for step, (start, stop) in enumerate(pairwise(edges)):
        length = stop - start
        row = jax.tree.map(lambda leaf, step=step: leaf[step : step + 1], layers.weights.layers)
        one = dataclasses.replace(
            layers,
            weights=dataclasses.replace(layers.weights, layers=row, grid=None),
            config=dataclasses.replace(
                layers.config, steps=1, first_step=None, edges=(), horizon=model.config.interval * length
            ),
        )
        new = np.asarray(end_of_flow(one, jnp.asarray(x)))
        for position in np.ndindex(*ids.shape):
            if not settled[position]:
                slope[position] = (new[position] - x[position]) / length
                taken[position] += 1
        x = x + length * slope
        before, end = end, normalise(x + (1 - stop) * slope)
        if step > 0:
            settled |= np.sqrt(((end - before) ** 2).mean(-1)) < threshold
    return x, taken.mean()


@pytest.mark.parametrize(
    ("first_step", "threshold"),
    [(None, 0.2), (None, 0.8), (0.4, 0.4), *slow((None, 0.4), (0.4, 0.2), (0.4, 0.8))],
)
def test_tokens_stop_as_written_down_by_hand(first_step, threshold):
    edges = [0.0] + [first_step + (1 - first_step) * step / 7 for step in range(8)] if first_step else np.arange(9) / 8
    model, ids = model_of(dataclasses.replace(TINY, first_step=first_step)), tokens()
    found = solved(model, ids, EarlyExit(8, threshold))
    state, taken = by_hand(model, ids, list(edges), threshold)
    assert float(found.evaluations.attention) == pytest.approx(taken)
    assert 2 <= taken < 8
    np.testing.assert_allclose(found.state, state, atol=STATES)


def test_a_step_of_no_length_stops_nobody_and_changes_nothing():
    model, ids = model_of(TINY), tokens()
    with_pause, without = (
        solved(model, ids, EarlyExit(Grid(len(edges) - 1, edges), 0.1))
        for edges in ((0.0, 0.25, 0.5, 0.5, 0.75, 1.0), (0.0, 0.25, 0.5, 0.75, 1.0))
    )
    np.testing.assert_allclose(with_pause.state, without.state, atol=STATES)


def test_all_stop_after_two_steps_if_anything_is_settled():
    model, ids = model_of(TINY), tokens()
    found = solved(model, ids, EarlyExit(8, 1e3))
    assert float(found.evaluations.attention) == 2.0
    first, second = states(model, ids, 8)[1:3]
    np.testing.assert_allclose(found.state, second + 6 * (second - first), rtol=1e-4, atol=1e-4)


def test_a_token_does_not_look_ahead():
    """Whether and where later tokens stop does not reach earlier ones, not even their last digit."""
    model, ids = model_of(TINY), tokens(batch=1)
    run = jax.jit(lambda ids: model.integrate(ids, steps=EarlyExit(12, 0.3)))
    one, *others = (run(ids.at[0, 8:].set((ids[0, 8:] + more) % 40)) for more in range(12))
    assert any(other.evaluations.attention != one.evaluations.attention for other in others)
    for other in others:
        np.testing.assert_array_equal(other.state[0, :8], one.state[0, :8])


def test_a_scheme_that_carries_more_than_the_state_is_refused():
    with pytest.raises(BadInput, match="carries the state alone, such as euler, but Reversible carries more.$"):
        model_of(KINDS["time, reversible"]).integrate(tokens(), steps=EarlyExit(4, 0.1))
