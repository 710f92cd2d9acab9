"""Metrics: whole lines of strict JSON, cut back to the update that a run resumes from."""

from contextlib import closing

import pytest

from diffeqformer.errors import Damaged
from diffeqformer.runs.metrics import Metrics, read_metrics, require_lines


def records(*steps: int) -> list[dict]:
    return [{"kind": "update", "step": step, "loss": 1.0 / step} for step in steps]


def test_lines_are_read_back_exactly(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert read_metrics(path) == []
    with closing(Metrics(path)) as metrics:
        metrics.write(records(1, 2))
        assert read_metrics(path) == records(1, 2)  # flushed, not only buffered
        metrics.write(records(3))
    assert read_metrics(path) == records(1, 2, 3)


@pytest.mark.parametrize("torn", ["", '{"kind": "upd', '{"kind": "update", "step": 4, "loss": 0.25}'])
def test_resuming_drops_later_lines_and_a_torn_one(tmp_path, torn):
    path = tmp_path / "metrics.jsonl"
    with closing(Metrics(path)) as metrics:
        metrics.write(records(1, 2, 3, 4))
    with path.open("a") as file:
        file.write(torn)
    with closing(Metrics(path, step=2)) as metrics:
        assert read_metrics(path) == records(1, 2)
        metrics.write(records(3))
    assert read_metrics(path) == records(1, 2, 3)
    assert path.read_bytes().endswith(b"\n")


def test_a_fresh_start_leaves_no_old_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with closing(Metrics(path)) as metrics:
        metrics.write(records(1))
    with closing(Metrics(path)):
        assert read_metrics(path) == []


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_numbers_that_json_does_not_have_are_refused(tmp_path, number):
    path = tmp_path / "metrics.jsonl"
    with closing(Metrics(path)) as metrics, pytest.raises(ValueError, match="not JSON compliant"):
        metrics.write([{"kind": "update", "step": 1, "loss": number}])
    assert path.read_text() == ""


@pytest.mark.parametrize("line", ["rubbish", "[" * 100_000])
def test_damage_in_the_middle_is_named(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"step": 1}}\n{line}\n{{"step": 3}}\n')
    with pytest.raises(Damaged, match="line 2 of .* is not a record of metrics"):
        read_metrics(path)


@pytest.mark.parametrize("number", ["NaN", "1e999", "2"])
def test_a_number_that_was_never_written_is_damage(tmp_path, number):
    path = tmp_path / "metrics.jsonl"
    with closing(Metrics(path)) as metrics:
        metrics.write([{"kind": "update", "step": 1, "loss": 1.5}])
    path.write_text(path.read_text().replace("1.5", number))
    with pytest.raises(Damaged, match="its lines are not those that the checkpoint at update 1 was written with"):
        require_lines(path, 1, metrics.digest)
