"""What devices tell each other is what stands in the program."""

import pytest

from diffeqformer.config import Config, MeshConfig, ModelConfig, TrainerConfig
from diffeqformer.model.count import parameters
from diffeqformer.runs.collectives import Collective, collectives
from diffeqformer.runs.footprint import planned_exchange
from tests.cases import slow

PROGRAM = """HloModule jit_update

%body.1 (p: (s32[], f32[4])) -> (s32[], f32[4]) {
  %all-gather = bf16[8,3]{1,0} all-gather(%x), replica_groups=REPLICAS, dimensions={0}
  %all-reduce = (f32[5]{0}, f32[]) all-reduce(%a, %b), replica_groups={{0,2},{1,3}}, to_apply=%add
}

%condition.1 (p: (s32[], f32[4])) -> pred[] {
  %constant.1 = s32[] constant(12)
  ROOT %compare = pred[] compare(%i, %constant.1), direction=LT
}

%outer.1 (p: (s32[], f32[4])) -> (s32[], f32[4]) {
  %while.1 = (s32[], f32[4]{0}) while(%t), condition=%condition.1, body=%body.1, metadata={op_name="while"}
}

%outer_condition.1 (p: (s32[], f32[4])) -> pred[] {
  %constant.2 = s32[] constant(3)
}

ENTRY %main.1_spmd (p: f32[4]) -> f32[4] {
  %while.2 = (s32[], f32[4]{0}) while(%t), condition=%outer_condition.1, body=%outer.1
  %reduce-scatter = f32[10]{0} reduce-scatter(%y), replica_groups=[1,4]<=[4], dimensions={0}, to_apply=%add
  %collective-permute = f32[6]{0} collective-permute(%z), source_target_pairs={{0,3},{3,0}}
}
"""


@pytest.mark.parametrize(
    "groups, first",
    [
        ("{{0,1},{2,3}}", (0, 1)),
        ("[2,2]<=[4]", (0, 1)),
        ("[2,2]<=[2,2]T(1,0)", (0, 2)),
        ("mesh['x'=2,'y'=2] {'y'}", (0, 1)),
        ("mesh['x'=2,'y'=2] {'x'}", (0, 2)),
        ("mesh['x'=2,'y'=2], device_ids=([2,2]T(1,0)) {'x'}", (0, 1)),
        ("mesh['x'=4,'y'=1] {'x','y'}", (0, 1, 2, 3)),
    ],
)
def test_all_notations_of_groups_and_loops_in_loops(groups, first):
    assert collectives(PROGRAM.replace("REPLICAS", groups)) == [
        Collective("all-gather", 2 * 8 * 3, first, 36),
        Collective("all-reduce", 4 * 5 + 4, (0, 2), 36),
        Collective("reduce-scatter", 4 * 4 * 10, (0, 1, 2, 3), 1),  # what it returns is a quarter
        Collective("collective-permute", 4 * 6, (0, 3), 1),
    ]


def test_a_loop_of_unknown_length_is_no_guess():
    with pytest.raises(ValueError, match="compares with 0 numbers"):
        collectives(PROGRAM.replace("REPLICAS", "{{0,1}}").replace("constant(12)", "parameter(0)"))


@pytest.mark.parametrize(
    "kind, sent", [("all-reduce", 150), ("all-gather", 75), ("reduce-scatter", 75), ("collective-permute", 100)]
)
def test_bytes_around_a_ring(kind, sent):
    assert Collective(kind, 10, (0, 1, 2, 3), 10).sent == sent


@pytest.mark.parametrize("mesh", [MeshConfig(data=2), *slow(MeshConfig(fsdp=2))])
def test_what_an_update_exchanges(mesh):
    """With `data` every gradient is summed once, that of the tied embedding in two parts; with `fsdp` every matrix is
    put together forwards and backwards as well."""
    model = ModelConfig(width=16, heads=2, steps=3, context=8, vocabulary=40, weights="layer")  # pyright: ignore
    found = planned_exchange(Config(model=model, trainer=TrainerConfig(batch_size=2), mesh=mesh))[1]
    of = lambda kind: sum(one.bytes * one.times for one in found if one.kind == kind)
    stored, tied, matrices = parameters(model).stored, 40 * 16, 3 * 12 * 16 * 16
    if mesh.data == 2:
        assert of("all-gather") == 0
        assert 0 <= of("all-reduce") - 4 * (stored + tied) <= 4 * 40  # the loss, and norms of gradients
    else:
        assert of("all-gather") == pytest.approx(4 * (2 * matrices + tied + 8 * 16), rel=0.05)
    assert {one.devices for one in found} == {(0, 1)}
