"""The loop of training: a process's turn at a run, from the state that it finds to the end or a request to stop."""

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import jax

from diffeqformer.config import Config
from diffeqformer.data.cache import TokenCache
from diffeqformer.data.loader import EvaluationBatches, Loader, evaluation_batches
from diffeqformer.errors import Interrupted, RunFailed
from diffeqformer.evaluation.perplexity import evaluate
from diffeqformer.progress import Progress, Stage
from diffeqformer.sharding import divided_batch, is_divided
from diffeqformer.training import folder as files
from diffeqformer.training.checkpoint import Checkpoints, Writer
from diffeqformer.training.depths import depth_of_update
from diffeqformer.training.distributed import Agreement, is_first
from diffeqformer.training.signals import stop_requests
from diffeqformer.training.trackers import NoLog, RunLog
from diffeqformer.training.update import Measured, State, all_finite, make_update
from diffeqformer.training.utilization import Trace, utilization

PROFILE = "profile"
"""In the run's folder: traces, if `trainer.profile` asks for them."""


@dataclass
class Clock:
    """Time spent, over all sittings of a run."""

    seconds: float = 0.0
    """In training: updates, evaluations on the way, checkpoints, compilation."""
    update_seconds: float = 0.0
    """In the updates counted below."""
    updates: int = 0
    """Updates that were timed: all but the first of each depth in each sitting, which compiles."""


@dataclass
class Past:
    """What a checkpoint remembers beside the state."""

    clock: Clock
    best: float = math.inf
    """Lowest loss of the evaluations so far."""
    metrics: str | None = None
    """Digest of the lines of metrics."""


class Sitting:
    """One process's turn at a run: from the state it found to the end, or to a request to stop.

    What updates measured stays on the device; it is fetched and looked at every `log_every` updates and before
    anything is evaluated or saved.
    """

    def __init__(
        self,
        config: Config,
        tokens: TokenCache,
        loader: Loader,
        metrics: RunLog | NoLog,
        checkpoints: Checkpoints,
        state: State,
        past: Past,
        progress: Progress,
    ):
        self.config, self.settings, self.tokens, self.loader = config, config.trainer, tokens, loader
        self.metrics, self.progress = metrics, progress
        self.checkpoints, self.writer = checkpoints, Writer(checkpoints)
        self.state, self.past, self.clock = state, past, past.clock
        self.step = self.saved = int(state.step)
        self.depth_of = depth_of_update(config)
        self.measured: list[tuple[int | None, Measured]] = []
        self.compiled: set[int | None] = set()
        """Depths whose update has been compiled."""
        self.ends: list[float] = []
        """When what is measured was ready."""
        self.files = files.remember(config, files.run_folder(config))
        self.note: dict[str, str] = {}
        self.began = self.mark = self.saved_at = time.perf_counter()

    def train(self) -> State:
        """Update until the end, logging, evaluating and saving on the way.

        **Raises:** `RunFailed` if a number stops being finite; `Interrupted` if asked to stop, after saving.
        """
        updates, stop, agreement = self.settings.updates, False, Agreement()
        update = make_update(self.config)
        trace = Trace(files.run_folder(self.config) / PROFILE, self.settings.profile if is_first() else 0)
        shown = self.progress.stage("Training", updates, self.step)
        with stop_requests() as asked_to_stop, trace, self.writer, shown as stage:
            if self.step == 0 and self.config.base.run:
                self._evaluate()  # what there is to improve on
            while self.step < updates:
                trace.before_update(self._wait)
                self.writer.require_sound()
                self._update(update, stage)
                if len(self.measured) == self.settings.log_every:
                    self._collect()
                metric = self._evaluate() if self._every(self.settings.evaluate_every) else None
                stop, is_late = agreement.any(asked_to_stop(), is_first() and self._is_late())
                if stop or is_late or self._is_worth_saving(metric):
                    self._save(metric)
                if stop:
                    break
        if stop:
            self.progress.say(
                f"stopped at update {self.step} of {updates}; saved; run the same command again to go on."
            )
            raise Interrupted(f"stopped at update {self.step} of {updates}.")
        return self.state

    def _every(self, interval: int) -> bool:
        return self.step == self.settings.updates or (interval > 0 and self.step % interval == 0)

    def _is_late(self) -> bool:
        """Whether the last checkpoint is older than it may be."""
        return 0 < self.settings.checkpoint_minutes <= (time.perf_counter() - self.saved_at) / 60

    def _is_worth_saving(self, metric: float | None) -> bool:
        is_best = metric is not None and metric < self.past.best and self.settings.keep_best > 0
        return self._every(self.settings.checkpoint_every) or is_best

    def _update(self, update: Callable[..., tuple[State, Measured]], stage: Stage) -> None:
        steps = self.depth_of(self.step)
        first = steps not in self.compiled
        if first:
            self._collect()  # so that compiling is not taken for the time of the update before
        with jax.profiler.StepTraceAnnotation("update", step_num=self.step):
            self.state, measured = update(self.state, self._batch(), steps)
        # One update is on its way while the next batch is made: the device never idles, and no queue builds up
        # that a request to stop would have to wait for.
        self._wait()
        self.measured.append((steps, measured))
        self.step += 1
        if first:
            self._collect()
            self.compiled.add(steps)
        order = ("loss", "validation", "speed")
        stage.advance(1, " · ".join(self.note[name] for name in order if name in self.note))

    def _batch(self) -> Any:
        """The next batch; of several processes each reads the rows of its own devices."""
        if not is_divided():
            return self.loader[self.step]
        parts = self.settings.accumulation
        shape = (parts, self.settings.batch_size // parts, self.config.model.context + 1)
        return divided_batch(lambda start, stop: self.loader.rows(self.step, start, stop), shape)

    def _collect(self) -> None:
        """Fetch what the updates measured, refuse what is not finite, write the rest."""
        if not self.measured:
            return
        self._wait()
        first, timing = self.step - len(self.measured) + 1, self._timing()
        depths, fetched = zip(*jax.device_get(self.measured), strict=True)
        self.measured, self.ends = [], []
        records = [
            {"kind": "update", "step": first + i, **({"steps": steps} if steps else {}), **_floats(one)}
            for i, (steps, one) in enumerate(zip(depths, fetched, strict=True))
        ]
        finite = [all(map(math.isfinite, record.values())) for record in [_floats(one) for one in fetched]]
        if not all(finite):
            bad = finite.index(False)
            self.metrics.write(records[:bad])
            name = "loss" if not math.isfinite(records[bad]["loss"]) else "gradient's norm"
            value = records[bad]["loss" if name == "loss" else "gradient_norm"]
            raise self._failure(f"the {name} became {value} at update {first + bad}")
        self.metrics.write([*records, timing])
        at = f" at {records[-1]['steps']} steps" if "steps" in records[-1] else ""
        self.note["loss"] = f"loss {records[-1]['loss']:.3f}{at}"

    def _wait(self) -> None:
        """Wait until all that is measured is there, and note when."""
        if len(self.ends) < len(self.measured):
            jax.block_until_ready(self.measured[-1])
            self.ends.append(time.perf_counter())

    def _timing(self) -> dict[str, Any]:
        """The time of the updates that are measured; the first of a depth, which compiles, is not counted."""
        depths: dict[str, list[float]] = {}
        for (steps, _), begin, end in zip(self.measured, [self.mark, *self.ends], self.ends, strict=False):
            if steps in self.compiled:
                self.clock.update_seconds += end - begin
                self.clock.updates += 1
                counted = depths.setdefault(str(steps), [0, 0.0])
                depths[str(steps)] = [counted[0] + 1, counted[1] + end - begin]
        seconds = self.ends[-1] - self.mark
        speed = len(self.ends) * tokens_per_update(self.config) / seconds
        used = utilization(self.config, [steps for steps, _ in self.measured], seconds)
        if depths:
            of_peak = "" if used is None else f", {100 * used:.0f} % of peak"
            self.note["speed"] = f"{speed:,.0f} tok/s{of_peak}"
        self._restart_timing()
        found: dict[str, Any] = {"seconds": seconds, "tokens_per_second": speed}
        found |= {} if used is None else {"utilization": used}
        found |= {"depths": depths} if self.config.depth.depths else {}
        return {"kind": "timing", "step": self.step, **found}

    def _restart_timing(self) -> None:
        now = time.perf_counter()
        self.clock.seconds += now - self.began
        self.began = self.mark = now

    def _evaluate(self) -> float:
        self._collect()
        batches = validation_batches(self.config, self.tokens).spread(self.settings.evaluate_batches)
        loss = evaluate(self.state.model, batches, block=self.settings.loss_block).loss
        if not math.isfinite(loss):
            raise self._failure(f"the validation loss became {loss} at update {self.step}")
        self.metrics.write([{"kind": "validation", "step": self.step, "loss": loss}])
        self.note["validation"] = f"validation {loss:.3f}"
        self._restart_timing()
        return loss

    def _save(self, metric: float | None) -> None:
        if self.saved == self.step:
            return
        self._collect()
        if not bool(all_finite(self.state)):
            raise self._failure(f"the model's weights are no longer finite at update {self.step}")
        self._restart_timing()
        self.past.best = min(self.past.best, math.inf if metric is None else metric)
        best = self.past.best if math.isfinite(self.past.best) else None
        items = {"model": self.state.model, "optimizer": self.state.optimizer}
        metadata = {"clock": asdict(self.clock), "best": best, "metrics": self.metrics.digest, **self.files}
        self.writer.save(self.step, items, metadata, metric)
        self.saved, self.saved_at = self.step, time.perf_counter()
        self._restart_timing()

    def _failure(self, what: str) -> RunFailed:
        """What went wrong, and what is safe."""
        self.writer.settle()
        return RunFailed(f"{what}; {self.checkpoints.last_good()}.")


def validation_batches(config: Config, tokens: TokenCache) -> EvaluationBatches:
    """The batches of the whole validation split."""
    return evaluation_batches(tokens.validation, config.model.context, config.trainer.batch_size)


def tokens_per_update(config: Config) -> int:
    """That the loss of an update is a mean over."""
    return config.trainer.batch_size * config.model.context


def _floats(measured: Measured) -> dict[str, float]:
    return {name: float(value) for name, value in measured._asdict().items()}
