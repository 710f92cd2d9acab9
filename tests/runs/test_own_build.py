"""A model that the user builds is trained, resumed and opened as the library's own."""

import dataclasses
from pathlib import Path

import jax
import pytest

from diffeqformer.config import KnotsConfig, LoRAConfig
from diffeqformer.errors import BadInput, Interrupted
from diffeqformer.model.build import abstract, build, own_parts, settings_of_build
from diffeqformer.model.count import count
from diffeqformer.model.solving import with_scheme
from diffeqformer.ode.schemes import SCHEMES, LieTrotter
from diffeqformer.progress import Silent
from diffeqformer.runs import folder
from diffeqformer.runs.finetune import finetune_config
from diffeqformer.runs.lifting import lift_run
from diffeqformer.runs.opening import load_run
from diffeqformer.runs.trainer import train
from tests.models import TINY, Wrapped, model_of
from tests.runs.test_trainer import lasting, same_model, stop_after
from tests.runs.tiny_run import changed


def narrow(config, key):
    """A model of another shape than the config's, whose embedding starts at a tenth of its size."""
    model = build(dataclasses.replace(config, hidden=24), key)
    return dataclasses.replace(model, embedding=jax.tree.map(lambda x: 0.1 * x, model.embedding))


def test_an_own_model_is_trained_resumed_and_opened(config, tmp_path, monkeypatch):
    whole = train(changed(config, run=str(tmp_path / "whole")), Silent(), build=narrow)
    with monkeypatch.context() as patch:
        stop_after(patch, 6)
        with pytest.raises(Interrupted):
            train(config, Silent(), build=narrow)
    resumed = train(config, Silent(), build=narrow)
    assert lasting(config.run) == lasting(tmp_path / "whole") and same_model(resumed.model, whole.model)
    assert same_model(load_run(config.run, build=narrow).model, whole.model)
    assert whole.entry["parameters"]["stored"] == count(whole.model)
    assert whole.entry["parameters"]["trained"] == count(whole.model)
    with pytest.raises(BadInput, match=r"parts that only Python can make \(hidden 24\)"):
        load_run(config.run)


def test_an_own_part_whose_build_is_not_given_is_refused(config, tmp_path):
    """Its arrays have the usual shapes, so nothing else would tell that another model is opened."""

    def split(config, key):
        return build(config, key, scheme=LieTrotter())

    own = changed(config, trainer__updates=2)
    assert train(own, Silent(), build=split).entry["scheme"] == "own"
    assert load_run(own.run, build=split).model.scheme == LieTrotter()
    refusal = r"parts that only Python can make \(scheme .*LieTrotter\): give `train` and `load_run` the same `build`"
    with pytest.raises(BadInput, match=refusal):
        load_run(own.run)
    with pytest.raises(BadInput, match=refusal):
        train(own, Silent())
    with pytest.raises(BadInput, match=r"trained with the scheme .*\.LieTrotter, but `build` makes .*\.Other\.$"):
        load_run(own.run, build=lambda config, key: build(config, key, scheme=type("Other", (LieTrotter,), {})()))
    plain = changed(own, run=str(tmp_path / "plain"))
    train(plain, Silent())
    with pytest.raises(BadInput, match="was trained without the parts that `build` makes: scheme .*LieTrotter"):
        load_run(plain.run, build=split)


def test_weights_of_ones_own_cannot_be_fine_tuned(config):
    def mine(config, key):
        return build(config, key, weights=Wrapped(build(config, key).weights))

    own = changed(config, trainer__updates=2)
    train(own, Silent(), build=mine)
    with pytest.raises(BadInput, match=r"makes weights of a config, but those of this model are .*Wrapped\.$"):
        finetune_config(load_run(own.run, build=mine), f"{own.run}-tuned", method="full")


def test_a_lifted_run_has_the_parts_of_ones_own(config, tmp_path):
    own = changed(config, trainer__updates=1, model__weights="layer", model__horizon="steps")
    field = own.model.field.build(own.model)

    def mine(config, key):
        return build(config, key, field=dataclasses.replace(field), scheme=LieTrotter())

    train(own, Silent(), build=mine)
    opened = load_run(own.run, build=mine)
    lifted, found = lift_run(opened, tmp_path / "lifted", knots=own.model.steps)
    assert found.difference == 0 and own_parts(lifted.model).keys() == {"field", "scheme"}
    again = load_run(tmp_path / "lifted", build=mine)
    assert same_model(again.model, lifted.model) and again.config == lifted.config
    with pytest.raises(BadInput, match="parts that only Python can make"):
        load_run(tmp_path / "lifted")
    adapted = changed(own, model__weights=KnotsConfig(lora=LoRAConfig(2))).model
    model = build(dataclasses.replace(adapted, vocabulary=9), jax.random.key(0), field=field)
    assert with_scheme(model, "heun").config.scheme.kind == "heun"


def test_the_librarys_own_scheme_is_no_part_of_ones_own():
    model = build(TINY, jax.random.key(0), scheme=SCHEMES["heun"])
    assert model.config == dataclasses.replace(TINY, scheme="heun")


def test_a_populated_model_and_one_of_its_config_are_trees_of_one_kind():
    populated = model_of(dataclasses.replace(TINY, horizon="steps")).populate(5)
    other = build(populated.config, jax.random.key(0))
    assert jax.tree.structure(populated) == jax.tree.structure(other)


def test_a_build_that_changes_a_setting_is_needed_again(monkeypatch):
    """The run was opened with the scheme of its config, whose arrays have the same shapes."""
    wide = lambda config: dataclasses.replace(config, init_std=0.5)  # of no concern once the model is trained
    model = abstract(TINY, lambda config, key: build(wide(config), key, scheme=SCHEMES["heun"]))
    remembered = {"own": {}, "built": settings_of_build(TINY, model)}
    monkeypatch.setattr(folder, "metadata_of", lambda run: remembered)
    folder.require_own_parts(Path("run"), TINY, model)
    with pytest.raises(BadInput, match=r"trained with parts that only Python can make \(scheme heun\)"):
        folder.require_own_parts(Path("run"), TINY, abstract(TINY))
    del remembered["built"]  # as in older checkpoints
    folder.require_own_parts(Path("run"), TINY, model)
