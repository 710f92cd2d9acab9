"""Controls of what makes time-dependent weights good: each differs in what it says, and in nothing else."""

from typing import Any

import equinox as eqx
import jax
import numpy as np

from diffeqformer.config import ModelConfig
from diffeqformer.model.build import build
from diffeqformer.model.count import count
from diffeqformer.studies.paper.controls import faster_table, free_rows


def test_controls_start_as_the_models_that_they_are_compared_with():
    key, ids, models = jax.random.key(0), jax.numpy.arange(8)[None], []
    for control, weights in ((free_rows, "time"), (faster_table, "layer")):
        sections: Any = {"weights": weights, "scheme": "euler"}
        config = ModelConfig(vocabulary=32, width=16, heads=2, steps=3, context=8, **sections)
        plain, own = build(config, key), control(config, key)
        np.testing.assert_allclose(own(ids), plain(ids), atol=1e-6)
        models.append((plain, own))
    (_, free), (table, faster) = models
    assert count(faster) == count(table)  # the same numbers, which are moved three times as far
    for moved, weight in zip(jax.tree.leaves(faster.weights), jax.tree.leaves(table.weights), strict=True):
        np.testing.assert_allclose(3 * moved, weight, rtol=1e-6)
    rows = lambda model: model.weights.networks.attention.output.network.rows
    other = eqx.tree_at(rows, free, rows(free).at[0].add(1.0))
    before, after = (one.weights.table(one.grid()).attention.output.weight for one in (free, other))
    # A row is its own step's: no other step's weights follow it.
    assert [np.array_equal(a, b) for a, b in zip(before, after, strict=True)] == [False, True, True]
