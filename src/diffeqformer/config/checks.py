"""Checks that the settings of a run agree with each other."""

import dataclasses
import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from diffeqformer.config.bounds import INT32, MOST_NUMBERS, MOST_STEPS, SMALLEST, require_bounds, require_once
from diffeqformer.config.model import ModelConfig
from diffeqformer.config.optimizer import LastConfig, OptimizerConfig
from diffeqformer.config.run import Config, DataConfig, DepthConfig, MeshConfig, TrainerConfig
from diffeqformer.config.sections import (
    GPTConfig,
    GradientConfig,
    KnotsConfig,
    LayerConfig,
    LayerDropConfig,
    LevelsConfig,
    LlamaConfig,
    OwnConfig,
    ReversibleConfig,
    TimeConfig,
)
from diffeqformer.config.strict import checked, choices_of, kinds_of
from diffeqformer.errors import BadInput
from diffeqformer.plain import shown


def validate(config: Config) -> Config:
    """Return `config` if its settings agree with each other, with the time features' band filled in.

    **Raises:** `BadInput` naming the first setting that does not, its value, and what would be right.
    """
    config = checked(config, Config)
    d, o, t = config.data, config.optimizer, config.trainer
    require_bounds(config)
    if isinstance(o.average, LastConfig) and o.average.updates > t.updates:
        most = f"at most trainer.updates, which is {t.updates}"
        raise BadInput(f"optimizer.average.updates is {o.average.updates}, but must be {most}.")
    if config.tokens_per_update > INT32:
        raise BadInput(
            f"trainer.batch_size x model.context is {t.batch_size} x {config.model.context} tokens, but must be at "
            f"most {INT32}."
        )
    if t.batch_size % t.accumulation:
        raise BadInput(
            f"trainer.batch_size is {t.batch_size}, but must be divisible by trainer.accumulation, "
            f"which is {t.accumulation}."
        )
    _validate_data(d, config.model.context)
    _validate_mesh(config.mesh)
    for name, value in () if config.base.run else _changed(config.base, "base."):
        raise BadInput(f"{name} is {value!r}, but a run without base.run does not read it.")
    _validate_depth(config.depth, config.model, t)
    if config.depth.teacher == "base" and not (config.base.run and config.depth.distill):
        why = "depth.distill is 0: nothing is learned" if config.base.run else "base.run is not given"
        raise BadInput(f"depth.teacher is 'base', but {why}; `diffeqformer finetune` starts from a base.")
    weights = config.model.weights
    if isinstance(weights, TimeConfig) and weights.highest_frequency is None:
        fastest = 2.0 * config.model.steps if config.depth.depths else weights.fastest
        weights = dataclasses.replace(weights, highest_frequency=fastest)
        config = dataclasses.replace(config, model=dataclasses.replace(config.model, weights=weights))
    m = validate_model(config.model)
    deepest = max((m.steps, *config.trained_at))
    if isinstance(m.weights, LayerDropConfig) and deepest > (layers := m.weights.layers or m.steps):
        raise BadInput(
            f"model.weights has {layers} layers, of which fewer steps leave some out, but updates or readings are at "
            f"{deepest} steps; raise model.weights.layers, or lower model.steps, depth.sample and depth.always."
        )
    if o.rule == "adamw" and o.rule_roles != OptimizerConfig().rule_roles:
        raise BadInput(
            f"optimizer.rule_roles is {', '.join(o.rule_roles) or 'empty'}, but optimizer.rule is 'adamw', which moves "
            "all parameters."
        )
    widest = max(m.width, m.hidden_width, m.heads * m.context)  # the last are the scores of attention
    _require_countable("activations", "steps x batch x context x width", m.steps, t.batch_size, m.context, widest)
    return config


def _validate_data(d: DataConfig, context: int) -> None:
    for name, value, source in [
        ("data.train", d.train, "files"), ("data.validation", d.validation, "files"),
        ("data.dataset", d.dataset, "huggingface"), ("data.dataset_name", d.dataset_name, "huggingface"),
        ("data.puzzle", d.puzzle, "puzzle"), ("data.weights", d.weights, "files"),
        ("data.targets 'completions'", d.targets == "completions", "files"),
    ]:  # fmt: skip
        if value and d.source != source:
            raise BadInput(
                f"{name} is given, but data.source {d.source!r} does not read it; set data.source to {source!r}."
            )
    if d.stream and d.source not in ("files", "huggingface"):
        raise BadInput(
            f"data.stream is {d.stream}, but data.source {d.source!r} is packed; 'files' and 'huggingface' stream."
        )
    if d.weights and len(d.weights) != len(d.train):
        wanted = f"as many numbers as data.train has paths, {len(d.train)}"
        raise BadInput(f"data.weights is {shown(list(d.weights))}, but must have {wanted}.")
    if d.weights and not sum(d.weights) < float("inf"):
        raise BadInput(f"data.weights is {shown(list(d.weights))}, but must have a finite sum.")
    if d.source == "files" and not d.train:
        raise BadInput("data.train is empty, but data.source 'files' needs at least one path or glob.")
    if d.source == "huggingface" and not d.dataset:
        raise BadInput("data.dataset is empty, but data.source 'huggingface' needs a dataset's hub id or folder.")
    if d.source == "puzzle" and d.puzzle is None:
        kinds = [kind for section in choices_of(DataConfig)["puzzle"] for kind in kinds_of(section)]
        raise BadInput(
            f"data.puzzle is not given, but data.source 'puzzle' needs one of {', '.join(map(repr, kinds))}."
        )
    if d.puzzle and context != d.puzzle.context:
        raise BadInput(
            f"model.context is {context}, but must be {d.puzzle.context}, the tokens of a problem of "
            f"data.puzzle {d.puzzle.kind!r} of this size."
        )


def _validate_mesh(mesh: MeshConfig) -> None:
    sizes = {f"mesh.{name}": size for name, size in vars(mesh).items()}
    for name, size in sizes.items():
        if size == 0:  # less than -1 is out of bounds
            raise BadInput(f"{name} is {size}, but must be at least 1, or -1 for all devices that are left.")
    left = [name for name, size in sizes.items() if size == -1]
    if len(left) > 1:
        raise BadInput(f"{' and '.join(left)} are -1, but only one can be.")


def _validate_depth(d: DepthConfig, m: ModelConfig, t: TrainerConfig) -> None:
    if not (changed := [*_changed(d, "depth.")]):
        return
    name, value = changed[0]
    if isinstance(m.weights, LayerConfig):
        raise BadInput(
            f"{name} is {value!r}, but model.weights is 'layer': a table of layers has one depth; 'time', "
            "'time-shared-mlp', 'knots', 'levels' and 'shared' have weights for all."
        )
    if m.tolerance:
        raise BadInput(f"{name} is {value!r}, but model.tolerance.rtol, {m.tolerance.rtol}, chooses the steps.")
    if d.jitter and isinstance(m.weights, LayerDropConfig) and m.weights.nested:
        raise BadInput(f"depth.jitter is {d.jitter}, but model.weights.nested keeps layers by the number of steps.")
    for depth in d.depths:
        if not 1 <= depth <= MOST_STEPS:
            must = "at least 1" if depth < 1 else f"at most {MOST_STEPS}"
            raise BadInput(f"depth.sample is {depth}, but must be {must}.")
    require_once("depth.sample", d.depths)
    for name, value in () if d.depths else changed:
        if name != "depth.jitter":
            advice = "; move one of these depths there" if name == "depth.always" else ""
            raise BadInput(f"{name} is {value!r}, but without depth.sample nothing is drawn{advice}.")
    require_once("depth.always", d.always)
    if d.always and d.together == "rows":
        raise BadInput(f"depth.always is {d.always}, but with depth.together 'rows' no sequence is read at two depths.")
    if d.distill and d.teacher == "deepest" and (d.alone or d.together == "rows"):
        rows = "with depth.together 'rows' no sequence is read at two depths"
        why = "depth.together 'one' trains at one depth at a time" if d.alone else rows
        raise BadInput(
            f"depth.distill is {d.distill}, but {why}; with depth.always the others learn from the deepest, and with "
            "depth.teacher 'base' all from the base."
        )
    if d.distill and d.teacher == "deepest" and len(d.always) == 1 and {*(d.depths or (m.steps,))} == {*d.always}:
        raise BadInput(
            f"depth.distill is {d.distill}, but all updates train at {max(d.always)} steps alone: nothing is deeper to "
            "learn from."
        )
    if d.together == "rows" and d.shallow_fraction:
        raise BadInput(
            f"depth.shallow_fraction is {d.shallow_fraction}, but with depth.together 'rows' each update has "
            "all depths."
        )
    rows = t.batch_size // t.accumulation
    if d.together == "rows" and len(d.depths) > rows:
        raise BadInput(
            f"depth.sample has {len(d.depths)} numbers of steps, but with depth.together 'rows' each needs a "
            f"sequence of its own: at most {rows} (trainer.batch_size / trainer.accumulation)."
        )
    if len(d.shares) != len(d.depths):
        wanted = f"as many numbers as depth.sample has depths, {len(d.depths)}"
        raise BadInput(f"depth.weights is {shown(list(d.shares))}, but must have {wanted}.")
    for share in d.shares:
        if not 0 < share < float("inf"):
            raise BadInput(f"depth.weights has {share}, but must have positive numbers only.")
    if not sum(d.shares) < float("inf"):
        raise BadInput(f"depth.weights is {d.shares}, but must have a finite sum.")


def validate_model(m: ModelConfig) -> ModelConfig:
    """Return a model config if its settings agree with each other.

    **Raises:** `BadInput` as `validate`.
    """
    m = checked(m, ModelConfig, "model")
    require_bounds(m, "model.")
    if not SMALLEST <= m.interval <= 1 / SMALLEST:  # others are zero or infinite in float32
        must = f"must be a positive number, from {SMALLEST:.2g} to {1 / SMALLEST:.2g}"
        raise BadInput(f"model.horizon is {m.interval}, but {must}.")
    if isinstance(m.weights, TimeConfig) and m.weights.lowest_frequency > m.weights.fastest:
        raise BadInput(
            f"model.weights.lowest_frequency is {m.weights.lowest_frequency}, but must not exceed "
            f"model.weights.highest_frequency, which is {m.weights.fastest}."
        )
    if m.width % m.heads and not getattr(m.field, "head_width", None):
        raise BadInput(f"model.width is {m.width}, but must be divisible by model.heads, which is {m.heads}.")
    if isinstance(m.field, GPTConfig) and not m.field.rotary and m.field.rope_theta != GPTConfig.rope_theta:
        raise BadInput(f"model.field.rope_theta is {m.field.rope_theta}, but is read with model.field.rotary only.")
    if isinstance(m.field, GPTConfig) and m.field.rotary and (m.rotary_width % 2 or not m.rotary_width):
        raise BadInput(
            f"model.field.rotary is {m.field.rotary}, which is {m.rotary_width} of a head's {m.head_width} numbers, "
            "but must be an even number of them, at least 2: rotary positions turn pairs."
        )
    if isinstance(m.field, LlamaConfig):
        if m.head_width % 2:
            name = "model.field.head_width" if m.field.head_width else "model.width / model.heads"
            raise BadInput(f"{name} is {m.head_width}, but must be even: rotary positions turn pairs.")
        if (scaling := m.field.rope_scaling) and scaling.low_freq_factor >= scaling.high_freq_factor:
            raise BadInput(
                f"model.field.rope_scaling.low_freq_factor is {scaling.low_freq_factor}, but must be below "
                f"high_freq_factor, which is {scaling.high_freq_factor}."
            )
        if m.heads % m.kv_heads:
            raise BadInput(f"model.field.kv_heads is {m.kv_heads}, but must divide model.heads, which is {m.heads}.")
    if isinstance(m.weights, LevelsConfig):
        require_once("model.weights.levels", m.weights.levels)
    blocks = sum(m.weights.of(m.steps)) if isinstance(m.weights, LevelsConfig) else m.steps
    layers = m.weights.rows(m.steps) if isinstance(m.weights, LayerDropConfig) else blocks
    rows = max(layers, m.time.d_emb if m.time else 0)
    widest = max(m.hidden_width, 3 * m.width)  # query, key and value are one matrix
    _require_countable("weights", "layers, blocks or d_emb x width x hidden", rows, m.width, widest)
    _validate_grid(m)
    _validate_step_length(m)
    if isinstance(m.weights, LayerDropConfig):
        w, layers = m.weights, m.weights.layers or m.steps
        if w.rank and not w.nested:
            raise BadInput(
                f"model.weights.rank is {w.rank}, but without model.weights.nested no layer serves a number of steps "
                "as such, and nothing would be corrected."
            )
        if w.landings and (not w.nested or layers <= w.landings):
            why = "without model.weights.nested" if layers > w.landings else f"with {layers} layer{'s' * (layers > 1)}"
            raise BadInput(f"model.weights.landings is {w.landings}, but {why} no layers are shared before them.")
        if w.order and (not w.nested or sorted(w.order) != list(range(layers - w.landings))):
            raise BadInput(
                f"model.weights.order is {shown(list(w.order))}, but must have each of {layers - w.landings} layers "
                "once, from 0, with model.weights.nested."
            )
    _validate_scheme(m)
    if m.lora:
        if m.lora.dropout and not isinstance(m.weights, LayerConfig):
            raise BadInput(
                f"model.weights.lora.dropout is {m.lora.dropout}, but must be 0 with weights of kind "
                f"{m.weights.kind!r}: adapters are added into them before steps take theirs."
            )
        if not isinstance(m.field, OwnConfig):  # a user's own is not built here
            m.lora.build(m.field.build(m).shapes())  # built only for its checks
    return m


def _require_countable(what: str, axes: str, *sizes: int) -> None:
    """Check that there are no more numbers than can be counted in bytes: XLA aborts on more."""
    if math.prod(sizes) > MOST_NUMBERS:
        product = " x ".join(map(str, sizes))
        raise BadInput(f"model {what} ({axes}) are {product} numbers, but must be at most {MOST_NUMBERS}.")


def _validate_grid(m: ModelConfig) -> None:
    if m.edges and (m.first_step is not None or len(m.edges) != m.steps + 1):
        raise BadInput(
            f"model.edges has {len(m.edges)} times, but must have model.steps + 1, {m.steps + 1}, without "
            "model.first_step."
        )
    if m.edges and not (m.edges[0] == 0 and m.edges[-1] == 1 and all(a < b for a, b in pairwise(m.edges))):
        raise BadInput(f"model.edges is {shown(list(m.edges))}, but must rise from 0 to 1.")
    unequal = m.first_step is not None or m.edges
    name, value = ("edges", shown(list(m.edges))) if m.edges else ("first_step", m.first_step)
    levels = isinstance(m.weights, LevelsConfig)
    if unequal and (levels or (isinstance(m.weights, LayerDropConfig) and m.weights.nested)):
        chosen = "model.weights is 'levels', which chooses a table" if levels else "model.weights.nested keeps layers"
        raise BadInput(f"model.{name} is {value}, but {chosen} by the number of steps, which must be equal.")
    if m.spacing != "equal" and unequal:
        raise BadInput(f"model.spacing is {m.spacing!r}, but model.{name} is {value}: depth is divided in one way.")
    if m.spacing != "equal" and isinstance(m.weights, LayerConfig | LayerDropConfig | LevelsConfig):
        raise BadInput(
            f"model.spacing is {m.spacing!r}, but model.weights is {m.weights.kind!r}: steps of several lengths need "
            "weights that are functions of depth, or shared."
        )


def _validate_step_length(m: ModelConfig) -> None:
    if m.modulation and (isinstance(m.weights, LayerConfig | LayerDropConfig) or m.tolerance):
        other = "model.tolerance is given" if m.tolerance else f"model.weights is {m.weights.kind!r}"
        raise BadInput(
            f"model.modulation is given, but {other}: weights that depend on the length of a step need functions of "
            "depth on a fixed grid."
        )
    if m.modulation and m.lora:
        raise BadInput(
            f"model.modulation and model.weights.lora (of rank {m.lora.rank}) are given: low-rank adapters are beside "
            "weights that do not depend on the length of a step."
        )
    if m.final_norm_halvings is not None and (isinstance(m.weights, LayerConfig) or m.tolerance):
        other = "model.tolerance is given" if m.tolerance else "model.weights is 'layer'"
        raise BadInput(
            f"model.final_norm_halvings is {m.final_norm_halvings}, but {other}: it is for models that run at several "
            "numbers of steps on fixed grids."
        )
    if isinstance(m.weights, LevelsConfig) and m.tolerance:
        raise BadInput(
            "model.weights is 'levels', but model.tolerance is given: tables for several numbers of steps need "
            "a fixed grid."
        )
    if isinstance(m.weights, KnotsConfig) and m.tolerance:
        for name, what in (("average", "means over steps"), ("rank", "corrections by the length of a step")):
            if value := getattr(m.weights, name):
                raise BadInput(
                    f"model.weights.{name} is {value}, but model.tolerance is given: {what} need a fixed grid."
                )
    if isinstance(m.weights, KnotsConfig) and m.weights.halvings is not None and not m.weights.rank:
        raise BadInput(
            f"model.weights.halvings is {m.weights.halvings}, but without model.weights.rank nothing depends on the "
            "length of a step."
        )


def _validate_scheme(m: ModelConfig) -> None:
    reversible = isinstance(m.scheme, ReversibleConfig | OwnConfig)  # `build` checks a user's own
    if isinstance(m.gradient, GradientConfig) and m.gradient.kind == "reversible" and not reversible:
        raise BadInput(
            f"model.gradient is 'reversible', but model.scheme {m.scheme.kind!r} cannot run back; 'reversible' can."
        )
    if m.tolerance and isinstance(m.weights, LayerConfig | LayerDropConfig):
        raise BadInput(
            f"model.tolerance.rtol is given, but model.weights is {m.weights.kind!r}: a table of layers has no "
            "weights between its steps; 'time', 'time-shared-mlp', 'knots' and 'shared' have."
        )
    if isinstance(m.scheme, OwnConfig):
        return
    # JAX and Diffrax, which know the schemes, are loaded only here: mistakes above are reported at once.
    scheme = m.scheme.build()
    if m.tolerance:
        m.tolerance.build(scheme)  # built only for its checks
        if m.first_step is not None and m.scheme.kind != "euler-middle":
            raise BadInput(
                f"model.first_step is {m.first_step}, but model.scheme is {m.scheme.kind!r}: before adaptive steps "
                "(model.tolerance.rtol) a first step of its own length is one of 'euler-middle'."
            )


def _changed(settings: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """Iterate over the dotted names and values of the settings of a section that are not at their defaults."""
    for field in dataclasses.fields(settings):
        if (value := getattr(settings, field.name)) != field.default:
            yield prefix + field.name, value
