"""Where each weight goes, and what cannot be divided."""

import dataclasses
import json
import os
import subprocess
import sys

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh

from diffeqformer import sharding
from diffeqformer.config import (
    Config,
    LlamaConfig,
    MeshConfig,
    ModelConfig,
    OptimizerConfig,
    TimeConfig,
    TrainerConfig,
    to_dict,
    validate,
)
from diffeqformer.errors import BadInput
from diffeqformer.runs import results
from diffeqformer.training.update import initial_state
from tests.tolerances import LOSS

TINY = ModelConfig(width=16, heads=4, steps=2, context=8, vocabulary=40, weights=TimeConfig(d_emb=6, frequencies=4))
LLAMA = dataclasses.replace(TINY, field="llama", weights="layer", scheme="lie-trotter", horizon="steps")
EIGHT_DEVICES = AbstractMesh((2, 2, 2), sharding.AXES)


def layouts(model: ModelConfig, optimizer: OptimizerConfig = OptimizerConfig()) -> dict[str, tuple]:
    """How the last axes of each weight and moment of a model are cut, and of each average."""
    state = jax.eval_shape(lambda: initial_state(Config(model=model, optimizer=optimizer)))
    paths = jax.tree_util.tree_flatten_with_path((state.model, state.optimizer, state.average))[0]
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in paths]
    found = (tuple(sharding.layout(path, x.shape, EIGHT_DEVICES)) for path, x in paths)
    return dict(zip(names, found, strict=True))


def test_the_table_cuts_every_large_weight_and_its_moments():
    found = layouts(TINY)
    attention = "weights.networks.attention."
    expected = {
        "0.embedding.tokens": ("tensor", "fsdp"),
        "0.embedding.positions": (None, "fsdp"),
        f"0.{attention}query_key_value.projection": ("fsdp", "tensor"),
        f"0.{attention}query_key_value.constant": ("fsdp", "tensor"),
        f"0.{attention}query_key_value.bias_projection": ("tensor",),
        f"0.{attention}output.projection": ("tensor", "fsdp"),
        f"0.{attention}output.bias_projection": (),
        f"0.{attention}output.network.first.weight": (),
        f"0.{attention}norm.scale_projection": (),
        "0.weights.networks.feed_forward.up.projection": ("fsdp", "tensor"),
        "0.weights.networks.feed_forward.down.projection": ("tensor", "fsdp"),
    }
    assert {name: found[name] for name in expected} == expected
    moments = {name: cut for name, cut in found.items() if ".mu." in name or ".nu." in name}
    assert len(moments) == 2 * sum(name.startswith("0.") for name in found)
    for name, cut in moments.items():
        weight = "0." + name.partition(".mu." if ".mu." in name else ".nu.")[2]
        assert cut == found[weight], name


@pytest.mark.parametrize("rule", ["muon", "adafactor", "lion"])
def test_other_rules_moments_and_averages_are_cut_as_their_weights(rule):
    found = layouts(TINY, OptimizerConfig(rule=rule, average="ema", spike=3.0))
    weights = {name[2:]: cut for name, cut in found.items() if name.startswith("0.")}
    assert {name[2:]: cut for name, cut in found.items() if name.startswith("2.")} == weights
    moments = {name: cut for name, cut in found.items() if name.startswith("1.")}
    large = {name for name in moments if any(name.endswith(f".{weight}") for weight, cut in weights.items() if cut)}
    factors = {name for name in large if ".v_row." in name or ".v_col." in name}
    assert bool(factors) == (rule == "adafactor") and all(moments[name] == () for name in factors)
    for name in large - factors:
        whole = ".v." in name and rule == "adafactor"  # of a factored matrix a placeholder is left
        weight = next(weight for weight in weights if name.endswith(f".{weight}"))
        assert moments[name] == weights[weight] or whole, name


def test_a_table_of_layers_is_cut_as_what_generates_it():
    found = layouts(LLAMA)
    assert found["0.weights.layers.feed_forward.gate.weight"] == (None, "fsdp", "tensor")
    assert found["0.weights.layers.feed_forward.down.weight"] == (None, "tensor", "fsdp")
    assert found["0.head"] == ("tensor", "fsdp")
    odd = layouts(dataclasses.replace(LLAMA, vocabulary=41))
    assert odd["0.head"] == (None, ("fsdp", "tensor"))


@pytest.mark.parametrize(
    "mesh, change, words",
    [
        ({"data": 3}, {}, "is 16, but must be divisible by mesh.data x mesh.fsdp, which is 3 x 1."),
        ({"data": 2, "fsdp": 3}, {}, "is 16, but must be divisible by mesh.data x mesh.fsdp, which is 2 x 3."),
        ({"tensor": 3}, {}, "model.heads is 4, but must be divisible by mesh.tensor, which is 3."),
        (
            {"tensor": 4},
            {"field": LlamaConfig(kv_heads=2)},
            "model.field.kv_heads is 2, but must be divisible by",
        ),
        ({"fsdp": 16, "tensor": 1}, {"width": 8}, "model.width is 8, but must be divisible by mesh.fsdp, which is 16."),
        ({"tensor": 4}, {"hidden": 30}, "model.hidden is 30, but must be divisible by mesh.tensor, which is 4."),
    ],
)
def test_what_cannot_be_divided_is_named(mesh, change, words):
    config = Config(model=dataclasses.replace(TINY, **change), trainer=TrainerConfig(batch_size=16))
    sizes = tuple(vars(MeshConfig(**mesh)).values())
    with pytest.raises(BadInput) as told:
        sharding.require_divisible(config, sizes)
    assert words in str(told.value)


def test_more_devices_than_there_are():
    with pytest.raises(BadInput) as told:
        sharding.mesh_of(Config(mesh=MeshConfig(data=1000)))
    assert str(told.value) == f"mesh is data 1000, which needs 1000 devices, but JAX has {len(jax.devices())}."


@pytest.mark.parametrize(
    "mesh, words",
    [
        (MeshConfig(data=0), "mesh.data is 0, but must be at least 1, or -1 for all devices that are left."),
        (MeshConfig(data=-1, tensor=-1), "mesh.data and mesh.tensor are -1, but only one can be."),
    ],
)
def test_sizes_of_the_mesh(mesh, words):
    with pytest.raises(BadInput) as told:
        validate(Config(mesh=mesh))
    assert str(told.value) == words


def test_without_a_mesh_nothing_changes():
    x = jax.numpy.ones((4, 3))
    assert sharding.constrain(x, "tensor") is x and sharding.constrain_weights(x) is x
    assert sharding.batch_parts() == 1 and not sharding.is_divided()
    assert sharding.mesh_of(Config()) is None


PROGRAM = """
import json, sys, jax, numpy as np
from diffeqformer.config import *
from diffeqformer import sharding
from diffeqformer.model.loss import next_token_loss
from diffeqformer.runs import results
from diffeqformer.training import update as module
from diffeqformer.training.update import initial_state, make_update
program, made = module._program, []
module._program = lambda *of: made.append(program(*of)) or made[-1]
model = ModelConfig(width=16, heads=4, steps=2, context=8, vocabulary=40, gradient="plain",
                    weights=TimeConfig(d_emb=6, frequencies=4))
ids = np.random.default_rng(0).integers(0, 40, (8, 9)).astype(np.int32)
found = {}
for name, mesh in [("one", MeshConfig()), ("mixed", MeshConfig(data=2, fsdp=-1, tensor=2))]:
    config = Config(model=model, trainer=TrainerConfig(batch_size=8), mesh=mesh)
    with sharding.laid_out(sharding.mesh_of(config)):
        state, update = sharding.placed(initial_state(config)), make_update(config)
        losses, before = [], made[-1]._cache_size()
        for _ in range(3):
            batch = sharding.divided_batch(lambda start, stop: ids[start:stop], (1, 8, 9)) if name == "mixed" else ids
            state, measured = update(state, batch)
            losses.append(float(measured.loss))
        rows = jax.jit(lambda model: next_token_loss(model, ids[:3], block=4))(state.model)
        projection = state.model.weights.networks.feed_forward.up.projection
        losses.append(float(rows))
        found[name] = losses, made[-1]._cache_size() - before, projection.addressable_shards[0].data.shape
print(json.dumps(found))
"""


def test_eight_devices_train_as_one():
    """Also where the rows of a depth, three here, are not divided among them equally."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    environment = os.environ | {"XLA_FLAGS": flags.strip(), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    (one, _, whole), (mixed, compiled, part) = found["one"], found["mixed"]
    np.testing.assert_allclose(one, mixed, rtol=LOSS)
    assert compiled == 1, "the update was compiled again for the layout that it returns itself"
    assert whole == [16, 64, 6] and part == [8, 32, 6]


@pytest.mark.parametrize(
    "meshes, used", [([{}], 1), ([{"data": 2, "fsdp": 2}], 4), ([{}, {"tensor": 2}], 2), ([{"data": -1, "fsdp": 2}], 8)]
)
def test_results_tell_how_many_devices_the_meshes_took(meshes, used, monkeypatch):
    device = jax.devices()[0]
    monkeypatch.setattr(jax, "devices", lambda: 8 * [device])
    entries = [{"config": to_dict(Config(mesh=MeshConfig(**mesh)))} for mesh in meshes]
    assert results.document("", {}, entries)["device"] == f"{used} x {device.device_kind} ({device.platform})"
