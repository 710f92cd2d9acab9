"""The page of quality against depth: its sentences are right, its figures show what was measured."""

import math
from dataclasses import replace

import numpy as np
import pytest

from diffeqformer.evaluation.depth import Adaptive, DepthCurve, Mark
from diffeqformer.evaluation.perplexity import Evaluation
from diffeqformer.report.figures import COLORS, save
from diffeqformer.studies.depth import (
    _beside,
    comparisons,
    depths_table,
    exits_table,
    finding,
    lowest,
    marks_table,
    result,
    speeds,
)
from diffeqformer.studies.depth_figures import field_evaluations, quality_over_compute, quality_over_depth
from tests.studies.pictures import WIDTHS, hexed, legend, points

HOSTILE = "</svg><script>alert(1)</script>$x$ & _y"


def measured(perplexity: float, steps: int = 6, bits: float | None = 1.5) -> Evaluation:
    loss = math.log(perplexity) if math.isfinite(perplexity) else perplexity
    return Evaluation(loss, perplexity, bits, 1000, 12000 / steps, float(steps), 2.0 * steps)


def curve(perplexities: dict[int, float], *marks: Mark, own: int = 6, name: str = "DiffEqFormer") -> DepthCurve:
    return DepthCurve(name, own, {n: measured(p, n) for n, p in perplexities.items()}, marks)


LORA = Mark("LoRA", True, "runs/lora", 4, measured(22.0, 4))
VANILLA = Mark("Vanilla GPT", False, "runs/gpt", 8, measured(21.0, 8))


@pytest.mark.parametrize(
    ("perplexities", "end"),
    [
        ({6: 20.0}, " there."),
        ({4: 40.0, 6: 20.0}, " there; without fine-tuning it is 2.00\u00a0times as high at 4 steps."),
        (
            {1: 400.0, 5: 20.3, 6: 20.0, 7: 19.0, 8: 30.0},
            "it is at most 1.5\u00a0% higher at 5 and 7 steps and 50\u00a0% higher at 8 steps and "
            "20\u00a0times as high at 1 step.",
        ),
        ({3: 20.6, 6: 20.0}, "it is 3.0\u00a0% higher at 3 steps."),
        ({6: 20.0, 7: 20.0, 9: math.nan}, "it is no higher at 7 steps and not finite at 9 steps."),
    ],
)
def test_the_sentence_says_what_is_seen(perplexities, end):
    said = finding(curve(perplexities))
    assert said.startswith("DiffEqFormer, trained at 6 steps alone, has perplexity 20.00 there"), said
    assert said.endswith(end), said


def test_depths_of_training_are_told_and_ringed():
    """A model of drawn depths is not one that happens to work away from its own."""
    found = replace(curve({3: 20.2, 6: 20.0, 7: 20.1, 12: 20.0}), trained=(3, 6, 12))
    assert finding(found) == (
        "DiffEqFormer, trained at 3, 6 and 12 steps, has perplexity 20.00 at 6; it is within 1.0\u00a0% at 3 and 12 "
        "steps. At depths at which it was not trained, it is within 0.5\u00a0% at 7 steps."
    )
    deep = replace(curve({1: 900.0, 2: 32.0, 3: 24.0, 5: 22.0, 6: 20.0, 8: 19.9, 9: 20.1}), trained=(2, 3, 5, 6, 8))
    assert finding(deep) == (
        "DiffEqFormer, trained at 2, 3, 5, 6 and 8 steps, has perplexity 20.00 at 6; it is within 0.5\u00a0% at 8 "
        "steps and 10\u00a0% higher at 5 steps, 20\u00a0% higher at 3 steps, 60\u00a0% higher at "
        "2 steps. At depths at which it was not trained, it is within 0.5\u00a0% at 9 steps and 45\u00a0times as high "
        "at 1 step."
    )
    assert [row[:2] for row in depths_table(found).rows] == [
        ("3", "yes"), ("6 (reference)", "yes"), ("7", "no"), ("12", "yes")
    ]  # fmt: skip
    rings = [line for line in quality_over_depth(found).axes[0].lines if line.get_markersize() > 10]
    assert [points(ring).tolist() for ring in rings] == [[[3, 20.2]], [[6, 20.0]], [[12, 20.0]]]


@pytest.mark.parametrize("width", WIDTHS)
def test_a_model_that_was_trained_with_adaptive_steps_was_trained_at_no_depth(width):
    found = replace(curve({3: 22.0, 6: 20.3}), adaptive=Adaptive(0.1, measured(20.0, 9)))
    assert finding(found) == (
        "DiffEqFormer, trained with adaptive steps (rtol 0.1), has perplexity 20.00 with them; with fixed steps, with "
        "which it was not trained, it is within 1.5\u00a0% at 6 steps and 10\u00a0% higher at 3 steps."
    )
    table = depths_table(found)
    assert [row[:4] for row in table.rows] == [
        ("adaptive steps (rtol 0.1)", "yes", "20.00", "–"),
        ("3", "no", "22.00", "+10.0\u00a0%"), ("6", "no", "20.30", "+1.5\u00a0%"),
    ]  # fmt: skip
    assert table.columns[3] == "against adaptive"
    page = result(found, "t", {})
    assert page.document["adaptive"]["perplexity"] == 20.0 and "Dotted: adaptive steps" in page.figures[0].caption
    figure = quality_over_depth(found, width=width)
    lines = figure.axes[0].lines
    assert not [line for line in lines if line.get_markersize() > 10]  # no ring
    assert [line.get_ydata()[0] for line in lines if line.get_linestyle() == ":"] == [20.0]
    assert "adaptive steps (rtol 0.1)" in legend(figure) and quality_over_compute(found, width=width)
    lost = replace(found, adaptive=Adaptive(0.1, measured(math.nan)))
    assert finding(lost) == "DiffEqFormer has no finite perplexity with adaptive steps (rtol 0.1)."
    assert quality_over_depth(lost, width=width)


def test_captions_begin_with_what_is_seen():
    found = curve({4: 60.0, 6: 20.0, 8: 19.0, 9: math.nan})
    assert lowest(found) == "Of 4 depths, 8 steps have the lowest perplexity, 19.00"
    assert lowest(curve({6: 20.0, 7: 21.0})) == "Of 2 depths, 6 steps (its own) have the lowest perplexity, 20.00"
    assert lowest(curve({1: 20.0, 7: 21.0})) == "Of 2 depths, 1 step has the lowest perplexity, 20.00"
    assert lowest(curve({6: math.nan})) == "No depth has a finite perplexity"
    assert lowest(curve({6: 20.0})) == "Perplexity 20.00 at 6 steps, the one depth that was evaluated"
    said = "DiffEqFormer reads 3,000 tokens per second at 4 steps and 1,333 tokens per second at 9 steps"
    assert speeds(found) == said
    assert [one.caption.partition(":")[0] for one in result(found, "t", {}).figures] == [lowest(found), said]


def test_nothing_finite_is_said_so():
    assert finding(curve({6: math.nan})) == "DiffEqFormer has no finite perplexity at its own 6 steps."


def test_other_models_are_named_with_what_they_are_compared_to():
    tuned, trained = comparisons(curve({4: 60.0, 6: 20.0}, VANILLA, LORA))
    assert tuned == "Fine-tuned: LoRA: perplexity 22.00 at 4 steps (before: 60.00)."
    assert trained == "Vanilla GPT, trained at that depth: perplexity 21.00 at 8 steps."


def test_tables():
    found = curve({4: 60.0, 6: 20.0}, VANILLA, LORA)
    table = depths_table(found)
    columns, rows = table.columns, table.rows
    assert rows[0] == ("4", "no", "60.00", "3.00\u00a0times", "4.094", "1.500", "4 + 8", "3,000")
    assert rows[1][:4] == ("6 (own)", "yes", "20.00", "–") and {len(row) for row in rows} == {len(columns)}
    table = marks_table(found)
    columns, rows = table.columns, table.rows
    assert rows[0][:5] == ("DiffEqFormer, fine-tuned: LoRA", "runs/lora", "4", "22.00", "60.00")
    assert rows[1][:5] == ("Vanilla GPT", "runs/gpt", "8", "21.00", "–") and len(rows[1]) == len(columns)


def test_compute_is_the_mean_of_both_halves_times_tokens():
    assert field_evaluations(measured(20.0, 4)) == 6 * 1000


@pytest.mark.parametrize("width", WIDTHS)
def test_perplexity_stands_above_the_number_of_steps(width):
    found = curve({3: math.nan, 4: 60.0, 6: 20.0, 12: 90.0}, LORA, VANILLA)
    figure = quality_over_depth(found, width=width)
    axis = figure.axes[0]
    line, marks, ring, lora, gpt = axis.lines[:5]
    for one in (line, marks):
        assert points(one).tolist() == [[4, 60], [6, 20], [12, 90]] and hexed(one) == COLORS[0]
    assert points(ring).tolist() == [[6, 20]] and ring.get_markersize() > 10  # around its own depth
    assert points(lora).tolist() == [[4, 22]] and lora.get_markerfacecolor() == COLORS[1]  # fine-tuned: filled
    assert points(gpt).tolist() == [[8, 21]] and gpt.get_markerfacecolor() == "none"
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("steps run (depth)", "perplexity (log scale)")
    assert axis.get_yscale() == "log" and {4, 6, 8, 12} <= set(axis.get_xticks())
    assert legend(figure) == {
        "DiffEqFormer, not fine-tuned": COLORS[0],
        "fine-tuned: LoRA": COLORS[1],
        "Vanilla GPT, trained at that depth": COLORS[2],
    }


@pytest.mark.parametrize("width", WIDTHS)
def test_perplexity_stands_above_speed_and_work(width):
    found = curve({3: math.nan, 4: 60.0, 6: 20.0, 12: 90.0}, LORA, VANILLA)
    figure = quality_over_compute(found, width=width)
    speed, work = figure.axes
    cost = {speed: lambda steps: 12000 / steps, work: lambda steps: 1.5 * steps * 1000 / 1e6}
    for axis, x in cost.items():
        assert points(axis.lines[0]) == pytest.approx(points(axis.lines[1]))
        wanted = [[x(4), 60], [x(6), 20], [x(12), 90]]
        assert points(axis.lines[0]) == pytest.approx(np.array(wanted))
        assert points(axis.lines[-1])[0] == pytest.approx([x(8), 21])
        assert {text.get_text(): text.xy[1] for text in axis.texts} == {"4": 22, "6": 20, "12": 90, "8": 21}
    assert speed.get_xlabel() == "tokens per second" and work.get_xlabel().startswith("evaluations of the field")
    assert speed.get_ylabel() == "perplexity (log scale)" and len(legend(figure)) == 3


@pytest.mark.parametrize("width", WIDTHS)
def test_early_exit_stands_above_its_mean_number_of_steps(width):
    exits = {0.1: measured(30.0, 3), 0.01: measured(25.0, 5)}
    found = DepthCurve("D", 6, {6: measured(20.0, 6), 12: measured(21.0, 12)}, (), exits)
    figure = quality_over_depth(found, width=width)
    (line,) = (one for one in figure.axes[0].lines if one.get_marker() == "x")
    assert points(line).tolist() == [[3, 30], [5, 25]]
    assert legend(figure)["early exit from 12 steps (mean taken)"] == hexed(line) != COLORS[0]
    assert [row[:2] for row in exits_table(found).rows] == [("0.1", "3.00"), ("0.01", "5.00")]


def test_hostile_names_stay_text(tmp_path):
    found = curve({4: 60.0, 6: 20.0}, Mark(HOSTILE, False, HOSTILE, 5, measured(25.0, 5, None)), name=HOSTILE)
    page = result(found, HOSTILE, {}).write(tmp_path).read_text(encoding="utf-8")
    assert "<script>alert" not in page and "&lt;script&gt;alert(1)" in page
    assert "&lt;script&gt;" in save(quality_over_depth(found), "svg").decode()
    assert {"perplexity-steps.png", "perplexity-compute.svg", "depth.npz"} <= {p.name for p in tmp_path.iterdir()}


def test_nothing_that_can_be_drawn_is_still_a_page(tmp_path):
    found = curve({6: math.nan})
    assert "no finite perplexity" in result(found, "t", {}).write(tmp_path).read_text()


def test_depths_that_are_better_are_called_lower():
    assert _beside({12: 0.95}) == "5.0\u00a0% lower at 12 steps"
    assert _beside({12: 0.95, 8: 0.97}) == "3.0\u00a0% to 5.0\u00a0% lower at 12 and 8 steps"
    assert _beside({12: 0.95, 8: 1.01}) == "at most 1.0\u00a0% higher at 12 and 8 steps"
