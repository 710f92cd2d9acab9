"""Cases of a parametrised test that `make test` leaves to `make test-slow`."""

from collections.abc import Iterable
from typing import Any

import pytest


def slow(*cases: Any) -> list[Any]:
    """Mark cases as slow: tuples of several arguments, or single ones."""
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow) for case in cases]


def slow_but(quick: Iterable[Any], cases: Iterable[Any]) -> list[Any]:
    """Mark all cases but the `quick` ones, and keep their order."""
    quick = set(quick)
    return [case if case in quick else slow(case)[0] for case in cases]
