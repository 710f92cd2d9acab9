"""`sweep`: a grid or random search over any settings of a config; each trial is a run that is kept and resumed."""

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from diffeqformer.config import Config, OptimizerConfig, find_config, parse_value, read_yaml, validate, with_values
from diffeqformer.config.bounds import INT32, UINT32, require_once, setting
from diffeqformer.errors import BadInput
from diffeqformer.plain import Document, Values, finite_or_none, shown
from diffeqformer.progress import Progress
from diffeqformer.report.table import Table
from diffeqformer.report.text import MISSING, counted, speed
from diffeqformer.store.digests import digest
from diffeqformer.store.paths import path_of
from diffeqformer.studies.inputs import Folder, Seeds
from diffeqformer.studies.reproduce.experiments import trained
from diffeqformer.studies.study import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_TRIALS = 10_000


@dataclass(frozen=True)
class Arguments:
    """Train a config with many values of its settings, and compare: all of them in a grid, or some drawn at random.

    When the sweep is started again, finished trials are kept, and stopped ones go on.

    Example: diffeqformer sweep quickstart-gpt --over optimizer.learning_rate=3e-4,1e-3,3e-3 optimizer.rule=adamw,muon
    """

    config: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CONFIG")]
    """A YAML file, or the name of a shipped config."""
    over: Annotated[tuple[str, ...], tyro.conf.arg(metavar="KEY=VALUES")]
    """Settings by dotted name, each with its values separated by commas; or, if drawn, a range from..to: log-uniform,
    or uniform for whole numbers."""
    trials: int | None = setting(None, least=1, most=MOST_TRIALS)
    """Random trials to draw; if not given, all combinations are tried."""
    seeds: Seeds = setting((0,), least=0, most=UINT32)
    """Seeds to train each trial with."""
    updates: int | None = setting(None, least=1, most=INT32)
    """Updates per run; the config's own if not given."""
    to: Folder = "runs/sweep"
    """Folder of all runs and of the page."""


def study(arguments: Arguments, progress: Progress) -> Result:
    """Train the missing runs, and rank the trials by their validation loss, a mean over the seeds.

    **Raises:** `BadInput` for an impossible setting or value, or a run of other settings in the way, before anything is
    trained; also whatever training raises except `Diverged`: such a trial is ranked last.
    """
    require_once("--seeds", arguments.seeds)
    trials = trials_of(arguments.over, arguments.trials)
    base, folder = read_yaml(find_config(arguments.config)), path_of(arguments.to)
    length = {} if arguments.updates is None else {"trainer.updates": arguments.updates}
    if twice := length.keys() & trials[0].keys():
        raise BadInput(f"--updates is {arguments.updates}, but --over has {', '.join(twice)}; give one of them.")

    def config_of(trial: Values, seed: int) -> Config:
        run = str(folder / _name(trial) / f"seed-{seed}")
        return validate(replace(with_values(base, {**length, **trial, "trainer.seed": seed}), run=run))

    runs = [[config_of(trial, seed) for seed in arguments.seeds] for trial in trials]
    import numpy as np

    from diffeqformer.report.page import both_widths
    from diffeqformer.runs.folder import CONFIG, RunFolder, as_moved, origin_of
    from diffeqformer.runs.rehearsal import made_ready

    if (folder / CONFIG).exists():
        raise BadInput(f"folder {str(folder)!r} holds a run of its own; choose another folder with --to.")
    for one in itertools.chain(*runs):  # all, before any is trained
        RunFolder(as_moved(one)).require_own()
    # Runs that have begun passed this check. Of the optimiser, only what trains which roles decides whether one can.
    new = [first for first, *_ in runs if origin_of(path_of(first.run)) is None]
    roles = lambda o: OptimizerConfig(train_roles=o.train_roles, rule=o.rule, rule_roles=o.rule_roles)
    for one in {replace(config, run="", optimizer=roles(config.optimizer)): config for config in new}.values():
        made_ready(one, progress)
    rows = []
    for number, (trial, configs) in enumerate(zip(trials, runs, strict=True), 1):
        entries = []
        for config in configs:
            progress.say(f"{number}/{len(trials)} {config.run}")
            entries.append(trained(config, progress))
        losses = [entry and entry["validation"]["loss"] for entry in entries]
        measured = [pace for entry in entries if entry and (pace := entry["tokens_per_second"])]
        known = [math.inf if loss is None else loss for loss in losses]
        rows.append({"settings": dict(trial), "losses": losses, "loss": sum(known) / len(known),
                     "tokens_per_second": sum(measured) / len(measured) if measured else None})  # fmt: skip
    rows.sort(key=lambda row: row["loss"])
    names = list(trials[0])
    figures = tuple(
        both_widths(name.replace(".", "-"), f"Validation loss of every trial by {name}.", losses_by, name, rows)
        for name in (names if math.isfinite(rows[0]["loss"]) else ())
    )
    document = [{**row, "loss": finite_or_none(row["loss"])} for row in rows]
    return Result(
        "sweep",
        f"Sweep of {arguments.config}",
        _findings(rows, [configs[0] for configs in runs], arguments),
        (_table(names, rows),),
        figures,
        arrays={"losses": np.array([row["losses"] for row in rows], float)},  # NaN for `None`
        document={"config": arguments.config, "seeds": list(arguments.seeds), "trials": document},
        folder=folder,
    )


def trials_of(over: Sequence[str], count: int | None) -> list[Document]:
    """Return the settings of each trial: all combinations, or `count` drawn. Draw k is the same whatever the count.

    **Raises:** `BadInput` for words that are not settings, and for ranges in a grid.
    """
    choices = dict(map(_choices, over))
    if len(choices) < len(over):
        raise BadInput(f"--over has {len(over)} settings, but {len(choices)} different names; name each once.")
    if count is not None:
        import numpy as np

        random = np.random.default_rng
        drawn = ({name: _drawn(values, random([k, i])) for i, (name, values) in enumerate(choices.items())}
                 for k in range(count))  # fmt: skip
        return list({_name(trial): trial for trial in drawn}.values())
    for name, values in choices.items():
        if isinstance(values, tuple):
            raise BadInput(f"--over {name} is a range, of which a grid has no points; give --trials, or its values.")
    if (combinations := math.prod(map(len, choices.values()))) > MOST_TRIALS:
        raise BadInput(f"--over has {combinations} combinations, but must have at most {MOST_TRIALS}.")
    return [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]


def _choices(word: str) -> tuple[str, list[Any] | tuple[Any, Any]]:
    """Parse a setting's name and its values, a tuple (low, high) for a range."""
    name, equals, values = word.partition("=")
    name = name.replace("-", "_")
    if not equals or not values or not re.fullmatch(r"[a-z_0-9]+(\.[a-z_0-9]+)+", name):
        raise BadInput(f"--over has {shown(word)}, but must be KEY=VALUES, such as optimizer.learning_rate=1e-3,3e-3.")
    if name == "trainer.seed" or name.startswith("base."):
        raise BadInput(f"--over has {name}, which is no setting to search; --seeds are given by themselves.")
    if ".." in values and not {*values} & {*",/"}:  # a path can hold `..`, too
        ends = [parse_value(end) for end in values.split("..", 1)]
        # `type`, since a bool would be an instance of int.
        if not all(type(end) in (int, float) and 0 < end < math.inf for end in ends) or ends[0] >= ends[1]:
            raise BadInput(f"--over {name} is {shown(values)}, but a range must be two positive numbers that rise.")
        return name, (ends[0], ends[1])
    parsed = [parse_value(value) for value in values.split(",")]
    if twice := [value for value in parsed if parsed.count(value) > 1]:
        raise BadInput(f"--over {name} has {twice[0]} more than once; each is a trial, so name it once.")
    return name, parsed


def _drawn(values: Any, random: Any) -> Any:
    if not isinstance(values, tuple):
        return values[random.integers(len(values))]
    low, high = values
    if isinstance(low, int) and isinstance(high, int):
        return int(random.integers(low, high + 1))
    # Rounded to four digits, so that the name of the trial's folder shows all of them.
    return float(f"{math.exp(random.uniform(math.log(low), math.log(high))):.4g}")


def _name(trial: Values) -> str:
    """Name of a trial's folder, independent of the order of its settings."""
    said = ",".join(f"{name}={value}" for name, value in sorted(trial.items()))
    # File names are limited to 255 bytes; a digest distinguishes names that are cut or altered.
    plain = re.sub(r"[^\w.=+,-]+", "-", said, flags=re.ASCII)[:200]
    return plain if plain == said else f"{plain}-{digest(said.encode())[:8]}"


def _findings(rows: Sequence[Values], configs: Sequence[Config], arguments: Arguments) -> tuple[str, ...]:
    best, lost = rows[0], sum(not math.isfinite(row["loss"]) for row in rows)
    words = ", ".join(f"{name} {value}" for name, value in best["settings"].items())
    first = f"The lowest validation loss, {best['loss']:.4f} nats per token, has {words}."
    if not math.isfinite(best["loss"]):
        first = "No trial came to an end with finite numbers."
    seeds = counted(len(arguments.seeds), "seed")
    lengths = sorted({one.trainer.updates for one in configs})
    batches = {(one.data, one.trainer.batch_size, one.model.context) for one in configs}
    of = " to ".join(f"{length:,}" for length in dict.fromkeys((lengths[0], lengths[-1])))
    updates = f"{of} update{'s' * (lengths[-1] > 1)}"
    about = f"{counted(len(rows), 'trial')} of {updates} with {seeds}; {lost} stopped being finite."
    if len(batches) == 1 and len(lengths) == 1:
        t = configs[0].trainer
        about += f" Each is on the same batches of {t.batch_size} x {configs[0].model.context} tokens."
    elif len({one.data for one in configs}) > 1:
        about += " Their texts differ, so that losses per token need not be comparable."
    else:
        about += " They do not see the same tokens."
    ended = math.isfinite(best["loss"])
    edge = [name for name, value in best["settings"].items() if ended and _at_edge(name, value, rows)]
    advice = f"The best {' and '.join(edge)} lies at the end of what was tried: try beyond." if edge else ""
    return tuple(filter(None, (first, about, advice)))


def _at_edge(name: str, value: Any, rows: Sequence[Values]) -> bool:
    """Whether a number is the smallest or the largest of more than two that were tried."""
    tried = {row["settings"][name] for row in rows}
    return len(tried) > 2 and all(type(one) in (int, float) for one in tried) and value in (min(tried), max(tried))


def _table(names: Sequence[str], rows: Sequence[Values]) -> Table:
    cells = []
    for rank, row in enumerate(rows, 1):
        values = [str(row["settings"][name]) for name in names]
        finite = [loss for loss in row["losses"] if loss is not None]
        spread = f"{max(finite) - min(finite):.4f}" if len(finite) > 1 else MISSING
        loss = f"{row['loss']:.4f}" if math.isfinite(row["loss"]) else "not finite"
        pace = speed(row["tokens_per_second"])
        cells.append((str(rank), *values, loss, spread, pace))
    return Table("Trials", ("rank", *names, "loss (nats)", "range of seeds", "tokens/s"), cells)


def losses_by(name: str, rows: Sequence[Values], *, width: float) -> "Figure":
    """Plot the loss of every trial over one of its settings."""
    from diffeqformer.report.figures import color, drawing

    known = [(row["settings"][name], row["loss"]) for row in rows if math.isfinite(row["loss"])]
    numeric = all(type(value) in (int, float) for value, _ in known)
    names = list(dict.fromkeys(str(value) for value, _ in known))
    with drawing(width, 3.2) as (figure, axes):
        (axis,) = axes.flat
        places = [value if numeric else names.index(str(value)) for value, _ in known]
        axis.plot(places, [loss for _, loss in known], linestyle="", marker="o", color=color(0))
        if not numeric:
            axis.set_xticks(range(len(names)), names, parse_math=False)
        elif min(places) > 0 and max(places) > 5 * min(places):
            axis.set_xscale("log")
        axis.set(xlabel=name, ylabel="validation loss (nats per token)")
    return figure
