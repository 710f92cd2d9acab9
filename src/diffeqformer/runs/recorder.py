"""What a run does around its updates: log, refuse what is not finite, evaluate, save, and stop when asked."""

import math
import time
from contextlib import ExitStack
from types import TracebackType

from diffeqformer.config import Config
from diffeqformer.data.cache import TokenCache
from diffeqformer.data.loader import EvaluationBatches
from diffeqformer.errors import Diverged, Interrupted
from diffeqformer.evaluation.perplexity import evaluate
from diffeqformer.model.build import own_parts, settings_of_build
from diffeqformer.progress import Progress
from diffeqformer.report.text import counted_steps, join
from diffeqformer.runs.background import Writer
from diffeqformer.runs.distributed import Agreement, is_main
from diffeqformer.runs.folder import PROFILE, RunFolder, remember
from diffeqformer.runs.meter import Meter
from diffeqformer.runs.metrics import Record
from diffeqformer.runs.resume import ResumeState, items_of, jax_settings
from diffeqformer.runs.signals import stop_requests
from diffeqformer.runs.trackers import NoLog, RunLog
from diffeqformer.runs.utilization import Trace
from diffeqformer.training.depths import trained_depths
from diffeqformer.training.recipe import Now, Recipe, name_of
from diffeqformer.training.update import Measured, State, all_finite

MISSED, LOST = 1e-3, 1e-2
"""Errors of the reconstructed state at depth 0, relative to its size, above which a run warns or stops. The error of
the gradient was found to be between a tenth and three times as large in float32 (docs/log.md)."""


def validation_batches(config: Config, tokens: TokenCache) -> EvaluationBatches:
    """Return the batches of the whole validation split."""
    return EvaluationBatches(tokens.validation, config.model.context, config.trainer.batch_size, tokens.validation_mask)


class Recorder:
    """The observer of a run's training loop, to be used in a `with` block around it.

    **Arguments:** `folder` of the run, whose lock is held; `tokens`; `log`, where measurements go; `resumed`, what the
    run continues from; `step`, updates done; `progress`; `recipe`, whose callbacks are called; `teacher`, the digest of
    the checkpoint that updates learn from, if any.
    """

    def __init__(
        self,
        folder: RunFolder,
        tokens: TokenCache,
        log: RunLog | NoLog,
        resumed: ResumeState,
        step: int,
        progress: Progress,
        recipe: Recipe,
        teacher: str | None,
    ):
        self.folder, self.config, self.settings = folder, folder.config, folder.config.trainer
        self.tokens, self.log, self.resumed, self.step, self.progress = tokens, log, resumed, step, progress
        self.meter = Meter(self.config, resumed.clock)
        self.writer = Writer(folder.checkpoints)
        self.trace = Trace(folder.path / PROFILE, self.settings.profile if is_main() else 0)
        self.agreement = Agreement()
        self.note: dict[str, str] = {}
        self.warned = False
        self.files = remember(folder.config, folder.path) | {"teacher": teacher}
        self.saved_at = time.perf_counter()
        self.stopped, self.why = False, ""
        self.recipe, self.logged = recipe, []
        for callback, memory in resumed.remembered(recipe.callbacks):
            callback.remember(memory)
        recipe.memories()  # what cannot be kept is refused before any update, not at the first checkpoint

    def __enter__(self) -> "Recorder":
        with ExitStack() as stack:
            # First in, last out: while the last checkpoint is written, a signal is still only a request.
            self.asked_to_stop = stack.enter_context(stop_requests())
            stack.enter_context(self.trace)
            stack.enter_context(self.writer)
            self.stage = stack.enter_context(self.progress.stage("Training", self.settings.updates, self.step))
            self.exit = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.exit.__exit__(kind, error, trace)
        # The request may have come while the last checkpoint was written.
        if error is None and (self.stopped or self.agreement.any(self.asked_to_stop(), False)[0]):
            where = f"stopped at update {self.step} of {self.settings.updates}{self.why and f' ({self.why})'}"
            self.progress.say(f"{where}; saved; run the same command again to go on.")
            raise Interrupted(f"{where}.")

    def before_update(self, steps: int | None) -> None:
        """Begin or end a trace, check that the last checkpoint was written, and call the callbacks.

        **Raises:** `RunFailed` if it was not.
        """
        self.trace.before_update(self.meter.wait)
        self.writer.require_sound()
        if steps not in self.meter.compiled:
            self.collect()  # so that compiling does not count as time of the previous update
            self._advance(0, "compiling")
        for callback in self.recipe.callbacks:
            callback.before_update(self.step)

    def after_update(self, state: State, steps: int | None, measured: Measured) -> bool:
        """Log, evaluate and save when due; return whether to stop.

        **Raises:** `Diverged` if a number is no longer finite.
        """
        self.meter.add(steps, measured)
        self.step += 1
        self._call("after_update", state, measured)
        # Fetch before the depth counts as compiled: the time of an update that compiles is not counted.
        if steps not in self.meter.compiled:
            self.collect()
            self.meter.compiled.add(steps)
        self._advance(1)
        if len(self.meter.measured) == self.settings.log_every:
            self.collect()
        metric = self.evaluate(state) if self._every(self.settings.evaluate_every) else None
        # One clock decides, as those of several processes differ.
        late = is_main() and 0 < self.settings.checkpoint_minutes <= (time.perf_counter() - self.saved_at) / 60
        self.stopped, late = self.agreement.any(self.asked_to_stop() or bool(self.why), late)
        best = metric is not None and metric < self.resumed.best and self.settings.keep_best > 0
        if self.stopped or late or best or self._every(self.settings.checkpoint_every):
            self._save(state, metric)
            self._advance(0)  # so that the last line shown has the measurements of this update
        return self.stopped

    def _advance(self, updates: int, doing: str = "") -> None:
        order = ("loss", "validation", "speed")
        parts = [*(self.note[name] for name in order if name in self.note), doing]
        self.stage.advance(updates, " · ".join(filter(None, parts)))

    def _every(self, interval: int) -> bool:
        return self.step == self.settings.updates or (interval > 0 and self.step % interval == 0)

    def collect(self) -> None:
        """Fetch the measurements of updates, refuse any that is not finite, and log the rest and what callbacks log."""
        if not self.meter.measured:
            if self.logged:
                self.log.write(self.logged)
            return self.logged.clear()
        records, timing, timed = self.meter.fetch(self.step)
        for number, record in enumerate(records):
            for name, what in (("loss", "loss"), ("gradient_norm", "gradient's norm")):
                if not math.isfinite(record[name]):
                    self.log.write(records[:number])
                    raise self._failure(f"the {what} became {record[name]} at update {record['step']}")
            self._require_reconstructed(record, records[:number])
            if record.get("skipped"):
                norm = f"{record['gradient_norm']:.3g}"
                self.progress.say(f"Update {record['step']} changed nothing: its gradient, of norm {norm}, is a spike.")
        # Sorted by update: a resumed run has the same lines, wherever it was stopped.
        self.log.write([*sorted([*records, *self.logged], key=lambda record: record["step"]), timing])
        self.logged.clear()
        last = records[-1]
        self.note["loss"] = f"loss {last['loss']:.3f}{self._at(last)}"
        if timed:
            used = timing.get("utilization")
            of_peak = "" if used is None else f", {100 * used:.0f} % of peak"
            self.note["speed"] = f"{timing['tokens_per_second']:,.0f} tok/s{of_peak}"

    def _at(self, record: Record) -> str:
        """Say at which depths the loss of an update is: the drawn one, and those that every update trains too."""
        if "steps" not in record:
            return ""
        *others, deepest = (depth for depth, _ in reversed(trained_depths(self.config, record["steps"])))
        return f" at {join([*map(str, others), counted_steps(deepest)])}"

    def _require_reconstructed(self, record: Record, before: list[Record]) -> None:
        """Warn once, or end the run, if a backward pass that reconstructs states went astray."""
        error = record.get("reconstruction_error", 0.0)
        if error <= MISSED:
            return
        what = f"the backward pass of update {record['step']} missed the state at depth 0 by {error:.2g} of its size"
        advice = "`--model.gradient checkpointed`, with which the same run goes on, keeps it"
        if not error <= LOST:  # also true for NaN
            self.log.write(before)
            raise self._failure(f"{what}, so its gradient is not that of the loss ({advice})")
        if not self.warned:
            self.warned = True
            self.progress.say(f"Warning: {what}; {advice}.")

    def evaluate(self, state: State) -> float:
        """Evaluate some batches of the validation split; return the loss in nats per token.

        **Raises:** `Diverged` if it is not finite.
        """
        self.collect()
        batches = validation_batches(self.config, self.tokens).spread(self.settings.evaluate_batches)
        loss = evaluate(state.result, batches, block=self.settings.loss_block).loss
        if not math.isfinite(loss):
            raise self._failure(f"the validation loss became {loss} at update {self.step}")
        self.log.write([{"kind": "validation", "step": self.step, "loss": loss}])
        self.note["validation"] = f"validation {loss:.3f}"
        self._call("evaluated", state, loss)
        self.meter.restart()
        return loss

    def _call(self, name: str, state: State, *measured: object) -> None:
        """Call a method of all callbacks; take what they log, and the first reason to stop."""
        if self.recipe.callbacks:
            now = Now(self.config, self.step, state, self.logged, self.why)
            for callback in self.recipe.callbacks:
                getattr(callback, name)(now, *measured)
            self.why = now.why

    def _save(self, state: State, metric: float | None) -> None:
        self.collect()
        if not bool(all_finite(state)):
            raise self._failure(f"the model's weights are no longer finite at update {self.step}")
        self.meter.restart()
        self.resumed.best = min(self.resumed.best, math.inf if metric is None else metric)
        self.resumed.callbacks, self.resumed.names = self.recipe.memories(), list(map(name_of, self.recipe.callbacks))
        metadata = self.resumed.metadata(self.log.digest) | self.files
        metadata |= {"own": own_parts(state.model), "built": settings_of_build(self.config.model, state.model)}
        metadata |= {"recipe": self.recipe.own, "jax": jax_settings()}
        self.writer.save(self.step, items_of(state, self.config), metadata, metric)
        for callback in self.recipe.callbacks:
            callback.saved(self.step)
        self.saved_at = time.perf_counter()
        self.meter.restart()

    def _failure(self, what: str) -> Diverged:
        """Return an error that says what went wrong, and which checkpoint is good."""
        self.writer.settle()
        return Diverged(f"{what}; {self.folder.checkpoints.last_good()}.")
