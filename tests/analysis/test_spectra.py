"""Spectra against dense computations in float64."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffeqformer.analysis.over_depth import evaluation_times
from diffeqformer.analysis.products import product_eigenvalues, product_singular_values
from diffeqformer.analysis.spectra import (
    Spectrum,
    follow,
    hidden_subsets,
    pairs_of,
    spectra,
)
from diffeqformer.config import KnotsConfig, LayerConfig, LayerDropConfig, ModelConfig, ModulationConfig
from diffeqformer.errors import BadInput
from diffeqformer.model.build import build, own_section
from diffeqformer.ode.field import TransformerField
from tests.models import KINDS, TINY, Wrapped, model_of

PAIRED = ("diffeqformer", "vanilla", "vanilla llama, grouped queries", "macaron", "shared")


def dense_pairs(model, weights, row: int, *, fold_norm: bool = False) -> dict[str, list[np.ndarray]]:
    """The D x D matrices of all pairs, written down plainly, in float64."""
    config = model.config
    block = jax.tree.map(lambda leaf: np.asarray(leaf[row], np.float64), weights)
    attention, feed_forward = block.attention, block.feed_forward
    width, d, kv = config.width, config.width // config.heads, config.kv_heads or config.heads
    qkv = attention.query_key_value.weight * (attention.norm.scale[:, None] if fold_norm else 1)
    up = feed_forward.up.weight * (feed_forward.norm.scale[:, None] if fold_norm else 1)
    pairs = {"QK": [], "OV": [], "FF": [up @ feed_forward.down.weight]}
    for head in range(config.heads):
        served = head * kv // config.heads
        query = qkv[:, head * d : (head + 1) * d]
        key = qkv[:, width + served * d :][:, :d]
        value = qkv[:, width + kv * d + served * d :][:, :d]
        pairs["QK"].append(query @ key.T)
        pairs["OV"].append(value @ attention.output.weight[head * d : (head + 1) * d])
    return pairs


def nearest(values: np.ndarray, others: np.ndarray) -> float:
    """How far the farthest of `values` is from all of `others`."""
    return float(np.abs(values[:, None] - others[None]).min(1).max())


def test_of_nested_norms_both_scales_are_folded_into_the_feed_forward():
    """`up` reads `n_M(n_A(x))`, in which scales (s, 1) and (1, s) are the same but for a factor."""
    model = model_of(KINDS["time, llama, nested norm"]).populate(2)
    block, scale = model.weights.layers, jnp.linspace(0.5, 2.0, model.config.width)[None]
    where = lambda block: (block.attention.norm.scale, block.feed_forward.norm.scale)
    factors = [
        pairs_of(eqx.tree_at(where, block, (outer, inner)), model.config, fold_norm=True, nested_norm=True)["FF"]
        for outer, inner in ((scale, jnp.ones_like(scale)), (jnp.ones_like(scale), scale))
    ]
    jax.tree.map(np.testing.assert_array_equal, *factors)


def test_nested_norms_of_a_field_of_ones_own_are_folded_as_the_librarys():
    """Its section of the config names only its class."""

    class Own(TransformerField):
        pass

    theirs = model_of(KINDS["time, llama, nested norm"])
    field = Own(**dataclasses.asdict(theirs.field))
    config = dataclasses.replace(theirs.config, field=own_section(field, theirs.config.field))
    found = [spectra(m, times=0, fold_norm=True) for m in (theirs, theirs.replace(field=field, config=config))]
    np.testing.assert_array_equal(*(one.pairs["FF"].singular_values for one in found))


@pytest.mark.parametrize("kind", PAIRED)
@pytest.mark.parametrize("fold_norm", [False, True])
def test_every_spectrum_is_that_of_the_dense_product(kind, fold_norm):
    model = model_of(KINDS[kind])
    found = spectra(model, times=3, fold_norm=fold_norm)
    weights = model.weights.at(found.times)
    for number in range(len(found.times)):
        for name, matrices in dense_pairs(model, weights, number, fold_norm=fold_norm).items():
            spectrum = found.pairs[name]
            assert spectrum.eigenvalues.shape[1] == len(matrices)
            for head, matrix in enumerate(matrices):
                mine, dense = spectrum.eigenvalues[number, head], np.linalg.eigvals(matrix)
                rest = np.sort(np.abs(dense))[: len(dense) - len(mine)]
                dense = dense[np.argsort(-np.abs(dense))][: len(mine)]
                scale = np.abs(dense).max()
                assert nearest(mine, dense) < 1e-8 * scale and nearest(dense, mine) < 1e-8 * scale
                assert not rest.size or rest.max() < 1e-6 * scale
                singular = np.linalg.svd(matrix, compute_uv=False)[: len(mine)]
                np.testing.assert_allclose(spectrum.singular_values[number, head], singular, atol=1e-10 * singular[0])
                trace = np.trace(matrix) / np.abs(dense).sum()
                assert spectrum.sum_ratio[number, head] == pytest.approx(trace, abs=1e-8)
                p = singular / singular.sum()
                assert spectrum.effective_rank[number, head] == pytest.approx(np.exp(-(p * np.log(p)).sum()), rel=1e-6)
                assert spectrum.radius[number, head] == pytest.approx(scale, rel=1e-8)
                assert spectrum.largest_real[number, head] == pytest.approx(mine.real.max())


def test_conjugate_pairs_are_exact_and_stay_so_when_followed():
    values = spectra(model_of(TINY), times=20).pairs["OV"].eigenvalues
    assert np.abs(values.imag).max() > 0
    for row in values.reshape(-1, values.shape[-1]):
        assert (np.sort_complex(row) == np.sort_complex(row.conj())).all()


def test_random_hidden_subsets_are_those_of_the_dense_product_and_reproducible():
    model, hidden = model_of(TINY), 4 * TINY.width
    found = spectra(model, times=2, ranks=(5, 40), seed=3)
    subsets = hidden_subsets(hidden, (5, 40), 3)
    block = model.weights.at(found.times)
    for rank, subset in subsets.items():
        assert len(set(subset.tolist())) == rank and subset.max() < hidden
        for number in range(len(found.times)):
            up = np.asarray(block.feed_forward.up.weight[number], np.float64)[:, subset]
            down = np.asarray(block.feed_forward.down.weight[number], np.float64)[subset]
            dense = np.linalg.eigvals(up @ down)
            mine = found.pairs[f"FF {rank}"].eigenvalues[number, 0]
            assert len(mine) == min(rank, TINY.width)
            assert nearest(mine, dense) < 1e-8 * np.abs(dense).max()
    assert (hidden_subsets(hidden, (5,), 3)[5] == subsets[5]).all()
    assert (hidden_subsets(hidden, (5,), 4)[5] != subsets[5]).any()
    with pytest.raises(BadInput, match=f"rank is 65, but must be between 1 and {hidden}"):
        spectra(model, ranks=(65,))


def test_followed_curves_are_those_of_the_motion():
    times = np.linspace(0, 1, 200)
    curves = np.stack([2 - 3 * times + 0j, -1 + 3 * times + 1e-3j, 1j * np.exp(2j * times), 3 - 0.2 * times + 0j], -1)
    shuffled = np.stack([np.random.default_rng(i).permutation(row) for i, row in enumerate(curves)])
    followed = follow(shuffled[:, None, :])[:, 0]
    assert all((np.sort_complex(a) == np.sort_complex(b)).all() for a, b in zip(followed, curves, strict=True))
    assert np.abs(np.diff(followed, axis=0)).max() < 0.05
    assert np.abs(np.diff(shuffled, axis=0)).max() > 1


def test_curves_move_less_on_a_finer_grid():
    config = dataclasses.replace(TINY, weights=dataclasses.replace(TINY.weights, highest_frequency=5.0))
    coarse, fine = (spectra(model_of(config), times=times).pairs["OV"].jump.max() for times in (25, 400))
    assert fine < coarse / 3


def test_times_are_those_of_the_forward_pass():
    found = spectra(model_of(KINDS["macaron"]), times=50)
    assert not found.continuous
    np.testing.assert_allclose(found.times[found.attention_step], [1 / 6, 3 / 6, 5 / 6])
    np.testing.assert_allclose(found.times[found.feed_forward_step], np.arange(1, 12, 2) / 12)
    continuous = spectra(model_of(TINY), times=7, steps=4)
    assert set(evaluation_times(model_of(TINY), 4)[0]) <= set(continuous.times)
    np.testing.assert_allclose(continuous.times, np.unique([*np.arange(7) / 6, 1 / 4, 3 / 4]))


@pytest.mark.parametrize("steps", [3, (0.0, 0.5, 0.6, 1.0)])
def test_knots_have_times_between_steps_and_their_means_do_not(steps):
    """Where a step takes the mean of the weights over it, its spectra are those of the mean, at its middle."""
    knots = model_of(dataclasses.replace(TINY, weights=KnotsConfig(knots=4)))
    assert spectra(knots, times=9).continuous and set(np.arange(9) / 8) <= set(spectra(knots, times=9).times)
    model = model_of(dataclasses.replace(TINY, weights=KnotsConfig(knots=4, average=True), scheme="euler"))
    found = spectra(model, steps=steps)
    grid = model.grid(steps)
    np.testing.assert_allclose(found.times, (grid.edges[1:] + grid.edges[:-1]) / 2)
    assert not found.continuous and found.attention_step.all() and found.feed_forward_step.all()
    used = jax.tree.map(lambda leaf: np.asarray(leaf)[:, 0], model.weights.table(grid, model.scheme.nodes))
    ov, at_middle = (
        np.sort_complex(product_eigenvalues(*jax.tree.map(np.asarray, pairs_of(rows, model.config)["OV"])))
        for rows in (used, model.weights.at(found.times))
    )
    seen = np.sort_complex(found.pairs["OV"].eigenvalues)
    np.testing.assert_allclose(seen, ov, rtol=1e-4, atol=1e-5 * np.abs(ov).max())
    assert np.abs(seen - at_middle).max() > 0.01 * np.abs(ov).max()


def test_weights_that_know_the_length_of_the_step_have_none_between_steps():
    """A time between steps belongs to no length, and rows of other lengths beside those of the steps would be jumps."""
    knots = model_of(dataclasses.replace(TINY, weights=KnotsConfig(4, rank=2), scheme="lie-trotter-middle"))
    modulated = model_of(dataclasses.replace(TINY, modulation=ModulationConfig()))
    for model in (knots, modulated):
        found = spectra(model, times=9, steps=2)
        assert not found.continuous and len(found.times) == 2


def test_results_do_not_depend_on_how_many_times_go_at_once(monkeypatch):
    together = spectra(model_of(TINY), times=9, ranks=(7,))
    monkeypatch.setattr("diffeqformer.analysis.spectra._CHUNK_BYTES", 1)
    apart = spectra(model_of(TINY), times=9, ranks=(7,))
    for name, spectrum in together.pairs.items():
        other = apart.pairs[name]
        np.testing.assert_allclose(spectrum.singular_values, other.singular_values, atol=1e-4)
        for mine, theirs in zip(spectrum.eigenvalues[:, 0], other.eigenvalues[:, 0], strict=True):
            assert nearest(mine, theirs) < 1e-4  # weights of one time and of many differ in float32


def test_products_in_closed_form():
    left, right = np.array([[1.0], [2.0]]), np.array([[3.0, 4.0]])
    assert product_eigenvalues(left, right) == pytest.approx([11.0])
    assert product_singular_values(left, right) == pytest.approx([5 * 5**0.5])
    turned = np.array([[0.0, 1.0], [-1.0, 0.0]])
    assert sorted(product_eigenvalues(turned, np.eye(2)).imag) == [-1.0, 1.0]


def test_summaries_in_closed_form():
    spectrum = Spectrum(np.array([[[3.0, -1.0, 2j, -2j]]]), np.array([[[2.0, 2.0, 0.0, 0.0]]]))
    assert spectrum.radius.item() == 3 and spectrum.largest_real.item() == 3
    assert Spectrum(np.zeros((1, 1, 3), complex), np.zeros((1, 1, 3))).positive_share.item() == 1 / 2
    assert spectrum.positive_share.item() == 1 / 2 and spectrum.sum_ratio.item() == pytest.approx(2 / 8)
    assert spectrum.effective_rank.item() == pytest.approx(2)
    nothing = Spectrum(np.zeros((2, 1, 3), complex), np.zeros((2, 1, 3)))
    assert nothing.sum_ratio.max() == 0 and nothing.jump.max() == 0


def test_what_makes_no_sense_is_refused():
    with pytest.raises(BadInput, match="times is 1"):
        spectra(model_of(TINY), times=1)
    with pytest.raises(BadInput, match="steps is 0"):
        spectra(model_of(TINY), steps=0)


@pytest.mark.parametrize(
    ("config", "steps"),
    [
        (dataclasses.replace(TINY, weights="layerdrop", scheme="lie-trotter"), 3),
        (dataclasses.replace(TINY, weights=LayerDropConfig(nested=True), scheme="residual", steps=4), 3),
        (dataclasses.replace(TINY, weights=LayerDropConfig(nested=True), scheme="residual", steps=4), 1),
        (dataclasses.replace(TINY, weights="layer", scheme="diffrax:Euler"), 3),
        (dataclasses.replace(TINY, weights="layer", scheme="rk4"), 3),
        (dataclasses.replace(TINY, modulation=ModulationConfig(4), scheme="lie-trotter-middle"), 5),
        (dataclasses.replace(TINY, weights=KnotsConfig(average=True), modulation=ModulationConfig(4)), 5),
        (KINDS["macaron"], 3),
        (dataclasses.replace(TINY, weights=LayerConfig(rows="node"), scheme="heun"), 3),
        (
            dataclasses.replace(TINY, weights="shared", modulation=ModulationConfig(4), scheme="heun"),
            (0.0, 0.1, 0.6, 1.0),
        ),
        (TINY, 4),
    ],
    ids=lambda value: f"{value.weights.kind}, {value.scheme.kind}" if isinstance(value, ModelConfig) else str(value),
)
def test_the_spectra_of_steps_are_those_of_the_weights_that_a_forward_pass_takes(config, steps):
    """Which layers, and by what they are modulated, may depend on the number of steps."""
    model = model_of(config)
    found, table = spectra(model, times=0, steps=steps), model.weights.table(model.grid(steps), model.scheme.nodes)
    for half, names in (("attention", ("QK", "OV")), ("feed_forward", ("FF",))):
        rows = jax.tree.map(lambda leaf: np.asarray(leaf).reshape(-1, *leaf.shape[2:]), table)
        for name in names:
            spectrum, mask = found.pairs[name], found.steps(name)
            own = len(getattr(rows, half).norm.scale)
            at = lambda row, rows=rows: jax.tree.map(lambda leaf: leaf[None, min(row, len(leaf) - 1)], rows)
            wanted = [np.linalg.eigvals(dense_pairs(model, at(row), 0)[name][0]) for row in range(own)]
            assert mask.sum() == own
            for values, dense in zip(spectrum.eigenvalues[mask, 0], wanted, strict=True):
                assert nearest(values, dense) < 1e-6 * np.abs(dense).max()


def test_what_a_step_adds_is_scaled_by_its_own_length():
    """Weights at the beginning of a step, which is the end of the one before."""
    edges, lengths = (0.0, 0.1, 0.7, 1.0), np.array([0.1, 0.6, 0.3])
    for scheme, own in (("midpoint", [0, 0, 1, 1, 2, 2]), ("lie-trotter", [0, 1, 2]), ("heun", [0, 0, 1, 2])):
        found = spectra(model_of(dataclasses.replace(TINY, scheme=scheme)), times=0, steps=edges)
        scaled = found.scaled_by_step(lengths)
        ratio = scaled.pairs["OV"].radius / found.pairs["OV"].radius
        np.testing.assert_allclose(ratio, np.repeat(lengths[own][:, None], 2, axis=1))
        assert scaled.pairs["QK"] is found.pairs["QK"]


def test_means_over_steps_stand_at_their_middles_modulated_or_not():
    for modulation in (None, ModulationConfig(2)):
        config = dataclasses.replace(TINY, weights=KnotsConfig(average=True), modulation=modulation, steps=4)
        found = spectra(model_of(config), times=9)
        assert not found.continuous
        np.testing.assert_allclose(found.times, [0.125, 0.375, 0.625, 0.875])


def test_a_source_of_ones_own_has_spectra_between_the_steps():
    model = model_of(KINDS["knots, normalised"])
    wrapped = build(model.config, jax.random.key(0), weights=Wrapped(model.weights))
    found, own = (spectra(one, times=9) for one in (model, wrapped))
    np.testing.assert_array_equal(own.times, found.times)
    np.testing.assert_array_equal(own.pairs["QK"].eigenvalues, found.pairs["QK"].eigenvalues)
