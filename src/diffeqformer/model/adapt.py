"""A trained model as the start of another: written out at any depth, with adapters or without."""

import dataclasses

import equinox as eqx
import jax
from jaxtyping import Array, Key

from diffeqformer.config import LoRAConfig, ModelConfig
from diffeqformer.errors import BadInput
from diffeqformer.model.build import abstract
from diffeqformer.model.transformer import Transformer
from diffeqformer.ode.weights import LayerWeights


def adapted_config(config: ModelConfig, steps: int, *, layers: bool, lora: LoRAConfig) -> ModelConfig:
    """The config of a model of `config`, to be fine-tuned at `steps` steps.

    **Arguments:** `config`, of the trained model; `steps`, the new depth; `layers`, whether its weights are written out
    as a table of layers (paper section 6.2), or stay functions of depth; `lora`, the adapters, if any.

    **Raises:** `BadInput` if the trained model cannot run at `steps`, or has no functions of depth to keep.
    """
    if not layers:
        if config.weights == "layer":
            raise BadInput(
                "method 'continuous' keeps weights that are functions of depth, but this model is a table of "
                f"{config.steps} layers; 'lora' and 'full' fine-tune it."
            )
        return dataclasses.replace(config, steps=steps, horizon=config.horizon_at(steps))
    populated = eqx.filter_eval_shape(lambda model: model.merge().populate(steps), abstract(config))
    return dataclasses.replace(populated.config, lora=lora)


def adapt(model: Transformer, config: ModelConfig, key: Key[Array, ""]) -> Transformer:
    """The weights of `model` as a model of `config`: populated at its depth, with new adapters that change nothing yet.

    **Arguments:** `model`, trained; `config`, as `adapted_config` gives it, with other dropout, precision or gradient
    if wanted; `key`, for the adapters.

    **Raises:** `BadInput` if the model cannot become one of `config`.
    """
    if config.weights == "layer":
        model = model.merge().populate(config.steps)
        if config.adapted:
            assert isinstance(model.weights, LayerWeights)
            model = eqx.tree_at(lambda m: m.weights, model, model.weights.adapted(config.lora, key))
    wanted, found = (_shapes(tree) for tree in (abstract(config), model))
    for name in wanted | found:
        if wanted.get(name) != found.get(name):
            raise BadInput(
                f"the model to start from does not fit the config: {name} is {found.get(name, 'absent')} there, "
                f"but must be {wanted.get(name, 'absent')}."
            )
    return Transformer(model.embedding, model.weights, model.final_norm, model.head, config)


def _shapes(model: Transformer) -> dict[str, tuple[int, ...]]:
    leaves = jax.tree_util.tree_leaves_with_path(model)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf.shape for path, leaf in leaves}
