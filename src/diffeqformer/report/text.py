"""Numbers and text of a report: how they are written, and the sentences that are computed from them."""

import math
import numbers
import unicodedata
from collections.abc import Sequence
from typing import Any

_BIDI_CONTROLS = {*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C}
MISSING = "–"


def clean(text: str) -> str:
    """Text that any HTML or XML page may hold: tabs and newlines stay, other controls become visible marks.

    ASCII controls become their Unicode control pictures; lone surrogates, noncharacters, C1 and bidirectional
    controls (which could reorder what stands around them) become U+FFFD.
    """

    def visible(character: str) -> str:
        code = ord(character)
        if character in "\t\n":
            return character
        if code < 0x20:
            return chr(0x2400 + code)
        if code == 0x7F:
            return "\u2421"
        noncharacter = code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF
        if noncharacter or code in _BIDI_CONTROLS or unicodedata.category(character) in ("Cc", "Cs"):
            return "\ufffd"
        return character

    return "".join(map(visible, text))


def finite(value: Any) -> bool:
    """Whether `value` is a number that can be ranked and drawn."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(float(value))


def number(value: Any, decimals: int = 0) -> str:
    """`12,345.678`; a dash for a missing value, `not finite` for an infinity or a NaN."""
    if value is None:
        return MISSING
    return f"{value:,.{decimals}f}" if finite(value) else "not finite"


def nats(value: Any) -> str:
    """A loss or a difference of losses, in nats."""
    return number(value, 3)


def perplexity(value: Any) -> str:
    """Four significant digits or so; powers of ten when it is huge."""
    if not finite(value):
        return number(value)
    return f"{value:.2e}" if value >= 1e6 else number(value, 2 if value < 100 else 1 if value < 1000 else 0)


def compact(value: Any) -> str:
    """`9,999`, `12.3 k`, `1.62 M`, `1.24 B`: a count at about three digits."""
    if not finite(value) or abs(value) < 10_000:
        return number(value)
    scale, unit = next((s, u) for s, u in ((1e9, "B"), (1e6, "M"), (1e3, "k")) if abs(value) >= 0.9995 * s)
    scaled = value / scale
    return f"{scaled:,.{2 if scaled < 9.995 else 1 if scaled < 99.95 else 0}f}\u00a0{unit}"


def evaluations(halves: dict[str, Any] | None) -> str:
    """`6`, or `6 + 12` if the field's attention and feed-forward halves differ; means have a decimal."""
    if halves is None:
        return MISSING
    cells = [number(n, 0 if not finite(n) or float(n).is_integer() else 1) for n in halves.values()]
    return " + ".join(cells if len(set(cells)) > 1 else cells[:1])


def duration(seconds: Any) -> str:
    """`48.2 s`, `3 min 12 s`, `2 h 05 min`."""
    if not finite(seconds):
        return number(seconds)
    if seconds < 59.95:
        return f"{seconds:.1f}\u00a0s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}\u00a0min {rest:02d}\u00a0s"
    return f"{minutes // 60:,}\u00a0h {minutes % 60:02d}\u00a0min"


def size(bytes_: Any) -> str:
    """`12.3 MB`, in decimal units."""
    if not finite(bytes_):
        return number(bytes_)
    for scale, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if bytes_ >= scale:
            return f"{bytes_ / scale:,.1f}\u00a0{unit}"
    return f"{bytes_:,}\u00a0bytes"


def join(parts: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def headline(models: Sequence[dict[str, Any]]) -> str:
    """What was found, in one or two sentences: who has the lowest validation loss, and by how much.

    Losses that are written alike count as a tie; models whose loss is not finite are named, not ranked.
    """
    ranked = sorted((m for m in models if finite(m["validation"]["loss"])), key=lambda m: m["validation"]["loss"])
    failed = [m["name"] for m in models if not finite(m["validation"]["loss"])]
    failure = f"{join(failed)} did not reach a finite validation loss." if failed else ""
    if not ranked:
        return failure
    best = ranked[0]["validation"]
    written = nats(best["loss"])
    if len(models) == 1:
        return (
            f"{ranked[0]['name']} reaches a validation loss of {written} nats a token: perplexity "
            f"{perplexity(best['perplexity'])}, {nats(best['bits_per_byte'])} bits per byte."
        )
    leaders = [m["name"] for m in ranked if nats(m["validation"]["loss"]) == written]
    others = ranked[len(leaders) :]
    verb = "has" if len(leaders) == 1 else "share"
    sentence = f"Of {len(models)} models, {join(leaders)} {verb} the lowest validation loss, {written} nats a token"
    if others:
        gaps = [f"{nats(m['validation']['loss'] - best['loss'])} below {m['name']}" for m in others]
        sentence += f": {join(gaps)}"
    return f"{sentence}. {failure}".rstrip()


def comparison(models: Sequence[dict[str, Any]]) -> str:
    """On what terms the models were compared: tokens seen, parameters stored, number of runs."""
    one = len(models) == 1
    if len({(m["tokens"], m["updates"]) for m in models}) == 1:
        amount = f"{number(models[0]['updates'])} updates, {compact(models[0]['tokens'])} tokens"
        trained = f"It was trained for {amount}." if one else f"Each was trained once, for {amount}."
    else:
        seen = join([f"{m['name']} on {compact(m['tokens'])} tokens" for m in models])
        compute = [m.get("compute", 0) for m in models]
        if 0 < max(compute) <= 1.01 * min(compute):
            trained = f"Each was trained once, with the same compute (evaluations of the field times tokens): {seen}."
        else:
            trained = f"They were not trained equally long: {seen}, once each."
    stored = [f"{compact(m['parameters']['stored'])} in {m['name']}" for m in models]
    parameters = f"Parameters stored: {compact(models[0]['parameters']['stored']) if one else join(stored)}."
    caution = "" if one else " With a single run of each, a small difference can be chance."
    return f"{trained} {parameters}{caution}"


def depth_points(model: dict[str, Any]) -> list[dict[str, Any]]:
    """A model's losses at all depths it was run at, the trained one included, by increasing steps."""
    points = {p["steps"]: p for p in model["depth"]}
    points.setdefault(model["steps"], {"steps": model["steps"], **model["validation"]})
    return [points[steps] for steps in sorted(points)]


def loss_as_trained(model: dict[str, Any]) -> float:
    """The loss at the number of steps that the model's config names."""
    return next(point["loss"] for point in depth_points(model) if point["steps"] == model["steps"])


def drawn_depths(model: dict[str, Any]) -> list[list[str]]:
    """A row for each depth that updates were drawn at: steps, updates, loss over the last tenth, tokens a second."""
    return [
        [number(d["steps"]), number(d["updates"]), nats(d["loss"]), number(d["tokens_per_second"])]
        for d in model.get("drawn", [])
    ]


def depth_finding(model: dict[str, Any]) -> str:
    """What a model's depth curve shows, from its numbers."""
    changes = _depth_changes(model)
    if not changes:
        return ""
    near, far = min(changes, key=changes.__getitem__), max(changes, key=changes.__getitem__)

    def at(steps: int) -> str:
        change = changes[steps]
        return f"{nats(abs(change))} nats {'above' if change >= 0 else 'below'} it at {steps} steps"

    trained = nats(loss_as_trained(model))
    drawn = [point["steps"] for point in model.get("drawn", [])]
    depths = f"{model['steps']} steps only, where"
    if drawn:
        depths = f"many depths, {min(drawn)} to {max(drawn)} steps; at {model['steps']}"
    start = f"{model['name']} was trained at {depths} its loss is {trained} nats."
    if len(changes) == 1:
        return f"{start} Run at another depth without fine-tuning, its loss lies {at(near)}."
    return f"{start} Run at other depths without fine-tuning, its loss lies between {at(near)} and {at(far)}."


def poor_elsewhere(model: dict[str, Any]) -> bool:
    """Whether a model loses more than a tenth of a nat at every depth but the trained one."""
    changes = _depth_changes(model)
    return bool(changes) and min(changes.values()) > 0.1


def _depth_changes(model: dict[str, Any]) -> dict[int, float]:
    points = {p["steps"]: p["loss"] for p in depth_points(model)}
    trained = points.pop(model["steps"])
    return {steps: loss - trained for steps, loss in points.items() if finite(loss) and finite(trained)}
