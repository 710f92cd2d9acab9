"""Accuracy of a model on the answers of a puzzle, by difficulty."""

import math
from collections.abc import Callable, Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int, Integer

from diffeqformer.config import PuzzleConfig
from diffeqformer.ode.early_exit import EarlyExit

_guesses = eqx.filter_jit(lambda model, ids, steps: model(ids, steps=steps).argmax(axis=-1))


def accuracy(
    model: Callable[..., Array],
    ids: Integer[np.ndarray, "problem context"],
    difficulty: Int[np.ndarray, "problem context"],
    *,
    steps: int | EarlyExit | None = None,
    batch_size: int = 64,
) -> Float[np.ndarray, " difficulty"]:
    """Compute the fraction of answers that are the model's most probable word, at `steps` depth steps.

    **Arguments:** `model`, called like a `Transformer`; `ids`, whole problems; `difficulty` of each token as an answer,
    0 where it is not one (`Puzzle.difficulty`); `steps`, the trained number if not given; `batch_size`, problems at a
    time.

    **Returns:** entry k - 1 for difficulty k, up to the largest difficulty; NaN if no answer has that difficulty.
    """
    guessed = []
    for start in range(0, len(ids), batch_size):
        batch = np.asarray(ids[start : start + batch_size], np.int32)
        whole = np.pad(batch, [(0, batch_size - len(batch)), (0, 0)])  # so that one program serves all
        guessed.append(np.asarray(_guesses(model, jnp.asarray(whole[:, :-1]), steps))[: len(batch)])
    of, right = difficulty[:, 1:], np.concatenate(guessed) == ids[:, 1:]
    # Without the first: a difficulty of 0 means that the token is no answer.
    total = np.bincount(of.ravel(), minlength=2)[1:]
    with np.errstate(invalid="ignore"):
        return np.bincount(of[right], minlength=len(total) + 1)[1:] / total


def accuracy_of(
    puzzle: PuzzleConfig,
    model: Callable[..., Array],
    tokens: Integer[np.ndarray, " token"],
    steps: int | EarlyExit | None = None,
) -> list[float | None]:
    """Compute `accuracy` on the problems in `tokens`; `None` for a difficulty that no answer has."""
    problems = np.asarray(tokens).reshape(-1, puzzle.context)
    found = accuracy(model, problems, puzzle.build().difficulty(problems), steps=steps)
    return [None if math.isnan(part) else float(part) for part in found]


def reach(accuracies: Sequence[float | None], right: float = 0.9) -> int:
    """Return the largest k such that each difficulty up to k has at least the fraction `right` of its answers right."""
    # As a float, `None` is NaN, which is not at least anything.
    return int(np.cumprod(np.asarray(accuracies, float) >= right).sum())
