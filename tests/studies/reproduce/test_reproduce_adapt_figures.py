"""The page of fine-tuning at other depths: numbers, missing pieces, and text that is no markup."""

import math

import numpy as np
import pytest

from diffeqformer.studies.reproduce.experiments import rates_of, searches
from diffeqformer.studies.reproduce.reproduce_adapt import records as records_of
from diffeqformer.studies.reproduce.reproduce_adapt_figures import (
    MOST,
    adaptation,
    findings,
    result_of,
    systems_of,
    with_spread,
)
from diffeqformer.studies.study import Result
from tests.studies.drawn import by_look, legend, look, points

HOSTILE = "</svg><script>alert(1)</script>|\n$x$ _y*"


def record(system: str, method: str, end: float | None, *, seed: int = 0, before: float | None = 80.0, **more) -> dict:
    def both(perplexity):
        return None if perplexity is None else {"loss": math.log(perplexity), "perplexity": perplexity}

    curve = [[0, math.log(before or 2000.0)], [10, math.log(end)]] if end else []
    return {
        "direction": "A → B", "method": method, "system": system, "steps": 4, "seed": seed, "curve": curve,
        "final": both(end), "before": both(before), "parameters": {"stored": 1_500_000, "effective": 1_400_000,
        "trained": 60_000}, **more,
    }  # fmt: skip


RECORDS = [
    record("DiffEqFormer 6 → 4", "lora", 20.0),
    record("DiffEqFormer 6 → 4", "lora", 22.0, seed=1),
    record("GPT 8", "lora", 25.0),
    record("DiffEqFormer 6 → 4", "full", 24.0),
    record("GPT 8", "full", 19.0),
    record("GPT 8", "scratch", 30.0, before=None),
    record("GPT 8", "lora", 26.0, direction="B → A"),
]


def markdown(result: Result) -> str:
    return "\n\n".join(table.to_markdown() for table in result.tables)


def test_a_first_loss_whose_perplexity_no_float_holds_is_a_dash():
    entry = {
        "role": {"source": "A", "text": "B"}, "name": "GPT", "steps": 4, "validation": {"loss": 1.0, "perplexity": 2.7},
        "config": {"base": {"run": "r", "system": "GPT 8", "method": "full"}, "trainer": {"seed": 0}},
        "curve": {"validation": [[0, 800.0], [10, 1.0]]}, "parameters": RECORDS[0]["parameters"],
    }  # fmt: skip
    found = records_of([{"models": [entry], "corpus": {"A": {}, "B": {}}}])
    assert "| GPT 8 → 4 | full | 4 | 1 | 2.70 | – |" in markdown(result_of(found))


def test_sentences_rank_means_over_seeds():
    assert findings(RECORDS, ["A → B", "B → A"]) == [
        "Lowest final perplexity in 3 comparisons (a text and a method each): GPT 8 in 2 and DiffEqFormer 6 → 4 in 1.",
        "A → B, LoRA: DiffEqFormer 6 → 4 ends lowest, at perplexity 21.00, ahead of GPT 8 (25.00); from scratch, GPT "
        "8 reaches 30.00.",
        "A → B, full: GPT 8 ends lowest, at perplexity 19.00, ahead of DiffEqFormer 6 → 4 (24.00); from scratch, GPT "
        "8 reaches 30.00.",
        "B → A, LoRA: GPT 8 ends lowest, at perplexity 26.00.",
    ]


def test_markdown_has_a_row_for_each_system_and_method():
    lines = markdown(result_of(RECORDS)).replace("\u00a0", " ").splitlines()
    assert lines[0] == "A → B:" and lines.count("B → A:") == 1
    assert lines[4] == (
        "| DiffEqFormer 6 → 4 | LoRA | 4 | 2 | 21.00 ± 1.41 | 80.00 ± 0.00 | 60.0 k | 1.50 M | 1.40 M |"
    )
    assert "| GPT 8 | from scratch | 4 | 1 | 30.00 | – | 60.0 k | 1.50 M | 1.40 M |" in lines


def test_spread_has_the_decimals_of_its_mean():
    assert with_spread([1400.0, 1420.0]) == "1,410 ± 14"
    assert with_spread([20.0, None, math.nan]) == "20.00" and with_spread([None]) == "–"


@pytest.mark.parametrize("width", [9.4, 3.7])
def test_figure_has_a_pair_of_panels_a_method_and_scratch_in_both(width):
    systems = systems_of(RECORDS)
    figure = adaptation(RECORDS, "A → B", systems, width=width)
    lora, lora_ends, full, full_ends = figure.axes
    assert lora.get_title(loc="left") == "fine-tuned: LoRA" and full.get_title(loc="left") == "fine-tuned: full"
    for axis, systems_here in ((lora, 3), (full, 3)):
        assert len(axis.lines) == systems_here and sum(line.is_dashed() for line in axis.lines) == 1
    (mean,) = [line for line in lora.lines if not line.is_dashed() and line.get_ydata()[-1] < 24]
    np.testing.assert_allclose(mean.get_ydata(), [80, 21])  # of perplexities, over both seeds
    assert lora.get_ylim()[1] == pytest.approx(MOST * 21)
    assert {t.get_text() for t in lora_ends.texts} == {"21.00 ± 1.41", "25.00", "30.00"}
    assert {t.get_text() for t in full_ends.texts} == {"24.00", "19.00", "30.00"}
    # A system has one colour everywhere.
    other = adaptation(RECORDS, "B → A", systems, width=width).axes[0].lines[0].get_color()
    assert other == [line for line in lora.lines if not line.is_dashed()][1].get_color()


@pytest.mark.parametrize("width", [9.4, 3.7])
def test_every_system_is_drawn_where_it_is_and_under_its_name(width):
    figure = adaptation(RECORDS, "A → B", systems_of(RECORDS), width=width)
    named = legend(figure)
    assert [*named] == ["DiffEqFormer 6 → 4", "GPT 8", "GPT 8, from scratch"]
    assert [one[3] for one in named.values()] == [False, False, True], "from scratch is hollow"
    assert named["GPT 8"][:2] == named["GPT 8, from scratch"][:2] != named["DiffEqFormer 6 → 4"][:2]
    expected = {  # of each method: curves, and rows of final perplexities, the first on top, a mean and its seeds
        "LoRA": {"DiffEqFormer 6 → 4": (80, 21.0, {20.0, 21.0, 22.0}), "GPT 8": (80, 25.0, {25.0}),
                 "GPT 8, from scratch": (2000, 30.0, {30.0})},
        "full": {"DiffEqFormer 6 → 4": (80, 24.0, {24.0}), "GPT 8": (80, 19.0, {19.0}),
                 "GPT 8, from scratch": (2000, 30.0, {30.0})},
    }  # fmt: skip
    for (curves, ends), own in zip((figure.axes[:2], figure.axes[2:]), expected.values(), strict=True):
        assert (curves.get_xlabel(), curves.get_ylabel()) == ("updates", "validation perplexity (log scale)")
        assert ends.get_xlabel() == "final perplexity" and ends.get_ylim()[0] > ends.get_ylim()[1]
        assert curves.get_yscale() == "log" and curves.get_xscale() == ends.get_xscale() == "linear"
        drawn = by_look(curves)
        rows = [label.get_text() for label in ends.get_yticklabels()]
        assert rows == ([*own] if width > 5 else [""] * 3)
        for row, (system, (start, end, all_ends)) in enumerate(own.items()):
            (first, last) = drawn[named[system]]
            assert first == pytest.approx((0, start)) and last == pytest.approx((10, end))
            color, marker = named[system][:2]
            hollow = named[system][3]
            marks = [line for line in ends.lines if look(line) == (color, marker, "None", hollow)]
            assert {x for line in marks for x, _ in points(line)} == all_ends
            assert {y for line in marks for _, y in points(line)} == {row}


def test_missing_pieces_and_hostile_text(tmp_path):
    records = [
        record(HOSTILE, "lora", None, before=None, direction=HOSTILE, parameters=None),
        {"direction": HOSTILE, "method": "full", "system": "bare", "steps": 3, "seed": 0},
        record("$a$ & _b", "full", math.inf, direction=HOSTILE, curve=[[0, None], [5, math.nan]], final={"loss": None}),
    ]
    result = result_of(records, (HOSTILE,), tmp_path)
    written = result.write()
    page = written.read_text(encoding="utf-8")
    assert "<script>alert" not in page and "&lt;script&gt;alert(1)" in page
    rows = markdown(result).splitlines()[2:]
    unescaped = [row.replace("\\|", "").count("|") for row in rows if row]
    assert set(unescaped) == {10}, "each row has nine cells"
    assert "<script>" not in markdown(result)
    with np.load(written.with_name("adapt.npz")) as arrays:
        assert np.isnan(arrays["final_perplexity"]).all() and arrays["curve_record"].tolist() == [2, 2]
        assert arrays["system"][0] == HOSTILE


def test_only_from_scratch_is_drawn_alone():
    records = [record("GPT 8", "scratch", 30.0, before=None)]
    assert len(adaptation(records, "A → B", systems_of(records)).axes) == 2 and findings(records, ["A → B"]) == []


def entry(source: str | None, tuned: str, rate: float, tried: dict | None = None) -> dict:
    role = {"source": source, "searched": tuned} if source else {"source": None}
    return {"role": role | ({"tried": tried} if tried else {}), "config": {"optimizer": {"learning_rate": rate}}}


def test_rates_of_one_seed_serve_the_others_and_the_search_is_a_table():
    """At the base's own depth the losses that were tried are kept; other depths, and other seeds, take the rate."""
    tried = {"0.0025": 4.5, "0.005": 4.25, "0.01": None}  # at 0.01 training diverged
    document = {"models": [
        entry(None, "", 1e-3), entry("a", "a-to-b/gpt-lora", 0.005, tried), entry("a", "a-to-b/gpt-lora", 0.005),
        entry("b", "b-to-a/gpt-full", 0.002),
    ]}  # fmt: skip
    assert rates_of(document) == {"a-to-b/gpt-lora": 0.005, "b-to-a/gpt-full": 0.002}
    assert searches(document) == {"a-to-b/gpt-lora": (0.005, {0.0025: 4.5, 0.005: 4.25, 0.01: math.inf})}
    table = result_of(RECORDS, rates=searches(document)).tables[-1]
    assert table.rows == [("a-to-b/gpt-lora", "0.005", "yes", "0.0025: 4.5000, 0.005: 4.2500")]
