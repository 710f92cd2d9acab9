"""Low-rank adapters in the format of Hugging Face's PEFT.

This library stacks adapters over layers; PEFT has one for each module: `lora_A`, (rank, inputs), and `lora_B`,
(outputs, rank). Several of PEFT's modules may lie side by side in one matrix here, such as Llama's query, key and
value. On export they get the same A, and each its own columns of B. On import, if their A differ, adapters are placed
side by side, and their ranks add up.
"""

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from diffeqformer.config import LoRAConfig, from_dict, validate_model
from diffeqformer.errors import BadInput
from diffeqformer.interop.families import FAMILIES, Family, kind_of
from diffeqformer.interop.huggingface import TABLE, Place, places
from diffeqformer.interop.tensors import Stored, no_tensors, read_json, require_folder, save, tensors_in
from diffeqformer.model.transformer import Transformer
from diffeqformer.nn.linear import AdaptedLinear
from diffeqformer.ode.lora import attach, linear_maps
from diffeqformer.ode.weights import LayerWeights
from diffeqformer.store.files import write_whole
from diffeqformer.store.folders import require_sums, write_sums
from diffeqformer.store.paths import path_of

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
OUTER = "base_model.model."


def save_adapter(model: Transformer, folder: str | Path, base: str) -> None:
    """Write the adapters of a model into `folder`, for `PeftModel.from_pretrained(base_model, folder)`.

    Only adapters are written. Anything else trained with them, such as embeddings, belongs to the base model, which is
    `model.without_adapters()` as `export` writes it.

    **Arguments:** `model`, with adapters; `folder`, created if missing; `base`, name or folder of the base model.

    **Raises:** `BadInput` if the model has no adapters.
    """
    lora, folder = model.config.lora, Path(folder)
    if lora is None or not isinstance(model.weights, LayerWeights):
        raise BadInput(
            "the model has no low-rank adapters that could be saved; model.weights.lora.rank must be at least 1."
        )
    config = eqx.filter_eval_shape(lambda m: m.without_adapters().populate(), model).config
    kind = kind_of(config)
    family, tensors = FAMILIES[kind], {}
    modules_of = places(family, config)
    for name, linear in linear_maps(model.weights.layers).items():
        if not isinstance(linear, AdaptedLinear):
            continue
        a, b = np.asarray(linear.adapter.a, np.float32), np.asarray(linear.adapter.b, np.float32)
        for part in modules_of[f"{TABLE}{name}.weight"]:
            name_a, name_b = _names(family, part)
            tensors[name_a] = np.ascontiguousarray(a[part.at[0]].T)
            tensors[name_b] = np.ascontiguousarray(b[part.at][..., part.order].T)
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": lora.dropout,
        # Without the layer number: PEFT adapts every module whose name ends in one of these.
        "target_modules": sorted({re.sub(r".*\.\d+\.|\.lora_[AB]\.weight$", "", name) for name in tensors}),
        "fan_in_fan_out": not family.outputs_first,
        "bias": "none",
        "modules_to_save": None,
        "inference_mode": True,
    }
    folder.mkdir(parents=True, exist_ok=True)
    save(tensors, folder / WEIGHTS)
    write_whole(folder / CONFIG, json.dumps(settings, indent=2) + "\n")
    write_sums(folder)


@dataclass(frozen=True)
class Settings:
    """The settings of adapter_config.json that an adapter's values depend on; defaults are those of PEFT."""

    r: int = 8
    lora_alpha: float = 8.0
    lora_dropout: float = 0.0
    use_rslora: bool = False

    @property
    def scale(self) -> float:
        """The factor by which `A B` is multiplied."""
        return self.lora_alpha / (self.r**0.5 if self.use_rslora else self.r)


ONLY = {"peft_type": "LORA", "bias": "none"}
EMPTY = (
    "use_dora", "use_qalora", "lora_bias", "rank_pattern", "alpha_pattern", "modules_to_save", "target_parameters",
    "trainable_token_indices", "layer_replication", "alora_invocation_tokens", "monteclora_config",
    "kasa_config", "use_bdlora",
)  # fmt: skip
"""Settings accepted only with these values (`ONLY`), or only if they are empty or false (`EMPTY`)."""
BESIDE = (True, False, None, "gaussian", "orthogonal", "eva", "mica")
"""Values of `init_lora_weights` that leave the base model alone; with others (PiSSA, OLoRA, ...) PEFT changes it."""


def load_adapter(model: Transformer, folder: str | Path) -> Transformer:
    """Add low-rank adapters of PEFT to a model, as `PeftModel.from_pretrained(model, folder)` does.

    A module without an adapter in the folder gets a zero adapter if others of its kind have one. Ranks are made equal
    by padding with zeros: adapters of Llama's query, key and value become one of three times their rank.

    **Arguments:** `model`, a table of layers without adapters: imported, vanilla, or populated; `folder`, with
    adapter_config.json and adapter_model.safetensors, made for the model as `export` writes it.

    **Raises:** `BadInput` if the adapter is of another kind, made for another model, or incomplete.
    """
    folder = path_of(folder)
    if not isinstance(model.weights, LayerWeights) or model.config.lora:
        raise BadInput(
            "adapters can only be put beside a table of layers that has none; model.populate() writes one out, and "
            "model.merge() adds the adapters that it has into their matrices."
        )
    require_folder(folder, "adapter folder", "`export --adapter` and PEFT make such folders")
    require_sums(folder, (WEIGHTS, CONFIG))
    settings = _read_settings(folder / CONFIG)
    if not (folder / WEIGHTS).is_file():
        way = "PeftModel.from_pretrained(BASE_MODEL, FOLDER).save_pretrained(NEW_FOLDER) of PEFT"
        raise BadInput(no_tensors(folder, f"no {WEIGHTS}; other formats than PEFT's are not read", way))
    family = FAMILIES[kind_of(model.config)]
    theirs = places(family, model.config)
    modules = {name: theirs[f"{TABLE}{name}.weight"] for name in linear_maps(model.weights.layers)}
    stored = tensors_in(folder / WEIGHTS)
    _require_places(stored, family, modules, folder)
    found: dict[str, Layers] = {}
    for name, parts in modules.items():
        for part in parts:
            if (halves := _halves(stored, family, part, settings, folder)) is not None:
                found.setdefault(name, defaultdict(list))[part.at[0]].append((part, *halves))
    if not found:
        raise BadInput(f"adapter folder {str(folder)!r} has no adapter of this model's linear maps.")
    # Modules of one matrix that share one A need only rank r; otherwise their ranks add up.
    each = [modules for layers in found.values() for modules in layers.values()]
    rank = max(settings.r if _shared(modules) else settings.r * len(modules) for modules in each)
    least = min(side for name in found for side in linear_maps(model.weights.layers)[name].weight.shape[-2:])
    if rank > least:
        raise BadInput(
            f"adapter folder {str(folder)!r}: modules that are one matrix here need rank {rank} together (r is "
            f"{settings.r}), but a matrix has {least} at most; merge the adapter with PEFT and import the result."
        )
    # alpha / rank stays PEFT's scale, whatever the combined rank of modules side by side.
    lora = LoRAConfig(rank, settings.scale * rank, settings.lora_dropout, tuple(found))
    config = validate_model(replace(model.config, weights=replace(model.config.weights, lora=lora)))
    # The key is of no account: every A is replaced below.
    weights = model.weights.changed(partial(attach, lora=lora, key=jax.random.key(0)))
    for name, layers in found.items():
        adapter = linear_maps(weights.layers)[name].adapter
        a, b = _side_by_side(layers, np.zeros(adapter.a.shape, np.float32), np.zeros(adapter.b.shape, np.float32))
        where = lambda w, name=name: (linear_maps(w.layers)[name].adapter.a, linear_maps(w.layers)[name].adapter.b)
        weights = eqx.tree_at(where, weights, (jnp.asarray(a), jnp.asarray(b)))
    return model.replace(weights=weights, config=config)


Modules = list[tuple[Place, np.ndarray, np.ndarray]]
"""The modules with an adapter in one matrix of ours, with their A (inputs, rank) and B (rank, outputs)."""
Layers = dict[int, Modules]
"""The modules with an adapter in one linear map of ours, by layer."""


def _read_settings(path: Path) -> Settings:
    values = read_json(path)
    for name in (*ONLY, *EMPTY):
        value = values.get(name)
        if value and value != ONLY.get(name):
            must = f"must be {ONLY[name]!r}" if name in ONLY else "must be empty or false"
            raise BadInput(f"file {str(path)!r}: {name} is {value!r}, but {must} for an adapter that can be read.")
    if (way := values.get("init_lora_weights")) not in BESIDE:
        raise BadInput(
            f"file {str(path)!r}: init_lora_weights is {way!r}, with which PEFT changes the base model too; "
            "convert the adapter to plain LoRA first (path_initial_model_for_weight_conversion of save_pretrained)."
        )
    try:
        known = {field.name: values[field.name] for field in fields(Settings) if values.get(field.name) is not None}
        settings = from_dict(Settings, known)
    except BadInput as error:
        raise BadInput(f"file {str(path)!r}: {error}") from None
    if settings.r < 1:
        raise BadInput(f"file {str(path)!r}: r is {settings.r}, but must be at least 1.")
    return settings


def _names(family: Family, part: Place) -> tuple[str, str]:
    """Return the tensor names of a module's A and B."""
    module = OUTER + family.prefix + part.theirs.removesuffix(".weight")
    return f"{module}.lora_A.weight", f"{module}.lora_B.weight"


def _require_places(
    stored: Mapping[str, Stored], family: Family, modules: Mapping[str, Sequence[Place]], folder: Path
) -> None:
    known = {name for parts in modules.values() for part in parts for name in _names(family, part)}
    for name, tensor in stored.items():
        tensor.require_floats()
        if name not in known:
            raise BadInput(
                f"tensor {name!r} in {str(folder / WEIGHTS)!r} has no place in this model, which is a "
                f"{family.architecture} with adapters on {', '.join(modules)} at most."
            )


def _halves(
    stored: Mapping[str, Stored], family: Family, part: Place, settings: Settings, folder: Path
) -> tuple[np.ndarray, np.ndarray] | None:
    """Read A and B of a module, transposed to our layout; `None` if the module has no adapter."""
    names = _names(family, part)
    if not any(name in stored for name in names):
        return None
    outputs, inputs = part.shape if part.transposed else part.shape[::-1]
    for name, shape in zip(names, ((settings.r, inputs), (outputs, settings.r)), strict=True):
        if name not in stored:
            raise BadInput(f"file {str(folder / WEIGHTS)!r} has no tensor {name!r}, but the other half of its adapter.")
        if stored[name].shape != shape:
            raise BadInput(
                f"tensor {name!r} in {str(folder / WEIGHTS)!r} has shape {stored[name].shape}, but this model and r "
                f"in {CONFIG} ask for {shape}."
            )
    return stored[names[0]].read().T, stored[names[1]].read().T


def _shared(modules: Modules) -> bool:
    """Whether all modules of one matrix have the same A."""
    return all(np.array_equal(a, modules[0][1]) for _, a, _ in modules)


def _side_by_side(layers: Layers, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fill zero arrays A (layer, inputs, rank) and B (layer, rank, outputs) with the adapters of each layer."""
    for layer, modules in layers.items():
        start, shared = 0, _shared(modules)
        for part, theirs_a, theirs_b in modules:
            own = slice(start, start + len(theirs_b))
            a[layer, :, own] = theirs_a
            b[layer, own, part.at[-1]][..., part.order] = theirs_b
            start += 0 if shared else len(theirs_b)
    return a, b
