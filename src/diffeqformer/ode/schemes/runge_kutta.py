"""Explicit Runge-Kutta methods, each given by its tableau.

    k_i = F(t + c_i dt, x + dt sum_(j<i) a_ij k_j),     x' = x + dt sum_i b_i k_i

Source: Butcher 2008, Numerical Methods for Ordinary Differential Equations.
"""

from dataclasses import dataclass

import diffrax

from diffeqformer.ode.grid import Nodes
from diffeqformer.ode.schemes.scheme import Evaluations, Length, OneStep, SplitField, State


@dataclass(frozen=True)
class RungeKutta(OneStep):
    """The method of a tableau. Stages after the last nonzero `b_i`, which serve an error estimate, are left out."""

    a: tuple[tuple[float, ...], ...]
    """Rows `a_i`, of lengths 0, 1, 2, ..."""
    b: tuple[float, ...]
    c: tuple[float, ...]
    order: int
    """Order of convergence for smooth fields."""
    solver: str = ""
    """Diffrax's solver with the same tableau, for adaptive steps; empty if there is none."""

    @property
    def stages(self) -> int:
        """Number of stages that the next state depends on."""
        return max(i for i, weight in enumerate(self.b) if weight) + 1

    @property
    def nodes(self) -> Nodes:
        """The stages' times, each once."""
        return Nodes.same(*sorted(set(self.c[: self.stages])))

    @property
    def evaluations(self) -> Evaluations:
        """One evaluation of each half per stage."""
        return Evaluations(self.stages, self.stages)

    def advance(self, field: SplitField, x: State, dt: Length) -> State:
        """Return the state after a step of length `dt`."""
        slopes: list[State] = []
        # `zip` ends with the stages: the weights of omitted stages are zero.
        combine = lambda weights: sum((dt * w * k for w, k in zip(weights, slopes, strict=False) if w), start=x)
        nodes = self.nodes.attention
        for i in range(self.stages):
            slopes.append(field.at(nodes.index(self.c[i]), combine(self.a[i])))
        return combine(self.b)


def from_diffrax(name: str) -> RungeKutta:
    """Return the method of one of Diffrax's explicit solvers."""
    solver = getattr(diffrax, name)()
    numbers = lambda row: tuple(float(x) for x in row)
    tableau = solver.tableau
    # Diffrax's rows, and its times apart from c1, start at the second stage.
    a = ((), *(numbers(row) for row in tableau.a_lower))
    return RungeKutta(a, numbers(tableau.b_sol), (tableau.c1, *numbers(tableau.c)), solver.order(None), name)


EULER = RungeKutta(((),), (1.0,), (1.0,), 1)
"""Euler, `x + dt (A(x) + M(x))`, with weights at the end of the step: DiffEqFormer; at dt = 1, parallel blocks (PaLM,
GPT-J)."""
EULER_MIDDLE = RungeKutta(((),), (1.0,), (0.5,), 1)
"""Euler with weights at the middle of the step: for a field that depends on time alone, sums with different numbers of
steps differ only by O(dt^2)."""
EULER_START = RungeKutta(((),), (1.0,), (0.0,), 1)
"""Euler with weights at the start of the step, as in Diffrax."""
MIDPOINT, HEUN = from_diffrax("Midpoint"), from_diffrax("Heun")
RK4 = RungeKutta(((), (0.5,), (0.0, 0.5), (0.0, 0.0, 1.0)), (1 / 6, 1 / 3, 1 / 3, 1 / 6), (0.0, 0.5, 0.5, 1.0), 4)
"""The classic method of four stages (Kutta 1901; used by the ODE Transformer, Li et al. 2021), which Diffrax lacks."""
