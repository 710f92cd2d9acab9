"""One self-contained HTML page from a results dictionary: no scripts, nothing fetched, light and dark."""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from diffeqformer.report import figures, text
from diffeqformer.store.files import write_output

Model = dict[str, Any]

ENVIRONMENT = Environment(
    loader=PackageLoader("diffeqformer.report"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    # Every string that enters the page passes here, and is then escaped; markup is our own figures' only.
    finalize=lambda value: text.clean(value) if isinstance(value, str) and not hasattr(value, "__html__") else value,
)


def write_report(results: dict[str, Any], path: Path) -> None:
    """Write the report of a run, or of a comparison, as one HTML file.

    The file is written aside and renamed, so a reader never finds half of one. Equal results give equal bytes.

    **Arguments:** `results`, what `results.json` holds; sections whose numbers are missing (an empty `depth`, an
    empty `curve`, a null `sample`) are left out. `path`, the file to write.

    **Raises:** `RunFailed` if the file cannot be written.
    """
    write_output(Path(path), render(results).encode())


def render(results: dict[str, Any]) -> str:
    """The report as the text of an HTML page; see `write_report`."""
    models = results["models"]
    return ENVIRONMENT.get_template("report.html").render(
        title=results["title"],
        created=_date(results["created"]),
        headline=text.headline(models),
        comparison=text.comparison(models),
        columns=_columns(models),
        names=[m["name"] for m in models],
        losses=_losses(models),
        drawn=[(i, m["name"], rows) for i, m in enumerate(models) if (rows := text.drawn_depths(m))],
        depth=_depth(models, results["corpus"].get("vocabulary")),
        depth_part=text.number(100 * part) if (part := results.get("depth_part", 1.0)) < 1 else "",
        samples=[(i, m["name"], m["sample"], _pairs(m["sample"])) for i, m in enumerate(models) if m["sample"]],
        corpus=_corpus(results["corpus"]),
        settings=_settings(models),
        made=[
            *((f"{name} version", value) for name, value in results["versions"].items()),
            ("device", results["device"]),
        ],
    )


def _date(created: str) -> dict[str, str]:
    try:
        moment = datetime.fromisoformat(created)
    except ValueError:
        return {"machine": created, "human": created}
    zone = "" if moment.tzinfo is None else " UTC"
    moment = moment if moment.tzinfo is None else moment.astimezone(UTC)
    return {"machine": created, "human": f"{moment.day} {moment:%B %Y, %H:%M}{zone}"}


def _columns(models: Sequence[Model]) -> list[dict[str, Any]]:
    """The columns of the main table: a title, its unit, a cell for each model, the places of the best ones."""

    def column(title: str, unit: str, read: Callable[[Model], Any], write: Callable, best: Callable | None = None):
        values = [read(m) for m in models]
        cells, known = [write(v) for v in values], [v for v in values if text.finite(v)]
        top = write(best(known)) if best and known and len(models) > 1 else None
        # Cells that read alike are equally good: nothing is won by a digit that is not shown.
        marked = {i for i, cell in enumerate(cells) if cell == top} if len(set(cells)) > 1 else set()
        return {"title": title, "unit": unit, "cells": cells, "best": marked, "number": write is not str}

    def validation(name: str) -> Callable[[Model], Any]:
        return lambda m: m["validation"][name]

    return [
        column("Validation loss", "nats a token", validation("loss"), text.nats, min),
        column("Perplexity", "", validation("perplexity"), text.perplexity, min),
        column("Bits per byte", "", validation("bits_per_byte"), text.nats, min),
        column("Weights", "", lambda m: m["weights"], str),
        column("Scheme", "", lambda m: m["scheme"], str),
        column("Steps", "", lambda m: m, _steps),
        column("Evaluations", "of the field", lambda m: m.get("evaluations"), text.evaluations),
        column("Parameters", "stored", lambda m: m["parameters"]["stored"], text.compact),
        column("Parameters", "effective", lambda m: m["parameters"]["effective"], text.compact),
        column("Tokens", "a second", lambda m: m["tokens_per_second"], text.number, max),
        column("Training", "time", lambda m: m["seconds"], text.duration, min),
    ]


def _steps(model: Model) -> str:
    """The number of steps, or the tolerance that chose them."""
    rtol = (model["config"].get("model", {}).get("tolerance") or {}).get("rtol")
    return text.number(model["steps"]) if rtol is None else f"adaptive (rtol {rtol:g})"


def _picture(draw: Callable[..., Any], name: str, label: str, *arguments: Any) -> dict[str, Markup]:
    widths = {"wide": figures.WIDE, "narrow": figures.NARROW}
    return {w: Markup(figures.svg(draw(*arguments, width=i), f"{name}-{w}", label)) for w, i in widths.items()}


def _losses(models: Sequence[Model]) -> dict[str, Any] | None:
    trains = [m["curve"]["train"] for m in models]
    everything = [p for m in models for kind in ("train", "validation") for p in m["curve"][kind]]
    drawn = figures.finite_points(everything)
    if not drawn:
        return None
    notes = []
    window = max(figures.smooth_window(figures.finite_points(t)) for t in trains)
    if any(trains):
        average = f" and as a moving average over up to {window} of its points" if window > 1 else ""
        notes.append(f"Lines: training loss (faint; means of a few updates in long runs){average}.")
    if any(m["curve"]["validation"] for m in models):
        parts = {m["config"].get("trainer", {}).get("evaluate_batches") for m in models}
        some = [n for n in parts if n]
        way = f", estimated during training on {text.join(sorted(map(str, some)))} batches" if some else ""
        notes.append(f"Points: validation loss{way}.")
    if missing := len(everything) - len(drawn):
        notes.append(f"Points that are not finite, and so cannot be drawn: {missing}.")
    finals = text.join([f"{m['name']} {text.nats(m['validation']['loss'])}" for m in models])
    label = f"Training and validation loss against updates. Final validation losses in nats: {finals}."
    return {"picture": _picture(figures.loss_curves, "loss", label, models), "notes": notes}


def _depth(models: Sequence[Model], vocabulary: int | None) -> dict[str, Any] | None:
    run = [(i, m) for i, m in enumerate(models) if m["depth"]]
    if not run:
        return None
    findings = " ".join(filter(None, (text.depth_finding(m) for _, m in run)))
    label = f"Validation loss against the number of steps run. {findings}"
    tables = []
    for index, model in run:
        trained = text.loss_as_trained(model)
        rows = [
            {
                "steps": text.number(p["steps"]),
                "trained": p["steps"] == model["steps"],
                "cells": [
                    text.nats(p["loss"]),
                    _signed(p["loss"], trained) if p["steps"] != model["steps"] else text.MISSING,
                    text.perplexity(p["perplexity"]),
                    text.nats(p["bits_per_byte"]),
                ],
            }
            for p in text.depth_points(model)
        ]
        tables.append({"index": index, "name": model["name"], "rows": rows})
    return {
        "picture": _picture(figures.depth_curve, "depth", label, models, vocabulary),
        "findings": findings,
        "references": [m["name"] for m in models if not m["depth"]],
        "poor": any(m["weights"].startswith("time") and text.poor_elsewhere(m) for _, m in run),
        "guess": text.nats(guess) if (guess := figures.uniform_loss(models, vocabulary)) is not None else "",
        "tables": tables,
    }


def _signed(loss: Any, reference: Any) -> str:
    if not (text.finite(loss) and text.finite(reference)):
        return text.MISSING
    return f"{'+' if loss >= reference else '−'}{text.nats(abs(loss - reference))}"


def _corpus(corpus: dict[str, Any]) -> dict[str, Any]:
    rows = [
        (title, text.number(corpus.get(f"train_{key}")) if key != "bytes" else text.size(corpus.get("train_bytes")),
         text.number(corpus.get(f"validation_{key}")) if key != "bytes" else text.size(corpus.get("validation_bytes")))
        for title, key in (("Documents", "documents"), ("Text", "bytes"), ("Tokens", "tokens"))
    ]  # fmt: skip
    known = [row for row in rows if row[1:] != (text.MISSING, text.MISSING)]
    return {"name": corpus["name"], "rows": known, "vocabulary": text.number(corpus.get("vocabulary"))}


def _pairs(sample: dict[str, Any] | None) -> list[tuple[str, str]]:
    settings = (sample or {}).get("settings") or {}
    return [(name.replace("_", " "), _setting(value)) for name, value in settings.items() if value is not None]


def _settings(models: Sequence[Model]) -> dict[str, Any]:
    """Every setting of every model by its dotted name; `differ` holds those that are not the same in all models."""
    flat = [dict(_flatten(m["config"])) for m in models]
    names = list(dict.fromkeys(name for one in flat for name in one))
    rows = [(name, [one.get(name, text.MISSING) for one in flat]) for name in names]
    return {"all": [(n, c, len(set(c)) > 1) for n, c in rows], "differ": [(n, c) for n, c in rows if len(set(c)) > 1]}


def _flatten(config: dict[str, Any], where: str = "") -> Iterator[tuple[str, str]]:
    for name, value in config.items():
        if isinstance(value, dict) and value:
            yield from _flatten(value, f"{where}{name}.")
        else:
            yield f"{where}{name}", _setting(value)


def _setting(value: Any) -> str:
    """A setting as YAML would have it, nearly."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_setting, value))}]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value) if value != "" else '""'
