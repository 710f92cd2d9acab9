"""`bench spectra`: all QK and OV eigenvalues of a model, from the small matrices and from D x D products."""

import statistics
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from diffeqformer.progress import Progress, Silent
from diffeqformer.report.text import number
from diffeqformer.studies.bench import benchmark as b
from diffeqformer.studies.study import Result

if TYPE_CHECKING:
    import jax


@dataclass(frozen=True)
class Arguments(b.Kept):
    """Time all QK and OV eigenvalues of a GPT-medium-sized model, against those of the D x D products.

    Example: diffeqformer bench spectra --to benchmarks/spectra.json
    """


def study(arguments: Arguments, progress: Progress) -> Result:
    """Time the fast and the dense way at GPT-medium's size."""
    return BENCHMARK.measured(arguments, **compare_spectra(progress=progress))


def compare_spectra(
    *,
    steps: int = 24,
    heads: int = 16,
    width: int = 1024,
    rounds: int = 5,
    dense: int | None = 4,
    progress: Progress = Silent(),
) -> b.Document:
    """Time the QK and OV eigenvalues of all heads of all steps of a random model, and compare with dense ones.

    Matrices are normal with standard deviation 0.02, float32 as in a model; both ways compute in float64 and start from
    the whole matrices of a step. The default size is GPT-medium's.

    **Arguments:** `rounds`, as for `take_turns`; `dense`, how many of the 2 * steps * heads D x D products
    are made and solved, evenly spread (the time of all is extrapolated from their mean); `None` for all of them.

    **Returns:** `seconds` (median), their `spread`, `dense_seconds_each` (median), `dense_seconds` (for all),
    `dense_measured` (how many), `ratio` and its spread, `largest_difference` (of matched eigenvalues, over the spectral
    radius), and the sizes.
    """
    import jax
    import jax.numpy as jnp

    from diffeqformer.analysis.products import on_host, product_eigenvalues

    draw = np.random.default_rng(0)
    normal = lambda *shape: draw.standard_normal(shape, np.float32) * np.float32(0.02)
    qkv, output = normal(steps, width, 3 * width), normal(steps, width, width)
    factors = jax.jit(_factors, static_argnames="heads")

    def fast() -> np.ndarray:
        with on_host():
            left, right = factors(jnp.asarray(qkv), jnp.asarray(output), heads)
        return product_eigenvalues(left, right)

    values = fast()
    (seconds,) = b.take_turns({"eigenvalues through small matrices": fast}, rounds, progress).values()
    total = 2 * steps * heads
    chosen = np.unique(np.linspace(0, total - 1, total if dense is None else min(dense, total)).astype(int))
    each, differences = [], []
    with progress.stage("Eigenvalues of D x D products", len(chosen)) as stage:
        for index in chosen:
            pair, step, head = np.unravel_index(index, (2, steps, heads))
            product = partial(_dense_product, qkv[step], output[step], int(pair), int(head), heads)
            taken, found = b.timed(lambda product=product: np.linalg.eigvals(product()))
            each.append(taken)
            differences.append(largest_difference(values[pair, step, head], found))
            stage.advance(1)
    return {
        "steps": steps, "heads": heads, "width": width, **b.beside_dense(seconds, statistics.mean(each) * total),
        "dense_measured": len(each), "dense_seconds_each": statistics.median(each),
        "largest_difference": max(differences),
    }  # fmt: skip


def largest_difference(small: np.ndarray, dense: np.ndarray) -> float:
    """The largest distance between eigenvalues and the nonzero ones of the dense product, matched one to one, relative
    to the spectral radius.

    The nonzero ones are the largest of the dense product's eigenvalues, as many as there are in `small`.
    """
    from scipy.optimize import linear_sum_assignment

    kept = dense[np.argsort(-np.abs(dense))][: len(small)]
    distance = np.abs(small[:, None] - kept[None])
    return float(distance[linear_sum_assignment(distance)].max() / np.abs(kept).max())


def _factors(qkv: "jax.Array", output: "jax.Array", heads: int) -> "tuple[jax.Array, jax.Array]":
    """The factors L and R of all heads, (pair, step, head, ...)."""
    import jax.numpy as jnp

    steps, width, _ = qkv.shape
    cut = lambda part: jnp.moveaxis(part.reshape(steps, width, heads, -1), 2, 1).astype(jnp.float64)
    query, key, value = map(cut, jnp.split(qkv, 3, axis=-1))
    rows = output.reshape(steps, heads, -1, width).astype(jnp.float64)
    return jnp.stack([query, value]), jnp.stack([jnp.swapaxes(key, -1, -2), rows])


def _dense_product(qkv: np.ndarray, output: np.ndarray, pair: int, head: int, heads: int) -> np.ndarray:
    width, d = len(qkv), len(qkv) // heads
    part = lambda number: qkv[:, number * width + head * d :][:, :d].astype(np.float64)
    return part(0) @ part(1).T if pair == 0 else part(2) @ output[head * d : (head + 1) * d].astype(np.float64)


BENCHMARK = b.Benchmark(
    "spectra",
    "Spectra",
    "Eigenvalues from the small matrices of a head, compared with those of the full products, which have the model's "
    "width. Some of these products were solved, and the time for all was extrapolated. In brackets: lowest and "
    "highest. The difference is that of matched eigenvalues, divided by the spectral radius.",
    lambda document: f"From small matrices, eigenvalues are {number(document['ratio'])} times as fast.",
    b.dense_table(
        "All QK and OV eigenvalues: {steps} steps, {heads} heads, width {width}; {dense_measured} products measured"
    ),
)
