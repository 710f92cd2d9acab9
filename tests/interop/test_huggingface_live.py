"""Folders that Transformers itself saves give its logits here."""

import equinox as eqx
import jax
import numpy as np
import pytest

from diffeqformer.config import GPTConfig
from diffeqformer.interop.huggingface import from_huggingface, to_huggingface
from tests.tolerances import STATES
from tests.truth.make_golden import GPT2, LLAMA, random_gpt2, random_llama, randomised, state

pytestmark = pytest.mark.torch

SCALED = {"rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SCALED |= {"original_max_position_embeddings": 8}
HALF = {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5}


def random_kin(model_type: str, **settings):
    """A relative of Llama, or of GPT."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(model_type, **LLAMA | settings, attn_implementation="eager")
    return randomised(AutoModelForCausalLM.from_config(config), 11, 0.1)


KINDS = {
    "gpt2": lambda: random_gpt2(11, 0.1, **GPT2),
    "gpt2, hidden of another width": lambda: random_gpt2(11, 0.1, **GPT2, n_inner=24),
    "gpt2, head of its own": lambda: random_gpt2(11, 0.1, **GPT2, tie_word_embeddings=False),
    "gpt2, exact GELU": lambda: random_gpt2(11, 0.1, **GPT2, activation_function="gelu"),
    "gpt2, larger": lambda: random_gpt2(11, 0.1, n_embd=96, n_layer=4, n_head=6, n_positions=64, vocab_size=300),
    "llama, grouped queries": lambda: random_llama(11, 0.1, **LLAMA),
    "llama, one key and value for all": lambda: random_llama(11, 0.1, **LLAMA | {"num_key_value_heads": 1}),
    "llama, a key and value each": lambda: random_llama(11, 0.1, **LLAMA | {"num_key_value_heads": 4}),
    "llama, tied head": lambda: random_llama(11, 0.1, **LLAMA, tie_word_embeddings=True),
    "llama 3, wider heads": lambda: random_llama(11, 0.1, **LLAMA, head_dim=6, rope_parameters=SCALED),
    "qwen2": lambda: random_kin("qwen2"),
    "qwen3": lambda: random_kin("qwen3", head_dim=6, tie_word_embeddings=True),
    "mistral": lambda: random_kin("mistral", sliding_window=None),
    "mistral, window shorter than its context": lambda: random_kin("mistral", sliding_window=9),
    "gpt_neox": lambda: random_kin("gpt_neox", rope_parameters=HALF),
    "gpt_neox, one half after the other": lambda: random_kin(
        "gpt_neox", rope_parameters=HALF, use_parallel_residual=False, hidden_act="gelu_new"
    ),
}


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS.keys())
@pytest.mark.parametrize("largest_file", ["5GB", "10KB"], ids=["one file", "several"])
def test_logits(make, largest_file, tmp_path):
    import torch

    reference = make()
    reference.save_pretrained(tmp_path, max_shard_size=largest_file)
    assert (tmp_path / "model.safetensors.index.json").exists() == (largest_file == "10KB")
    model = from_huggingface(tmp_path)
    ids = np.random.default_rng(3).integers(0, reference.config.vocab_size, (2, model.config.context), dtype=np.int32)
    with torch.no_grad():
        expected = reference(torch.from_numpy(ids).long()).logits.numpy()
    difference = np.abs(np.asarray(eqx.filter_jit(model)(ids)) - expected).max()
    print(f"largest difference of a logit: {difference:.1e} of {np.abs(expected).max():.1f}")
    assert difference <= STATES
    settings, tensors = to_huggingface(model)
    own = state(reference)
    kind = reference.config.model_type.replace("mistral", "llama")  # which it is, up to the length of its window
    assert settings["model_type"] == kind and tensors.keys() == own.keys()
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(tensor, own[name], name)


def test_an_older_gpt_neox(tmp_path):
    """As Pythia was published: other names for the head and the rotary embedding, and masks among the tensors."""
    import json

    from safetensors.numpy import load_file, save_file

    KINDS["gpt_neox"]().save_pretrained(tmp_path)
    expected = from_huggingface(tmp_path)
    path, settings = tmp_path / "model.safetensors", json.loads((tmp_path / "config.json").read_text())
    del settings["rope_parameters"]
    (tmp_path / "config.json").write_text(json.dumps(settings | {"rotary_pct": 0.5, "rotary_emb_base": 100}))
    tensors = load_file(path)
    names = {"lm_head.weight": "embed_out.weight"}
    masks = {"gpt_neox.layers.0.attention.bias": np.ones((1, 1, 16, 16), bool)}
    masks |= {"gpt_neox.layers.0.attention.masked_bias": np.asarray(-1e9, np.float32)}
    save_file({names.get(name, name): tensor for name, tensor in tensors.items()} | masks, path, {"format": "pt"})
    found = from_huggingface(tmp_path)
    assert found.config == expected.config
    assert found.config.field == GPTConfig(rotary=0.5, rope_theta=100.0, exact_gelu=True)
    jax.tree.map(np.testing.assert_array_equal, found, expected)
