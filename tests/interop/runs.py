"""Runs to export: tiny random models with a tokenizer, without training."""

import dataclasses
from pathlib import Path

from diffeqformer.config import Config, ModelConfig
from diffeqformer.runs.opening import Run
from tests.interop.folders import word_tokenizer
from tests.models import KINDS, PLAIN, TINY, model_of

EXPORTED: dict[str, ModelConfig] = {
    **KINDS,
    "time, heun": dataclasses.replace(TINY, scheme="heun"),
    "time, midpoint": dataclasses.replace(TINY, scheme="midpoint"),
    "time, macaron, llama, nested norm": dataclasses.replace(TINY, family="llama", scheme="macaron", nested_norm=True),
    "vanilla, untied": dataclasses.replace(KINDS["vanilla"], tied=False),
    "vanilla llama, tied": dataclasses.replace(KINDS["vanilla llama, grouped queries"], tied=True, kv_heads=None),
    "parallel llama, grouped queries, tied": dataclasses.replace(
        PLAIN, family="llama", weights="layer", horizon="steps", heads=4, kv_heads=2, tied=True, rope_theta=100.0
    ),
    "time, any horizon": dataclasses.replace(TINY, horizon=2.5, hidden=24),
}
STOCK = {
    "vanilla": "GPT2LMHeadModel",
    "vanilla, untied": "GPT2LMHeadModel",
    "vanilla llama, grouped queries": "LlamaForCausalLM",
    "vanilla llama, tied": "LlamaForCausalLM",
}


def run_of(model: ModelConfig | str, folder: Path = Path("runs/tiny")) -> Run:
    """A run of a config, or of one of `EXPORTED`."""
    config = EXPORTED[model] if isinstance(model, str) else model
    return Run(folder, Config(run=str(folder), model=config), word_tokenizer(), model_of(config), 3)
