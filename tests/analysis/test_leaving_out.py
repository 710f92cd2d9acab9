"""Layers are left out one by one, each time the one without which the loss on a text is lowest."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from diffeqformer.analysis.leaving_out import kept_order
from diffeqformer.errors import BadInput
from diffeqformer.evaluation.perplexity import evaluate
from diffeqformer.model.lift import left_out, of_rows
from tests.models import KINDS, logits, model_of, tokens
from tests.tolerances import LOSS, STATES

VANILLA = replace(KINDS["vanilla"], steps=4)
TEXTS = np.random.default_rng(0).integers(0, VANILLA.vocabulary or 0, (5, VANILLA.context + 1)).astype(np.int32)


def loss(model) -> float:
    return evaluate(model, [(TEXTS, np.ones(TEXTS[:, 1:].shape, bool))]).loss


def test_the_order_is_that_of_leaving_out_what_the_loss_can_do_without():
    model = model_of(VANILLA)
    nothing = jax.tree.map(lambda leaf: leaf.at[2].set(0.0), model.weights.layers)  # a layer that adds nothing
    model = model.replace(weights=replace(model.weights, layers=nothing))
    found = kept_order(model, TEXTS, batch=2)
    assert sorted(found.order) == [0, 1, 2, 3] and [*found.losses] == [4, 3, 2, 1]
    assert found.losses[4] == pytest.approx(loss(model), rel=LOSS)
    rows = [0, 1, 2, 3]
    for steps in (3, 2, 1):
        others = [[row for row in rows if row != one] for one in rows]
        losses = [loss(of_rows(model, other)) for other in others]
        rows = others[int(np.argmin(losses))]
        assert sorted(found.order[:steps]) == rows
        assert found.losses[steps] == pytest.approx(min(losses), rel=LOSS)


def test_a_model_that_leaves_layers_out_has_those_of_its_order():
    model, ids = model_of(VANILLA), tokens()
    kept = left_out(model, (2, 0, 3, 1))
    assert kept.config.weights.nested and kept.config.weights.order == (2, 0, 3, 1)
    np.testing.assert_allclose(logits(kept, ids), logits(model, ids), atol=STATES)
    for steps, rows in ((3, [0, 2, 3]), (2, [0, 2]), (1, [2])):
        np.testing.assert_allclose(logits(kept, ids, steps), logits(of_rows(model, rows), ids), atol=STATES)


def test_only_tables_of_whole_steps_leave_layers_out():
    for config in (KINDS["parallel blocks"], replace(VANILLA, horizon=2.0)):
        with pytest.raises(BadInput, match="but layers can only be left out of a table of 'lie-trotter' steps"):
            kept_order(model_of(config), TEXTS)
    model = model_of(VANILLA)
    broken = model.replace(weights=jax.tree.map(lambda leaf: leaf * np.nan, model.weights))
    with pytest.raises(BadInput, match="the loss of this model on the text is nan, but must be finite"):
        kept_order(broken, TEXTS)
    with pytest.raises(
        BadInput, match=r"texts have the shape \(5, 1\), but must have \(text, position\), of two tokens at"
    ):
        kept_order(model, TEXTS[:, :1])
