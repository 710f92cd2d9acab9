"""What the figures of benchmarks show: every number where it belongs, in its unit, under its name."""

import pytest

from diffeqformer.studies.bench.bench_memory import memory_by_depth
from diffeqformer.studies.bench.bench_scaling import time_by_size
from tests.studies.drawn import by_look, legend, look, points

MEMORY = {"plain": {12: 1400, 96: 11200}, "recursive": {12: 110, 96: 123}, "reversible": {12: 50, 96: 51}}
"""MiB by method and steps."""
SECONDS = {("width", "diffeqformer"): (0.05, 0.1, 0.3), ("width", "vanilla"): (0.04, 0.09, 0.2),
           ("steps", "diffeqformer"): (0.03, 0.1, 0.15)}  # fmt: skip
SIZES, FLOPS = {"width": (64, 128, 256), "steps": (3, 6, 12)}, (1e9, 3e9, 12e9)


@pytest.mark.parametrize("width", [6.2, 3.7])
def test_memory_is_drawn_in_mebibytes_over_steps(width):
    rows = [
        {"gradient": method, "steps": steps, "temporary_bytes": size * 2**20}
        for method, own in MEMORY.items()
        for steps, size in own.items()
    ]
    figure = memory_by_depth(rows, width=width)
    (axis,) = figure.axes
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("steps (depth)", "temporary memory (MiB)")
    assert (axis.get_xscale(), axis.get_yscale()) == ("log", "log") and axis.get_xticks().tolist() == [12, 96]
    drawn, named = by_look(axis), legend(figure)
    assert {name: drawn[one] for name, one in named.items()} == {m: [*own.items()] for m, own in MEMORY.items()}
    assert axis.get_xlim()[0] < axis.get_xlim()[1] and axis.get_ylim()[0] < axis.get_ylim()[1]


def test_scaling_is_drawn_in_milliseconds_beside_what_operations_would_make_of_it():
    rows = [
        {"axis": axis, "model": model, "sizes": list(SIZES[axis]), "flops": list(FLOPS),
         "seconds": [{"median_seconds": one} for one in seconds]}
        for (axis, model), seconds in SECONDS.items()
    ]  # fmt: skip
    figure = time_by_size(rows)
    named = legend(figure)
    assert [*named] == ["diffeqformer", "vanilla", "as operations grow"]
    assert [axis.get_xlabel() for axis in figure.axes] == ["width", "steps"]
    assert [axis.get_ylabel() for axis in figure.axes] == ["ms per update", ""]
    for axis in figure.axes:
        own = {model: seconds for (name, model), seconds in SECONDS.items() if name == axis.get_xlabel()}
        assert (axis.get_xscale(), axis.get_yscale()) == ("log", "log")
        sizes = SIZES[axis.get_xlabel()]
        assert tuple(axis.get_xticks()) == sizes and axis.get_xlim()[0] < axis.get_xlim()[1]
        solid = {look(line): points(line) for line in axis.lines if not line.is_dashed()}
        dashed = {line.get_color(): points(line) for line in axis.lines if line.is_dashed()}
        assert len(solid) == len(dashed) == len(own)
        for model, seconds in own.items():
            assert solid[named[model]] == [(size, 1e3 * one) for size, one in zip(sizes, seconds, strict=True)]
            expected = [1e3 * seconds[-1] * one / FLOPS[-1] for one in FLOPS]
            assert [x for x, _ in dashed[named[model][0]]] == [*sizes]
            assert [y for _, y in dashed[named[model][0]]] == pytest.approx(expected)
    assert named["as operations grow"][2] == "--"
