"""Folders as Transformers writes them, made of the golden files' weights, without Transformers."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import save_file
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from diffeqformer.interop.exporting import QWEN2

TRUTH = Path(__file__).parents[1] / "truth"
WORDS = ["the", "a", "one", "cat", "dog", "river", "sees", "eats", "likes", "stars", "fish", "songs"]
CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": {
        "model_type": "gpt2",
        "n_embd": 16,
        "n_layer": 2,
        "n_head": 2,
        "n_positions": 16,
        "vocab_size": 32,
        "n_inner": None,
        "resid_pdrop": 0.0,  # compiling dropout takes many times as long as all else
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "eos_token_id": 0,
    },
    "llama": {
        "model_type": "llama",
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 4,
        "max_position_embeddings": 16,
        "vocab_size": 32,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
        "tie_word_embeddings": False,
    },
}


class Golden(NamedTuple):
    """Weights by Hugging Face's names, tokens, and the logits that Transformers gives."""

    tensors: dict[str, np.ndarray]
    ids: jax.Array
    logits: np.ndarray


def golden(kind: str) -> Golden:
    """What `tests/truth/make_golden.py` wrote of a family."""
    with np.load(TRUTH / f"{kind}_golden.npz") as arrays:
        tensors = {name: arrays[name].astype(np.float32) for name in arrays if name.endswith((".weight", ".bias"))}
        return Golden(tensors, jnp.asarray(arrays["ids"]), arrays["logits"])


def word_tokenizer() -> Tokenizer:
    """A tokenizer of whole words that is small enough for the golden models' 32 entries."""
    names = ["</s>", "<unk>", *WORDS]
    tokenizer = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def qwen_tokenizer() -> Tokenizer:
    """The same words, but text is split as Qwen 2's tokenizer does."""
    tokenizer, split = word_tokenizer(), pre_tokenizers.Split(Regex(QWEN2), "isolated")
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    return tokenizer


def write(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, np.ndarray], dtype: Any = np.float32, shards: int = 1
) -> Path:
    """Write a model's folder with a tokenizer, its tensors of type `dtype` spread over `shards` files."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    word_tokenizer().save(str(folder / "tokenizer.json"))
    arrays = {name: np.ascontiguousarray(array.astype(dtype)) for name, array in tensors.items()}
    if shards == 1:
        save_file(arrays, folder / "model.safetensors", {"format": "pt"})
        return folder
    files = [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
    for i, file in enumerate(files):
        save_file(dict(list(arrays.items())[i::shards]), folder / file, {"format": "pt"})
    places = {name: files[i % shards] for i, name in enumerate(arrays)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return folder
