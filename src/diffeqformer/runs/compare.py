"""Training several models on the same batches within a given time, and measuring them in the same way."""

import json
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from pathlib import Path
from threading import Thread
from typing import NamedTuple

import jax
import jax.numpy as jnp

from diffeqformer.config import Config, validate
from diffeqformer.data.cache import TokenCache, prepare
from diffeqformer.errors import BadInput, Damaged
from diffeqformer.plain import Document
from diffeqformer.progress import Progress
from diffeqformer.runs import folder as run_folder
from diffeqformer.runs.checkpoint import Checkpoints
from diffeqformer.runs.metrics import read_metrics
from diffeqformer.runs.opening import load_run
from diffeqformer.runs.readings import Readings, at_depths_of, participation_of
from diffeqformer.runs.recorder import validation_batches
from diffeqformer.runs.results import document, name_of_run, results_of
from diffeqformer.runs.sampling import continue_text
from diffeqformer.runs.trainer import fitting, train
from diffeqformer.sharding import placed
from diffeqformer.store.files import read_sealed, write_sealed, write_whole
from diffeqformer.store.folders import made
from diffeqformer.store.lock import folder_lock
from diffeqformer.training.depths import depth_of_update
from diffeqformer.training.update import initial_state, make_update

PLAN = "plan.json"
"""File in the comparison's folder: which models are trained, for how many updates, and how all are measured."""
SAMPLING = {"temperature": 0.8, "top_k": 40, "seed": 0}
FEWEST = 20
"""Minimum number of updates of a model that is trained, however short the time."""
EVALUATIONS = 6
"""Number of evaluations during the training of each model."""
USED_AT_FIRST, USED_LATER = 0.88, 0.97
"""Fractions of the time left to plan with: before anything is trained, and between two models. The difference is a
reserve for a machine that slows down, so that later models need not be shortened for every small delay."""


class Cost(NamedTuple):
    """Time that a model takes on this machine, in seconds."""

    fixed: float
    """Independent of the number of updates: compilation, evaluations, the sample."""
    update: float
    """Mean time of an update."""


def plan(
    costs: Sequence[Cost], whole: Sequence[int], least: Sequence[float], seconds: float, most: float | None = None
) -> list[int]:
    """Plan how many updates each model gets so that everything ends in time: the same share of its `whole` for each.

    If there is too little time for all models, the last ones are left out rather than all trained too briefly.

    **Arguments:** `costs` of the models, the most important first; `whole`, updates of each in the planned proportion;
    `least`, the share of `whole` below which a model is not worth training; `seconds` available; `most`, an upper bound
    of the share, without which at least one model is planned.

    **Returns:** the updates of the models to train, which are the first ones of `costs`.
    """
    for count in range(len(costs), 0, -1):
        share = (seconds - sum(cost.fixed for cost in costs[:count])) / sum(
            cost.update * updates for cost, updates in zip(costs[:count], whole, strict=False)
        )
        share = share if most is None else min(share, most)
        if share >= max(least[:count]) or (count == 1 and most is None):
            return [max(FEWEST, int(share * updates)) for updates in whole[:count]]
    return []


def measure(config: Config, tokens: TokenCache, readings: Readings) -> Cost:
    """Time a few updates of a temporary state, and estimate the model's other costs from them: its compilations and
    evaluations, at the same speed.

    Where depth is drawn, two depths are timed; an update's time is linear in depth. Training reuses what is compiled
    here.
    """
    config, loader = fitting(config, tokens, None)
    update, drawn = make_update(config), config.depth.drawn
    # Zeros take as long as drawn weights, and need no compilation of their own.
    state = placed(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(lambda: initial_state(config))))
    compilation, each = 0.0, []
    beside = Thread(target=initial_state, args=(config,))  # compiled on another core, ready when training begins
    beside.start()
    for steps in sorted({min(drawn), config.model.steps}) if drawn else [None]:
        began = time.perf_counter()
        state, _ = jax.block_until_ready(update(state, loader[0], steps))
        beside.join()
        first, count = time.perf_counter(), 0
        # The first compiles along with another program: on two idle cores in the time of one, else in that of both.
        compilation = max(compilation, (first - began) / (1.0 if each else 1.5))
        while count < 3 or time.perf_counter() - first < 1:
            state, _ = jax.block_until_ready(update(state, loader[count], steps))
            count += 1
        each.append((time.perf_counter() - first) / count)
    depth_of, own = depth_of_update(config), config.model.steps
    times = Counter(depth_of(k) or own for k in range(config.trainer.updates))
    mean = sum(steps * count for steps, count in times.items()) / config.trainer.updates
    slope = (each[-1] - each[0]) / max(1, own - min(times))
    # Ratios measured with the shipped models on CPUs: a batch's forward pass takes 0.25 of an update; compiling it and
    # the sample takes 0.25 and 0.75 of the time of compiling an update.
    batches = len(validation_batches(config, tokens))
    forward = EVALUATIONS * config.trainer.evaluate_batches + batches
    compiled = len(times) - len(each) + 1.0
    depths = readings.of(config.model)
    forward += readings.part * batches * sum(depths) / own
    compiled += 0.25 * len({*depths} - {own})
    return Cost(compiled * compilation + 0.25 * each[-1] * forward, each[-1] + slope * (mean - own))


def compare(
    configs: Sequence[Config],
    least: Sequence[float],
    folder: Path,
    title: str,
    readings: Readings,
    ends: float,
    progress: Progress,
) -> Document:
    """Train models so that everything ends in time, and write `results.json` and `metrics.jsonl` for all of them.

    Speeds are measured first, and `plan` decides what is trained. The plan is kept in the folder, so that the same call
    continues a stopped comparison with the same numbers, and another one measures the rest as the first did. Between
    two models the plan is revised: if the machine has become slower, models that have not begun are shortened or left
    out; if it has become faster, models that were left out are planned again. A finished model keeps only its weights.

    **Arguments:** `configs`, each with a run folder of its own, the most important first, with updates in the
    proportion in which they are planned. They must agree in data, context, batch size and seed, so that each model
    sees the same batches in the same order, some of them more. `least`, as for `plan`; `ends`, the time of
    `time.perf_counter` by which everything should be done.

    **Returns:** the document that `results.document` describes, with the `depth_part`.

    **Raises:** `BadInput` if a folder holds something else, or another process runs a comparison in it; whatever
    `train` raises.
    """
    same = {(c.data, c.trainer.batch_size, c.trainer.seed, c.model.context) for c in configs}
    assert len(same) == 1, "models that are compared see the same batches"
    if (folder / run_folder.CONFIG).exists():
        raise BadInput(f"folder {str(folder)!r} holds a run of its own; choose another folder with --run.")
    names = [Path(config.run).name for config in configs]
    updates, readings = _kept_plan(folder, readings)
    begun = [name for name in names if (folder / name / run_folder.CONFIG).exists()]
    if begun and not updates:
        raise BadInput(
            f"folder {str(folder)!r} has a run {begun[0]!r}, but no {PLAN}, which says how long each model is trained: "
            "put it back, or choose another folder with --run."
        )
    for config, name in zip(configs, names, strict=True):  # check all before any is trained
        run_folder.RunFolder(validate(_trained_for(config, updates.get(name, config.trainer.updates)))).require_own()
    with made(folder), folder_lock(folder):
        # Read again under the lock: another process may have planned meanwhile.
        updates, readings = _kept_plan(folder, readings)
        pace = None if updates else _Pace(configs, least, readings, ends, progress)
        if updates:
            kept = ", ".join(f"{name} {number:,} updates" for name, number in updates.items())
            progress.say(f"going on with the plan in {folder / PLAN}: {kept}")
        entries, metrics, corpus = [], [], {}
        for config, name in zip(configs, names, strict=True):
            if pace is not None and pace.changed(len(entries)):
                updates = dict(zip(names, pace.updates, strict=False))
                write_sealed(folder / PLAN, {"updates": updates, "readings": asdict(readings)})
            if name not in updates:
                break
            planned, own = _trained_for(config, updates[name]), run_folder.RunFolder(config)
            progress.say(f"{len(entries) + 1}/{len(updates)} {config.run}: {name_of_run(config)}")
            found = _finished(planned) or _train(planned, title, readings, progress)
            _keep_weights_only(own.path)
            corpus = found["corpus"]
            entries += found["models"]
            metrics += [json.dumps({"model": entries[-1]["key"], **record}) for record in read_metrics(own.metrics)]
        results = {**document(title, corpus, entries), "depth_part": readings.part}
        write_whole(folder / run_folder.METRICS, "\n".join(metrics) + "\n")
        write_sealed(folder / run_folder.RESULTS, results)
        return results


def _kept_plan(folder: Path, readings: Readings) -> tuple[dict[str, int], Readings]:
    """Read the planned updates, by the name of the model's folder, and how the models are measured; no updates, and
    `readings`, if nothing is planned yet.

    **Raises:** `Damaged` if the plan is not what was written.
    """
    path, advice = folder / PLAN, "put it back, or choose another folder with --run."
    try:
        kept = read_sealed(path)
    except FileNotFoundError:
        return {}, readings
    except Damaged as error:
        raise Damaged(f"{str(error).removesuffix('.')}; {advice}") from None
    updates = kept.get("updates")
    if not isinstance(updates, dict) or not all(type(number) is int and number > 0 for number in updates.values()):
        raise Damaged(f"file {str(path)!r} is damaged: it does not say how many updates each model has; {advice}")
    return updates, replace(readings, **kept.get("readings", {}))


class _Pace:
    """The plan of this process, the costs it is based on, and its revisions; arguments as for `compare`."""

    def __init__(
        self, configs: Sequence[Config], least: Sequence[float], readings: Readings, ends: float, progress: Progress
    ):
        self.configs, self.least, self.ends, self.progress = configs, least, ends, progress
        self.whole = [config.trainer.updates for config in configs]
        self.costs: list[Cost] = []
        self.updates: list[int] = []
        self.tokens, self.readings = prepare(configs[0].data, progress), readings
        for part in least:
            # Another model makes every share smaller: once the share is too small, no more models need timing.
            if len(self.updates) < len(self.costs) or (self.updates and self.share < part):
                break
            self.costs.append(self._timed())
            self.updates = plan(self.costs, self.whole, least, self._left(USED_AT_FIRST))
        left_out = self.whole[len(self.updates) :]
        self.wanted = [*self.updates, *(max(FEWEST, int(self.share * whole)) for whole in left_out)]
        self.began, self.told = time.perf_counter(), False

    @property
    def share(self) -> float:
        """The planned updates of a model as a fraction of the updates in its config."""
        return self.updates[0] / self.whole[0]

    def changed(self, done: int) -> bool:
        """Revise the plan once `done` models are finished and their time is known; return whether it is new."""
        slower, longer = 1.0, False
        if done:
            slower = (time.perf_counter() - self.began) / self._seconds(slice(done))
            rest = self._rest(done, slower)
            # Only a plan that differs from the one in force is announced.
            self.told, longer = self.updates[done:] == rest, sum(rest) > sum(self.updates[done:])
            self.updates[done:] = rest
        if self.told:
            return False
        models = ", ".join(f"{name_of_run(c)} {n:,} updates" for c, n in zip(self.configs, self.updates, strict=False))
        needed = slower * self._seconds(slice(done, None))
        what = "longer plan, as there is time" if longer else "shorter plan, as time runs out" if done else "plan"
        late = " (later than asked for: less cannot be done on a machine as slow or busy)"
        is_late = needed > self.ends - time.perf_counter()
        end = datetime.now() + timedelta(seconds=needed)
        self.progress.say(f"{what}: {models}; until about {end:%H:%M:%S}{late if is_late else ''}")
        self.told = True
        return True

    def _rest(self, done: int, slower: float) -> list[int]:
        """Plan the models after the first `done`: as many updates as in the first plan, if the time left is enough.

        If the machine was busy when it was measured, models may have been left out, some of them untimed. An untimed
        model is timed if a model with the cost of the last timed one would be planned.
        """
        # As shares of `wanted`, which is `share` of `whole`.
        least = [part / self.share for part in self.least[done:]]
        scaled = lambda cost, by: Cost(by * cost.fixed, by * cost.update)
        fitting_in = lambda costs: plan(costs, self.wanted[done:], least, self._left(USED_LATER), most=1.0)
        while True:
            costs = [scaled(cost, slower) for cost in self.costs[done:]]
            all_timed = len(self.costs) == len(self.configs)
            if all_timed or len(fitting_in([*costs, scaled(self.costs[-1], slower)])) <= len(costs):
                return fitting_in(costs)
            # At the speed that the machine had when the others were timed.
            self.costs.append(scaled(self._timed(), 1 / slower))

    def _timed(self) -> Cost:
        """Measure the cost of the first model that has not been timed yet."""
        config = self.configs[len(self.costs)]
        besides, each = cost = measure(config, self.tokens, self.readings)
        self.progress.say(f"timed {name_of_run(config)}: {each:.3f} s per update, {besides:.0f} s besides")
        return cost

    def _left(self, part: float) -> float:
        """Return the seconds to plan with; the report takes about a tenth of a model's fixed cost."""
        return part * (self.ends - time.perf_counter()) - 0.1 * self.costs[0].fixed

    def _seconds(self, models: slice) -> float:
        pairs = list(zip(self.costs, self.updates, strict=False))[models]
        return sum((cost.fixed + updates * cost.update for cost, updates in pairs), 0.0)


def _trained_for(config: Config, updates: int) -> Config:
    """Return the config for this many updates, with a run folder that keeps no more than resuming needs."""
    every = max(10, updates // EVALUATIONS)
    kept = {"keep_last": 1, "keep_best": 0, "checkpoint_every": 0, "checkpoint_minutes": 1.0}
    return replace(config, trainer=replace(config.trainer, updates=updates, evaluate_every=every, **kept))


def _train(config: Config, title: str, readings: Readings, progress: Progress) -> Document:
    """Train one model, measure it at other depths and let it continue the prompt; write all to its `results.json`."""
    result = train(config, progress)
    (text,) = continue_text(result.model, result.tokens.tokenizer, readings.prompt, **SAMPLING)
    entry = {**result.entry, "sample": {"prompt": readings.prompt, "text": text, "settings": SAMPLING}}
    entry["depth"] = at_depths_of(result, readings.of(config.model), progress, readings.part)
    if config.model.continuous and not config.model.tolerance:
        entry["participation"] = participation_of(result, progress)
    found = document(title, result.tokens.statistics, [entry])
    write_sealed(result.folder / run_folder.RESULTS, found)
    return found


def _finished(config: Config) -> Document | None:
    """Return the results of `_train`, if it has ended; `None` otherwise."""
    folder = run_folder.RunFolder(config)
    with suppress(Damaged):
        found = results_of(folder.path)
        # `train` leaves results without a sample; `_train` ends by writing them again, with one.
        if found and found["models"][0]["sample"] and folder.checkpoints.steps():
            return found
    return None


def _keep_weights_only(folder: Path) -> None:
    """Rewrite the last checkpoint without the optimiser's state, which is two thirds of it."""
    checkpoints = Checkpoints(folder / run_folder.CHECKPOINTS, keep_last=1, keep_best=0)
    with folder_lock(folder):
        checkpoints.clean()
        step, metadata = checkpoints.metadata()
        if (checkpoints.folder / str(step) / "optimizer").exists():
            checkpoints.save(step, {"model": load_run(folder).model}, metadata)
