"""Low-rank adapters for the linear maps of layers, knots or blocks (Hu et al. 2021, arXiv:2106.09685)."""

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

import jax
import jax.numpy as jnp
from jax.tree_util import KeyPath
from jaxtyping import Array, Key, PyTree

from diffeqformer.config import LoRAConfig
from diffeqformer.errors import BadInput
from diffeqformer.nn.linear import AdaptedLinear, Adapter, Linear, LinearShape, zeros
from diffeqformer.ode.field import BlockShapes, BlockWeights
from diffeqformer.sharding import name_of_path


def linear_maps(block: PyTree) -> dict[str, PyTree]:
    """Return the linear maps of a block or half of one (weights, adapted or not, or shapes) by name:
    `attention.output`."""
    units = jax.tree_util.tree_leaves_with_path(block, is_leaf=_is_map)
    return {name_of_path(path): unit for path, unit in units if _is_map(unit)}


def targets(names: Iterable[str], patterns: Sequence[str]) -> tuple[str, ...]:
    """Select the names that a pattern matches, in full or by their last part: `down`, `attention.*`, `*`.

    **Raises:** `BadInput` for a pattern that matches none, listing the available names.
    """
    names = tuple(names)
    fits = lambda name, pattern: any(fnmatchcase(part, pattern) for part in (name, name.rpartition(".")[2]))
    for pattern in patterns:
        if not any(fits(name, pattern) for name in names):
            raise BadInput(
                f"model.weights.lora.targets has {pattern!r}, which is none of this model's linear maps: "
                f"{', '.join(names)}."
            )
    return tuple(name for name in names if any(fits(name, pattern) for pattern in patterns))


def fitting_targets(lora: LoRAConfig, shapes: BlockShapes) -> tuple[str, ...]:
    """Return the names of the linear maps that get adapters, after checking that these fit a block's shapes.

    **Raises:** `BadInput` for an unknown target, no target, or a rank larger than the smaller side of a matrix.
    """
    maps = linear_maps(shapes)
    chosen = targets(maps, lora.targets)
    if not chosen:
        raise BadInput(f"model.weights.lora.targets is empty; name some of {', '.join(maps)}, or '*' for all.")
    require_rank("model.weights.lora.rank", lora.rank, {name: maps[name] for name in chosen})
    return chosen


def require_rank(setting: str, rank: int, shapes: Mapping[str, LinearShape]) -> None:
    """Check a rank. **Raises:** `BadInput` for a rank larger than the smaller side of a matrix."""
    for name, shape in shapes.items():
        if rank > (smaller := min(shape.inputs, shape.outputs)):
            raise BadInput(f"{setting} is {rank}, but {name} is {shape.inputs} x {shape.outputs}: at most {smaller}.")


def attach(layers: BlockWeights, lora: LoRAConfig, key: Key[Array, ""]) -> BlockWeights:
    """Attach new adapters to layers: A uniform within 1 / sqrt(inputs), B zero, so that no output changes."""
    maps = linear_maps(layers)
    chosen = targets(maps, lora.targets)
    # Every map has a key, chosen or not, so that an adapter starts the same whichever other maps are targets.
    rank, keys = lora.rank, dict(zip(maps, jax.random.split(key, len(maps)), strict=True))

    def adapted(path: KeyPath, unit: PyTree) -> PyTree:
        if (name := name_of_path(path)) not in chosen or not isinstance(unit, Linear):
            return unit
        *rows, inputs, outputs = unit.weight.shape
        # As in PEFT: Kaiming's uniform bound with a = sqrt(5) is 1 / sqrt(inputs).
        a = jax.random.uniform(keys[name], (*rows, inputs, rank), jnp.float32, minval=-1, maxval=1) / inputs**0.5
        b = zeros((*rows, rank, outputs))
        return AdaptedLinear(unit, Adapter(a, b, lora.alpha / rank, lora.dropout))

    return jax.tree_util.tree_map_with_path(adapted, layers, is_leaf=_is_map)


def with_adapters(rows: BlockWeights, lora: LoRAConfig | None, key: Key[Array, ""]) -> BlockWeights:
    """Attach the adapters that a config section asks for to new rows; `key` is the rows' own key."""
    return rows if lora is None else attach(rows, lora, jax.random.fold_in(key, 0))


def merge(layers: BlockWeights) -> BlockWeights:
    """Merge the adapters of layers into their matrices: `W + alpha / rank A B`."""
    # The `weight` of an adapted map is the merged matrix.
    plain = lambda unit: Linear(unit.weight, unit.bias) if isinstance(unit, AdaptedLinear) else unit
    return jax.tree.map(plain, layers, is_leaf=_is_map)


def without_adapters(layers: BlockWeights) -> BlockWeights:
    """Remove the adapters from layers, which leaves these as they were before adapters were attached."""
    plain = lambda unit: unit.base if isinstance(unit, AdaptedLinear) else unit
    return jax.tree.map(plain, layers, is_leaf=_is_map)


def _is_map(node: PyTree) -> bool:
    return isinstance(node, Linear | AdaptedLinear | LinearShape)
