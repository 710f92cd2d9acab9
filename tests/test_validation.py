"""Settings that do not fit each other, or that nothing reads, are refused in one sentence that names them."""

import dataclasses
from typing import Any

import pytest

from diffeqformer.cli.parse import shipped_configs
from diffeqformer.config import Config, DropoutConfig, ModelConfig, dump_yaml, from_dict, read_yaml
from diffeqformer.errors import BadInput
from diffeqformer.model.count import vanilla_twin
from diffeqformer.ode.schemes import SCHEMES
from diffeqformer.validation import validate, validate_model
from tests.models import KINDS, model_of

TIME_DEPENDENT = "'time' and 'time-shared-mlp' do"
REFUSED: list[tuple[dict[str, Any], str]] = [
    # sizes
    ({"width": 12, "heads": 5}, "model.width is 12, but must be divisible by model.heads, which is 5."),
    ({"family": "llama", "kv_heads": 3}, "model.kv_heads is 3, but must divide model.heads, which is 4."),
    ({"family": "llama", "kv_heads": 0}, "model.kv_heads is 0, but must be at least 1."),
    (
        {"family": "llama", "width": 12},
        "model.width / model.heads is 3, but must be even: rotary positions turn pairs.",
    ),
    ({"hidden": 0}, "model.hidden is 0, but must be at least 1."),
    ({"checkpoints": 1, "gradient": "recursive"}, "model.checkpoints is 1, but must be at least 2."),
    ({"horizon": 0}, "model.horizon is 0.0, but must be a positive number."),
    ({"horizon": -2.5}, "model.horizon is -2.5, but must be a positive number."),
    ({"horizon": float("inf")}, "model.horizon is inf, but must be a positive number."),
    ({"first_step": 1}, "model.first_step is 1.0, but must be between 0 and 1: a fraction of depth."),
    ({"first_step": 0}, "model.first_step is 0.0, but must be between 0 and 1: a fraction of depth."),
    ({"horizon": "long"}, "model.horizon is 'long', but must be one of 'unit', 'steps' or a number."),
    ({"horizon": True}, "model.horizon is True, but must be one of 'unit', 'steps' or a number."),
    ({"tied": "yes"}, "model.tied is 'yes', but must be true or false."),
    ({"gradient": "adjoint"}, "model.gradient is 'adjoint', but must be one of 'checkpointed', 'plain', 'recursive', "),
    # schemes
    (
        {"scheme": "rk5"},
        "model.scheme is 'rk5', but must be one of euler, euler-middle, lie-trotter, lie-trotter-middle, ",
    ),
    ({"scheme": "Tsit5"}, "; did you mean 'diffrax:Tsit5'?"),
    (
        {"scheme": "reversible", "reversible": {"base": "rk5"}},
        "model.reversible.base is 'rk5', but must be one of euler,",
    ),
    ({"scheme": "reversible", "reversible": {"base": "reversible"}}, "model.reversible.base is 'reversible', but must"),
    (
        {"scheme": "reversible", "reversible": {"coupling": 1.5}},
        "model.reversible.coupling is 1.5, but must be above 0 and at most 1.",
    ),
    ({"reversible": {"coupling": 0}}, "model.reversible.coupling is 0.0, but must be a positive number."),
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
        "model.tolerance.rtol is given, but model.scheme 'euler' has no error estimate to choose steps by; midpoint, ",
    ),
    (
        {"tolerance": {"rtol": 1e-3}, "scheme": "heun", "weights": "layer"},
        "model.tolerance.rtol is given, but model.weights is 'layer': a table of layers has no weights between its ",
    ),
    # settings that nothing reads
    ({"kv_heads": 2}, "model.kv_heads is 2, but model.family 'gpt' does not read it; 'llama' does."),
    ({"nested_norm": True}, "model.nested_norm is True, but model.family 'gpt' does not read it; 'llama' does."),
    ({"rope_theta": 5e5}, "model.rope_theta is 500000.0, but model.family 'gpt' does not read it; 'llama' does."),
    ({"layer_rows": "node"}, "model.layer_rows is 'node', but model.weights 'time' does not read it; 'layer' does."),
    (
        {"weights": "shared", "time": {"d_emb": 4}},
        f"model.time.d_emb is 4, but model.weights 'shared' does not read it; {TIME_DEPENDENT}.",
    ),
    (
        {"weights": "layer", "time": {"frequencies": 4}},
        f"model.time.frequencies is 4, but model.weights 'layer' does not read it; {TIME_DEPENDENT}.",
    ),
    (
        {"reversible": {"base": "heun"}},
        "model.reversible.base is 'heun', but model.scheme 'euler' does not read it; 'reversible' does.",
    ),
    ({"checkpoints": 8}, "model.checkpoints is 8, but model.gradient None does not read it; 'recursive' does."),
    (
        {"tolerance": {"atol": 1e-3}},
        "model.tolerance.atol is 0.001, but a model without model.tolerance.rtol does not read it; one with it does.",
    ),
]
ACCEPTED: list[dict[str, Any]] = [
    *({"scheme": scheme} for scheme in SCHEMES),
    *({"weights": "layer", "layer_rows": "node", "scheme": scheme} for scheme in ("macaron", "heun", "reversible")),
    *({"gradient": gradient} for gradient in (None, "plain", "checkpointed", "recursive")),
    {"gradient": "recursive", "checkpoints": 2},
    {"scheme": "reversible", "gradient": "reversible", "reversible": {"base": "rk4", "coupling": 1.0}},
    {"scheme": "reversible", "gradient": "plain"},
    {"family": "llama", "kv_heads": 2, "nested_norm": True, "rope_theta": 5e5, "tied": True},
    {"weights": "time-shared-mlp", "time": {"d_emb": 4}, "horizon": 6},
    {"scheme": "diffrax:Tsit5", "tolerance": {"rtol": "1e-3", "atol": 1e-3, "max_steps": 10}},
    {"scheme": "heun", "weights": "shared", "tolerance": {"rtol": 1e-3}, "gradient": "plain"},
]


@pytest.mark.parametrize(("settings", "sentence"), REFUSED, ids=[str(settings) for settings, _ in REFUSED])
def test_refused(settings, sentence):
    with pytest.raises(BadInput) as refusal:
        validate(from_dict(Config, {"model": settings}))
    message = str(refusal.value)
    assert sentence in message and message.endswith((".", "?"))


@pytest.mark.parametrize("settings", ACCEPTED, ids=str)
def test_accepted(settings):
    config = from_dict(Config, {"model": settings})
    found = validate(config)
    assert validate(found) == found
    given = dataclasses.replace(found.model, time=config.model.time)  # its band is filled in
    assert dataclasses.replace(found, model=given) == config


def test_a_horizon_is_a_word_or_a_number():
    lengths = {"unit": 1.0, "steps": 6.0, 6: 6.0, "2.5": 2.5, 0.5: 0.5}
    for horizon, length in lengths.items():
        assert from_dict(ModelConfig, {"horizon": horizon}).interval == length


def test_every_setting_of_a_model_is_checked_for_whether_it_is_read():
    """Of a model that reads as little as possible, each setting changed alone is refused, or changes what it does."""
    least = ModelConfig(weights="shared")
    unread = {"kv_heads": 2, "nested_norm": True, "rope_theta": 1.0, "layer_rows": "node", "checkpoints": 3}
    for name, value in unread.items():
        with pytest.raises(BadInput, match=f"model.{name} is .* does not read it"):
            validate_model(dataclasses.replace(least, **{name: value}))
    read = {"family", "weights", "scheme", "horizon", "steps", "width", "heads", "hidden", "context", "vocabulary"}
    read |= {"norm_epsilon", "init_std", "compute_dtype", "gradient", "tied", "dropout", "first_step"}
    grouped = {"reversible", "tolerance", "time", "lora"}
    assert {field.name for field in dataclasses.fields(ModelConfig)} == unread.keys() | read | grouped


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
