"""The figures of the test of explanations show every method where its numbers are."""

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from diffeqformer.analysis.attribution import Attributions
from diffeqformer.analysis.faithfulness import METHODS, RANDOM, Faithfulness, interval
from diffeqformer.studies.attribution import DESCRIPTIONS, headline, trust
from diffeqformer.studies.attribution_figures import correlations, curves, occluded
from tests.studies.pictures import WIDTHS, band, hexed, legend, points, title

COUNTS = np.array([1, 2, 4])


@pytest.fixture
def found() -> Faithfulness:
    draw = np.random.default_rng(0).normal
    shape = (5, len(METHODS))
    kinds = draw(size=shape), draw(size=shape), draw(size=(*shape, 3)), draw(size=(*shape, 3)) + 5
    return Faithfulness(METHODS, np.arange(5), COUNTS, *kinds)


@pytest.mark.parametrize("width", WIDTHS)
def test_correlations_are_the_estimates_the_best_above(found, width):
    axes = correlations(found, width=width).axes
    methods = list(found.ranking("strength")[::-1])
    for axis, measure, said in zip(axes, ("strength", "direction"), ("without signs", "with signs"), strict=True):
        if axis is axes[0] or width < 5:  # side by side they share the names
            assert [label.get_text() for label in axis.get_yticklabels()] == methods
        assert said in title(axis)
        drawn = [points(line) for line in axis.lines[: 2 * len(methods)]]
        for row, method in enumerate(methods):
            one = found.estimates(measure)[method]
            np.testing.assert_allclose(drawn[2 * row], [[one.low, row], [one.high, row]])
            np.testing.assert_allclose(drawn[2 * row + 1], [[one.mean, row]])
        assert not axis.yaxis_inverted()
    assert axes[-1].get_xlabel() == "rank correlation"


@pytest.mark.parametrize("width", WIDTHS)
def test_every_method_has_a_panel_of_its_own_beside_chance(found, width):
    figure = curves(found, width=width)
    named = legend(figure)
    panels = {title(axis): axis for axis in figure.axes if axis.get_visible()}
    assert list(panels) == list(found.ranking("strength")) and list(named) == ["deletion", "insertion"]
    for method, axis in panels.items():
        assert axis.get_xscale() == "log" and len(axis.lines) == 4
        own, chance = METHODS.index(method), METHODS.index(RANDOM)
        for index, (name, values) in enumerate((("deletion", found.deletion), ("insertion", found.insertion))):
            behind, line = axis.lines[2 * index : 2 * index + 2]
            np.testing.assert_allclose(points(behind), np.stack([COUNTS, values[:, chance].mean(0)], 1))
            np.testing.assert_allclose(points(line), np.stack([COUNTS, values[:, own].mean(0)], 1))
            assert hexed(line) == named[name]
            low, high = interval(values[:, own])
            np.testing.assert_allclose(band(axis.collections[index], 2), (low[1], high[1]))


@pytest.mark.parametrize("width", WIDTHS)
def test_falls_are_bars_over_their_tokens_in_the_colours_of_their_signs(width):
    (axis,) = occluded(("a", "$b", "c"), np.array([0.5, -0.25, 0.0]), width=width).axes
    assert [(bar.get_x() + bar.get_width() / 2, bar.get_height()) for bar in axis.patches] == [
        (0, 0.5),
        (1, -0.25),
        (2, 0),
    ]
    up, down = (to_rgb(bar.get_facecolor()) for bar in axis.patches[:2])
    assert up[2] > up[0] and down[0] > down[2]  # blue speaks for the prediction, as in the map
    assert axis.get_ylabel() == "fall of log p (nats)" and not axis.yaxis_inverted()
    if width >= 5:
        assert [label.get_text() for label in axis.get_xticklabels()] == ["0 a", "1 $b", "2 c"]
    else:
        assert axis.get_xlabel() == "position of the input token"


def test_arrays_of_explanations_have_the_names_of_their_methods_in_lower_case():
    row = np.zeros((1, 2))
    known = Attributions((1,), np.zeros(1, int), np.zeros(1), {name: row for name in METHODS}, np.zeros(1)).arrays()
    assert {"lyapunov_pairwise_random_direction", "lyapunov_end_to_end_growth", "attention_last_step"} <= known.keys()
    assert {"gradient_x_input", "log_probabilities", "targets", "outputs"} <= known.keys()


def test_every_method_is_described_and_ranked(found):
    assert set(DESCRIPTIONS) == set(METHODS)
    table = trust(found, 64, "the text")
    assert [row[0] for row in table.rows] == list(found.ranking("strength")) and "5 contexts of 64" in table.caption
    assert all(table.numeric[1:])


def test_the_sentence_of_an_output_names_what_it_rests_on():
    scores = {"occlusion": np.array([0.1, 1.25, np.nan]), "attention": np.array([0.6, 0.4, np.nan])}
    scores["Lyapunov, end-to-end growth"] = np.array([-3.0, -1.0, np.nan])
    scores["integrated gradients"] = np.array([0.2, 0.4, np.nan])
    said = headline(("a", "b", "c"), 1, "“x” (probability 0.50)", scores)
    assert said.startswith(
        "After token 1, “b”, the model expects “x” (probability 0.50). By occlusion, that rests most on token 1, “b”:"
    )
    assert "falls by 1.25 nats. Of" in said
    assert said.endswith(
        "Of the tokens before token 1, occlusion puts token 0, “a”, first (0.1 nats); end-to-end exponents and mean "
        "attention put token 0 first."
    )
    scores3 = {name: np.array([0.2, row[0], row[1]]) for name, row in scores.items()}
    scores3["attention"] = np.array([0.9, 0.05, 0.05])
    scores3["Lyapunov, end-to-end growth"] = np.array([-3.0, -1.0, 0.5])
    said = headline(("a", "b", "c"), 2, "“x”", scores3)
    assert said.endswith(
        "Of the tokens before token 2, occlusion puts token 0, “a”, first (0.2 nats); end-to-end exponents put token "
        "1, “b”, first: replacing it lowers log p by 0.1; mean attention puts token 0 first."
    )
    scores3["occlusion"] = np.array([0.5, -0.3, 0.1])
    assert headline(("a", "b", "c"), 2, "“x”", scores3).endswith(
        "Of the tokens before token 2, end-to-end exponents put token 1, “b”, first: replacing it raises log p by "
        "0.3, so by occlusion it counts against the prediction; mean attention puts token 0 first. Integrated "
        "gradients say the opposite of token 1 (0.20)."
    )
    scores3["integrated gradients"] = np.array([-0.3, 0.05, 0.4])  # too small to be said of token 1
    opposed = headline(("a", "b", "c"), 2, "“x”", scores3)
    assert opposed.endswith("Integrated gradients say the opposite of token 0 (−0.30).")
    assert headline(("a",), 0, "“x”", {name: row[:1] for name, row in scores.items()}).endswith("falls by 0.1 nats.")
    without = headline(("a", "b", "c"), 1, "“x”", scores | {"occlusion": np.array([-0.1, 0.0, np.nan])})
    assert "rests on no single token" in without
