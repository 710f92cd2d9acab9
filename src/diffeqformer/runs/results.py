"""Results of a finished run as JSON: one document, with one entry per model."""

import math
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from platform import python_version

import jax

from diffeqformer.config import Config, ModelConfig, to_dict
from diffeqformer.errors import Damaged
from diffeqformer.evaluation.perplexity import Evaluation
from diffeqformer.model.count import count, parameters_of
from diffeqformer.model.transformer import Transformer
from diffeqformer.plain import Document, finite_or_none, shown, version_of
from diffeqformer.runs.folder import RESULTS, metadata_of, settings_of_run
from diffeqformer.runs.metrics import Record
from diffeqformer.runs.settings import first_difference, numeric
from diffeqformer.store.files import read_sealed
from diffeqformer.training.depths import compute_of
from diffeqformer.training.optimizer import split_trained

WEIGHTS = {
    "time": "smooth functions of depth, given by a network for each matrix",
    "time-shared-mlp": "smooth functions of depth, given by one network for all matrices",
    "levels": "a table of layers for each of several numbers of steps",
    "knots": "interpolated between knots in depth",
    "box": "piecewise constant in depth",
    "shared": "the same at every depth",
    "layer": "a table of layers",
    "layerdrop": "a table of layers of which some may be left out",
    "own": "an object of the user's own",
}
NAMES = {
    ("gpt", "time", "euler"): ("diffeqformer", "DiffEqFormer"),
    ("llama", "time", "euler"): ("diffeqformer-llama", "DiffEqFormer-Llama"),
    ("gpt", "layer", "lie-trotter"): ("vanilla", "Vanilla GPT"),
    ("llama", "layer", "lie-trotter"): ("vanilla-llama", "Vanilla Llama"),
    ("gpt", "shared", "euler"): ("shared", "Shared weights"),
    ("gpt", "time-shared-mlp", "euler"): ("shared-mlp", "DiffEqFormer, one MLP"),
    ("gpt", "layer", "euler"): ("parallel", "Parallel blocks"),
    ("gpt", "layer", "macaron"): ("macaron", "MacaronNet"),
    ("gpt", "layer", "heun"): ("ode-transformer-rk2", "ODE Transformer, RK2"),
    ("gpt", "layer", "rk4"): ("ode-transformer-rk4", "ODE Transformer, RK4"),
    ("gpt", "time", "reversible"): ("reversible", "DiffEqFormer, reversible"),
}
ELASTIC = {"time": "Elastic DiffEqFormer", "knots": "Elastic model"}
CURVE_POINTS = 2000
WRITTEN_AGAIN = "the run's own command writes it again"
LEAST_TIMED = 3
"""Fewest timed updates of a depth whose speed is reported: updates ready together count as the time of the first."""
Entry = Document
"""One model's part of the document."""


def document(title: str, corpus: Document, entries: list[Entry]) -> Document:
    """Return `results.json`: when and where it was made, the text (`TokenCache.statistics`) and the models' entries."""
    used = max((_devices(entry) for entry in entries), default=1)
    return {"title": title, **made_here(used), "corpus": corpus, "models": entries}


def made_here(devices: int, *packages: str) -> Document:
    """Return when a document is made, with which versions (`packages` too), and on how many devices of what kind."""
    device, names = jax.devices()[0], ("diffeqformer", *packages, "jax")
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {**{name: version_of(name) for name in names}, "python": python_version()},
        "device": f"{devices} x {device.device_kind} ({device.platform})",
    }


def _devices(entry: Entry) -> int:
    """Return how many devices of this machine an entry's model was trained on."""
    sizes = entry["config"].get("mesh", {}).values()
    return len(jax.devices()) if -1 in sizes else math.prod(sizes)


def read_results(path: Path) -> Document | None:
    """Read the document of a finished run, or of a comparison of several; `None` if there is none.

    **Raises:** `Damaged` if it is not what was written.
    """
    if not path.parent.is_dir():
        return None
    try:
        found = read_sealed(path)
    except FileNotFoundError:
        return None
    except Damaged as damage:
        raise Damaged(f"{str(damage).removesuffix('.')}; {WRITTEN_AGAIN}.") from None
    models, is_entry = found.get("models"), lambda one: isinstance(one, dict) and isinstance(one.get("config"), dict)
    if not (isinstance(models, list) and models and all(map(is_entry, models))):
        raise Damaged(f"file {str(path)!r} holds no results of a run; {WRITTEN_AGAIN}.")
    return found


def results_of(folder: Path) -> Document | None:
    """Read the document of the run in a folder; `None` if it has not ended.

    **Raises:** `Damaged` if it is not what was written, or was written by another run.
    """
    found = read_results(folder / RESULTS)
    if found is None:
        return None
    theirs, ours = numeric(found["models"][0]["config"]), settings_of_run(folder, metadata_of(folder))
    for path in ("data.tokenizer", *(["base.run"] if theirs.get("depth.teacher") == "base" else [])):
        theirs.pop(path, None)  # another one if the run, or the base that teaches it, was moved
    if name := first_difference(theirs, ours):
        raise Damaged(
            f"file {str(folder / RESULTS)!r} is another run's: {name} is {shown(theirs[name])} there, but "
            f"{shown(ours[name])} in this run; {WRITTEN_AGAIN}."
        )
    return found


def model_entry(
    config: Config,
    model: Transformer,
    evaluation: Evaluation,
    records: list[Record],
    seconds: float,
    tokens_per_second: float,
) -> Entry:
    """Return one model's part of `results.json`.

    **Arguments:** `config`, resolved; `model`, trained; `evaluation` of the whole validation split; `records`, the
    run's metrics; `seconds` of training; `tokens_per_second` of the updates alone.
    """
    key, name = _key_and_name(replace(config, model=model.config))
    updates, trained = config.trainer.updates, split_trained(model, config.optimizer)[0]
    return {
        "name": name,
        "key": key,
        "weights": model.config.weights.kind,
        "scheme": model.config.scheme.kind,
        "steps": config.model.steps,
        "evaluations": {
            "attention": evaluation.attention_evaluations,
            "feed_forward": evaluation.feed_forward_evaluations,
        },
        "parameters": {**parameters_of(model)._asdict(), "trained": count(trained)},
        "updates": updates,
        "tokens": updates * config.tokens_per_update,
        "compute": compute_of(config),
        "seconds": seconds,
        "tokens_per_second": tokens_per_second,
        "validation": measured(evaluation),
        "depth": [],
        "participation": None,
        "drawn": drawn_depths(config, records),
        "curve": {
            "train": train_curve(records),
            "validation": [[r["step"], r["loss"]] for r in records if r["kind"] == "validation"],
        },
        "sample": None,
        "samples": [{name: r[name] for name in ("step", "prompt", "text")} for r in records if r["kind"] == "sample"],
        "config": to_dict(config),
    }


def measured(evaluation: Evaluation) -> dict[str, float | None]:
    """Return loss, perplexity and bits per byte; `None` where they are not finite, which JSON cannot express."""
    numbers = {name: getattr(evaluation, name) for name in ("loss", "perplexity", "bits_per_byte")}
    return {name: None if number is None else finite_or_none(number) for name, number in numbers.items()}


def name_of_run(config: Config) -> str:
    """Name a run after its model or, if fine-tuned, after its base and the method; elastic if its depth is drawn."""
    return _key_and_name(config)[1]


def _key_and_name(config: Config) -> tuple[str, str]:
    """Return a key and a name of a run: those of its model or, if fine-tuned, ones made from its base and the method.

    A run whose depth is drawn is called elastic.
    """
    method, m = config.base.method, config.model
    if method is None:
        key, name = name_of(m)
        if not config.depth.depths:
            return key, name
        usual = ELASTIC.get(m.weights.kind) if m.field.kind == "gpt" else None
        return ("elastic", usual) if usual else (f"elastic-{key}", f"Elastic {name}")
    what = {
        "lora": f"LoRA of rank {m.lora.rank if m.lora else 0}",
        "full": "full fine-tuning",
        "continuous": "fine-tuned, continuous",
        "levels": "a table for each level",
    }
    return f"{method}-{m.steps}", f"{config.base.system} → {m.steps}, {what[method]}"


def name_of(config: ModelConfig) -> tuple[str, str]:
    """Return a key and a name for a model: its point on the grid of field, weights and scheme."""
    point = (config.field.kind, config.weights.kind, config.scheme.kind)
    family = {"gpt": "", "own": "own field, "}.get(config.field.kind, f"{config.field.kind}, ")
    scheme = "own scheme" if config.scheme.kind == "own" else config.scheme.kind
    return NAMES.get(point, ("-".join(point), f"{family}{config.weights.kind} weights, {scheme}"))


def weights_in_words(m: ModelConfig) -> str:
    """Describe the weights of a model in words."""
    return WEIGHTS["box" if getattr(m.weights, "basis", None) == "box" else m.weights.kind]


def train_curve(records: list[Record]) -> list[list[int | float]]:
    """Return [update, nats per token] of training: means over windows of equal length, at most `CURVE_POINTS`."""
    losses = [(record["step"], record["loss"]) for record in records if record["kind"] == "update"]
    window = max(1, -(-len(losses) // CURVE_POINTS))
    parts = [losses[start : start + window] for start in range(0, len(losses), window)]
    return [[part[-1][0], sum(loss for _, loss in part) / len(part)] for part in parts]


def drawn_depths(config: Config, records: list[Record]) -> list[dict[str, int | float | None]]:
    """Return for each drawn depth: updates, mean loss of their last tenth (nats per token), tokens per second.

    Empty where an update trains at several depths: its loss and time do not belong to one of them alone.
    """
    drawn = []
    for depth in config.depth.depths if config.depth.alone else ():
        losses = [r["loss"] for r in records if r["kind"] == "update" and r["steps"] == depth]
        timed = [r["depths"][str(depth)] for r in records if r["kind"] == "timing" and str(depth) in r["depths"]]
        updates, seconds = sum(number for number, _ in timed), sum(each for _, each in timed)
        last = losses[-max(1, len(losses) // 10) :]
        speed = updates * config.tokens_per_update / seconds if updates >= LEAST_TIMED and seconds else None
        loss = sum(last) / len(last) if last else None
        drawn.append({"steps": depth, "updates": len(losses), "loss": loss, "tokens_per_second": speed})
    return drawn
