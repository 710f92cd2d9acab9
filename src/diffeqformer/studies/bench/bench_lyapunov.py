"""`bench lyapunov`: pairwise exponents against whole Jacobians by reverse mode, on the same inputs."""

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from diffeqformer.config import ModelConfig
from diffeqformer.progress import Progress
from diffeqformer.report.text import number
from diffeqformer.studies.bench import benchmark as b
from diffeqformer.studies.study import Result

if TYPE_CHECKING:
    from jax import Array

    from diffeqformer.model.transformer import Transformer

GPT_SMALL = ModelConfig(width=768, steps=12, heads=12, context=1024, vocabulary=50257)
"""GPT-2 small's size, with Euler steps, the only ones that the dense way supports."""
TOKENS, REPEATS, BATCH = 128, 5, 64
"""Inputs; repetitions of the fast way; rows of a Jacobian at a time."""


@dataclass(frozen=True)
class Arguments(b.Kept):
    """Time the leading exponents of all inputs of a GPT-small-sized model, against dense Jacobians.

    Example: diffeqformer bench lyapunov --to benchmarks/lyapunov.json
    """


def study(arguments: Arguments, progress: Progress) -> Result:
    """Time the fast and the dense way at GPT-2 small's size."""
    return BENCHMARK.measured(arguments, **compare_lyapunov(progress))


def compare_lyapunov(progress: Progress) -> b.Document:
    """Time the leading exponent of all inputs for the last output of `TOKENS` random tokens, both ways.

    The dense way forms `dF_j / dx` of the field at output j by all inputs with reverse mode, one vector-Jacobian
    product for each of its `width` rows, at every step, multiplies `I + dt J_ji` with the tangents and orthonormalises.
    It is given every advantage that keeps it dense and in reverse mode: M is differentiated at token j alone, rows are
    taken `BATCH` at a time, and all of it is compiled. Both ways begin with the same random tangent and run the same
    forward pass. Compilation and the making of the weights are not timed. The dense way is timed once.

    **Returns:** times in seconds, their ratio and its spread, the largest difference of exponents, and the temporary
    memory planned by the compiler at `TOKENS` and twice as many inputs.
    """
    import jax
    import jax.numpy as jnp

    from diffeqformer.analysis.exponents import first_tangents
    from diffeqformer.analysis.lyapunov import pairwise_growth
    from diffeqformer.analysis.text import populated
    from diffeqformer.model.build import build

    config = dataclasses.replace(GPT_SMALL, weights="layer")
    model = populated(build(config, jax.random.key(0)))
    ids = jnp.asarray(np.random.default_rng(0).integers(0, config.vocabulary or 0, TOKENS), jnp.int32)
    first = first_tangents(config.width, 1, jax.random.key(0), jnp.float32)
    arguments = model, ids, jnp.asarray(TOKENS - 1), jnp.arange(TOKENS), first
    fast = partial(pairwise_growth.lower(*arguments).compile(), *arguments)
    (times,) = b.take_turns({"pairwise exponents": fast}, REPEATS, progress).values()
    dense = jax.jit(_dense).lower(model, ids, first).compile()
    with progress.stage("Dense Jacobians", 1):
        dense_seconds, wanted = b.timed(partial(dense, model, ids, first))
    return {
        "width": config.width, "steps": config.steps, "heads": config.heads, "tokens": TOKENS,
        **b.beside_dense(times, dense_seconds),
        "largest_difference": float(np.abs(np.asarray(fast()).sum(0) - np.asarray(wanted)).max()),
    }  # fmt: skip


def _dense(model: "Transformer", ids: "Array", first: "Array") -> "Array":
    """Evaluate the paper's formula with whole Jacobians of the last output, by Euler's method, for one or more
    tangents."""
    import jax
    import jax.numpy as jnp
    from jax import Array

    from diffeqformer.ode.field import BlockWeights

    config, output = model.config, ids.size - 1
    field, dt = config.field.build(config), config.interval / config.steps
    layers = jax.tree.map(lambda leaf: leaf[:, 0], model.weights.table(model.grid()))

    def at_output(weights: BlockWeights, x: Array) -> Array:
        alone = field.feed_forward(weights, x[None, output : output + 1])
        return field.attention(weights, x[None])[0][0, output] + alone[0, 0]

    def body(carry: tuple, weights: BlockWeights) -> tuple[tuple, None]:
        x, q, sums = carry
        _, pull = jax.vjp(partial(at_output, weights), x)
        rows = jax.lax.map(lambda row: pull(row)[0], jnp.eye(config.width, dtype=x.dtype), batch_size=BATCH)
        q = q + dt * jnp.einsum("oiw,iwt->iot", rows, q)
        q, r = jnp.linalg.qr(q)
        sums = sums + jnp.log(jnp.abs(jnp.diagonal(r, axis1=-2, axis2=-1)))
        x = x + dt * (field.attention(weights, x[None])[0][0] + field.feed_forward(weights, x[None])[0])
        return (x, q, sums), None

    x = model.embed(ids[None])[0]
    q = jnp.broadcast_to(first[None], (ids.size, *first.shape))
    return jax.lax.scan(body, (x, q, jnp.zeros((ids.size, first.shape[1]), x.dtype)), layers)[0][2]


BENCHMARK = b.Benchmark(
    "lyapunov",
    "Lyapunov exponents",
    "Jacobian-vector products, compared with full Jacobians from reverse mode on the same inputs. In brackets: lowest "
    "and highest.",
    lambda document: f"Without full Jacobians, exponents are {number(document['ratio'])} times as fast.",
    b.dense_table("Leading exponents of {tokens} inputs for one output: {steps} steps, {heads} heads, width {width}"),
)
