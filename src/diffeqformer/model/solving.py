"""Running a trained model with a scheme other than the one it was trained with."""

import dataclasses
from typing import SupportsFloat

from diffeqformer.config import (
    GradientConfig,
    LayerConfig,
    ModelConfig,
    ToleranceConfig,
    choices_of,
    validate_model,
)
from diffeqformer.config.sections import SchemeSection
from diffeqformer.config.strict import section_of
from diffeqformer.errors import BadInput
from diffeqformer.model.build import own_section, require_part
from diffeqformer.model.transformer import Transformer
from diffeqformer.ode.adaptive import USUAL, can_adapt
from diffeqformer.ode.schemes import EULER_MIDDLE, Reversible, Scheme
from diffeqformer.plain import shown


def with_scheme(
    model: Transformer, scheme: str | SchemeSection | Scheme | None = None, rtol: float | None = None
) -> Transformer:
    """Return the same model, solved by another scheme or with adaptive steps.

    Adaptive steps are chosen for a whole batch, later tokens included: the model is then causal only up to the
    tolerance. Sampling, and calls that name a number of steps, keep the fixed grid.

    **Arguments:** `scheme`, a name, a config section or a user's own object; if not given, the model's own, or
    `diffrax:Tsit5` if steps are to be adaptive and the model's own scheme has no error estimate to choose them by.
    `rtol`, the relative tolerance of adaptive steps; the absolute tolerance is a tenth of it. If not given, steps are
    fixed.

    **Raises:** `BadInput` if the scheme does not exist or cannot do this, if the model has a first step of its own
    length that another scheme would take before adaptive steps, or if the model is a table of layers, which has only
    its own scheme and fixed steps.
    """
    config = model.config
    if scheme is None:
        scheme = f"diffrax:{USUAL}" if rtol is not None and not can_adapt(model.scheme) else config.scheme
    if isinstance(scheme, str):
        # Naming the model's own kind keeps its settings, such as the coupling of `reversible`.
        own, sections = config.scheme, choices_of(ModelConfig)["scheme"]
        scheme = own if scheme == own.kind else section_of(sections, scheme, "model.scheme")
    if isinstance(scheme, SchemeSection):
        # A user's own scheme cannot be built again.
        section, scheme = scheme, model.scheme if scheme == config.scheme else scheme.build()
    else:
        require_part("scheme", scheme, Scheme)
        section = own_section(scheme, config.scheme)
    if rtol is not None and (isinstance(rtol, bool) or not isinstance(rtol, SupportsFloat)):
        raise BadInput(f"rtol is {shown(rtol)}, but must be a number.")
    if rtol is not None and config.first_step is not None and model.scheme != EULER_MIDDLE:
        raise BadInput(
            f"the first step of this model is one of scheme {config.scheme.kind!r}, but before adaptive steps it is "
            "one of 'euler-middle'."
        )
    tolerance = None
    if rtol is not None:
        tolerance = dataclasses.replace(config.tolerance or ToleranceConfig(), rtol=rtol, atol=rtol / 10)
    keeps = config.gradient != GradientConfig("reversible") or isinstance(scheme, Reversible)
    gradient = config.gradient if keeps else None
    other = validate_model(dataclasses.replace(config, scheme=section, tolerance=tolerance, gradient=gradient))
    if isinstance(config.weights, LayerConfig) and scheme != model.scheme:
        raise BadInput(
            f"this model is a table of {config.steps} layer{'s' * (config.steps != 1)} for the scheme "
            f"{config.scheme.kind!r} and cannot run by {section.kind!r}; only models whose weights are functions of "
            "depth, or shared, run by any scheme."
        )
    return model.replace(scheme=scheme, config=other)
