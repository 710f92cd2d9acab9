"""How sensitive an output token is to each input token: Lyapunov exponents along a model's own trajectory.

How do tangents grow under `J_ji = dF_j / dx_i`, the derivative of the field at token j with respect to the state of
token i, with all other tokens held where the forward pass has them? `end_to_end.py` measures what arrives through all
tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int, PyTree

from diffeqformer.analysis.exponents import first_tangents, kaplan_yorke, leading_directions, orthonormalise
from diffeqformer.analysis.finite import require_finite
from diffeqformer.analysis.in_blocks import InBlocks
from diffeqformer.analysis.tables import Summarised, scores_html
from diffeqformer.analysis.text import populated, require_text
from diffeqformer.config.bounds import whole
from diffeqformer.errors import BadInput
from diffeqformer.model.transformer import Transformer
from diffeqformer.nn.attention import attend, attention_weights
from diffeqformer.nn.linear import wide
from diffeqformer.ode.field import BlockWeights, TransformerField
from diffeqformer.ode.grid import Steps
from diffeqformer.ode.schemes.splitting import length_taken
from diffeqformer.ode.solve import Solution, Step, split
from diffeqformer.progress import Progress, Silent

TANGENT_NUMBERS = 1 << 24
"""Numbers in the tangents of the inputs processed together: 64 MB in float32 for each of about ten such arrays."""
SETTLED = 0.01
"""Bound of the leading exponent's error, in nats, below which first tangents are refined no further."""


@dataclass(frozen=True, repr=False)
class Pairwise(Summarised):
    """Lyapunov exponents of `dQ/dt = J_ji(t) Q`; NaN for inputs after the output, which causal attention cannot see."""

    outputs: tuple[int, ...]
    exponents: Float[np.ndarray, "output input tangent"]
    """Exponents: sums of `log |diag R|` over the whole depth, the largest first."""
    error: Float[np.ndarray, "output input"]
    """Bound of the leading exponent's error, see `leading_directions`; NaN if first tangents were not refined."""
    over_depth: Float[np.ndarray, "output input step"]
    """Growth up to the end of each step of the tangent whose exponent is the leading one."""
    width: int
    interval: float
    """Length of the whole depth in integration time: divide exponents by it for rates."""
    tokens: tuple[str, ...] = ()
    """Pieces of the text; if given, a notebook shows them coloured by score."""

    @property
    def leading(self) -> Float[np.ndarray, "output input"]:
        """The largest exponent."""
        return self.exponents[..., 0]

    @property
    def mean(self) -> Float[np.ndarray, "output input"]:
        """The mean of the exponents that were computed."""
        return self.exponents.mean(-1)

    @property
    def dimension(self) -> Float[np.ndarray, "output input"]:
        """Kaplan-Yorke dimension; NaN where the exponents that were computed do not settle it."""
        return kaplan_yorke(self.exponents, self.width)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all results as arrays, by name."""
        return {
            "outputs": np.asarray(self.outputs), "exponents": self.exponents, "leading": self.leading,
            "error": self.error, "over_depth": self.over_depth,
            "mean": self.mean, "kaplan_yorke_dimension": self.dimension, "interval": np.asarray(self.interval),
        }  # fmt: skip

    def _repr_html_(self) -> str:
        scores = {"leading": self.leading, "mean": self.mean}
        return scores_html("pairwise exponents", self.outputs, scores, self.tokens)


def pairwise(
    model: Transformer,
    ids: Int[Array, " position"],
    outputs: Sequence[int],
    *,
    tangents: int | None = 1,
    iterations: int = 30,
    steps: Steps | None = None,
    seed: int = 0,
    tokens: Sequence[str] = (),
    progress: Progress | None = None,
) -> Pairwise:
    """Compute the exponents of `dQ/dt = J_ji(t) Q`, `J_ji = dF_j / dx_i`: token sensitivity (paper, 5.2, appendix B).

    The model's own scheme integrates Q along with the state: at the same times, and at the states at which the forward
    pass evaluates each half of the field, with the other tokens held fixed. For Euler's method that is the paper's
    `Q <- qr((I + dt J_ji(t)) Q)`; every other scheme uses its own stages and splitting. After each step Q is
    orthonormalised, and `log |diag R|` is added up. No Jacobian is formed: only row j of attention and the keys and
    values of token i change. For each tangent, all inputs together therefore cost about as much as the attention half
    of one forward pass, and memory is linear in the number of tokens.

    Over a finite depth the result depends on the first tangents. If they are the right singular vectors of the whole
    flow `Q(0) -> Q(1)`, the sums are the logarithms of its k largest singular values: the finite-time Lyapunov
    exponents. Random first tangents (the paper's) are brought near them by subspace iteration,
    `Q <- qr(flow^T flow Q)`, until the residual bounds the error of the leading exponent by 0.01.

    A model whose tolerance chooses its steps is analysed on the fixed grid of its `steps`.

    **Arguments:** `ids`; `outputs`, positions j; `tangents`, k, the number of leading exponents, from random
    orthonormal first tangents (drawn from `seed`, the same for all inputs, then refined), or `None` for all exponents,
    from the unit vectors; `iterations`, the most refinements, 0 for none; `steps` of depth, those of training if not
    given; `tokens`, pieces of the text for display; `progress`.

    **Returns:** a `Pairwise`.

    **Raises:** `BadInput` for a text that `require_text` refuses or one longer than the context, `tangents` out of
    range, or a field with attention of its own; `RunFailed` if derivatives are not finite.
    """
    if getattr(type(model.field), "attention", None) is not TransformerField.attention:
        raise BadInput(
            f"the field is {type(model.field).__name__}, which has attention of its own, but must have that of "
            "TransformerField, whose derivative pairwise exponents take; end-to-end exponents take any field's."
        )
    ids, outputs = require_text(model, ids, outputs, tokens)
    width, positions = model.config.width, ids.size
    number = width if tangents is None else tangents
    if not 1 <= whole("tangents", number) <= width:
        raise BadInput(f"tangents is {number}, but must be from 1 to the model's width, {width}.")
    whole("iterations", iterations, 0)
    model = populated(model, steps)
    dtype = wide(model.embedding.tokens.dtype)
    first = first_tangents(width, number, jax.random.key(seed), dtype)
    iterations = 0 if tangents is None else iterations
    together = int(np.clip(TANGENT_NUMBERS // (width * number), 1, positions))
    empty = lambda *last: np.full((len(outputs), positions, *last), np.nan, np.dtype(dtype))
    exponents, error, over_depth = empty(number), empty(), empty(model.config.steps)
    many = np.broadcast_to(np.asarray(first), (together, *first.shape))
    total = sum(output // together + 1 for output in outputs)
    with (progress or Silent()).stage("Pairwise exponents", total) as stage:
        for row, output in enumerate(outputs):
            for start in range(0, output + 1, together):
                # Padded with the last position: blocks of one shape are compiled once.
                inputs = np.minimum(np.arange(start, start + together), positions - 1)
                seen = min(together, output + 1 - start)
                block = row, slice(start, start + seen)
                of = model, ids, jnp.asarray(output), jnp.asarray(inputs)
                directions, bound = first, np.full(together, np.nan)
                if iterations:
                    directions, bound = leading_directions(partial(flow_and_transpose, *of), many, iterations, SETTLED)
                growth = np.asarray(pairwise_growth(*of, directions))[:, :seen]
                require_finite(np.where(growth == -np.inf, 0, growth), "derivatives")  # -inf where one is zero
                exponents[block], over_depth[block], error[block] = growth.sum(0), _leading_so_far(growth), bound[:seen]
                stage.advance(1)
    lengths = length_taken(model.scheme, model.config.interval * np.asarray(model.grid().lengths))
    found = -np.sort(-exponents, axis=-1), error, over_depth, width, float(np.sum(lengths))
    return Pairwise(outputs, *found, tuple(tokens))


def _leading_so_far(growth: Float[np.ndarray, "step input tangent"]) -> Float[np.ndarray, "input step"]:
    """Add up, step by step, the growth of each input's tangent that has grown most at the end."""
    so_far = growth.cumsum(0)
    return np.take_along_axis(so_far, so_far[-1].argmax(-1)[None, :, None], -1)[..., 0].T


@jax.jit
def flow_and_transpose(
    model: Transformer,
    ids: Int[Array, " position"],
    output: Int[Array, ""],
    inputs: Int[Array, " input"],
    first: Float[Array, "input width tangent"],
) -> tuple[Float[Array, "input width tangent"], PyTree]:
    """Carry tangents to the end of depth; return them, and the transpose of the linear map that took them there."""

    def flow(first: Array) -> Array:
        found = _flow(model, ids, _Tangents(model, output, inputs, first, keep=False))
        return model.scheme.state(found.observed).swapaxes(-1, -2)

    images, transpose = jax.vjp(flow, first)
    # A `Partial` is a pytree, which a compiled function can return; `vjp`'s own returns a tuple of one.
    return images, jax.tree_util.Partial(lambda back, left: back(left)[0], transpose)


@jax.jit
def pairwise_growth(
    model: Transformer,
    ids: Int[Array, " position"],
    output: Int[Array, ""],
    inputs: Int[Array, " input"],
    first: Float[Array, "*input width tangent"],
) -> Float[Array, "step input tangent"]:
    """Growth of the tangents of some inputs in each step for one output, in the decomposition's order; see `pairwise`.

    Tangents of inputs after the output do not grow: nothing moves them.
    """
    return _flow(model, ids, _Tangents(model, output, inputs, first)).kept


def _flow(model: Transformer, ids: Int[Array, " position"], observer: "_Tangents") -> Solution:
    """Run the forward pass of one text, observed by `observer`."""
    return model.flow(model.embed(ids[None]), steps=model.grid(), observer=observer, field=InBlocks(model.field))


class _Tangents:
    """Observer that carries tangents along with the state, by the same scheme.

    Unless `keep` is false, it orthonormalises them after each step and keeps how much they grew.
    """

    def __init__(self, model: Transformer, output: Array, inputs: Array, first: Array, keep: bool = True) -> None:
        self._field: TransformerField = model.field  # pyright: ignore[reportAttributeAccessIssue]
        self._scheme, self._output, self._inputs = model.scheme, output, inputs
        self._first, self._keep = first, keep

    def start(self, x: Array) -> PyTree:
        """Start the scheme from the first tangents; return what it carries."""
        rows = self._first.swapaxes(-1, -2)
        return self._scheme.start(jnp.broadcast_to(rows, (len(self._inputs), *rows.shape[-2:])))

    def see(self, carried: PyTree, step: Step) -> tuple[PyTree, Array | None]:
        """Take the tangents through one step, at the evaluations of the state's own step."""
        # JAX has no QR decomposition in 16 bits.
        row = jax.tree.map(lambda leaf: leaf.astype(wide(leaf.dtype)), step.weights)
        changes = split(_Changes(self._field, step, self._output, self._inputs), self._scheme, row)
        dt = jnp.asarray(step.dt, self._scheme.state(carried).dtype)
        tangents = self._scheme.step(changes, carried, dt)
        return _orthonormal(self._scheme.state(tangents), tangents) if self._keep else (tangents, None)


def _orthonormal(q: Float[Array, "input tangent width"], carried: PyTree) -> tuple[PyTree, Array]:
    """Orthonormalise the tangents in what a scheme carries; return what it then carries, and how much each grew.

    A scheme that carries more than the state carries more than Q: all of it is multiplied by the same `R^-1`.
    """
    columns = q.swapaxes(-1, -2)
    orthonormal, growth = orthonormalise(columns)
    if isinstance(carried, Array):
        return orthonormal.swapaxes(-1, -2), growth
    r = orthonormal.swapaxes(-1, -2) @ columns
    # Tangents are rows here: x R^-1 is the y of R^T y^T = x^T.
    solve = lambda leaf: jax.scipy.linalg.solve_triangular(r, leaf, trans=1)
    # What has another shape is no tangent, such as leapfrog's length of the step before.
    return jax.tree.map(lambda leaf: solve(leaf) if leaf.shape == q.shape else leaf, carried), growth


class _Changes:
    """The linear field `Q_i -> J_ji Q_i` for all inputs i, at the states of one step of the forward pass."""

    def __init__(self, field: TransformerField, step: Step, output: Array, inputs: Array) -> None:
        self._field, self.shapes, self._output, self._inputs = field, field.shapes, output, inputs
        self.key_value_heads, self._itself = field.key_value_heads, inputs == output
        # The scheme asks for the tangents' halves in the order in which it asked for the state's.
        self._attention, self._feed_forward = iter(step.attention), iter(step.feed_forward)

    def attention(self, weights: BlockWeights, x: Float[Array, "input tangent width"], **_: Any) -> tuple[Array, None]:
        """Compute `dA_j / dx_i x` for one output j and tangents x of some inputs i, without forming a Jacobian.

        Token i enters row j of attention by its key k, its value v and, if i = j, by the query. With the weight w of
        token i in the row, the row's value `o = sum w v` and the query a, head by head (paper, appendix B.2):

            do = w (dv + (a . dk) / sqrt(head width) (v - o))  [+ the change by the query, if i = j]

        Changes of key, value and query come from `field.projections` by forward differentiation.
        """
        at, inputs = next(self._attention).state[0].astype(x.dtype), self._inputs
        query, keys, values = self._field.projections(weights, at[None])
        query = jax.lax.dynamic_slice_in_dim(query, self._output, 1, axis=1)
        mask = (jnp.arange(at.shape[0]) <= self._output)[None]
        shares = attention_weights(query, keys, mask=mask)[0, :, 0, inputs]  # (input, heads)
        row = attend(query, keys, values, mask=mask)
        # Query heads that share one head of keys and values.
        served = query.shape[2] // keys.shape[2]
        by_head = lambda part: jnp.repeat(part[..., 0, 0, :, :], served, axis=-2)

        def change(at: Array, position: Array, tangents: Array) -> tuple[Array, Array, Array]:
            push = jax.linearize(lambda at: self._field.projections(weights, at[None, None], position), at)[1]
            return jax.vmap(push)(tangents)

        by_query, by_key, by_value = jax.vmap(change)(at[inputs], inputs, x)
        scores = jnp.einsum("hd,ithd->ith", query[0, 0], by_head(by_key)) / query.shape[-1] ** 0.5
        value = jnp.repeat(values[0, inputs], served, axis=1)[:, None]  # (input, 1, heads, head width)
        mixed = shares[:, None, :, None] * (by_head(by_value) + scores[..., None] * (value - row))
        push = jax.linearize(lambda query: attend(query, keys, values, mask=mask), query)[1]
        # `argmax` is 0 if the output is not among the inputs; `_of_itself` then returns zeros.
        own = jax.vmap(push)(by_query[self._itself.argmax()])[:, 0, 0]
        mixed = (mixed + self._of_itself(own)).reshape(*x.shape[:2], -1)  # heads together may be wider than the state
        # Without the bias, which is constant.
        return mixed @ weights.attention.output.weight, None

    def feed_forward(self, weights: BlockWeights, x: Float[Array, "input tangent width"], **_: Any) -> Array:
        """Compute `dM_j / dx_i x`: zero for all inputs but the output itself, since M acts on each token alone."""
        at = next(self._feed_forward).state[0, self._output].astype(x.dtype)
        push = jax.linearize(lambda at: self._field.feed_forward(weights, at[None, None])[0, 0], at)[1]
        return self._of_itself(jax.vmap(push)(x[self._itself.argmax()]))

    def _of_itself(self, change: Array) -> Array:
        """Add a leading axis of inputs: `change` for the input that is the output itself, zero for all others."""
        itself = self._itself.reshape(-1, *(1 for _ in change.shape))
        return jnp.where(itself, change[None], jnp.zeros_like(change)[None])
