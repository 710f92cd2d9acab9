"""Rank correlation."""

import numpy as np
from jaxtyping import Float
from scipy.stats import rankdata


def spearman(
    x: Float[np.ndarray, "*batch value"], y: Float[np.ndarray, "*batch value"]
) -> Float[np.ndarray | np.floating, "*batch"]:
    """Compute Spearman's rank correlation; ties share their mean rank, and it is 0 if x or y is constant."""
    a, b = (rankdata(values, axis=-1) - (values.shape[-1] + 1) / 2 for values in (x, y))
    scale = np.sqrt((a * a).sum(-1) * (b * b).sum(-1))
    return np.divide((a * b).sum(-1), scale, out=np.zeros_like(scale), where=scale > 0)
