"""The page of quality against depth: its sentences are right, its figures show what was measured."""

import math

import pytest
from diffeqformer.report.depth_page import comparisons, depth_page, depths_table, finding, marks_table

from diffeqformer.evaluation.depth import DepthCurve, Mark
from diffeqformer.evaluation.perplexity import Evaluation
from diffeqformer.report.depth_figures import field_evaluations, quality_over_compute, quality_over_depth
from diffeqformer.report.figures import save
from diffeqformer.report.page import write_page

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
        ({6: 20.0}, "has perplexity 20.00."),
        ({4: 40.0, 6: 20.0}, "; run at other depths without fine-tuning, it is 2.00\u00a0times (4 steps) as high."),
        (
            {1: 400.0, 5: 20.4, 6: 20.0, 7: 19.0, 8: 30.0},
            "at 5 and 7 steps it is at most 2 % above that and elsewhere 1.50\u00a0times (8 steps) to 20\u00a0times "
            "(1 step) as high.",
        ),
        ({6: 20.0, 7: 20.0, 9: math.nan}, "at 7 steps it is at most 2 % above that and it is not finite at 9 steps."),
    ],
)
def test_the_sentence_says_what_is_seen(perplexities, end):
    said = finding(curve(perplexities))
    assert said.startswith("At its own 6 steps DiffEqFormer") and said.endswith(end), said


def test_nothing_finite_is_said_so():
    assert finding(curve({6: math.nan})) == "DiffEqFormer has no finite perplexity at its own 6 steps."


def test_other_models_are_named_with_what_they_are_compared_to():
    tuned, trained = comparisons(curve({4: 60.0, 6: 20.0}, VANILLA, LORA))
    assert tuned == "Fine-tuned: LoRA: perplexity 22.00 at 4 steps (before: 60.00)."
    assert trained == "Vanilla GPT, trained at that depth: perplexity 21.00 at 8 steps."


def test_tables():
    found = curve({4: 60.0, 6: 20.0}, VANILLA, LORA)
    columns, rows = depths_table(found)
    assert rows[0] == ("4", "60.00", "3.00\u00a0times", "4.0943", "1.500", "4 + 8", "3,000")
    assert rows[1][:3] == ("6 (own)", "20.00", "–") and {len(row) for row in rows} == {len(columns)}
    columns, rows = marks_table(found)
    assert rows[0][:5] == ("DiffEqFormer, fine-tuned: LoRA", "runs/lora", "4", "22.00", "60.00")
    assert rows[1][:5] == ("Vanilla GPT", "runs/gpt", "8", "21.00", "–") and len(rows[1]) == len(columns)


def test_compute_is_the_mean_of_both_halves_times_tokens():
    assert field_evaluations(measured(20.0, 4)) == 6 * 1000


@pytest.mark.parametrize("width", [9.4, 3.7])
def test_figures_show_every_depth_and_mark(width):
    found = curve({3: math.nan, 4: 60.0, 6: 20.0, 12: 90.0}, LORA, VANILLA)
    axis = quality_over_depth(found, width=width).axes[0]
    places = {(float(x), float(y)) for line in axis.lines for x, y in line.get_xydata() if 0 <= y <= 1e4 and y > 1}
    assert places >= {(4, 60), (6, 20), (12, 90), (4, 22), (8, 21)}
    assert axis.get_yscale() == "log" and {4, 6, 8, 12} <= set(axis.get_xticks())
    speed, work = quality_over_compute(found, width=width).axes
    for axis, x in ((speed, 1000.0), (work, 18 * 1000 / 1e6)):
        assert any(line.get_xydata().tolist()[-1:] == [[x, 90.0]] for line in axis.lines)
        assert {"4", "6", "12", "8"} == {text.get_text() for text in axis.texts}


def test_hostile_names_stay_text(tmp_path):
    found = curve({4: 60.0, 6: 20.0}, Mark(HOSTILE, False, HOSTILE, 5, measured(25.0, 5, None)), name=HOSTILE)
    page = write_page(tmp_path, "depth", depth_page(found, HOSTILE), found.arrays()).read_text(encoding="utf-8")
    assert "<script>alert" not in page and "&lt;script&gt;alert(1)" in page
    assert "&lt;script&gt;" in save(quality_over_depth(found), "svg").decode()
    assert {"perplexity-steps.png", "perplexity-compute.svg", "depth.npz"} <= {p.name for p in tmp_path.iterdir()}


def test_nothing_that_can_be_drawn_is_still_a_page(tmp_path):
    found = curve({6: math.nan})
    assert "no finite perplexity" in write_page(tmp_path, "depth", depth_page(found, "t"), found.arrays()).read_text()
