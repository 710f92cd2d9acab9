"""Runs to export: tiny random models with a tokenizer, without training."""

from dataclasses import replace
from pathlib import Path

from diffeqformer.config import (
    Config,
    GPTConfig,
    KnotsConfig,
    LlamaConfig,
    ModelConfig,
    ReversibleConfig,
    RotaryScalingConfig,
    dump_yaml,
)
from diffeqformer.runs.checkpoint import Checkpoints
from diffeqformer.runs.opening import Run
from tests.interop.folders import qwen_tokenizer, word_tokenizer
from tests.models import KINDS, ONE_MLP, TINY, model_of

SCALING = RotaryScalingConfig(factor=4.0, original_context=8)
"""Of three pairs of frequencies at theta 100, one stays, one is divided, and one is between."""
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
    "llama 3": replace(GROUPED, field=LlamaConfig(rope_theta=100.0, head_width=6, rope_scaling=SCALING)),
    "qwen 2": replace(GROUPED, field=LlamaConfig(kv_heads=2, biases=True)),
    "qwen 3": replace(GROUPED, field=LlamaConfig(kv_heads=2, head_norms=True, head_width=6), tied=True),
    "neox": replace(KINDS["parallel blocks"], field=GPTConfig(rotary=0.5, exact_gelu=True), tied=False),
    "time, any horizon": replace(TINY, horizon=2.5, hidden=24),
}
CONTINUOUS: dict[str, ModelConfig] = {
    "time, gpt": replace(TINY, edges=(0.0, 0.2, 0.7, 1.0)),
    "time, llama": replace(TINY, field=LlamaConfig(kv_heads=1, nested_norm=True, norm_shift=True), embedding_norm=True),
    "one mlp, gpt": replace(TINY, weights=ONE_MLP, scheme="strang", first_step=0.5, tied=False),
    "one mlp, llama": replace(TINY, weights=ONE_MLP, field="llama", scheme=ReversibleConfig("heun")),
    "knots, gpt": replace(
        TINY, weights=KnotsConfig(4, "cubic", "end", average=True), scheme="heun", embedding_norm=True, spacing="dyadic"
    ),
    "knots, llama": replace(
        TINY, weights=KnotsConfig(2), scheme="lie-trotter-middle", field="llama", horizon=3.0, spacing="thirds"
    ),
    "knots, llama 3 and qwen": replace(
        TINY,
        weights=KnotsConfig(3, "box", "end"),
        scheme="lie-trotter",
        field=LlamaConfig(
            kv_heads=1, head_width=6, biases=True, head_norms=True, rope_theta=100.0, rope_scaling=SCALING
        ),
        horizon=3.0,
    ),
    "time, qwen 3": replace(TINY, field=LlamaConfig(head_norms=True, head_width=10)),
    "knots, neox": replace(TINY, weights=KnotsConfig(2), field=GPTConfig(rotary=0.5, exact_gelu=True), tied=False),
    "shared, gpt": replace(TINY, weights="shared", scheme="residual"),
    "shared, llama": replace(TINY, weights="shared", field="llama", scheme="rk4", compute_dtype="bfloat16"),
}
"""Each source of weights that is a function of depth, in both families, and all settings of depth among them."""
EXPORTED |= CONTINUOUS
STOCK = {
    "vanilla": "GPT2LMHeadModel",
    "vanilla, untied": "GPT2LMHeadModel",
    "vanilla llama, grouped queries": "LlamaForCausalLM",
    "vanilla llama, tied": "LlamaForCausalLM",
    "llama 3": "LlamaForCausalLM",
    "qwen 2": "Qwen2ForCausalLM",
    "qwen 3": "Qwen3ForCausalLM",
    "neox": "GPTNeoXForCausalLM",
}


def run_of(model: ModelConfig | str, folder: Path = Path("runs/tiny")) -> Run:
    """A run of a config, or of one of `EXPORTED`."""
    config = EXPORTED[model] if isinstance(model, str) else model
    tokenizer = qwen_tokenizer() if config == EXPORTED["qwen 2"] else word_tokenizer()
    return Run(folder, Config(run=str(folder), model=config), tokenizer, model_of(config), 3)


def save(run: Run) -> Path:
    """Write a run into its folder, which `load_run` then opens."""
    Checkpoints(run.folder / "checkpoints").save(3, {"model": run.model}, {})
    run.tokenizer.save(str(run.folder / "tokenizer.json"))
    (run.folder / "config.yaml").write_text(dump_yaml(run.config))
    return run.folder
