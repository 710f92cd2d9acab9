"""The one convention of steps and times.

Depth `t` runs over [0, 1] in `L` equal steps; step `l = 1..L` goes from `(l-1)/L` to `l/L`. A scheme needs the weights
at its nodes, given as fractions of a step: node `c` of step `l` is the time `(l - 1 + c) / L`. Euler's only node is
the *end* of the step, c = 1. Training, running, populating and analysing all take their times from here.

Where a number of steps is asked for, the times between unequal steps may stand instead: L+1 of them, from 0 to 1.

Times that are known are float64 constants: in float32, `sin(1000 t)` is already off by 1e-4.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jaxtyping import Float, Key

Steps = int | Float[np.ndarray | Array, "edge"]
"""A number of equal steps, or the L+1 times from 0 to 1 between which L unequal ones go."""


class Nodes(NamedTuple):
    """Where in a step a scheme needs weights, as fractions of the step, each once."""

    attention: tuple[float, ...]
    feed_forward: tuple[float, ...]

    @staticmethod
    def same(*nodes: float) -> "Nodes":
        """Both halves of the field at the same nodes."""
        return Nodes(nodes, nodes)


END_OF_STEP = Nodes.same(1.0)


def with_first(steps: int, first_step: float | None) -> Steps:
    """`steps` steps of which the first has a given length, as a fraction of depth, and the others share the rest."""
    if first_step is None or steps == 1:
        return steps
    return np.concatenate([[0.0], np.linspace(first_step, 1.0, steps)])


def number(steps: Steps) -> int:
    """L"""
    return steps if isinstance(steps, int) else len(steps) - 1


def edges(steps: Steps) -> Any:
    """The L+1 times between steps."""
    return np.arange(steps + 1) / steps if isinstance(steps, int) else steps


def lengths(steps: Steps) -> Any:
    """The L lengths of steps, as fractions of depth."""
    return np.full(steps, 1 / steps) if isinstance(steps, int) else steps[1:] - steps[:-1]


def times(steps: Steps, nodes: tuple[float, ...] = (1.0,)) -> Any:
    """Times of all nodes of all steps, in the order in which they are met.

    **Arguments:** `steps`; `nodes`, fractions of a step.

    **Returns:** array of L * len(nodes) times in [0, 1], float64 unless steps are traced.
    """
    if isinstance(steps, int):
        return ((np.arange(steps)[:, None] + np.asarray(nodes)[None, :]) / steps).reshape(-1)
    return (steps[:-1, None] + lengths(steps)[:, None] * np.asarray(nodes, steps.dtype)[None, :]).reshape(-1)


def jittered(steps: Steps, jitter: float, key: Key[Array, ""], *, first_stays: bool = False) -> Float[Array, "edge"]:
    """Times between steps, moved: `e_l + jitter u_l g_l`, `u_l` uniform in [-1/2, 1/2), g_l the shorter of its steps.

    0 and 1 stay, and the end of the first step if asked to. With `jitter` 0 nothing moves; with 1, steps have lengths
    from none to twice the usual.
    """
    between, length = jnp.asarray(edges(steps), jnp.float32), jnp.asarray(lengths(steps), jnp.float32)
    moved = jitter * (jax.random.uniform(key, (number(steps) - 1,)) - 0.5) * jnp.minimum(length[:-1], length[1:])
    return between.at[1:-1].add(moved.at[:1].set(0.0) if first_stays else moved)


def layer_of(time: Any, steps: Steps) -> Any:
    """The row in force at `time` of a table of a layer a step: row `l - 1` from behind step l's start to its end.

    Times within 1e-6 of a step of a boundary count as on it, so that `l/L` finds its layer whatever its rounding.
    """
    xp, time = (jnp, time) if isinstance(time, Tracer) else (np, np.asarray(time, np.float64))
    if isinstance(steps, int):
        return xp.clip(xp.ceil(time * steps - 1e-6).astype(int) - 1, 0, steps - 1)
    starts = xp.asarray(steps[:-1] + 1e-6 * lengths(steps), time.dtype)
    return xp.clip(xp.searchsorted(starts, time, side="right").astype(int) - 1, 0, number(steps) - 1)


def row_of(time: Any, steps: Steps, nodes: tuple[float, ...]) -> Any:
    """The row in force at `time` of a table with `len(nodes)` rows a layer: of that layer's nodes, the nearest."""
    xp, time = (jnp, time) if isinstance(time, Tracer) else (np, np.asarray(time, np.float64))
    layer = layer_of(time, steps)
    start, length = (xp.asarray(part, time.dtype)[layer] for part in (edges(steps), lengths(steps)))
    distance = abs(((time - start) / length)[:, None] - xp.asarray(nodes, time.dtype)[None, :])
    return layer * len(nodes) + distance.argmin(-1)
