"""Attributions against plain gradients and plain forward passes in float64."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from diffeqformer.analysis.attribution import ATTRIBUTIONS, attribute
from diffeqformer.analysis.lyapunov import populated
from diffeqformer.analysis.watch import watch_attention
from diffeqformer.errors import BadInput, RunFailed
from tests.cases import slow
from tests.models import KINDS, TINY, model_of, of_dtype, tokens

POSITIONS, OUTPUTS = 7, (3, 6)
LLAMA = "vanilla llama, grouped queries"


def text():
    return tokens(1, POSITIONS)[0]


@pytest.mark.parametrize(
    ("kind", "normed"),
    [("diffeqformer", False), (LLAMA, True), *slow(("diffeqformer", True), (LLAMA, False))],
)
def test_every_method_against_its_definition(kind, normed):
    model, ids = model_of(replace(KINDS[kind], embedding_norm=normed)), text()
    with jax.enable_x64(True):
        model = populated(of_dtype(model, np.float64))
        found = attribute(model, ids, OUTPUTS, points=512)  # a random model is rough
        log_p = jax.jit(lambda x: jax.nn.log_softmax(model.unembed(model.normalise(model.flow(x[None]).state[0]))))
        x, own = model.embed(ids[None])[0], model.embedding.positions
        at_0 = np.asarray(model.embedding.tokens)[:, None] + (0 if own is None else np.asarray(own)[None, :POSITIONS])
        at_0 = np.broadcast_to(at_0, (len(at_0), POSITIONS, at_0.shape[-1]))  # every token, at every position
        if normed:
            at_0 = at_0 / np.sqrt((at_0**2).mean(-1, keepdims=True) + model.config.norm_epsilon)
        assert np.allclose(at_0[np.asarray(ids), np.arange(POSITIONS)], x, atol=1e-12)
        baseline = at_0.mean(0)
        whole, empty, slope = log_p(x), log_p(baseline), jax.jit(jax.jacrev(log_p))(x)
        attention = np.asarray(jax.jit(watch_attention)(model, ids[None]))[:, :, 0].mean(2)  # (step, evaluation, q, k)
        for row, output in enumerate(OUTPUTS):
            target = int(np.argmax(whole[output]))
            assert target == found.targets[row]
            assert np.isclose(found.log_probabilities[row], whole[output, target])
            seen = slice(0, output + 1)
            mine = {name: scores[row] for name, scores in found.scores.items()}
            products = np.asarray((slope[output, target] * x).sum(-1))
            assert np.allclose(mine["gradient x input"][seen], products[seen], atol=1e-10)
            for position in range(output + 1):
                changed = log_p(x.at[position].set(baseline[position]))
                fall = whole[output, target] - changed[output, target]
                assert np.isclose(mine["occlusion"][position], fall, atol=1e-10)
            complete = whole[output, target] - empty[output, target]
            assert np.isclose(np.nansum(mine["integrated gradients"]), complete, atol=1e-8)
            assert np.isclose(found.incompleteness[row], np.nansum(mine["integrated gradients"]) - complete, atol=1e-9)
            assert np.allclose(mine["attention"][seen], attention.mean((0, 1))[output, seen])
            assert np.allclose(mine["attention, last step"][seen], attention[-1].mean(0)[output, seen])
            rolled = np.eye(POSITIONS)
            for a in attention.reshape(-1, POSITIONS, POSITIONS):
                rolled = (a + np.eye(POSITIONS)) / 2 @ rolled
            assert np.allclose(mine["attention rollout"][seen], rolled[output, seen])
            assert all(np.isnan(scores[output + 1 :]).all() for scores in mine.values())


def test_in_bfloat16_no_token_counts_for_nothing():
    found = attribute(model_of(replace(TINY, compute_dtype="bfloat16")), text(), OUTPUTS, points=1)
    exact = attribute(model_of(TINY), text(), OUTPUTS, points=1)
    assert np.array_equal(found.scores["occlusion"], exact.scores["occlusion"], equal_nan=True)
    assert np.all(found.scores["occlusion"][0, : OUTPUTS[0]] != 0)


def test_predictions_that_are_not_finite_are_told():
    model = model_of(TINY)
    broken = model.replace(embedding=jax.tree.map(lambda leaf: leaf * np.nan, model.embedding))
    with pytest.raises(RunFailed, match="predictions of the model are not finite"):
        attribute(broken, text(), OUTPUTS, points=1)


def test_completeness_improves_with_points():
    model, ids = populated(model_of(TINY)), text()
    missed = [abs(attribute(model, ids, [6], points=points).incompleteness[0]) for points in (2, 32)]
    assert missed[1] < 1e-3 and missed[1] <= missed[0] + 1e-5


def test_one_output_alone_is_the_same(monkeypatch):
    model, ids = populated(model_of(TINY)), text()
    whole = attribute(model, ids, OUTPUTS, points=4)
    monkeypatch.setattr("diffeqformer.analysis.attribution.BATCH_NUMBERS", 3 * ids.size * TINY.width)
    alone = attribute(model, ids, [3], points=4)
    assert tuple(whole.scores) == ATTRIBUTIONS
    for name in ATTRIBUTIONS:
        assert np.allclose(whole.scores[name][0], alone.scores[name][0], atol=1e-5, equal_nan=True)
    assert "attention_last_step" in alone.arrays()


def test_bad_input():
    with pytest.raises(BadInput, match="output token 9 does not exist"):
        attribute(model_of(TINY), text(), [9])
    with pytest.raises(BadInput, match="points is 0"):
        attribute(model_of(TINY), text(), [0], points=0)
