"""Training several models on the same batches and measuring them in the same way."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from diffeqformer.config import Config
from diffeqformer.data.loader import evaluation_batches
from diffeqformer.errors import BadInput
from diffeqformer.evaluation.depth import at_depths
from diffeqformer.progress import Progress
from diffeqformer.runs import folder as files
from diffeqformer.runs.metrics import read_metrics
from diffeqformer.runs.results import document, measured, write_results
from diffeqformer.runs.sampling import continue_text
from diffeqformer.runs.trainer import TrainResult, train
from diffeqformer.store.files import write_whole
from diffeqformer.validation import validate

SAMPLING = {"temperature": 0.8, "top_k": 40, "seed": 0}


def compare(
    configs: Sequence[Config],
    folder: Path,
    title: str,
    prompt: str,
    depths: Sequence[int],
    progress: Progress,
    part: float = 1.0,
) -> dict[str, Any]:
    """Train every config and write `results.json` and `metrics.jsonl` over all of them into `folder`.

    The configs must agree in data, context, batch size and seed, so that each model sees the same batches in the same
    order, some of them more.

    **Arguments:** `configs`, each with a run folder of its own; `prompt`, text that every model continues; `depths`,
    numbers of steps that models with time-dependent weights are also evaluated at, without any fine-tuning; `part`, as
    for `at_depths_of`.

    **Returns:** the document, as `results.document` describes it, with the `depth_part`.

    **Raises:** `BadInput` if a folder holds something else; whatever `train` raises.
    """
    same = {(c.data, c.trainer.batch_size, c.trainer.seed, c.model.context) for c in configs}
    assert len(same) == 1, "models that are compared see the same batches"
    if (folder / files.CONFIG).exists():
        raise BadInput(f"folder {str(folder)!r} holds a run of its own; choose another folder with --run.")
    for config in configs:  # all are refused before any is trained
        files.RunFolder(validate(config)).require_own()
    entries, metrics, corpus = [], [], {}
    for number, config in enumerate(configs, 1):
        progress.say(f"{number}/{len(configs)} {config.run}: {config.model.weights} weights, {config.model.scheme}")
        result = train(config, progress)
        corpus = result.tokens.statistics
        entry = {**result.entry, "sample": _sample(result, prompt)}
        if config.model.time_dependent and not config.model.adaptive:
            entry["depth"] = at_depths_of(result, depths, progress, part)
        entries.append(entry)
        records = read_metrics(result.folder / files.METRICS)
        metrics += [json.dumps({"model": entry["key"], **record}) for record in records]
    found = {**document(title, corpus, entries), "depth_part": part}
    write_whole(folder / files.METRICS, "\n".join(metrics) + "\n")
    write_results(folder / files.RESULTS, found)
    return found


def at_depths_of(
    result: TrainResult, depths: Sequence[int], progress: Progress, part: float = 1.0
) -> list[dict[str, float | int | None]]:
    """The loss of a trained model at several depths: the `depth` of its entry.

    **Arguments:** `part` of the batches of its validation split, evenly spread; all by default.

    **Returns:** for each depth, in order, `steps`, `loss` (nats), `perplexity` and `bits_per_byte`.

    **Raises:** `BadInput` if the model cannot run at one of them.
    """
    m, tokens = result.config.model, result.tokens
    batches = evaluation_batches(tokens.validation, m.context, result.config.trainer.batch_size)
    whole = part >= 1.0
    asked = [steps for steps in depths if not whole or steps != m.steps]  # the whole split has been read at its own
    found = at_depths(
        result.model,
        batches if whole else batches.spread(max(1, round(part * len(batches)))),
        asked,
        bytes_=tokens.validation_bytes if whole else None,
        block=result.config.trainer.loss_block,
        progress=progress,
    )
    # At a depth that was never trained a state may overflow.
    losses = {m.steps: result.entry["validation"], **dict(zip(asked, map(measured, found), strict=True))}
    return [{"steps": steps, **losses[steps]} for steps in depths]


def _sample(result: TrainResult, prompt: str) -> dict[str, Any]:
    (text,) = continue_text(result.model, result.tokens.tokenizer, prompt, **SAMPLING)
    return {"prompt": prompt, "text": text, "settings": SAMPLING}
