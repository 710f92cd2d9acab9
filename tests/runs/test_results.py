"""What a run's metrics say in `results.json`."""

from dataclasses import replace

import pytest

from diffeqformer.config import Config, DepthConfig
from diffeqformer.runs.results import drawn_depths

DRAWN = Config(depth=DepthConfig(sample=(3, 6)))


def records(timed: dict[str, list[float]], updates: int = 4) -> list:
    """Metrics of equally many updates at 3 and at 6 steps, and the times of some of them."""
    made = [{"kind": "update", "step": i, "steps": 3 * (1 + i % 2), "loss": 5.0} for i in range(2 * updates)]
    return [*made, {"kind": "timing", "depths": timed}]


def test_a_depth_of_few_timed_updates_has_no_speed():
    """Of two that were ready before the first was waited for, one counts for both and the other for nothing."""
    found = drawn_depths(DRAWN, records({"3": [2, 1e-4], "6": [3, 0.5]}))
    assert [row["updates"] for row in found] == [4, 4]
    batch = DRAWN.trainer.batch_size * DRAWN.model.context
    assert [row["tokens_per_second"] for row in found] == [None, pytest.approx(3 * batch / 0.5)]


@pytest.mark.parametrize("more", [{"always": (2, 8)}, {"together": "rows"}])
def test_updates_that_train_at_several_depths_are_of_none_alone(more):
    assert drawn_depths(replace(DRAWN, depth=replace(DRAWN.depth, **more)), records({"3": [9, 1.0]})) == []
