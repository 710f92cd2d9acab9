"""Running a trained model by another scheme than the one it was trained with."""

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
    """The same model, solved by another scheme or by adaptive steps.

    Adaptive steps are chosen for a whole batch, later tokens included: the model is then causal only up to the
    tolerance. Sampling, and calls that name a number of steps, keep to the fixed grid.

    **Arguments:** `scheme`, by name, as a config's section, or a user's own object; the model's own if not given, or
    `diffrax:Tsit5` if steps are to be adaptive and the model's own scheme has no error estimate to choose them by.
    `rtol`, relative tolerance of adaptive steps; the absolute one is a tenth of it. If not given, steps are fixed.

    **Raises:** `BadInput` for a scheme that does not exist or cannot do this, for a first step of a length of its own
    that adaptive steps would take otherwise, and for a table of layers.
    """
    config = model.config
    if scheme is None:
        scheme = f"diffrax:{USUAL}" if rtol is not None and not can_adapt(model.scheme) else config.scheme
    if isinstance(scheme, str):
        # The name of the model's own kind keeps its settings, such as the coupling of `reversible`.
        own, sections = config.scheme, choices_of(ModelConfig)["scheme"]
        scheme = own if scheme == own.kind else section_of(sections, scheme, "model.scheme")
    if isinstance(scheme, SchemeSection):
        # A scheme of the user's own cannot be built again.
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
            f"this model is a table of {config.steps} layers for the scheme {config.scheme.kind!r} and cannot run by "
            f"{section.kind!r}; only models whose weights are functions of depth, or shared, run by any scheme."
        )
    return model.replace(scheme=scheme, config=other)
