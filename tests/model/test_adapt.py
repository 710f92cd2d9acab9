"""A trained model as the start of another that keeps its functions of depth."""

import dataclasses
from functools import partial

import equinox as eqx
import jax
import numpy as np
import pytest

from diffeqformer.config import KnotsConfig, LayerDropConfig, LevelsConfig, LoRAConfig, ModulationConfig
from diffeqformer.errors import BadInput
from diffeqformer.model.adapt import adapt, adapted_config, build_with
from diffeqformer.model.build import abstract, build
from diffeqformer.ode.field import TransformerField
from diffeqformer.ode.grid import Nodes
from diffeqformer.ode.schemes import Evaluations, OneStep
from tests.cases import slow_but
from tests.models import TINY, logits, model_of, tokens

BY_STEPS = {
    "knots": {"weights": KnotsConfig()},
    "corrections by the length of the step": {"weights": KnotsConfig(rank=2)},
    "layers to leave out": {"weights": LayerDropConfig()},
    "knots of a modulation": {"modulation": ModulationConfig()},
    "modulated levels": {"weights": LevelsConfig(), "modulation": ModulationConfig()},
}
"""Sections whose number of rows is the number of steps if none is given."""


@pytest.mark.parametrize("kind", slow_but(["layers to leave out", "modulated levels"], BY_STEPS))
def test_rows_that_were_as_many_as_steps_stay_as_they_are(kind):
    base = model_of(dataclasses.replace(TINY, steps=4, **BY_STEPS[kind]))
    model = adapt(base, adapted_config(base.config, 2, become="same", lora=None), jax.random.key(0))
    assert model.config.steps == 2
    np.testing.assert_array_equal(logits(model, tokens()), logits(base, tokens(), 2))


def test_lengths_that_corrections_tell_apart_stay_at_more_steps_and_can_be_given():
    base = model_of(dataclasses.replace(TINY, steps=4, weights=KnotsConfig(3, rank=2)))
    config = adapted_config(base.config, 9, become="same", lora=None)
    assert config.weights.halvings == 2
    model = adapt(base, config, jax.random.key(0))
    np.testing.assert_array_equal(logits(model, tokens()), logits(base, tokens(), 9))
    given = model_of(dataclasses.replace(TINY, weights=KnotsConfig(3, rank=2, halvings=4)))
    assert len(given.weights.corrections.attention.output.a) == 5


def test_unequal_steps_stay_at_the_depth_they_were_trained_at():
    base = model_of(dataclasses.replace(TINY, steps=3, edges=(0.0, 0.1, 0.5, 1.0)))
    config = adapted_config(base.config, 3, become="same", lora=None)
    model = adapt(base, config, jax.random.key(0))
    np.testing.assert_array_equal(logits(model, tokens()), logits(base, tokens()))
    assert adapted_config(base.config, 4, become="same", lora=None).edges == ()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"scheme": "lie-trotter-middle"}, "model.scheme is 'lie-trotter-middle', but the model to start from is of"),
        ({"weights": KnotsConfig(3, "box")}, "model.weights differs from that of the model to start from in its basis"),
    ],
    ids=["scheme", "basis"],
)
def test_a_config_of_the_same_shapes_that_computes_something_else_is_refused(changes, said):
    base = model_of(dataclasses.replace(TINY, scheme="lie-trotter", weights=KnotsConfig(3)))
    config = adapted_config(base.config, 2, become="same", lora=None)
    adapt(base, config, jax.random.key(0))
    with pytest.raises(BadInput, match=said):
        adapt(base, dataclasses.replace(config, **changes), jax.random.key(0))


def test_adapters_of_modulated_knots_are_refused():
    base = model_of(dataclasses.replace(TINY, weights=KnotsConfig(), modulation=ModulationConfig()))
    config = adapted_config(base.config, 3, become="same", lora=LoRAConfig(2))
    with pytest.raises(BadInput, match=r"model.modulation and model.weights.lora \(of rank 2\) are given"):
        adapt(base, config, jax.random.key(0))


class Bare(TransformerField):
    """GPT's field without the biases of its feed-forward half."""

    def shapes(self):
        whole = super().shapes()
        bare = dataclasses.replace(whole.feed_forward, up=whole.feed_forward.up._replace(bias=False))
        return dataclasses.replace(whole, feed_forward=bare)


@dataclasses.dataclass(frozen=True)
class BothEnds(OneStep):
    """Attention with the weights at the start of a step, feed-forward with those at its end."""

    nodes: Nodes = Nodes.same(0.0, 1.0)
    order: int = 1
    evaluations: Evaluations = Evaluations(1, 1)

    def advance(self, field, x, dt):
        return x + dt * (field.attention[0](x) + field.feed_forward[1](x))


@pytest.mark.parametrize("part", ["field", "scheme"])
def test_a_field_of_other_shapes_and_a_scheme_of_several_nodes_stay_with_the_model(part):
    own = {"field": Bare(**vars(TINY.field.build(TINY)))} if part == "field" else {"scheme": BothEnds()}
    base = abstract(TINY, partial(build, **own))
    config = adapted_config(TINY, 2, become="layer", lora=LoRAConfig(2), build=build_with(base))
    assert config.weights.rows == ("step" if part == "field" else "node") and config.scheme == TINY.scheme
    model = eqx.filter_eval_shape(lambda base: adapt(base, config, jax.random.key(0)), base)
    assert getattr(model, part) == own[part]
    again = abstract(config, partial(build, **own))
    assert jax.tree.structure(again) == jax.tree.structure(model)
