"""Runs to export: tiny random models with a tokenizer, without training."""

from dataclasses import replace
from pathlib import Path

from diffeqformer.config import Config, LlamaConfig, ModelConfig
from diffeqformer.runs.opening import Run
from tests.interop.folders import word_tokenizer
from tests.models import KINDS, TINY, model_of

GROUPED = KINDS["vanilla llama, grouped queries"]
EXPORTED: dict[str, ModelConfig] = {
    **KINDS,
    "time, heun": replace(TINY, scheme="heun"),
    "time, midpoint": replace(TINY, scheme="midpoint"),
    "time, macaron, llama, nested norm": replace(TINY, field=LlamaConfig(nested_norm=True), scheme="macaron"),
    "time, heun, llama, nested norm": replace(TINY, field=LlamaConfig(nested_norm=True), scheme="heun"),
    "time, llama as released": replace(
        TINY, field=LlamaConfig(nested_norm=True, norm_shift=True, final_norm_epsilon=0.01), norm_epsilon=0.1
    ),
    "vanilla, untied": replace(KINDS["vanilla"], tied=False),
    "vanilla llama, tied": replace(GROUPED, field="llama", tied=True),
    "parallel llama, grouped queries, tied": replace(
        GROUPED, scheme="euler", field=LlamaConfig(kv_heads=2, rope_theta=100.0), tied=True
    ),
    "time, any horizon": replace(TINY, horizon=2.5, hidden=24),
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
