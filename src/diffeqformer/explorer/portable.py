"""A small model in the form that a page can hold: its arrays, and what a browser needs to know to run them.

Every array of a block is written as `W(t) = sum_k c_k(t) B_k`: B as rows, and how to compute c. For `time` weights c is
`(1, h(t))` and B is `(C, P)`; for `knots` c is the cardinal basis; tables take one row, and levels those of one table;
`shared` has only one. The page itself adds what depends on the length of a step: low-rank corrections, norms and gains,
the final norm.
"""

import base64
import json
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from diffeqformer.analysis.over_depth import drawn_nodes
from diffeqformer.errors import BadInput
from diffeqformer.explorer.session import SCHEMES_OFFERED, about_run
from diffeqformer.model.build import own_parts
from diffeqformer.model.transformer import Transformer
from diffeqformer.ode.field import Block, BlockWeights, TransformerField
from diffeqformer.ode.grid import ODD, Nodes
from diffeqformer.ode.schemes import SCHEMES, RungeKutta, Scheme
from diffeqformer.ode.schemes.splitting import LieTrotter, Macaron, Residual, Strang
from diffeqformer.ode.weights import (
    KnotWeights,
    LayerDropWeights,
    LayerWeights,
    LevelWeights,
    SharedWeights,
    TimeWeights,
    WeightSource,
)
from diffeqformer.ode.weights.knots import PLACES, bends
from diffeqformer.ode.weights.modulated import ModulatedWeights
from diffeqformer.ode.weights.time_features import frequencies
from diffeqformer.ode.weights.time_networks import TimeLinear, TimeNetwork, TimeNorm
from diffeqformer.plain import Document
from diffeqformer.runs.opening import Run
from diffeqformer.studies.inputs import pieces_of

MOST_PARAMETERS = 40_000_000
"""Most parameters that a page holds: 107 MB."""
WHOLE_PARAMETERS = 2_000_000
"""Most parameters stored in single precision; half precision moves a prediction that is a close call by a percent."""
SHARED = "shared"


class Arrays:
    """Arrays stored one after the other."""

    def __init__(self, kind: str) -> None:
        self.places: dict[str, list] = {}
        self._kind = kind
        self._parts: list[bytes] = []
        self._length = 0

    def add(self, name: str, values: Any, kind: str = "") -> None:
        """Append an array, in the usual precision unless `kind` names another; nothing for `None`."""
        if values is None:
            return
        kind = kind or self._kind
        content = np.ascontiguousarray(values, kind).tobytes()
        # In JavaScript a Float32Array has to begin at a multiple of four bytes.
        content += b"\0" * (-len(content) % 4)
        self.places[name] = [kind, self._length, list(np.shape(values))]
        self._parts.append(content)
        self._length += len(content)

    def base64(self) -> str:
        """Return the bytes of all arrays in base64."""
        return base64.b64encode(b"".join(self._parts)).decode()


def portable(run: Run) -> tuple[Document, str]:
    """Return what the page needs to know about a run's model, and its arrays in base64.

    **Raises:** `BadInput` for a model, a scheme or a tokenizer that the page cannot run.
    """
    model = run.model.merge()
    size = sum(leaf.size for leaf in jax.tree.leaves(model))
    if size > MOST_PARAMETERS:
        raise _refusal(run, f"has {size:,} parameters, but a page holds at most {MOST_PARAMETERS:,}")
    if run.config.model.tolerance is not None:
        raise _refusal(run, "chooses its steps by a tolerance, but a page has fixed ones")
    if own := own_parts(model):
        raise _refusal(run, f"has a part of your own, {', '.join(own.values())}, which a browser cannot run")
    field = model.field
    assert isinstance(field, TransformerField)
    partial = field.rotary_width not in (0, field.head_width)
    if field.head_norms or field.rope_scaling is not None or partial or field.exact_gelu:
        raise _refusal(run, "has head norms, exact GELU, or a scaled or partial rotary embedding, which a page has not")
    runnable = {name: described for name, scheme in SCHEMES.items() if (described := _scheme(scheme))}
    own_scheme = run.config.model.scheme.kind
    if own_scheme not in runnable:
        raise _refusal(run, f"has the scheme {own_scheme!r}, but a page runs by {', '.join(runnable)}")
    offered = (own_scheme, *(SCHEMES_OFFERED if model.continuous else ()))
    schemes = {name: runnable[name] for name in offered if name in runnable}
    arrays, config = Arrays("<f4" if size <= WHOLE_PARAMETERS else "<f2"), model.config
    arrays.add("embedding", model.embedding.tokens)
    arrays.add("positions", model.embedding.positions)
    arrays.add("head", model.head)
    arrays.add("final.scale", model.final_norm.scale)
    arrays.add("final.shift", model.final_norm.shift)
    arrays.add("final.changes.scale", getattr(model.norm_changes, "scale", None))
    arrays.add("final.changes.shift", getattr(model.norm_changes, "shift", None))
    weights = _weights(model, arrays)
    if weights is None:
        raise _refusal(run, f"has weights of kind {config.weights.kind!r}, which a page does not run")
    drawn = drawn_nodes(model, model.grid())
    known = ("width", "heads", "head_width", "hidden", "gated", "norm_epsilon", "nested_norm")
    return {
        **about_run(run),
        "schemes": list(schemes),
        "tolerances": [],
        "model": {
            **{name: getattr(field, name) for name in known},
            "rope_theta": field.rope_theta if field.rotary_width else None,
            "kvHeads": field.kv_heads, "finalEpsilon": config.final_norm_epsilon, "context": config.context,
            "embeddingNorm": config.embedding_norm, "interval": config.interval, "firstStep": config.first_step,
            "odd": ODD.get(config.spacing, ()), "edges": config.edges, "schemes": schemes, "weights": weights,
            "nodes": {"drawn": drawn._asdict(), "taken": model.scheme.nodes._asdict()}, "arrays": arrays.places,
        },
        "tokenizer": _tokenizer(run),
        "pieces": pieces_of(run, np.arange(model.embedding.tokens.shape[0])),
    }, arrays.base64()  # fmt: skip


def _refusal(run: Run, what: str) -> BadInput:
    return BadInput(f"run folder {str(run.folder)!r} {what}; explore it without --to.")


def _scheme(scheme: Scheme) -> Document | None:
    """Describe a scheme for the page; `None` for one that the page does not know."""
    if isinstance(scheme, RungeKutta):
        rows, stages = scheme.a, scheme.stages
        return {"kind": "runge-kutta", "a": rows[:stages], "b": scheme.b[:stages], "c": scheme.c[:stages]}
    if isinstance(scheme, LieTrotter):
        return {"kind": "lie-trotter", "node": scheme.nodes.attention[0], "layers": isinstance(scheme, Residual)}
    if isinstance(scheme, Macaron):
        return {"kind": "macaron", "attends": scheme.nodes.attention[0]}
    return {"kind": "strang"} if isinstance(scheme, Strang) else None


def _weights(model: Transformer, arrays: Arrays) -> Document | None:
    """Add the weights' rows to the arrays, and describe how to compute their coefficients; `None` if a page cannot."""
    weights, modulated = model.weights, False
    if isinstance(weights, ModulatedWeights):
        for half in ("attention", "feed_forward"):
            change = getattr(weights, half)
            arrays.add(f"modulated.{half}.scale", change.norm.scale)
            arrays.add(f"modulated.{half}.shift", change.norm.shift)
            arrays.add(f"modulated.{half}.gain", change.gain.scale)
        weights, modulated = weights.base, True
    about = _source(weights, model, arrays)
    return about and about | {"modulated": modulated}


def _source(weights: WeightSource, model: Transformer, arrays: Arrays) -> Document | None:
    if isinstance(weights, TimeWeights):
        _time_rows(weights, arrays)
        shared = weights.shared is not None
        return {"kind": "time", "shared": shared, "frequencies": frequencies(weights.time).tolist()}
    rows: BlockWeights
    if isinstance(weights, KnotWeights):
        rows, about = weights.rows, {"kind": "knots", "place": PLACES[weights.place]}
        about |= {"knots": weights.knots, "bends": bends(weights.basis, weights.knots).tolist()}
        about |= {"average": weights.average, "box": weights.basis == "box"}
    elif isinstance(weights, LayerWeights):
        nodes = weights.nodes or Nodes.same(1.0)
        about = {"kind": "layer", "nodes": {"attention": nodes.attention, "feed_forward": nodes.feed_forward}}
        rows = weights.layers
    elif isinstance(weights, LayerDropWeights):
        rows, about = weights.layers, {"kind": "layer", "kept": _kept(weights, model)}
    elif isinstance(weights, LevelWeights):
        rows, about = weights.blocks, {"kind": "levels", "levels": weights.levels}
    elif isinstance(weights, SharedWeights):
        rows, about = weights.row, {"kind": "shared"}
    else:
        return None
    corrections = getattr(weights, "corrections", None)
    for part, block in (("", rows), ("corrections.", corrections)):
        for name, unit in _units(block) if block is not None else ():
            for leaf, values in vars(unit).items():
                arrays.add(f"{name}.{part}{leaf}", values)
    return about


def _kept(weights: LayerDropWeights, model: Transformer) -> list[list[int]]:
    """List the layers that 1, 2, 3, ... steps keep, read from the table of weights in which layers are numbers."""
    numbers = jax.tree.map(lambda leaf: jnp.arange(len(leaf)), weights.layers)
    own = replace(weights, layers=numbers, corrections=None)
    kept = (own.table(model.grid(steps)).attention.norm.scale for steps in range(1, weights.depth + 1))
    return [layers.ravel().tolist() for layers in kept]


def _units(block: Block) -> list[tuple[str, Any]]:
    halves = {"attention": ("norm", "query_key_value", "output"), "feed_forward": ("norm", "up", "down", "gate")}
    named = ((f"{half}.{name}", getattr(getattr(block, half), name)) for half, own in halves.items() for name in own)
    return [(name, unit) for name, unit in named if unit is not None]


def _time_rows(weights: TimeWeights, arrays: Arrays) -> None:
    """Add for each map and norm the rows `(constant, projection)` of its arrays, and its own network if it has one."""

    def network(name: str, own: TimeNetwork) -> None:
        for part, linear in (("first", own.first), ("second", own.second)):
            for leaf, values in vars(linear).items():
                arrays.add(f"{name}.{part}.{leaf}", values, "<f4")  # at any size, as in training

    def rows(name: str, constant: Any, projection: Any) -> None:
        if projection is not None:
            last = np.moveaxis(np.asarray(projection), -1, 0)
            arrays.add(name, np.concatenate([np.broadcast_to(np.asarray(constant), last.shape[1:])[None], last]))

    if weights.shared is not None:
        network(SHARED, weights.shared)
    for name, unit in _units(weights.networks):
        if unit.network is not None:
            network(name, unit.network)
        if isinstance(unit, TimeLinear):
            rows(f"{name}.weight", unit.constant, unit.projection)
            rows(f"{name}.bias", 0.0, unit.bias_projection)
        elif isinstance(unit, TimeNorm):
            rows(f"{name}.scale", 1.0, unit.scale_projection)
            rows(f"{name}.shift", 0.0, unit.shift_projection)


def _tokenizer(run: Run) -> Document:
    """Return what the page needs to encode a text as the run's tokenizer does.

    **Raises:** `BadInput` unless it is byte-level BPE, or has words between spaces as entries, and one for others.
    """
    found = json.loads(run.tokenizer.to_str())
    model, pre = found["model"], found["pre_tokenizer"] or {}
    added = any(not token["special"] for token in found["added_tokens"])  # which are cut out of a text first
    if found["normalizer"] is None and found["post_processor"] is None and not added:
        words = model["type"] == "WordLevel" and pre.get("type") == "WhitespaceSplit"
        if words and (unknown := model["vocab"].get(model["unk_token"])) is not None:
            return {"kind": "words", "vocabulary": model["vocab"], "unknown": unknown}
        # Each of these changes what merges give, and the page's encoder knows none of them.
        others = ("dropout", "ignore_merges", "byte_fallback", "unk_token", "end_of_word_suffix")
        plain = not any(model.get(name) for name in (*others, "continuing_subword_prefix"))
        splits = pre.get("type") == "ByteLevel" and not pre["add_prefix_space"] and pre["use_regex"]
        if model["type"] == "BPE" and splits and plain:
            return {"kind": "bytes", "vocabulary": model["vocab"], "merges": model["merges"]}
    known = "byte-level BPE as GPT-2's, or whole words and one for unknown ones, without ordinary added tokens"
    raise _refusal(run, f"has a tokenizer that a page does not run ({known})")
