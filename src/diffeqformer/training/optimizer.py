"""AdamW with warm-up, cosine decay, clipping, and weight decay by a parameter's role."""

from typing import Any

import equinox as eqx
import jax
import optax

from diffeqformer.config import OptimizerConfig, Role
from diffeqformer.nn.embedding import Embedding
from diffeqformer.nn.linear import Adapter, Linear, Norm
from diffeqformer.ode.weights.time_networks import TimeLinear, TimeNorm


def learning_rate(config: OptimizerConfig, updates: int) -> optax.Schedule:
    """Linear warm-up over `warmup_fraction` of the updates, then a cosine down to `final_fraction` of the peak."""
    warmup = min(max(1, round(config.warmup_fraction * updates)), updates)
    return optax.warmup_cosine_decay_schedule(
        init_value=config.learning_rate / warmup,  # the first update counts
        peak_value=config.learning_rate,
        warmup_steps=warmup,
        decay_steps=max(updates, warmup + 1),
        end_value=config.final_fraction * config.learning_rate,
    )


def roles(model: Any) -> Any:
    """The role of every parameter, as a tree of the model's structure: what decides on training and weight decay.

    `time`: all parameters of a time-dependent weight. `matrix` and `bias`: of a linear map that is stored as such.
    `adapter`: low-rank factors beside one. `norm`: scales and shifts. `embedding`: token and position vectors and an
    untied head. Arrays of a weight source that none of these classes holds have the role `matrix`. Parameters that are
    absent (`None`) stay so.
    """

    def fill(role: Role, node: Any) -> Any:
        return jax.tree.map(lambda _: role, node)

    def of_unit(path: Any, node: Any) -> Any:
        if isinstance(node, TimeLinear | TimeNorm):
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

    is_unit = lambda node: isinstance(node, TimeLinear | TimeNorm | Norm | Linear | Adapter | Embedding)
    return jax.tree_util.tree_map_with_path(of_unit, model, is_leaf=is_unit)


def split_trained(model: Any, config: OptimizerConfig) -> tuple[Any, Any]:
    """The model as two trees, absent parameters as `None`: those of `config.train_roles`, and those that are frozen."""
    return eqx.partition(model, jax.tree.map(lambda role: role in config.train_roles, roles(model)))


def clip_by_global_norm(limit: float) -> optax.GradientTransformation:
    """Scale the gradient by `min(1, limit / norm)`.

    The same mathematics as Optax's own, as one multiplication: XLA then fuses it into AdamW's passes instead of writing
    a scaled copy of the gradient, which for time-dependent weights costs a tenth of an update (`docs/performance.md`).
    """

    def scaled(updates: Any, params: Any) -> Any:
        scale = jax.numpy.minimum(1.0, limit / optax.tree.norm(updates))
        return jax.tree.map(lambda gradient: gradient * scale, updates)

    return optax.stateless(scaled)


def optimizer(
    config: OptimizerConfig, updates: int, rate: optax.Schedule | None = None
) -> optax.GradientTransformation:
    """Clip the global norm, then AdamW on the schedule of `learning_rate`, or on `rate`; decay only `decay_roles`.

    Source: Loshchilov & Hutter 2019, arXiv:1711.05101; b2 = 0.95 for time-dependent weights: paper, appendix C.5.
    """
    decays = lambda tree: jax.tree.map(lambda role: role in config.decay_roles, roles(tree))
    return optax.chain(
        clip_by_global_norm(config.clip_norm),
        optax.adamw(
            rate or learning_rate(config, updates),
            b1=config.b1,
            b2=config.b2,
            eps=config.epsilon,
            weight_decay=config.weight_decay,
            mask=decays,
        ),
    )
