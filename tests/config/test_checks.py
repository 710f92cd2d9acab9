"""Settings that do not fit each other are refused in one sentence that names them; what nothing reads is no key."""

import ast
import dataclasses
import inspect
from itertools import pairwise
from typing import Any, get_args

import pytest

from diffeqformer.cli.parse import shipped_configs
from diffeqformer.config import (
    Config,
    DropoutConfig,
    LayerConfig,
    LlamaConfig,
    ModelConfig,
    RecursiveConfig,
    ReversibleConfig,
    SchemeConfig,
    SharedConfig,
    TimeConfig,
    choices_of,
    dump_yaml,
    find_config,
    from_dict,
    read_yaml,
    validate,
    validate_model,
    with_values,
)
from diffeqformer.config.strict import hints_of
from diffeqformer.errors import BadInput
from diffeqformer.model.count import vanilla_twin
from diffeqformer.ode.schemes import SCHEMES
from tests.models import KINDS, model_of

REFUSED: list[tuple[dict[str, Any], str]] = [
    # sizes
    ({"width": 12, "heads": 5}, "model.width is 12, but must be divisible by model.heads, which is 5."),
    (
        {"field": {"kind": "llama", "kv_heads": 3}},
        "model.field.kv_heads is 3, but must divide model.heads, which is 4.",
    ),
    ({"field": {"kind": "llama", "kv_heads": 0}}, "model.field.kv_heads is 0, but must be at least 1."),
    (
        {"field": "llama", "width": 12},
        "model.width / model.heads is 3, but must be even: rotary positions turn pairs.",
    ),
    ({"hidden": 0}, "model.hidden is 0, but must be at least 1."),
    ({"gradient": {"kind": "recursive", "checkpoints": 1}}, "model.gradient.checkpoints is 1, but must be at least 2."),
    ({"horizon": 0}, "model.horizon is 0.0, but must be a positive number, from 1.2e-38 to 8.5e+37."),
    (
        {"tolerance": {"rtol": 1e-300}},
        "model.tolerance.rtol is 1e-300, but must be at least 1.2e-38: smaller ones are zero in float32.",
    ),
    ({"horizon": -2.5}, "model.horizon is -2.5, but must be a positive number, from 1.2e-38 to 8.5e+37."),
    ({"horizon": 1e39}, "model.horizon is 1e+39, but must be a positive number, from"),
    ({"horizon": float("inf")}, "model.horizon is inf, but must be a positive number, from 1.2e-38 to 8.5e+37."),
    ({"first_step": 1}, "model.first_step is 1.0, but must be above 0 and below 1."),
    ({"first_step": 0}, "model.first_step is 0.0, but must be above 0 and below 1."),
    ({"horizon": "long"}, "model.horizon is 'long', but must be one of 'unit', 'steps' or a number."),
    ({"horizon": True}, "model.horizon is True, but must be one of 'unit', 'steps' or a number."),
    ({"tied": "yes"}, "model.tied is 'yes', but must be true or false."),
    (
        {"gradient": "adjoint"},
        "'adjoint', but must be one of 'checkpointed', 'plain', 'reversible', 'recursive'.",
    ),
    # schemes
    (
        {"scheme": "rk5"},
        "model.scheme is 'rk5', but must be one of euler, euler-middle, lie-trotter, lie-trotter-middle, ",
    ),
    ({"scheme": "Tsit5"}, "; did you mean 'diffrax:Tsit5'?"),
    (
        {"scheme": {"kind": "reversible", "base": "rk5"}},
        "model.scheme.base is 'rk5', but must be one of euler,",
    ),
    ({"scheme": {"kind": "reversible", "base": "reversible"}}, "model.scheme.base is 'reversible', but must"),
    (
        {"scheme": {"kind": "reversible", "coupling": 1.5}},
        "model.scheme.coupling is 1.5, but must be at most 1.",
    ),
    ({"scheme": {"kind": "reversible", "coupling": 0}}, "model.scheme.coupling is 0.0, but must be a positive number."),
    (
        {"gradient": "reversible"},
        "model.gradient is 'reversible', but model.scheme 'euler' cannot run back; 'reversible' can.",
    ),
    # adaptive steps
    ({"tolerance": {"rtol": 0}}, "model.tolerance.rtol is 0.0, but must be a positive number."),
    ({"tolerance": {"rtol": 1e-3, "atol": -1}}, "model.tolerance.atol is -1.0, but must be a positive number."),
    ({"tolerance": {"rtol": 1e-3, "max_steps": 0}}, "model.tolerance.max_steps is 0, but must be at least 1."),
    (
        {"tolerance": {"rtol": 1e-3}},
        "model.tolerance.rtol is given, but model.scheme 'euler' has no error estimate to choose steps by; take "
        "one that has (midpoint, heun, diffrax:Bosh3, ",
    ),
    (
        {"tolerance": {"rtol": 1e-3}, "scheme": "heun", "first_step": 0.5},
        "model.first_step is 0.5, but model.scheme is 'heun': before adaptive steps (model.tolerance.rtol) a first ",
    ),
    (
        {"tolerance": {"rtol": 1e-3}, "scheme": "heun", "weights": "layer"},
        "model.tolerance.rtol is given, but model.weights is 'layer': a table of layers has no weights between its ",
    ),
    # a setting of another kind is no key
    ({"field": {"kv_heads": 2}}, "unknown key 'model.field.kv_heads': known keys: kind, rotary, rope_theta"),
    ({"field": {"kind": "gpt", "rope_theta": 5e5}}, "rope_theta is 500000.0, but is read with model.field.rotary only"),
    ({"field": {"kind": "gpt", "rotary": 0.1}}, "which is 3 of a head's 32 numbers, but must be an even number"),
    ({"weights": {"kind": "time", "rows": "node"}}, "unknown key 'model.weights.rows'"),
    ({"weights": {"kind": "shared", "d_emb": 4}}, "unknown key 'model.weights.d_emb': known keys: kind."),
    ({"weights": {"kind": "layer", "frequencies": 4}}, "unknown key 'model.weights.frequencies'"),
    (
        {"weights": "tme"},
        "model.weights is 'tme', but must be one of 'time', 'time-shared-mlp', 'knots', 'levels', "
        "'layer', 'layerdrop', 'shared'",
    ),
    ({"weights": 3}, "model.weights is 3, but must be a table of settings or one of 'time', "),
    ({"scheme": {"kind": "euler", "base": "heun"}}, "unknown key 'model.scheme.base'"),
    ({"gradient": {"kind": "plain", "checkpoints": 8}}, "unknown key 'model.gradient.checkpoints'"),
    # edges
    (
        {"weights": {"kind": "knots", "lora": {"rank": 4}}, "modulation": {}},
        "model.modulation and model.weights.lora (of rank 4) are given: low-rank adapters are beside weights that do ",
    ),
    ({"edges": [0, 0.5, 1]}, "model.edges has 3 times, but must have model.steps + 1, 7, without model.first_step."),
    (
        {"steps": 3, "weights": {"kind": "layerdrop", "nested": True, "order": [0, 2, 2]}},
        "model.weights.order is [0, 2, 2], but must have each of 3 layers once, from 0, with model.weights.nested.",
    ),
    ({"spacing": "dyadic", "first_step": 0.5}, "model.spacing is 'dyadic', but model.first_step is 0.5: depth is "),
    (
        {"spacing": "dyadic", "weights": "levels"},
        "model.spacing is 'dyadic', but model.weights is 'levels': steps of s",
    ),
    ({"first_step": 0.5, "weights": "levels"}, "model.first_step is 0.5, but model.weights is 'levels', which chooses"),
    ({"spacing": "dyadic", "weights": "layer"}, "model.spacing is 'dyadic', but model.weights is 'layer': steps of se"),
    ({"steps": 3, "edges": [0, 0.6, 0.5, 1]}, "model.edges is [0.0, 0.6, 0.5, 1.0], but must rise from 0 to 1."),
    (
        {"weights": {"kind": "knots", "average": True}, "scheme": "diffrax:Tsit5", "tolerance": {"rtol": 1e-3}},
        "model.weights.average is True, but model.tolerance is given: means over steps need a fixed grid.",
    ),
]
ACCEPTED: list[dict[str, Any]] = [
    *({"scheme": scheme} for scheme in SCHEMES),
    *({"weights": {"kind": "layer", "rows": "node"}, "scheme": scheme} for scheme in ("macaron", "heun", "reversible")),
    *({"gradient": gradient} for gradient in (None, "plain", "checkpointed", "recursive")),
    {"gradient": {"kind": "recursive", "checkpoints": 2}},
    {"scheme": {"kind": "reversible", "base": "rk4", "coupling": 1.0}, "gradient": "reversible"},
    {"scheme": "reversible", "gradient": "plain"},
    {"field": {"kind": "llama", "kv_heads": 2, "nested_norm": True, "rope_theta": 5e5}, "tied": True},
    {"weights": {"kind": "time-shared-mlp", "d_emb": 4}, "horizon": 6},
    {"scheme": "diffrax:Tsit5", "tolerance": {"rtol": 1e-3, "atol": 1e-3, "max_steps": 10}},
    {"scheme": "heun", "weights": "shared", "tolerance": {"rtol": 1e-3}, "gradient": "plain"},
    {"scheme": "euler-middle", "first_step": 0.5, "tolerance": {"rtol": 1e-3}},
]


LAYERS = {"weights": {"kind": "layerdrop", "layers": 4}, "scheme": "residual", "horizon": "steps", "steps": 4}
NESTED = LAYERS | {"weights": {"kind": "layerdrop", "nested": True}}


@pytest.mark.parametrize(("settings", "sentence"), REFUSED, ids=[str(settings) for settings, _ in REFUSED])
def test_refused(settings, sentence):
    """In a whole config, and in a model's alone, as `build` takes it."""
    for check in (validate, lambda config: validate_model(config.model)):
        with pytest.raises(BadInput) as refusal:
            check(from_dict(Config, {"model": settings}))
        message = str(refusal.value)
        assert sentence in message and message.endswith((".", "?"))


@pytest.mark.parametrize(
    ("model", "others", "sentence"),
    [
        (LAYERS | {"steps": 5}, {}, "model.weights has 4 layers, .* updates or readings are at 5 steps; raise"),
        (LAYERS, {"depth": {"sample": "2-6"}}, "has 4 layers, .* are at 6 steps"),
        (LAYERS, {"depth": {"sample": [2, 3], "always": [6]}}, "has 4 layers, .* are at 6 steps"),
        (NESTED | {"first_step": 0.5}, {}, "model.first_step is 0.5, but model.weights.nested keeps layers by"),
        (
            NESTED | {"steps": 2, "edges": [0, 0.1, 1]},
            {},
            "model.edges is .*, but model.weights.nested keeps layers by",
        ),
        ({}, {"optimizer": {"rule_roles": ["norm"]}}, "optimizer.rule_roles is norm, but optimizer.rule is 'adamw'"),
        (
            {"weights": {"kind": "time", "lowest_frequency": 20.0}},
            {"depth": {"sample": [3, 6]}},
            "lowest_frequency is 20.0, but must not exceed model.weights.highest_frequency, which is 12.0",
        ),
    ],
)
def test_what_would_have_no_effect_or_end_a_run_is_refused_before_it_begins(model, others, sentence):
    with pytest.raises(BadInput, match=sentence):
        validate(from_dict(Config, {"model": model, **others}))


@pytest.mark.parametrize("settings", ACCEPTED, ids=str)
def test_accepted(settings):
    config = from_dict(Config, {"model": settings})
    found = validate(config)
    assert validate(found) == found
    given = dataclasses.replace(found.model, weights=config.model.weights)  # its band is filled in
    assert dataclasses.replace(found, model=given) == config


def test_a_horizon_is_a_word_or_a_number():
    for horizon, length in {"unit": 1.0, "steps": 6.0, 6: 6.0, 0.5: 0.5}.items():
        assert from_dict(ModelConfig, {"horizon": horizon}).interval == length
    with pytest.raises(BadInput, match="horizon is '2.5', but must be one of 'unit', 'steps' or a number."):
        from_dict(ModelConfig, {"horizon": "2.5"})


def test_a_bare_word_is_short_for_its_kind():
    words = {"weights": "time-shared-mlp", "field": "llama", "scheme": "reversible", "gradient": "recursive"}
    config = ModelConfig(**words)
    sections = TimeConfig(kind="time-shared-mlp"), LlamaConfig(), ReversibleConfig(), RecursiveConfig()
    assert (config.weights, config.field, config.scheme, config.gradient) == sections
    assert config == from_dict(ModelConfig, words) == from_dict(ModelConfig, {k: {"kind": v} for k, v in words.items()})
    assert dataclasses.replace(config, scheme="rk4", weights="layer").scheme == SchemeConfig("rk4")
    assert ModelConfig(weights="shared").weights == SharedConfig() and ModelConfig(weights="layer").lora is None


@pytest.mark.parametrize("ordered", [1, -1])
@pytest.mark.parametrize(
    ("kind", "setting", "value"),
    [
        ("model.weights=time-shared-mlp", "d_emb", 24),
        ("model.weights=knots", "knots", 5),
        ("data.puzzle=permutations", "problems", 100),
        ("optimizer.schedule=trapezoidal", "decay_fraction", 0.3),
        ("model.scheme=reversible", "coupling", 0.9),
    ],
)
def test_a_word_and_its_settings_are_one_section_in_either_order(kind, setting, value, ordered):
    section, word = kind.split("=")
    where, last = section.split(".")
    for name in (section, f"{section}.kind"):
        given = [(name, word), (f"{section}.{setting}", value)][::ordered]
        found = getattr(getattr(with_values(Config(), dict(given)), where), last)
        assert (found.kind, getattr(found, setting)) == (word, value)


def test_the_kind_that_a_section_has_keeps_its_settings():
    """They were silently reset: a sweep over model.weights=time,layer then trained another width than the config's."""
    base = with_values(Config(), {"model.weights.d_emb": 96, "optimizer.schedule": "trapezoidal"})
    base = with_values(base, {"optimizer.schedule.decay_fraction": 0.5})
    assert with_values(base, {"model.weights": "time", "optimizer.schedule": "trapezoidal"}) == base
    for name in ("model.weights", "model.weights.kind"):
        assert with_values(base, {name: "layer"}).model.weights == LayerConfig()


def test_each_choice_of_a_model_is_a_section_that_builds_its_object():
    assert choices_of(ModelConfig).keys() == {"weights", "field", "scheme", "gradient"}
    assert LayerConfig(rows="node") == from_dict(ModelConfig, {"weights": {"kind": "layer", "rows": "node"}}).weights


def test_a_mean_over_more_updates_than_there_are_is_refused():
    given = {"optimizer": {"average": "last"}, "trainer": {"updates": 6}}
    with pytest.raises(BadInput, match=r"average.updates is 100, but must be at most trainer.updates, which is 6\."):
        validate(from_dict(Config, given))


def test_a_run_folder_in_place_of_a_config_is_told_which_config_it_has(tmp_path):
    (tmp_path / "config.yaml").touch()
    with pytest.raises(BadInput, match=r"is the folder of a run, whose config is '.*/config.yaml'\."):
        find_config(str(tmp_path))


@pytest.mark.parametrize("path", shipped_configs().values(), ids=shipped_configs())
def test_a_resolved_config_stays_valid_with_its_defaults_written_out(path, tmp_path):
    config = validate(read_yaml(path))
    (tmp_path / "config.yaml").write_text(dump_yaml(config))
    assert validate(read_yaml(tmp_path / "config.yaml")) == config
    validate_model(vanilla_twin(config.model))


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
def test_a_populated_model_has_a_valid_config(config):
    validate_model(model_of(config).populate().config)
    validate_model(vanilla_twin(dataclasses.replace(config, dropout=DropoutConfig(0.1, 0.1, 0.1))))


def sections_of(cls: type) -> set[type]:
    """Return a section and all that may stand inside it."""
    inside = [
        one for hint in hints_of(cls).values() for one in (hint, *get_args(hint)) if dataclasses.is_dataclass(one)
    ]
    return {cls}.union(*map(sections_of, inside))


def test_every_setting_says_what_it_is():
    """In the help of `train`, which reads the strings below the fields."""
    silent = []
    for section in sections_of(Config) - {Config}:
        (tree,) = ast.parse(inspect.getsource(section)).body
        assert isinstance(tree, ast.ClassDef)
        for one, following in pairwise([*tree.body, None]):
            if not isinstance(one, ast.AnnAssign) or isinstance(following, ast.Expr):
                continue
            name = ast.unparse(one.target)
            inner = any(map(dataclasses.is_dataclass, (hint := hints_of(section).get(name), *get_args(hint))))
            if name not in ("kind", "builder") and not inner:
                silent.append(f"{section.__name__}.{name}")
    assert silent == ["OwnConfig.head_width", "OwnConfig.final_norm_epsilon"]  # which kv_heads speaks for
