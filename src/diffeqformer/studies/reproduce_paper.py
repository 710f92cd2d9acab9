"""`reproduce paper`: the paper's tables and figures, item by item, each claim with its effect and a verdict.

The items and the models that they need stand in `paper_items`, the rule of the verdicts in `paper`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tyro

from diffeqformer.config import Config, DataConfig, read_yaml, shipped_configs, validate, with_values
from diffeqformer.config.bounds import INT32, UINT32, setting
from diffeqformer.errors import BadInput, Damaged, DiffEqFormerError, Diverged
from diffeqformer.progress import Progress, Silent
from diffeqformer.report.table import Table
from diffeqformer.report.text import MISSING, duration, join
from diffeqformer.store.paths import path_of
from diffeqformer.studies.paper import LEVEL, SEEDS, Claim, Finished, Model, Trained, Verdict, judge, search
from diffeqformer.studies.paper_items import ITEMS, MODELS
from diffeqformer.studies.reproduce_adapt import with_length
from diffeqformer.studies.study import Result

SEARCHED_WITH = 0
"""The seed of the search for learning rates; its runs are those of this seed."""
UPDATES = 500
BATCHES = 16
"""Of the evaluations on the way; the last one is whole."""


@dataclass(frozen=True)
class Arguments:
    """The paper's tables and figures, item by item, at laptop scale: what is claimed, what is found, and a verdict.

    Runs are shared between items, kept when they are finished, and go on when they were stopped. Learning rates are
    searched for every kind of model first, with one seed.

    Example: diffeqformer reproduce paper table-1 figure-7 --seeds 0 1 2
    """

    items: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="ITEM")] = ()
    """Such as table-1 or figure-7; all of them if none are named."""
    list: bool = False
    """Train nothing: list the items, what they still need, and how long that takes."""
    finished: bool = False
    """Train nothing: judge by the runs that are finished."""
    seeds: Annotated[tuple[int, ...], tyro.conf.arg(metavar="SEED")] = setting((0, 1, 2), least=0, most=UINT32)
    """Everything is trained once with each; a verdict needs three."""
    updates: int = setting(UPDATES, least=1, most=INT32)
    """Of each run."""
    data: Annotated[tuple[str, ...], tyro.conf.arg(metavar="FILES")] = ()
    """Text files or globs to train on; the source of Python's standard library if not given."""
    other: Annotated[tuple[str, ...], tyro.conf.arg(metavar="FILES")] = ()
    """Another text, for what is claimed of texts that were not trained on."""
    to: Annotated[str, tyro.conf.arg(metavar="DIR")] = "runs/paper"
    """Folder of all runs and of the page."""
    markdown: Annotated[str, tyro.conf.arg(metavar="FILE")] = ""
    """Also write the page as Markdown, such as docs/paper.md."""
    cache: str = DataConfig.cache
    """Folder of packed tokens."""


def study(arguments: Arguments, progress: Progress) -> Result:
    """Train what is missing, measure every claim, and judge.

    **Raises:** `BadInput` for an item that there is not; whatever training raises but `Diverged`: such a model has no
    effect.
    """
    names = arguments.items or tuple(ITEMS)
    for name in names:
        if name not in ITEMS:
            raise BadInput(f"there is no item {name!r}; the items are {', '.join(ITEMS)}.")
    runs = Runs(arguments, path_of(arguments.to), progress)
    if arguments.list:
        return listed(names, runs)
    found: dict[str, list[Verdict]] = {name: [] for name in names}
    claims = [(name, claim) for name in names for claim in ITEMS[name].claims]
    for number, (name, claim) in enumerate(claims, 1):
        progress.say(f"{number}/{len(claims)} {name}: {claim.sentence}")
        seeds = arguments.seeds[:1] if claim.exact else arguments.seeds
        found[name].append(judge([_effect(claim, runs, seed) for seed in seeds], exact=claim.exact))
    return result_of(found, runs)


class Runs:
    """The runs of all models by name and seed, trained when they are asked for."""

    def __init__(self, arguments: Arguments, folder: Path, progress: Progress):
        self.arguments, self.folder, self.progress = arguments, folder, progress
        self.rates: dict[str, tuple[float, dict[float, float]]] = {}
        self.finished: dict[str, Finished | None] = {}

    def config(self, name: str, seed: int, rate: float) -> Config:
        """Of one run."""
        model, a = MODELS[name], self.arguments
        config = with_values(read_yaml(shipped_configs()[model.config]), dict(model.settings))
        config = with_length(config, model.length * a.updates, seed)
        files = a.other if model.other else a.data
        own: dict[str, Any] = {"source": "files", "train": files} if files else {}
        return validate(replace(
            config, run=str(self.folder / name / f"rate-{rate:.3g}" / f"seed-{seed}"),
            data=replace(config.data, **own, cache=a.cache), optimizer=replace(config.optimizer, learning_rate=rate),
            trainer=replace(config.trainer, evaluate_batches=BATCHES),
        ))  # fmt: skip

    def rate(self, name: str) -> float:
        """The learning rate that was searched for a model, or for the one that it takes it from."""
        name = MODELS[name].rate_of or name
        if name not in self.rates:
            shipped = read_yaml(shipped_configs()[MODELS[name].config]).optimizer.learning_rate
            self.rates[name] = search(lambda rate: self._loss(name, rate), shipped)
        return self.rates[name][0]

    def trained(self, name: str, seed: int) -> Finished | None:
        """A model at its rate; `None` if its training diverged, or there is no text for it."""
        return None if MODELS[name].other and not self.arguments.other else self._run(name, seed, self.rate(name))

    def _loss(self, name: str, rate: float) -> float:
        found = self._run(name, SEARCHED_WITH, rate)
        return math.inf if found is None else found.entry["validation"]["loss"] or math.inf

    def _run(self, name: str, seed: int, rate: float) -> Finished | None:
        config = self.config(name, seed, rate)
        if config.run not in self.finished:
            self.finished[config.run] = self._train(config, MODELS[name])
        return self.finished[config.run]

    def _train(self, config: Config, model: Model) -> Finished | None:
        from diffeqformer.runs.folder import RESULTS, RunFolder
        from diffeqformer.runs.results import read_results
        from diffeqformer.runs.trainer import train

        build = None
        if model.build:
            from diffeqformer.studies import paper_controls

            build = getattr(paper_controls, model.build)
        opened = partial(train, config, Silent(), build=build)
        try:
            found = read_results(Path(config.run) / RESULTS)
        except Damaged:
            found = None
        if found is not None:
            RunFolder(config).require_own()
            return Finished(config, found["models"][0], opened)
        if self.arguments.finished:
            return None
        self.progress.say(config.run)
        try:
            return Finished(config, train(config, self.progress, build=build).entry, opened)
        except Diverged as error:
            self.progress.say(str(error))
            return None


def _effect(claim: Claim, runs: Runs, seed: int) -> float | None:
    models = {name: runs.trained(name, seed) for name in claim.models}
    known = {name: result for name, result in models.items() if result is not None}
    if len(known) < len(models):
        return None
    return claim.measure(Trained(known, seed, runs.folder, runs.progress, runs.arguments.other))


def result_of(found: Mapping[str, Sequence[Verdict]], runs: Runs) -> Result:
    """The page: one row for each claim, the figure of effects, and the search for learning rates."""
    from diffeqformer.report.page import both_widths
    from diffeqformer.studies.reproduce_paper_figures import effects

    rows = [(name, claim, verdict) for name, several in found.items()
            for claim, verdict in zip(ITEMS[name].claims, several, strict=True)]  # fmt: skip
    words = [verdict.word for _, _, verdict in rows]
    forms = {"holds": ("holds", "hold"), "fails": ("fails", "fail"), "within noise": ("is within noise",
             "are within noise"), "untested": ("is untested", "are untested")}  # fmt: skip
    said = join([f"{words.count(word)} {form[words.count(word) > 1]}" for word, form in forms.items() if word in words])
    text = ", ".join(runs.arguments.data) or "the source of Python's standard library"
    about = (
        f"Models of the quickstart's size (width 128, 6 steps), {runs.arguments.updates:,} updates on {text}, "
        f"seeds {', '.join(map(str, runs.arguments.seeds))}."
    )
    rule = (
        f"A claim holds if the {LEVEL:.0%} confidence interval of its mean effect over at least {SEEDS} seeds lies "
        "above zero, and fails if it lies below; else the effect is within noise. Written before the runs.".replace(
            "%", " %"
        )
    )
    drawn = [row for row in rows if row[2].effects]
    caption = "Effects of the claims: seeds (small), mean and confidence interval. Right of zero is as claimed."
    return Result(
        "paper", "The paper, item by item", (f"Of {len(rows)} claims {said}.", about, rule),
        (claims_table(rows), items_table(found), *((rates_table(runs),) if searched(runs) else ())),
        (both_widths("effects", caption, effects, [(n, c.sentence, v) for n, c, v in drawn]),) if drawn else (),
        document={
            "claims": [{"item": name, "claim": claim.sentence, "unit": claim.unit, "verdict": verdict.word,
                        "effects": list(verdict.effects), "mean": _known(verdict.mean), "low": _known(verdict.low),
                        "high": _known(verdict.high)} for name, claim, verdict in rows],
            "rates": {name: {"best": best, "losses": {f"{rate:g}": loss for rate, loss in tried.items()}}
                      for name, (best, tried) in searched(runs).items()},
        },
        folder=runs.folder,
    )  # fmt: skip


def claims_table(rows: Sequence[tuple[str, Claim, Verdict]]) -> Table:
    """The verdicts."""
    cells = [
        (ITEMS[name].where, claim.sentence, verdict.word, _shown(verdict), claim.unit, str(len(verdict.effects)), name)
        for name, claim, verdict in rows
    ]
    return Table("Claims", ("in the paper", "claim", "verdict", "effect", "unit", "seeds", "item"), cells)


def items_table(names: Mapping[str, Any]) -> Table:
    """What the paper reports, and what is not tested here."""
    rows = [(ITEMS[name].where, ITEMS[name].reported, ITEMS[name].missing or MISSING) for name in names]
    return Table("What the paper reports", ("in the paper", "reported", "not tested here without"), rows)


def searched(runs: Runs) -> dict[str, tuple[float, dict[float, float]]]:
    """Of each model whose rate was searched for the best one, and the losses of those that came to an end."""
    ended = ((name, best, {rate: loss for rate, loss in tried.items() if math.isfinite(loss)})
             for name, (best, tried) in runs.rates.items())  # fmt: skip
    return {name: (best, losses) for name, best, losses in ended if losses}


def rates_table(runs: Runs) -> Table:
    """The search for learning rates."""
    rows = [
        (name, f"{best:g}", ", ".join(f"{rate:g}: {loss:.4f}" for rate, loss in losses.items()))
        for name, (best, losses) in searched(runs).items()
    ]
    return Table("Learning rates, searched with one seed", ("model", "best", "loss by rate"), rows)


def listed(names: Sequence[str], runs: Runs) -> Result:
    """Items, the runs that each needs and has, and how long the rest takes; finished runs tell the speed."""
    finished = _finished(runs)
    seconds = [one["seconds"] / one["compute"] for one in finished.values()]
    pace = sum(seconds) / len(seconds) if seconds else None
    there = {Path(run).parts[-3::2] for run in finished}
    rows, missing = [], set()
    for name in names:
        models = {model for claim in ITEMS[name].claims for model in claim.models}
        wanted = {(model, f"seed-{seed}") for model in models for seed in runs.arguments.seeds}
        missing |= wanted - there
        rows.append((name, ITEMS[name].where, f"{len(wanted & there)} of {len(wanted)}",
                     _time(wanted - there, pace, runs), f"diffeqformer reproduce paper {name}"))  # fmt: skip
    columns = ("item", "in the paper", "runs", "time left", "command")
    first = f"{len(names)} items; {len(finished)} runs are finished."
    rest = f"About {_time(missing, pace, runs)} for all that is left, a run that items share counted once; "
    rest += "searches of learning rates come to it."
    said = (first, rest) if missing and pace is not None else (first,)
    return Result("paper", "The paper's items", said, (Table("Items", columns, rows),), folder=runs.folder)


def _time(missing: Iterable[tuple[str, ...]], pace: float | None, runs: Runs) -> str:
    """How long some runs take, at so many seconds per step of an update."""
    steps = sum(read_yaml(shipped_configs()[MODELS[model].config]).model.steps for model, _ in missing)
    return MISSING if pace is None or not steps else duration(pace * runs.arguments.updates * steps)


def _finished(runs: Runs) -> dict[str, dict[str, Any]]:
    """The entries of finished runs, by folder."""
    from diffeqformer.runs.folder import RESULTS
    from diffeqformer.runs.results import read_results

    found = {}
    for path in sorted(runs.folder.glob(f"*/rate-*/seed-*/{RESULTS}")):
        try:
            results = read_results(path)
        except DiffEqFormerError:
            continue
        if results:
            found[str(path.parent)] = results["models"][0]
    return found


def write(result: Result, arguments: Arguments) -> dict[str, str]:
    """The page, and the same as Markdown if asked for; a list leaves no files."""
    if arguments.list:
        return {}
    from diffeqformer.store.files import write_output

    written = {"page": str(result.write())}
    if arguments.markdown:
        tables = "\n\n".join(f"## {t.caption}\n\n{replace(t, caption='').to_markdown()}" for t in result.tables)
        said = "\n\n".join(result.findings)
        made = "`diffeqformer reproduce paper --markdown FILE` (`make repro-paper`) writes this page from its runs."
        text = f"# {result.title}\n\n{made}\n\n{said}\n\n{tables}\n"
        path = path_of(arguments.markdown)
        write_output(path, text.encode(), "page")
        written["markdown"] = str(path)
    return written


def _shown(verdict: Verdict) -> str:
    if not verdict.effects:
        return MISSING
    number = lambda value: f"{value:+.3f}".replace("-", "−")
    if math.isnan(verdict.low):
        return number(verdict.mean)
    return f"{number(verdict.mean)} [{number(verdict.low)}, {number(verdict.high)}]"


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
