"""Adjoints: what the forward pass over depth keeps for the backward pass, and what is recomputed.

| | keeps | cost |
|---|---|---|
| `Plain` | all activations | memory |
| `Checkpointed` | the state of each step | each step is computed twice |
| `Recursive` | some states at each level of a recursion | one more forward pass per level |
| `Reconstructing` | only the last state | each step is computed twice; rounding on the way back |

These are the library's own, not Diffrax's `RecursiveCheckpointAdjoint`. That one needs an ODE loop that asks for
weights by time, which here would generate them step by step (3.7 times a table's cost). Its checkpoints also copy the
stacked gradient of the table at every level, while these add to it in place. Adaptive solves do use Diffrax's
(`adaptive.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, PyTree

from diffeqformer.config import GradientConfig, RecursiveConfig
from diffeqformer.errors import BadInput
from diffeqformer.ode.field import BlockWeights
from diffeqformer.ode.schemes import Length, Reversible, Scheme, SplitField


class Flow(NamedTuple):
    """All steps of a fixed grid, as an adjoint needs them."""

    field_at: Callable[[BlockWeights, PyTree], SplitField]
    """Maps a step's weights and keys to the field's halves."""
    scheme: Scheme
    dt: Callable[[Array | None], Length]
    """Maps a step's own entry of the lengths (`None` if all are equal) to its length."""
    table: BlockWeights
    given: PyTree
    """Keys and lengths of all steps, which have no gradient."""
    steps: int

    def step(self, row: BlockWeights, given: PyTree, carry: PyTree) -> PyTree:
        """Take a step with these weights, keys and length; return the new carry."""
        keys, own = given
        return self.scheme.step(self.field_at(row, keys), carry, self.dt(own))

    def step_of(self, index: int | Array, carry: PyTree) -> PyTree:
        """Take step `index`; return the new carry."""
        return self.step(row_of_step(self.table, index), row_of_step(self.given, index), carry)

    def through(self, carry: PyTree, first: int | Array, count: int) -> PyTree:
        """Take `count` steps, from step `first` on; return the new carry."""
        # The scan is over indices into the whole table: a scan over part of its rows would first copy that part.
        one = lambda carry, now: (self.step_of(now, carry), None)
        return jax.lax.scan(one, carry, first + jnp.arange(count, dtype=jnp.int32))[0]


@runtime_checkable
class Adjoint(Protocol):
    """How the loop over depth is differentiated."""

    def wrap(self, body: Callable) -> Callable:
        """Wrap the body of the plain loop, which forward passes with an observer also use."""
        ...


@runtime_checkable
class OwnBackwardPass(Adjoint, Protocol):
    """An adjoint with its own backward pass, for forward passes without an observer."""

    def integrate(self, flow: Flow, carry: PyTree) -> PyTree:
        """Take all steps, from the carry into the first step; return the carry out of the last."""
        ...


@dataclass(frozen=True)
class Plain:
    """Keeps all activations."""

    def wrap(self, body: Callable) -> Callable:
        """Return the body unchanged."""
        return body


@dataclass(frozen=True)
class Checkpointed:
    """Keeps the state of each step and recomputes the step in the backward pass."""

    def wrap(self, body: Callable) -> Callable:
        """Recompute the body in the backward pass. A scan's iterations cannot be merged, so barriers against common
        subexpression elimination, which would cost time, are not needed."""
        return jax.checkpoint(body, prevent_cse=False)


@dataclass(frozen=True)
class Recursive(Checkpointed):
    """Keeps `checkpoints` states per level: `checkpoints log_checkpoints(steps)` in all.

    The steps are divided into that many equal parts, and only the first state of each part is kept. When the backward
    pass reaches a part, it divides that part in the same way. Each level thus costs one more forward pass.
    Source: Griewank 1992, "Achieving logarithmic growth of temporal and spatial complexity in reverse AD".
    """

    checkpoints: int = 4

    def integrate(self, flow: Flow, carry: PyTree) -> PyTree:
        """Take all steps; return the carry out of the last."""
        step, steps = flow.step, flow.steps

        def divided(first: int | Array, count: int) -> tuple[Array, int, int | Array, int]:
            """Return the starts of equal parts and their number of steps, then both for the rest."""
            # Rounded up: at most `checkpoints` parts, and a rest that is shorter than a part.
            part = -(-count // self.checkpoints)
            whole = count // part
            return first + part * jnp.arange(whole, dtype=jnp.int32), part, first + part * whole, count - part * whole

        def advance(weights: tuple, carry: PyTree, first: int | Array, count: int) -> PyTree:
            table, given = weights
            return flow._replace(table=table, given=given).through(carry, first, count)

        def forward(weights: tuple, carry: PyTree, first: int | Array, count: int) -> tuple[PyTree, tuple]:
            """Take `count` steps; return the carry out of them, and the carries into each part and into the rest."""
            starts, part, rest, left = divided(first, count)
            end, into = jax.lax.scan(lambda carry, at: (advance(weights, carry, at, part), carry), carry, starts)
            return advance(weights, end, rest, left), (into, end)

        def pull_back(weights: tuple, kept: tuple, cotangents: tuple, first: int | Array, count: int) -> tuple:
            """Pull the cotangents of the carry and of the table back through `count` steps."""
            starts, part, rest, left = divided(first, count)
            into, end = kept

            def through(cotangents: tuple, carry: PyTree, first: int | Array, count: int) -> tuple:
                # `count` is static: each level of the recursion becomes a loop inside the loop of the level above.
                if count > 1:
                    return pull_back(weights, forward(weights, carry, first, count)[1], cotangents, first, count)
                cotangent, total = cotangents
                row, own = (row_of_step(tree, first) for tree in weights)
                change, cotangent = jax.vjp(lambda row, carry: step(row, own, carry), row, carry)[1](cotangent)
                return cotangent, _add_to_row(total, first, change)

            # Backwards, the rest comes first, since it was last.
            cotangents = through(cotangents, end, rest, left) if left else cotangents
            back = lambda cotangents, now: (through(cotangents, now[0], now[1], part), None)
            return jax.lax.scan(back, cotangents, (into, starts), reverse=True)[0]

        @jax.custom_vjp
        def run(weights: tuple, carry: PyTree) -> PyTree:
            return advance(weights, carry, 0, steps)

        def run_backward(residuals: tuple, cotangent: PyTree) -> tuple:
            weights, kept = residuals
            zeros = jax.tree.map(jnp.zeros_like, weights[0])
            cotangent, total = pull_back(weights, kept, (cotangent, zeros), 0, steps)
            # `None`: keys and lengths have no cotangent.
            return (total, None), cotangent

        def run_forward(weights: tuple, carry: PyTree) -> tuple[PyTree, tuple]:
            carry, kept = forward(weights, carry, 0, steps)
            return carry, (weights, kept)

        run.defvjp(run_forward, run_backward)
        return run((flow.table, flow.given), carry)


@dataclass(frozen=True)
class Reconstructing(Checkpointed):
    """Keeps only the last state and runs a `Reversible` scheme back from it.

    The state at depth 0 is known: the error of its reconstruction is the derivative with respect to `probe`.
    """

    probe: Float[Array, ""] | None = None
    """A zero on which nothing depends. Its derivative is the relative error of the reconstructed state at depth 0: a
    derivative is the only way to return a value from a backward pass."""

    def integrate(self, flow: Flow, carry: PyTree) -> PyTree:
        """Take all steps; return the carry out of the last."""
        scheme = flow.scheme
        assert isinstance(scheme, Reversible)

        @jax.custom_vjp
        def run(table: BlockWeights, given: PyTree, carry: PyTree, probe: Array) -> PyTree:
            return flow._replace(table=table, given=given).through(carry, 0, flow.steps)

        def forward(table: BlockWeights, given: PyTree, start: PyTree, probe: Array) -> tuple[PyTree, tuple]:
            end = run(table, given, start, probe)
            return end, (table, given, start, end, probe)

        def backward(kept: tuple, cotangent: PyTree) -> tuple:
            table, given, start, end, probe = kept

            def body(after: tuple, now: Array) -> tuple[tuple, None]:
                carry, cotangent, total = after
                keys, own = row_of_step(given, now)
                field_of = lambda row: flow.field_at(row, keys)
                carry, cotangent, change = scheme.pull_back(
                    field_of, row_of_step(table, now), carry, cotangent, flow.dt(own)
                )
                return (carry, cotangent, _add_to_row(total, now, change)), None

            after = (end, cotangent, jax.tree.map(jnp.zeros_like, table))
            steps = jnp.arange(flow.steps, dtype=jnp.int32)
            (found, cotangent, total), _ = jax.lax.scan(body, after, steps, reverse=True)
            return total, None, cotangent, _relative_error(found, start).astype(probe.dtype)

        run.defvjp(forward, backward)
        return run(flow.table, flow.given, carry, jnp.zeros(()) if self.probe is None else self.probe)


def adjoint_of(section: GradientConfig | RecursiveConfig) -> Adjoint:
    """Return the adjoint that a config section describes."""
    if isinstance(section, RecursiveConfig):
        return Recursive(section.checkpoints)
    return {"plain": Plain(), "checkpointed": Checkpointed(), "reversible": Reconstructing()}[section.kind]


@jax.custom_jvp
def without_derivative(lengths: Float[Array, " step"]) -> Float[Array, " step"]:
    """Return the lengths of steps for an own backward pass, in which they are constants.

    **Raises:** `BadInput` if they are differentiated: the derivative through them would be missing from the gradient.
    """
    return lengths


@without_derivative.defjvp
def _refuse_derivative(primals: tuple, tangents: tuple) -> tuple:
    raise BadInput(
        "the times between steps are differentiated, but model.gradient treats them as constants; 'plain' and "
        "'checkpointed' have the derivative with respect to them."
    )


def _relative_error(found: PyTree, true: PyTree) -> Array:
    """Root mean square of the error, divided by that of the true values."""
    size = lambda tree: sum(jnp.square(leaf).sum() for leaf in jax.tree.leaves(tree))
    return jnp.sqrt(size(jax.tree.map(jnp.subtract, found, true)) / size(true))


def row_of_step(tree: PyTree, step: int | Array) -> PyTree:
    """Take a step's row of each leaf; a leaf's single row serves all steps."""
    at = lambda leaf: jax.lax.dynamic_index_in_dim(leaf, jnp.minimum(step, len(leaf) - 1), keepdims=False)
    return jax.tree.map(at, tree)


def _add_to_row(tree: PyTree, step: int | Array, change: PyTree) -> PyTree:
    """Add `change` to a step's row of each leaf.

    A loop that carries the leaves updates them in place, even inside other loops; outputs that nested loops stack have
    to be copied.
    """

    def add(leaf: Array, row: Array, change: Array) -> Array:
        return jax.lax.dynamic_update_index_in_dim(leaf, row + change, jnp.minimum(step, len(leaf) - 1), 0)

    return jax.tree.map(add, tree, row_of_step(tree, step), change)
