"""What a run's figures draw: numbers, colours, labels; swapped axes or series must fail here."""

import math

import numpy as np
import pytest
import report_examples as examples

from diffeqformer.report.figures import INK, MARKERS, NARROW, color
from diffeqformer.report.run_figures import depth_curve, loss_curves, smooth, smooth_window
from diffeqformer.report.run_text import claim, comparison, compute_at, depth_finding, depths_trained_at
from diffeqformer.studies.run_report import run_report


def texts(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def elastic():
    """Three models, the first of which made twice as many updates, of 2 steps first and of drawn depths then."""
    models = examples.comparison()["models"]
    first = models[0]
    first |= {"name": "Elastic DiffEqFormer", "updates": 3000, "tokens": 3000 * 16 * 128, "compute": 9000}
    first["config"]["depth"] |= {"sample": [2, 6], "shallow_fraction": 0.5}
    first["curve"]["train"] = [[2 * step, loss] for step, loss in first["curve"]["train"]]
    first["drawn"] = [
        {"steps": steps, "updates": n, "loss": 3.9, "tokens_per_second": 9000.0}
        for steps, n in ((2, 2250), (6, 750), (24, 0))
    ]
    first["depth"].append({**first["validation"], "steps": 2, "loss": 4.1})
    for model in models[1:]:
        model["compute"] = 9000
    return models


def test_losses_are_drawn_against_updates():
    models = examples.comparison()["models"]
    whole, late = loss_curves(models).axes
    for axis, start in ((whole, 0), (late, 1000)):
        assert (axis.get_xlabel(), axis.get_ylabel()) == ("updates", "loss (nats per token)")
        assert len(axis.lines) == 9  # raw, averaged and validation of each model
        for index, model in enumerate(models):
            raw, averaged, validation = axis.lines[3 * index : 3 * index + 3]
            shown = [point for point in model["curve"]["train"] if point[0] >= start]
            assert raw.get_xydata().tolist() == shown and raw.get_alpha() == 0.25
            train = np.array(model["curve"]["train"])
            means = np.convolve(train[:, 1], np.ones(5) / 5, "valid")
            kept = train[2:-2, 0] >= start
            np.testing.assert_allclose(averaged.get_xdata(), train[2:-2, 0][kept])
            np.testing.assert_allclose(averaged.get_ydata(), means[kept])
            expected = [point for point in model["curve"]["validation"] if point[0] >= start]
            assert validation.get_xydata().tolist() == expected
            assert (validation.get_marker(), validation.get_linestyle()) == (MARKERS[index], "None")
            assert {line.get_color() for line in (raw, averaged, validation)} == {color(index)}
    assert [axis.get_title(loc="left") for axis in (whole, late)] == ["all updates", "the last third"]


@pytest.mark.parametrize("width", [9.4, NARROW])
def test_legends_name_the_models_in_their_colours(width):
    models = examples.comparison()["models"]
    figure = loss_curves(models, width=width)
    assert texts(figure) == [model["name"] for model in models]
    assert [line.get_color() for line in figure.legends[0].get_lines()] == [color(i) for i in range(3)]
    boxes = [axis.get_subplotspec().get_geometry()[:2] for axis in figure.axes]
    assert boxes == [(1, 2)] * 2 if width > 5 else [(2, 1)] * 2


def test_the_moving_average_ends_with_its_last_full_window():
    steep = [(float(i), 10.0 - i / 30 + (100.0 if i == 299 else 0.0)) for i in range(300)]
    half = smooth_window(steep) // 2
    averages = smooth(steep)
    assert (averages[0][0], averages[-1][0]) == (half, 299 - half)
    assert averages[0][1] == pytest.approx(steep[half][1])
    assert averages[-1][1] == pytest.approx(steep[299 - half][1] + 100 / (2 * half + 1))


def test_compute_of_drawn_depths_grows_as_they_cost():
    first, second, _ = elastic()
    assert [compute_at(first, update) for update in (0.0, 750.0, 1500.0, 2250.0, 3000.0)] == [0, 1500, 3000, 6000, 9000]
    assert [compute_at(second, update) for update in (0.0, 750.0, 1500.0)] == [0, 4500, 9000]
    first["config"]["depth"] |= {"always": [1, 6]}  # whose every update costs seven steps more
    assert compute_at(first | {"compute": 30_000}, 1500.0) == 1500 * (1 + 2 + 6)
    figure = loss_curves(elastic(), against_compute=True)
    ends = [figure.axes[0].lines[3 * index].get_xdata()[-1] for index in range(3)]
    assert ends == [9000, 9000, 9000]
    assert figure.axes[0].get_xlabel() == "compute (steps of depth, summed over updates)"
    assert figure.axes[0].lines[0].get_ydata().tolist() == [loss for _, loss in first["curve"]["train"]]


def test_the_page_of_several_models_opens_with_depth_and_shows_losses_against_compute():
    results = {**examples.comparison(), "models": elastic()}
    report = run_report(results)
    assert [figure.name for figure in report.figures] == ["depth", "loss"]
    (axis, _) = report.figures[1].figure.axes
    assert axis.get_xlabel().startswith("compute") and "an update counts by its own" in report.figures[1].caption
    page = report.page()
    assert page.index('id="depth"') < page.index('id="results"') < page.index('id="losses"')
    assert "with the same compute" in comparison(results["models"])
    assert "updates" in run_report(examples.single()).figures[0].figure.axes[0].get_xlabel()


def test_the_headline_of_a_checkpoint_of_several_depths_is_what_it_reads_at_its_ends():
    models = elastic()
    assert claim(models) == (
        "One checkpoint at 2 to 6 steps: Elastic DiffEqFormer has a validation loss of 4.100 nats per token at 2 steps "
        "and 3.980 at 6, with the same weights."
    )
    models[1]["depth"] = [{**models[1]["validation"], "steps": n, "loss": loss} for n, loss in ((1, 7.5), (2, 6.5))]
    second = "Vanilla GPT, trained at 6 steps alone, has 6.500 nats per token at 2 steps and 4.080 at 6."
    assert claim(models).endswith(second)
    assert claim(models, 0.25) == f"{claim(models)} Read on 25 % of the validation text."
    assert run_report({**examples.comparison(), "models": models}).findings[0] == claim(models)
    models[1]["depth"] = [*models[1]["depth"], {**models[1]["validation"], "steps": 12, "loss": 7.0}]
    models[0]["depth"] = [{**p, "steps": 12 if p["steps"] == 6 else p["steps"]} for p in models[0]["depth"]]
    models[0]["drawn"] = [{"steps": n, "updates": 9} for n in (2, 12)]
    assert "alone, has 4.080 there and 6.500 nats per token at 2 steps and 7.000 at 12." in claim(models)
    models = elastic()
    models[1]["depth"] = [{**models[1]["validation"], "steps": n, "loss": loss} for n, loss in ((1, 7.5), (2, 6.5))]
    assert "3.420 nats above it at 1 step." in depth_finding(models[1])
    rows = models[0] | {"drawn": []}  # all depths in each update
    assert depths_trained_at(rows) == [2, 6] and claim(examples.comparison()["models"]) == ""


def test_the_depth_curve_is_drawn_against_steps_and_marks_what_was_trained():
    models = examples.comparison()["models"]
    models[1]["depth"] = [{**models[1]["validation"], "steps": 6, "loss": 4.21}]  # on the text of the others' depths
    figure = depth_curve(models, 2048)
    (axis,) = figure.axes
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("steps run (depth)", "validation loss (nats per token)")
    curve, ring, second, third, guess, mark = axis.lines
    assert curve.get_xydata().tolist() == [
        [3, 7.46], [4, 6.1], [5, 5.4], [6, 3.98], [8, 5.2], [9, 6.09], [12, 6.97]
    ]  # fmt: skip
    assert ring.get_xydata().tolist() == [[6, 3.98]] and ring.get_markeredgecolor() == color(0)
    assert [line.get_ydata()[0] for line in (second, third, guess)] == [4.21, 4.40, math.log(2048)]
    assert [line.get_color() for line in (curve, second, third, guess)] == [color(0), color(1), color(2), INK]
    assert mark.get_xdata()[0] == 6 and [text.get_text() for text in axis.texts] == ["trained"]
    assert [line.get_color() for line in figure.legends[0].get_lines()] == [color(0), color(1), color(2), INK]


def test_a_model_of_drawn_depths_was_trained_at_them_and_not_at_one():
    results = {**examples.comparison(), "models": elastic()}
    first = results["models"][0]
    assert depths_trained_at(first) == [2, 6]
    figure = depth_curve(results["models"], 2048)
    rings = [line.get_xydata().tolist() for line in figure.axes[0].lines if line.get_markersize() == 11]
    assert rings == [[[2, 4.1]], [[6, 3.98]]] and not figure.axes[0].texts
    assert texts(figure)[0] == "Elastic DiffEqFormer, trained at 2 and 6 steps"
    assert depth_finding(first).startswith("Elastic DiffEqFormer was trained at 2 and 6 steps; at 6 its loss is 3.980")
    page = run_report(results).page()
    assert "6 (trained at 2 and 6)" in page and "only ever asked" not in page


def test_columns_without_a_number_are_left_out():
    results = {**examples.comparison(), "models": elastic()}
    depth, main = run_report(results).tables[:2]
    assert depth.columns == ("steps run", "Elastic DiffEqFormer") and depth.rows[0] == ("2", "4.100")
    assert "bits per byte" in main.columns
    for model in results["models"]:
        model["validation"]["bits_per_byte"] = None
    assert "bits per byte" not in run_report(results).tables[1].columns
