"""Memory of a training update, as the compiler plans it, for this machine or for devices that it does not have."""

import dataclasses
import json
import math
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from diffeqformer.config import Config, from_dict, to_dict
from diffeqformer.errors import BadInput, RunFailed
from diffeqformer.model.build import abstract
from diffeqformer.model.transformer import Transformer
from diffeqformer.runs.collectives import Collective, collectives
from diffeqformer.sharding import AXES, BATCH, bytes_on_each, laid_out, mesh_of, require_divisible, with_shardings
from diffeqformer.training import factored
from diffeqformer.training.depths import largest_drawn, trained_depths
from diffeqformer.training.optimizer import split_trained
from diffeqformer.training.update import initial_state, make_update

MOST_DEVICES = 1 << 10
"""Maximum number of devices that a CPU can stand in for."""


class Footprint(NamedTuple):
    """Memory of a training update on one device, in bytes."""

    weights: int
    """Parameters, with their average and the teacher's if there are any."""
    optimizer: int
    """The optimiser's state."""
    temporary: int | None
    """Gradients, generated weights, activations and workspace at their peak: the compiled update's temporaries. `None`
    if it was not compiled."""
    gradients: int
    """Part of `temporary`: the gradients of all trained parameters; those of P as factors, where they stay factored."""
    generated: int
    """Part of `temporary`: the weights of the whole grid, if time networks generate them, in compute precision."""

    @property
    def rest(self) -> int | None:
        """Activations and workspace."""
        return None if self.temporary is None else max(self.temporary - self.gradients - self.generated, 0)

    @property
    def total(self) -> int | None:
        """All memory that an update needs at one time."""
        return None if self.temporary is None else self.weights + self.optimizer + self.temporary


def update_footprint(config: Config, *, compiled: bool = True) -> Footprint:
    """Compile the training update of `config` without running it, and read its memory plan. Where depth is drawn, this
    is at the depth whose update takes the most steps.

    If not `compiled`, only sizes are counted, which takes no time. The update is compiled for this machine's kind of
    device or, if `config.mesh` asks for more devices than there are, for as many virtual CPUs, in a separate process.
    `config.model.vocabulary` must be set. Nothing of the model's size is allocated.

    **Raises:** `BadInput` if the mesh does not fit the model, or is left open by -1.
    """
    sizes = dataclasses.astuple(config.mesh)
    if -1 in sizes:
        raise BadInput(f"mesh.{AXES[sizes.index(-1)]} is -1, but what is not here cannot be counted; give a number.")
    require_divisible(config, sizes)
    mesh, state = AbstractMesh(sizes, AXES), jax.eval_shape(lambda: initial_state(config))
    devices, temporary = math.prod(sizes), None
    if compiled:
        temporary, _ = _compile(config) if devices <= len(jax.devices()) else _on_virtual_devices(config, devices)
    return Footprint(
        weights=bytes_on_each((state.model, state.average, _teacher(config)), mesh),
        optimizer=bytes_on_each(state.optimizer, mesh),
        temporary=temporary,
        gradients=bytes_on_each(jax.eval_shape(partial(_gradients, config), state.model), mesh),
        generated=bytes_on_each(_generated(config), mesh),
    )


def planned_exchange(config: Config) -> tuple[int | None, list[Collective]]:
    """Return the temporaries of the compiled update in bytes, and its collectives among the devices of `config.mesh`.

    The update is compiled for virtual CPUs. The collectives are read from the partitioner's output, before the compiler
    for one kind of device changes types and combines collectives.

    **Raises:** as `update_footprint`.
    """
    return _on_virtual_devices(config, math.prod(dataclasses.astuple(config.mesh)))


def _compile(config: Config, dump: str = "") -> tuple[int | None, list[Collective]]:
    """Return the temporaries and, given a folder to dump programs to and more than one device, the collectives."""
    mesh = mesh_of(config)
    options: dict[str, str | bool] | None = None
    if dump and mesh:
        options = {"xla_dump_to": dump, "xla_dump_hlo_pass_re": "spmd-partitioning"}
    with laid_out(mesh):
        state = with_shardings(jax.eval_shape(lambda: initial_state(config)))
        parts, context = config.trainer.accumulation, config.model.context
        shape = (parts, config.trainer.batch_size // parts, context + 1)
        sharding = None if mesh is None else NamedSharding(mesh, PartitionSpec(None, BATCH))
        ids = jax.ShapeDtypeStruct(shape, np.int32, sharding=sharding)
        teacher, steps = with_shardings(_teacher(config)), largest_drawn(config)
        # An update calls two compiled functions; the plan is for one program of both.
        update = lambda state, ids, teacher: make_update(config, teacher=teacher)(state, ids, steps)
        lowered = jax.jit(update, donate_argnums=0).lower(state, ids, teacher)
        plan = lowered.compile(compiler_options=options).memory_analysis()
    written = Path(dump).glob("*after_spmd-partitioning*.txt") if options else ()
    found = [one for path in written for one in collectives(path.read_text())]
    if plan is None:
        return None, found
    # Outputs that do not reuse the memory of inputs exist in addition to the temporaries.
    return plan.temp_size_in_bytes + plan.output_size_in_bytes - plan.alias_size_in_bytes, found


def _teacher(config: Config) -> Transformer | None:
    """Return the shapes of the model that updates learn from, if any: the base, populated, at the run's own depth."""
    if config.depth.teacher != "base":
        return None
    return eqx.filter_eval_shape(lambda model: model.merge().populate(), abstract(config.model))


def _gradients(config: Config, model: Transformer) -> PyTree:
    """Return the gradients that an update holds at one time."""
    (trained, frozen), steps = split_trained(model, config.optimizer), largest_drawn(config)
    if not factored.stays_factored(config, model, steps):
        return trained
    populated, to_trained = factored.vjp(lambda trained: eqx.combine(trained, frozen).populate(steps), trained, steps)
    return to_trained(populated)


def _generated(config: Config) -> PyTree:
    """Return the shapes of the whole grid's weights, in compute precision; `None` if nothing generates them."""
    if config.model.time is None or config.model.tolerance:
        return None
    steps, _ = trained_depths(config, largest_drawn(config))[0]
    narrow = lambda x: jnp.zeros(x.shape, config.model.compute_dtype)
    layers = lambda model: jax.tree.map(narrow, model.populate(steps).weights)
    return eqx.filter_eval_shape(layers, abstract(config.model))


def _on_virtual_devices(config: Config, devices: int) -> tuple[int | None, list[Collective]]:
    """Run `_compile` in a separate process that has this many virtual devices."""
    if devices > MOST_DEVICES:
        raise BadInput(f"mesh has {devices} devices, but memory can be planned for at most {MOST_DEVICES}.")
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    cached = {"JAX_ENABLE_COMPILATION_CACHE": "false"}  # the cache keeps programs, but not what they were made from
    found = subprocess.run(
        [sys.executable, "-m", __name__],
        input=json.dumps(to_dict(config)),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **cached, "XLA_FLAGS": flags.strip(), "JAX_PLATFORMS": "cpu"},
    )
    lines = found.stderr.strip().splitlines() or ["no reason given"]
    if found.returncode == BadInput.exit_code:
        raise BadInput(lines[-1])
    if found.returncode:
        raise RunFailed(f"the update could not be compiled for {devices} devices: {lines[-1][:200]}")
    temporary, exchanged = json.loads(found.stdout)
    return temporary, [Collective(kind, size, tuple(among), times) for kind, size, among, times in exchanged]


if __name__ == "__main__":
    try:
        with TemporaryDirectory() as folder:
            print(json.dumps(_compile(from_dict(Config, json.load(sys.stdin)), folder)))
    except BadInput as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
