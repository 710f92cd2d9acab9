"""Training: a run folder goes in, the same folder with a trained model and its results comes out.

The same call begins a run, continues one that was stopped or killed at any moment, and returns the results of one that
is finished. Continued runs repeat the uninterrupted run's numbers exactly: update k depends on the config, the state
after update k - 1, and batch k, which is computed from k.
"""

import math
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from diffeqformer.config import Config
from diffeqformer.data.cache import TokenCache, prepare
from diffeqformer.data.loader import Loader
from diffeqformer.errors import BadInput, Damaged, RunFailed
from diffeqformer.evaluation.perplexity import Evaluation, evaluate
from diffeqformer.model.transformer import Transformer
from diffeqformer.progress import Progress, Silent
from diffeqformer.sharding import laid_out, mesh_of, placed, with_shardings
from diffeqformer.training import folder as files
from diffeqformer.training import results
from diffeqformer.training.checkpoint import Checkpoints
from diffeqformer.training.distributed import by_first, first_in_turn, is_first, is_loss, lost, require_same
from diffeqformer.training.finetune import open_base, require_same_tokenizer
from diffeqformer.training.metrics import read_metrics, require_lines
from diffeqformer.training.optimizer import roles, split_trained
from diffeqformer.training.run import Run
from diffeqformer.training.sitting import Clock, Past, Sitting, tokens_per_update, validation_batches
from diffeqformer.training.trackers import NoLog, RunLog, require_trackers
from diffeqformer.training.update import State, initial_state
from diffeqformer.validation import validate


@dataclass(frozen=True)
class TrainResult:
    """A finished run."""

    folder: Path
    config: Config
    """Resolved: the vocabulary's size is filled in."""
    model: Transformer
    tokens: TokenCache
    entry: dict[str, Any]
    """The model's part of `results.json`: evaluation, curve, speed, parameters."""


def train(config: Config, progress: Progress, base: Run | None = None) -> TrainResult:
    """Train the model of `config` on its text, in its run folder; continue what is there.

    Nothing is written into the run folder until config, folder and text have been found sound.

    **Arguments:** `config`; `progress`; `base`, the run of `config.base` if it is open already. It is needed until the
    run has a checkpoint of its own.

    On several devices the model is laid out over `config.mesh`; of several processes (`distributed.join`) each makes
    the same call, and the first alone writes and tells `progress`.

    **Raises:** `BadInput` for anything that makes the run impossible or another one's; `RunFailed` if the loss stops
    being finite, the disk is full, no checkpoint is sound or another process is lost; `Interrupted` after Ctrl-C or
    SIGTERM, saved.
    """
    config, progress = validate(config), progress if is_first() else Silent()
    mesh = mesh_of(config)
    left = len(jax.devices()) - (1 if mesh is None else mesh.size)
    if left:
        progress.say(f"{left} of {len(jax.devices())} devices are not used; --mesh.data -1 takes all.")
    try:
        with laid_out(mesh):
            return _train(config, progress, base)
    except Exception as error:
        if not is_loss(error):
            raise
        raise lost(error) from error


def _train(config: Config, progress: Progress, base: Run | None) -> TrainResult:
    by_first(lambda: files.require_own_folder(config))
    by_first(lambda: require_trackers(config))
    if config.base.run and base is None and not Checkpoints(files.run_folder(config) / files.CHECKPOINTS).steps():
        base = open_base(config.base, progress)

    def fits(tokens: TokenCache) -> None:
        require_same_tokenizer(base, tokens)
        files.resolve(config, tokens)
        _loader(config, tokens)
        validation_batches(config, tokens)

    tokens = first_in_turn(lambda: prepare(files.readable_data(config), progress, fits))
    require_same("text", tokens.content)
    config, loader = files.resolve(config, tokens), _loader(config, tokens)
    start = placed(base.model) if base else None
    blank = with_shardings(jax.eval_shape(lambda: initial_state(config, start)))
    if not jax.tree.leaves(split_trained(blank.model, config.optimizer)[0]):
        asked, there = config.optimizer.train_roles, sorted(set(jax.tree.leaves(roles(blank.model))))
        raise BadInput(
            f"optimizer.train_roles is {', '.join(asked) or 'empty'}, but this model's parameters have the roles "
            f"{', '.join(there)}."
        )
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(blank))
    by_first(lambda: files.require_space(config, size))
    with ExitStack() as stack:
        folder = Path(by_first(lambda: str(stack.enter_context(files.own_folder(config, tokens)))))
        checkpoints = Checkpoints(folder / files.CHECKPOINTS, config.trainer.keep_last, config.trainer.keep_best)
        state, past = _open(checkpoints, config, blank, start, progress)
        step = int(state.step)
        by_first(lambda: require_lines(folder / files.METRICS, step, past.metrics))
        finished = by_first(
            lambda: _results(folder / files.RESULTS, progress) if step == config.trainer.updates else None
        )
        if finished is not None:
            return TrainResult(folder, config, state.model, tokens, finished["models"][0])
        try:
            with RunLog(config, folder, step, progress) if is_first() else NoLog() as log:
                sitting = Sitting(config, tokens, loader, log, checkpoints, state, past, progress)
                state = sitting.train()
                entry = _finish(config, tokens, folder, state.model, checkpoints, past.clock, progress)
                log.results(entry)
        except OSError as error:
            raise RunFailed(
                f"run folder {str(folder)!r} could not be written ({error.strerror}); {checkpoints.last_good()}."
            ) from error
        return TrainResult(folder, config, state.model, tokens, entry)


def _open(
    checkpoints: Checkpoints, config: Config, like: State, base: Transformer | None, progress: Progress
) -> tuple[State, Past]:
    """The newest sound checkpoint's state, or a fresh one, on its devices; `like` has its shapes."""
    restored = checkpoints.latest({"model": like.model, "optimizer": like.optimizer}, progress.say)
    if restored is None:
        return placed(initial_state(config, base)), Past(Clock())
    by_first(lambda: checkpoints.clean(after=restored.step))
    state = State(restored.items["model"], restored.items["optimizer"], jax.numpy.int32(restored.step))
    return placed(state), _past_of(restored.metadata)


def _past_of(metadata: dict[str, Any]) -> Past:
    best = metadata["best"]
    return Past(Clock(**metadata["clock"]), math.inf if best is None else best, metadata.get("metrics"))


def _results(path: Path, progress: Progress) -> dict[str, Any] | None:
    """The results of a finished run; `None` if they are still to be measured."""
    try:
        return results.read_results(path)
    except Damaged as error:
        progress.say(f"{error} It is written again.")
        return None


def _finish(
    config: Config,
    tokens: TokenCache,
    folder: Path,
    model: Transformer,
    checkpoints: Checkpoints,
    clock: Clock,
    progress: Progress,
) -> dict[str, Any]:
    """Evaluate on the whole validation split and write `results.json`."""
    evaluation = evaluate(
        model,
        validation_batches(config, tokens),
        bytes_=tokens.validation_bytes,
        block=config.trainer.loss_block,
        progress=progress,
        name="Evaluating",
    )
    if not math.isfinite(evaluation.loss):
        raise RunFailed(f"the validation loss is {evaluation.loss} after the last update; {checkpoints.last_good()}.")
    return by_first(lambda: _write_results(config, tokens, folder, evaluation, clock))


def _write_results(
    config: Config, tokens: TokenCache, folder: Path, evaluation: Evaluation, clock: Clock
) -> dict[str, Any]:
    speed = clock.updates * tokens_per_update(config) / clock.update_seconds if clock.updates else 0.0
    records = read_metrics(folder / files.METRICS)
    entry = results.model_entry(config, evaluation, records, clock.seconds, speed)
    document = results.document(folder.resolve().name, tokens.statistics, [entry])
    results.write_results(folder / files.RESULTS, document)
    return entry


def _loader(config: Config, tokens: TokenCache) -> Loader:
    return Loader(tokens.train, config.model.context, config.trainer.batch_size, config.trainer.seed)
