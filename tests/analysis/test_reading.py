"""One text read step by step, against the forward pass and the analyses that look at all of it at once."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffeqformer.analysis.reading import eigenvalues, lens, looks, most_likely, walk
from diffeqformer.analysis.watch import watch_attention
from diffeqformer.model.solving import with_scheme
from diffeqformer.ode.grid import END_OF_STEP
from diffeqformer.ode.weights import SharedWeights, WeightSource
from tests.cases import slow
from tests.models import KINDS, TINY, model_of, states, tokens
from tests.tolerances import STATES

IDS = np.asarray(tokens(1, 9))[0]


# At 11 steps weights are generated in two parts.
@pytest.mark.parametrize(
    ("kind", "steps"),
    [
        ("macaron", 3),
        ("knots, normalised", 11),
        ("levels", 3),
        *slow(("diffeqformer", 11), ("shared", 11), ("time, reversible", 3)),
    ],
)
def test_steps_one_by_one_are_the_forward_pass(kind, steps):
    model = model_of(KINDS[kind])
    taken = walk(model, IDS, steps=steps)
    np.testing.assert_allclose(np.stack(taken.states), states(model, jnp.asarray(IDS)[None], steps), atol=STATES)
    found = lens(taken, np.append(IDS[1:], 0))
    ids, p = most_likely(taken, steps, 4)
    assert (ids[0], len(ids)) == (found.top[-1, 4], 10) and (np.diff(p) <= 0).all()
    np.testing.assert_allclose(p[0], found.probability[-1, 4], rtol=STATES)
    every = np.asarray(watch_attention(model, jnp.asarray(IDS)[None], steps=steps))  # step, evaluation, 1, head, query
    for step in (2, steps):
        np.testing.assert_allclose(looks(taken, step, 6), every[step - 1].mean(0)[0, :, 6], atol=STATES)


def test_movements_of_layers_are_what_is_added_however_many_are_left_out():
    """LayerDrop's layers add what they give, as steps of 1: at half of its depth too the halves add up to the move."""
    model = model_of(dataclasses.replace(TINY, weights="layerdrop", scheme="residual"))
    for steps in (TINY.steps, TINY.steps - 1):
        taken = walk(model, IDS, steps=steps)
        table = model.weights.table(model.grid(steps), model.scheme.nodes)
        first = jax.tree.map(lambda leaf: leaf[0, 0], table)
        attended, _ = model.field.attention(first, taken.states[0])
        np.testing.assert_allclose(
            taken.moved[0, 0], jnp.square(attended).mean((0, 2)), rtol=1e3 * float(jnp.finfo(jnp.float32).eps)
        )


class WeakerByDepth(eqx.Module):
    """A user's source whose weights depend on the whole grid."""

    base: WeightSource

    def at(self, times):
        return self.base.at(times)

    def table(self, grid, nodes=END_OF_STEP):
        return jax.tree.map(lambda leaf: leaf / grid.steps, self.base.table(grid, nodes))


class SharedByDepth(SharedWeights):
    """The same as a subclass of the library's."""

    def table(self, grid, nodes=END_OF_STEP):
        return jax.tree.map(lambda leaf: leaf / grid.steps, super().table(grid, nodes))


@pytest.mark.parametrize("own", [WeakerByDepth, lambda source: SharedByDepth(source.row)])
def test_a_source_that_looks_at_the_whole_grid_is_asked_for_all_of_it(own):
    model = model_of(KINDS["shared"])
    model = model.replace(weights=own(model.weights))
    taken = walk(model, IDS, steps=11)
    np.testing.assert_allclose(np.stack(taken.states), states(model, jnp.asarray(IDS)[None], 11), atol=STATES)


def test_eigenvalues_are_those_of_the_products():
    model = model_of(TINY)
    weights = model.weights.at(np.array([2 / 3]))
    query_key_value = np.asarray(weights.attention.query_key_value.weight[0], np.float64)
    query, key = (query_key_value[:, 16 * part + 8 : 16 * part + 16] for part in (0, 1))  # of the second head
    value, output = query_key_value[:, 40:48], np.asarray(weights.attention.output.weight[0, 8:], np.float64)
    found = eigenvalues(walk(model, IDS), 2)
    for name, product in (("QK", query @ key.T), ("OV", value @ output)):
        wanted = np.linalg.eigvals(product)
        largest = wanted[np.argsort(-np.abs(wanted))[:8]]
        np.testing.assert_allclose(np.sort_complex(found[name][1]), np.sort_complex(largest), atol=1e-6)


def test_a_tolerance_is_read_at_the_edges_of_the_grid():
    tolerant = with_scheme(model_of(KINDS["shared"]), rtol=1e-3)
    taken = walk(tolerant, IDS)
    assert taken.moved.shape == (0, 2, 9) and not taken.carries
    np.testing.assert_allclose(np.stack(taken.states), states(tolerant, jnp.asarray(IDS)[None]), atol=STATES)
