"""The page of what each step does: figures show the arrays from depth 0 on, sentences say what they show."""

import dataclasses
import re
from dataclasses import replace

import numpy as np
import pytest

from diffeqformer.analysis.participation import Participation, variation_over_depth
from diffeqformer.studies.steps import (
    by_matrix,
    by_step,
    by_token,
    headline,
    loss_by_step,
    losses_caption,
    movement_by_step,
    moves_caption,
    result,
    tuned_finding,
)
from tests.models import TINY, model_of
from tests.studies.pictures import WIDTHS, hexed, legend, points

FLAT = Participation(
    np.array([0, 0.7, 0.85, 1.0]),
    np.array([7.6, 2.70, 2.66, 2.68]),
    np.array([5.0, 0.1, 0.02, 0.0]),
    np.array([0.1, 1.1, 1.2, 1.25]),
    np.array([0.9, 0.08, 0.07]),
    np.array([0.5, 0.06, 0.05]),
    {"attention.query_key_value": 0.02, "attention.output": 0.04},
    {"attention.query_key_value": 1.1, "attention.output": 1.3},
)


@pytest.mark.parametrize("width", WIDTHS)
def test_losses_are_drawn_from_before_the_first_step(width):
    first, second = loss_by_step(FLAT, width=width).axes
    for axis, values in ((first, FLAT.loss), (second, FLAT.kl)):
        (line,) = axis.lines
        np.testing.assert_allclose(points(line), np.stack([np.arange(4), values], 1))
        assert axis.get_xlabel() == "steps taken" and axis.get_ylim()[0] == 0
    both = loss_by_step(FLAT, (FLAT.loss / 2, FLAT.kl / 2), width=width)
    np.testing.assert_allclose(points(both.axes[1].lines[1])[:, 1], FLAT.kl / 2)
    assert [*legend(both)] == ["logit lens", "tuned lens"] or {*legend(both).values()} == {"logit lens", "tuned lens"}
    table = by_step(FLAT, tuned=(FLAT.loss / 2, FLAT.kl / 2))
    assert table.columns[-2:] == ("tuned loss", "tuned KL") and table.rows[1][-2:] == ("1.350", "0.050")
    assert first.get_ylabel() == "loss (nats per token)" and second.get_ylabel().startswith("KL to the last")


@pytest.mark.parametrize(("by", "why"), [(0.5, "the difference is what"), (1.5, "these probes found nothing")])
def test_a_tuned_lens_that_is_no_better_is_not_said_to_find_anything(by, why):
    said = tuned_finding(FLAT, (FLAT.loss, by * FLAT.kl))
    assert f"is {by * FLAT.kl[:-1].mean():.3f} nats. The plain lens has 1.707: {why}" in said
    assert "other texts, the mean" in said  # which may be those of --data, and of no split


@pytest.mark.parametrize("width", WIDTHS)
def test_movements_are_named_by_what_moves(width):
    figure = movement_by_step(FLAT, width=width)
    (axis,) = figure.axes
    named = legend(figure)
    wanted = {"attention": FLAT.attention, "feed-forward": FLAT.feed_forward, "state": FLAT.length[1:]}
    drawn = {hexed(line): points(line) for line in axis.lines}
    for name, values in wanted.items():
        np.testing.assert_allclose(drawn[named[name]], np.stack([[1, 2, 3], values], 1))
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("step", "root mean square")


def test_a_model_of_one_step_is_told_as_such():
    assert headline(FLAT) == (
        "After 1 of 3 steps the prediction has settled: its loss is 2.700 nats there and 2.680 at the end, never "
        "further than 0.05 from it, and step 1 alone makes 100 % of the loss's fall from 7.600, that of the bare "
        "embedding. 3 % of the weights' squared size varies over depth (0 % if all steps had the same, at "
        "least 30 % if they had nothing in common)."
    )
    assert "at least 67 % if they" in headline(replace(FLAT, times=np.arange(4) / 3))
    deep = Participation(*(getattr(FLAT, name) for name in ("times",)), np.array([7.6, 4.0, 3.5, 3.0]), *(
        getattr(FLAT, name) for name in ("kl", "length", "attention", "feed_forward", "energy", "rank")
    ))  # fmt: skip
    assert headline(deep).startswith(
        "All 3 steps change the prediction: its loss is 3.000 nats after the last and 3.500"
    )


def test_steps_that_have_nothing_in_common_vary_at_least_as_much_as_the_sentence_says():
    """Layers that are drawn independently, of which the first takes 0.7 of the depth."""
    model = model_of(dataclasses.replace(TINY, weights="layer", first_step=0.7))
    grid = model.grid()
    energy, _ = variation_over_depth(model.weights.table(grid, model.scheme.nodes), grid.lengths)
    said = re.search(r"at least (\d+) % if they had nothing", headline(replace(FLAT, energy=energy)))
    assert said is not None and float(said[1]) == 30 and min(energy.values()) == pytest.approx(0.465, abs=0.08)


@pytest.mark.parametrize("steps", [1, 3])
def test_weights_that_are_the_same_at_all_steps_are_told_once(steps):
    """Those of a single step, too, which have nothing to vary over."""
    energy, last = {name: 1e-8 for name in FLAT.energy}, [0, -1] if steps == 1 else slice(None)
    by = {name: getattr(FLAT, name)[last] for name in ("times", "loss", "kl", "length")}
    halves = {name: getattr(FLAT, name)[:steps] for name in ("attention", "feed_forward")}
    found = replace(FLAT, **by, **halves, energy=energy)
    said = {
        1: "The one step changes the loss of the prediction from 7.600 nats to 2.680.",
        3: "that of the bare embedding. All steps have the same weights.",
    }
    assert headline(found).endswith(said[steps])
    page = result(found, "about", {})
    assert [table.caption for table in page.tables] == ["After every step"]
    assert "varies over depth" not in " ".join(page.findings)
    assert len(result(FLAT, "about", {}).tables) == 2 and "What varies" in result(FLAT, "about", {}).findings[2]


def test_steps_before_the_reading_is_a_prediction_are_told():
    """Where the state still names the token that it read, the fall of the loss is no learning of the next one."""
    slow = replace(FLAT, loss=np.array([9.0, 8.0, 7.0, 3.0]), even=6.24, echo=np.array([1.0, 0.9, 0.6, 0.1]))
    assert slow.worse_than_even == 2 and FLAT.worse_than_even == 0
    assert (
        "Read this way, the first 2 are worse than uniform guessing among 513 tokens (6.24 nats): the state still "
        "predicts the token just read, at 90 % of the positions after step 1, 60 % after step 2 and 10 % at the end. 3 "
        "% of"
    ) in headline(slow)
    first, second = loss_by_step(slow, width=8.0).axes
    assert [set(points(line)[:, 1]) for line in first.lines[1:]] == [{6.24}] and len(second.lines) == 1
    assert "guessing" in losses_caption(slow) and "guessing" not in losses_caption(FLAT)
    assert "guessing" not in headline(replace(slow, even=np.nan))
    assert "Read this way, step 1 is worse than" in headline(replace(slow, loss=np.array([9.0, 7.0, 5.0, 3.0])))
    for other in (np.zeros(0), np.array([0.2, 0.1, 0.1, 0.1])):  # not known; a head that does not echo
        assert "among 513 tokens (6.24 nats). 3 % of" in headline(replace(slow, echo=other))
    echoed = by_step(slow)
    assert [row[echoed.columns.index("still the token read")] for row in echoed.rows] == [
        "100 %",
        "90 %",
        "60 %",
        "10 %",
    ]
    assert "still the token read" not in by_step(FLAT).columns
    late = replace(slow, loss=np.array([9.0, 5.0, 7.0, 3.0]))  # one step back is no beginning
    assert late.worse_than_even == 0 and replace(slow, loss=np.full(4, 7.0)).worse_than_even == 3


def test_tables_and_document_hold_the_numbers():
    table = by_step(FLAT)
    assert table.columns[4] == "state size (RMS)"
    assert table.rows[0] == ("0", "0.000", "7.600", "5.000", "0.100", "–", "–")
    assert table.rows[1] == ("1", "0.700", "2.700", "0.100", "1.10", "0.900", "0.500")
    assert by_matrix(FLAT).rows[0] == ("query, key, value", "2.0 %", "1.10")
    found = result(FLAT, "about", {"run": "r"})
    assert found.document["settled"] == 1 and found.document["loss"] == FLAT.loss.tolist()
    assert found.findings[0] == headline(FLAT) and "<svg" in found.page()


def test_captions_say_what_is_seen():
    assert losses_caption(FLAT).startswith("The loss goes from 7.600 nats per token before the first step to 2.680")
    assert moves_caption(FLAT).startswith("Step 1 moves the state most, by attention (0.900; the state then has size")


def test_what_would_come_next_is_a_row_for_each_token():
    table = by_token(("the", "·cat"), [("x", "y"), ("·sat", "⏎")], np.array([[0.1, 0.2], [0.75, 1.0]]))
    assert tuple(table.columns) == ("token", "depth 0", "step 1")
    assert list(table.rows) == [("0 the", "x 0.10", "·sat 0.75"), ("1 ·cat", "y 0.20", "⏎ 1.00")]
    assert by_token(("the",), [("x",)], np.array([[0.0049]])).rows[0][1] == "x 0.0049"
