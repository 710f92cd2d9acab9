"""Memory on paper is the memory that an update takes."""

import dataclasses
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from diffeqformer.cli import info, main
from diffeqformer.config import Config, DepthConfig, MeshConfig, ModelConfig, OptimizerConfig, TimeConfig, TrainerConfig
from diffeqformer.errors import BadInput
from diffeqformer.model.count import count
from diffeqformer.runs.footprint import update_footprint
from diffeqformer.training.update import initial_state, make_update

MODEL = ModelConfig(
    width=256, heads=8, steps=4, context=128, vocabulary=2048, weights=TimeConfig(d_emb=16, frequencies=8)
)
PROGRAM = """
import dataclasses, json, re, sys, jax, numpy as np
from diffeqformer import sharding
from diffeqformer.config import Config, from_dict
from diffeqformer.runs.footprint import update_footprint
from diffeqformer.training.update import initial_state, make_update
from pathlib import Path

def resident(name):
    return 1024 * int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

config = from_dict(Config, json.load(sys.stdin))
rows, window = config.trainer.batch_size, config.model.context + 1
ids = np.zeros((rows, window), np.int32)
with sharding.laid_out(sharding.mesh_of(config)):
    state = sharding.placed(initial_state(config))
    update = jax.jit(make_update(config), donate_argnums=0)
    batch = lambda: sharding.divided_batch(lambda a, z: ids[a:z], (1, rows, window)) if sharding.is_divided() else ids
    held = lambda tree: sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(tree))
    found = {"weights": held(state.model), "optimizer": held(state.optimizer)}
    compiled = update.lower(state, batch()).compile()
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here on
    state, measured = compiled(state, batch())
    jax.block_until_ready(state)
    found["growth"] = resident("VmHWM") - before
print(json.dumps(found))
"""


def really(config: Config, devices: int) -> dict[str, int]:
    """What one device holds between updates, and by how much this process grows in the first of them."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(dataclasses.asdict(config)),
        env=os.environ
        | {
            "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}".strip(),
            "JAX_PLATFORMS": "cpu",
            "GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=65536:glibc.malloc.trim_threshold=65536",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 4])
def test_memory_on_paper_is_what_an_update_takes(devices):
    """CPUs add scratch space that no plan has: some per cent of the whole."""
    config = Config(model=MODEL, trainer=TrainerConfig(batch_size=32), mesh=MeshConfig(fsdp=devices))
    planned, found = update_footprint(config), really(config, devices)
    total = found["weights"] + found["optimizer"] + found["growth"] / devices
    print(planned, planned.total, found, total)
    assert (planned.weights, planned.optimizer) == (found["weights"], found["optimizer"])
    assert planned.total == pytest.approx(total, rel=0.1)


@pytest.mark.slow
def test_devices_share_what_fsdp_cuts():
    config = Config(model=MODEL, trainer=TrainerConfig(batch_size=32))
    alone, four = (update_footprint(dataclasses.replace(config, mesh=MeshConfig(fsdp=n))) for n in (1, 4))
    for part in ("weights", "optimizer", "gradients", "generated"):
        assert 0.25 * getattr(alone, part) <= getattr(four, part) < 0.27 * getattr(alone, part)
    assert four.temporary < 0.4 * alone.temporary


@pytest.mark.slow
def test_the_model_that_updates_learn_from_is_counted():
    model = dataclasses.replace(MODEL, width=16, heads=2, vocabulary=40, context=16)
    config = Config(model=model, depth=DepthConfig(sample=(2, 4), distill=0.5), trainer=TrainerConfig(batch_size=2))
    taught = dataclasses.replace(config, depth=dataclasses.replace(config.depth, teacher="base"))
    teacher = initial_state(config).model.populate()
    alone, both = map(update_footprint, (config, taught))
    assert both.weights == alone.weights + 4 * count(teacher)
    assert both.temporary is not None and both.optimizer == alone.optimizer
    assert make_update(taught, teacher=teacher)(initial_state(taught), np.zeros((2, 17), np.int32), 2)


def test_parts_of_the_footprint():
    model = dataclasses.replace(MODEL, width=16, heads=2, vocabulary=40, context=16, gradient="plain")
    config = Config(model=model, trainer=TrainerConfig(batch_size=2))
    state, planned = initial_state(config), update_footprint(config)
    counted = update_footprint(config, compiled=False)
    assert counted == planned._replace(temporary=None) and counted.rest is counted.total is None
    assert planned.weights == 4 * count(state.model)
    matrices = 12 * 16 * 16  # of P's gradient, d_emb times as large, stands dW at 4 steps, and h for each of 4 maps
    assert planned.gradients == planned.weights - 4 * (16 * matrices - 4 * (matrices + 4 * 16))
    assert planned.optimizer == 4 * count(state.optimizer)
    assert planned.generated == 4 * model.steps * (12 * 16 * 16 + 9 * 16 + 4 * 16)  # matrices, biases, norms
    assert planned.total == planned.weights + planned.optimizer + planned.temporary
    drawn = DepthConfig(sample=(1, model.steps))  # what takes most is not the model's own
    assert (
        update_footprint(dataclasses.replace(config, model=dataclasses.replace(model, steps=2), depth=drawn)) == planned
    )
    with pytest.raises(BadInput) as told:
        update_footprint(dataclasses.replace(config, mesh=MeshConfig(fsdp=-1)))
    assert str(told.value) == "mesh.fsdp is -1, but what is not here cannot be counted; give a number."


@pytest.mark.parametrize(
    "name, columns",
    [
        ("llama-1b", {"this model": ["layer", 0]}),
        ("diffeqformer-llama-1b", {"this model": ["time", 0], "vanilla twin": ["layer", 0]}),
        ("quickstart-elastic", {"this model": ["knots", 7], "vanilla twin": ["layer", 0]}),
    ],
)
def test_a_vanilla_model_has_no_twin_beside_it_and_a_twin_one_depth(name, columns, monkeypatch, capsys):
    kind = lambda config, compiled: [config.model.weights.kind, len(config.depth.depths)]
    monkeypatch.setattr(info, "_measure", kind)
    assert main(["info", name, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["models"] == columns


def test_an_average_of_the_parameters_takes_memory():
    plain = Config(model=MODEL)
    averaged = dataclasses.replace(plain, optimizer=OptimizerConfig(average="ema"))
    alone, both = (update_footprint(one, compiled=False).weights for one in (plain, averaged))
    assert both == 2 * alone
