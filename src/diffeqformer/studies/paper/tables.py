"""Tables of the paper's items that no claim is based on: measured once, kept with the runs and in the record."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from statistics import median

from diffeqformer.config import Config, with_values
from diffeqformer.model.count import parameters
from diffeqformer.progress import Progress
from diffeqformer.report.table import Table
from diffeqformer.report.text import number
from diffeqformer.store.files import read_sealed, write_sealed
from diffeqformer.studies.bench import benchmark
from diffeqformer.studies.inputs import shipped
from diffeqformer.studies.paper.measures import OURS, planned_memory
from diffeqformer.studies.paper.models import D_EMB
from diffeqformer.studies.paper.runs import Runs

BATCH_SIZES = (16, 64)
"""Sequences per update, at which memory is planned and speed is measured."""
ROUNDS = 5


def costs(progress: Progress, configs: Mapping[int, Config] | None = None) -> Table:
    """Measure stored parameters, an update's memory as compiled, and tokens per second by d_emb, at two batch sizes."""
    configs = configs or _sizes(shipped(f"quickstart-{OURS}"))
    speeds = [_speeds(configs, size, progress) for size in BATCH_SIZES]
    megabytes = lambda config, size: None if (known := planned_memory(config, size)) is None else known / 1e6
    rows = [
        (str(d_emb), number(parameters(config.model).stored / 1e6, 2),
         *(number(megabytes(config, size)) for size in BATCH_SIZES), *(number(speed[d_emb]) for speed in speeds))
        for d_emb, config in configs.items()
    ]  # fmt: skip
    columns = ("d_emb", "parameters (M)", *(f"{what}, {size} sequences" for what in ("memory (MB)", "tokens per second")
                                            for size in BATCH_SIZES))  # fmt: skip
    said = "Memory of an update as it is compiled; speed of updates on one batch, the median of rounds in turns."
    return Table(f"What d_emb costs\n{said}", columns, rows)


def _sizes(config: Config) -> dict[int, Config]:
    """Return the config with every d_emb of figure 14."""
    assert config.model.time is not None
    sizes = sorted((*D_EMB, config.model.time.d_emb))
    return {d_emb: with_values(config, {"model.weights.d_emb": d_emb}) for d_emb in sizes}


def _speeds(configs: Mapping[int, Config], size: int, progress: Progress) -> dict[int, float]:
    """Measure the tokens per second of updates on `size` sequences, by d_emb."""
    of = lambda config: with_values(config, {"trainer.batch_size": size})
    updates = {f"d_emb {d_emb}, {size} sequences": benchmark.repeated(of(one)) for d_emb, one in configs.items()}
    seconds = benchmark.take_turns(updates, ROUNDS, progress)
    times = dict(zip(configs, seconds.values(), strict=True))
    return {d_emb: size * configs[d_emb].model.context / median(times[d_emb]) for d_emb in configs}


def measured(measure: Callable[[Progress], Table], runs: Runs) -> Table | None:
    """Return a table as measured with these runs, or measure and keep it now; `None` if nothing is to run."""
    path = runs.folder / "tables" / f"{measure.__name__}.json"
    if path.is_file():
        return Table(**read_sealed(path))
    if runs.arguments.finished:
        return None
    table = measure(runs.progress)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_sealed(path, asdict(table))
    return table
