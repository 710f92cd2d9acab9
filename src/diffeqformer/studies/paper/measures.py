"""Measures of the claims of `items`: each returns the effect of one seed, positive if the claim is true."""

import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Concatenate, ParamSpec

import jax
import numpy as np

from diffeqformer.analysis.clusters import simulate
from diffeqformer.analysis.faithfulness import PAIRWISE, faithfulness
from diffeqformer.analysis.induction import measure_induction
from diffeqformer.analysis.inference import MATCHING, Induction
from diffeqformer.analysis.spectra import RADIUS, Spectra, spectra
from diffeqformer.config import Config, with_values
from diffeqformer.data.cache import tokens_of
from diffeqformer.data.loader import EvaluationBatches
from diffeqformer.data.tokenizer import ordinary
from diffeqformer.errors import BadInput
from diffeqformer.evaluation.perplexity import evaluate
from diffeqformer.interop.comparing import compare_runs, evaluations
from diffeqformer.interop.tasks import Tasks, evaluate_tasks
from diffeqformer.model.transformer import Transformer
from diffeqformer.plain import Values
from diffeqformer.progress import Progress, Silent
from diffeqformer.runs.checkpoint import Checkpoints
from diffeqformer.runs.folder import CHECKPOINTS, open_config
from diffeqformer.runs.footprint import update_footprint
from diffeqformer.runs.opening import load_run
from diffeqformer.studies.paper.claims import Claim, Finished, Measure, Trained
from diffeqformer.studies.spectra import mean_at_steps
from diffeqformer.training.update import initial_state

P = ParamSpec("P")
NATS = "nats per token"
CONTEXTS = 24
"""Number of contexts on which explanations are tested."""
TASKS = (
    "arc_challenge", "arc_easy", "hellaswag", "lambada_openai", "lambada_standard", "logiqa", "mmlu", "piqa", "sciq",
    "winogrande", "wsc273",
)  # fmt: skip
"""Tasks of tables 4 and 5, as the harness names them."""
OURS = "diffeqformer"


def measured(effect: Callable[Concatenate[Trained, P], float | None]) -> Callable[P, Measure]:
    """Turn an effect with more arguments than what is trained into a function of these that returns a measure."""
    return lambda *given, **named: lambda found: effect(found, *given, **named)


def gain(found: Trained, better: str, worse: str) -> float:
    """Return by how many nats per token one model's loss is below another's."""
    return found.loss(worse) - found.loss(better)


def lower(better: str, worse: str, sentence: str, question: str = "") -> Claim:
    """Return the claim that one model has a lower loss than another."""
    unit = f"{NATS}, the other's loss minus its own"
    return Claim(sentence, unit, (better, worse), lambda found: gain(found, better, worse), question=question)


def smaller_gap(better: str, worse: str, sentence: str) -> Claim:
    """Return the claim that one model's loss rises less from training to validation than GPT's."""
    unit = f"{NATS}, GPT's gap from training to validation minus its own"
    return Claim(sentence, unit, (better, worse), lambda found: gap(found.models[worse]) - gap(found.models[better]))


def gap(result: Finished) -> float:
    """Return how much higher the loss is on validation than on the last tenth of the training batches."""
    curve = result.entry["curve"]["train"]
    last = [loss for step, loss in curve if step > 0.9 * result.entry["updates"]]
    return result.entry["validation"]["loss"] - sum(last) / len(last)


def larger_gain(models: Sequence[str], sentence: str) -> Claim:
    """Return the claim that of GPT, DiffEqFormer, Llama and DiffEqFormer-Llama the last gains more on its baseline."""
    gpt, ours, llama, ours_llama = models
    effect = lambda found: gain(found, ours_llama, llama) - gain(found, ours, gpt)
    return Claim(sentence, f"{NATS}, gain on Llama minus gain on GPT", (ours_llama, llama, ours, gpt), effect)


def ahead_elsewhere(better: str, worse: str, sentence: str) -> Claim:
    """Return the claim that one model has fewer bits per byte than another on the other text, not trained on it."""
    unit = "bits per byte, the other's minus its own"
    return Claim(sentence, unit, (better, worse), elsewhere(better, worse))


@measured
def elsewhere(found: Trained, better: str, worse: str) -> float | None:
    """Return by how many bits per byte one model is better than another on the other text, without training on it."""
    if not found.other:
        return None
    ours, theirs = (_bits(found.models[name], found.other) for name in (better, worse))
    return theirs - ours


def _bits(result: Finished, files: tuple[str, ...]) -> float:
    opened = result.open()
    config = opened.config
    tokens, bytes_, _ = tokens_of(files, config.data, opened.tokens.tokenizer, Silent())
    batches = EvaluationBatches(tokens, config.model.context, config.trainer.batch_size)
    found = evaluate(opened.model, batches, bytes_=bytes_, block=config.trainer.loss_block).bits_per_byte
    return math.nan if found is None else found


@measured
def growth(found: Trained, name: str, pair: str) -> float:
    """Return the logarithm of the spectral radius in the last third of the steps over that in the first third."""
    return grown(spectra(found.models[name].open().model, times=0), pair)


@measured
def growth_at(found: Trained, name: str, pair: str, part: float) -> float | None:
    """Return `growth` at the checkpoint after `part` of training (0 is before training); `None` if none was kept."""
    one = found.models[name]
    step = round(part * one.entry["updates"])
    models = models_over(one)
    return grown(spectra(models[step], times=0), pair) if step in models else None


@measured
def peak(found: Trained, name: str, pair: str) -> float:
    """Return the logarithm of a step's largest spectral radius in the last third over the largest before that."""
    radius = mean_at_steps(spectra(found.models[name].open().model, times=0), pair, RADIUS)
    third = max(1, len(radius) // 3)
    return math.log(radius[-third:].max() / radius[:-third].max())


def grown(seen: Spectra, pair: str) -> float:
    """Compute `growth` from spectra."""
    radius = mean_at_steps(seen, pair, RADIUS)
    third = max(1, len(radius) // 3)
    return math.log(radius[-third:].mean() / radius[:third].mean())


def models_over(one: Finished) -> dict[int, Transformer]:
    """Return a model at the start, at the kept checkpoints and at the end, by update."""
    opened = one.open()
    kept = Checkpoints(opened.folder / CHECKPOINTS)
    like = {"model": jax.eval_shape(lambda: opened.model)}
    models = {0: initial_state(opened.config).model}
    for step in kept.steps():
        if found := kept.of(step, like):
            models[step] = found.items["model"]
    return models


def spectra_of(one: Finished) -> dict[int, Spectra]:
    """Compute the spectra of a model over training, by update."""
    return {step: spectra(model, times=0) for step, model in models_over(one).items()}


def heads_of(one: Finished, seed: int) -> Induction:
    """Measure what a model's heads do on sequences of random tokens that are repeated four times."""
    opened = one.open()
    return measure_induction(
        opened.model, candidates=ordinary(opened.tokens.tokenizer), sequences=16,
        length=min(25, opened.config.model.context // 4), repeats=4, seed=seed,
    )  # fmt: skip


@measured
def best_head(found: Trained, name: str) -> float:
    """Return the prefix matching of the best head minus `MATCHING`."""
    return float(heads_of(found.models[name], found.seed).behaviours["prefix matching"].max()) - MATCHING


@measured
def induction(found: Trained, name: str) -> float | None:
    """Return the rank correlation of prefix matching with positive eigenvalues of both pairs, if a head does match."""
    seen = heads_of(found.models[name], found.seed)
    there = seen.behaviours["prefix matching"].max() >= MATCHING
    return seen.inference.rho if there and math.isfinite(seen.inference.rho) else None


@measured
def more_clusters(found: Trained, *, level: bool) -> float:
    """Return the log of the clusters left if weights grow with the square of depth, over those if they are shared.

    If `level`, growing weights have the same integral as shared ones.
    """
    ends = (simulate("particles", order, level=level, seed=found.seed).measures for order in (0, 2))
    shared, growing = (float(np.median(one.clusters(0.1, of="now")[-1])) for one in ends)
    return math.log(growing / shared)


@measured
def faithful(found: Trained, name: str, against: str, *, other: bool = False) -> float | None:
    """Return the gain in rank correlation of ranking tokens' effects by pairwise exponents over another explanation.

    **Arguments:** `against`, such as attention (its mean over heads and steps) or attention rollout.
    """
    if other and not found.other:
        return None
    result = found.models[name].open()
    length = min(48, result.config.model.context)
    tokens = result.tokens.validation
    if other:
        tokens, *_ = tokens_of(found.other, result.config.data, result.tokens.tokenizer, found.progress)
    seen = faithfulness(result.model, tokens, contexts=CONTEXTS, length=length, seed=found.seed)
    of = lambda method: float(seen.strength[:, seen.methods.index(method)].mean())
    return of(PAIRWISE) - of(against)


def cheaper_memory(found: Trained) -> float:
    """Return the ratio of stored parameters at d_emb 144 to 48, minus that of an update's memory as compiled."""
    small, large = (found.models[name] for name in (OURS, "d_emb-144"))
    sizes = [one.entry["parameters"]["stored"] for one in (small, large)]
    totals = [planned_memory(one.config) or math.nan for one in (small, large)]
    return sizes[1] / sizes[0] - totals[1] / totals[0]


@cache
def planned_memory(config: Config, batch_size: int | None = None) -> int | None:
    """Return the bytes that an update needs, as compiled; `None` if the compiler does not tell."""
    own = {"trainer.batch_size": batch_size} if batch_size else {}
    return update_footprint(with_values(config, own)).total


@measured
def task(found: Trained, name: str, shots: int, metric: str = "acc") -> float | None:
    """Return DiffEqFormer's lead over GPT on a task: the difference of accuracies, or for `perplexity` the logarithm of
    GPT's over its own.
    """
    pair = found.models[OURS], found.models["gpt"]
    if found.train:
        for one in pair:
            _evaluate(found, one, name, shots)
    compared = compare_runs(*(one.config.run for one in pair))
    for side, one in zip(compared.sides, pair, strict=True):
        known = side.tasks.get((name, shots, None, None))  # on all items, generated as the task itself says
        if known is None or not _is_of(known, one):
            return None
    asked = name, shots, None, metric
    rows = [row.values for row in compared.rows if (row.task, row.fewshot, row.limit, row.metric) == asked]
    if not rows or None in rows[0]:
        return None
    ours, theirs = map(float, rows[0])  # pyright: ignore[reportArgumentType]
    if not ours and not theirs:
        return None  # neither answers anything: there is nothing to compare
    return ours - theirs if metric == "acc" else math.log(theirs / ours)


@measured
def comparable(found: Trained, names: Sequence[str], shots: int) -> float | None:
    """Return 0.01 minus the distance of the mean accuracies over available tasks; `None` unless most are available."""
    known = [one for name in names if (one := task(name, shots)(found)) is not None]
    return 0.01 - abs(sum(known) / len(known)) if 2 * len(known) > len(names) else None


def _evaluate(found: Trained, one: Finished, name: str, shots: int) -> None:
    """Evaluate a run on all of a task, unless that is done already or the task is unavailable."""
    run = Path(one.config.run)
    if (tasks := _tasks(name, found.tasks, found.progress)) is None:
        return
    known = evaluations(run, open_config(run)).get((name, shots, None, None))
    if known is None or not _is_of(known, one) or not tasks.are_those_of(known):
        # Each document is written as the iterator comes to it; none is needed here.
        deque(evaluate_tasks(load_run(run), tasks, num_fewshot=shots, progress=found.progress), maxlen=0)


def _is_of(evaluation: Values, one: Finished) -> bool:
    """Whether the evaluation is of the run as it was trained, at its last update."""
    model = one.config.model
    own = (model.steps, model.scheme.kind, "latest", one.entry["updates"])
    return tuple(evaluation[part] for part in ("steps", "scheme", "checkpoint", "update")) == own


@cache
def _tasks(name: str, folders: tuple[str, ...], progress: Progress) -> Tasks | None:
    """Load a task with its data; `None`, reported once, if it is unavailable: noticing that takes a minute."""
    try:
        return Tasks([name], folders)
    except BadInput as error:
        return progress.say(str(error))
