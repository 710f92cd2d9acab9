"""The test of explanations: its parts against definitions, and that it finds what is planted."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from diffeqformer.analysis.correlation import spearman
from diffeqformer.analysis.faithfulness import (
    METHODS,
    RANDOM,
    Faithfulness,
    _log_p,
    _of_context,
    explain,
    faithfulness,
    interval,
    top,
)
from diffeqformer.analysis.lyapunov import populated
from diffeqformer.errors import BadInput
from tests.models import TINY, logits, model_of

SPLIT = np.random.default_rng(3).integers(0, TINY.vocabulary or 0, 500).astype(np.uint16)


def test_ranks_and_correlation():
    assert spearman(np.arange(5.0), np.exp(np.arange(5.0))) == pytest.approx(1.0)
    assert spearman(np.arange(5.0), -np.arange(5.0)) == pytest.approx(-1.0)
    assert spearman(np.ones(5), np.arange(5.0)) == 0.0
    assert spearman(np.array([1.0, 2, 3, 4]), np.array([1.0, 3, 2, 4])) == pytest.approx(0.8)


def test_top():
    found = top(np.array([0.5, 2.0, -1.0, 2.0]), np.array([1, 2, 4]))
    assert found.tolist() == [[False, True, False, False], [False, True, False, True], [True] * 4]


def test_a_known_model_is_explained():
    """A log-probability that is a sum over positions: its own terms explain it perfectly, in every measure."""
    value = np.random.default_rng(0).normal(size=(6, 2))
    ids, drawn = np.zeros(6, np.int32), np.ones((2, 6), np.int32)
    log_p = lambda texts: value[np.arange(6), texts].sum(-1)
    falls = value[:, 0] - value[:, 1]
    scores = np.stack([falls] * len(METHODS))
    scores[METHODS.index(RANDOM)] = -falls
    counts = np.array([1, 2, 6])
    strength, direction, deletion, insertion = _of_context(log_p, ids, scores, drawn, counts)
    assert np.allclose(direction[:-1], 1.0) and direction[-1] == pytest.approx(-1.0)
    assert strength[METHODS.index("occlusion")] == pytest.approx(1.0)
    largest = np.sort(falls)[::-1]
    assert np.allclose(deletion[0], [largest[0], largest[:2].sum(), falls.sum()])
    assert np.allclose(insertion[0], deletion[0])
    assert np.allclose(deletion[-1, -1], falls.sum())


def test_log_probabilities_are_the_models():
    model = populated(model_of(TINY))
    texts = np.random.default_rng(1).integers(0, TINY.vocabulary or 0, (70, 8)).astype(np.int32)
    every = np.asarray(logits(model, jnp.asarray(texts)))[:, -1].astype(np.float64)
    every -= np.log(np.exp(every).sum(-1, keepdims=True))
    assert np.allclose(_log_p(model, texts), every[:, every[0].argmax()], atol=1e-5)


def test_tokens_may_be_a_list(monkeypatch):
    flat = SimpleNamespace(scores={method: np.ones((1, 3)) for method in METHODS})
    monkeypatch.setattr("diffeqformer.analysis.faithfulness.explain", lambda *_, **__: flat)
    found, wanted = (faithfulness(model_of(TINY), x, contexts=2, length=3, draws=1) for x in (SPLIT.tolist(), SPLIT))
    assert np.array_equal(found.deletion, wanted.deletion)


@pytest.mark.slow
def test_whole_test_on_a_model():
    model = model_of(TINY)
    settings = {"contexts": 3, "length": 6, "draws": 2, "points": 4, "probes": 4, "tangents": 2}
    found = faithfulness(model, SPLIT, **settings, seed=5)
    assert found.strength.shape == (3, len(METHODS)) and found.counts.tolist() == [1, 2, 4, 6]
    for values in found.measures().values():
        assert np.isfinite(values).all()
    assert (found.starts >= 0).all() and (found.starts + 6 <= len(SPLIT)).all()
    again = faithfulness(model, SPLIT, **settings, seed=5)
    assert all(np.array_equal(a, b) for a, b in zip(found.arrays().values(), again.arrays().values(), strict=True))
    assert not np.array_equal(found.starts, faithfulness(model, SPLIT, **settings, seed=6).starts)
    assert len(found.rows()) == len(METHODS) and "Lyapunov" in found.verdict()
    # All replaced is all replaced, in whatever order.
    assert np.allclose(found.deletion[:, :, -1], found.deletion[:, :1, -1])
    assert np.allclose(found.insertion[:, :, -1], found.deletion[:, :, -1])
    scores = explain(model, jnp.asarray(SPLIT[:6], jnp.int32), (2, 5), points=4).scores
    assert tuple(scores) == METHODS and all(np.isnan(rows[0, 3:]).all() for rows in scores.values())


def test_interval_and_verdict():
    draw = np.random.default_rng(0)
    values = draw.normal(size=(400, 1))
    low, high = interval(values)
    assert low[0] < values.mean() < high[0]
    assert high[0] - low[0] == pytest.approx(2 * 1.96 * values.std() / 20, rel=0.1)
    strength = draw.normal(size=(50, len(METHODS))) * 0.1
    strength[:, METHODS.index("occlusion")] += 0.9
    curves = np.zeros((50, len(METHODS), 2))
    counts = np.array([1, 2])
    found = Faithfulness(METHODS, np.arange(50), counts, strength, strength, curves, curves)
    assert found.ranking("strength")[0] == "occlusion" and found.lead("strength").low > 0.5
    assert "Lyapunov does not win" in found.verdict() and "a clear lead" in found.verdict()
    assert found.headline().startswith("On which tokens a prediction rests is told best by occlusion, of ")
    assert found.headline().endswith("is clearly behind.")
    others = found.ranking("strength", ("occlusion",))
    assert "occlusion" not in others and f"{others[0]} stands before {others[1]}: " in found.verdict()


@pytest.mark.parametrize(
    "settings, names",
    [
        ({"contexts": 1}, "contexts is 1"),
        ({"length": 1}, "length is 1"),
        ({"length": 13}, "length is 13, but must be at most the model's context, 12"),
        ({"draws": 0, "length": 6}, "draws is 0"),
    ],
)
def test_bad_input(settings, names):
    with pytest.raises(BadInput, match=names):
        faithfulness(model_of(TINY), SPLIT, **settings)
    with pytest.raises(BadInput, match="the split has 3 tokens"):
        faithfulness(model_of(TINY), SPLIT[:3], length=6)
