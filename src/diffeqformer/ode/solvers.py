"""Our schemes as Diffrax solvers."""

from collections.abc import Callable
from typing import ClassVar

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import PyTree

from diffeqformer.errors import BadInput
from diffeqformer.ode.schemes import Length, OneStep, Scheme, SplitField
from diffeqformer.plain import shown


class SchemeSolver(diffrax.AbstractSolver):
    """Any of our schemes as a Diffrax solver, for fields that are sums of two halves and states that are PyTrees.

        terms = diffrax.MultiTerm(diffrax.ODETerm(attention), diffrax.ODETerm(feed_forward))
        diffrax.diffeqsolve(terms, SchemeSolver(SCHEMES["strang"]), t0=0.0, t1=1.0, dt0=0.1, y0=y0)

    The halves need not be those of a transformer: a splitting scheme steps the first as `attention` and the second as
    `feed_forward`.

    **Raises:** `BadInput` for anything but a scheme, such as the name of one.
    """

    scheme: Scheme = eqx.field(static=True)

    term_structure: ClassVar = diffrax.MultiTerm[tuple[diffrax.AbstractTerm, diffrax.AbstractTerm]]
    interpolation_cls: ClassVar[Callable] = diffrax.LocalLinearInterpolation

    def __check_init__(self) -> None:
        if not isinstance(self.scheme, Scheme):
            raise BadInput(f"scheme is {shown(self.scheme)}, but must be a scheme, such as SCHEMES['strang'].")

    def order(self, terms: PyTree) -> int:
        """Return the scheme's order of convergence."""
        return self.scheme.order

    def init(self, terms: PyTree, t0: Length, t1: Length, y0: PyTree, args: PyTree) -> PyTree:
        """Return the scheme's carry into its first step."""
        return self.scheme.start(ravel_pytree(y0)[0])

    def step(
        self, terms: PyTree, t0: Length, t1: Length, y0: PyTree, args: PyTree, solver_state: PyTree, made_jump: PyTree
    ) -> tuple:
        """Take one step of the scheme from `t0` to `t1`."""
        flat, unravel = ravel_pytree(y0)

        def halves(term: diffrax.AbstractTerm, nodes: tuple[float, ...]) -> list[Callable]:
            at = lambda c: lambda x: ravel_pytree(term.vf(t0 + c * (t1 - t0), unravel(x), args))[0]
            return [at(c) for c in nodes]

        attention, feed_forward = terms.terms
        nodes = self.scheme.nodes
        field = SplitField(halves(attention, nodes.attention), halves(feed_forward, nodes.feed_forward))
        # Diffrax's y0 is all that a one-step scheme carries; the carry of any other holds the same state.
        carry = flat if isinstance(self.scheme, OneStep) else solver_state
        carry = self.scheme.step(field, carry, t1 - t0)
        y1 = unravel(self.scheme.state(carry))
        return y1, None, {"y0": y0, "y1": y1}, carry, diffrax.RESULTS.successful

    def func(self, terms: PyTree, t0: Length, y0: PyTree, args: PyTree) -> PyTree:
        """Evaluate the whole field."""
        attention, feed_forward = (term.vf(t0, y0, args) for term in terms.terms)
        return jax.tree.map(jnp.add, attention, feed_forward)
