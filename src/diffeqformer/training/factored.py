"""The gradient of P, as the factors that it comes in: it is formed nowhere but inside the rule's own pass over P.

    W(t_l) = P h(t_l) + C,    dP = sum_l dW_l (x) h(t_l)

has at most the rank of the number of times, L. Its norm follows from two Gram matrices, each L x L,

    |dP|^2 = sum_lm <dW_l, dW_m> <h_l, h_m>,

and a rule that goes number by number, such as AdamW, takes the sum over l as a term of its own formula. dP is then
neither written nor read, which saves a copy of P and a third of an update's traffic (`docs/performance.md`).
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
    """`sum_l left_l (x) right_l`, a gradient that is not formed yet."""

    left: Float[Array, "time inputs outputs"]
    """dW"""
    right: Float[Array, "time d_emb"]
    """h"""

    @property
    def squared_norm(self) -> Float[Array, ""]:
        """`sum_lm <left_l, left_m> <right_l, right_m>`, which rounding must not make negative.

        With the second Gram matrix as a map of the first factors, so that axes that are sharded are never merged.
        """
        product = partial(jnp.tensordot, precision="highest")  # not in TensorFloat-32
        mixed = product(product(self.right, self.right.T, 1), self.left, 1)
        return jnp.maximum(jnp.sum(mixed * self.left), 0)

    @property
    def formed(self) -> Float[Array, "inputs outputs d_emb"]:
        """The gradient itself, for formulas that go number by number.

        Term by term: XLA fuses that into the formula, while a matrix product would be written to memory first.
        """
        terms = (left[:, :, None] * right[None, None] for left, right in zip(self.left, self.right, strict=True))
        return reduce(jnp.add, terms)


def norm(gradients: PyTree) -> Float[Array, ""]:
    """The global norm of gradients, factored or not."""
    squared = lambda part: part.squared_norm if _is_factored(part) else jnp.sum(jnp.square(part))
    return jnp.sqrt(sum(map(squared, jax.tree.leaves(gradients, is_leaf=_is_factored))))


def formed(gradients: PyTree) -> PyTree:
    """The same gradients, all of them as arrays."""
    return jax.tree.map(lambda part: part.formed if _is_factored(part) else part, gradients, is_leaf=_is_factored)


def on_one_grid(config: Config) -> bool:
    """Whether a whole update reads the weights at the same times, which are known before it."""
    return config.depth.alone and not config.depth.jitter and not config.model.tolerance


def stays_factored(config: Config, model: Transformer, steps: Steps | None = None) -> bool:
    """Whether the gradients of all P are left as factors in an update of `config`.

    Not where the weights come from no time networks, are not trained, or are read at different times in one update; nor
    where the rule needs whole matrices (Muon, Adafactor); nor where the rank is above d_emb / 2: there forming the
    terms takes as long as the traffic that it saves.
    """
    weights, nodes, own = model.weights, model.scheme.nodes, config.optimizer
    if not isinstance(weights, TimeWeights) or "time" not in own.train_roles or not on_one_grid(config):
        return False
    rank = model.grid(steps).steps * max(len(nodes.attention), len(nodes.feed_forward))
    return (own.rule in ("adamw", "lion") or "time" not in own.rule_roles) and 2 * rank <= weights.time.d_emb


def vjp(
    populate: Callable[[Transformer], Transformer], trained: Transformer, steps: Steps | None
) -> tuple[Transformer, Callable[[Transformer], tuple[Transformer]]]:
    """`jax.vjp(populate, trained)`, but the gradient of every P comes as a `Factored`.

    **Arguments:** `populate`, from the trained parameters to the populated model; `steps`, that it populates for.
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
        # Where P stands `own` has None, as `others` have.
        return eqx.tree_at(lambda n: n.projection, own, Factored(row.weight, h), is_leaf=lambda leaf: leaf is None)

    def to_trained(gradients: Transformer) -> tuple[Transformer]:
        (own,) = to_others(gradients)
        assert isinstance(gradients.weights, LayerWeights)
        networks = jax.tree.map(unit, own.weights.networks, gradients.weights.layers, codes, is_leaf=is_time_unit)
        return (eqx.tree_at(lambda model: model.weights.networks, own, networks),)

    return populated, to_trained


def _is_factored(node: PyTree) -> bool:
    return isinstance(node, Factored)
