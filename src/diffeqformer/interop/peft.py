"""Low-rank adapters in the format of Hugging Face's PEFT.

Ours are stacked over layers; PEFT's are one for each module: `lora_A`, (rank, inputs), and `lora_B`, (outputs, rank).
Where several of their modules are side by side in one matrix of ours, as Llama's query, key and value are, each has the
same A and its own columns of B.
"""

import json
import re
from pathlib import Path

import equinox as eqx
import numpy as np

from diffeqformer.errors import BadInput
from diffeqformer.interop.huggingface import FAMILIES, TABLE, kind_of, places
from diffeqformer.interop.tensors import save
from diffeqformer.model.transformer import Transformer
from diffeqformer.nn.linear import AdaptedLinear
from diffeqformer.ode.lora import linear_maps
from diffeqformer.ode.weights import LayerWeights
from diffeqformer.training.files import write_whole

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
OUTER = "base_model.model."


def save_adapter(model: Transformer, folder: str | Path, base: str) -> None:
    """Write the adapters of a model into `folder`, for `PeftModel.from_pretrained(base_model, folder)`.

    Only the adapters: whatever else was trained with them, such as embeddings, is part of the base model, which is
    `model.without_adapters()` as `export` writes it.

    **Arguments:** `model`, with adapters; `folder`, made if it is not there; `base`, name or folder of the base model.

    **Raises:** `BadInput` if the model has no adapters.
    """
    lora, folder = model.config.lora, Path(folder)
    if not model.config.adapted or not isinstance(model.weights, LayerWeights):
        raise BadInput("the model has no low-rank adapters that could be saved.")
    config = eqx.filter_eval_shape(lambda m: m.without_adapters().populate(), model).config
    kind = kind_of(config)
    family, tensors = FAMILIES[kind], {}
    modules_of = places(family, config)
    for name, linear in linear_maps(model.weights.layers).items():
        if not isinstance(linear, AdaptedLinear):
            continue
        a, b = np.asarray(linear.adapter.a, np.float32), np.asarray(linear.adapter.b, np.float32)
        for part in modules_of[f"{TABLE}{name}.weight"]:
            module = OUTER + family.prefix + part.theirs.removesuffix(".weight")
            tensors[f"{module}.lora_A.weight"] = np.ascontiguousarray(a[part.at[0]].T)
            tensors[f"{module}.lora_B.weight"] = np.ascontiguousarray(b[part.at].T)
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": lora.dropout,
        "target_modules": sorted({re.sub(r".*\.\d+\.|\.lora_[AB]\.weight$", "", name) for name in tensors}),
        "fan_in_fan_out": not family.outputs_first,
        "bias": "none",
        "modules_to_save": None,
        "inference_mode": True,
    }
    folder.mkdir(parents=True, exist_ok=True)
    save(tensors, folder / WEIGHTS)
    write_whole(folder / CONFIG, json.dumps(settings, indent=2) + "\n")
