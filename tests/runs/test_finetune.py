"""Fine-tuning: what is trained and what is not, at which depth, from where, and that nothing is lost."""

import dataclasses
import json
import os
from dataclasses import replace

import equinox as eqx
import jax
import numpy as np
import pytest

from diffeqformer.config import (
    BaseConfig,
    Config,
    DataConfig,
    DepthConfig,
    LayerConfig,
    LevelsConfig,
    LoRAConfig,
    ModelConfig,
    OptimizerConfig,
    TimeConfig,
    TrainerConfig,
    dump_yaml,
)
from diffeqformer.data.loader import EvaluationBatches
from diffeqformer.errors import BadInput, Interrupted
from diffeqformer.evaluation.perplexity import evaluate
from diffeqformer.model.build import build
from diffeqformer.model.count import count
from diffeqformer.nn.linear import Adapter
from diffeqformer.progress import Silent
from diffeqformer.runs import recorder, trainer
from diffeqformer.runs.finetune import ROLES, as_begun, finetune_config, usual_settings
from diffeqformer.runs.folder import RunFolder, as_moved
from diffeqformer.runs.lifting import lift_run
from diffeqformer.runs.opening import load_run
from diffeqformer.runs.results import name_of_run
from diffeqformer.runs.trainer import train
from diffeqformer.training.optimizer import roles, split_trained
from diffeqformer.training.update import initial_state, make_update
from tests.cases import slow
from tests.models import logits
from tests.runs.tiny_run import changed, write_text
from tests.tolerances import GRADIENT, LOSS

LORA = LoRAConfig(2, targets=("attention.*",))


@pytest.fixture(scope="module")
def bases(tmp_path_factory, text, cache):
    """A trained continuous run, and a vanilla one."""
    folder = tmp_path_factory.mktemp("bases")
    kinds = {
        "continuous": {"weights": TimeConfig(d_emb=4, frequencies=3)},
        "vanilla": {"weights": "layer", "scheme": "lie-trotter", "horizon": "steps"},
    }
    for name, kind in kinds.items():
        train(
            Config(
                run=str(folder / name),
                model=ModelConfig(**kind, steps=2, width=16, heads=2, context=16, hidden=32),
                data=DataConfig(source="files", train=(str(text),), tokenizer_vocabulary=280, cache=str(cache)),
                optimizer=OptimizerConfig(learning_rate=1e-2),
                trainer=TrainerConfig(updates=6, batch_size=4, log_every=3, evaluate_every=6, checkpoint_every=6),
            ),
            Silent(),
        )
    return folder


@pytest.fixture
def other_text(tmp_path):
    path = write_text(tmp_path / "other.txt", lines=200)
    path.write_text(path.read_text().upper())
    return path


def tuned(base, folder, text=None, **settings):
    """The config of a short fine-tuning."""
    config = finetune_config(load_run(base), str(folder), **settings)
    config = changed(config, trainer__updates=6, trainer__evaluate_every=3, trainer__checkpoint_every=2)
    return config if text is None else changed(config, data__train=(str(text),))


@pytest.mark.parametrize(
    ("base", "lora", "rate"), [(2e-4, LORA, 2e-3), (1e-3, LORA, 1e-2), (3e-3, LORA, 1e-2), (3e-3, None, 3e-3)]
)
def test_adapters_take_ten_times_the_rate_up_to_a_hundredth(base, lora, rate):
    optimizer, _ = usual_settings(Config(optimizer=OptimizerConfig(learning_rate=base)), lora)
    assert optimizer.learning_rate == pytest.approx(rate)


@pytest.mark.parametrize(
    ("roles", "lora", "rate"),
    [
        (("adapter", "embedding"), LORA, 3e-3),
        (("adapter",), None, 3e-4),
        (("matrix",), LORA, 1e-2),
        (("matrix",), None, 3e-3),
    ],
)
def test_a_rate_of_adapters_is_one_in_the_next_generation(roles, lora, rate):
    model = ModelConfig(weights=LayerConfig(lora=LORA))
    base = Config(model=model, optimizer=OptimizerConfig(learning_rate=3e-3, train_roles=roles))
    assert usual_settings(base, lora)[0].learning_rate == pytest.approx(rate)


populated = eqx.filter_jit(lambda model, steps: model.populate(steps))  # compiled, as where training starts


def losses(folder):
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(r["kind"], r["step"], r["loss"]) for r in records if "loss" in r]


@pytest.mark.parametrize("base", ["continuous", *slow("vanilla")])
def test_lora_trains_adapters_and_embeddings_and_nothing_else(bases, tmp_path, other_text, base):
    config = tuned(bases / base, tmp_path / "run", other_text, lora=LORA)
    result, start = train(config, Silent()), populated(load_run(bases / base).model, 2)
    assert result.entry["validation"]["loss"] < losses(tmp_path / "run")[0][2] - 0.05
    kept = result.model.without_adapters()
    for path, (before, after) in {
        "matrices": (start.weights, kept.weights),
        "final norm": (start.final_norm, kept.final_norm),
    }.items():
        jax.tree.map(lambda a, b, path=path: np.testing.assert_array_equal(a, b, path), before, after)
    assert (start.embedding.tokens != kept.embedding.tokens).any()
    units = jax.tree.leaves(result.model.weights, is_leaf=lambda n: isinstance(n, Adapter))
    adapters = [unit for unit in units if isinstance(unit, Adapter)]
    assert len(adapters) == 2 and all((unit.b != 0).any() for unit in adapters)
    np.testing.assert_allclose(evaluate_on(result, result.model.merge()), result.entry["validation"]["loss"], rtol=LOSS)


def test_adapters_beside_the_knots_of_a_lifted_model(bases, tmp_path, other_text):
    lift_run(load_run(bases / "vanilla"), tmp_path / "lifted")
    depth = DepthConfig((2, 3), together="rows")
    config = tuned(tmp_path / "lifted", tmp_path / "run", other_text, method="continuous", lora=LORA, depth=depth)
    result, start = train(config, Silent()), load_run(tmp_path / "lifted").model
    assert result.entry["validation"]["loss"] < losses(tmp_path / "run")[0][2] - 0.05
    jax.tree.map(np.testing.assert_array_equal, result.model.without_adapters().weights, start.weights)
    again = load_run(tmp_path / "run").model
    assert again.config.weights.kind == "knots" and again.config.lora == LORA
    merged = evaluate_on(result, again.merge().populate(3))
    assert merged != evaluate_on(result, start.populate(3)) and np.isfinite(merged)


def evaluate_on(result, model):
    tokens = EvaluationBatches(result.tokens.validation, result.config.model.context, 4)
    return evaluate(model, tokens, block=4096).loss


def test_what_is_made_of_a_run_knows_whether_its_first_model_was_imported(bases, tmp_path):
    run = load_run(bases / "vanilla")
    lifted, _ = lift_run(run, tmp_path / "lifted")
    assert not run.from_imported and not lifted.from_imported and not load_run(tmp_path / "lifted").from_imported
    tune = lambda base: dataclasses.replace(base, origin="fine-tuned", config=finetune_config(base, "run"))
    assert not tune(lifted).from_imported and not tune(tune(lifted)).from_imported
    imported = dataclasses.replace(run, origin="imported")
    assert imported.from_imported and tune(imported).from_imported and tune(tune(imported)).from_imported
    unknown = changed(tune(lifted).config, base__imported=None)  # of a version that did not write it
    assert dataclasses.replace(lifted, config=unknown).from_imported


def test_what_cannot_be_made_of_a_base_is_refused_before_training(bases, tmp_path):
    run = load_run(bases / "continuous")
    config = dataclasses.replace(run.config.model, scheme="midpoint")
    whole = dataclasses.replace(run.config, model=config)
    run = dataclasses.replace(run, model=build(config, jax.random.key(0)), config=whole)
    with pytest.raises(BadInput, match="several times of a step, which differ"):
        finetune_config(run, str(tmp_path / "run"), method="levels")


@pytest.mark.parametrize(
    "settings,roles_trained",
    [
        ({"lora": LORA}, {"adapter", "embedding"}),
        ({"lora": LORA, "train_embeddings": False}, {"adapter"}),
        ({"method": "full"}, {"matrix", "bias", "norm", "embedding"}),
        ({"method": "full", "train_embeddings": False}, {"matrix", "bias", "norm"}),
        ({"method": "continuous"}, {"time", "norm", "embedding"}),
        ({"method": "levels"}, {"matrix", "bias", "norm", "embedding"}),
    ],
)
def test_the_optimiser_holds_moments_of_what_is_trained_only(bases, tmp_path, settings, roles_trained):
    config = tuned(bases / "continuous", tmp_path / "run", **settings)
    state = jax.eval_shape(lambda: initial_state(changed(config, model__vocabulary=280)))
    trained, frozen = split_trained(state.model, config.optimizer)
    names, leaves = jax.tree.leaves(roles(state.model)), jax.tree.leaves(state.model)
    wanted = sum(leaf.size for name, leaf in zip(names, leaves, strict=True) if name in roles_trained)
    assert count(trained) == wanted and count(trained) + count(frozen) == count(state.model)
    scalars = [leaf for leaf in jax.tree.leaves(state.optimizer) if leaf.ndim == 0]
    assert count(state.optimizer) - len(scalars) == 2 * wanted


def test_continuous_fine_tuning_keeps_the_depths_that_the_base_was_trained_at(bases, tmp_path):
    base = load_run(bases / "continuous")
    drawn = replace(base, config=replace(base.config, depth=DepthConfig((2, 4), jitter=0.5)))
    one, own = DepthConfig(), drawn.config.depth
    kept = {method: finetune_config(drawn, str(tmp_path), steps=3, method=method).depth for method in ROLES}
    assert kept == {"continuous": own, "levels": own, "full": one, "lora": one}


def test_each_depth_of_every_update_gets_a_table(bases, tmp_path):
    base = load_run(bases / "continuous")
    depth = DepthConfig((5,), always=(4, 2))
    config = finetune_config(base, str(tmp_path), steps=4, method="levels", depth=depth)
    assert config.model.weights == LevelsConfig((2, 4)) and config.depth == depth
    assert finetune_config(base, str(tmp_path), steps=3, method="levels").model.weights.levels == (1, 2, 4)


def test_memory_of_a_lora_update_leaves_out_gradients_and_moments_of_the_base(bases, tmp_path):
    def compiled(**settings):
        config = changed(tuned(bases / "vanilla", tmp_path / "run", **settings), model__vocabulary=280)
        config = changed(config, model__width=64, model__hidden=256)
        state = jax.eval_shape(lambda: initial_state(config))
        ids = jax.ShapeDtypeStruct((4, 17), "int32")
        update = jax.jit(make_update(config), donate_argnums=0)
        plan = update.lower(state, ids).compile().memory_analysis()
        return 4 * count(state.model), plan.argument_size_in_bytes, plan.temp_size_in_bytes

    weights, lora, lora_temporary = compiled(lora=LORA, train_embeddings=False)
    _, full, full_temporary = compiled(method="full")
    assert lora < 1.2 * weights and full > 2.9 * weights
    assert full_temporary - lora_temporary > 0.5 * weights


@pytest.mark.parametrize("method", ["lora", "full", "continuous", "levels"])
def test_begins_as_the_base_at_the_new_depth(bases, tmp_path, method):
    lora = {"lora": LORA} if method == "lora" else {}
    config = tuned(bases / "continuous", tmp_path / "run", steps=4, method=method, **lora)
    base = load_run(bases / "continuous").model
    start = initial_state(changed(config, model__vocabulary=280), base).model
    kind = {"continuous": "time", "levels": "levels"}.get(method, "layer")
    assert (start.config.steps, start.config.weights.kind) == (4, kind)
    reference = base if method == "continuous" else populated(base, 4)
    np.testing.assert_array_equal(logits(start, np.arange(16)[None], 4), logits(reference, np.arange(16)[None], 4))


def test_a_lora_run_can_be_the_base_of_another(bases, tmp_path, other_text):
    first = train(tuned(bases / "vanilla", tmp_path / "first", other_text, lora=LORA), Silent())
    second = train(tuned(tmp_path / "first", tmp_path / "second", other_text, method="full"), Silent())
    assert not second.model.config.lora
    assert losses(tmp_path / "second")[0][2] == pytest.approx(evaluate_on(first, first.model), rel=LOSS)


def test_stopped_moved_and_continued_equals_uninterrupted_without_the_base(bases, tmp_path, other_text, monkeypatch):
    whole = tuned(bases / "continuous", tmp_path / "whole", other_text, steps=3, lora=LORA)
    expected = train(whole, Silent()).model
    halves = dataclasses.replace(whole, run=str(tmp_path / "halves"))
    halves = changed(halves, data__tokenizer=str(tmp_path / "halves/tokenizer.json"))
    update = recorder.Recorder.after_update

    def interrupted(self, *arguments):
        stopped = update(self, *arguments)
        if self.step == 4:
            raise Interrupted("enough")
        return stopped

    monkeypatch.setattr(recorder.Recorder, "after_update", interrupted)
    with pytest.raises(Interrupted):
        train(halves, Silent())
    monkeypatch.undo()
    moved = (tmp_path / "halves").rename(tmp_path / "moved")
    here = changed(halves, run=str(moved), data__tokenizer=str(moved / "tokenizer.json"))
    RunFolder(here).require_own()  # as the command that made it would say with --to
    monkeypatch.setattr(trainer, "open_base", lambda *_: pytest.fail("the base was opened again"))
    found = train(changed(halves, run=str(moved)), Silent())  # as its own config.yaml with --run
    assert found.config.data == here.data
    jax.tree.map(np.testing.assert_array_equal, found.model, expected)
    assert losses(tmp_path / "whole") == losses(moved)
    again = moved.rename(tmp_path / "again")
    config = changed(found.config, run=str(again), data__tokenizer=str(again / "tokenizer.json"))
    (again / "config.yaml").write_text(dump_yaml(config))  # training was stopped before the next checkpoint
    assert load_run(again).config == config


def test_a_base_that_was_trained_further_is_refused(bases, tmp_path):
    config = changed(tuned(bases / "vanilla", tmp_path / "run"), base__update=5)
    with pytest.raises(BadInput, match=r"base.update is 5, but the latest checkpoint of '.*vanilla' is at 6"):
        train(config, Silent())
    assert not (tmp_path / "run").exists()


def test_what_a_base_learns_later_is_nothing_to_a_run_of_its_own(bases, tmp_path, other_text):
    """The same command again goes on, though the base has other checkpoints now."""
    config = tuned(bases / "vanilla", tmp_path / "run", other_text)
    later = changed(config, base__update=9)
    assert as_begun(later) == later  # which is refused: there is nothing to go on from
    train(config, Silent())
    found = as_begun(later)
    assert found.base == config.base and train(found, Silent()).entry["steps"]
    for other in (changed(later, base__checkpoint="best"), changed(later, base__run="elsewhere")):
        assert as_begun(other) == other


def test_a_base_is_the_same_however_its_folder_is_written(tmp_path):
    base, run = tmp_path / "base", tmp_path / "run"
    for folder in (base, run / "checkpoints/6"):
        folder.mkdir(parents=True)
    (tmp_path / "link").symlink_to(base)
    config = Config(run=str(run), base=BaseConfig(str(base), update=6))
    (run / "config.yaml").write_text(dump_yaml(config))
    for name in (os.path.relpath(base), f"{base}/", str(tmp_path / "link")):
        written = as_moved(changed(config, base__run=name))
        assert written == config  # as the checkpoints remember it
        RunFolder(written).require_own()
        assert as_begun(changed(config, base__run=name, base__update=9)) == config
    other = changed(config, base__run=str(tmp_path))
    assert as_moved(other) == other


def test_another_tokenizer_is_refused(bases, tmp_path, other_text):
    config = changed(tuned(bases / "vanilla", tmp_path / "run", other_text), data__tokenizer="train")
    with pytest.raises(BadInput, match=r"another tokenizer than that of the base run '.*vanilla'"):
        train(config, Silent())
    assert not (tmp_path / "run").exists()


def test_parts_of_a_batch_equal_the_whole(bases, tmp_path):
    config = changed(tuned(bases / "vanilla", tmp_path / "run", lora=LORA), model__vocabulary=280)
    ids = np.random.default_rng(0).integers(0, 280, (4, 17), np.int32)
    whole, split = (
        make_update(one)(initial_state(one), ids) for one in (config, changed(config, trainer__accumulation=2))
    )
    np.testing.assert_allclose(whole[1].loss, split[1].loss, rtol=LOSS)
    np.testing.assert_allclose(whole[1].gradient_norm, split[1].gradient_norm, rtol=GRADIENT)


def test_dropout_of_adapters_alone_acts_in_an_update(bases, tmp_path):
    config = changed(tuned(bases / "vanilla", tmp_path / "run", lora=LORA), model__vocabulary=280)
    ids = np.random.default_rng(0).integers(0, 280, (4, 17), np.int32)
    norms = [
        float(make_update(one)(initial_state(one), ids)[1].gradient_norm)
        for one in (config, changed(config, model__weights__lora__dropout=0.5))
    ]
    assert abs(norms[0] - norms[1]) > 1e-3 * norms[0]


def test_what_trains_nothing_is_refused(bases, tmp_path):
    for roles_asked, said in (((), "empty"), (("time",), "time")):
        config = changed(tuned(bases / "vanilla", tmp_path / "run", lora=LORA), optimizer__train_roles=roles_asked)
        with pytest.raises(BadInput, match=f"train_roles is {said}, but this model's parameters have .*matrix"):
            train(config, Silent())
    assert not (tmp_path / "run").exists()


def test_a_base_of_other_shapes_is_refused_before_anything_is_written(bases, tmp_path):
    config = changed(tuned(bases / "vanilla", tmp_path / "run", lora=LORA), model__hidden=48)
    sentence = r"does not fit the config: weights\.layers\.\S+ is \(2, 16, 32\) there, but must be \(2, 16, 48\)\."
    with pytest.raises(BadInput, match=sentence):
        train(config, Silent())
    assert not (tmp_path / "run").exists()


def test_settings_of_a_base_that_is_not_there_are_refused(bases, tmp_path):
    config = changed(tuned(bases / "vanilla", tmp_path / "run"), base__run="")
    with pytest.raises(BadInput, match="base.update is 6, but a run without base.run does not read it"):
        train(config, Silent())


def test_a_fine_tuned_run_says_what_it_is(bases, tmp_path, other_text):
    entry = train(tuned(bases / "continuous", tmp_path / "run", other_text, steps=3, lora=LORA), Silent()).entry
    assert entry["name"] == "DiffEqFormer 2 → 3, LoRA of rank 2"
    assert entry["parameters"]["trained"] == (280 + 16) * 16 + 3 * 2 * (16 + 48 + 16 + 16)
    assert entry["curve"]["validation"][0][0] == 0
    opened = load_run(tmp_path / "run")
    assert opened.config.base.run == str(bases / "continuous") and opened.config.base.update == 6
    again = finetune_config(opened, str(tmp_path / "again"), lora=LORA)
    assert again.base.system == "DiffEqFormer 2 → 3, LoRA of rank 2"
    lifted, _ = lift_run(load_run(bases / "vanilla"), str(tmp_path / "lifted"), "time", progress=Silent())
    config = finetune_config(lifted, str(tmp_path / "elastic"), steps=4, method="continuous")
    assert name_of_run(config) == "time weights, lie-trotter, 2 → 4, fine-tuned, continuous"
