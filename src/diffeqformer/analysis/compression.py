"""Compression of a table of layers: over depth, by knots or modes, or within each layer, by low rank.

Each method gives a table of the same shape, so that all run alike, and how many numbers it takes to store it. Least
squares are unweighted, or weighted by the second moments of the inputs of each matrix on a text (Wang et al. 2024,
SVD-LLM, arXiv:2403.07378).
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int, Key, PyTree

from diffeqformer.config import KnotsConfig
from diffeqformer.model.count import count
from diffeqformer.model.transformer import Transformer
from diffeqformer.nn.linear import Linear, wide
from diffeqformer.ode.field import BlockWeights, Field
from diffeqformer.ode.solve import Step
from diffeqformer.ode.weights.lifting import fit_knots, ridged
from diffeqformer.ode.weights.source import is_unit, number_of_rows
from diffeqformer.progress import Progress, Silent

Moments = list[Float[Array, "layer _ _"]]
"""One array (layer, inputs + 1, inputs + 1) per linear map of a block, in tree order; the added input is always 1."""


class Smaller(NamedTuple):
    """An approximation of a table, and how many numbers it takes to store it."""

    rows: BlockWeights
    numbers: int


def second_moments(
    model: Transformer, texts: Int[np.ndarray, "text position"], *, batch: int = 8, progress: Progress | None = None
) -> Moments:
    """Compute `mean x x^T` over the inputs x of every linear map of every layer, as the model runs on texts.

    **Arguments:** `model`, a table of layers; `texts`, tokens; `batch`, texts at a time.

    **Returns:** `Moments`: for each linear map an array (layer, inputs + 1, inputs + 1).
    """
    total: Moments | None = None
    with (progress or Silent()).stage("Reading activations", len(texts)) as stage:
        for start in range(0, len(texts), batch):
            ids = texts[start : start + batch]
            found = _moments(model, jnp.asarray(ids))
            total = found if total is None else jax.tree.map(jnp.add, total, found)
            stage.advance(len(ids))
    return jax.tree.map(lambda one: one / texts.size, total)


@eqx.filter_jit
def _moments(model: Transformer, ids: Int[Array, "batch position"]) -> Moments:
    return model.flow(model.embed(ids), steps=model.grid(), observer=_Inputs(model.field)).kept


class _Inputs:
    """Observer that sums `x x^T` over the inputs of each linear map of a step, averaged over its evaluations."""

    def __init__(self, field: Field) -> None:
        self._field = field

    def start(self, x: Array) -> None:
        """Nothing is carried."""

    def see(self, carried: None, step: Step) -> tuple[None, PyTree]:
        """Repeat the scheme's evaluations of the field, with linear maps that record their inputs."""
        seen: dict[int, Array] = {}

        def note(share: float, place: int, x: Array) -> None:
            x = x.reshape(-1, x.shape[-1]).astype(wide(x.dtype))
            x = jnp.concatenate([x, jnp.ones_like(x[:, :1])], 1)
            seen[place] = seen.get(place, jnp.zeros((), x.dtype)) + share * jnp.matmul(x.T, x, precision="highest")

        for half, evaluations in (
            (self._field.attention, step.attention),
            (self._field.feed_forward, step.feed_forward),
        ):
            for at in evaluations:
                units, structure = jax.tree.flatten(at.weights, is_leaf=is_unit)
                noted = [
                    _Noted(unit, partial(note, 1 / len(evaluations), place)) if isinstance(unit, Linear) else unit
                    for place, unit in enumerate(units)
                ]
                # Run only to call `note`: the result is unused, and XLA drops it.
                half(jax.tree.unflatten(structure, noted), at.state)
        return carried, [seen[place] for place in sorted(seen)]


class _Noted:
    """A linear map that passes its inputs to `note` first."""

    def __init__(self, linear: Linear, note: Callable[[Array], None]) -> None:
        self._linear, self._note = linear, note

    def __call__(self, x: Array, *, key: Key[Array, ""] | None = None) -> Array:
        self._note(x)
        return self._linear(x)


def fewer_knots(rows: BlockWeights, knots: int, moments: Moments | None = None) -> Smaller:
    """Approximate the layers by least squares with straight lines between K equally spaced knots."""
    layers = number_of_rows(rows)
    times = (np.arange(layers) + 0.5) / layers
    fit = fit_knots(rows, times, KnotsConfig(knots), moments)
    return Smaller(fit.weights.at(times), count(fit.weights))


def depth_modes(rows: BlockWeights, sizes: Sequence[int]) -> Iterator[Smaller]:
    """For each size s, approximate the layers by their mean over depth and s - 1 leading modes of the rest.

    Each array is approximated by itself, by a truncated SVD of P over depth: time networks `C + P h(t)` with
    d_emb = s - 1.
    """
    layers = number_of_rows(rows)

    def split(leaf: Array) -> tuple[np.ndarray, ...]:
        flat = np.asarray(leaf).reshape(layers, -1)
        return flat.mean(0), *np.linalg.svd(flat - flat.mean(0), full_matrices=False)

    leaves, structure = jax.tree.flatten(rows)
    factors = [split(leaf) for leaf in leaves]
    for size in sizes:
        kept = size - 1
        near = [
            jnp.asarray((mean + (u[:, :kept] * s[:kept]) @ v[:kept]).reshape(leaf.shape))
            for leaf, (mean, u, s, v) in zip(leaves, factors, strict=True)
        ]
        # The mean and the modes, each as large as a layer, and every layer's coefficients of the modes.
        yield Smaller(jax.tree.unflatten(structure, near), size * count(rows) // layers + kept * layers * len(leaves))


def low_rank(
    rows: BlockWeights, sizes: Sequence[int], moments: Moments | None = None, *, around_mean: bool = False
) -> Iterator[Smaller]:
    """For each size s, approximate every layer's matrices at the rank whose factors take s/L of their numbers.

    With `around_mean`, the factors approximate the difference of each matrix from the mean over depth, which is stored
    once (Bae et al. 2025, Relaxed Recursive Transformers, arXiv:2410.20672). Biases and norms are kept. With `moments`,
    the error of the outputs on that text is minimised, not that of the matrices.
    """
    layers, left = number_of_rows(rows), iter(moments or ())
    units, structure = jax.tree.flatten(rows, is_leaf=is_unit)

    def split(unit: Linear) -> tuple[np.ndarray, ...]:
        weight = np.asarray(unit.weight)
        mean = weight.mean(0) if around_mean else np.zeros_like(weight[0])
        moment = next(left, None)
        if moment is None:
            return mean, *np.linalg.svd(weight - mean, full_matrices=False)
        # mean |x (W - V)|^2 = |root^T (W - V)|^2, so the best V of any rank comes from the SVD of root^T W.
        # The bias, which the added input reads, is kept.
        root = np.linalg.cholesky(np.asarray(ridged(moment[:, :-1, :-1]), np.float64))
        u, s, v = np.linalg.svd(root.swapaxes(1, 2) @ (weight - mean), full_matrices=False)
        return mean, np.linalg.solve(root.swapaxes(1, 2), u), s, v

    factors = [split(unit) if isinstance(unit, Linear) else None for unit in units]
    for size in sizes:
        near, numbers = [], 0
        for unit, found in zip(units, factors, strict=True):
            numbers += count(unit)
            if found is None:
                near.append(unit)
                continue
            mean, u, s, v = found
            inputs, outputs = mean.shape
            # The mean, stored once, is one of the s parts.
            rank = int((size - around_mean) * inputs * outputs // (layers * (inputs + outputs)))
            weight = mean + (u[..., :rank] * s[:, None, :rank]) @ v[:, :rank]
            near.append(Linear(jnp.asarray(weight, unit.weight.dtype), unit.bias))
            # Factors in place of the matrices, which are counted above together with their biases.
            numbers += layers * rank * (inputs + outputs) + around_mean * mean.size - unit.weight.size
        yield Smaller(jax.tree.unflatten(structure, near), numbers)
