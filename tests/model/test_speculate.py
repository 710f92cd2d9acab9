"""Drafts by a shallow reading change the time that text takes, not the text."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffeqformer.errors import BadInput
from diffeqformer.model.generate import generate, probabilities
from diffeqformer.model.speculate import speculate
from tests.cases import slow
from tests.models import KINDS, TINY, logits, model_of, tokens

DRAFTS = [("diffeqformer", 3), ("time, llama, nested norm", 3), ("one mlp, strang", 1)]
"""Every kind of populated model, and both lengths; the other pairs are slow."""
MORE_DRAFTS = [
    ("diffeqformer", 1),
    ("time, llama, nested norm", 1),
    ("one mlp, strang", 3),
    ("shared", 1),
    ("shared", 3),
]


@pytest.mark.parametrize(("kind", "draft_length"), [*DRAFTS, *slow(*MORE_DRAFTS)])
def test_greedy_text_is_that_of_plain_decoding(kind, draft_length):
    model, ids = model_of(KINDS[kind]), tokens(batch=3, positions=2)
    plain = generate(model, ids, 10, key=jax.random.key(0), steps=6, temperature=0.0)
    deep, draft = model.populate(6), model.populate(2)
    found = speculate(deep, draft, ids, 10, key=jax.random.key(1), draft_length=draft_length, temperature=0.0)
    assert np.asarray(found.tokens).tolist() == np.asarray(plain).tolist()
    assert (found.accepted <= found.drafted).all() and (found.rounds <= 9).all()
    assert (found.rounds + found.accepted >= 9).all()  # a round gives its accepted tokens and one more; one is first


def test_a_draft_is_no_longer_than_the_text():
    model, ids = model_of(TINY), tokens(1, 3)
    found = speculate(model.populate(4), model.populate(2), ids, 4, key=jax.random.key(0), draft_length=10 * 8)
    assert found.tokens.shape == (1, 4)


def test_a_draft_that_is_always_right_is_always_accepted():
    """Shared weights without attention or feed-forward: every depth reads alike."""
    model = model_of(KINDS["shared"])
    model = dataclasses.replace(model, weights=jax.tree.map(lambda leaf: 0.0 * leaf, model.weights))
    found = speculate(model.populate(4), model.populate(1), tokens(1, 3), 9, key=jax.random.key(0), draft_length=3)
    assert found.acceptance == 1.0 and found.rounds.tolist() == [2]


def sampled(sampling: dict, rows: int = 3000) -> tuple[np.ndarray, np.ndarray]:
    """Counts of the two tokens behind a prompt, by speculation; and their exact probabilities at 5 steps."""
    model, prompt = model_of(TINY), tokens(1, 3)
    deep, draft = model.populate(5), model.populate(1)
    found = speculate(deep, draft, jnp.tile(prompt, (rows, 1)), 3, key=jax.random.key(0), draft_length=2, **sampling)
    first, second = np.asarray(found.tokens[:, 1]), np.asarray(found.tokens[:, 2])
    counts = np.zeros((40, 40))
    np.add.at(counts, (first, second), 1)

    def exact(ids: jax.Array) -> np.ndarray:
        return np.asarray(probabilities(logits(model, ids, steps=5)[:, -1], **sampling), np.float64)

    start = exact(prompt)[0]
    one = exact(jnp.concatenate([jnp.tile(prompt, (40, 1)), jnp.arange(40)[:, None]], 1))
    pairs = [[jnp.tile(prompt, (40, 1)), jnp.full((40, 1), a), jnp.arange(40)[:, None]] for a in range(40)]
    two = np.stack([exact(jnp.concatenate(parts, 1)) for parts in pairs])
    return counts, np.einsum("a,ab,abc->bc", start, one, two)


@pytest.mark.parametrize("sampling", [{"temperature": 0.7, "top_k": 12}, *slow({"temperature": 1.0}, {"top_p": 0.6})])
def test_sampled_text_has_the_distribution_of_plain_decoding(sampling):
    """Pearson's chi-squared over the second and third token, against probabilities computed without drafts."""
    counts, expected = sampled(sampling)
    expected = expected * counts.sum()
    often = expected > 5
    statistic = ((counts - expected)[often] ** 2 / expected[often]).sum()
    degrees = often.sum() - 1
    assert abs(statistic - degrees) < 5 * np.sqrt(2 * degrees)
    assert counts[expected == 0].sum() == 0


def test_what_cannot_draft_is_refused():
    model, short = model_of(TINY), model_of(dataclasses.replace(TINY, context=8))
    ask = lambda draft, **settings: speculate(model, draft, tokens(1, 3), 4, key=jax.random.key(0), **settings)
    with pytest.raises(BadInput, match="the draft has model.context 8, but the model that checks it has"):
        ask(short)
    with pytest.raises(BadInput, match="the draft's length is 0, but must be at least 1"):
        ask(model.populate(2), draft_length=0)
