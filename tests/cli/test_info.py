"""`info` says whose attention an update has on a GPU."""

import json
from types import SimpleNamespace

import jax
import pytest

from diffeqformer.cli import info, main
from diffeqformer.config import Config, DataConfig, ModelConfig, PHopConfig, TimeConfig, read_yaml, shipped_configs
from diffeqformer.data.tokenizer import vocabulary_size
from diffeqformer.runs import folder as run_folder

THERE = "cuDNN's flash attention, if JAX finds cuDNN there and it takes heads of width {}"
DROPS = "XLA's, since model.dropout.attention is 0.1; cuDNN's flash attention needs 0"


@pytest.fixture
def gpu(monkeypatch):
    """This machine has an H100."""
    monkeypatch.setattr(jax, "local_devices", lambda backend: [SimpleNamespace(compute_capability="9.0")])


@pytest.fixture
def said(monkeypatch, capsys):
    """What `info --json` has of attention; memory is not counted."""
    monkeypatch.setattr(info, "_measure", lambda config, compiled: {"memory_bytes": {"total": 1}})

    def told(*words):
        assert main(["info", *words, "--json"]) == 0
        return json.loads(capsys.readouterr().out).get("attention")

    return told


@pytest.mark.parametrize("size, width", [("gpt-small", 64), ("gpt-medium", 64), ("gpt-large", 64), ("llama-1b", 128)])
def test_the_large_presets_can_have_cudnns_attention(size, width):
    for name in (size, f"diffeqformer-{size}"):
        assert info._attention(read_yaml(shipped_configs()[name]), "a100-40gb") == THERE.format(width)


def test_a_card_that_is_elsewhere(said):
    name = "gpt-small"
    assert said(name) is None and said(name, "--card", "tpu-v4") is None
    assert said(name, "--card", "h100") == THERE.format(64)
    assert said(name, "--card", "h100", "--model.dropout.attention", "0.1") == DROPS
    assert said(name, "--card", "t4") == "XLA's, since the compute capability is 7.5; cuDNN's flash attention needs 8"
    float32 = said(name, "--card", "h100", "--model.compute-dtype", "float32")
    assert float32 == "XLA's, since model.compute_dtype is float32; cuDNN's flash attention needs bfloat16"


def test_the_gpu_that_is_here(said, gpu, cudnn):
    assert said("llama-1b") == "cuDNN's flash attention"
    assert said("gpt-small", "--model.dropout.attention", "0.1") == DROPS
    refused = said("gpt-small", "--model.width", "120")  # heads of 10
    assert refused.startswith("XLA's, since JAX refuses cuDNN's: The head dim must be")
    assert said("gpt-small", "--card", "t4").startswith("XLA's")  # another than the one here


def test_a_gpu_without_cudnn(said, gpu, no_cudnn):
    assert said("gpt-small") == "XLA's, since JAX refuses cuDNN's: cuDNN is not detected."


def test_the_vocabulary_of_a_puzzle_is_its_own():
    puzzle = PHopConfig(letters=3, length=7, most_hops=2)
    config = info._with_vocabulary(Config(data=DataConfig(source="puzzle", puzzle=puzzle)))
    assert config.model.vocabulary == vocabulary_size(puzzle.build().tokenizer()) < 20


def test_a_line_of_the_table_says_it(gpu, cudnn, capsys):
    words = ("--model.vocabulary", "280", "--model.compute-dtype", "bfloat16")
    assert main(["info", "quickstart-gpt", *words]) == 0
    assert "\nattention: cuDNN's flash attention\n" in capsys.readouterr().out
    assert main(["info", "quickstart-gpt", *words, "--model.dropout.attention", "0.1"]) == 0
    assert f"\nattention: {DROPS}\n" in capsys.readouterr().out


def test_a_share_of_nearly_all_operations_is_no_power_of_ten(capsys):
    config = Config(model=ModelConfig(steps=2, width=16, heads=2, context=16, vocabulary=280))
    info._print_d_emb(config, [{"d_emb": 8, "stored": 9, "generation_share": 0.996}])
    assert "99.6 %" in capsys.readouterr().out


def test_a_share_of_operations_is_of_all_of_them():
    """Those of generated weights included: with ever more features it goes to 1."""
    weights = TimeConfig(d_emb=5_000)
    config = Config(model=ModelConfig(weights=weights, steps=2, width=16, heads=2, context=16, vocabulary=280))
    shares = {one["d_emb"]: one["generation_share"] for one in info._d_emb_choices(config, weights)}
    assert all(0 < share < 1 for share in shares.values())
    assert shares[5_000] > 0.5 and shares[5_000] == max(shares.values()) > min(shares.values())


def test_a_run_whose_name_begins_with_a_dash(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_folder, "open_config", lambda folder: None)
    (tmp_path / "-mine").mkdir()
    (tmp_path / "-mine/config.yaml").write_text("model: {vocabulary: 300, steps: 5}\n")
    assert main(["info", "./-mine"]) == 0
    assert "5 steps" in capsys.readouterr().out
