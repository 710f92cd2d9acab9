"""Starting a model from a trained one: populated at any depth, with or without adapters."""

import dataclasses
from functools import partial
from typing import Literal

import equinox as eqx
import jax
from jaxtyping import Array, Key

from diffeqformer.config import (
    KnotsConfig,
    LayerConfig,
    LayerDropConfig,
    LevelsConfig,
    LoRAConfig,
    ModelConfig,
    with_steps,
)
from diffeqformer.errors import BadInput
from diffeqformer.model.build import Build, abstract, own_parts
from diffeqformer.model.build import build as usual_build
from diffeqformer.model.transformer import Transformer
from diffeqformer.ode.lora import attach
from diffeqformer.ode.weights import AdaptableWeights
from diffeqformer.ode.weights.levels import freed
from diffeqformer.sharding import by_path

Become = Literal["layer", "levels", "same"]
"""What the weights become: a table of layers (paper section 6.2), a table for each of several numbers of
steps, or the same as before."""


def adapted_config(
    config: ModelConfig,
    steps: int,
    *,
    become: Become,
    lora: LoRAConfig | None,
    levels: tuple[int, ...] = (),
    build: Build = usual_build,
) -> ModelConfig:
    """Return the config for fine-tuning a trained model of `config` at `steps` steps.

    **Arguments:** `config`, the trained model's; `steps`, the new depth; `become`, what the weights become; `lora`, the
    adapters, if any; `levels`, the numbers of steps that get a table of their own if weights become `levels`, or
    none for 1, 2, 4, ...; `build`, which makes the trained model, if it has parts of the user's own.

    **Raises:** `BadInput` if the trained model cannot run at `steps`, has no functions of depth to keep, or has
    functions of depth that cannot take adapters.
    """
    if become == "levels":
        return _freed_config(config, steps, lora, levels)
    if become == "same":
        own = config.weights
        if isinstance(own, LayerConfig):
            raise BadInput(
                "method 'continuous' keeps weights that are functions of depth, but this model is a table of "
                f"{config.steps} layer{'s' * (config.steps != 1)}; 'lora' and 'full' fine-tune it."
            )
        # Numbers of rows that default to the number of steps are fixed at the trained number.
        if isinstance(own, KnotsConfig):
            halvings = own.halved(config.steps) if own.rank else None
            own = dataclasses.replace(own, knots=own.knots or config.steps, halvings=halvings, lora=lora)
        elif isinstance(own, LevelsConfig):
            own = dataclasses.replace(own, levels=own.of(config.steps), lora=lora)
        elif lora:
            raise BadInput(
                "low-rank adapters of functions of depth are beside knots or blocks of levels, but this model has "
                f"weights of kind {own.kind!r}; leave the rank out, or use method 'lora', which populates the model."
            )
        if isinstance(own, LayerDropConfig):
            own = dataclasses.replace(own, layers=own.layers or config.steps)
        modulation = config.modulation
        if modulation:
            modulation = dataclasses.replace(modulation, knots=modulation.knots or config.steps)
        same = dataclasses.replace(config, weights=own, modulation=modulation)
        # At its own number of steps, `with_steps` would drop the edges of unequal ones.
        return same if steps == config.steps else with_steps(same, steps)
    populated = eqx.filter_eval_shape(lambda model: model.merge().populate(steps), abstract(config, build))
    section = dataclasses.replace(populated.config.weights, lora=lora)
    return dataclasses.replace(populated.config, weights=section, field=config.field, scheme=config.scheme)


def _freed_config(config: ModelConfig, steps: int, lora: LoRAConfig | None, levels: tuple[int, ...]) -> ModelConfig:
    """Return the config with a table for each level."""
    if isinstance(config.weights, LayerConfig | LayerDropConfig | LevelsConfig):
        raise BadInput(
            "method 'levels' gives steps that share weights blocks of their own, but this model has weights of kind "
            f"{config.weights.kind!r}, which share none."
        )
    if config.first_step is not None or config.edges or config.tolerance:
        raise BadInput("method 'levels' makes tables of equal steps, but this model has steps of its own.")
    section = LevelsConfig(LevelsConfig(levels).of(steps), lora)
    return with_steps(dataclasses.replace(config, weights=section, modulation=None, spacing="equal"), steps)


def adapt(model: Transformer, config: ModelConfig, key: Key[Array, ""]) -> Transformer:
    """Turn `model` into a model of `config`: populated at its depth, with new adapters that change nothing yet.

    **Arguments:** `model`, trained; `config`, from `adapted_config`, optionally with other dropout, precision or
    gradient settings; `key`, for the adapters.

    **Raises:** `BadInput` if the model does not fit `config`, in its shapes or in what it would compute.
    """
    # The user's own parts stay the model's, since no config can build them.
    own = {name: getattr(model.config, name) for name in own_parts(model) if name != "weights"}
    made = abstract(config, build_with(model))
    if isinstance(config.weights, LayerConfig):
        model = model.merge().populate(config.edges or config.steps)
    elif isinstance(config.weights, KnotsConfig | LevelsConfig):
        model = model.merge()
    if isinstance(config.weights, LevelsConfig) and not isinstance(model.config.weights, LevelsConfig):
        model = model.replace(weights=freed(model.weights, config.weights.of(config.steps), model.scheme.nodes))
    if config.lora:
        assert isinstance(model.weights, AdaptableWeights)
        model = model.replace(weights=model.weights.changed(partial(attach, lora=config.lora, key=key)))
    shapes = lambda tree: {name: leaf.shape for name, leaf in by_path(tree).items()}
    wanted, found = shapes(made), shapes(model)
    for name in wanted | found:
        if wanted.get(name) != found.get(name):
            raise BadInput(
                f"the model to start from does not fit the config: {name} is {found.get(name, 'absent')} there, "
                f"but must be {wanted.get(name, 'absent')}."
            )
    # The new config sets dropout, precision and what the backward pass keeps.
    if "scheme" not in own and made.scheme != model.scheme:
        raise BadInput(
            f"model.scheme is {config.scheme.kind!r}, but the model to start from is of {model.config.scheme.kind!r}, "
            "and what is trained on keeps its scheme; `eval --scheme` reads a model by another."
        )
    # Arrays of the same shapes may represent different functions of depth.
    if "scheme" not in own and jax.tree.structure(made.weights) != jax.tree.structure(model.weights):
        raise BadInput("model.weights differs from that of the model to start from in its basis, frequencies or nodes.")
    field = model.field if "field" in own else config.field.build(config)
    return model.replace(field=field, config=dataclasses.replace(config, **own))


def build_with(model: Transformer) -> Build:
    """Return the function that builds a model with the field and the scheme of `model` if they are the user's own."""
    return partial(usual_build, **{name: getattr(model, name) for name in own_parts(model) if name != "weights"})
