"""`diffeqformer info CONFIG|RUN`"""

import dataclasses
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

from diffeqformer.cli.output import human, print_json, print_table
from diffeqformer.cli.parse import ConfigArguments, arguments_from, options_of, positional_first
from diffeqformer.config import Config, DepthConfig, OwnConfig, TimeConfig, find_config, validate
from diffeqformer.devices import DEVICES, USABLE
from diffeqformer.errors import BadInput
from diffeqformer.plain import Document
from diffeqformer.progress import Terminal
from diffeqformer.store.paths import path_of

MEASURED = {"activations, workspace": "rest", "total": "total"}
"""The parts of an update's memory that are known only once it is compiled."""
D_EMB_TABLE = (20, 48, 72, 96, 120, 144)


@dataclass(frozen=True)
class Arguments(ConfigArguments):
    """Parameters, operations per token and memory of a config or a run, beside its vanilla twin.

    --mesh.data, .fsdp and .tensor give the devices that it would be trained on.

    Example: diffeqformer info diffeqformer-gpt-small --model.weights.d-emb 96
    """

    memory: bool = False
    """Compile the update, which takes a minute for large models, to tell what activations take."""
    card: str = ""
    """Also print whether the update fits into a device of this kind, such as h100 or a100-40gb, and whose attention it
    has there; compiles it."""


def run(words: Sequence[str], as_json: bool) -> None:
    """Print what a model costs, beside the vanilla transformer of its size, and what d_emb would change."""
    words, run = positional_first(words, options_of(Arguments)), None
    if words and (path_of(words[0]) / "config.yaml").is_file():
        from diffeqformer.runs.folder import open_config

        run = path_of(words[0])
        open_config(run)  # to find damage: the numbers of an edited config are not this run's
        words[0] = os.path.join(words[0], "config.yaml")  # `Path` would make an option of ./-NAME
    elif words and not words[0].startswith("-"):
        find_config(words[0], "a file, a run folder")
    given = arguments_from(words, "info", Arguments)
    if given.card and given.card not in DEVICES:
        raise BadInput(f"--card is {given.card!r}, but must be one of {', '.join(DEVICES)}.")
    config = _with_vocabulary(validate(given.settings))
    from diffeqformer.model.build import abstract
    from diffeqformer.model.count import vanilla_twin
    from diffeqformer.runs.folder import require_own_parts

    if run:
        require_own_parts(run, config.model, abstract(config.model))
    cases, twin = {"this model": config}, vanilla_twin(config.model)
    if twin != config.model:
        cases["vanilla twin"] = dataclasses.replace(config, model=twin, depth=DepthConfig())  # a table has one depth
    models: dict[str, Document] = {}
    compiled = given.memory or bool(given.card)
    with Terminal().stage("Compiling the training update" if compiled else "Counting", len(cases)) as stage:
        for name, one in cases.items():
            models[name] = _measure(one, compiled)
            stage.advance(1, name)
    choices = _d_emb_choices(config, config.model.time) if config.model.time else []
    fits, usable = {}, 0.0
    if given.card:
        usable = USABLE * DEVICES[given.card].memory
        fits = {name: cell["memory_bytes"]["total"] <= usable for name, cell in models.items()}
    attention = _attention(config, given.card)
    if as_json:
        shown = {"fits": fits, "attention": attention}
        return print_json({"models": models, "d_emb": choices, **{key: value for key, value in shown.items() if value}})
    _print(config, models, compiled)
    if attention:
        print(f"attention: {attention}")
    if fits:
        verdict = ", ".join(f"{name} {'fits' if fit else 'does not fit'}" for name, fit in fits.items())
        print(f"{given.card}: {human(usable, 'B')} of its memory can be used; {verdict}.")
    if choices:
        _print_d_emb(config, choices)


def _with_vocabulary(config: Config) -> Config:
    """Return the config with the vocabulary that its tokenizer will have."""
    if config.model.vocabulary is not None:
        return config
    data = config.data
    size = data.tokenizer_vocabulary
    if data.puzzle or data.tokenizer != "train":
        from diffeqformer.data.tokenizer import vocabulary_size
        from diffeqformer.data.tokenizer_files import load_tokenizer

        size = vocabulary_size(data.puzzle.build().tokenizer() if data.puzzle else load_tokenizer(data.tokenizer))
    return dataclasses.replace(config, model=dataclasses.replace(config.model, vocabulary=size))


def _measure(config: Config, compiled: bool) -> Document:
    """Return parameters, NFE, operations and memory of one model, as `--json` prints them."""
    from diffeqformer.model.count import flops, parameters
    from diffeqformer.runs.footprint import update_footprint
    from diffeqformer.training.depths import mean_operations

    memory, tokens = update_footprint(config, compiled=compiled), config.tokens_per_update
    training, generating = mean_operations(config)  # over all depths that it is trained at
    operations = flops(config.model)._replace(training_per_token=training / tokens, generating_weights=generating)
    return {
        "parameters": parameters(config.model)._asdict(),
        "evaluations": config.model.scheme.build().evaluations.times(config.model.steps)._asdict(),
        "flops": operations._asdict() | {"generating_weights_per_token": operations.generating_weights / tokens},
        "memory_bytes": memory._asdict() | {"rest": memory.rest, "total": memory.total},
    }


def _d_emb_choices(config: Config, time: TimeConfig) -> list[Document]:
    """Return what other widths of the time networks would cost."""
    from diffeqformer.model.build import abstract
    from diffeqformer.model.count import count
    from diffeqformer.training.depths import mean_operations

    (training, own), choices = mean_operations(config), []
    for d_emb in sorted({*D_EMB_TABLE, time.d_emb}):
        model = dataclasses.replace(config.model, weights=dataclasses.replace(time, d_emb=d_emb))
        generating = own * d_emb / time.d_emb
        share = generating / (training + generating)
        choices.append({"d_emb": d_emb, "stored": count(abstract(model)), "generation_share": share})
    return choices


def _print(config: Config, models: dict[str, Document], compiled: bool) -> None:
    from diffeqformer.report.text import counted, counted_steps, evaluations

    row = lambda name, unit, group, key: [name, *(human(cell[group][key], unit) for cell in models.values())]
    m, t = config.model, config.trainer
    print_table(
        f"{m.field.kind}, {m.weights.kind} weights, {m.scheme.kind}: {counted_steps(m.steps)}, width {m.width}, "
        f"{counted(m.heads, 'head')}, context {m.context}, vocabulary {m.vocabulary}, batch {t.batch_size} "
        f"in {counted(t.accumulation, 'part')}, {m.compute_dtype}",
        ["", *models],
        [
            row("parameters, stored", "", "parameters", "stored"),
            row("parameters, populated", "", "parameters", "effective"),
            ["NFE per forward pass", *(evaluations(cell["evaluations"]) for cell in models.values())],
            row("inference, per token", "FLOP", "flops", "inference_per_token"),
            row("training, per token", "FLOP", "flops", "training_per_token"),
            row("  and generating weights, per token", "FLOP", "flops", "generating_weights_per_token"),
            row("memory: weights", "B", "memory_bytes", "weights"),
            row("  optimiser", "B", "memory_bytes", "optimizer"),
            row("  gradients", "B", "memory_bytes", "gradients"),
            row("  generated weights", "B", "memory_bytes", "generated"),
            *(row(f"  {name}", "B", "memory_bytes", key) for name, key in MEASURED.items() if compiled),
        ],
    )
    print(_about_memory(config) if compiled else "--memory adds what activations take: it compiles the update.")
    if config.depth.depths or config.depth.always:
        print("Training is the mean over a run's updates and the depths that each is trained at.")
    if m.tolerance:
        print(f"NFE and operations are those of {m.steps} fixed steps; the tolerance will choose its own.")


def _about_memory(config: Config) -> str:
    """Say which devices the memory is for, and where its numbers come from."""
    import jax

    mesh = dataclasses.asdict(config.mesh)
    devices = math.prod(mesh.values())
    kind = jax.devices()[0].platform.upper() if devices <= len(jax.devices()) else "CPU"
    axes = ", ".join(f"{axis} {size}" for axis, size in mesh.items())
    each = f" of each of {devices} devices ({axes})" if devices > 1 else ""
    return f"Memory{each} as the compiled update plans it for {kind}s, at its peak."


def _attention(config: Config, card: str) -> str:
    """Say whose attention the update uses on a card, or else on this machine's GPUs; "" without one of NVIDIA's, or if
    the field is a user's own."""
    import jax

    from diffeqformer.nn.attention import cuda_capabilities, cudnn_lacks, cudnn_refuses

    m = config.model
    capabilities = [DEVICES[card].capability] if card else cuda_capabilities()
    known = [one for one in capabilities if one is not None]
    if isinstance(m.field, OwnConfig) or not known:
        return ""
    if lacking := cudnn_lacks(m.compute_dtype, m.dropout.attention, known):
        return f"XLA's, since {lacking}"
    if card:  # JAX answers only for the devices that are here
        return f"cuDNN's flash attention, if JAX finds cuDNN there and it takes heads of width {m.head_width}"
    part = lambda heads: jax.ShapeDtypeStruct((1, m.context, heads, m.head_width), m.compute_dtype)
    refused = cudnn_refuses(part(m.heads), part(m.kv_heads), part(m.kv_heads))
    return f"XLA's, since JAX refuses cuDNN's: {refused}" if refused else "cuDNN's flash attention"


def _print_d_emb(config: Config, choices: list[Document]) -> None:
    from diffeqformer.model.count import smallest_useful_d_emb

    print()
    print_table(
        "d_emb",
        ["d_emb", "parameters, stored", "share of operations for weights"],
        [[str(c["d_emb"]), human(c["stored"]), f"{100 * c['generation_share']:.3g} %"] for c in choices],
    )
    print(
        f"A weight is P h(t) + C with d_emb columns in P, so from d_emb = {smallest_useful_d_emb(config.model)} on the "
        "matrices of this grid's times can take any values; below that they are tied to each other. At GPT-large size "
        "the authors' runs passed GPT at 144 (perplexity 19.7, 18.7, 18.3 at 48, 96, 144; GPT 18.5; in the notebook of "
        "their release). Stored parameters and optimiser state grow with d_emb; activations and the populated model do "
        "not."
    )
