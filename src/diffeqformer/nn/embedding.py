"""Tokens and positions as vectors."""

import equinox as eqx
from jax import Array
from jaxtyping import Float, Int

from diffeqformer.sharding import constrain


class Embedding(eqx.Module):
    """Sum of a token's vector and, where the family has them, its position's learned vector."""

    tokens: Float[Array, "vocabulary width"]
    positions: Float[Array, "context width"] | None

    def __call__(
        self, ids: Int[Array, "batch position"], at: Int[Array, " position"]
    ) -> Float[Array, "batch position width"]:
        """Vectors of `ids` that stand at the positions `at`."""
        x = constrain(self.tokens, "tensor")[ids]
        return x if self.positions is None else x + constrain(self.positions)[at][None]
