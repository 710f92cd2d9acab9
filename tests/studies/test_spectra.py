"""The figures of spectra show the eigenvalues where they are, and the page says what they say."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.collections import LineCollection

from diffeqformer.analysis.spectra import RADIUS, SHARE, Spectra, Spectrum, spectra
from diffeqformer.config import (
    Config,
    DepthConfig,
    KnotsConfig,
    LayerConfig,
    ModulationConfig,
    SharedConfig,
    ToleranceConfig,
)
from diffeqformer.report.figures import save
from diffeqformer.report.text import digits, percent
from diffeqformer.studies.spectra import (
    by_head,
    caveats,
    change,
    figures,
    headline,
    notes,
    turns,
    why_steps_alone,
)
from diffeqformer.studies.spectra_figures import (
    beyond_frame,
    display_names,
    flow,
    frame_of_plane,
    real_parts,
    summaries,
)
from tests.models import TINY, model_of
from tests.studies.pictures import WIDTHS, blue_is_high, green_is_early, hexed, legend, points

TIMES = np.array([0.0, 0.2, 0.7, 0.9, 1.0])
STEPS = np.array([False, False, True, False, True])
EDGES = np.array([0.0, 0.7, 1.0])


def spectrum(heads: int = 2, *, seed: int = 0) -> Spectrum:
    """No two numbers alike; real parts mostly positive and imaginary parts negative and smaller, so nothing mirrors."""
    draw = np.random.default_rng(seed)
    values = draw.uniform(-0.5, 2.0, (5, heads, 3)) - 1j * draw.uniform(0.1, 0.4, (5, heads, 3))
    return Spectrum(values, -np.sort(-draw.uniform(0.1, 1.0, (5, heads, 3)), axis=-1))


def model(*, continuous: bool = True) -> Spectra:
    pairs = {name: spectrum(heads, seed=seed) for seed, (name, heads) in enumerate([("QK", 2), ("OV", 2), ("FF", 1)])}
    return Spectra(TIMES, STEPS, STEPS, continuous, EDGES, pairs)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("continuous", [True, False])
def test_real_parts_stand_at_their_depth_the_largest_above(width, continuous):
    found = model(continuous=continuous)
    (part,) = real_parts([("name", found)], "OV", width=width).subfigs
    *axes, bar = part.axes
    shown = np.ones(5, bool) if continuous else STEPS
    for head, axis in enumerate(a for a in axes if a.get_visible()):
        (mesh,) = axis.collections
        wanted = np.sort(found.pairs["OV"].eigenvalues[shown, head].real, axis=-1)[:, ::-1].T  # (number, time)
        np.testing.assert_allclose(np.asarray(mesh.get_array()).reshape(wanted.shape), wanted)
        edges = np.array([0.0, 0.1, 0.45, 0.8, 0.95, 1.0]) if continuous else EDGES
        np.testing.assert_allclose(mesh.get_coordinates()[0, :, 0], edges)
        np.testing.assert_allclose(mesh.get_coordinates()[:, 0, 1], [0.5, 1.5, 2.5, 3.5])
        assert axis.get_ylim() == (3.5, 0.5)  # row 1, the largest, above
        assert blue_is_high(mesh) and mesh.norm.vcenter == 0 and mesh.norm(1e-3) > 0.5 > mesh.norm(-1e-3)
        marks = [points(line)[:, 0].tolist() for line in axis.lines]
        assert marks == ([[0.7, 1.0]] if continuous else [])
    assert (part.get_supxlabel(), axes[0].get_ylabel()) == ("depth t", "eigenvalue, sorted")
    assert bar.get_ylabel() == "real part" and part.get_suptitle() == "OV: eigenvalues over depth (name)"


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("pair", ["QK", "FF"])
def test_titles_of_models_side_by_side_do_not_overlap(width, pair):
    found = Spectra(TIMES, STEPS, STEPS, False, EDGES, {"QK": spectrum(4), "FF": spectrum(1)})
    figure = real_parts([(f"diffeqformer, update {n}", found) for n in (0, 250, 500)], pair, width=width)
    save(figure, "png")
    figure.set_dpi(160)  # as it was saved
    for part in figure.subfigs:
        (title,) = part.texts[:1]
        assert " ".join(title.get_text().split()).startswith(f"{pair}: eigenvalues over depth (diffeqformer, update")
        here, frame = title.get_window_extent(), part.bbox
        assert frame.x0 <= here.x0 and here.x1 <= frame.x1 and here.y1 <= frame.y1 + 1
        assert all(here.y0 >= axis.get_tightbbox().y1 for axis in part.axes if axis.get_visible())


def test_a_pair_that_is_evaluated_more_often_than_there_are_steps_has_a_column_for_each_time():
    many = np.array([True, True, True, False, True])
    found = Spectra(TIMES, STEPS, many, False, EDGES, {"FF": spectrum(1)})
    mesh = real_parts([("name", found)], "FF").subfigs[0].axes[0].collections[0]
    np.testing.assert_allclose(mesh.get_coordinates()[0, :, 0], [0.0, 0.1, 0.45, 0.85, 1.0])


@pytest.mark.parametrize("width", WIDTHS)
def test_summaries_are_drawn_over_depth_with_marks_at_the_steps(width):
    models = [("first", model()), ("second", model(continuous=False))]
    figure = summaries(models, width=width)
    names = list(models[0][1].pairs["QK"].summaries())
    grid = np.array(figure.axes).reshape((len(names), 3) if width < 5 else (3, len(names)))
    grid = grid.T if width < 5 else grid
    for row, pair in enumerate(("QK", "OV", "FF")):
        for column, name in enumerate(names):
            axis = grid[row, column]
            thick = [line for line in axis.lines if line.get_marker() == "o"]
            for (_, found), line, shown, marks in zip(
                models, thick, (slice(None), STEPS), ([2, 4], [0, 1]), strict=True
            ):
                values = found.pairs[pair].summaries()[name].mean(1)
                np.testing.assert_allclose(points(line), np.stack([TIMES[shown], values[shown]], 1))
                assert list(line.get_markevery()) == marks
            heads = [points(line) for line in axis.lines if line not in thick]
            if pair != "FF":
                np.testing.assert_allclose(heads[1][:, 1], models[0][1].pairs[pair].summaries()[name][:, 1])
            assert (axis.get_yscale() == "log") == (name == RADIUS)
            if name == RADIUS:
                written = [axis.yaxis.get_major_formatter()(tick) for tick in axis.get_yticks()]
                assert [float(label) for label in written] == pytest.approx(list(axis.get_yticks()))
                assert len(axis.yaxis.get_minorticklocs()) == 0
    assert {axis.get_xlabel() for axis in grid[-1]} >= {"depth t"}
    thick = [hexed(line) for line in grid[0, 0].lines if line.get_marker() == "o"]
    assert legend(figure) == dict(zip(("first", "second"), thick, strict=True)) and thick[0] != thick[1]


@pytest.mark.parametrize("width", WIDTHS)
def test_the_flow_has_real_parts_to_the_right_and_imaginary_parts_upwards(width):
    found = model()
    figure = flow("name", found, "OV", width=width)
    *axes, bar = figure.axes
    for head, axis in enumerate(axes):
        values = found.pairs["OV"].eigenvalues[:, head]
        (curves,) = (one for one in axis.collections if isinstance(one, LineCollection))
        (dots,) = (one for one in axis.collections if one is not curves)
        pieces = np.array(curves.get_segments()).reshape(3, 4, 2, 2)  # (number, between times, end, coordinate)
        np.testing.assert_allclose(pieces[..., 0, :], np.stack([values[:-1].real, values[:-1].imag], -1).swapaxes(0, 1))
        np.testing.assert_allclose(pieces[..., 1, :], np.stack([values[1:].real, values[1:].imag], -1).swapaxes(0, 1))
        np.testing.assert_allclose(np.asarray(curves.get_array()).reshape(3, 4)[0], [0.1, 0.45, 0.8, 0.95])
        at = values[STEPS].ravel()
        np.testing.assert_allclose(dots.get_offsets(), np.stack([at.real, at.imag], -1))
        np.testing.assert_allclose(dots.get_array(), np.repeat([0.7, 1.0], 3))
        assert green_is_early(dots) and green_is_early(curves) and axis.get_aspect() == 1
        for part, (low, high) in ((at.real, axis.get_xlim()), (at.imag, axis.get_ylim())):
            assert low < min(part.min(), 0) and high > max(part.max(), 0)
        assert axis.get_xlim()[0] > -1 and axis.get_ylim()[1] < 0.5  # each axis has its own: the data's are lopsided
    assert axes[0].get_ylabel().startswith("imaginary") and axes[-1].get_xlabel() == "real part"
    assert bar.get_ylabel() == "depth t" and len(axes) == 2


def test_a_plane_has_the_frame_of_its_numbers_on_both_axes():
    wide = np.array([-1.0, 4.0, 3.0 + 0.1j, 3.0 - 0.1j])
    (left, right), (low, high) = frame_of_plane(wide)
    assert left == pytest.approx(-1.4, abs=0.1) and right == pytest.approx(4.4, abs=0.1)
    assert high == -low == pytest.approx(5 / 8, abs=0.01)  # a quarter of the other side
    (left, right), (low, high) = frame_of_plane(np.array([1.0 + 2j, 1 - 2j]), np.array([2.0 + 5j]))
    assert left < 0 and right > 2 and low < -2 and high > 5
    assert frame_of_plane(np.zeros(3, complex)) == ((-0.5, 0.5), (-0.5, 0.5))


def test_what_the_frame_leaves_out_is_told():
    """One eigenvalue of a step in 200, of absolute value 50, is beyond 99 % of them; of other times none is counted."""
    values = np.tile(np.linspace(-1, 1, 200) + 0j, (5, 1, 1))
    values[2, 0, 7] = 30 + 40j
    values[1, 0, 3] = 1000
    found = dataclasses.replace(model(continuous=False), pairs={"FF": Spectrum(values, np.ones((5, 1, 200)))})
    assert beyond_frame(found, "FF") == " 1 of 400 lies outside the frame, with absolute values up to 50."
    inside = dataclasses.replace(found, pairs={"FF": Spectrum(0 * values, np.ones((5, 1, 200)))})
    assert beyond_frame(inside, "FF") == ""


def test_runs_are_called_by_their_folders_where_these_differ():
    assert display_names(["runs/a/gpt", "runs/b"]) == {"runs/a/gpt": "gpt", "runs/b": "b"}
    assert display_names(["runs/a/gpt", "runs/b/gpt"]) == {name: name for name in ("runs/a/gpt", "runs/b/gpt")}


def test_a_table_of_layers_has_dots_alone():
    figure = flow("name", model(continuous=False), "QK")
    assert not any(isinstance(one, LineCollection) for axis in figure.axes[:-1] for one in axis.collections)


def test_the_second_model_is_drawn_beside_the_first():
    models = [("first", model()), ("second", model(continuous=False))]
    made = {one.name: one for one in figures(models)}
    assert set(made) == {"real-parts-qk", "real-parts-ov", "real-parts-ff", "summaries"} | {
        f"flow-{pair}{which}" for pair in ("qk", "ov", "ff") for which in ("", "-against")
    }
    drawn = [part.get_suptitle() for part in made["real-parts-qk"].figure.subfigs]
    assert drawn == ["QK: eigenvalues over depth (first)", "QK: eigenvalues over depth (second)"]
    said = made["flow-qk-against"].figure.get_suptitle()
    assert said == "QK: eigenvalues in the complex plane (second)"


def test_sentences_are_those_of_the_numbers():
    found = model()
    first, last = (found.pairs["QK"].radius[i].mean() for i in (2, 4))
    assert f"QK {first:#.3g} → {last:#.3g}" in change([("m", found)], RADIUS, digits)
    grown = {pair: (found.pairs[pair].radius[4] > found.pairs[pair].radius[2]).sum() for pair in ("QK", "OV")}
    assert by_head(found).endswith(f"it grows in QK in {grown['QK']} of 2 heads and OV in {grown['OV']} of 2 heads.")
    said = notes([("m", found)], (), {"m": " Said so."}, fold_norm=True, seed=3)
    assert (
        "the norms' scales are multiplied in" in said[0] and "m: 5 times" in said[-1] and said[-1].endswith(" Said so.")
    )


def test_of_a_model_of_one_depth_the_steps_alone_are_shown():
    """Weights between them were never trained: its figures would be mostly of those."""
    found = dataclasses.replace(model(), continuous=False)
    said = notes([("m", found), ("n", found)], (), {"m": "said so", "n": "and so"}, fold_norm=False, seed=0)
    assert said[-2:] == ("m: said so.", "n: and so.")
    assert not any("Curves are made" in line for line in said)
    drawn = real_parts([("m", found)], "QK").subfigs[0].axes[0].collections[0]
    assert drawn.get_array().shape == (found.pairs["QK"].eigenvalues.shape[-1], found.steps("QK").sum())


@pytest.mark.parametrize(
    ("scheme", "qk", "ff"),
    [
        ("euler", "a step", "a step"),
        ("heun", "a time at which steps take weights", "a time at which steps take weights"),
        ("macaron", "a step", "a time at which steps take weights"),
    ],
)
def test_a_column_is_called_a_step_only_where_a_step_has_one(scheme, qk, ff):
    found = spectra(model_of(dataclasses.replace(TINY, scheme=scheme)), times=0)
    said = {one.name: one.caption for one in figures([("m", found)])}
    assert said["real-parts-qk"].endswith(f" Each column is {qk}.")
    assert said["real-parts-ff"].endswith(f" Each column is {ff}.")


@pytest.mark.parametrize(
    ("kind", "depth", "tolerance", "between"),
    [
        ("time", {}, None, False), ("time", {"sample": (6,)}, None, False), ("time", {"sample": "4-6"}, None, True),
        ("time", {"sample": (6,), "always": (2, 4)}, None, True),
        ("time", {"jitter": 0.5}, None, True), ("shared", {}, None, True), ("time", {}, ToleranceConfig(), True),
    ],
)  # fmt: skip
def test_a_run_of_drawn_depths_was_trained_between_the_steps(kind, depth, tolerance, between):
    model = dataclasses.replace(TINY, weights=kind, scheme="heun", tolerance=tolerance)
    assert Config(model=model, depth=DepthConfig(**depth)).trained_between is between


def spectra_of(radii, shares):
    """Of one head, at four steps."""
    column = lambda values: np.array([[0.0], *([one] for one in values)])
    summaries = lambda pair: {RADIUS: column(radii[pair]), SHARE: column(shares[pair])}
    return SimpleNamespace(
        pairs={
            pair: SimpleNamespace(radius=column(radii[pair]), summaries=lambda pair=pair: summaries(pair))
            for pair in radii
        },
        steps=lambda pair: np.array([False, True, True, True, True]),
        times=np.linspace(0, 1, 5),
        alike=False,
        edges=np.linspace(0, 1, 5),
    )


def test_the_headline_tells_whose_signs_turn_first():
    radii = {"QK": [2.0, 2.0, 2.0, 1.98], "OV": [8.0, 4.0, 0.2, 1.0], "FF": [3.0, 4.0, 5.0, 6.0]}
    shares = {"QK": [0.25, 0.4, 0.5, 0.69], "OV": [0.66, 0.5, 0.17, 0.78], "FF": [0.5, 0.5, 0.5, 0.5]}
    found = spectra_of(radii, shares)
    assert headline(found) == (
        "Signs of the eigenvalues' real parts from the first step to the last, as shares of positive ones, means over "
        "heads: those of QK (which tokens heads attend to) turn from mostly negative to mostly positive (25 % → 69 %); "
        "those of OV (what heads copy from the tokens they attend to) turn mostly negative on the way and back (66 % → "
        "17 % at step 3 → 78 %); those of FF (the feed-forward block) stay half and half (50 % → 50 %)."
    )
    other = headline(spectra_of(radii, shares | {"OV": [0.5, 0.5, 0.5, 0.2], "QK": [0.5, 0.5, 0.5, 0.5]}))
    assert (
        "OV (what heads copy from the tokens they attend to) turn from half and half to mostly negative (50 % →"
        in other
    )
    near = headline(spectra_of(radii, shares | {"QK": [0.43, 0.44, 0.44, 0.45]}))
    assert "QK (which tokens heads attend to) stay half and half (43 % → 45 %)" in near
    passing = headline(spectra_of(radii, shares | {"QK": [0.67, 0.6, 0.5, 0.71]}))
    assert "QK (which tokens heads attend to) turn half and half on the way and back (67 % → 50 % at step 3" in passing
    least = headline(spectra_of(radii, shares | {"QK": [0.38, 0.39, 0.4, 0.43]}))
    assert "QK (which tokens heads attend to) stay half and half (38 % → 43 %)" in least
    assert other.index("OV (what") < other.index("QK (which") < other.index("FF (the")
    assert change([("m", found)], SHARE, percent).endswith(
        "m: QK 25 % → 69 %, OV 66 % → 17 % at step 3 → 78 %, FF 50 % → 50 %."
    )
    found.edges = np.linspace(0, 1, 3)  # steps that take weights twice
    assert "17 % at t = 0.75" in headline(found)
    assert by_head(found) == ""


@pytest.mark.parametrize(("steps", "said"), [(1, " in the one step"), (2, ", the same at all steps")])
def test_spectra_that_are_the_same_at_all_steps_are_told_once(steps, said):
    names, taken = {"QK": 2, "OV": 2, "FF": 1}, np.ones(steps, bool)
    pairs = {name: spectrum(heads) for name, heads in names.items()}
    pairs = {
        name: Spectrum(one.eigenvalues[:1].repeat(steps, 0), one.singular_values[:1].repeat(steps, 0))
        for name, one in pairs.items()
    }
    found = Spectra(np.linspace(0.1, 1, steps), taken, taken, False, np.linspace(0, 1, steps + 1), pairs)
    assert headline(found).startswith(f"Signs of the eigenvalues' real parts{said}, as shares of positive ones")
    assert "stay" not in headline(found) and "→" not in headline(found)
    told = change([("m", found)], RADIUS, digits)
    assert told.startswith(f"Spectral radius{said} (means over heads). m: QK ") and "→" not in told
    assert by_head(found) == "" and found.table("m").columns == ("pair", "every step")
    assert all(len(row) == 2 for row in found.table("m").rows)
    assert "from the first step to the last" in change([("m", found), ("n", model())], RADIUS, digits)
    assert not any("on its way through depth" in figure.caption for figure in figures([("m", found)]))


@pytest.mark.parametrize(
    ("values", "what", "places"),
    [
        ([1.0, 2.0, 0.5, 3.0], RADIUS, [2]), ([1.0, 4.0, 0.5, 3.0], RADIUS, [1, 2]),
        ([1.0, 3.2, 0.95, 3.0], RADIUS, []),
        ([0.5, 0.35, 0.7, 0.55], SHARE, [1, 2]), ([0.5, 0.45, 0.6, 0.55], SHARE, []), ([2.0], RADIUS, []),
    ],
)  # fmt: skip
def test_turns_are_far_beyond_both_ends(values, what, places):
    assert turns(np.array(values), what) == places


@pytest.mark.parametrize(
    ("weights", "depth", "said"),
    [
        (LayerConfig(), {}, "each step has weights of its own"),
        (SharedConfig(), {}, "its weights are the same at all depths"),
        (KnotsConfig(knots=4, average=True), {"sample": (2, 4)}, "each step computes with their mean over it"),
        (KnotsConfig(knots=4, rank=2), {"sample": (2, 4)}, "its weights know the length or the number of steps"),
        (KnotsConfig(knots=4), {}, "only those at the steps were trained and are shown; `--times 100`"),
        (KnotsConfig(knots=4), {"sample": (2, 4)}, "of which those at the steps are shown; `--times 100`"),
    ],
)
def test_why_the_steps_alone_are_shown(weights, depth, said):
    built = model_of(dataclasses.replace(TINY, weights=weights))
    run = SimpleNamespace(model=built, config=Config(model=built.config, depth=DepthConfig(**depth)))
    assert said in why_steps_alone(run)


def test_weights_that_know_the_length_of_the_step_are_not_called_the_same():
    built = model_of(dataclasses.replace(TINY, weights=SharedConfig(), modulation=ModulationConfig()))
    run = SimpleNamespace(model=built, config=Config(model=built.config))
    assert (
        "its weights know the length or the number of steps" in why_steps_alone(run) and not run.config.trained_between
    )


@pytest.mark.parametrize(
    ("changes", "depth", "said"),
    [
        ({}, {}, " Weights between its steps were never trained: it computes with those at the steps alone."),
        ({}, {"jitter": 1.0}, ""),
        ({"weights": KnotsConfig(knots=4, basis="box")}, {"jitter": 1.0}, " Its weights jump from knot to knot, and"),
        ({"tolerance": ToleranceConfig(1e-2)}, {}, " A tolerance chooses its own steps; the marks"),
    ],
)
def test_what_is_to_be_known_of_curves(changes, depth, said):
    config = Config(model=dataclasses.replace(TINY, **changes), depth=DepthConfig(**depth))
    found = caveats(SimpleNamespace(config=config))
    assert found.startswith(said) and bool(found) == bool(said)


def test_what_steps_of_other_lengths_add_is_comparable():
    """Halves of depth in steps of 3 and 1 of the state's clock; QK, behind a softmax, is not multiplied."""
    found, lengths = dataclasses.replace(model(), edges=np.array([0.0, 0.75, 1.0])), np.array([3.0, 1.0])
    scaled = found.scaled_by_step(lengths)
    by = np.where(found.times <= 0.75, 3.0, 1.0)[:, None]
    np.testing.assert_allclose(scaled.pairs["OV"].radius, by * found.pairs["OV"].radius)
    np.testing.assert_allclose(scaled.pairs["FF"].singular_values, by[..., None] * found.pairs["FF"].singular_values)
    assert scaled.pairs["QK"] is found.pairs["QK"]
    said = notes([("m", scaled), ("n", found)], (lengths, np.ones(4)), {"m": "", "n": ""}, fold_norm=False, seed=0)
    assert "multiplied by it, 1 to 3 in m, 1 in n" in " ".join(said)
