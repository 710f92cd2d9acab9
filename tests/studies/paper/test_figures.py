"""The figures of the paper's page: claims in rows that can be read, panels against a size, particles."""

import re
from itertools import pairwise

import numpy as np
import pytest

from diffeqformer.progress import Silent
from diffeqformer.studies.paper.claims import Verdict, judge
from diffeqformer.studies.paper.figures import against, effects, particles
from diffeqformer.studies.paper.runs import Arguments, Runs
from tests.studies.pictures import WIDTHS


def test_numbers_against_a_size_are_lines_through_means_of_seeds():
    figure = against(
        "d_emb",
        (4.0, 48.0),
        {"loss": {"": [[1.0, 3.0], [1.5]]}, "memory": {"16": [[1.0], [2.0]], "64": [[3.0], [4.0]]}},
    )
    loss, memory = figure.axes[:2]
    assert np.array_equal(loss.lines[0].get_ydata(), [2.0, 1.5])
    assert np.array_equal(loss.lines[1].get_ydata(), [1.0, 3.0])
    assert memory.get_legend_handles_labels()[1] == ["16", "64"]


def test_the_figure_shows_seeds_mean_and_interval():
    found = judge({0: 0.1, 1: 0.2, 2: 0.3})
    axes = effects([("claim", found), ("other", judge({0: -0.2}))]).axes[0]
    seeds, mean, interval = axes.lines[:3]
    assert np.array_equal(seeds.get_xdata(), [0.1, 0.2, 0.3])
    assert np.array_equal(mean.get_xdata(), [found.mean])
    assert np.array_equal(interval.get_xdata(), [found.low, found.high])
    assert [np.asarray(line.get_ydata())[0] for line in (seeds, axes.lines[3])] == list(axes.get_yticks())
    assert axes.get_yticklabels()[0].get_text() == "claim (within noise)"
    assert axes.yaxis_inverted() and axes.get_xscale() == "symlog" and "logarithmic beyond" in axes.get_xlabel()
    figure = effects([("claim", found)])
    figure.canvas.draw()
    ticks = figure.axes[0].xaxis.get_major_ticks()
    assert all(tick.label1.get_visible() and tick.label2.get_visible() for tick in ticks)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("ends", [(0.005, 0.053), (-0.2, 0.3), (-0.54, 0.43), (-2.8, 1.2), (0.0, 1.0), (0.0, 0.0)])
def test_effects_of_any_size_can_be_read_off_the_axis(ends, width):
    low, high = ends
    figure = effects([("claim", Verdict("holds", {}, (low + high) / 2, low, high, 3))], width=width)
    figure.canvas.draw()
    axes = figure.axes[0]
    both = axes.get_xticklabels()  # those below, then those above
    start, stop = axes.get_xlim()
    labels = [label for label in both[: len(both) // 2] if start <= label.get_position()[0] <= stop]
    ticks = [label.get_position()[0] for label in labels]
    boxes = [label.get_window_extent() for label in labels]
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))
    assert 0 in ticks and all(len(label.get_text()) <= 6 for label in labels)
    for end in ends:  # a tick of its own order of size
        assert end == 0 or any(1 / 5 <= tick / end <= 5 for tick in ticks)
        assert start < end < stop


@pytest.mark.parametrize("width", WIDTHS)
def test_names_of_claims_do_not_overlap(width):
    claims = [("word " * n, judge({0: 0.1})) for n in (1, 40, 12, 25, 40)]
    figure = effects(claims, width=width)
    figure.canvas.draw()
    boxes = [label.get_window_extent() for label in figure.axes[0].get_yticklabels()]
    assert all(above.y0 > below.y1 for above, below in pairwise(boxes))
    inside = figure.axes[0].get_window_extent()
    assert boxes[0].y1 <= inside.y1 and boxes[-1].y0 >= inside.y0


def test_the_particles_legend_says_what_is_drawn():
    (figure,) = particles(Runs(Arguments(), {}, Silent()), ())
    titles = [axis.get_title(loc="center") for axis in figure.figure.axes]
    assert figure.caption.startswith("; ".join(titles)) and all("cluster" in title for title in titles)
    # What is drawn must not belie the medians, of which the claims are.
    drawn = [int(re.findall(r"(\d+) cluster", title)[0]) for title in titles]
    said = re.search(r"medians are (\S+), (\S+) and (\S+) clusters", figure.caption)
    assert said is not None
    medians = [float(one) for one in said.groups()]
    assert drawn[0] < drawn[1] < drawn[2] and medians[0] < medians[1] < medians[2]
    assert all(2 / 3 < one / median < 3 / 2 for one, median in zip(drawn, medians, strict=True))
