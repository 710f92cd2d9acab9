"""The page of loss against size: its headline, its table and its figure are of what was measured."""

import math

import numpy as np
import pytest

from diffeqformer.studies.compression import WAYS, loss_against_size, made_of, result
from tests.studies.pictures import WIDTHS, legend, points

FOUND = [
    {"way": way, "size": size, "numbers": 100 * size, "loss": math.log(10 + place + 8 / size)}
    for place, way in enumerate(WAYS)
    for size in (1, 3)
]
KNOWN = {"layers": 4, "block_numbers": 400, "original": math.log(5)}
NEAR = {**KNOWN, "original": math.log(15)}


def test_the_best_over_depth_stands_beside_the_best_within_layers():
    made = result(FOUND, NEAR, "a text")
    assert made.findings[0] == (
        "Of the best of each kind, sharing over depth loses less than low rank within layers at all 2 sizes: with 1/4 "
        "of the blocks' parameters (the smallest size that keeps perplexity within 25 %) and no training, perplexity "
        "18.00 (knots) against 23.00 (low rank per layer); the whole model has 15.00."
    )
    of_no_use = result(FOUND, KNOWN, "a text").findings[0]
    assert "with 3/4 of the blocks' parameters (the largest size tried; none keeps perplexity within" in of_no_use
    assert made.tables[0].columns == ("way", "1/4", "3/4")
    assert made.tables[0].rows[-1] == ("low rank per layer, weighted by activations", "24.00", "18.67")
    assert made.arrays["loss"].shape == (14,) and made.document["smaller"] == FOUND


def test_the_headline_says_at_which_sizes_the_ways_change_places():
    lower = [row | ({"loss": 1.0} if (row["way"], row["size"]) == ("rank", 3) else {}) for row in FOUND]
    assert result(lower, NEAR, "a text").findings[0].endswith("has 15.00. At 3/4, it is the other way round.")
    near = [
        row | ({"loss": math.log(10 + 8 / 3) + 0.005} if (row["way"], row["size"]) == ("rank", 3) else {})
        for row in FOUND
    ]
    assert (
        result(near, NEAR, "a text")
        .findings[0]
        .endswith("15.00. At 3/4, the two are within 1 % of each other (over depth: knots).")
    )
    failed = [row | ({"loss": math.nan} if (row["way"], row["size"]) == ("rank", 3) else {}) for row in FOUND]
    assert result(failed, NEAR, "a text").findings[0].endswith("the whole model has 15.00.")
    worse = [row | ({"loss": 5.0} if not row["way"].startswith("rank") and row["size"] == 1 else {}) for row in FOUND]
    said = result(worse, NEAR, "a text").findings[0]
    assert said.startswith(
        "Of the best of each kind, sharing over depth loses less than low rank within layers at 3/4: w"
    )
    assert said.endswith("(low rank per layer); the whole model has 15.00. At 1/4, it is the other way round.")
    level = {"loss": math.log(18.01)}
    even = [row | (level if row["way"].startswith("rank") and row["size"] == 1 else {}) for row in FOUND]
    said = result(even, NEAR, "a text").findings[0]
    assert said.startswith(
        "Of the best of each kind, sharing over depth loses as much as low rank within layers at 1/4:"
    )
    assert said.endswith("has 15.00. At 3/4, sharing over depth loses less.")


def test_layers_that_are_functions_of_depth_are_no_proof_for_others():
    assert made_of("layer") == made_of("levels") == ""
    assert "kind `knots`, functions of depth: where these are smooth" in made_of("knots")


@pytest.mark.parametrize("width", WIDTHS)
def test_every_way_is_drawn_against_its_share_of_the_numbers(width):
    figure = loss_against_size([*FOUND, {**FOUND[0], "size": 2, "loss": math.nan}], KNOWN, width=width)
    whole, *lines = figure.axes[0].lines
    assert list(whole.get_ydata()) == pytest.approx([5, 5]) and list(legend(figure)) == list(WAYS.values())
    assert len({(line.get_color()) for line in lines}) == len({line.get_marker() for line in lines}) == len(WAYS)
    axis = figure.axes[0]
    assert axis.get_xlabel() == "share of the blocks' parameters kept" and axis.get_ylabel() == "perplexity (log scale)"
    ticks = dict(zip(axis.get_xticks(), (label.get_text() for label in axis.get_xticklabels()), strict=True))
    assert ticks == {0.25: "1/4", 0.5: "2/4", 0.75: "3/4"}
    near = loss_against_size(FOUND, {**KNOWN, "original": math.log(9)}, width=width).axes[0]
    assert (axis.get_yscale(), near.get_yscale(), near.get_ylabel()) == ("log", "linear", "perplexity")
    for place, line in enumerate(lines):
        np.testing.assert_allclose(points(line), [[0.25, 18 + place], [0.75, 10 + place + 8 / 3]])
