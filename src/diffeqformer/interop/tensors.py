"""Tensors of a Hugging Face folder: one safetensors file, or several with an index. Nothing is ever unpickled."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from diffeqformer.errors import BadInput, RunFailed, reason
from diffeqformer.plain import Document
from diffeqformer.progress import Progress
from diffeqformer.store.files import JSON_BYTES, write_whole
from diffeqformer.store.regular import POINTER, read_small

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLES = ("*.bin", "*.pt", "*.pth")
NUMBERS = ("F64", "F32", "F16", "BF16")
DTYPES: Document = {"float32": np.float32, "bfloat16": jnp.bfloat16, "float16": np.float16}
"""Dtypes that tensors can be written in."""
WIDE = re.compile(r"\b(network|shared)\.")
"""Names of the time networks' tensors, which are always written in float32: `torch/` keeps them in it when loading."""


@dataclass(frozen=True)
class Stored:
    """A tensor in a file, whose values are not read yet."""

    name: str
    file: Path
    shape: tuple[int, ...]
    dtype: str
    """Name of the dtype in safetensors."""

    def require_floats(self) -> "Stored":
        """Return this tensor after checking that it holds floats.

        **Raises:** `BadInput` if it holds anything else.
        """
        if self.dtype not in NUMBERS:
            raise BadInput(
                f"tensor {self.name!r} in {str(self.file)!r} is stored as {self.dtype}, but must be one of "
                f"{', '.join(NUMBERS)}; quantised models cannot be imported."
            )
        return self

    def read(self) -> Float[np.ndarray, "..."]:
        """Read the tensor as float32.

        **Raises:** `BadInput` if one of its values is not finite.
        """
        with safe_open(self.file, framework="numpy") as file, np.errstate(over="ignore"):  # checked below
            array = file.get_tensor(self.name).astype(np.float32)
        if not np.isfinite(array).all():
            raise BadInput(f"tensor {self.name!r} in {str(self.file)!r} has numbers that are not finite in float32.")
        return array


def find_tensors(folder: Path) -> dict[str, Stored]:
    """Find all tensors of a folder, by name.

    **Raises:** `BadInput` if there is no safetensors file, or if one is missing or damaged.
    """
    if (folder / WHOLE).is_file():
        return tensors_in(folder / WHOLE)
    if not (folder / INDEX).is_file():
        way = "AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER) of Transformers"
        raise BadInput(no_tensors(folder, f"neither {WHOLE} nor {INDEX}", way))
    places = read_json(folder / INDEX).get("weight_map")
    is_name = lambda value: isinstance(value, str) and Path(value).name == value
    if not isinstance(places, dict) or not all(map(is_name, places.values())):
        raise BadInput(f"file {str(folder / INDEX)!r} has no 'weight_map' that gives each tensor a file of its folder.")
    tables, found = {}, {}
    for file in sorted(set(places.values())):
        if not (folder / file).is_file():
            raise BadInput(f"file {str(folder / file)!r} is missing, but {INDEX} names it.")
        tables[file] = tensors_in(folder / file)
        found |= tables[file]
    for name, file in places.items():
        if name not in tables[file]:
            raise BadInput(f"file {str(folder / file)!r} has no tensor {name!r}, but {INDEX} says that it has.")
        found[name] = tables[file][name]  # another file may have one of this name, too
    return found


def tensors_in(path: Path) -> dict[str, Stored]:
    """Find all tensors of one safetensors file, by name.

    **Raises:** `BadInput` if the file is missing or damaged.
    """
    found = {}
    try:
        with safe_open(path, framework="numpy") as file:
            for name in file.keys():  # noqa: SIM118 (a file is no dictionary)
                header = file.get_slice(name)
                found[name] = Stored(name, path, tuple(header.get_shape()), header.get_dtype())
    except FileNotFoundError:
        raise BadInput(f"file {str(path)!r} does not exist.") from None
    except (OSError, SafetensorError) as error:
        if _is_pointer(path):
            raise BadInput(
                f"file {str(path)!r} is a Git LFS pointer, not the tensors; `git lfs pull` in its folder fetches them."
            ) from None
        raise BadInput(f"file {str(path)!r} cannot be read as safetensors: {error}.") from None
    return found


def write_tensors(
    folder: Path, tensors: Mapping[str, np.ndarray], dtype: str, shard_bytes: int, progress: Progress
) -> None:
    """Write tensors as one file, or as several of at most `shard_bytes` each (except larger tensors) and an index.

    **Arguments:** `tensors` by name; `dtype`, one of `DTYPES`, of all but `WIDE`.

    **Raises:** `BadInput` if a number is not finite in `dtype`.
    """
    dtypes = {name: "float32" if WIDE.search(name) else dtype for name in tensors}
    shards, size, total = [[]], 0, 0
    for name, tensor in tensors.items():
        own = tensor.size * np.dtype(DTYPES[dtypes[name]]).itemsize
        if shards[-1] and size + own > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size, total = size + own, total + own
    number = len(shards)
    files = [WHOLE] if number == 1 else [f"model-{i:05}-of-{number:05}.safetensors" for i in range(1, number + 1)]
    with progress.stage("Writing the tensors", len(tensors)) as stage:
        for file, names in zip(files, shards, strict=True):
            save({name: _as(dtypes[name], name, tensors[name]) for name in names}, folder / file)
            stage.advance(len(names))
    if number > 1:
        places = {name: file for file, names in zip(files, shards, strict=True) for name in names}
        write_whole(folder / INDEX, json.dumps({"metadata": {"total_size": total}, "weight_map": places}, indent=1))


def save(tensors: dict[str, np.ndarray], file: Path) -> None:
    """Write one safetensors file that torch reads, with the permissions of any new file (safetensors itself: 0600)."""
    try:
        save_file(tensors, file, {"format": "pt"})
    except SafetensorError as error:  # also for a full disk
        raise RunFailed(f"file {str(file)!r} cannot be written: {reason(error)}.") from error
    # The umask cannot be read without setting it for all threads, so a new file's mode is copied.
    plain = file.with_suffix(".tmp")
    plain.touch(exist_ok=False)
    file.chmod(plain.stat().st_mode)
    plain.unlink()


def _as(dtype: str, name: str, tensor: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        array = np.ascontiguousarray(tensor, DTYPES[dtype])
    if not np.isfinite(array).all():
        advice = "; bfloat16 and float32 reach further" if dtype == "float16" and np.isfinite(tensor).all() else ""
        raise BadInput(f"tensor {name!r} has numbers that are not finite in {dtype}{advice}.")
    return array


def read_json(path: Path) -> Document:
    """Read the object in a JSON file.

    **Raises:** `BadInput` if the file cannot be read or holds anything else.
    """
    try:
        values = json.loads(read_small(path, JSON_BYTES).decode())
    except OSError as error:
        raise BadInput(f"file {str(path)!r} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"file {str(path)!r} cannot be read as JSON: {error}.") from None
    if not isinstance(values, dict):
        raise BadInput(f"file {str(path)!r} is no table of settings, but must be a JSON object.")
    return values


def _is_pointer(path: Path) -> bool:
    try:
        return read_small(path, 1024).startswith(POINTER)
    except OSError:
        return False


def require_folder(folder: Path, what: str, advice: str) -> None:
    """Check that a folder exists.

    **Raises:** `BadInput` with `advice` if it does not; also if it is a file, often one inside the intended folder.
    """
    if folder.is_file():
        raise BadInput(f"{what} {str(folder)!r} is a file; name the folder that it is in, {str(folder.parent)!r}.")
    if not folder.is_dir():
        raise BadInput(f"{what} {str(folder)!r} does not exist; {advice}.")


def no_tensors(folder: Path, missing: str, way: str) -> str:
    """Say why a folder has no safetensors file: it has `missing`, or a pickle, which `way` converts."""
    pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
    if not pickles:
        return f"folder {str(folder)!r} has {missing}."
    return (
        f"folder {str(folder)!r} has its weights in {pickles[0]!r}, a pickle, which could run any program and is never "
        f"read; {way} converts them to safetensors."
    )
