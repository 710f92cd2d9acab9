"""Rules of Optax by a parameter's role, schedules with warm-up, clipping, decay by role, and a guard against spikes."""

from collections.abc import Callable, Hashable
from dataclasses import replace
from operator import and_
from typing import NamedTuple

import equinox as eqx
import jax
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
"""The learning rate of each update, of the settings and the number of updates."""
Rule = Callable[[OptimizerConfig, optax.Schedule], optax.GradientTransformation]
"""What makes changes of gradients, of the settings and the learning rate."""


def learning_rate(config: OptimizerConfig, updates: int) -> optax.Schedule:
    """Linear warm-up over `warmup_fraction` of the updates, then the `schedule` down to `final_fraction` of the peak.

    A line is a trapezoid that falls from the end of warm-up on, and a constant one that never falls.
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


def roles(model: PyTree) -> PyTree:
    """The role of every parameter, as a tree of the model's structure: what decides on training and weight decay.

    `time`: all parameters of a time-dependent weight. `matrix` and `bias`: of a linear map that is stored as such.
    `adapter`: low-rank factors beside one. `norm`: scales and shifts. `embedding`: token and position vectors and an
    untied head. Arrays of a weight source that none of these classes holds have the role `matrix`. Parameters that are
    absent (`None`) stay so.
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
    """The model as two trees, absent parameters as `None`: those of `config.train_roles`, and those that are frozen."""
    return eqx.partition(model, jax.tree.map(lambda role: role in config.train_roles, roles(model)))


def require_trained(model: PyTree, config: OptimizerConfig) -> None:
    """Check that some parameter of a model, of which shapes are enough, is trained, and some by the config's rule.

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
    """Scale the gradient by `min(1, limit / norm)`, and form what of it is factored: here the rule's formulas begin.

    The same mathematics as Optax's own, as one multiplication: XLA then fuses it into AdamW's passes instead of writing
    a scaled copy of the gradient, which for time-dependent weights costs a tenth of an update (`docs/performance.md`).
    """

    def scaled(updates: PyTree, params: PyTree) -> PyTree:
        # limit / 0 is infinity, and the scale then 1: no epsilon is needed.
        scale = jax.numpy.minimum(1.0, limit / norm(updates))
        return jax.tree.map(lambda gradient: gradient * scale, formed(updates))

    return optax.stateless(scaled)


def optimizer(config: OptimizerConfig, rate: optax.Schedule, rule: Rule | None = None) -> optax.GradientTransformation:
    """`rule`, or the config's, at the learning rate `rate`; inside the guard against spikes.

    **Raises:** `BadInput` if `rule` gives no gradient transformation of Optax.
    """
    inner = (rule or usual_rule)(config, rate)
    if not isinstance(inner, optax.GradientTransformation):
        raise BadInput(f"the rule of your own gives {shown(inner)}, but must give a gradient transformation of Optax.")
    return inner if config.spike is None else skip_spikes(inner, config.spike)


def usual_rule(config: OptimizerConfig, rate: optax.Schedule) -> optax.GradientTransformation:
    """Clip the global norm, then `rule` for the parameters of `rule_roles` and AdamW for all others; decay only
    `decay_roles`; embeddings by `embedding_rate` times the learning rate.

    Source: Loshchilov & Hutter 2019, arXiv:1711.05101; b2 = 0.95 for time-dependent weights: paper, appendix C.5.
    """
    # A link of its own would change the paths of the optimiser's state, which are those of older checkpoints.
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

    plain = replace(config, weight_decay=0.0)  # roles are not seen in the parts that a rule is given
    rules = {name: RULES[name] for name in ("adamw", config.rule)}
    parts: dict[Hashable, optax.GradientTransformation] = {name: rule(config, rate) for name, rule in rules.items()}
    parts |= {f"{name}, no decay": rule(plain, rate) for name, rule in rules.items()}
    return optax.chain(clip, optax.partition(parts, labels))


def _followers(config: OptimizerConfig) -> Callable[[PyTree], PyTree]:
    """Which parameters the rule moves, not AdamW."""
    chosen = _of_roles(config.rule_roles)
    if config.rule != "muon":
        return chosen
    return lambda tree: jax.tree.map(and_, chosen(tree), _matrices(tree))


def _of_roles(chosen: tuple[Role, ...]) -> Callable[[PyTree], PyTree]:
    return lambda tree: jax.tree.map(lambda role: role in chosen, roles(tree))


def _matrices(tree: PyTree) -> PyTree:
    """Which parameters are matrices, each alone or stacked: no vectors, and no projections to vectors."""
    of = lambda path, _: getattr(path[-1], "name", "") in MATRICES
    return jax.tree_util.tree_map_with_path(of, tree)


MATRICES = ("weight", "projection", "constant", "a", "b")
"""Last names of the parameters that are one: of linear maps, of time-dependent ones (P, C), of adapters."""


def _axes(tree: PyTree) -> PyTree:
    """Which axes of a matrix are its inputs and its outputs; it is stacked along the others, P along its last."""

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
    """Jordan et al. 2024; steps of AdamW's size: Liu et al. 2025, arXiv:2502.16982."""
    return optax.contrib.muon(
        rate, beta=0.95, weight_decay=config.weight_decay, consistent_rms=0.2, muon_weight_dimension_numbers=_axes
    )


def _adafactor(config: OptimizerConfig, rate: optax.Schedule) -> optax.GradientTransformation:
    """Shazeer & Stern 2018, arXiv:1804.04235, at the given rate; decay is multiplied by it, as AdamW's."""
    decay = (lambda count: config.weight_decay * rate(count)) if config.weight_decay else None
    return optax.adafactor(rate, multiply_by_parameter_scale=False, weight_decay_rate=decay)


def _lion(config: OptimizerConfig, rate: optax.Schedule) -> optax.GradientTransformation:
    """Chen et al. 2023, arXiv:2302.06675."""
    return optax.lion(rate, b1=config.b1, b2=config.b2, weight_decay=config.weight_decay)


RULES: dict[str, Rule] = {"adamw": _adamw, "muon": _muon, "adafactor": _adafactor, "lion": _lion}


class Guard(NamedTuple):
    """State of `skip_spikes`."""

    inner: PyTree
    usual: Array
    """Running mean of the gradient's norm, over some `HORIZON` updates."""
    updates: Array
    skipped: Array
    """Whether the last update was."""


HORIZON, WARMING = 100, 20
"""Updates that the usual norm is a mean of, and that are needed before one can be unusual."""


def skip_spikes(inner: optax.GradientTransformation, factor: float) -> optax.GradientTransformation:
    """`inner`, but no change at all where the gradient is more than `factor` times longer than usual.

    A spike counts as `factor` times the usual, so that the guard follows if all gradients become longer. Source: the
    skipped updates of OLMo 2 (2025, arXiv:2501.00656, section 3), there by standard deviations.
    """

    def init(params: PyTree) -> Guard:
        zero = jax.numpy.zeros((), jax.numpy.int32)
        return Guard(inner.init(params), jax.numpy.zeros((), jax.numpy.float32), zero, zero > 0)

    def update(gradients: PyTree, state: Guard, params: PyTree = None) -> tuple[PyTree, Guard]:
        length, limit = norm(gradients), factor * state.usual
        # NaN is not above the limit: such an update goes through, and the recorder ends the run.
        skipped = (length > limit) & (state.updates >= WARMING)
        changes, after = inner.update(gradients, state.inner, params)
        keep = lambda old, new: jax.tree.map(lambda a, b: jax.numpy.where(skipped, a, b), old, new)
        share = jax.numpy.maximum(1.0 / HORIZON, 1.0 / (state.updates + 1).astype(length.dtype))
        usual = state.usual + share * (jax.numpy.where(skipped, limit, length) - state.usual)
        changes = jax.tree.map(lambda x: jax.numpy.where(skipped, 0.0, x), changes)
        return changes, Guard(keep(state.inner, after), usual, state.updates + 1, skipped)

    return optax.GradientTransformation(init, update)  # pyright: ignore[reportArgumentType]
