"""Writes gpt2_golden.npz and llama_golden.npz: a tiny random model of Hugging Face each, its input and its logits.

    python tests/truth/make_golden.py        # needs torch and transformers

And released_llama_golden.npz: the same of the formulas in `released_llama.py`, which need NumPy only.

Every parameter is random, biases and norms too, so that none can be missing or exchanged unseen. Weights are whole
multiples of 1/32: exact in float16, and quick to compress. The logits are computed in float64.
"""

from pathlib import Path
from typing import Any

import numpy as np

GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16, "vocab_size": 32}
LLAMA = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 16,
    "rope_theta": 100.0,
    "vocab_size": 32,
}


def random_gpt2(seed: int, std: float, **sizes: int):
    """A GPT2LMHeadModel in evaluation mode and float32 with `randomised` parameters."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, attn_implementation="eager")
    return randomised(GPT2LMHeadModel(config), seed, std)


def random_llama(seed: int, std: float, **settings: Any):
    """A LlamaForCausalLM in evaluation mode and float32 with `randomised` parameters."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**settings, rms_norm_eps=1e-5, attn_implementation="eager")
    return randomised(LlamaForCausalLM(config), seed, std)


def randomised(model, seed: int, std: float):
    """The model in evaluation mode, every parameter random, a whole multiple of 1/32.

    Norm scales are normal around one, all other parameters around zero, with standard deviation `std`.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            centre = 1.0 if (".ln_" in name or "norm" in name) and name.endswith("weight") else 0.0
            values = centre + std * torch.randn(parameter.shape, generator=generator)
            parameter.copy_((32 * values).round() / 32)
    return model.eval()


def state(model) -> dict[str, np.ndarray]:
    """The parameters by Hugging Face's names; a head that is tied to the embedding has no entry of its own."""
    return {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}


def write(name: str, model, settings: dict[str, np.generic]) -> None:
    """Write parameters, `settings` that their shapes do not show, input and logits beside this file."""
    import torch

    path = Path(__file__).with_name(f"{name}_golden.npz")
    weights = {name: array.astype(np.float16) for name, array in state(model).items()}
    ids = np.random.default_rng(7).integers(0, model.config.vocab_size, (2, 12), dtype=np.int32)
    with torch.no_grad():
        logits = model.double()(torch.from_numpy(ids).long()).logits.numpy().astype(np.float32)
    np.savez_compressed(path, ids=ids, logits=logits, **settings, **weights)
    print(f"{path}: {path.stat().st_size} bytes, logits from {logits.min():.2f} to {logits.max():.2f}")


def write_formulas() -> None:
    """The same of the authors' Llama, by formulas of our own."""
    import released_llama

    path, parameters = Path(__file__).with_name("released_llama_golden.npz"), released_llama.random_parameters(2357)
    sizes = released_llama.SIZES
    ids = np.random.default_rng(7).integers(0, sizes["vocabulary"], (2, sizes["context"]), dtype=np.int32)
    logits = np.stack([released_llama.logits_of(parameters, row) for row in ids])
    weights = {name: array.astype(np.float16) for name, array in parameters.items()}
    assert all(np.array_equal(weights[name], parameters[name]) for name in weights)
    np.savez_compressed(path, ids=ids, logits=logits.astype(np.float32), **weights)
    print(f"{path}: {path.stat().st_size} bytes, logits from {logits.min():.2f} to {logits.max():.2f}")


def main() -> None:
    write("gpt2", random_gpt2(seed=2357, std=0.3, **GPT2), {"heads": np.int32(GPT2["n_head"])})
    settings = {
        "heads": np.int32(LLAMA["num_attention_heads"]),
        "context": np.int32(LLAMA["max_position_embeddings"]),
        "rope_theta": np.float64(LLAMA["rope_theta"]),
    }
    write("llama", random_llama(seed=2357, std=0.3, **LLAMA), settings)
    write_formulas()


if __name__ == "__main__":
    main()
