"""Behaviours of heads against sums written out, and heads whose behaviour is known."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import spearmanr

from diffeqformer.analysis.correlation import spearman
from diffeqformer.analysis.induction import (
    direct_logits,
    lead,
    measure_induction,
    prefix_targets,
    repeated_sequences,
)
from diffeqformer.analysis.inference import INFERENCE, Correlation, Induction, correlate, estimate
from diffeqformer.analysis.spectra import spectra
from diffeqformer.analysis.watch import watch_attention
from diffeqformer.config import LlamaConfig, OwnConfig
from diffeqformer.errors import BadInput
from diffeqformer.studies.induction import known
from tests.models import KINDS, TINY, Wrapped, model_of, programs

SIZES = {"sequences": 3, "length": 4, "repeats": 3}


def test_sequences_repeat_and_their_tokens_differ():
    ids = repeated_sequences(range(10, 40), seed=1, **SIZES)
    assert ids.shape == (3, 12) and ids.min() >= 10
    assert (ids[:, :4] == ids[:, 4:8]).all() and (ids[:, :4] == ids[:, 8:]).all()
    assert all(len(set(row.tolist())) == 4 for row in ids)


def test_prefix_targets_are_the_positions_behind_earlier_copies():
    ids, found = repeated_sequences(range(30), **SIZES)[0], prefix_targets(4, 3)
    for query in range(12):
        behind = {k for k in range(1, query + 1) if ids[k - 1] == ids[query] and k - 1 < query}
        assert set(np.flatnonzero(found[query])) == (behind if query >= 4 else set())


@pytest.mark.parametrize("kind", ["diffeqformer", "vanilla llama, grouped queries"])
def test_behaviours_are_the_sums_written_out(kind):
    model = model_of(KINDS[kind])
    found = measure_induction(model, seed=2, samples=10, **SIZES)
    ids = repeated_sequences(range(TINY.vocabulary or 0), seed=2, **SIZES)
    patterns = np.asarray(jax.jit(watch_attention)(model, jnp.asarray(ids)))[:, 0]  # (step, batch, head, query, key)
    states = eqx.filter_jit(lambda model, ids: model.trajectory(ids))(model, jnp.asarray(ids))
    blocks = model.weights.at(model.grid().times())
    table = np.asarray(model.embedding.tokens if model.head is None else model.head, np.float64)
    scale = np.asarray(model.final_norm.scale, np.float64)
    sign = lambda own, others: np.mean([np.sign(own - other) for other in others])
    for step in range(3):
        block = jax.tree.map(lambda leaf, step=step: leaf[step], blocks)
        outputs = np.asarray(jax.jit(model.field.value_outputs)(block, states[step]), np.float64)
        for head in range(model.config.heads):
            matching, copying, following = [], [], []
            for b, row in enumerate(ids):
                logits = outputs[b, :, head]
                logits = logits - (0 if model.final_norm.shift is None else logits.mean(-1, keepdims=True))
                logits = (logits * scale) @ table.T
                for query in range(12):
                    others = [t for t in row[:4] if t != row[query]]
                    copying.append(sign(logits[query, row[query]], logits[query, others]))
                    if query >= 4:
                        pattern = patterns[step, b, head, query]
                        matching.append(sum(pattern[k] for k in range(1, query + 1) if row[k - 1] == row[query]))
                        given, following_token = pattern.astype(np.float64) @ logits, row[(query + 1) % 4]
                        others = [t for t in row[:4] if t != following_token]
                        following.append(sign(given[following_token], given[others]))
            assert found.behaviours["prefix matching"][step, head] == pytest.approx(np.mean(matching), abs=1e-5)
            assert found.behaviours["copying"][step, head] == pytest.approx(np.mean(copying), abs=0.02)
            assert found.behaviours["next token"][step, head] == pytest.approx(np.mean(following), abs=0.02)


@pytest.mark.parametrize("field", [TINY.field, LlamaConfig(head_width=18)], ids=["gpt", "heads wider than the model"])
def test_spectra_beside_behaviours_are_those_of_the_spectra_analysis(field):
    model = model_of(replace(TINY, field=field))
    found, own = measure_induction(model, samples=10, **SIZES), spectra(model, times=2)
    for name in ("QK", "OV"):
        at = own.attention_step
        np.testing.assert_array_equal(found.summaries[f"{name} positive share"], own.pairs[name].positive_share[at])
        np.testing.assert_allclose(found.summaries[f"{name} sum ratio"], own.pairs[name].sum_ratio[at], atol=1e-4)
        np.testing.assert_allclose(found.summaries[f"{name} spectral radius"], own.pairs[name].radius[at], rtol=1e-4)


def test_a_head_that_writes_what_it_reads_copies():
    model = model_of(TINY)
    rows = jnp.asarray(np.eye(5, 16, dtype=np.float32))[None]
    outputs = jnp.asarray(np.eye(5, 16, dtype=np.float32))[None, :, None]
    logits = direct_logits(model, outputs, rows)
    assert (lead(logits, jnp.arange(5)) == 1).all()
    assert (lead(-logits, jnp.arange(5)) == -1).all()


def test_rank_correlation_is_scipys():
    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 5, (2, 30)).astype(float)
    assert spearman(x, y) == pytest.approx(spearmanr(x, y).statistic)
    assert spearman(x, np.ones(30)) == 0
    same = correlate("a", x.reshape(5, 6), "b", x.reshape(5, 6), crossed=True, samples=20)
    assert same.rho == pytest.approx(1) and same.interval == pytest.approx((1, 1))


@pytest.mark.parametrize("y", [np.zeros((2, 2)), np.arange(2.0)[None]], ids=["a constant side", "two points"])
def test_what_ranks_nothing_has_no_correlation_and_is_not_called_unclear(y):
    none = correlate("copying", np.arange(y.size * 1.0).reshape(y.shape), "OV positive share", y, crossed=True)
    assert np.isnan([none.rho, *none.interval, none.within, *none.within_interval]).all()
    assert estimate(none.rho, none.interval) == "–"
    test = replace(none, behaviour=INFERENCE[0], summary=INFERENCE[1])
    heads = {"prefix matching": np.full(y.shape, 0.5), "copying": y}
    found = Induction(np.ones(len(y)), heads, {}, (none, test), 0.1, 5.0, 1.0, 3.5, 4, 3, 2)
    assert "cannot be tested: there are fewer than three or all are alike." in found.verdict()
    assert found.table().rows[0][1:] == ("–",) * 4
    assert "Copying, up to" in (said := replace(found, loss_later=5.0).verdict()) and said.endswith("or all are alike.")
    assert known(none) == {"behaviour": "copying", "summary": "OV positive share"} | dict.fromkeys(
        ("rho", "interval", "within", "within_interval")
    )


def test_intervals_know_that_a_heads_steps_and_a_steps_heads_go_together():
    """What depends on the head alone, or on the step alone, has as many independent values as there are of those."""
    draw = np.random.default_rng(0).normal
    width = lambda x, y, crossed: np.ptp(correlate("a", x, "b", y, crossed=crossed, samples=300).interval)
    for of in ((1, 5), (12, 1)):
        x, y = (draw(size=of) + 0.01 * draw(size=(12, 5)) for _ in range(2))
        assert width(x, y, True) > 1.5 * width(x, y, False)


def test_points_are_drawn_of_ranks_among_heads_too_where_the_layers_are_a_table():
    """Trials of independent heads spread as widely as intervals are; the pigeonhole's are 1.5 times as wide."""
    draw, found = np.random.default_rng(7), []
    for seed in range(60):
        x = draw.normal(size=(6, 8))
        found.append(correlate("a", x, "b", x + 2 * draw.normal(size=x.shape), crossed=False, samples=200, seed=seed))
    spread = 2 * 1.96 * np.std([one.within for one in found])
    assert np.mean([np.ptp(one.within_interval) for one in found]) == pytest.approx(spread, rel=0.25)


def test_results_do_not_depend_on_the_batch(monkeypatch):
    model = model_of(TINY)
    together = measure_induction(model, samples=10, **SIZES)
    monkeypatch.setattr("diffeqformer.analysis.induction._BATCH_BYTES", 1)
    apart = measure_induction(model, samples=10, **SIZES)
    for name, values in together.arrays().items():
        if name not in ("correlations", "correlation_names"):
            np.testing.assert_allclose(values, apart.arrays()[name], atol=1e-2)
    assert "rank correlation" in together.verdict()


def test_what_does_not_fit_is_refused():
    with pytest.raises(BadInput, match="4 repeats of 25 tokens are 100 positions, but the model's context is 12"):
        measure_induction(model_of(TINY))
    with pytest.raises(BadInput, match="there are only 3 tokens"):
        measure_induction(model_of(TINY), candidates=[1, 2, 3], **SIZES)
    with pytest.raises(BadInput, match="repeats is 1"):
        measure_induction(model_of(TINY), sequences=1, length=4, repeats=1)


def test_without_heads_that_match_prefixes_nothing_is_concluded():
    found = measure_induction(model_of(TINY), samples=10, **SIZES)
    weak = np.full((3, 2), 1.9 * found.chance)
    for matching, later, said in (
        (weak, 0.0, "No: "),
        (weak * 2, 5.0, "No: "),
        (np.full((3, 2), 2.1 * found.chance), 0.0, "Hardly, on random tokens: "),
        (np.full((3, 2), 0.5), 3.0, "Yes, on random tokens: "),
        (np.full((3, 2), 0.5), 4.0, "Hardly, on random tokens: "),  # no better than even odds
    ):
        behaviours = found.behaviours | {"prefix matching": matching}
        one = replace(found, behaviours=behaviours, loss_first=5.0, loss_later=later, even=3.5)
        assert one.verdict().startswith(said) and ("cannot be tested" in one.verdict()) == (said == "No: ")


def test_what_depth_alone_does_is_not_said_of_heads():
    """Both rise with depth, in all heads alike; among a step's heads they go against each other."""
    depth, head = np.mgrid[:8, :4].astype(float)
    one = correlate("prefix matching", depth + 0.01 * head, "QK and OV positive", depth - 0.01 * head, crossed=True)
    assert one.rho > 0.9 and one.interval[0] > 0.5
    assert one.within == pytest.approx(-1) and one.within_interval == pytest.approx((-1, -1))
    found = measure_induction(model_of(TINY), samples=10, **SIZES)
    heads = {"prefix matching": np.full((3, 2), 0.5)}
    seen = lambda c: replace(
        found, correlations=(c,), behaviours=found.behaviours | heads, loss_first=5.0, loss_later=1.0
    ).verdict()
    assert seen(one).endswith("but not clearly among the heads of a step (−1.00 [−1.00, −1.00]).")
    assert "infers induction heads, do match prefixes more" in seen(
        replace(one, within=0.5, within_interval=(0.2, 0.8))
    )
    assert "infers induction heads, match prefixes less" in seen(replace(one, rho=-0.5, interval=(-0.8, -0.2)))
    assert "infers induction heads, do not clearly match prefixes more" in seen(
        replace(one, rho=0.1, interval=(-0.1, 0.3))
    )
    heads = {"prefix matching": np.full((3, 1), 0.5)}
    assert "infers induction heads, do match prefixes more" in seen(one) and "among" not in seen(one)


def test_which_single_spectra_tell_a_steps_heads_apart_is_told():
    found = measure_induction(model_of(TINY), samples=10, **SIZES)
    of = lambda behaviour, summary, within: Correlation(behaviour, summary, 0.5, (0.2, 0.8), *within)
    unclear = (0.3, (-0.2, 0.7))
    ones = (
        of("prefix matching", "QK and OV positive", unclear), of("prefix matching", "QK sum ratio", (0.6, (0.2, 0.8))),
        of("prefix matching", "QK positive share", (0.5, (0.2, 0.7))),
        of("copying", "OV sum ratio", (-0.7, (-0.9, -0.3))),
        of("copying", "OV positive share", (-0.7, (-0.9, -0.3))), of("next token", "OV sum ratio", (0.9, (0.8, 1.0))),
    )  # fmt: skip
    strong = found.behaviours | {"prefix matching": np.full((3, 2), 0.5)}
    said = replace(found, correlations=ones, behaviours=strong, loss_first=5.0, loss_later=1.0).verdict()
    assert said.endswith(
        "but not clearly among the heads of a step (+0.30 [−0.20, +0.70]), where prefix matching correlates "
        "positively with QK's share alone (+0.50 [+0.20, +0.70]) and copying correlates negatively with OV's share "
        "alone (−0.70 [−0.90, −0.30])."
    )
    assert estimate(-0.184, (-0.5, 0.0)) == "−0.18 [−0.50, +0.00]"


def test_what_copying_goes_with_is_told():
    """Also where it is another summary of the spectra than the one that the paper names."""
    found = measure_induction(model_of(TINY), samples=10, **SIZES)
    unclear = [replace(c, rho=0.1, interval=(-0.1, 0.3)) for c in found.correlations]
    weak = {"prefix matching": np.full((3, 2), found.chance)}
    said = lambda ones: replace(found, correlations=tuple(ones), behaviours=found.behaviours | weak).verdict()
    assert said(unclear).endswith("(rank correlation +0.10 [−0.10, +0.30]).")
    clear = [
        replace(c, rho=0.8, interval=(0.2, 0.9)) if (c.behaviour, c.summary) == ("copying", "OV sum ratio") else c
        for c in unclear
    ]
    assert clear != unclear
    assert said(clear).endswith("[−0.10, +0.30]); it correlates positively with OV sum ratio (+0.80 [+0.20, +0.90]).")
    against = [replace(c, rho=-0.8, interval=(-0.9, -0.2)) if c.interval == (0.2, 0.9) else c for c in clear]
    assert said(against).endswith("; it correlates negatively with OV sum ratio (−0.80 [−0.90, −0.20]).")


def test_a_source_of_ones_own_at_unequal_steps_is_tested_as_the_librarys():
    model, steps = model_of(TINY), np.array([0, 0.25, 0.3, 1])
    own = model.replace(weights=Wrapped(model.weights), config=replace(TINY, weights=OwnConfig("Wrapped", "time")))
    found, same = (measure_induction(one, steps=steps, samples=10, **SIZES) for one in (model, own))
    np.testing.assert_array_equal(found.times, steps[1:])
    assert [one.interval for one in found.correlations] == [one.interval for one in same.correlations]
    equal = measure_induction(model, steps=3, samples=10, **SIZES)
    assert not np.allclose(found.behaviours["copying"], equal.behaviours["copying"], atol=1e-3)


def test_a_second_measurement_compiles_nothing():
    measure = lambda: measure_induction(model_of(TINY), samples=10, **SIZES)
    found, before = measure(), programs()
    assert measure().loss_later == found.loss_later and programs() == before
