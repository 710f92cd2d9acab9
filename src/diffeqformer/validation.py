"""Whether the settings of a run agree with each other."""

from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

from diffeqformer.config import MOST_STEPS, BaseConfig, Config, DepthConfig, ModelConfig
from diffeqformer.errors import BadInput

SIZES, _INT32 = 1 << 20, 2**31 - 1
"""The most of whatever is an axis of an array, and of whatever is counted in 32 bits."""


def validate(config: Config) -> Config:
    """Return `config` if its settings agree with each other, with the time features' band filled in.

    **Raises:** `BadInput` naming the first setting that does not, its value, and what would be right.
    """
    d, o, t = config.data, config.optimizer, config.trainer
    _require_most(
        ("trainer.updates", t.updates, _INT32), ("trainer.batch_size", t.batch_size, SIZES),
        ("trainer.accumulation", t.accumulation, SIZES),
        ("trainer.log_every", t.log_every, _INT32), ("trainer.evaluate_every", t.evaluate_every, _INT32),
        ("trainer.evaluate_batches", t.evaluate_batches, _INT32), ("trainer.loss_block", t.loss_block, _INT32),
        ("trainer.checkpoint_every", t.checkpoint_every, _INT32), ("trainer.keep_last", t.keep_last, SIZES),
        ("trainer.keep_best", t.keep_best, SIZES), ("trainer.seed", t.seed, 2 * _INT32 + 1),
        ("data.tokenizer_vocabulary", d.tokenizer_vocabulary, SIZES), ("data.split_seed", d.split_seed, 2**63 - 1),
    )  # fmt: skip
    _require_least(
        ("data.tokenizer_vocabulary", d.tokenizer_vocabulary, 257),
        ("trainer.updates", t.updates, 1), ("trainer.batch_size", t.batch_size, 1),
        ("trainer.accumulation", t.accumulation, 1), ("trainer.log_every", t.log_every, 1),
        ("trainer.evaluate_every", t.evaluate_every, 1), ("trainer.evaluate_batches", t.evaluate_batches, 0),
        ("trainer.checkpoint_every", t.checkpoint_every, 0), ("trainer.keep_last", t.keep_last, 1),
        ("trainer.keep_best", t.keep_best, 0), ("trainer.loss_block", t.loss_block, 1), ("trainer.seed", t.seed, 0),
        ("trainer.profile", t.profile, 0), ("data.split_seed", d.split_seed, 0),
    )  # fmt: skip
    _require_positive(
        ("optimizer.learning_rate", o.learning_rate), ("optimizer.epsilon", o.epsilon),
        ("optimizer.clip_norm", o.clip_norm),
    )  # fmt: skip
    _require_fractions(
        ("optimizer.b1", o.b1), ("optimizer.b2", o.b2), ("optimizer.warmup_fraction", o.warmup_fraction),
        ("data.validation_fraction", d.validation_fraction),
    )  # fmt: skip
    if not 0 <= o.final_fraction <= 1:
        raise BadInput(f"optimizer.final_fraction is {o.final_fraction}, but must be between 0 and 1.")
    if not 0 <= o.weight_decay < float("inf"):
        raise BadInput(f"optimizer.weight_decay is {o.weight_decay}, but must not be negative.")
    if not 0 <= t.checkpoint_minutes < float("inf"):
        raise BadInput(f"trainer.checkpoint_minutes is {t.checkpoint_minutes}, but must not be negative.")
    if t.batch_size * config.model.context > _INT32:
        raise BadInput(
            f"trainer.batch_size x model.context is {t.batch_size} x {config.model.context} tokens, but must be at "
            f"most {_INT32}."
        )
    if t.batch_size % t.accumulation:
        raise BadInput(
            f"trainer.batch_size is {t.batch_size}, but must be divisible by trainer.accumulation, "
            f"which is {t.accumulation}."
        )
    for name, value, source in [
        ("data.train", d.train, "files"), ("data.validation", d.validation, "files"),
        ("data.dataset", d.dataset, "huggingface"), ("data.dataset_name", d.dataset_name, "huggingface"),
    ]:  # fmt: skip
        if value and d.source != source:
            raise BadInput(
                f"{name} is given, but data.source {d.source!r} does not read it; set data.source to {source!r}."
            )
    if d.source == "files" and not d.train:
        raise BadInput("data.train is empty, but data.source 'files' needs at least one path or glob.")
    if d.source == "huggingface" and not d.dataset:
        raise BadInput("data.dataset is empty, but data.source 'huggingface' needs a dataset's hub id or folder.")
    mesh = vars(config.mesh)
    for name, size in mesh.items():
        if size < 1 and size != -1:
            raise BadInput(f"mesh.{name} is {size}, but must be at least 1, or -1 for all devices that are left.")
    if list(mesh.values()).count(-1) > 1:
        raise BadInput(
            f"mesh.{' and mesh.'.join(name for name in mesh if mesh[name] == -1)} are -1, but only one can be."
        )
    for name, value in () if config.base.run else _changed(config.base, BaseConfig(), vars(config.base), "base."):
        raise BadInput(f"{name} is {value!r}, but a run without base.run does not read it.")
    _validate_depth(config.depth, config.model)
    validate_model(config.model)
    drawn = config.depth.depths and config.model.time_dependent and config.model.time.highest_frequency is None
    fastest = 2.0 * config.model.steps if drawn else config.model.time.fastest
    time = replace(config.model.time, highest_frequency=fastest)
    return replace(config, model=replace(config.model, time=time))


def _validate_depth(d: DepthConfig, m: ModelConfig) -> None:
    if d == DepthConfig():
        return
    name, value = next(_changed(d, DepthConfig(), vars(d), "depth."))
    if m.weights == "layer":
        raise BadInput(
            f"{name} is {value!r}, but model.weights is 'layer': a table of layers has one depth; 'time', "
            "'time-shared-mlp' and 'shared' have weights for all."
        )
    if m.adaptive:
        raise BadInput(f"{name} is {value!r}, but model.tolerance.rtol, {m.tolerance.rtol}, chooses the steps.")
    if not 0 <= d.jitter <= 1:
        raise BadInput(f"depth.jitter is {d.jitter}, but must be between 0 and 1.")
    _require_least(*(("depth.sample", depth, 1) for depth in d.depths))
    _require_most(*(("depth.sample", depth, MOST_STEPS) for depth in d.depths))
    if len(set(d.depths)) < len(d.depths):
        raise BadInput(f"depth.sample is {d.depths}, but must name each depth once.")
    for name, value in () if d.depths else _changed(d, DepthConfig(), ("weights", "shallow_fraction"), "depth."):
        raise BadInput(f"{name} is {value!r}, but without depth.sample nothing is drawn.")
    _require_fractions(("depth.shallow_fraction", d.shallow_fraction))
    if len(d.shares) != len(d.depths):
        raise BadInput(
            f"depth.weights has {len(d.shares)} numbers, but depth.sample {len(d.depths)}; each depth needs one."
        )
    for share in d.shares:
        if not 0 < share < float("inf"):
            raise BadInput(f"depth.weights has {share}, but must have positive numbers only.")


def validate_model(m: ModelConfig) -> ModelConfig:
    """Return a model config unchanged if its settings agree with each other.

    **Raises:** `BadInput` as `validate`.
    """
    _require_most(
        ("model.steps", m.steps, MOST_STEPS), ("model.width", m.width, SIZES), ("model.heads", m.heads, SIZES),
        ("model.context", m.context, SIZES), ("model.time.d_emb", m.time.d_emb, SIZES),
        ("model.time.frequencies", m.time.frequencies, MOST_STEPS), ("model.checkpoints", m.checkpoints, SIZES),
        ("model.tolerance.max_steps", m.tolerance.max_steps, _INT32), ("model.hidden", m.hidden, SIZES),
        ("model.kv_heads", m.kv_heads, SIZES), ("model.vocabulary", m.vocabulary, 16 * SIZES),
        ("model.lora.rank", m.lora.rank, SIZES),
    )  # fmt: skip
    _require_least(
        ("model.steps", m.steps, 1), ("model.width", m.width, 1), ("model.heads", m.heads, 1),
        ("model.context", m.context, 1), ("model.time.d_emb", m.time.d_emb, 1),
        ("model.time.frequencies", m.time.frequencies, 1), ("model.checkpoints", m.checkpoints, 2),
        ("model.tolerance.max_steps", m.tolerance.max_steps, 1), ("model.hidden", m.hidden, 1),
        ("model.kv_heads", m.kv_heads, 1), ("model.vocabulary", m.vocabulary, 1),
        ("model.lora.rank", m.lora.rank, 1),
    )  # fmt: skip
    _require_positive(
        ("model.norm_epsilon", m.norm_epsilon), ("model.init_std", m.init_std), ("model.horizon", m.interval),
        ("model.rope_theta", m.rope_theta), ("model.tolerance.rtol", m.tolerance.rtol),
        ("model.tolerance.atol", m.tolerance.atol), ("model.reversible.coupling", m.reversible.coupling),
        ("model.lora.alpha", m.lora.alpha), ("model.time.highest_frequency", m.time.fastest),
        ("model.time.lowest_frequency", m.time.lowest_frequency),
    )  # fmt: skip
    _require_fractions(
        ("model.dropout.embedding", m.dropout.embedding), ("model.dropout.attention", m.dropout.attention),
        ("model.dropout.residual", m.dropout.residual), ("model.lora.dropout", m.lora.dropout),
    )  # fmt: skip
    if m.time.lowest_frequency > m.time.fastest:
        raise BadInput(
            f"model.time.lowest_frequency is {m.time.lowest_frequency}, but must not exceed "
            f"model.time.highest_frequency, which is {m.time.fastest}."
        )
    _validate_heads(m)
    _validate_scheme(m)
    _validate_lora(m)
    _refuse_unread(m)
    return m


def _require_most(*settings: tuple[str, int | None, int]) -> None:
    for name, value, most in settings:
        if value is not None and value > most:
            raise BadInput(f"{name} is {value}, but must be at most {most}.")


def _require_least(*settings: tuple[str, int | None, int]) -> None:
    for name, value, least in settings:
        if value is not None and value < least:
            raise BadInput(f"{name} is {value}, but must be at least {least}.")


def _require_positive(*settings: tuple[str, float | None]) -> None:
    for name, value in settings:
        if value is not None and not 0 < value < float("inf"):
            raise BadInput(f"{name} is {value}, but must be a positive number.")


def _require_fractions(*settings: tuple[str, float]) -> None:
    for name, value in settings:
        if not 0 <= value < 1:
            raise BadInput(f"{name} is {value}, but must be at least 0 and below 1.")


def _refuse_unread(m: ModelConfig) -> None:
    """Refuse a setting that is not at its default and that nothing reads."""
    families, weights = f"model.family {m.family!r}", f"model.weights {m.weights!r}"
    groups = [  # whether they are read, which settings, what stands in the way, and what would read them
        (m.family == "llama", ("kv_heads", "nested_norm", "rope_theta"), families, "'llama' does"),
        (m.weights == "layer", ("layer_rows",), weights, "'layer' does"),
        (m.time_dependent, ("time",), weights, "'time' and 'time-shared-mlp' do"),
        (m.scheme == "reversible", ("reversible",), f"model.scheme {m.scheme!r}", "'reversible' does"),
        (m.gradient == "recursive", ("checkpoints",), f"model.gradient {m.gradient!r}", "'recursive' does"),
        (m.adaptive, ("tolerance",), "a model without model.tolerance.rtol", "one with it does"),
        (m.adapted, ("lora",), "a model without model.lora.rank", "one with it does"),
    ]
    plain = ModelConfig()
    if m.time.highest_frequency is not None:
        plain = replace(plain, time=replace(plain.time, highest_frequency=plain.time.fastest))  # as it is filled in
    for read, names, obstacle, reader in groups:
        for name, value in () if read else _changed(m, plain, names, "model."):
            raise BadInput(f"{name} is {value!r}, but {obstacle} does not read it; {reader}.")


def _changed(settings: Any, plain: Any, names: Iterable[str], prefix: str) -> Iterator[tuple[str, Any]]:
    """The dotted names and values of those settings that differ from the default's."""
    for name in names:
        value, default = getattr(settings, name), getattr(plain, name)
        if is_dataclass(value):
            yield from _changed(value, default, (field.name for field in fields(value)), f"{prefix}{name}.")
        elif value != default:
            yield prefix + name, value


def _validate_heads(m: ModelConfig) -> None:
    if m.width % m.heads:
        raise BadInput(f"model.width is {m.width}, but must be divisible by model.heads, which is {m.heads}.")
    if m.family == "llama":
        if m.width // m.heads % 2:
            raise BadInput(
                f"model.width / model.heads is {m.width // m.heads}, but must be even: rotary positions turn pairs."
            )
        if m.heads % (m.kv_heads or m.heads):
            raise BadInput(f"model.kv_heads is {m.kv_heads}, but must divide model.heads, which is {m.heads}.")


def _validate_scheme(m: ModelConfig) -> None:
    # Only here: a mistake in the settings above is then told before JAX is loaded.
    from diffeqformer.ode.schemes import scheme_of
    from diffeqformer.ode.solvers import adaptive_solver

    scheme_of(m)
    if m.reversible.coupling > 1:
        raise BadInput(f"model.reversible.coupling is {m.reversible.coupling}, but must be above 0 and at most 1.")
    if m.gradient == "reversible" and m.scheme != "reversible":
        raise BadInput(
            f"model.gradient is 'reversible', but model.scheme {m.scheme!r} cannot run back; 'reversible' can."
        )
    if m.first_step is not None and not 0 < m.first_step < 1:
        raise BadInput(f"model.first_step is {m.first_step}, but must be between 0 and 1: a fraction of depth.")
    if m.adaptive:
        if m.weights == "layer":
            raise BadInput(
                "model.tolerance.rtol is given, but model.weights is 'layer': a table of layers has no weights between "
                "its steps; 'time', 'time-shared-mlp' and 'shared' have."
            )
        adaptive_solver(m.scheme)


def _validate_lora(m: ModelConfig) -> None:
    if not m.adapted:
        return
    from diffeqformer.ode.field import field_of
    from diffeqformer.ode.lora import require_fitting

    if m.weights != "layer":
        raise BadInput(
            f"model.lora.rank is {m.lora.rank}, but model.weights is {m.weights!r}: adapters stand beside a table of "
            "layers; `diffeqformer finetune` writes one out."
        )
    require_fitting(field_of(m).shapes(m), m.lora)
