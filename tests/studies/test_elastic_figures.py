"""The page of one checkpoint for every depth: ratios and sentences from records made by hand."""

import numpy as np
import pytest

from diffeqformer.studies.elastic_figures import every_depth, findings, result_of


def record(kind: str, steps: int, perplexity: float | None, seed: int = 0, updates: int = 100) -> dict:
    loss = None if perplexity is None else float(np.log(perplexity))
    return {
        "kind": kind, "steps": steps, "seed": seed, "loss": loss, "perplexity": perplexity, "updates": updates,
        "compute": 600,
    }  # fmt: skip


RECORDS = [
    *(record("elastic", steps, perplexity) for steps, perplexity in ((3, 21.0), (6, 20.0), (12, 20.2), (24, 20.8))),
    *(record("dedicated", steps, perplexity, updates=600 // steps) for steps, perplexity in ((3, 20.0), (6, 25.0))),
    record("fixed", 3, 4000.0),
    record("fixed", 12, None),
    record("vanilla", 3, 21.0),
    record("vanilla", 6, 20.0),
]


def test_sentences_name_the_least_favourable_depth():
    dedicated, vanilla, itself = findings(RECORDS)
    assert "better at 1 of 2 depths (3 and 6)" in dedicated
    assert "least favourable is 3 steps, where its perplexity is 5.0 % higher" in dedicated
    assert "better at 0 of 2 depths" in vanilla and "0.0 % higher" in vanilla
    assert "between 20.00 and 21.00" in itself
    assert "at 24 steps, the least favourable, it is 4.0 % higher than the lowest at fewer" in itself


def test_the_table_has_a_row_for_each_depth_and_means_over_seeds():
    (table,) = result_of([*RECORDS, record("elastic", 6, 22.0, seed=1)]).tables
    lines = table.to_markdown().splitlines()[2:]
    assert len(lines) == 2 + 4
    assert lines[2] == "| 3 | 21.00 | – | 20.00 | 5.0 % higher | 21.00 | 0.0 % higher | 4,000 |"
    assert lines[3] == "| 6 | 21.00 ± 1.41 | 0.0 % higher | 25.00 | 16.0 % lower | 20.00 | 5.0 % higher | – |"


def test_numbers_are_kept_and_the_page_is_written(tmp_path):
    result = result_of(RECORDS, ["Made <b>by hand</b>."], tmp_path)
    arrays = result.arrays
    assert arrays["perplexity"][:2].tolist() == [21.0, 20.0] and np.isnan(arrays["loss"][-3])
    text = result.write().read_text(encoding="utf-8")
    assert "Made &lt;b&gt;by hand&lt;/b&gt;." in text and "600 evaluations of the field" in text


@pytest.mark.parametrize("width", [8.0, 3.6])
def test_readings_far_above_all_trained_depths_leave_the_figure(width):
    axis = every_depth(RECORDS, width=width).axes[0]
    assert axis.get_ylim()[1] == pytest.approx(3 * 25.0)
    assert [line.get_xdata().tolist() for line in axis.lines[:1]] == [[3, 6, 12, 24]]
