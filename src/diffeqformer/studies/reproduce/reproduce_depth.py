"""`reproduce depth`: does depth pay, both in one checkpoint and in models trained at one depth alone?

Every model sees the same batches in the same order (equal tokens). If asked for, models of one depth are trained once
more with the compute of the elastic model: its NFE, evaluations of the field on the tokens of an update, summed over
all updates.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from diffeqformer.config import BaseConfig, Config, DataConfig, read_shipped, validate, with_values
from diffeqformer.config.bounds import INT32, MOST_STEPS, UINT32, require_once, setting
from diffeqformer.errors import BadInput
from diffeqformer.plain import Document, Values
from diffeqformer.progress import Progress
from diffeqformer.studies.inputs import Files, Folder, Seeds, folder_for, require_usual
from diffeqformer.studies.reproduce.experiments import (
    listed,
    on_text,
    rate_for,
    rates_of,
    require_own,
    searches,
    train_all,
    with_length,
)
from diffeqformer.studies.study import Result

if TYPE_CHECKING:
    from diffeqformer.model.transformer import Transformer
    from diffeqformer.runs.trainer import TrainResult

Kind = Literal[
    "gpt", "diffeqformer", "elastic", "layerdrop", "exits", "landings", "shared", "loop", "nested", "corrected",
    "dyadic", "tables", "drawn", "first-recipe",
]  # fmt: skip
"""Shipped configs, each `depth-KIND`; `tables` begins as `depth-sharing`."""
ALONE: tuple[Kind, ...] = ("gpt", "diffeqformer")
"""Kinds with one model for each depth, evaluated at that depth only; every other kind is one checkpoint."""


SHARED_FIRST, FIRST_PART = "tables", "sharing"
"""The kind whose steps share weights at first, until several depths get tables of their own; and this first part."""
SHARED_PART = 1 / 3
"""Fraction of its updates that share weights."""
OWN_TABLES: Values = {
    "depth.always": [2, 3, 4, 5, 6, 8, 10, 12, 14, 16],
    "depth.sample": [7, 9, 11, 13, 15, 20, 24, 28, 32],
    "optimizer.schedule": "cosine",
    "optimizer.warmup_fraction": 0.03,
}
"""Settings of the second part other than those of the first: the depths of `depth.always` get the tables."""
SAME_COMPUTE = ", same compute"
"""Suffix of the kind of models of one depth that have the compute of the elastic one, not its tokens."""
READ = (*range(1, 17), 24, 32)
"""Depths at which one checkpoint is evaluated, as far as it can run at them."""
PUZZLE_RATE = 3e-3
"""Peak learning rate of all models on puzzles."""
TITLE = "Depth that pays"
UPDATES = {"hops": 8000, "p-hop": 8000, "permutations": 8000, "text": 10_000}


@dataclass(frozen=True)
class Arguments:
    """Where depth pays: one checkpoint at every depth beside models of one depth and other elastic models.

    Runs that are finished are kept when it is started again, and runs that were stopped go on.

    Example: diffeqformer reproduce depth --task hops
    """

    task: Literal["hops", "p-hop", "permutations", "text"] = "hops"
    """A puzzle that needs depth, with the loss on answers only, or text."""
    to: Folder = "runs/depth"
    """Folder of all runs and of the page, which is in a folder of the task's name there."""
    seeds: Seeds = setting((0,), least=0, most=UINT32)
    """Everything is trained once with each."""
    depths: Annotated[tuple[int, ...], tyro.conf.arg(metavar="N")] = setting((2, 4, 8, 16), least=1, most=MOST_STEPS)
    """Depths at which models of one depth are trained."""
    models: tuple[Kind, ...] = ("elastic", "gpt", "layerdrop", "loop", "shared")
    """Models to train, in this order."""
    updates: int | None = setting(None, least=1, most=INT32)
    """Updates per model; if not given 8,000 for puzzles and 10,000 for text."""
    same_compute: bool = False
    """Train models of one depth a second time, with the compute of the elastic one."""
    search: bool = False
    """Search the learning rate of each model but `tables` first, with the first seed and runs of full length."""
    list: bool = False
    """Train nothing: list the runs, those that are finished, and how long the rest takes; without --search."""
    data: Files = ()
    """Text files or globs; the source of Python's standard library if not given."""
    cache: str = DataConfig.cache
    """Folder of packed tokens."""


def study(arguments: Arguments, progress: Progress) -> Result:
    """Train what is missing, and compare over all seeds.

    **Raises:** `BadInput` for data with a puzzle, or for `list` with `search`; whatever training raises.
    """
    for option in ("seeds", "models", "depths"):
        require_once(f"--{option}", getattr(arguments, option))
    if arguments.list and arguments.search:
        raise BadInput("--list is given with --search, which decides what is trained: leave one of them out.")
    if arguments.data and arguments.task != "text":
        raise BadInput(f"--data is given, but --task {arguments.task} makes its own problems; --task text reads it.")
    if not any(kind in ALONE for kind in arguments.models):
        require_usual(arguments, ("depths", "same_compute"), "--models has none that is trained at one depth")
    from diffeqformer.data.documents import find_files
    from diffeqformer.studies.reproduce.reproduce_depth_figures import result_of

    if arguments.data:
        find_files(arguments.data, "--data")
    folder = folder_for("depth", arguments.to) / arguments.task
    planned = [run for seed in arguments.seeds for run in runs_of(arguments, seed, folder / f"seed-{seed}")]
    if arguments.list:
        from diffeqformer.runs.folder import settings_of
        from diffeqformer.training.depths import compute_of

        each = lambda config: compute_of(config) / config.trainer.updates
        # As training has them: with what only `validate` fills in.
        known = lambda config: settings_of(validate(config))
        runs = ((role["kind"], Path(config.run), known(config), each(config)) for config, role in planned)
        return listed("depth", TITLE, runs, folder)
    require_own(config for config, _ in planned)
    found: list[Document] = []
    for seed in arguments.seeds:
        rates = rates_of(found[0]) if found else {}
        found.append(reproduce(arguments, seed, folder / f"seed-{seed}", progress, rates))
    return result_of(records(found), [about(found[0])], folder, searches(found[0]))


def reproduce(
    arguments: Arguments, seed: int, folder: Path, progress: Progress, rates: Mapping[str, float]
) -> Document:
    """Train all runs of one seed as `train_all` does, with readings at several depths.

    **Arguments:** `seed`, of everything random; `rates`, as from `rates_of` of another seed: what is not in it is
    searched, if the arguments say so.
    """
    runs = list(runs_of(arguments, seed, folder))
    at_best = (_at_best_rate(arguments, config, role, rates, progress) for config, role in runs)
    read = lambda result, role: {
        "readings": readings(result, role["kind"].removesuffix(SAME_COMPUTE) in ALONE, progress),
        "energy": energy(result.model),
    }
    return train_all(TITLE, at_best, len(runs), folder, progress, read)


def _at_best_rate(
    arguments: Arguments, config: Config, role: Document, rates: Mapping[str, float], progress: Progress
) -> tuple[Config, Document]:
    """Return a run at its learning rate: that of `rates`, the best of a search if asked for, or else the config's."""
    name, start = Path(config.run).name, config.optimizer.learning_rate
    if role["kind"] in (SHARED_FIRST, FIRST_PART):
        return config, role  # the second part goes on from the first, whose folder and rate it names
    role = role | {"searched": name}

    def at(rate: float) -> Config:
        own = {"run": f"{config.run}-rate-{rate:g}", "optimizer.learning_rate": rate}
        return config if rate == start else with_values(config, own)

    if not arguments.search:
        return at(rates.get(name, start)), role
    rate, tried = rate_for(name, start, at, rates, progress)
    return at(rate), role | tried


def runs_of(arguments: Arguments, seed: int, folder: Path) -> Iterator[tuple[Config, Document]]:
    """Yield the config of each run, and its role."""
    from diffeqformer.training.depths import compute_of

    updates = arguments.updates or UPDATES[arguments.task]

    def config_of(kind: str, name: str, updates: int = updates, steps: int | None = None) -> Config:
        config = with_length(read_shipped(f"depth-{kind}"), updates, seed)
        own = {"run": str(folder / name)} | ({} if steps is None else {"model.steps": steps})
        return _on_task(arguments, with_values(config, own))

    elastic = compute_of(config_of("elastic", "elastic"))
    for kind in arguments.models:
        if kind == SHARED_FIRST:
            sharing = config_of(FIRST_PART, FIRST_PART, max(1, round(SHARED_PART * updates)))
            freed = freed_config(sharing, str(folder / kind), max(1, updates - sharing.trainer.updates))
            before = compute_of(sharing)
            yield sharing, {"kind": FIRST_PART, "compute": before}
            yield freed, {"kind": kind, "compute": before + compute_of(freed), "updates": updates}
        elif kind not in ALONE:
            config = config_of(kind, kind)
            yield config, {"kind": kind, "compute": compute_of(config)}
        else:
            for steps in arguments.depths:
                yield config_of(kind, f"{kind}-{steps}", steps=steps), {"kind": kind, "compute": steps * updates}
                if arguments.same_compute:
                    longer = max(1, round(elastic / steps))
                    config = config_of(kind, f"{kind}-{steps}-same-compute", longer, steps)
                    yield config, {"kind": f"{kind}{SAME_COMPUTE}", "compute": steps * longer}


def freed_config(sharing: Config, folder: str, updates: int) -> Config:
    """Return the config of the run that gives the model of `sharing` weights of kind `levels`, and trains on.

    It starts from a config, not from a run as `finetune_config` does, because the run of `sharing` does not exist yet
    when runs are listed.
    """
    from diffeqformer.model.adapt import adapted_config
    from diffeqformer.runs.results import name_of_run

    base = BaseConfig(sharing.run, method="levels", system=name_of_run(sharing), imported=False)
    config = with_length(replace(sharing, base=base), updates, sharing.trainer.seed)
    config = with_values(config, {"run": folder, **OWN_TABLES})
    steps, levels = sharing.model.steps, config.depth.always
    model = adapted_config(sharing.model, steps, become="levels", lora=None, levels=levels)
    return replace(config, model=model)


def _on_task(arguments: Arguments, config: Config) -> Config:
    """Adapt a config to the task that is asked for; shipped configs are for the text of the standard library."""
    if arguments.task == "text":
        return on_text(config, arguments.data, arguments.cache)
    own = {
        "data": {"source": "puzzle", "puzzle": arguments.task, "cache": arguments.cache},
        "optimizer.learning_rate": PUZZLE_RATE,
        "trainer.batch_size": 2 * config.trainer.batch_size,  # problems are half as long
    }
    config = with_values(config, own)
    assert config.data.puzzle is not None
    return with_values(config, {"model.context": config.data.puzzle.context})


def readings(result: "TrainResult", alone: bool, progress: Progress) -> list[Document]:
    """Evaluate a trained model at its own depth, or at all depths of `READ` that it can run at.

    **Returns:** for each, `steps`, `loss`, `perplexity`, and for a puzzle `accuracy` by difficulty.
    """
    from diffeqformer.evaluation.accuracy import accuracy_of
    from diffeqformer.evaluation.depth import possible_depths
    from diffeqformer.runs.readings import at_depths_of

    puzzle = result.config.data.puzzle
    depths = [result.config.model.steps] if alone else possible_depths(result.model, READ)
    rows: list[Document] = [dict(row) for row in at_depths_of(result, depths, progress)]
    if puzzle:
        for row in rows:
            row["accuracy"] = accuracy_of(puzzle, result.model, result.tokens.validation, row["steps"])
    return rows


def energy(model: "Transformer") -> float:
    """Return the share of the matrices' squared norm on the model's grid that is not that of their mean over depth."""
    from diffeqformer.analysis.participation import variation_over_depth

    grid = model.grid()
    found, _ = variation_over_depth(model.weights.table(grid, model.scheme.nodes), grid.lengths)
    return sum(found.values()) / len(found)


def records(found: Sequence[Values]) -> list[Document]:
    """Convert the documents of `reproduce`, one per seed, to the rows that figures and tables are made of.

    **Returns:** for each model and each depth at which it was evaluated: `kind`, `steps`, `seed`, `loss`, `perplexity`,
    `accuracy` (`None` for text), `updates`, `compute`.
    """
    rows = []
    for entry in (entry for one in found for entry in one["models"]):
        shared = {"kind": entry["role"]["kind"], "compute": entry["role"]["compute"],
                  "updates": entry["role"].get("updates", entry["updates"]),
                  "seed": entry["config"]["trainer"]["seed"], "energy": entry["energy"]}  # fmt: skip
        read = ("steps", "loss", "perplexity", "accuracy")
        rows += [shared | {name: point.get(name) for name in read} for point in entry["readings"]]
    return rows


def about(found: Values) -> str:
    """Describe in one paragraph what was trained on what."""
    config, corpus = found["models"][0]["config"], found["corpus"]
    m, t = config["model"], config["trainer"]
    same_tokens = (one for one in found["models"] if not one["role"]["kind"].endswith(SAME_COMPUTE))
    updates = max(one["role"].get("updates", one["updates"]) for one in same_tokens)
    return (
        f"{corpus['name']}: {corpus['train_tokens']:,} training and {corpus['validation_tokens']:,} validation tokens, "
        f"vocabulary of {m['vocabulary']:,}. Width {m['width']}, {m['heads']} heads, context {m['context']}, "
        f"{t['batch_size']} sequences per update, {updates:,} updates."
    )
