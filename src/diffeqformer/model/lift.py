"""Lifting: turning a table of layers into a function of depth that populates to the same table.

Prior work: Queiruga et al. 2021, arXiv:2106.10820 (a basis over depth, projected to more or fewer functions without
training); Chen et al. 2022, arXiv:2110.07143 (bert2BERT), Wang et al. 2023, arXiv:2309.16119 (LEMON): lossless growth.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from diffeqformer.config import (
    KnotsConfig,
    LayerConfig,
    LayerDropConfig,
    LevelsConfig,
    OwnConfig,
    TimeConfig,
    validate_model,
)
from diffeqformer.config.bounds import whole
from diffeqformer.errors import BadInput
from diffeqformer.model.solving import with_scheme
from diffeqformer.model.transformer import Transformer
from diffeqformer.nn.keys import require_key
from diffeqformer.ode.field import TransformerField
from diffeqformer.ode.grid import divided_edges
from diffeqformer.ode.schemes import Residual
from diffeqformer.ode.weights import LayerWeights
from diffeqformer.ode.weights.alignment import align
from diffeqformer.ode.weights.knots import PLACES
from diffeqformer.ode.weights.layer_drop import LayerDropWeights
from diffeqformer.ode.weights.levels import LevelWeights
from diffeqformer.ode.weights.lifting import fit_knots, fit_time
from diffeqformer.plain import shown

EXACT = 1e-4
"""Largest difference of logits that still counts as the same model, relative to the largest logit (at least to 1)."""
BANDS = (2.0, 3.0, 6.0)
"""Highest frequencies to try, in radians per step: lower ones are smoother between steps; 3 is about Nyquist's."""
WELL_CONDITIONED = 1e3
"""Condition number up to which no wider band is tried."""
PROBED = 32
"""Number of random tokens whose logits are compared."""


@dataclass(frozen=True)
class Lifted:
    """A model that runs at other depths, and how closely it matches the table that it was made from."""

    model: Transformer
    condition: float
    """Condition number of the linear system that gave the weights."""
    difference: float
    """Largest difference of a logit at the table's own depth, relative to the largest logit (at least to 1)."""
    losses: dict[int, float] = field(default_factory=dict)
    """If layers are left out: loss by number of layers kept, in nats per token of the text that decided their order."""
    order: tuple[int, ...] = ()
    """If layers are left out: all layers, of which N steps keep the first N."""


def lift(
    model: Transformer,
    kind: Literal["knots", "time"] = "knots",
    *,
    knots: int | None = None,
    d_emb: int | None = None,
    moments: Sequence[Array] | None = None,
    key: Key[Array, ""],
) -> Lifted:
    """Make the weights of a table of layers functions of depth, so that the model runs at any number of steps.

    At its own depth the model stays the same: bit for bit with `knots`, to `EXACT` with `time`. The horizon stays the
    same too, so that each of 2L steps is half as long.

    **Arguments:** `model`, a table of L layers with one row each, whose scheme needs weights once per step, at its
    middle or its end; `kind`, weights interpolated between knots, or time networks; `knots`, their number K: fewer or
    more than L give a smaller or larger model, which is no longer the same; `d_emb` of time networks, at least L, 2 L
    if not given; `moments` of the inputs of the model's matrices (`analysis.compression.second_moments`), for fewer
    knots; `key` for time networks.

    **Returns:** a `Lifted`: the model, and how closely it matches the table.

    **Raises:** `BadInput` if the model is not such a table, or if the lifted model would not be the same.
    """
    if kind not in ("knots", "time"):
        raise BadInput(f"kind is {shown(kind)}, but must be 'knots' or 'time'.")
    for name, value, read_by in (("knots", knots, "knots"), ("d_emb", d_emb, "time")):
        if value is not None and kind != read_by:
            raise BadInput(f"{name} is {shown(value)}, but only the weights {read_by!r} read it.")
        if value is not None:
            whole(name, value, 1)
    layers, original = table_of(model).layers, model
    model = _as_flow(model)
    config, grid, node = model.config, model.grid(), _node_of(model)
    if moments is not None and (kind != "knots" or knots is None or knots >= grid.steps):
        raise BadInput(f"a text is given, but only fewer knots than the model's {grid.steps} layers read it.")
    if kind == "knots":
        if not grid.equal:
            raise BadInput("this model's steps are of unequal lengths, but knots are equally spaced; 'time' fits it.")
        place = next(place for place, fraction in PLACES.items() if fraction == node)
        section = KnotsConfig(knots or grid.steps, place=place)  # pyright: ignore
        validate_model(replace(config, weights=section))
        fit = fit_knots(layers, np.asarray(grid.times((node,))), section, moments)
    else:
        # With d_emb = L, H is so near to singular that float32 loses the rows (the table in docs/lift.md).
        d_emb = 2 * grid.steps if d_emb is None else d_emb
        if d_emb < grid.steps:
            raise BadInput(
                f"d_emb is {d_emb}, but must be at least {grid.steps}, the number of layers to pass through."
            )
        require_key(key)
        for band in BANDS:
            section = TimeConfig(d_emb, max(32, grid.steps), highest_frequency=band * grid.steps)
            validate_model(replace(config, weights=section))
            fit = fit_time(layers, grid, node, section, model.field.shapes(), key)
            if fit.condition <= WELL_CONDITIONED:
                break
    own = replace(config, weights=section, horizon=config.interval)
    lifted = model.replace(weights=fit.weights, config=own)
    found = Lifted(lifted, fit.condition, difference(original, lifted))
    if found.difference > EXACT and not (kind == "knots" and section.knots != grid.steps):  # pyright: ignore
        raise BadInput(
            f"the lifted model would not be the same: logits differ by {found.difference:.1e} of the largest, but must "
            f"by at most {EXACT:g} (condition number {found.condition:.1e}); a larger d_emb, or 'knots', is exact."
        )
    return found


def aligned(model: Transformer) -> Transformer:
    """Rewrite the layers of a model so that neighbours are close, which makes lines between them more meaningful.

    Every layer computes the same as before.

    **Raises:** `BadInput` if the model is not a table of layers, or has a field of your own.
    """
    weights, field = table_of(model), model.field
    if not isinstance(field, TransformerField) or isinstance(model.config.field, OwnConfig):
        raise BadInput(
            f"layers of a field of your own, {type(field).__name__}, cannot be aligned: its symmetries are not known."
        )
    return model.replace(weights=replace(weights, layers=align(weights.layers, field)))


def of_rows(model: Transformer, rows: Sequence[int] | Array | np.ndarray) -> Transformer:
    """Make a table of the layers named in `rows`, each as often as named; every layer computes the same as before."""
    layers = jax.tree.map(lambda leaf: leaf[jnp.asarray(rows)], model.weights.layers)  # pyright: ignore
    config = replace(model.config, steps=len(rows), horizon="steps", edges=())
    return model.replace(weights=LayerWeights(layers), config=config)


def left_out(model: Transformer, order: Sequence[int] = ()) -> Transformer:
    """Make a table leave out layers at fewer steps; the other layers compute the same as before.

    **Arguments:** `model`, a table of Lie-Trotter steps of 1; `order`, in which layers are added as steps are; if it is
    empty, N steps take every (L/N)th layer (`ode.weights.layer_drop`).

    **Raises:** `BadInput` if the model is not such a table.
    """
    weights, m = table_of_whole_steps(model), model.config
    config = replace(m, weights=LayerDropConfig(m.steps, nested=bool(order), order=tuple(order)))
    kept = LayerDropWeights(weights.layers, tuple(order))
    return with_scheme(model.replace(weights=kept, config=config), "residual")


def levelled(model: Transformer, levels: Sequence[int], order: Sequence[int] = ()) -> Transformer:
    """Give several numbers of steps a table each, made of a table of L layers; at L steps the model stays the same.

    A table of N < L steps has the layers `order[:N]`, whole. One of N > L steps has all, those in the middle in two or
    more parts (`ode.grid.divided_edges`). Each of N equal steps is of length horizon / N: the outputs of a row that is
    a share s of layer l, of length horizon / L, are scaled,

        (O, b)_N = s (N / L) (O_l, b_l),

    in both halves, so that the step adds s times what the layer adds.

    **Arguments:** `model`, a table; `levels`, numbers of steps, of which L is one whether named or not; `order` of
    layers (`analysis.leaving_out.kept_order`), which levels below L need.

    **Raises:** `BadInput` if the model is not a table of equal steps with one row each, if its field is your own and
    outputs would have to be scaled, or if a level below L has no order.
    """
    layers, depth = table_of(model).layers, model.config.steps
    model = _as_flow(model)
    if not model.grid().equal:
        raise BadInput("this model's steps are of unequal lengths, but a level has a table of equal steps.")
    levels = tuple(sorted({depth, *(whole("levels", level, 1) for level in levels)}))
    if levels[0] < depth and sorted(order) != [*range(depth)]:
        raise BadInput(
            f"order is {shown([*order])}, but must be that of all {depth} layers, some of which level {levels[0]} "
            "leaves out."
        )
    if len(levels) > 1 and isinstance(model.config.field, OwnConfig):
        raise BadInput("a field of your own may not be linear in its outputs, which other levels scale.")
    config = replace(model.config, weights=LevelsConfig(levels), horizon=model.config.interval)
    validate_model(config)
    rows, scales = [], []
    for steps in levels:
        edges = np.asarray(divided_edges(steps, (depth,)))
        middles = (edges[:-1] + edges[1:]) / 2
        rows += sorted(order[:steps]) if steps < depth else np.floor(middles * depth).astype(int).tolist()
        scales += [steps / depth] * steps if steps < depth else (np.diff(edges) * steps).tolist()
    blocks = jax.tree.map(lambda leaf: leaf[np.asarray(rows)], layers)

    def scaled(leaf: Array) -> Array:
        return leaf * jnp.asarray(scales, leaf.dtype).reshape(-1, *[1] * (leaf.ndim - 1))

    outputs = lambda blocks: (blocks.attention.output, blocks.feed_forward.down)
    blocks = eqx.tree_at(outputs, blocks, replace_fn=lambda linear: jax.tree.map(scaled, linear))
    return model.replace(weights=LevelWeights(blocks, levels), config=config)


def table_of_whole_steps(model: Transformer) -> LayerWeights:
    """Return the weights of a table whose layers can be left out: equal Lie-Trotter steps of length 1.

    **Raises:** `BadInput` for any other model.
    """
    weights, m = table_of(model), model.config
    if not model.grid().equal:
        lengths = ", ".join(f"{length:.3g}" for length in model.grid().lengths[:20])
        raise BadInput(f"this model's steps are {lengths} of depth, but layers can only be left out of equal steps.")
    if m.scheme.kind != "lie-trotter" or m.interval != m.steps:
        raise BadInput(
            f"model.scheme is {m.scheme.kind!r} and model.horizon {m.interval:g} for {m.steps} layers, but layers can "
            "only be left out of a table of 'lie-trotter' steps of length 1, such as a GPT-2 or a Llama."
        )
    return weights


def difference(one: Transformer, other: Transformer) -> float:
    """Return the largest difference between the logits of two models, relative to the largest logit (at least to 1).

    Both run at the depth of `one` and in float32: bfloat16 may round weights apart that are equal up to rounding.

    **Raises:** `BadInput` if a logit is not finite.
    """
    one, other = one.exact(), other.exact()
    ids = jax.random.randint(jax.random.key(0), (1, min(PROBED, one.config.context)), 0, one.config.vocabulary or 0)
    run = jax.jit(lambda model, ids: model(ids))
    # Not in TensorFloat-32, whose rounding is larger than `EXACT`.
    with jax.default_matmul_precision("highest"):
        expected, found = run(one, ids), run(other.populate(one.config.steps), ids)
    if not jnp.isfinite(jnp.stack([expected, found])).all():
        raise BadInput(
            "the model's logits are not finite: it, or what it becomes, has weights that are NaN or infinite."
        )
    return float(jnp.abs(found - expected).max() / jnp.maximum(jnp.abs(expected).max(), 1.0))


def table_of(model: Transformer) -> LayerWeights:
    """Return the weights of a model that can be lifted: a table with one row per layer.

    **Raises:** `BadInput` for any other model.
    """
    config, weights = model.config, model.weights
    if config.continuous:
        raise BadInput(
            f"this model's weights are functions of depth already ({config.weights.kind}): it runs at any number of "
            "steps as it is."
        )
    if not isinstance(weights, LayerWeights) or not isinstance(config.weights, LayerConfig):
        raise BadInput(f"model.weights is {config.weights.kind!r}, but only a table of layers ('layer') can be lifted.")
    if config.lora is not None:
        raise BadInput(
            "this model has low-rank adapters beside its table; merge them first: `diffeqformer export` writes the "
            "merged model, and `diffeqformer import` makes a run of it."
        )
    at = sorted({node for half in weights.nodes or () for node in half})
    if len(at) > 1:
        raise BadInput(
            f"model.scheme is {config.scheme.kind!r}, for which a layer has weights at several times of its step (its "
            f"fractions {', '.join(f'{node:.3g}' for node in at)}), but only layers with weights at one can be taken."
        )
    return weights


def _as_flow(model: Transformer) -> Transformer:
    """Give a table steps that shrink as their number grows; those of `residual` have length 1 at any number."""
    if not isinstance(model.scheme, Residual):
        return model
    if not model.grid().equal:
        raise BadInput("this model's steps are of unequal lengths, but 'residual' adds what layers give whole.")
    config = replace(model.config, horizon=float(model.config.steps), scheme="lie-trotter-middle")
    return model.replace(scheme=config.scheme.build(), config=config)


def _node_of(model: Transformer) -> float:
    """Return where in a step the scheme needs weights, as a fraction of the step."""
    nodes = {*model.scheme.nodes.attention, *model.scheme.nodes.feed_forward}
    if len(nodes) != 1 or not nodes <= {*PLACES.values()}:
        raise BadInput(
            f"model.scheme is {model.config.scheme.kind!r}, which needs weights at the fractions {sorted(nodes)} of a "
            "step; only schemes that need them once, at its middle or its end, can be lifted, such as 'lie-trotter'."
        )
    return nodes.pop()
