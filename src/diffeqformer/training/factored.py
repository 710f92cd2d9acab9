"""The gradient of P, kept as its factors: it is formed only inside the rule's own pass over P.

    W(t_l) = P h(t_l) + C,    dP = sum_l dW_l (x) h(t_l)

has at most the rank of the number of times, L. Its norm follows from two Gram matrices, each L x L,

    |dP|^2 = sum_lm <dW_l, dW_m> <h_l, h_m>,

and an elementwise rule, such as AdamW, takes the sum over l as a term of its own formula. dP is then neither written
nor read, which saves a copy of P and a third of an update's memory traffic (`docs/performance.md`).
"""

from collections.abc import Callable
from functools import partial, reduce

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, PyTree

from diffeqformer.config import Config
from diffeqformer.model.transformer import Transformer
from diffeqformer.ode.grid import Steps
from diffeqformer.ode.weights import LayerWeights, TimeWeights
from diffeqformer.ode.weights.time import is_time_unit
from diffeqformer.ode.weights.time_networks import TimeLinear


class Factored(eqx.Module):
    """A gradient that is not formed yet: `sum_l left_l (x) right_l`."""

    left: Float[Array, "time inputs outputs"]
    """dW_l"""
    right: Float[Array, "time d_emb"]
    """h(t_l)"""

    @property
    def squared_norm(self) -> Float[Array, ""]:
        """The squared norm, `sum_lm <left_l, left_m> <right_l, right_m>`, which rounding must not make negative.

        The Gram matrix of `right` is applied to `left`, so that sharded axes are never merged.
        """
        product = partial(jnp.tensordot, precision="highest")  # not in TensorFloat-32
        mixed = product(product(self.right, self.right.T, 1), self.left, 1)
        return jnp.maximum(jnp.sum(mixed * self.left), 0)

    @property
    def formed(self) -> Float[Array, "inputs outputs d_emb"]:
        """The gradient as an array, for elementwise formulas.

        It is summed term by term, which XLA fuses into the formula; a matrix product would be written to memory first.
        """
        terms = (left[:, :, None] * right[None, None] for left, right in zip(self.left, self.right, strict=True))
        return reduce(jnp.add, terms)


def norm(gradients: PyTree) -> Float[Array, ""]:
    """Compute the global norm of gradients, factored or not."""
    squared = lambda part: part.squared_norm if _is_factored(part) else jnp.sum(jnp.square(part))
    return jnp.sqrt(sum(map(squared, jax.tree.leaves(gradients, is_leaf=_is_factored))))


def formed(gradients: PyTree) -> PyTree:
    """Form all factored gradients, so that all gradients are arrays."""
    return jax.tree.map(lambda part: part.formed if _is_factored(part) else part, gradients, is_leaf=_is_factored)


def on_one_grid(config: Config) -> bool:
    """Return whether a whole update reads the weights at the same times, known before it."""
    return config.depth.alone and not config.depth.jitter and not config.model.tolerance


def stays_factored(config: Config, model: Transformer, steps: Steps | None = None) -> bool:
    """Return whether the gradients of all P stay factored in an update of `config`.

    They do not if the weights come from no time networks, are not trained, or are read at different times in one
    update; if the rule needs whole matrices (Muon, Adafactor); or if the rank is above d_emb / 2, since forming the
    terms then takes as long as the memory traffic that it saves.
    """
    weights, nodes, own = model.weights, model.scheme.nodes, config.optimizer
    # Exactly this class: a user's subclass may generate other weights from P.
    if type(weights) is not TimeWeights or "time" not in own.train_roles or not on_one_grid(config):
        return False
    rank = model.grid(steps).steps * max(len(nodes.attention), len(nodes.feed_forward))
    return (own.rule in ("adamw", "lion") or "time" not in own.rule_roles) and 2 * rank <= weights.time.d_emb


def vjp(
    populate: Callable[[Transformer], Transformer], trained: Transformer, steps: Steps | None
) -> tuple[Transformer, Callable[[Transformer], tuple[Transformer]]]:
    """Compute `jax.vjp(populate, trained)`, but with the gradient of every P as a `Factored`.

    **Arguments:** `populate`, from the trained parameters to the populated model; `steps`, which it populates for.
    """
    of_projection = lambda path, _: getattr(path[-1], "name", "") == "projection"
    # P is kept out of JAX's own backward pass, which would form its gradient.
    projections, others = eqx.partition(trained, jax.tree_util.tree_map_with_path(of_projection, trained))
    populated, to_others = jax.vjp(lambda others: populate(eqx.combine(others, projections)), others)
    assert isinstance(trained.weights, TimeWeights)
    codes = trained.weights.codes(trained.grid(steps), trained.scheme.nodes)

    def unit(own: PyTree, row: PyTree, h: Array) -> PyTree:
        if not isinstance(own, TimeLinear):
            return own
        # `own` has None in place of P, as `others` does.
        return eqx.tree_at(lambda n: n.projection, own, Factored(row.weight, h), is_leaf=lambda leaf: leaf is None)

    def to_trained(gradients: Transformer) -> tuple[Transformer]:
        (own,) = to_others(gradients)
        assert isinstance(gradients.weights, LayerWeights)
        networks = jax.tree.map(unit, own.weights.networks, gradients.weights.layers, codes, is_leaf=is_time_unit)
        return (eqx.tree_at(lambda model: model.weights.networks, own, networks),)

    return populated, to_trained


def _is_factored(node: PyTree) -> bool:
    return isinstance(node, Factored)
