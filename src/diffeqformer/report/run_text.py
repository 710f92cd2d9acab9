"""Sentences of a run's report, and other values read from the entries of `results.json`."""

import math
from collections.abc import Sequence

from diffeqformer.config import DepthConfig
from diffeqformer.plain import Document
from diffeqformer.report.text import (
    MISSING,
    compact,
    counted,
    counted_steps,
    finite,
    gap,
    join,
    nats,
    number,
    perplexity,
)

Model = Document
"""An entry of the results' `models`."""


def headline(models: Sequence[Model], vocabulary: int | None = None) -> str:
    """Summarise a run or comparison in a few sentences: which model has the lowest validation loss, and by how much.

    Losses that print alike count as a tie; models whose loss is not finite are named, not ranked.

    **Arguments:** `vocabulary`, to state the loss of guessing.
    """
    guess = f" Guessing every token uniformly has {nats(math.log(vocabulary))}." if vocabulary else ""
    ranked = sorted((m for m in models if finite(m["validation"]["loss"])), key=lambda m: m["validation"]["loss"])
    failed = [m["name"] for m in models if not finite(m["validation"]["loss"])]
    failure = f"{join(failed)} did not reach a finite validation loss." if failed else ""
    if not ranked:
        return failure
    best = ranked[0]["validation"]
    written = nats(best["loss"])
    if len(models) == 1:
        bits = best["bits_per_byte"]
        return (
            f"{ranked[0]['name']} reaches a validation loss of {written} nats per token: perplexity "
            f"{perplexity(best['perplexity'])}{'' if bits is None else f', {nats(bits)} bits per byte'}.{guess}"
        )
    leaders = [m["name"] for m in ranked if nats(m["validation"]["loss"]) == written]
    others = ranked[len(leaders) :]
    verb = "has" if len(leaders) == 1 else "share"
    of = "Of" if _alike(models) else "Not trained equally long: of"
    sentence = f"{of} {len(models)} models, {join(leaders)} {verb} the lowest validation loss, {written} nats per token"
    if others:
        gaps = [f"{gap(m['validation']['loss'], best['loss'])} below {m['name']}" for m in others]
        sentence += f": {join(gaps)}"
    return f"{sentence}.{guess} {failure}".rstrip()


def claim(models: Sequence[Model], part: float = 1.0) -> str:
    """State the losses of a model trained at several depths at its shallowest and deepest, compared with a model of one
    depth; empty if no model was. **Arguments:** `part`, the share of the validation text that depths were read on."""
    at = lambda model: {p["steps"]: p["loss"] for p in depth_points(model) if finite(p["loss"])}
    elastic = next((m for m in models if at_several(m) and len(depths_trained_at(m)) > 1), None)
    if elastic is None:
        return ""
    losses = at(elastic)
    ends = [depth for depth in depths_trained_at(elastic) if depth in losses]
    if len(ends) < 2:
        return ""
    low, high = ends[0], ends[-1]
    read = lambda of: f"{nats(of[low])} nats per token at {counted_steps(low)} and {nats(of[high])} at {high}"
    said = (
        f"One checkpoint at {number(low)} to {high} steps: {elastic['name']} has a validation loss "
        f"of {read(losses)}, with the same weights"
    )
    on = f" Read on {number(100 * part)} % of the validation text." if part < 1 else ""
    other = next((m for m in models if len(depths_trained_at(m)) == 1 and {low, high} <= {*at(m)}), None)
    if other is None:
        return f"{said}.{on}"
    own = other["steps"]
    there = f"{nats(at(other)[own])} there and " if own in at(other) and own not in (low, high) else ""
    return f"{said}; {other['name']}, trained at {counted_steps(own)} alone, has {there}{read(at(other))}.{on}"


def comparison(models: Sequence[Model]) -> str:
    """State the terms of the comparison: tokens seen, parameters stored, number of runs."""
    one = len(models) == 1
    if _as_many(models):
        amount = f"{counted(models[0]['updates'], 'update')}, {compact(models[0]['tokens'])} tokens"
        trained = f"It was trained for {amount}." if one else f"Each was trained once, for {amount}{_unlike(models)}."
    else:
        seen = join([f"{m['name']} on {compact(m['tokens'])} tokens" for m in models])
        if _alike(models):
            trained = f"Each was trained once, with the same compute (NFE times tokens): {seen}."
        else:
            trained = f"They were not trained equally long: {seen}, once each."
    stored = [f"{compact(m['parameters']['stored'])} in {m['name']}" for m in models]
    parameters = f"Parameters stored: {compact(models[0]['parameters']['stored']) if one else join(stored)}."
    effective = [compact(m["parameters"].get("effective")) for m in models]
    if MISSING not in effective:
        named = [f"{size} in {m['name']}" for size, m in zip(effective, models, strict=True)]
        same = f"{effective[0]} in each" if not one else effective[0]
        said = same if len({*effective}) == 1 else join(named)
        parameters = f"{parameters[:-1]}; effective, once the weights of every step are populated: {said}."
    caution = "" if one else " With a single run of each, a small difference can be chance."
    return f"{trained} {parameters}{caution}{_rates(models)}"


def _as_many(models: Sequence[Model]) -> bool:
    """Whether all models made the same number of updates on the same number of tokens."""
    return len({(m["tokens"], m["updates"]) for m in models}) == 1


def _alike(models: Sequence[Model]) -> bool:
    """Whether losses are comparable: equal updates and tokens, or else equal compute."""
    compute = [m.get("compute", 0) for m in models]
    return _as_many(models) or 0 < max(compute) <= 1.01 * min(compute)


def _rates(models: Sequence[Model]) -> str:
    """Caution that models differ in more than their weights, if their learning rates differ; else empty."""
    rates = [f"{model['config'].get('optimizer', {}).get('learning_rate', 0.0):g}" for model in models]
    if len({*rates}) == 1:
        return ""
    said = join([f"{rate} for {model['name']}" for rate, model in zip(rates, models, strict=True)])
    return (
        f" Learning rates differ ({said}), and so do the settings listed below: no gap between models is due to one "
        "choice alone."
    )


def _unlike(models: Sequence[Model]) -> str:
    """State that models of equally many updates had different compute (depths drawn differently), if so; else empty."""
    by: dict[float, list[str]] = {}
    for m in models:
        by.setdefault(m.get("compute") or 0, []).append(m["name"])
    if not 1.01 * min(by) < max(by) or not min(by):
        return ""
    said = join([f"{number(compute)} in {join(by[compute])}" for compute in sorted(by)])
    return f", but not with the same compute (steps of depth, summed over updates): {said}"


def compute_at(model: Model, update: float) -> float:
    """Compute of a model's first updates: steps of depth, summed over them.

    If depths are drawn, the shallow updates come first. The others are counted at their mean, from which the
    low-discrepancy sequence of draws never strays far.
    """
    updates, total = model["updates"], model.get("compute") or model["updates"] * model["steps"]
    depth = model["config"].get("depth", {})
    shallow = updates * depth.get("shallow_fraction", 0.0) if depth.get("sample") else 0.0
    least = sum({min(_drawn_at(model), default=model["steps"]), *depth.get("always", ())})
    if update <= shallow or shallow >= updates:
        return float(least * update)
    return least * shallow + (total - least * shallow) * (update - shallow) / (updates - shallow)


def depths_trained_at(model: Model) -> list[int]:
    """Numbers of steps that the model was trained at, in increasing order."""
    always = model["config"].get("depth", {}).get("always", ())
    return sorted(_drawn_at(model) | {*always}) or [model["steps"]]


def _drawn_at(model: Model) -> set[int]:
    """Numbers of steps that were drawn in training or, if that is unknown, that could have been."""
    drawn = {d["steps"] for d in model.get("drawn", []) if d["updates"]}
    sample = model["config"].get("depth", {}).get("sample", ())
    return drawn or {*DepthConfig(sample=sample if isinstance(sample, str) else tuple(sample)).depths}


def depth_points(model: Model) -> list[Document]:
    """A model's losses at all depths it was run at, including that of its config, by increasing steps."""
    points = {p["steps"]: p for p in model["depth"]}
    points.setdefault(model["steps"], {"steps": model["steps"], **model["validation"]})
    return [points[depth] for depth in sorted(points)]


def at_several(model: Model) -> bool:
    """Whether a model was also run at depths other than that of its config."""
    return len(depth_points(model)) > 1


def own_loss(model: Model) -> float:
    """The loss at the number of steps of the model's config; on the text that depths were read on, if read there."""
    return next(point["loss"] for point in depth_points(model) if point["steps"] == model["steps"])


def depth_finding(model: Model) -> str:
    """State what a model's depth curve shows."""
    changes = _depth_changes(model)
    if not changes:
        return ""
    near, far = min(changes, key=changes.__getitem__), max(changes, key=changes.__getitem__)

    def at(depth: int) -> str:
        change, run_at = changes[depth], counted_steps(depth)
        return f"{nats(abs(change))} nats {'above' if change >= 0 else 'below'} it at {run_at}"

    own, loss, trained = model["steps"], nats(own_loss(model)), depths_trained_at(model)
    at_all = join(list(map(str, trained)))
    where = f"{counted_steps(own)} only, where" if trained == [own] else f"{at_all} steps; at {own}"
    start = f"{model['name']} was trained at {where} its loss is {loss} nats."
    if len(changes) == 1:
        return f"{start} Run at another depth without fine-tuning, its loss lies {at(near)}."
    return (
        f"{start} Of the other depths read here, without fine-tuning, its loss lies between {at(near)} and {at(far)}."
    )


def poor_elsewhere(model: Model) -> bool:
    """Whether a model that was trained at one depth loses more than a tenth of a nat at every other."""
    changes = _depth_changes(model)
    return bool(changes) and depths_trained_at(model) == [model["steps"]] and min(changes.values()) > 0.1


def _depth_changes(model: Model) -> dict[int, float]:
    points = {p["steps"]: p["loss"] for p in depth_points(model)}
    own = points.pop(model["steps"])
    return {depth: loss - own for depth, loss in points.items() if finite(loss) and finite(own)}


def drawn_rows(model: Model) -> list[list[str]]:
    """One row per depth that updates were drawn at: steps, updates, loss over the last tenth, tokens per second."""
    names = {"steps": number, "updates": number, "loss": nats, "tokens_per_second": number}
    return [[write(drawn[name]) for name, write in names.items()] for drawn in model.get("drawn", [])]
