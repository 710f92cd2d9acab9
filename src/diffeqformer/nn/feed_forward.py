"""The feed-forward block's weights."""

from typing import Generic, TypeVar

import equinox as eqx

L = TypeVar("L")
N = TypeVar("N")


class FeedForwardWeights(eqx.Module, Generic[L, N]):
    """Weights of one feed-forward block; `L` and `N` are the types that represent a linear map and a norm."""

    norm: N
    up: L
    down: L
    gate: L | None = None
    """Gate of a gated block (SwiGLU); `None` otherwise."""
