"""Training: fills a run folder with a trained model and its results.

The same call begins a run, continues one that was stopped or killed at any moment, and returns the results of one that
is finished. A continued run repeats the uninterrupted run's numbers exactly: update k depends on the config, the state
after update k - 1, and batch k, which is computed from k.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
from tokenizers import Tokenizer

from diffeqformer.config import Config, validate
from diffeqformer.data.beside import beside_tokenizer, special_token
from diffeqformer.data.cache import TokenCache, prepare
from diffeqformer.data.loader import Loader
from diffeqformer.data.stream import Stream
from diffeqformer.data.tokenizer import end_of_text, leading, reading_special_tokens, vocabulary_size
from diffeqformer.errors import BadInput, Damaged, Diverged, RunFailed, reason
from diffeqformer.evaluation.perplexity import evaluate
from diffeqformer.model.build import Build, require_no_own
from diffeqformer.model.build import build as usual_build
from diffeqformer.model.transformer import Transformer
from diffeqformer.progress import Progress, Silent
from diffeqformer.runs import results
from diffeqformer.runs.distributed import by_main, is_loss, is_main, lost, main_first, require_same
from diffeqformer.runs.finetune import open_base, require_same_tokenizer, teacher_digest, teacher_of
from diffeqformer.runs.folder import RunFolder, as_moved
from diffeqformer.runs.metrics import read_metrics
from diffeqformer.runs.opening import Run
from diffeqformer.runs.recorder import Recorder, validation_batches
from diffeqformer.runs.resume import Beginning, Clock
from diffeqformer.runs.sampling import Samples
from diffeqformer.runs.trackers import NoLog, RunLog, require_trackers
from diffeqformer.sharding import divided_batch, is_divided, laid_out, mesh_of, placed
from diffeqformer.store.files import is_of, write_sealed
from diffeqformer.training.loop import train_loop
from diffeqformer.training.optimizer import require_trained, scheduled
from diffeqformer.training.recipe import NO_RECIPE, Batches, Callback, Checked, Recipe
from diffeqformer.training.update import initial_state


@dataclass(frozen=True)
class TrainResult:
    """A finished run."""

    folder: Path
    config: Config
    """Resolved: the vocabulary's size is filled in."""
    model: Transformer
    tokens: TokenCache
    entry: results.Entry
    """The model's part of `results.json`: evaluation, curve, speed, parameters."""


def train(
    config: Config, progress: Progress, base: Run | None = None, build: Build | None = None, recipe: Recipe = NO_RECIPE
) -> TrainResult:
    """Train the model of `config` on its text, in its run folder, or continue the run that is there.

    Nothing is written into the run folder until config, folder and text have been checked.

    **Arguments:** `config`; `progress`; `base`, the run of `config.base` if it is open already: it is needed until the
    new run has a checkpoint of its own, or to its end if updates learn from it; `build`, `(model config, key) -> model`
    for a model with weights, a field or a scheme of your own, by default `diffeqformer.model.build.build`; `recipe`,
    other parts of your own. Neither is stored in the folder: give the same ones to continue the run, and `build` to
    `load_run`.

    On several devices the model is sharded over `config.mesh`. With several processes (`distributed.join`), each makes
    the same call, and only the main process writes and reports to `progress`.

    **Returns:** a `TrainResult`, of a finished run at once.

    **Raises:** `BadInput` for anything that makes the run impossible, or if the folder belongs to another run;
    `RunFailed` if the loss is no longer finite, the disk is full, no checkpoint is sound or another process is lost;
    `Interrupted`, once the run is saved, after Ctrl-C or SIGTERM, or when a callback stops it.
    """
    config, progress = validate(config), progress if is_main() else Silent()
    mesh = mesh_of(config)
    left = len(jax.devices()) - (1 if mesh is None else mesh.size)
    if left:
        are = "is" if left == 1 else "are"
        progress.say(f"{left} of {len(jax.devices())} devices {are} not used; --mesh.data -1 takes all.")
    try:
        with laid_out(mesh):
            return _train(config, progress, base, build or usual_build, recipe)
    except Exception as error:
        if not is_loss(error):
            raise
        raise lost(error) from error


def _train(config: Config, progress: Progress, base: Run | None, build: Build, recipe: Recipe) -> TrainResult:
    if build is usual_build:
        require_no_own(config.model)
    config = as_moved(config)
    folder = RunFolder(config)
    # Before anything is read; `held` checks again once it has the lock.
    by_main(folder.require_own)
    by_main(lambda: require_trackers(config))
    teaches = config.depth.teacher == "base"
    if config.base.run and base is None and (teaches or not folder.checkpoints.steps()):
        base = open_base(config.base, progress, build)
    teacher = by_main(lambda: teacher_digest(base, config))
    # Called twice: for its checks before tokens are kept, then for its result.
    accept = lambda tokens: fitting(config, tokens, base, recipe, build)
    tokens = main_first(lambda: prepare(folder.data, progress, accept, recipe.corpus))
    require_same("text", tokens.content)
    folder.config, batches = accept(tokens)
    beginning = Beginning(folder, placed(base.model) if base else None, build, recipe)
    if isinstance(batches, Stream):
        recipe = replace(recipe, callbacks=(Remembered(batches), *recipe.callbacks))
    if config.trainer.samples:
        samples = samples_of(config, tokens.tokenizer, base.folder if base else folder.path)
        recipe = replace(recipe, callbacks=(*recipe.callbacks, samples))
    with folder.held(tokens, beginning.bytes, beside_tokenizer(base.folder, base.tokenizer) if base else {}):
        state, resumed = beginning.state(progress)
        step = int(state.step)
        entry = by_main(lambda: _finished(folder, step, progress))
        if entry is None:
            try:
                with RunLog(folder, step, progress) if is_main() else NoLog() as log:
                    with Recorder(folder, tokens, log, resumed, step, progress, recipe, teacher) as recorder:
                        if step == 0 and config.base.run:
                            recorder.evaluate(state)  # the loss to improve on
                        batch, frozen = batches_of(folder.config, batches), teacher_of(base, folder.config)
                        state = train_loop(folder.config, state, batch, recorder, recipe.rule, recipe.schedule, frozen)
                    entry = _evaluated(folder, tokens, state.result, resumed.clock, progress)
                    log.results(entry)
            except OSError as error:
                if not is_of(error, folder.path):  # a callback's own
                    raise
                raise RunFailed(
                    f"run folder {str(folder.path)!r} could not be written ({reason(error)}); "
                    f"{folder.checkpoints.last_good()}."
                ) from error
            except BadInput as error:
                if not isinstance(batches, Stream):  # whose text is read, and may prove bad, only now
                    raise
                raise RunFailed(f"{str(error).removesuffix('.')}; {folder.checkpoints.last_good()}.") from error
        return TrainResult(folder.path, folder.config, state.result, tokens, entry)


def samples_of(config: Config, tokenizer: Tokenizer, beside: Path | None = None) -> Samples:
    """Return the callback of `trainer.samples`. As in `sample`, an imported model's texts begin and end as in its
    training, and the names of special tokens in prompts stand for these.

    **Arguments:** `beside`, the folder of a run whose files may declare the token that ends a text.

    **Raises:** `BadInput` as `Samples`.
    """
    start, prompts = [], tokenizer
    if config.base.from_imported:
        start, prompts = leading(tokenizer), reading_special_tokens(tokenizer)
    stops = special_token(beside, tokenizer, "eos_token") if beside else []
    return Samples(config.trainer.samples, prompts, config.model.context, start, stops)


def fitting(
    config: Config, tokens: TokenCache, base: Run | None, recipe: Recipe = NO_RECIPE, build: Build = usual_build
) -> tuple[Config, Loader | Batches]:
    """Return the config with the vocabulary's size, and the batches, if text, model, base and prompts fit together.

    **Raises:** `BadInput` if they do not.
    """
    require_same_tokenizer(base, tokens)
    entries, vocabulary = vocabulary_size(tokens.tokenizer), config.model.vocabulary
    if vocabulary is not None and entries > vocabulary:
        raise BadInput(f"model.vocabulary is {vocabulary}, but must be at least {entries}, the tokenizer's size.")
    context, t = config.model.context, config.trainer
    validation = validation_batches(config, tokens)
    if t.evaluate_batches and not any(counts.any() for _, counts in validation.spread(t.evaluate_batches)):
        raise BadInput(
            f"trainer.evaluate_batches is {t.evaluate_batches}, but no prediction counts in so few batches of the "
            "validation split; raise it, or 0 for all."
        )
    samples_of(config, tokens.tokenizer)  # made only for its checks
    config = replace(config, model=replace(config.model, vocabulary=vocabulary or entries))
    like = jax.eval_shape(lambda: initial_state(config, base and base.model, build, recipe.rule))
    require_trained(like.model, config.optimizer)
    scheduled(config.optimizer, t.updates, recipe.schedule)  # made only for its check
    if recipe.batches is not None:
        own = recipe.batches(config, tokens)
        return config, own if isinstance(own, Loader | Stream) else Checked(own, config)
    apart = config.data.documents == "apart"
    if tokens.stream:
        masked = tokens.train_mask is not None
        return config, Stream(
            tokens.stream, config.data.weights, tokens.tokenizer, context, t.batch_size, apart, masked
        )
    # Not strict: without `data.weights` all tokens are drawn equally, whatever source they are from.
    sources = list(zip(tokens.statistics.get("train_sources", ()), config.data.weights, strict=False))
    end = end_of_text(tokens.tokenizer) if apart else None
    return config, Loader(tokens.train, context, t.batch_size, t.seed, tokens.train_mask, sources, end)


class Remembered(Callback):
    """Keeps the position of a stream with each checkpoint, so that a resumed run need not read all that came before."""

    def __init__(self, stream: Stream):
        self.memory, self.remember = stream.memory, stream.remember


def batches_of(config: Config, loader: Loader | Batches) -> Callable[[int], Any]:
    """Return the function that reads batch k; with several processes, each reads the rows of its own devices."""
    if not is_divided():
        return loader.__getitem__
    parts, size, context = config.trainer.accumulation, config.trainer.batch_size, config.model.context
    divided = lambda read, rows, length: divided_batch(read, (parts, rows // parts, length))
    if not isinstance(loader, Loader):  # each process has the whole batch
        of_whole = lambda whole: divided(lambda start, stop: whole[start:stop], *whole.shape)
        return lambda k: jax.tree.map(of_whole, loader[k])

    def batch(k: int) -> Any:
        ids = divided(partial(loader.rows, k), size, context + 1)
        return (ids, divided(partial(loader.mask_rows, k), size, context)) if loader.masks else ids

    return batch


def _finished(folder: RunFolder, step: int, progress: Progress) -> results.Entry | None:
    """Return the results of a finished run; `None` if they are still to be measured."""
    if step < folder.config.trainer.updates:
        return None
    try:
        document = results.results_of(folder.path)
    except Damaged as error:
        progress.say(f"{error} It is written again.")
        return None
    return None if document is None else document["models"][0]


def _evaluated(
    folder: RunFolder, tokens: TokenCache, model: Transformer, clock: Clock, progress: Progress
) -> results.Entry:
    """Evaluate on the whole validation split and write `results.json`; return the model's entry."""
    config = folder.config
    found = evaluate(
        model,
        validation_batches(config, tokens),
        bytes_=tokens.validation_bytes,
        block=config.trainer.loss_block,
        progress=progress,
        name="Evaluating",
    )
    if not math.isfinite(found.loss):
        raise Diverged(f"the validation loss is {found.loss} after the last update; {folder.checkpoints.last_good()}.")

    def write() -> results.Entry:
        speed = clock.updates * config.tokens_per_update / clock.update_seconds if clock.updates else 0.0
        entry = results.model_entry(config, model, found, read_metrics(folder.metrics), clock.seconds, speed)
        # Resolved, since the path "." has no name.
        document = results.document(folder.path.resolve().name, tokens.statistics, [entry])
        write_sealed(folder.results, document)
        return entry

    return by_main(write)
