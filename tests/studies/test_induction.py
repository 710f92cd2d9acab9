"""The figures of induction heads show each behaviour against what is to tell it, at the grid's depths."""

import dataclasses

import numpy as np
import pytest

from diffeqformer.analysis.inference import INFERENCE, TESTS, Correlation, Induction
from diffeqformer.errors import BadInput
from diffeqformer.progress import Silent
from diffeqformer.studies.induction import Arguments, about, notes, strongest, study
from diffeqformer.studies.induction_figures import induction_maps, induction_scatter
from tests.studies.pictures import WIDTHS, blue_is_high, dark_is_high, green_is_early, points, title

TIMES = np.array([0.7, 0.85, 1.0])


@pytest.fixture
def found() -> Induction:
    draw = np.random.default_rng(0)
    behaviours = {"prefix matching": draw.uniform(0, 0.3, (3, 2)), "copying": draw.uniform(-1, 1, (3, 2)),
                  "next token": draw.uniform(-1, 1, (3, 2))}  # fmt: skip
    names = ("positive share", "sum ratio", "spectral radius")
    summaries = {f"{pair} {name}": draw.uniform(0.4, 1.0, (3, 2)) for pair in ("QK", "OV") for name in names}
    summaries["QK and OV positive"] = draw.uniform(0.4, 1.0, (3, 2))
    correlations = tuple(Correlation(b, s, 0.1 * i, (-0.1, 0.1 * i + 0.1)) for i, (b, s) in enumerate(TESTS))
    return Induction(TIMES, behaviours, summaries, correlations, 0.04, 5.0, 1.0, 3.5, 25, 4, 32)


@pytest.mark.parametrize("width", WIDTHS)
def test_maps_have_steps_to_the_right_and_heads_downwards(found, width):
    figure = induction_maps(found, width=width)
    panels = {title(axis): axis for axis in figure.axes if title(axis)}
    values = found.behaviours | found.summaries
    assert len(panels) == 6
    for name, axis in panels.items():
        (image,) = axis.images
        np.testing.assert_allclose(image.get_array(), values[name].T)
        assert image.get_extent() == [0.5, 3.5, 1.5, -0.5] and image.origin == "upper"  # head 0 above
        signed = "ratio" in name or name == "copying"
        assert (blue_is_high if signed else dark_is_high)(image)
        assert image.norm.vmin == (-1 if signed else 0) and image.norm.vmax >= values[name].max()
    marked = [axis for axis in figure.axes if any(set(points(line)[:, 1]) == {found.chance} for line in axis.lines)]
    assert len(marked) == 1 and not title(marked[0])  # the bar of prefix matching
    assert "step" in {axis.get_xlabel() for axis in panels.values()}
    assert "head" in {axis.get_ylabel() for axis in panels.values()}


@pytest.mark.parametrize("width", WIDTHS)
def test_the_test_has_the_spectrum_to_the_right_and_the_behaviour_upwards(found, width):
    *axes, bar = induction_scatter(found, width=width).axes
    chosen = [("prefix matching", "QK positive share"), ("copying", "OV positive share"), INFERENCE]
    for axis, (behaviour, summary) in zip(axes, chosen, strict=True):
        (dots,) = axis.collections
        wanted = np.stack([found.summaries[summary].ravel(), found.behaviours[behaviour].ravel()], 1)
        np.testing.assert_allclose(dots.get_offsets(), wanted)
        np.testing.assert_allclose(dots.get_array(), np.repeat(TIMES, 2))
        assert green_is_early(dots) and (axis.get_xlabel(), axis.get_ylabel()) == (summary, behaviour)
        chance = [set(points(line)[:, 1]) for line in axis.lines]
        assert chance == ([{found.chance}] if behaviour == "prefix matching" else [])
        rho = next(c.rho for c in found.correlations if (c.behaviour, c.summary) == (behaviour, summary))
        assert title(axis).startswith(f"ρ = {rho:+.2f} [−0.10, +")
        assert title(axis).endswith("\nwithin steps –")
    assert (bar.get_xlabel() if width < 5 else bar.get_ylabel()) == "depth t"


def test_the_strongest_heads_come_first_and_the_verdict_is_the_headline(found):
    rows = strongest(found, most=4).rows
    step, head = np.unravel_index(found.behaviours["prefix matching"].argmax(), (3, 2))
    assert rows[0][0] == f"step {step + 1}, head {head}" and len(rows) == 4
    assert about("runs/x", found).startswith("runs/x: 32 sequences of 25 random tokens, each 4 times")
    assert about("x", dataclasses.replace(found, sequences=1)).startswith("x: 1 sequence of 25")
    assert "0.040 for a head that attends uniformly" in notes(found.chance)[0]


def test_arguments_out_of_bounds_are_refused_before_the_run_is_opened():
    with pytest.raises(BadInput, match=r"--steps is 0, but must be at least 1\."):
        study(Arguments(run="not-there", steps=0), Silent())
