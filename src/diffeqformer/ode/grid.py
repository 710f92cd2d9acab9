"""The convention for steps and times, in one place.

Depth `t` runs over [0, 1] in `L` steps between the edges `0 = e_0 < e_1 < ... < e_L = 1`; by default the steps are
equal, `e_l = l / L`. A scheme needs the weights at its nodes, given as fractions of a step: node `c` of step `l` is at
the time `e_(l-1) + c (e_l - e_(l-1))`. Euler's only node is the *end* of the step, c = 1. Training, running,
populating, analysing and drawing all take their times from a `Grid`.

Known times are float64 constants, since in float32 `sin(1000 t)` is already off by 1e-4.
"""

import operator
from dataclasses import dataclass
from itertools import pairwise
from types import ModuleType
from typing import Any, NamedTuple, Union

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jaxtyping import Float, Key

from diffeqformer.config import MOST_STEPS, LevelsConfig, ModelConfig, Spacing
from diffeqformer.errors import BadInput
from diffeqformer.nn.linear import wide
from diffeqformer.plain import shown

Steps = Union[int, np.integer, "Grid", Float[np.ndarray | Array, "edge"], tuple[float, ...]]
"""What specifies a grid: a number of equal steps, the edges between unequal steps, or a `Grid`."""

ROUNDING = 1e-6
"""Tolerance, as a fraction of a step: times nearer to an edge than this count as on it."""
ODD = {"dyadic": (1,), "thirds": (1, 3)}
"""For spacings of unequal steps, the odd factors of those numbers of steps that are equal: 1, 2, 4, 8, ..., or 1, 2, 3,
4, 6, 8, 12, ..."""


class Nodes(NamedTuple):
    """Where in a step a scheme needs weights, as fractions of the step, without repetition."""

    attention: tuple[float, ...]
    feed_forward: tuple[float, ...]

    @staticmethod
    def same(*nodes: float) -> "Nodes":
        """Use the same nodes for both halves of the field."""
        return Nodes(nodes, nodes)


END_OF_STEP = Nodes.same(1.0)
Times = Array | np.ndarray
"""Times in [0, 1], shape (time,): float64, unless they are traced."""


def widest(times: Times) -> tuple[ModuleType, Times]:
    """Return NumPy and the times in float64 or, for traced times, `jax.numpy` and the times in float32 or better.

    **Raises:** `BadInput` if times are not on one axis: weights at them would lack the leading axis, or have two.
    """
    if np.ndim(times) != 1:
        raise BadInput(f"times is {shown(times)}, but must have one axis, such as [0.0, 0.5].")
    if isinstance(times, Tracer):
        return jnp, times.astype(wide(times.dtype))
    return np, np.asarray(times, np.float64)


def rounding(times: Times, lengths: Any) -> Any:
    """Return how near to an edge times count as on it, so that `l/L` finds its layer however it is rounded.

    This is `ROUNDING` times the length of the step, but at least four units in the last place of 1.
    """
    xp = np if isinstance(times, np.ndarray) else jnp
    return xp.maximum(ROUNDING * lengths, 4 * float(jnp.finfo(times.dtype).eps))


def later_layer(times: Times, layers: int) -> Times:
    """Return the layer at `times`, of several with equal shares of depth, counted from 0; the later one at an edge."""
    xp, t = widest(times)
    # Times are moved on, so that `floor` finds the later layer at an edge, however the edge is rounded.
    return xp.clip(xp.floor((t + rounding(t, 1 / layers)) * layers).astype(int), 0, layers - 1)


def mixed_edges(steps: int, odd: tuple[int, ...]) -> tuple[float, ...]:
    """Return the times between N steps, which are those of the two usual numbers of equal steps beside N.

    Let a <= N < b be neighbours among the numbers f 2^j, with f in `odd`. Their difference g divides both: of g equal
    parts of depth, the last N - a have b/g steps, and the others a/g, one less. Every step is thus one of a or of b
    equal steps: same place, same length. With f = 1 alone, g is a, and the last steps are halved.

    **Arguments:** `steps`, N, positive; `odd`, (1,) or (1, 3).

    **Returns:** N + 1 times from 0 to 1, each the float that is nearest to it.
    """
    usual = sorted(factor << halvings for factor in odd for halvings in range(steps.bit_length() + 1))
    a = max(number for number in usual if number <= steps)
    b = min(number for number in usual if number > a)
    parts = b - a
    counts = [a // parts + (part >= b - steps) for part in range(parts)]
    inner = ((part * count + step) / (parts * count) for part, count in enumerate(counts) for step in range(count))
    return (*inner, 1.0)


def level_below(steps: int, levels: tuple[int, ...]) -> int:
    """Return the largest of some numbers of steps that is at most `steps`, or the first of them if none is."""
    return max((level for level in levels if level <= steps), default=levels[0])


def divided_edges(steps: int, levels: tuple[int, ...]) -> tuple[float, ...]:
    """Return the times between N steps, of which those in the middle are parts of larger ones.

    Let n be the largest number ≤ N among `levels`. Of n equal steps, the first and the last max(1, n // 4) stay whole:
    they move a trained model's state most, and dividing them costs most. The others are divided into equal parts, so
    that there are N steps: each into as many parts as the next one, or one more in the middle. One or two steps, which
    have no others, are divided themselves.

    **Arguments:** `steps`, N, positive; `levels`, in increasing order.

    **Returns:** N + 1 times from 0 to 1; those of equal steps if N is below all levels.
    """
    n = min(level_below(steps, levels), steps)
    whole = max(1, n // 4) if n > 2 else 0
    between = n - 2 * whole
    parts, surplus = divmod(steps - 2 * whole, between)
    first = whole + (between - surplus) // 2
    middle = [parts + (first <= step < first + surplus) for step in range(whole, n - whole)]
    counts = [1] * whole + middle + [1] * whole
    starts = ((step + part / count) / n for step, count in enumerate(counts) for part in range(count))
    return (*starts, 1.0)


def _array(asked: object) -> Times:
    """Convert a requested grid to an array, which has one axis if it is edges.

    **Raises:** `BadInput` if it is neither a number nor edges.
    """
    if isinstance(asked, tuple | list) and any(isinstance(time, Tracer) for time in asked):
        asked = jnp.asarray(asked)  # such as (0, t, 1), to be differentiated by t
    try:
        found = asked if isinstance(asked, Tracer) else np.asarray(asked)
    except ValueError:  # rows of different lengths
        raise _no_grid(asked) from None
    if found.ndim > 1 or (found.ndim == 1 and not jnp.issubdtype(found.dtype, jnp.number)):
        raise _no_grid(asked)
    return found


def _no_grid(asked: object) -> BadInput:
    return BadInput(
        f"steps is {shown(asked)}, but must be a whole number of at least 1, or the times between steps, on one axis, "
        "such as (0, 0.3, 1)."
    )


def whole_number(steps: object) -> int | None:
    """Return requested steps as a Python int if they are a whole number, NumPy's or an array without axes included;
    otherwise, such as for edges or a grid, return `None`."""
    try:
        return None if isinstance(steps, bool) else operator.index(steps)  # pyright: ignore[reportArgumentType]
    except TypeError:
        return None


def _number(steps: object) -> int:
    """Return a number of steps, such as NumPy's, as a Python int.

    **Raises:** `BadInput` if it is not a valid number of steps.
    """
    number = whole_number(steps)
    if number is None or number < 1:
        raise BadInput(f"steps is {shown(steps)}, but must be a whole number of at least 1.")
    if number > MOST_STEPS:
        raise BadInput(f"steps is {number}, but must be at most {MOST_STEPS}.")
    return number


def _no_rise(edges: Any) -> BadInput:
    listed = edges.tolist() if isinstance(edges, np.ndarray) else list(edges)
    return BadInput(f"the times between steps are {listed[:20]}, but must rise from 0 to 1.")


@dataclass(frozen=True)
class Grid:
    """L steps over depth or a part of it; some have length 0 where one program serves several grids.

    **Raises:** `BadInput` for a number of steps out of range, or edges that are not L+1 in order within [0, 1].
    """

    steps: int
    """L"""
    given: tuple[float, ...] | np.ndarray | Array | None = None
    """The L+1 edges, if steps are unequal; traced within a compiled program."""

    def __post_init__(self) -> None:
        steps, given = _number(self.steps), self.given
        object.__setattr__(self, "steps", steps)
        if given is None:
            return
        if (array := _array(given)).ndim != 1:
            raise BadInput(f"edges are {shown(given)}, but must be times on one axis, such as (0, 0.3, 1).")
        if len(given) != steps + 1:
            raise BadInput(f"a grid has {steps} steps and {len(given)} edges, but must have an edge more than steps.")
        if isinstance(array, Tracer):
            object.__setattr__(self, "given", array)
            return
        times = tuple(np.asarray(given, np.float64).tolist())
        # The precision is known only for an array of floats; anything else counts as float64.
        floats = isinstance(given, np.ndarray | Array) and jnp.issubdtype(given.dtype, jnp.floating)
        near = rounding(np.asarray(given, None if floats else np.float64), 1 / steps)
        near = np.minimum(near, 0.01 / steps)  # the rounding of 16-bit floats may exceed whole steps
        if abs(times[-1] - 1) <= near:  # a sum of lengths, off by rounding
            times = (*times[:-1], 1.0)
        if not all(before <= after for before, after in pairwise((0.0, *times, 1.0))):
            raise _no_rise(times)
        # Edges of equal steps are dropped, so that the grid equals, and hashes like, the one made from their number.
        equal = np.allclose(times, np.arange(steps + 1) / steps, 0, near)
        object.__setattr__(self, "given", None if equal else times)  # hashable: a constant of a compiled program

    @staticmethod
    def of(
        asked: Steps, first_step: float | None = None, spacing: Spacing = "equal", levels: tuple[int, ...] = ()
    ) -> "Grid":
        """Build the grid that a number of steps, an array of edges or a grid specifies.

        **Arguments:** `asked`, as `Steps`. Used only if `asked` is a number: `first_step`, the length of the first of
        several steps as a fraction of depth, with the rest divided equally among the others; `spacing`, whether steps
        have equal lengths, or are those of two usual numbers of steps, powers of two or these and their triples;
        `levels`, the numbers of equal steps of which other numbers divide some (`divided_edges`).

        **Raises:** `BadInput` if `asked` is not a positive whole number, or is edges that do not rise from 0 to 1.
        """
        if isinstance(asked, Grid):
            return asked
        edges = _array(asked)
        if edges.ndim == 1:
            if len(edges) < 2:
                raise _no_rise(edges)
            grid = Grid(len(edges) - 1, edges)
            # Equal edges (`None`) are valid already; traced ones are not known yet.
            times = grid.given if isinstance(grid.given, tuple) else (0.0, 1.0)
            # Stricter than `Grid`, which may cover a part of depth and have steps of length 0.
            if (times[0], times[-1]) != (0.0, 1.0) or min(np.diff(times)) <= 0:
                raise _no_rise(edges)
            return grid
        if isinstance(asked, Tracer):
            raise BadInput(
                "steps is traced, but decides which program is compiled: close over it, or give an int, which "
                "`eqx.filter_jit` takes as a constant."
            )
        steps = _number(asked)
        if spacing in ODD:
            return Grid(steps, mixed_edges(steps, ODD[spacing]))
        if levels:
            return Grid(steps, divided_edges(steps, levels))
        if first_step is None or steps == 1:
            return Grid(steps)
        return Grid(steps, (0.0, *np.linspace(first_step, 1.0, steps).tolist()))

    @staticmethod
    def of_config(config: ModelConfig, steps: Steps | None = None) -> "Grid":
        """The grid of `steps` in a model of `config`, by default the one that it is trained on.

        **Raises:** as `of`.
        """
        # The trained number stands for the trained grid, whose edges may be unequal.
        if steps is None or whole_number(steps) == config.steps:
            steps = config.edges or config.steps
        levels = config.weights.of(config.steps) if isinstance(config.weights, LevelsConfig) else ()
        return Grid.of(steps, config.first_step, config.spacing, levels)

    @property
    def equal(self) -> bool:
        """Whether all steps are of length 1 / L."""
        return self.given is None

    @property
    def edges(self) -> Times:
        """The L+1 times between steps: float64, unless they are traced."""
        if self.given is None:
            return np.arange(self.steps + 1) / self.steps
        return self.given if isinstance(self.given, Array) else np.asarray(self.given)

    @property
    def lengths(self) -> Any:
        """The lengths of the L steps, as fractions of depth."""
        return np.full(self.steps, 1 / self.steps) if self.given is None else self.edges[1:] - self.edges[:-1]

    def times(self, nodes: tuple[float, ...] = (1.0,)) -> Times:
        """Return the times of all nodes of all steps, step by step.

        **Arguments:** `nodes`, fractions of a step.

        **Returns:** array of L * len(nodes) times in [0, 1], float64 unless edges are traced.
        """
        if self.given is None:
            # A single division, done last, makes node 1 of a step and node 0 of the next the same float64 number.
            return ((np.arange(self.steps)[:, None] + np.asarray(nodes)[None, :]) / self.steps).reshape(-1)
        xp, edges = widest(self.edges)
        nodes_of = np.asarray(nodes, edges.dtype)[None, :]
        # Node 1 is the edge itself: e + (e' - e) may differ from e' in the last bit, and would be another time.
        ends = xp.where(nodes_of == 1, edges[1:, None], edges[:-1, None] + self.lengths[:, None] * nodes_of)
        return ends.reshape(-1)

    def jittered(self, jitter: float, key: Key[Array, ""], *, first_stays: bool = False) -> "Grid":
        """Move edges to `e_l + jitter u_l g_l`, `u_l` uniform in [-1/2, 1/2), g_l the shorter of the adjacent steps.

        0 and 1 stay, and with `first_stays` so does the end of the first step. With `jitter` 0 nothing moves; with 1,
        steps have lengths from 0 to twice the usual.
        """
        # float32 even with JAX_ENABLE_X64, so that the same steps are drawn.
        edges, length = jnp.asarray(self.edges, jnp.float32), jnp.asarray(self.lengths, jnp.float32)
        drawn = jax.random.uniform(key, (self.steps - 1,), jnp.float32)
        moved = jitter * (drawn - 0.5) * jnp.minimum(length[:-1], length[1:])
        return Grid(self.steps, edges.at[1:-1].add(moved.at[:1].set(0.0) if first_stays else moved))

    def layer_at(self, time: Times) -> Times:
        """Return the step in force at `time`, counted from 0; a step includes its end but not its start."""
        xp, time = widest(time)
        if self.given is None:
            # Times are moved back: an edge that was rounded up stays in the step that ends there. The clip is for 0.
            rounded = time - rounding(time, 1 / self.steps)
            return xp.clip(xp.ceil(rounded * self.steps).astype(int) - 1, 0, self.steps - 1)
        # Starts are moved on for the same reason: an edge, rounded either way, is still in the step that ends there.
        starts = xp.asarray(self.edges[:-1] + rounding(time, self.lengths), time.dtype)
        return xp.clip(xp.searchsorted(starts, time, side="right").astype(int) - 1, 0, self.steps - 1)

    def row_at(self, time: Times, nodes: tuple[float, ...]) -> Times:
        """Return the row in force at `time` in a table with `len(nodes)` rows per layer: that of the nearest node, or
        of the first of two that are equally near."""
        xp, time = widest(time)
        layer = self.layer_at(time)
        start, length = (xp.asarray(part, time.dtype)[layer] for part in (self.edges[:-1], self.lengths))
        distance = abs(((time - start) / length)[:, None] - xp.asarray(nodes, time.dtype)[None, :])
        # Rounded, so that the last bit does not decide between two nodes at the same distance.
        return layer * len(nodes) + xp.round(distance, 6).argmin(-1)
