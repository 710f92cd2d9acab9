"""The figures of exponents show every input's score and error at its place, and how it came about."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from diffeqformer.analysis.end_to_end import EndToEnd
from diffeqformer.analysis.lyapunov import Pairwise
from diffeqformer.report.figures import save
from diffeqformer.studies.lyapunov import headline, most_sensitive, of_end_to_end, of_pairwise, over_depth_caption
from diffeqformer.studies.lyapunov_figures import exponents_over_depth, shaded_text, token_exponents
from tests.studies.pictures import WIDTHS, points

SCORES, ERRORS = np.array([0.1, -np.inf, 0.3]), np.array([0.01, 0.02, 0.05])


@pytest.mark.parametrize("width", WIDTHS)
def test_scores_stand_at_their_tokens_with_their_errors(width):
    panels = {"pairwise": (SCORES, None), "end-to-end": (SCORES - 1, ERRORS)}
    figure = token_exponents(["$a$", "_b", "<c>"], panels, width=width)
    for axis, (label, (scores, errors)) in zip(figure.axes, panels.items(), strict=True):
        assert axis.get_ylabel() == label
        shown = points(axis.lines[0])
        np.testing.assert_allclose(shown[:, 0], [0, 1, 2])
        np.testing.assert_allclose(shown[:, 1], [scores[0], np.nan, scores[2]])  # no exponent of minus infinity
        if errors is not None:
            first, _, third = (np.array(bar) for bar in axis.collections[0].get_segments())
            np.testing.assert_allclose(first, [[0, scores[0] - 0.01], [0, scores[0] + 0.01]])
            np.testing.assert_allclose(third[:, 1], [scores[2] - 0.05, scores[2] + 0.05])
    labels = [label.get_text() for label in figure.axes[-1].get_xticklabels()]
    if width > 5:
        assert labels == ["0 $a$", "1 _b", "2 <c>"] and "0 $a$" in save(figure, "svg").decode()
    else:
        assert figure.axes[-1].get_xlabel() == "position of the input token"


def test_a_long_text_has_positions_instead_of_pieces():
    many = token_exponents(["x"] * 200, {"pairwise": (np.linspace(0, 1, 200), None)})
    assert many.axes[0].get_xlabel() == "position of the input token"


@pytest.mark.parametrize("width", WIDTHS)
def test_a_text_is_shaded_by_scores_of_which_the_outputs_own_sets_no_scale(width):
    tokens, scores = [f"token{i}" for i in range(30)], np.linspace(0, 1, 30)
    scores[[3, 29]] = -np.inf, 40.0
    (axis,) = shaded_text(tokens, scores, width=width).axes
    assert [text.get_text() for text in axis.texts] == tokens
    dark = [1 - np.mean(patch.get_facecolor()[:3]) for patch in axis.patches]
    assert np.argmax(dark) in (28, 29) and np.isclose(dark[28], dark[29]) and dark[0] == min(dark)
    assert all(after > before - 0.02 for before, after in pairwise(dark[4:]))  # a scale of colours, not of greys
    assert [patch.get_visible() for patch in axis.patches] == [place != 3 for place in range(30)]
    for patch, text in zip(axis.patches, axis.texts, strict=True):  # each piece stands on its own patch, in the axes
        left, low = patch.get_x(), patch.get_y()
        right, high = left + patch.get_width(), low + patch.get_height()
        x, y = text.get_position()
        assert left < x < right <= axis.get_xlim()[1] and low < y < high <= axis.get_ylim()[0]
    assert len({round(text.get_position()[1], 3) for text in axis.texts}) == (2 if width > 5 else 5)


def test_the_headline_names_the_token_before_it_that_matters_most():
    tokens, exponents = ("a", "b", "c"), np.array([np.log(2), -np.inf, 9.0])
    assert headline(tokens, 2, "end-to-end, growth", exponents, None, 1.5) == (
        "Of the tokens before it, the state at token 2, “c”, is most sensitive to token 0, “a” (end-to-end growth). A "
        "small change there in a random direction arrives 2 times as large, and one at token 2 itself 8,100 times; "
        "the states themselves become 1.5 times as large over depth (root mean square)."
    )


def test_tokens_within_two_standard_errors_of_the_first_are_told():
    exponents, error = np.array([1.0, 0.95, 0.5, 3.0]), np.array([0.02, 0.02, 0.02, 0.1])
    of = lambda exponents, error: headline(tuple("abcdef"), len(exponents) - 1, "growth", exponents, error, 1.0)
    said = of(exponents, error)
    assert "is most sensitive to token 0, “a” (growth; token 1, “b” within two standard errors). A small" in said
    assert "(growth; token 1, “b” and token 2, “c” within two" in of(exponents, 10 * error)
    assert "errors" not in of(exponents, error / 10) + of(exponents, None)
    assert "(growth; 3 others within" in of(np.array([1.0, 0.95, 0.97, 0.99, 3.0]), np.full(5, 0.1))


def test_what_is_drawn_is_the_last_output_up_to_itself():
    exponents = np.array([[[2.0, 1.0], [np.nan] * 2, [np.nan] * 2], [[3.0, 0.0], [5.0, 4.0], [np.nan] * 2]])
    unknown, path = np.full((2, 3), np.nan), np.zeros((2, 3, 2))
    random = Pairwise((0, 1), exponents, unknown, path, 8, 1.0)
    part = of_pairwise(random, "6 steps of scheme euler")
    assert part.panel[0].tolist() == [3.0, 5.0] and part.panel[1] is None and most_sensitive(random) == [1, 0]
    assert part.descriptions["pairwise, leading"].startswith("Growth of the fastest of 2 random directions by dQ/dt")
    single = of_pairwise(replace(random, exponents=exponents[..., :1]), "6 steps").descriptions["pairwise, leading"]
    assert single.startswith("Growth of a random direction by dQ/dt")
    known = of_pairwise(replace(random, error=np.array([[0.01, np.nan, np.nan], [0.001, 0.002, np.nan]])), "6 steps")
    assert (
        known.panel[1].tolist() == [0.001, 0.002] and "error at most 0.010" in known.descriptions["pairwise, leading"]
    )
    assert known.descriptions["pairwise, leading"].startswith("Largest exponent")
    assert part.scores["pairwise, mean"][-1, :2].tolist() == [1.5, 4.5]
    assert "2 of 8 exponents" in part.descriptions["pairwise, mean"]
    whole = of_pairwise(replace(random, width=2), "6 steps").descriptions["pairwise, leading"]
    assert whole.startswith("Largest exponent") and "from the unit vectors" in whole
    growth = exponents[..., 0]
    probed = of_end_to_end(EndToEnd((0, 1), growth, growth / 10, exponents), 8, "6 steps")
    assert probed.panel[0].tolist() == [3.0, 5.0] and probed.panel[1].tolist() == [0.3, 0.5]
    assert probed.scores["end-to-end, leading"][1, 1] == 5.0 and set(probed.scores) == set(probed.descriptions)


@pytest.mark.parametrize(("last", "whose"), [(2, "each of its inputs."), (4, "each of its inputs."), (5, "the five")])
def test_five_inputs_are_named_only_where_there_are_more(last, whose):
    assert f"“{'abcdef'[last]}”: its pairwise exponents up to each time, for {whose}" in over_depth_caption(
        tuple("abcdef"), last, min(5, last + 1)
    )


@pytest.mark.parametrize("width", WIDTHS)
def test_exponents_begin_at_zero_and_are_drawn_at_the_ends_of_the_steps(width):
    lines = {"0 <a>": np.array([0.5, 0.25]), "3 $b$": np.array([1.0, -np.inf])}
    figure = exponents_over_depth(np.array([0.0, 0.3, 1.0]), lines, width=width)
    first, second = map(points, figure.axes[0].lines)
    np.testing.assert_allclose(first, [[0, 0], [0.3, 0.5], [1, 0.25]])
    np.testing.assert_allclose(second, [[0, 0], [0.3, 1], [1, np.nan]])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(lines)
    assert figure.axes[0].get_xlabel().startswith("time") and figure.axes[0].get_ylabel() == "exponent so far (nats)"
