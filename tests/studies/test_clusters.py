"""The figures of moving points show where they go and how gathered they are, over the times that they have."""

import math

import numpy as np
import pytest
from matplotlib.collections import QuadMesh
from matplotlib.colors import to_hex, to_rgb

from diffeqformer.analysis.clusters import Simulation
from diffeqformer.analysis.gathering import HiddenStates, measure
from diffeqformer.errors import BadInput
from diffeqformer.progress import Silent
from diffeqformer.report.figures import COLORS, INK
from diffeqformer.report.page import Cloud, frame_of
from diffeqformer.studies.clusters import (
    Arguments,
    ends_of,
    finding,
    growth_name,
    means_of,
    states_table,
    study,
)
from diffeqformer.studies.clusters_figures import (
    _project,
    cloud_of,
    measures,
    places_of,
    state_measures,
    state_trajectories,
    trajectories,
)
from diffeqformer.studies.clusters_text import distances, gathering, groups
from tests.studies.pictures import WIDTHS, band, hexed, legend, points, title

TIMES = np.array([0.0, 0.7, 0.9, 1.0])
DRAW = np.random.default_rng(0)
STATES = DRAW.normal(size=(4, 3, 5, 3)) * np.array([4.0, 3.0, 2.0, 1.0])[:, None, None, None]  # they gather


def simulation(order: int, times: np.ndarray = TIMES) -> Simulation:
    states = STATES + order
    return Simulation("particles", order, times, states[:, 0], measure(states))


@pytest.fixture
def hidden() -> HiddenStates:
    explained = np.array([0.5, 0.3, 0.2])
    return HiddenStates(TIMES, measure(STATES), np.linalg.norm(STATES, axis=-1).mean(-1), STATES[:, 0], explained)


def test_the_third_direction_goes_up_and_the_first_two_lie_flat():
    first, second, third = _project(np.eye(3))
    assert third == pytest.approx([0, math.cos(math.radians(20))])
    assert first[0] < 0 < second[0] and first[1] < 0 and second[1] < 0


@pytest.mark.parametrize("width", WIDTHS)
def test_paths_go_from_a_ring_to_a_dot_in_the_colour_of_their_cluster(width):
    panels = [Cloud("f", STATES[:, 0], (0, 0, 1, -1, 1)), Cloud("g", STATES[:, 1], (-1,) * 5)]
    figure = trajectories(panels, width=width)
    for axis, panel in zip(figure.axes, panels, strict=False):
        middle, reach = frame_of(panel.states)
        seen = _project((panel.states - middle) / reach)
        paths = next(c for c in axis.collections if len(c.get_paths()) == 5 and len(c.get_segments()[0]) > 2)
        for point, path in enumerate(paths.get_segments()):
            np.testing.assert_allclose(path[[0, -1]], seen[[0, -1], point])
        rings, dots = axis.collections[-2:]
        np.testing.assert_allclose(rings.get_offsets(), seen[0])
        np.testing.assert_allclose(dots.get_offsets(), seen[-1])
        assert len(rings.get_facecolor()) == 0 and len(dots.get_facecolor()) == 5
        shades = [COLORS[n] if n >= 0 else INK for n in panel.series]
        assert [to_hex(c) for c in dots.get_facecolor()] == [to_hex(c) for c in rings.get_edgecolor()] == shades
        assert axis.get_title(loc="center") == panel.title


@pytest.mark.parametrize("width", WIDTHS)
def test_measures_are_medians_over_systems_at_their_times(width):
    several = [simulation(0), simulation(2)]
    figure = measures(several, 0.3, width=width)
    of = lambda one: (one.measures.clusters(0.3), one.measures.clusters(0.3, of="now"), one.measures.distance,
                      one.measures.energy)  # fmt: skip
    titles = ("first mean distance", "present one", "mean distance of two points", "interaction energy")
    for place, (axis, said) in enumerate(zip(figure.axes, titles, strict=True)):
        for index, one in enumerate(several):
            values = of(one)[place]
            np.testing.assert_allclose(points(axis.lines[index]), np.stack([TIMES, np.median(values, axis=1)], 1))
            low, high = np.quantile(values[1], (0.25, 0.75))
            np.testing.assert_allclose(band(axis.collections[index], 0.7), (low, high))
        assert said in title(axis) and axis.get_xlabel() == "time"
        assert (axis.get_yscale() == "log") == (place == 2)
    assert set(points(figure.axes[3].lines[-1])[:, 1]) == {math.e / 2}
    assert legend(figure) == {"f = 1 (shared)": COLORS[0], "f = τ²": COLORS[1]}


@pytest.mark.parametrize("width", WIDTHS)
def test_measures_of_hidden_states_are_drawn_at_the_depths_of_the_states(hidden, width):
    figure = state_measures(hidden, (0.25, 0.5), width=width)
    wanted = [
        [hidden.measures.clusters(share, of="now") for share in (0.25, 0.5)],
        [hidden.norm], [hidden.measures.distance / hidden.norm], [hidden.measures.energy],
    ]  # fmt: skip
    titles = (
        "clusters of 5 tokens", "mean state norm", "mean distance / length of states", "interaction energy"
    )  # fmt: skip
    for axis, curves, said in zip(figure.axes, wanted, titles, strict=True):
        for line, values in zip(axis.lines, curves, strict=False):
            np.testing.assert_allclose(points(line), np.stack([TIMES, np.median(values, axis=1)], 1))
        assert (title(axis), axis.get_xlabel()) == (said, "depth") and axis.get_yscale() == "linear"
    assert [set(points(line)[:, 1]) for line in figure.axes[3].lines[1:]] == [{0.5}, {math.e / 2}]
    assert set(points(figure.axes[2].lines[-1])[:, 1]) == {math.sqrt(2)}
    assert list(legend(figure)) == [f"clusters at {share} % of the mean distance" for share in (25, 50)]
    assert {hexed(line) for axis in figure.axes for line in axis.lines} == {INK}  # colours are places in the text there
    (named,) = [one.get_lines() for one in figure.legends]
    looks = [(line.get_alpha(), line.get_marker()) for line in named]
    assert looks == [(line.get_alpha(), line.get_marker()) for line in figure.axes[0].lines] and len({*looks}) == 2


@pytest.mark.parametrize("width", WIDTHS)
def test_the_first_token_is_orange_and_the_last_blue(hidden, width):
    axis, bar = state_trajectories(hidden, width=width).axes
    rings, dots = axis.collections[-2:]
    middle, reach = frame_of(hidden.projection)
    seen = _project((hidden.projection - middle) / reach)
    np.testing.assert_allclose(rings.get_offsets(), seen[0])
    np.testing.assert_allclose(dots.get_offsets(), seen[-1])
    shades = [to_hex(shade) for shade in dots.get_facecolor()]
    assert shades == ["#e69f00", "#d55e00", "#cc79a7", "#56b4e9", "#0072b2"]
    assert shades == [COLORS[place] for place in places_of(5)]  # as the animation paints them
    mesh = next(one for one in bar.collections if isinstance(one, QuadMesh))
    assert [to_hex(mesh.cmap(mesh.norm((place + 0.5) / 5))) for place in range(5)] == shades
    assert [(t.get_position()[0], t.get_text()) for t in bar.get_xticklabels()] == [
        (0, "first token"), (1, "last token")
    ]  # fmt: skip


@pytest.mark.parametrize("tokens", [2, 3, 64])
def test_places_in_a_text_go_from_warm_to_cool_and_never_back(tokens):
    warmth = [red - blue for red, _, blue in (to_rgb(COLORS[place]) for place in places_of(tokens))]
    assert len(warmth) == tokens and warmth == sorted(warmth, reverse=True)
    assert (places_of(tokens)[0], places_of(tokens)[-1]) == (4, 0)


def test_points_that_end_together_have_one_colour_and_a_lone_one_none():
    states = np.zeros((2, 4, 3))
    states[0] = 5 * DRAW.normal(size=(4, 3))
    states[1, 2:] = [[9.0, 0, 0], [0, 9.0, 0]]
    cloud = cloud_of(Simulation("particles", 1, TIMES[:2], states, measure(states[:, None])), 0.1)
    assert cloud.series == (0, 0, -1, -1) and cloud.title == f"{growth_name(1)}: 3 clusters" == "f = τ: 3 clusters"


def test_rows_are_the_ends_and_the_sentences_follow_from_them(hidden):
    row = ends_of(simulation(0), 0.3)
    assert row["distance"] == [float(np.median(simulation(0).measures.distance[i])) for i in (0, -1)]
    counts = {"clusters_of_present": [5, 4], "clusters": [6, 3]}
    both = [row | counts, row | counts | {"order": 1, "clusters_of_present": [5, 2]}]
    sphere = [one | {"variant": "sphere"} for one in both]
    assert finding(both + sphere) == (
        "Clusters left at the end, out of those at the start: particles, 2 of 5 with f = τ, 4 with f = 1 (shared); "
        "sphere, 3 of 6 for every f."
    )
    tied = [*both, both[0] | {"order": 2}]
    assert finding(tied).endswith("particles, 2 of 5 with f = τ, 4 with f = 1 (shared) and f = τ².")
    assert finding(sphere[:1]).endswith(": sphere, 3 of 6 with f = 1 (shared).")
    rows = means_of(hidden, (0.25, 0.5))
    relative = [float((hidden.measures.distance[i] / hidden.norm[i]).mean()) for i in (0, -1)]
    assert [rows[i]["relative_distance"] for i in (0, -1)] == pytest.approx(relative)
    said = distances(rows[0], rows[-1])
    assert said.startswith(
        f"The mean distance between two states goes from {relative[0]:.2f} to {relative[1]:.2f} of their"
    )
    assert [r["depth"] for r in rows] == TIMES.tolist()
    table = states_table(rows, (0.25, 0.5), "c")
    assert [r[0] for r in table.rows] == ["0.000", "0.700", "0.900", "1.000"]
    assert table.columns[3:] == ("state norm", "mean distance", "distance / length", "interaction energy")
    assert all(cell.isdigit() for row in table.rows for cell in row[1:3])  # counts are whole


def test_what_is_said_of_states_follows_their_energy_and_their_groups():
    start = {"energy": 1.0, "clusters": {"0.5": 10.0}}
    of = lambda *energies: gathering([start, *({"energy": e, "clusters": {"0.5": 5.0}} for e in energies)], 12, 9.0, 3)
    assert of(1.2) == (
        "Tokens gather in direction: the interaction energy goes 1.000 → 1.200 (0.5 if all were at right angles, "
        "1.359 if all had one direction). Groups merge: at 50 % of the mean distance, 10 clusters become 5, of 12 "
        "tokens, 9 of them distinct. 3 texts were used."
    )
    assert of(1.5, 1.1).startswith(
        "Tokens gather in direction up to step 1 of 2, and scatter after that: the interaction energy goes 1.000 → "
        "1.500 at step 1 → 1.100 ("
    )
    assert of(0.5, 1.1).startswith("Tokens scatter in direction up to step 1 of 2, and gather after that: the")
    assert of(0.5).startswith("Tokens scatter in direction: the")
    assert of(1.05).startswith("Tokens neither gather nor scatter clearly in direction: the")
    assert "energy goes 1.000 → 1.060 at step 1 → 1.010 (" in of(1.06, 1.01)  # half of what is clear is told
    assert of(1.2, 1.199).startswith("Tokens gather in direction: ")  # gone back by less than a tenth of the way
    assert of(1.2, 1.17).startswith("Tokens gather in direction up to step 1 of 2, and scatter a little after that: ")


def test_close_and_loose_groups_may_go_different_ways():
    of = lambda *pairs: groups(*({f"{k}": pair[end] for k, pair in enumerate(pairs, 1)} for end in (0, 1)), "9 tokens")
    assert of((34, 48), (31, 33), (26, 10)) == (
        "Close groups dissolve and loose ones merge: at 100 % of the mean distance, 34 clusters become 48, at 300 % of "
        "the mean distance, 26 clusters become 10, of 9 tokens."
    )
    assert of((34, 20), (31, 48)).startswith("Close groups merge and loose ones dissolve: at 100 % of")
    assert of((34, 48), (31, 33)).startswith("Groups dissolve: at 100 % of the mean distance, 34 clusters")
    assert of((34, 35), (31, 33)).startswith("Groups hardly change: at 200 % of the mean distance, 31 clusters")
    assert of((1, 1)) == "Groups hardly change: at 100 % of the mean distance, 1 cluster becomes 1, of 9 tokens."


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"run": "runs/a", "systems": 3},
            "--systems is 3, but it is of simulated particles, which are not made",
        ),
        ({"run": "runs/a", "text": "x", "texts": 2}, "--texts is 2, but --text names the one to read"),
        ({"text": "x"}, "no RUN is given whose model could read it"),
    ],
)
def test_options_that_would_do_nothing_are_refused(given, said):
    with pytest.raises(BadInput, match=said):
        study(Arguments(**given), Silent())
