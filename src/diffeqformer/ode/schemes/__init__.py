"""Schemes by name: methods for one step in depth."""

from collections.abc import Mapping
from typing import TypeVar

import diffrax

from diffeqformer.config import ReversibleConfig, SchemeConfig
from diffeqformer.errors import BadInput
from diffeqformer.ode.grid import Nodes
from diffeqformer.ode.schemes.multistep import LeapfrogMidpoint, ReversibleHeun
from diffeqformer.ode.schemes.reversible import Reversible
from diffeqformer.ode.schemes.runge_kutta import (
    EULER,
    EULER_MIDDLE,
    EULER_START,
    HEUN,
    MIDPOINT,
    RK4,
    RungeKutta,
    from_diffrax,
)
from diffeqformer.ode.schemes.scheme import Evaluations, Half, Length, OneStep, Scheme, SplitField
from diffeqformer.ode.schemes.splitting import LieTrotter, Macaron, Residual, Strang
from diffeqformer.plain import nearest

S = TypeVar("S", bound=Scheme)


def _diffrax_schemes() -> dict[str, Scheme]:
    solvers = {n: s for n, s in vars(diffrax).items() if isinstance(s, type) and issubclass(s, diffrax.AbstractERK)}
    named: dict[str, Scheme] = {f"diffrax:{n}": from_diffrax(n) for n, s in solvers.items() if hasattr(s, "tableau")}
    # Diffrax has no tableau for these two, nor for its Euler.
    named |= {"diffrax:LeapfrogMidpoint": LeapfrogMidpoint(), "diffrax:ReversibleHeun": ReversibleHeun()}
    return dict(sorted((named | {"diffrax:Euler": EULER_START}).items()))


SCHEMES: dict[str, Scheme] = {
    "euler": EULER,
    "euler-middle": EULER_MIDDLE,
    "lie-trotter": LieTrotter(),
    "lie-trotter-middle": LieTrotter(Nodes.same(0.5)),
    "macaron": Macaron(),
    "strang": Strang(),
    "midpoint": MIDPOINT,
    "heun": HEUN,
    "rk4": RK4,
    "residual": Residual(),
    "reversible": Reversible(EULER, 0.99),
    **_diffrax_schemes(),
}
"""All schemes by name; a config chooses the base and the coupling of `reversible`."""


def named_scheme(section: SchemeConfig) -> Scheme:
    """Return the scheme that a config section names.

    **Raises:** `BadInput` for an unknown name, listing the known ones.
    """
    return _named(section.kind, SCHEMES, "model.scheme")


def reversible_scheme(section: ReversibleConfig) -> Reversible:
    """Return the reversible scheme over the base that a config section names.

    **Raises:** `BadInput` for a base that does not exist, carries more than the state, or has no step back (`residual`,
    whose steps have no length).
    """
    bases = {n: s for n, s in SCHEMES.items() if isinstance(s, OneStep) and not isinstance(s, Residual)}
    return Reversible(_named(section.base, bases, "model.scheme.base"), section.coupling)


def _named(name: str, schemes: Mapping[str, S], setting: str) -> S:
    if name in schemes:
        return schemes[name]
    advice = nearest(full if (full := f"diffrax:{name}") in schemes else name, schemes, "")
    raise BadInput(f"{setting} is {name!r}, but must be one of {', '.join(schemes)}{f'; {advice}' if advice else '.'}")


__all__ = [
    "EULER", "EULER_MIDDLE", "EULER_START", "RK4", "SCHEMES", "Evaluations", "Half",
    "LeapfrogMidpoint", "Length", "LieTrotter", "Macaron", "OneStep", "Residual", "Reversible", "ReversibleHeun",
    "RungeKutta", "Scheme", "SplitField", "Strang", "named_scheme", "reversible_scheme",
]  # fmt: skip
