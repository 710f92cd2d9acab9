"""How much of a perturbation of one token's embedding arrives at another token's final state.

This is the true derivative `dx_j(1) / dx_i(0)`, through all tokens and the whole depth; `lyapunov.py` has the paper's
measure, one pair of tokens at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from diffeqformer.analysis.exponents import first_tangents
from diffeqformer.analysis.finite import require_finite
from diffeqformer.analysis.tables import Summarised, scores_html
from diffeqformer.analysis.text import populated, require_text
from diffeqformer.config.bounds import whole
from diffeqformer.errors import BadInput
from diffeqformer.model.transformer import Transformer
from diffeqformer.nn.linear import wide
from diffeqformer.ode.grid import Steps
from diffeqformer.progress import Progress, Silent


@dataclass(frozen=True, repr=False)
class EndToEnd(Summarised):
    """Finite-time exponents of `J = dx_j(1) / dx_i(0)`: logarithms of its singular values, found by probing.

    With m orthonormal probes U in a state of width D, `U^T J` is known. Its singular values are lower bounds of the m
    largest of J (interlacing), and `D / m |U^T J|^2` is an unbiased estimate of the squared Frobenius norm. With m = D
    both are exact.
    """

    outputs: tuple[int, ...]
    growth: Float[np.ndarray, "output input"]
    """`log(|J|_F / sqrt(D))`: root mean square growth of a perturbation of random direction. The score of a token."""
    error: Float[np.ndarray, "output input"]
    """Standard error of `growth`, from the spread of the probes; zero if all directions were probed."""
    exponents: Float[np.ndarray, "output input probe"]
    """Lower bounds of the leading exponents, the largest first; exact if all directions were probed."""
    tokens: tuple[str, ...] = ()
    """Pieces of the text; if given, a notebook shows them coloured by score."""

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all results as arrays, by name."""
        outputs, growth = np.asarray(self.outputs), {"growth": self.growth, "growth_error": self.error}
        return {"outputs": outputs, **growth, "exponents": self.exponents}

    def _repr_html_(self) -> str:
        scores = {"growth": self.growth, "± error": self.error}
        return scores_html("end-to-end exponents", self.outputs, scores, self.tokens)


def end_to_end(
    model: Transformer,
    ids: Int[Array, " position"],
    outputs: Sequence[int],
    *,
    probes: int = 16,
    steps: Steps | None = None,
    seed: int = 0,
    tokens: Sequence[str] = (),
    progress: Progress | None = None,
) -> EndToEnd:
    """Estimate the exponents of the true derivative `dx_j(1) / dx_i(0)`, through all tokens, for all inputs i at once.

    One vector-Jacobian product of the forward pass gives `u^T dx_j(1) / dx_i(0)` for every i. The probes u are random
    orthonormal vectors (the unit vectors, if as many as the width), so no D x D matrix is formed.

    **Arguments:** `ids`; `outputs`, positions j; `probes`, m, from 2 to the width; `steps` of depth, those of training
    if not given; `seed` of the probes; `tokens`, pieces of the text for display; `progress`.

    **Returns:** an `EndToEnd`.

    **Raises:** `BadInput` for a text that `require_text` refuses or one longer than the context, or `probes` out of
    range; `RunFailed` if the derivatives are not finite.
    """
    ids, outputs = require_text(model, ids, outputs, tokens)
    width, positions = model.config.width, ids.size
    if not min(2, width) <= whole("probes", probes) <= width:
        raise BadInput(f"probes is {probes}, but must be from 2 to the model's width, {width}.")
    model = populated(model, steps)
    x = model.embed(ids[None])
    vectors = first_tangents(width, probes, jax.random.key(seed), wide(x.dtype)).T
    shape = (len(outputs), positions)
    growth, error, exponents = np.full(shape, np.nan), np.full(shape, np.nan), np.full((*shape, probes), np.nan)
    with (progress or Silent()).stage("End-to-end exponents", len(outputs)) as stage:
        for row, output in enumerate(outputs):
            found = np.asarray(_pulled(model, x, jnp.asarray(output), vectors), np.float64)[: output + 1]
            require_finite(found, "derivatives")
            growth[row, : output + 1], error[row, : output + 1] = _growth(found, width)
            with np.errstate(divide="ignore"):
                exponents[row, : output + 1] = np.log(np.linalg.svd(found, compute_uv=False))
            stage.advance(1)
    return EndToEnd(outputs, growth, error, exponents, tuple(tokens))


@jax.jit
def _pulled(
    model: Transformer, x: Float[Array, "1 position width"], output: Int[Array, ""], probes: Float[Array, "probe width"]
) -> Float[Array, "position probe width"]:
    """Return `u^T dx_j(1) / dx_i(0)` of each probe u and input i; one backward pass at a time, in the memory of one."""
    end, pull = jax.vjp(lambda x: model.flow(x).state[0, output], x)
    return jax.lax.map(lambda u: pull(u.astype(end.dtype))[0][0], probes).swapaxes(0, 1)


def _growth(
    found: Float[np.ndarray, "input probe width"], width: int
) -> tuple[Float[np.ndarray, " input"], Float[np.ndarray, " input"]]:
    """Estimate `log(|J|_F / sqrt(D))` from `u^T J` for m of D orthonormal u, and its standard error.

    The m squared lengths are a sample without replacement, so the error of their mean has the factor `1 - m / D`.
    """
    squares = np.square(found).sum(-1)
    m = squares.shape[-1]
    # E |u^T J|^2 = |J|_F^2 / D for a unit vector u of random direction, so D cancels.
    mean = squares.mean(-1)
    # A single probe, which only a state of width 1 has, is all there are: its spread is zero.
    error = squares.std(-1, ddof=min(1, m - 1)) * np.sqrt((1 - m / width) / m)
    with np.errstate(divide="ignore"):
        # Delta method: an error e of the mean becomes e / (2 mean) in half its logarithm.
        return np.log(mean) / 2, np.divide(error, 2 * mean, out=np.zeros_like(mean), where=mean > 0)
