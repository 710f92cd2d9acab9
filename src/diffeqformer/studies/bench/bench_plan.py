"""`bench plan`: estimated cost of training on accelerators not present, by a roofline and the compiled program."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from diffeqformer.config import Config, read_shipped, validate, with_values
from diffeqformer.config.bounds import setting, whole_numbers
from diffeqformer.devices import DEVICES, USABLE, Device
from diffeqformer.errors import BadInput
from diffeqformer.plain import Values
from diffeqformer.progress import Progress
from diffeqformer.report.table import Table
from diffeqformer.report.text import MISSING, duration, percent, size
from diffeqformer.studies.bench import benchmark as b
from diffeqformer.studies.bench.bench_train import PASSES
from diffeqformer.studies.study import Result

if TYPE_CHECKING:
    from diffeqformer.runs.collectives import Collective

LLAMA_7B = {
    "model.width": 4096, "model.steps": 32, "model.heads": 32, "model.field.kv_heads": 32, "model.hidden": 11008,
    "model.context": 4096, "model.vocabulary": 32000,
}  # fmt: skip
"""Llama 2's sizes (Touvron et al. 2023)."""
MODELS: Mapping[str, tuple[str, Values, int]] = {
    "gpt-small": ("gpt-small", {}, 16), "gpt-medium": ("gpt-medium", {}, 16), "llama-1b": ("llama-1b", {}, 4),
    "llama-7b": ("llama-1b", LLAMA_7B, 1),
}  # fmt: skip
"""For each name: the preset, its overrides, and the sequences on a device at a time."""
WEIGHTS = ("time", "knots")
MACHINE = 8
"""Devices per machine, connected by links of their own; machines are connected by the network."""
NETWORK = 50e9
"""Bytes per second of each device between machines, in each direction: 400 Gb/s."""
REACHED = 0.4
"""Share of the peak that well-tuned training code reaches for models of these sizes."""
TOKENS = 20
"""Training tokens per parameter of the populated model. Source: Hoffmann et al. 2022, arXiv:2203.15556."""
FULL = 0.6
"""Share of memory that weights, moments and gradients may take; the rest is for activations."""


@dataclass(frozen=True)
class Arguments(b.Kept):
    """Time, memory and cost of training on accelerators that are not here: a plan on paper, nothing is run.

    Example: diffeqformer bench plan --models gpt-small,llama-1b --devices 1,8,64
    """

    card: str = "h100"
    """The accelerator."""
    models: str = ",".join(MODELS)
    """gpt-small, gpt-medium, llama-1b or llama-7b, each with time-dependent weights and with knots."""
    devices: str = "1,8,64,256"
    """Devices; above 8, multiples of 8."""
    price: Annotated[float, tyro.conf.arg(metavar="DOLLARS")] = setting(2.5, not_negative=True)
    """Price per device and hour."""


def study(arguments: Arguments, progress: Progress) -> Result:
    """Compile the updates for as many virtual devices, and count their costs.

    **Raises:** `BadInput` for an unknown card or model, or an impossible number of devices.
    """
    if arguments.card not in DEVICES or DEVICES[arguments.card].link is None:
        linked = ", ".join(name for name, one in DEVICES.items() if one.link)
        raise BadInput(f"--card is {arguments.card!r}, but must be one of {linked}.")
    names, counts = arguments.models.split(","), whole_numbers(arguments.devices, "--devices")
    for name in names:
        if name not in MODELS:
            raise BadInput(f"--models has {name!r}, but the models are {', '.join(MODELS)}.")
    for count in counts:
        if count > MACHINE and count % MACHINE:
            raise BadInput(f"--devices has {count}, but above {MACHINE} must be multiples of {MACHINE}.")
    rows = plan(names, counts, DEVICES[arguments.card], progress)
    return BENCHMARK.measured(arguments, card=arguments.card, price=arguments.price, rows=rows)


def plan(names: Sequence[str], counts: Sequence[int], device: Device, progress: Progress) -> list[b.Document]:
    """Plan each model with each kind of weights on each number of devices.

    **Returns:** one row for each: `model`, `weights`, `devices`, `data` and `fsdp` of the mesh (`None` if nothing
    fits), and the costs of an update, as from `on_paper`.
    """
    todo = [(name, kind, count) for name in names for kind in WEIGHTS for count in counts]
    rows = []
    with progress.stage("Compiling for devices that are not here", len(todo)) as stage:
        for name, kind, count in todo:
            config = config_of(name, kind)
            mesh = mesh_for(config, count, device)
            found = {} if mesh is None else on_paper(with_values(config, _meshed(config, mesh)), device)
            data, fsdp = mesh or (None, None)
            rows.append({"model": name, "weights": kind, "devices": count, "data": data, "fsdp": fsdp, **found})
            stage.advance(1, f"{name}, {kind}, {count}")
    return rows


def config_of(name: str, weights: str) -> Config:
    """Return a model's config, with one device's sequences at a time as its batch.

    The loss is computed in one block of positions: with several, each block would reduce the gradient of the embedding
    over all devices separately.
    """
    preset, different, sequences = MODELS[name]
    own = preset if weights == "knots" else f"diffeqformer-{preset}"
    config = with_values(read_shipped(own), different)
    knots: dict[str, Any] = {"model.weights": {"kind": "knots", "knots": config.model.steps}}
    one: dict[str, Any] = {
        "trainer.batch_size": sequences, "trainer.accumulation": 1,
        "trainer.loss_block": sequences * config.model.context,
    }  # fmt: skip
    return validate(with_values(config, one | (knots if weights == "knots" else {})))


def mesh_for(config: Config, devices: int, device: Device) -> tuple[int, int] | None:
    """Return `data` and `fsdp`: weights are sharded over as few devices as their state needs; `None` if none fit."""
    from diffeqformer.runs.footprint import update_footprint

    for fsdp in (2**power for power in range(11) if devices % 2**power == 0):
        mesh = (devices // fsdp, fsdp)
        state = update_footprint(with_values(config, _meshed(config, mesh)), compiled=False)
        if state.weights + state.optimizer + state.gradients <= FULL * USABLE * device.memory:
            return mesh
    return None


def _meshed(config: Config, mesh: tuple[int, int]) -> b.Document:
    data, fsdp = mesh
    batch = data * fsdp * config.trainer.batch_size
    return {"mesh.data": data, "mesh.fsdp": fsdp, "trainer.batch_size": batch}


def on_paper(config: Config, device: Device) -> b.Document:
    """Estimate the costs of an update, with three separate lower bounds on its time.

    **Returns:** `tokens` of all devices. In seconds: `compute`, the operations of `model.count.flops` at the card's
    peak; `memory`, the bytes of weights, gradients and `traffic` at its bandwidth; `links`, the bytes that the compiled
    program's collectives send, by links within a machine, by the network between machines. `bytes` of a device's memory
    that the program plans; `parameters`, stored and effective.
    """
    from diffeqformer.model.count import flops, parameters
    from diffeqformer.runs.footprint import planned_exchange, update_footprint

    devices = config.mesh.data * config.mesh.fsdp
    counted, state, numbers = flops(config.model), update_footprint(config, compiled=False), parameters(config.model)
    tokens = config.trainer.batch_size * config.model.context
    temporary, exchanged = planned_exchange(config)
    operations = counted.training_per_token * tokens / devices + counted.generating_weights / config.mesh.fsdp
    # Gradients are written and read; generated weights are written, then read in both passes.
    read = PASSES * state.weights + 2 * state.gradients + 3 * state.generated + traffic(config, tokens // devices)
    return {
        # `study` takes only cards with links, whose bandwidth is known.
        "tokens": tokens, "compute": operations / device.peak, "memory": read / (device.bandwidth or 1.0),
        "links": sum((one.sent / speed(one, device) for one in exchanged), 0.0),
        "bytes": state.weights + state.optimizer + (temporary or 0), "parameters": numbers._asdict(),
    }  # fmt: skip


def speed(one: "Collective", device: Device) -> float:
    """Bytes per second that each device of a collective can send: by the links within a machine; between machines by
    the network of all its devices there, if that is less."""
    machines = {each // MACHINE for each in one.devices}
    within = device.link or NETWORK
    return within if len(machines) == 1 else min(within, NETWORK * len(one.devices) / len(machines))


def traffic(config: Config, tokens: int) -> int:
    """Bytes of activations that the matrix products of an update read and write: inputs and outputs, once in the
    forward pass, twice in the backward pass. Attention and elementwise operations are assumed to be fused into them."""
    import jax

    from diffeqformer.model.build import abstract
    from diffeqformer.ode.lora import linear_maps

    model = abstract(config.model)
    block, evaluations = model.field.shapes(), model.scheme.evaluations.times(config.model.steps)
    through = lambda half: sum(one.inputs + one.outputs for one in linear_maps(half).values())
    numbers = evaluations.attention * through(block.attention) + evaluations.feed_forward * through(block.feed_forward)
    return 3 * tokens * numbers * jax.numpy.dtype(config.model.compute_dtype).itemsize


def tables(document: b.Document) -> tuple[Table, ...]:
    """Tabulate one row for each model, kind of weights and number of devices."""
    rows, usable = [], USABLE * DEVICES[document["card"]].memory
    for row in document["rows"]:
        named = (row["model"], row["weights"], str(row["devices"]))
        if row["fsdp"] is None:
            rows.append((*named, "does not fit", *[MISSING] * 8))
            continue
        times = [b.seconds(row[name]) for name in ("compute", "memory", "links")]
        bounds = bounds_of(row)
        bound = max(bounds, key=bounds.__getitem__)
        seconds = bounds[bound]
        spent = TOKENS * row["parameters"]["effective"] / row["tokens"] * seconds
        fits = size(row["bytes"]) + ("" if row["bytes"] <= usable else " (too much)")
        rows.append((
            *named, f"{row['data']} x {row['fsdp']}", *times, bound, f"{row['tokens'] / seconds:,.0f}", fits,
            duration(spent), f"{spent / 3600 * row['devices'] * document['price']:,.0f}",
        ))  # fmt: skip
    columns = (
        "model", "weights", "devices", "data x fsdp", "compute", "memory", "links", "bound by", "tokens/s",
        "memory planned", "time", "dollars",
    )  # fmt: skip
    said = (
        f"An update on {document['card']}s: seconds of compute at the peak, of memory and of links at their bandwidth; "
        f"tokens a second, and what bounds them, if products reach {percent(REACHED)} of the peak and the rest goes on "
        f"beside them; time and price of {TOKENS} tokens per parameter"
    )
    return (Table(said, columns, rows),)


def bounds_of(row: b.Row) -> dict[str, float]:
    """Seconds of an update by each bound, with products at the share of the peak that is reached."""
    return {"compute": row["compute"] / REACHED, "memory": row["memory"], "links": row["links"]}


def _headline(document: b.Document) -> str:
    known = {(row["model"], row["devices"], row["weights"]): row for row in document["rows"] if row["fsdp"]}
    pairs = [(row, known[model, devices, "knots"]) for (model, devices, kind), row in known.items()
             if kind == "time" and (model, devices, "knots") in known]  # fmt: skip
    if not pairs:
        return "Nothing here fits with both kinds of weights."
    longest = max(max(bounds_of(row).values()) / max(bounds_of(other).values()) for row, other in pairs)
    cut, less = (max(pair[which]["fsdp"] for pair in pairs) for which in (0, 1))
    said = f"On paper, time-dependent weights take at most {longest:.2f} times as long as knots"
    if cut == 1:
        return f"{said}; neither has to be sharded across devices."
    return f"{said}, but their state has to be sharded across up to {cut} devices, that of knots across {less}."


BENCHMARK = b.Benchmark(
    "plan",
    "A plan on paper",
    "A roofline: nothing is run. Operations are counted from the model. Collectives are read off the update as "
    "partitioned for that many devices. Bandwidths and peaks are the manufacturers' (8 devices per machine, 400 Gb/s "
    "per device between machines). Times are lower bounds: memory and link traffic is assumed to overlap with matrix "
    "products. Memory is planned for CPUs, which keep the attention scores and compute in single precision, so it is "
    "an upper bound. Each device has the same number of sequences at a time, so the batch grows with the number of "
    "devices. A sharded gradient is counted as reduced whole, as the partitioner writes it; compilers for GPUs halve "
    "that.",
    _headline,
    tables,
)
