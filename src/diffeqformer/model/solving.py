"""Running a trained model by another scheme than the one it was trained with."""

import dataclasses

from diffeqformer.config import ReversibleConfig, ToleranceConfig
from diffeqformer.errors import BadInput
from diffeqformer.model.transformer import Transformer
from diffeqformer.ode.solvers import adaptive_solvers
from diffeqformer.validation import validate_model

ADAPTIVE_SCHEME = "diffrax:Tsit5"
"""What takes adaptive steps for a model whose own scheme cannot."""
FIRST_STEP = "euler-middle"
"""What takes the first step, of a length of its own, before adaptive ones."""


def with_scheme(model: Transformer, scheme: str | None = None, rtol: float | None = None) -> Transformer:
    """The same model, solved by another scheme or by adaptive steps.

    Adaptive steps are chosen for a whole batch, later tokens included: the model is then causal only up to the
    tolerance. Sampling, and calls that name a number of steps, keep to the fixed grid.

    **Arguments:** `scheme`, by name; the model's own if not given, or `diffrax:Tsit5` if steps are to be adaptive and
    the model's own scheme has no error estimate to choose them by. `rtol`, relative tolerance of adaptive steps; the
    absolute one is a tenth of it. If not given, steps are fixed.

    **Raises:** `BadInput` for a scheme that does not exist or cannot do this, for a first step of a length of its own
    that adaptive steps would take otherwise, and for a table of layers.
    """
    config = model.config
    if scheme is None:
        scheme = ADAPTIVE_SCHEME if rtol is not None and config.scheme not in adaptive_solvers() else config.scheme
    tolerance = ToleranceConfig()
    if rtol is not None and config.first_step is not None and not (config.adaptive or config.scheme == FIRST_STEP):
        raise BadInput(
            f"the first step of this model is one of scheme {config.scheme!r}, but before adaptive steps it is one of "
            f"{FIRST_STEP!r}."
        )
    if rtol is not None:
        tolerance = dataclasses.replace(config.tolerance, rtol=rtol, atol=rtol / 10)
    reversible = scheme == "reversible"
    other = dataclasses.replace(
        config,
        scheme=scheme,
        reversible=config.reversible if reversible else ReversibleConfig(),
        tolerance=tolerance,
        gradient=None if config.gradient == "reversible" and not reversible else config.gradient,
    )
    validate_model(other)
    if config.weights == "layer" and scheme != config.scheme:
        raise BadInput(
            f"this model is a table of {config.steps} layers for the scheme {config.scheme!r} and cannot run by "
            f"{scheme!r}; only models with time-dependent or shared weights run by any scheme."
        )
    return dataclasses.replace(model, config=other)
