"""What a finished run found, as JSON: one document, one entry a model."""

import json
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Any

import jax

from diffeqformer.config import Config, ModelConfig, to_dict
from diffeqformer.evaluation.perplexity import Evaluation
from diffeqformer.model.count import parameters
from diffeqformer.training.files import write_whole

NAMES = {
    ("time", "euler"): ("diffeqformer", "DiffEqFormer"),
    ("layer", "lie-trotter"): ("vanilla", "Vanilla GPT"),
    ("shared", "euler"): ("shared", "Shared weights"),
}
CURVE_POINTS = 2000


def document(title: str, corpus: dict[str, Any], entries: list[dict[str, Any]]) -> dict[str, Any]:
    """The whole of `results.json`: when and where, on which text (`TokenCache.statistics`), and the models' entries."""
    device = jax.devices()[0]
    return {
        "title": title,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"diffeqformer": version("diffeqformer"), "jax": jax.__version__, "python": python_version()},
        "device": f"{len(jax.devices())} x {device.device_kind} ({device.platform})",
        "corpus": corpus,
        "models": entries,
    }


def write_results(path: Path, results: dict[str, Any]) -> None:
    """Write the document, whole or not at all."""
    write_whole(path, json.dumps(results, indent=1, allow_nan=False, ensure_ascii=False) + "\n")


def read_results(path: Path) -> dict[str, Any] | None:
    """The document of a finished run; `None` if there is none that can be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def model_entry(
    config: Config, evaluation: Evaluation, records: list[dict[str, Any]], seconds: float, tokens_per_second: float
) -> dict[str, Any]:
    """One model's part of `results.json`.

    **Arguments:** `config`, resolved; `evaluation` of the whole validation split; `records`, the run's metrics;
    `seconds` of training; `tokens_per_second` of the updates alone.
    """
    key, name = name_of(config.model)
    updates = config.trainer.updates
    return {
        "name": name,
        "key": key,
        "weights": config.model.weights,
        "scheme": config.model.scheme,
        "steps": config.model.steps,
        "parameters": parameters(config.model)._asdict(),
        "updates": updates,
        "tokens": updates * config.trainer.batch_size * config.model.context,
        "seconds": seconds,
        "tokens_per_second": tokens_per_second,
        "validation": {
            "loss": evaluation.loss,
            "perplexity": evaluation.perplexity,
            "bits_per_byte": evaluation.bits_per_byte,
        },
        "depth": [],
        "curve": {"train": train_curve(records), "validation": validation_curve(records)},
        "sample": None,
        "config": to_dict(config),
    }


def name_of(config: ModelConfig) -> tuple[str, str]:
    """A key and a name for the point of the grid that a model is."""
    other = f"{config.weights} weights, {config.scheme}"
    return NAMES.get((config.weights, config.scheme), (f"{config.weights}-{config.scheme}", other))


def train_curve(records: list[dict[str, Any]], points: int = CURVE_POINTS) -> list[list[int | float]]:
    """[update, nats] of training: means over windows of equal length, at most `points` of them."""
    losses = [(record["step"], record["loss"]) for record in records if record["kind"] == "update"]
    window = max(1, -(-len(losses) // points))
    parts = [losses[start : start + window] for start in range(0, len(losses), window)]
    return [[part[-1][0], sum(loss for _, loss in part) / len(part)] for part in parts]


def validation_curve(records: list[dict[str, Any]]) -> list[list[int | float]]:
    """[update, nats] of the evaluations on the way."""
    return [[record["step"], record["loss"]] for record in records if record["kind"] == "validation"]
