"""Conversion of Hugging Face's models to models of this library and back, number for number.

The families are GPT-2, GPT-NeoX, Llama, and for all other models of ours the class of
`torch/modeling_diffeqformer.py`, as `families` describes them. `places` maps each of their tensors to a part of ours.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from diffeqformer.config import Config, ModelConfig, validate
from diffeqformer.data.beside import GENERATION, SETTINGS, SPECIAL, TEMPLATE
from diffeqformer.errors import BadInput
from diffeqformer.interop.families import FAMILIES, HEAD, OWN, Family, kind_of
from diffeqformer.interop.tensors import INDEX, Stored, find_tensors, read_json, require_folder
from diffeqformer.model.build import abstract
from diffeqformer.model.transformer import Transformer
from diffeqformer.plain import Document
from diffeqformer.progress import Progress, Silent
from diffeqformer.sharding import by_path
from diffeqformer.store.folders import require_sums
from diffeqformer.store.paths import path_of

CONFIG, TOKENIZER, TABLE = "config.json", "tokenizer.json", "weights.layers."
GENERATED = ("networks", "shared")
"""Parts of `TimeWeights`, with the same names in `torch/modeling_diffeqformer.py`; all other arrays are rows."""


class Place(NamedTuple):
    """One of their tensors, and the part of our array that it holds: `ours[at][..., order]`, perhaps `transposed`."""

    theirs: str
    at: tuple[Any, ...]
    shape: tuple[int, ...]
    """Shape of their tensor, as stored."""
    transposed: bool
    order: slice | np.ndarray = slice(None)
    """Positions of their outputs in the part."""

    def put(self, ours: np.ndarray, theirs: np.ndarray) -> None:
        """Write their tensor into our array."""
        ours[self.at][..., self.order] = theirs.T if self.transposed else theirs

    def taken(self, ours: np.ndarray) -> np.ndarray:
        """Return their tensor from our array: a view where the order is the same."""
        part = ours[self.at][..., self.order]
        return part.T if self.transposed else part


def places(family: Family, config: ModelConfig) -> dict[str, list[Place]]:
    """Return, for each of our arrays by its path in the model, the tensors of theirs that it consists of."""
    leaves = by_path(abstract(config))
    return {path: _places(family, config, path, leaf.shape) for path, leaf in leaves.items()}


def _places(family: Family, config: ModelConfig, path: str, shape: tuple[int, ...]) -> list[Place]:
    if path in family.outside:
        return [Place(family.outside[path], (), shape, False)]
    _, source, name = path.split(".", 2)
    if source in GENERATED:  # as here, but with all axes reversed: (d_emb, outputs, inputs)
        return [Place(f"{source}.{name}", (), shape[::-1], True)]
    names = family.inside[name]
    query, key = config.head_width * config.heads, config.head_width * config.kv_heads
    ends = np.cumsum((query, key, key) if len(names) > 1 else shape[-1:])
    parts = [slice(int(start), int(end)) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    transposed = family.outputs_first and path.endswith(".weight")
    by_head = family.heads_first and ".query_key_value." in path
    # Ours by (part, head, number), theirs by (head, part, number).
    order = np.arange(shape[-1]).reshape(3, config.heads, -1).swapaxes(0, 1).ravel() if by_head else slice(None)
    found = []
    for layer in range(shape[0]):
        for name, part in zip(names, parts, strict=True):
            size = (*shape[1:-1], part.stop - part.start)
            stored = size[::-1] if transposed else size
            found.append(Place((family.block + name).format(layer), (layer, ..., part), stored, transposed, order))
    return found


@dataclass(frozen=True)
class Published:
    """A Hugging Face folder whose model this library can represent; its tensors are not read yet."""

    folder: Path
    model_type: str
    config: ModelConfig
    tensors: dict[str, Stored]
    """Tensors by name, without the family's prefix."""

    def read(self, progress: Progress | None = None) -> Transformer:
        """Read the model, in float32.

        **Raises:** `BadInput` if a number is not finite, or if a tied head is stored and differs from the embedding.
        """
        family, like = FAMILIES[self.model_type], abstract(self.config)
        shapes, sources, arrays = by_path(like), places(family, self.config), []
        with (progress or Silent()).stage("Reading the tensors", sum(map(len, sources.values()))) as stage:
            for path, parts in sources.items():
                array = np.empty(shapes[path].shape, np.float32)
                for part in parts:
                    part.put(array, self.tensors[part.theirs].read())
                    stage.advance(1)
                arrays.append(jnp.asarray(array))
        self._require_same_head(family)
        return jax.tree.unflatten(jax.tree.structure(like), arrays)

    def _require_same_head(self, family: Family) -> None:
        head, embedding = family.outside[HEAD], family.outside["embedding.tokens"]
        if not self.config.tied or head not in self.tensors:
            return
        if not np.array_equal(self.tensors[head].read(), self.tensors[embedding].read()):
            raise BadInput(
                f"folder {str(self.folder)!r}: tie_word_embeddings is true in {CONFIG}, or by default, but tensor "
                f"{head!r} differs from {embedding!r}; false is right for a head of its own."
            )


def open_huggingface(folder: str | Path) -> Published:
    """Check a folder as Transformers writes it: its config.json, and the names and shapes of its tensors.

    **Raises:** `BadInput`, with name and value, for anything that this library cannot represent number for number.
    """
    folder = path_of(folder)
    require_folder(folder, "folder", "`import ORGANISATION/NAME` fetches a published model from the hub")
    require_sums(folder, (CONFIG, GENERATION, TOKENIZER, INDEX, SETTINGS, SPECIAL, TEMPLATE, "*.safetensors"))
    values = read_json(folder / CONFIG)
    kind = values.get("model_type")
    # A tuple compares without hashing: the file's value may be a list.
    if kind not in tuple(FAMILIES):
        raise BadInput(f"model_type in {str(folder / CONFIG)!r} is {kind!r}, but must be one of {', '.join(FAMILIES)}.")
    family = FAMILIES[kind]
    try:
        if values.get("quantization_config"):
            raise BadInput(
                "quantization_config is given, but quantised models cannot be imported; take it unquantised."
            )
        config = validate(Config(model=family.config(values))).model
    except BadInput as error:
        raise BadInput(f"file {str(folder / CONFIG)!r}: {error}") from None
    tensors = _by_short_name(family, find_tensors(folder))
    if config.tied and (head := family.outside[HEAD]) in tensors:  # some store the tied tensor as the head
        tensors.setdefault(family.outside["embedding.tokens"], tensors[head])
    _require_fit(family, config, tensors, folder)
    return Published(folder, kind, config, tensors)


def from_huggingface(folder: str | Path, progress: Progress | None = None) -> Transformer:
    """Load a GPT-2, GPT-NeoX, Llama or exported model from a Hugging Face folder, with Transformers' logits.

    **Arguments:** `folder`, with config.json and model.safetensors, or several such files with their index.

    **Returns:** a model with `layer` weights, or with weights of the exported kind, in float32.

    **Raises:** `BadInput` if it is another model, has unsupported settings that change the numbers, or is incomplete.
    """
    return open_huggingface(folder).read(progress)


def to_huggingface(model: Transformer, own: bool = False) -> tuple[Document, dict[str, np.ndarray]]:
    """Convert a model for Transformers: the settings of config.json, and the tensors by name.

    **Arguments:** `model`, without adapters; `own`, whether it is our own class even if Transformers has one.

    **Returns:** the settings, `model_type` and `architectures` included; the tensors, in float32, as views.

    **Raises:** `BadInput` if Transformers has no class for the model, and our own class lacks its field or scheme.
    """
    config = replace(model.config, tied=model.head is None)
    kind = OWN if own else kind_of(config)
    family, arrays = FAMILIES[kind], by_path(model)
    settings = {"model_type": kind, "architectures": [family.architecture], **family.values(config)}
    tensors = {}
    for path, parts in places(family, config).items():
        array = np.asarray(arrays[path])
        for part in parts:
            name = part.theirs if path == HEAD else family.prefix + part.theirs
            tensors[name] = part.taken(array)
    return settings, tensors


def _by_short_name(family: Family, tensors: Mapping[str, Stored]) -> dict[str, Stored]:
    """Return the parameters among `tensors`, by name without the prefix."""
    found: dict[str, Stored] = {}
    for name, tensor in tensors.items():
        short = family.renamed.get(name, name.removeprefix(family.prefix))
        if short in found:
            raise BadInput(f"tensor {short!r} is there twice, once as {name!r} in {str(tensor.file)!r}.")
        if not re.fullmatch(family.buffers, short):
            found[short] = tensor.require_floats()
    return found


def _require_fit(family: Family, config: ModelConfig, tensors: Mapping[str, Stored], folder: Path) -> None:
    """Check that every tensor has a place, that every place has a tensor, and that all shapes agree."""
    wanted = {part.theirs: part.shape for parts in places(family, config).values() for part in parts}
    for name, shape in wanted.items():
        if name not in tensors:
            raise BadInput(f"folder {str(folder)!r} has no tensor {name!r}, of which {CONFIG} asks for shape {shape}.")
        found = tensors[name]
        if found.shape != shape:
            raise BadInput(
                f"tensor {name!r} in {str(found.file)!r} has shape {found.shape}, but {CONFIG} asks for {shape}."
            )
    known = {*wanted, family.outside[HEAD]} if config.tied else wanted.keys()
    for name in tensors:
        if name not in known:
            raise BadInput(
                f"tensor {name!r} in {str(tensors[name].file)!r} has no place in the model that {CONFIG} describes."
            )
