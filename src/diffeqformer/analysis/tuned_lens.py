"""The tuned lens: per step, an affine map from the state there towards the last state, which the head then reads.

The logit lens reads a state as if no step were left. The tuned lens reads `x_l + x_l D_l + b_l`, where D_l and b_l
minimise the divergence of the last prediction from the one there on some texts: what the state already says in another
basis is then no longer counted as missing. Source: Belrose et al. 2023, arXiv:2303.08112.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jaxtyping import Bool, Float, Int

from diffeqformer.analysis.reading import lens, log_probabilities, shares, walk
from diffeqformer.config.bounds import whole
from diffeqformer.model.transformer import Transformer
from diffeqformer.nn.linear import wide
from diffeqformer.ode.grid import Steps
from diffeqformer.progress import Progress, Silent

RATE, BATCH = 1e-3, 256
"""Peak learning rate of Adam, which decays to zero as a cosine, and tokens per update."""


@dataclass(frozen=True)
class TunedLens:
    """A probe for each of the L states before the last; a probe of zeros is the logit lens."""

    maps: Float[np.ndarray, "state width width"]
    """Matrices D_l of the probes."""
    shifts: Float[np.ndarray, "state width"]
    """Shifts b_l of the probes."""

    def read(
        self,
        model: Transformer,
        texts: Int[np.ndarray, "text position"],
        counted: Bool[np.ndarray, "text target"] | None = None,
        *,
        steps: Steps | None = None,
    ) -> tuple[Float[np.ndarray, " state"], Float[np.ndarray, " state"]]:
        """Return the loss after every step, and the KL divergence of the last prediction from each: nats per token.

        **Arguments:** `texts`, tokens, each of which predicts the next; `counted`, which of the tokens after the first
        are targets, if not all are; `steps`, those at which the probes were trained.
        """
        loss, kl = np.zeros((2, len(self.maps) + 1))
        for text, share in zip(texts, shares(texts, counted), strict=True):
            taken = walk(model, text[:-1], steps=steps)
            probed = (_probe((d, b), x) for d, b, x in zip(self.maps, self.shifts, taken.states, strict=False))
            found = lens(taken, text[1:], [*probed, taken.states[-1]])
            loss -= found.log_next @ share
            kl += found.kl @ share
        return loss, kl


def tuned_lens(
    model: Transformer,
    texts: Int[np.ndarray, "text position"],
    *,
    updates: int = 300,
    steps: Steps | None = None,
    progress: Progress | None = None,
) -> TunedLens:
    """Train a probe per state on some texts, from zero, to lower the KL divergence of the last prediction from its own.

    **Arguments:** `texts`, tokens; `updates` of each probe; `steps` of depth, those of training if not given;
    `progress`.

    **Raises:** `BadInput` as `walk`.
    """
    whole("updates", updates, 1)
    model = model.with_norm_of(model.grid(steps))
    walks = (walk(model, text, steps=steps).states for text in texts)
    states = [np.concatenate(each, 1) for each in zip(*walks, strict=True)]
    order = np.random.default_rng(0).integers(states[0].shape[1], size=(updates, BATCH))
    found = []
    with (progress or Silent()).stage("Tuned lens", len(states) - 1) as stage:
        for state in states[:-1]:
            found.append(jax.tree.map(np.asarray, _fit(model, state[0], states[-1][0], order)))
            stage.advance(1)
    return TunedLens(*map(np.stack, zip(*found, strict=True)))


def _probe(probe: tuple, x: Array) -> Array:
    return x + x @ jnp.asarray(probe[0], x.dtype) + jnp.asarray(probe[1], x.dtype)[None, None]


@jax.jit
def _fit(model: Transformer, states: Array, ends: Array, order: Array) -> tuple[Array, Array]:
    """Train one probe on the tokens of `order` (update, token)."""
    width = states.shape[-1]
    rule = optax.adam(optax.cosine_decay_schedule(RATE, len(order)))

    def divergence(probe: tuple, x: Array, end: Array) -> Array:
        end = log_probabilities(model, end[None])
        return (jnp.exp(end) * (end - log_probabilities(model, _probe(probe, x[None])))).sum(-1).mean()

    def update(carry: tuple, tokens: Array) -> tuple[tuple, None]:
        probe, memory = carry
        slope = jax.grad(divergence)(probe, states[tokens], ends[tokens])
        with jax.numpy_dtype_promotion("standard"):  # Optax is not written for strict promotion
            change, memory = rule.update(slope, memory)
        return (optax.apply_updates(probe, change), memory), None

    probe = jnp.zeros((width, width), wide(states.dtype)), jnp.zeros((width,), wide(states.dtype))
    (probe, _), _ = jax.lax.scan(update, (probe, rule.init(probe)), order)
    return probe
