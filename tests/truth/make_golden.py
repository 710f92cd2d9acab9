"""Writes gpt2_golden.npz: a tiny random GPT-2 of Hugging Face, its input and its logits. Needs torch and transformers.

    python tests/truth/make_golden.py

Every parameter is random, biases and norms too, so that none can be missing or exchanged unseen. Weights are whole
multiples of 1/32: exact in float16, and quick to compress. The logits are computed in float64.
"""

from pathlib import Path

import numpy as np

GOLDEN = Path(__file__).with_name("gpt2_golden.npz")
SIZES = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16, "vocab_size": 32}


def random_gpt2(seed: int, std: float, **sizes: int):
    """A GPT2LMHeadModel in evaluation mode and float32 whose every parameter is random, a whole multiple of 1/32.

    Norm scales are normal around one, all other parameters around zero, with standard deviation `std`.
    """
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, attn_implementation="eager")).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            centre = 1.0 if ".ln_" in name and name.endswith("weight") else 0.0
            values = centre + std * torch.randn(parameter.shape, generator=generator)
            parameter.copy_((32 * values).round() / 32)
    return model


def state(model) -> dict[str, np.ndarray]:
    """The parameters by Hugging Face's names; the head is tied to the embedding and has no entry of its own."""
    return {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}


def main() -> None:
    import torch

    model = random_gpt2(seed=2357, std=0.3, **SIZES)
    weights = {name: array.astype(np.float16) for name, array in state(model).items()}
    ids = np.random.default_rng(7).integers(0, SIZES["vocab_size"], (2, 12), dtype=np.int32)
    with torch.no_grad():
        logits = model.double()(torch.from_numpy(ids).long()).logits.numpy().astype(np.float32)
    np.savez_compressed(GOLDEN, ids=ids, logits=logits, heads=np.int32(SIZES["n_head"]), **weights)
    print(f"{GOLDEN}: {GOLDEN.stat().st_size} bytes, logits from {logits.min():.2f} to {logits.max():.2f}")


if __name__ == "__main__":
    main()
