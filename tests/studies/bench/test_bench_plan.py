"""A plan is the roofline that a reader would work out by hand."""

import pytest

from diffeqformer.config import with_values
from diffeqformer.devices import DEVICES, USABLE
from diffeqformer.errors import BadInput
from diffeqformer.model.count import flops
from diffeqformer.progress import Silent
from diffeqformer.runs import footprint
from diffeqformer.runs.collectives import Collective
from diffeqformer.studies.bench import bench_plan
from diffeqformer.studies.bench.bench_plan import (
    MODELS,
    Arguments,
    config_of,
    mesh_for,
    on_paper,
    speed,
    study,
    tables,
    traffic,
)

H100 = DEVICES["h100"]
TINY = {"model.width": 16, "model.heads": 2, "model.steps": 3, "model.context": 8, "model.vocabulary": 40}


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    """A model beside those of true size, and a compiler that plans 100 bytes and one exchange."""
    monkeypatch.setitem(MODELS, "tiny", ("gpt-small", TINY, 2))
    exchanged = [Collective("all-reduce", 1000, (0, 1), 3)]
    monkeypatch.setattr(footprint, "planned_exchange", lambda config: (100, exchanged))


def test_an_update_on_paper():
    config = config_of("tiny", "knots")
    found = on_paper(config, H100)
    through = 4 * 16 + 2 * 16 + 2 * 5 * 16  # ins and outs: qkv, output, up and down
    assert traffic(config, 16) == 3 * 16 * 3 * through * 2  # three passes, three steps, bfloat16
    parameters = found["parameters"]["stored"]
    assert found["compute"] == flops(config.model).training_per_token * 16 / 989e12
    assert found["memory"] == (4 * parameters * (8 + 2) + traffic(config, 16)) / 3350e9
    assert found["links"] == 3 * 1000 / 450e9  # 2 (n - 1)/n is 1 for two devices
    assert found["bytes"] == 4 * parameters + 2 * 4 * parameters + 8 + 100  # moments, two counters, the rest
    assert found["tokens"] == 16


@pytest.mark.parametrize(
    "devices, reached",
    [((0, 7), 450e9), ((0, 8), 50e9), (tuple(range(16)), 400e9), ((0, 1, 8, 9), 100e9)],
)
def test_between_machines_a_device_has_its_own_line(devices, reached):
    assert speed(Collective("all-reduce", 1, devices, 1), H100) == reached


def test_weights_are_cut_over_no_more_devices_than_needed():
    config = config_of("tiny", "time")

    def just_enough(mesh):
        """A card whose six tenths of usable memory are what each device of this mesh holds between updates."""
        state = footprint.update_footprint(with_values(config, bench_plan._meshed(config, mesh)), compiled=False)
        return H100._replace(memory=1.001 * (state.weights + state.optimizer + state.gradients) / 0.6 / USABLE)

    assert mesh_for(config, 4, just_enough((4, 1))) == (4, 1)
    assert mesh_for(config, 4, just_enough((2, 2))) == (2, 2)
    assert mesh_for(config, 2, just_enough((1, 4))) is None


def test_a_document_says_what_fits(monkeypatch):
    result = study(Arguments(models="tiny", devices="1,8"), Silent())
    rows = result.document["rows"]
    assert [(row["weights"], row["devices"], row["data"], row["fsdp"]) for row in rows] == [
        ("time", 1, 1, 1), ("time", 8, 8, 1), ("knots", 1, 1, 1), ("knots", 8, 8, 1),
    ]  # fmt: skip
    (table,) = result.tables
    tokens, seconds = 20 * rows[2]["parameters"]["effective"], max(rows[2]["compute"] / 0.4, rows[2]["memory"])
    assert table.rows[2][8] == f"{16 / max(seconds, rows[2]['links']):,.0f}"
    assert table.rows[2][11] == f"{tokens / 16 * max(seconds, rows[2]['links']) / 3600 * 2.5:,.0f}"
    monkeypatch.setattr(bench_plan, "mesh_for", lambda *given: None)
    result = study(Arguments(models="tiny", devices="8"), Silent())
    assert result.tables[0].rows[0][3] == "does not fit"
    assert result.findings[0] == "Nothing here fits with both kinds of weights."


@pytest.mark.parametrize(
    "compute, memory, links, word, seconds",
    [(1.0, 2.0, 0.0, "compute", 2.5), (1.0, 3.0, 2.0, "memory", 3.0), (1.0, 2.0, 4.0, "links", 4.0)],
)
def test_the_bound_is_what_takes_the_time(compute, memory, links, word, seconds):
    row = {
        "model": "tiny", "weights": "time", "devices": 1, "data": 1, "fsdp": 1, "tokens": 1000, "bytes": 100,
        "compute": compute, "memory": memory, "links": links, "parameters": {"effective": 10},
    }  # fmt: skip
    (table,) = tables({"card": "h100", "price": 2.5, "rows": [row]})
    assert table.rows[0][7:9] == (word, f"{1000 / seconds:,.0f}")


@pytest.mark.parametrize(
    "given, words",
    [
        ({"card": "tpu-v4"}, "--card is 'tpu-v4', but must be one of v100-16gb"),
        ({"models": "gpt-tiny"}, "--models has 'gpt-tiny', but the models are gpt-small"),
        ({"devices": "12"}, "--devices has 12, but above 8 must be multiples of 8."),
    ],
)
def test_what_cannot_be_planned(given, words):
    with pytest.raises(BadInput) as told:
        study(Arguments(**given), Silent())
    assert str(told.value).startswith(words)
