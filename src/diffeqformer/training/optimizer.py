"""Optax rules by parameter role, schedules with warm-up, clipping, weight decay by role, and a guard against spikes."""

from collections.abc import Callable, Hashable
from dataclasses import replace
from operator import and_
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import optax.contrib
from jax import Array
from jax.tree_util import KeyPath
from jaxtyping import PyTree

from diffeqformer.config import OptimizerConfig, Role, TrapezoidalConfig
from diffeqformer.errors import BadInput
from diffeqformer.nn.embedding import Embedding
from diffeqformer.nn.linear import Adapter, Linear, Norm
from diffeqformer.ode.weights.time import is_of_time
from diffeqformer.plain import shown
from diffeqformer.training.factored import formed, norm

Schedule = Callable[[OptimizerConfig, int], optax.Schedule]
"""A function from the settings and the number of updates to the learning rate of each update."""
Rule = Callable[[OptimizerConfig, optax.Schedule], optax.GradientTransformation]
"""A function from the settings and the learning rate to the transformation of gradients into changes."""


def learning_rate(config: OptimizerConfig, updates: int) -> optax.Schedule:
    """Warm up linearly over `warmup_fraction` of the updates, then follow `schedule` to `final_fraction` of the peak.

    A linear schedule is a trapezoid that falls from the end of warm-up on; a constant one is a trapezoid that never
    falls.
    """
    warmup = min(max(1, round(config.warmup_fraction * updates)), updates)
    peak, end, shape = config.learning_rate, config.final_fraction * config.learning_rate, config.schedule
    if shape.kind == "cosine":
        return optax.warmup_cosine_decay_schedule(
            init_value=peak / warmup,  # the first update counts
            peak_value=peak,
            warmup_steps=warmup,
            decay_steps=max(updates, warmup + 1),  # Optax refuses a decay of no steps
            end_value=end,
        )
    fraction = shape.decay_fraction if isinstance(shape, TrapezoidalConfig) else float(shape.kind == "linear")
    falling = min(round(fraction * updates), updates - warmup)
    parts = [
        optax.linear_schedule(peak / warmup, peak, warmup),
        optax.constant_schedule(peak),
        optax.linear_schedule(peak, end, max(falling, 1)),
    ]
    return optax.join_schedules(parts, [warmup, updates - falling])


def scheduled(config: OptimizerConfig, updates: int, schedule: Schedule | None = None) -> optax.Schedule:
    """Return the learning rate of each update by `schedule`, or by the config's.

    **Raises:** `BadInput` if `schedule` does not give a function.
    """
    rate = (schedule or learning_rate)(config, updates)
    if not callable(rate):
        must = "must give a function from the number of updates done to the learning rate"
        raise BadInput(f"the schedule of your own gives {shown(rate)}, but {must}.")
    return rate


def roles(model: PyTree) -> PyTree:
    """Return the role of every parameter, in a tree of the model's structure; it decides on training and weight decay.

    `time`: all parameters of a time-dependent weight. `matrix` and `bias`: those of a linear map that is stored as
    such. `adapter`: the low-rank factors added to one. `norm`: scales and shifts. `embedding`: token and position
    vectors and an untied head. All other arrays of a weight source have the role `matrix`. Absent parameters (`None`)
    stay absent.
    """
    has_role = lambda node: is_of_time(node) or isinstance(node, Norm | Linear | Adapter | Embedding)
    return jax.tree_util.tree_map_with_path(_role_of, model, is_leaf=has_role)


def _role_of(path: KeyPath, node: PyTree) -> PyTree:
    fill = lambda role, node: jax.tree.map(lambda _: role, node)
    if is_of_time(node):
        return fill("time", node)
    if isinstance(node, Norm):
        return fill("norm", node)
    if isinstance(node, Adapter):
        return fill("adapter", node)
    if isinstance(node, Linear):
        both = fill("matrix", node.weight), fill("bias", node.bias)
        return eqx.tree_at(lambda n: (n.weight, n.bias), node, both, is_leaf=lambda leaf: leaf is None)
    own_weights = bool(path) and getattr(path[0], "name", "") == "weights"
    return fill("matrix" if own_weights else "embedding", node)


def split_trained(model: PyTree, config: OptimizerConfig) -> tuple[PyTree, PyTree]:
    """Split the model into two trees, absent parameters as `None`: those of `config.train_roles` and the frozen.

    Whole numbers, such as an index that weights of the user's own hold, have no gradient and stay frozen.
    """
    trained = lambda role, x: role in config.train_roles and jnp.issubdtype(x.dtype, jnp.inexact)
    return eqx.partition(model, jax.tree.map(trained, roles(model), model))


def require_trained(model: PyTree, config: OptimizerConfig) -> None:
    """Check that some parameter of a model is trained, and some by the config's rule; shapes are enough.

    **Raises:** `BadInput` if none has a role of `config.train_roles`, or none of these follows `config.rule`.
    """
    trained, _ = split_trained(model, config)
    if not jax.tree.leaves(trained):
        asked, there = config.train_roles, sorted(set(jax.tree.leaves(roles(model))))
        raise BadInput(
            f"optimizer.train_roles is {', '.join(asked) or 'empty'}, but this model's parameters have the roles "
            f"{', '.join(there)}."
        )
    if config.rule != "adamw" and not any(jax.tree.leaves(_followers(config)(trained))):
        raise BadInput(
            f"optimizer.rule is {config.rule!r}, but none of the trained parameters of optimizer.rule_roles, "
            f"{', '.join(config.rule_roles) or 'which are none'}, follows it; AdamW would move all."
        )


def clip_by_global_norm(limit: float) -> optax.GradientTransformation:
    """Scale the gradient by `min(1, limit / norm)` and form its factored parts, since the rule's formulas begin here.

    Mathematically Optax's own, but as one multiplication: XLA then fuses it into AdamW's passes instead of writing a
    scaled copy of the gradient, which for time-dependent weights costs a tenth of an update (`docs/performance.md`).
    """

    def scaled(updates: PyTree, params: PyTree) -> PyTree:
        # limit / 0 is infinity, and the scale then 1: no epsilon is needed.
        scale = jnp.minimum(1.0, limit / norm(updates))
        return jax.tree.map(lambda gradient: gradient * scale, formed(updates))

    return optax.stateless(scaled)


def optimizer(config: OptimizerConfig, rate: optax.Schedule, rule: Rule | None = None) -> optax.GradientTransformation:
    """Make `rule`, or the config's rule, at the learning rate `rate`, inside the guard against spikes if there is one.

    **Raises:** `BadInput` if `rule` does not give an Optax gradient transformation.
    """
    inner = (rule or usual_rule)(config, rate)
    if not isinstance(inner, optax.GradientTransformation):
        raise BadInput(f"the rule of your own gives {shown(inner)}, but must give a gradient transformation of Optax.")
    return inner if config.spike is None else skip_spikes(inner, config.spike)


def usual_rule(config: OptimizerConfig, rate: optax.Schedule) -> optax.GradientTransformation:
    """Clip the global norm, then apply `rule` to the parameters of `rule_roles` and AdamW to all others.

    Only `decay_roles` decay; embeddings move at `embedding_rate` times the learning rate.

    Source: Loshchilov & Hutter 2019, arXiv:1711.05101; b2 = 0.95 for time-dependent weights: paper, appendix C.5.
    """
    # An extra link would change the paths of the optimiser's state, which must stay those of older checkpoints.
    if config.embedding_rate == 1.0:
        return _at_one_rate(config, rate)
    factor = lambda role: config.embedding_rate if role == "embedding" else 1.0
    scaled = lambda changes, params: jax.tree.map(lambda role, x: factor(role) * x, roles(changes), changes)
    return optax.chain(_at_one_rate(config, rate), optax.stateless(scaled))


def _at_one_rate(config: OptimizerConfig, rate: optax.Schedule) -> optax.GradientTransformation:
    clip = clip_by_global_norm(config.clip_norm)
    if config.rule == "adamw":
        return optax.chain(clip, _adamw(config, rate, _of_roles(config.decay_roles)))
    follows, decays = _followers(config), _of_roles(config.decay_roles)

    def labels(tree: PyTree) -> PyTree:
        label = lambda taken, decays: f"{config.rule if taken else 'adamw'}{'' if decays else ', no decay'}"
        return jax.tree.map(label, follows(tree), decays(tree))

    plain = replace(config, weight_decay=0.0)  # roles cannot be seen in the part that a rule is given
    rules = {name: RULES[name] for name in ("adamw", config.rule)}
    parts: dict[Hashable, optax.GradientTransformation] = {name: rule(config, rate) for name, rule in rules.items()}
    parts |= {f"{name}, no decay": rule(plain, rate) for name, rule in rules.items()}
    return optax.chain(clip, optax.partition(parts, labels))


def _followers(config: OptimizerConfig) -> Callable[[PyTree], PyTree]:
    """Return a mask of the parameters that the rule moves instead of AdamW."""
    chosen = _of_roles(config.rule_roles)
    if config.rule != "muon":
        return chosen
    return lambda tree: jax.tree.map(and_, chosen(tree), _matrices(tree))


def _of_roles(chosen: tuple[Role, ...]) -> Callable[[PyTree], PyTree]:
    return lambda tree: jax.tree.map(lambda role: role in chosen, roles(tree))


def _matrices(tree: PyTree) -> PyTree:
    """Mark the parameters that are matrices, single or stacked: no vectors, and no projections to vectors."""
    of = lambda path, x: getattr(path[-1], "name", "") in MATRICES and x.ndim > 1
    return jax.tree_util.tree_map_with_path(of, tree)


MATRICES = ("weight", "projection", "constant", "a", "b")
"""Last names of the parameters that are matrices: of linear maps, time-dependent ones (P, C), and adapters."""


def _axes(tree: PyTree) -> PyTree:
    """Name the input and output axes of each matrix; matrices are stacked along the others, P along its last."""

    def of(path: KeyPath, x: Array) -> optax.contrib.MuonDimensionNumbers:
        first = 0 if getattr(path[-1], "name", "") == "projection" else x.ndim - 2
        return optax.contrib.MuonDimensionNumbers(first, first + 1)

    return jax.tree_util.tree_map_with_path(of, tree)


def _adamw(
    config: OptimizerConfig, rate: optax.Schedule, mask: Callable[[PyTree], PyTree] | None = None
) -> optax.GradientTransformation:
    b1, b2, decay = config.b1, config.b2, config.weight_decay
    return optax.adamw(rate, b1=b1, b2=b2, eps=config.epsilon, weight_decay=decay, mask=mask)


def _muon(config: OptimizerConfig, rate: optax.Schedule) -> optax.GradientTransformation:
    """Make Muon (Jordan et al. 2024) with steps of AdamW's size (Liu et al. 2025, arXiv:2502.16982)."""
    return optax.contrib.muon(
        rate, beta=0.95, weight_decay=config.weight_decay, consistent_rms=0.2, muon_weight_dimension_numbers=_axes
    )


def _adafactor(config: OptimizerConfig, rate: optax.Schedule) -> optax.GradientTransformation:
    """Make Adafactor (Shazeer & Stern 2018, arXiv:1804.04235) at the given rate, which multiplies decay as in AdamW."""
    decay = (lambda count: config.weight_decay * rate(count)) if config.weight_decay else None
    return optax.adafactor(rate, multiply_by_parameter_scale=False, weight_decay_rate=decay)


def _lion(config: OptimizerConfig, rate: optax.Schedule) -> optax.GradientTransformation:
    """Make Lion (Chen et al. 2023, arXiv:2302.06675)."""
    return optax.lion(rate, b1=config.b1, b2=config.b2, weight_decay=config.weight_decay)


RULES: dict[str, Rule] = {"adamw": _adamw, "muon": _muon, "adafactor": _adafactor, "lion": _lion}


class Guard(NamedTuple):
    """State of `skip_spikes`."""

    inner: PyTree
    usual: Array
    """Running mean of the gradient norm, over about `HORIZON` updates."""
    updates: Array
    skipped: Array
    """Whether the last update was skipped."""


HORIZON, WARMING = 100, 20
"""Updates that the usual norm is averaged over, and updates needed before one can be skipped."""


def skip_spikes(inner: optax.GradientTransformation, factor: float) -> optax.GradientTransformation:
    """Apply `inner`, but change nothing where the gradient norm is more than `factor` times the usual one.

    In the running mean, a spike counts as `factor` times the usual norm, so that the guard follows if all gradients
    become larger. Source: the skipped updates of OLMo 2 (2025, arXiv:2501.00656, section 3), there by standard
    deviations.
    """

    def init(params: PyTree) -> Guard:
        zero = jnp.zeros((), jnp.int32)
        return Guard(inner.init(params), jnp.zeros((), jnp.float32), zero, zero > 0)

    def update(gradients: PyTree, state: Guard, params: PyTree = None) -> tuple[PyTree, Guard]:
        length, limit = norm(gradients), factor * state.usual
        # NaN is not above the limit: such an update goes through, and the recorder ends the run. A usual norm of 0, of
        # updates without targets, is no limit: any gradient would be skipped, and the norm stay 0.
        skipped = (length > limit) & (limit > 0) & (state.updates >= WARMING)
        changes, after = inner.update(gradients, state.inner, params)
        keep = lambda old, new: jax.tree.map(lambda a, b: jnp.where(skipped, a, b), old, new)
        share = jnp.maximum(1.0 / HORIZON, 1.0 / (state.updates + 1).astype(length.dtype))
        usual = state.usual + share * (jnp.where(skipped, limit, length) - state.usual)
        changes = jax.tree.map(lambda x: jnp.where(skipped, 0.0, x), changes)
        return changes, Guard(keep(state.inner, after), usual, state.updates + 1, skipped)

    return optax.GradientTransformation(init, update)  # pyright: ignore[reportArgumentType]
