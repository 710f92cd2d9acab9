"""Every analysis of a model whose first step is long: each time that is reported or drawn is the grid's."""

import dataclasses

import equinox as eqx
import jax
import numpy as np
import pytest

from diffeqformer.analysis.attribution import attribute
from diffeqformer.analysis.end_to_end import end_to_end
from diffeqformer.analysis.gathering import watch_states
from diffeqformer.analysis.induction import measure_induction
from diffeqformer.analysis.lyapunov import pairwise
from diffeqformer.analysis.spectra import spectra
from diffeqformer.analysis.watch import watch_attention
from diffeqformer.studies.clusters_figures import state_measures
from diffeqformer.studies.induction_figures import induction_scatter
from diffeqformer.studies.spectra_figures import flow, real_parts, summaries
from tests.models import KINDS, TINY, model_of, of_dtype, tokens
from tests.studies.pictures import points

LONG = dataclasses.replace(TINY, first_step=0.7)
FEW = {"sequences": 2, "length": 4, "repeats": 3, "samples": 5}


@pytest.fixture(params=[(None, [0.0, 0.7, 0.85, 1.0]), (4, [0.0, 0.7, 0.8, 0.9, 1.0])], ids=["as trained", "4 steps"])
def steps_and_edges(request):
    steps, edges = request.param
    np.testing.assert_allclose(model_of(LONG).grid(steps).edges, edges)  # what all below is held against
    return steps, np.array(edges)


def test_spectra(steps_and_edges):
    steps, edges = steps_and_edges
    found = spectra(model_of(LONG), times=5, steps=steps)
    np.testing.assert_allclose(found.edges, edges)
    for mask in (found.attention_step, found.feed_forward_step):
        np.testing.assert_allclose(found.times[mask], edges[1:])
    dots = flow("m", found, "QK").axes[0].collections[-1]
    np.testing.assert_allclose(np.unique(dots.get_array()), edges[1:])
    marks = real_parts([("m", found)], "QK").subfigs[0].axes[0].lines[0]
    np.testing.assert_allclose(points(marks)[:, 0], edges[1:])
    thick = summaries([("m", found)]).axes[0].lines[-1]
    np.testing.assert_allclose(points(thick)[thick.get_markevery(), 0], edges[1:])


@pytest.mark.parametrize("kind", ["vanilla", "macaron"])
def test_spectra_of_a_table_of_layers(kind):
    found = spectra(model_of(dataclasses.replace(KINDS[kind], first_step=0.7)))
    edges = np.array([0.0, 0.7, 0.85, 1.0])
    np.testing.assert_allclose(found.edges, edges)
    assert ((found.times[found.attention_step] > edges[:-1]) & (found.times[found.attention_step] <= edges[1:])).all()
    columns = real_parts([("m", found)], "QK").subfigs[0].axes[0].collections[0].get_coordinates()[0, :, 0]
    np.testing.assert_allclose(columns, edges)


def test_induction(steps_and_edges):
    steps, edges = steps_and_edges
    found = measure_induction(model_of(LONG), steps=steps, **FEW)
    np.testing.assert_allclose(found.times, edges[1:])
    dots = induction_scatter(found).axes[0].collections[0]
    np.testing.assert_allclose(np.unique(dots.get_array()), edges[1:])


def test_hidden_states(steps_and_edges):
    steps, edges = steps_and_edges
    found = watch_states(model_of(LONG), np.asarray(tokens()), steps=steps)
    np.testing.assert_allclose(found.times, edges)
    for axis in state_measures(found, (0.5,)).axes:
        np.testing.assert_allclose(points(axis.lines[0])[:, 0], edges)


def test_sensitivities_are_those_of_the_steps_that_are_taken():
    """Of a single token, the exponents of all directions add up to log |det dx(1)/dx(0)| of the model's own flow."""
    ids, narrow = tokens(1, 1)[0], model_of(LONG)
    with jax.enable_x64(True):
        model = of_dtype(narrow, np.float64)
        whole = eqx.filter_jit(lambda model, x: jax.jacfwd(lambda x: model.flow(x[None, None], steps=4).state[0, 0])(x))
        volume = np.linalg.slogdet(np.asarray(whole(model, model.embed(ids[None])[0, 0])))[1]
        width = model.config.width
        settings = {"steps": 4, "seed": 1}
        assert pairwise(model, ids, (0,), tangents=width, **settings).exponents.sum() == pytest.approx(volume, abs=1e-9)
        assert end_to_end(model, ids, (0,), probes=width, **settings).exponents.sum() == pytest.approx(volume, abs=1e-9)


def test_attention_is_that_of_the_states_that_are_passed_through():
    model, ids = model_of(LONG), tokens(1)
    seen = eqx.filter_jit(lambda m, ids: watch_attention(m, ids, lambda field, weights, x: x, 4))(model, ids)
    states = eqx.filter_jit(lambda m, ids: m.trajectory(ids, steps=4))(model, ids)
    np.testing.assert_allclose(seen[:, 0], states[:-1], atol=1e-5)
    pattern = np.asarray(eqx.filter_jit(lambda m, ids: watch_attention(m, ids, steps=4))(model, ids))
    found = attribute(model, ids[0], (11,), points=2, steps=4)
    np.testing.assert_allclose(found.scores["attention"][0], pattern[:, 0, 0, :, 11].mean((0, 1)), atol=1e-5)
