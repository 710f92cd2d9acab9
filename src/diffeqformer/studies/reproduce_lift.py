"""`reproduce lift`: a pretrained table of layers, lifted and fine-tuned for a few more tokens, at every depth.

A GPT or a Llama of L layers is pretrained, lifted to knots, and fine-tuned once at five drawn depths with itself as the
frozen teacher. Beside it: a model of each depth with the whole budget, and, with the same few tokens each, models of
one depth that begin from the pretrained layers: some left out, each repeated, the whole stacked, or those of the lifted
model.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from diffeqformer.config import Config, DataConfig, DepthConfig, read_yaml, shipped_configs
from diffeqformer.config.bounds import INT32, MOST_STEPS, UINT32, setting
from diffeqformer.errors import BadInput
from diffeqformer.progress import Progress
from diffeqformer.report.table import Table
from diffeqformer.store.paths import path_of
from diffeqformer.studies.reproduce_adapt import train_all, with_length
from diffeqformer.studies.study import Result

if TYPE_CHECKING:
    from diffeqformer.model.transformer import Transformer
    from diffeqformer.runs.opening import Run
    from diffeqformer.runs.trainer import TrainResult

NEAR, SAME = 0.02, 0.005
"""Marks, of perplexity: how far above a model of that depth with the whole budget, and at L above the original."""
JITTER, DISTILL = 0.5, 0.5
"""Of drawn depths; the second is the teacher's share."""
RATE = 0.3
"""Learning rate of fine-tuning, of pretraining's peak; not tuned."""
Start = Literal["alone", "dropped", "repeated", "stacked"]
"""Where a model that is fine-tuned at one depth begins."""
NAMES = {
    "dedicated": "a model of that depth, whole budget",
    "lifted": "lifted, as it is",
    "elastic": "lifted, fine-tuned once at all depths",
    "alone": "lifted, fine-tuned at that depth alone",
    "dropped": "layers left out, fine-tuned",
    "repeated": "each layer repeated, fine-tuned",
    "stacked": "layers stacked, fine-tuned",
}
"""The kinds of records, in order, and how they are written."""


@dataclass(frozen=True)
class Arguments:
    """Lift a pretrained model and fine-tune it for a fraction of its tokens; compare at five depths.

    Runs that are finished are kept when it is started again, and runs that were stopped go on.

    Example: diffeqformer reproduce lift --family llama --layers 12
    """

    family: Literal["gpt", "llama"] = "gpt"
    """Of the models."""
    layers: int = setting(6, least=6, most=MOST_STEPS // 2)
    """L, a multiple of 6, so that a half and two thirds exist."""
    to: Annotated[str, tyro.conf.arg(metavar="DIR")] = "runs/lift"
    """Folder of all runs and of the page, which is in a folder of the family's name and L there."""
    seeds: Annotated[tuple[int, ...], tyro.conf.arg(metavar="SEED")] = setting((0,), least=0, most=UINT32)
    """Everything is trained once with each."""
    pretraining: int = setting(5000, least=1, most=INT32)
    """Updates of pretraining, 2,048 tokens each."""
    finetuning: int = setting(250, least=1, most=INT32)
    """Updates of each fine-tuning."""
    rivals: tuple[Start, ...] = ("alone", "dropped", "repeated", "stacked")
    """What is fine-tuned at one depth each."""
    data: Annotated[tuple[str, ...], tyro.conf.arg(metavar="FILES")] = ()
    """Text files or globs; the source of Python's standard library if not given."""
    cache: str = DataConfig.cache
    """Folder of packed tokens."""

    @property
    def depths(self) -> tuple[int, ...]:
        """L/2, 2L/3, L, 4L/3 and 2L."""
        return self.layers // 2, 2 * self.layers // 3, self.layers, 4 * self.layers // 3, 2 * self.layers


def study(arguments: Arguments, progress: Progress) -> Result:
    """Train what is missing, and compare over all seeds.

    **Raises:** `BadInput` for a number of layers that cannot be; whatever training raises.
    """
    if arguments.layers % 6:
        raise BadInput(f"--layers is {arguments.layers}, but must be a multiple of 6, so that two thirds exist.")
    folder = path_of(arguments.to) / f"{arguments.family}-{arguments.layers}"
    found = [reproduce(arguments, seed, folder / f"seed-{seed}", progress) for seed in arguments.seeds]
    return result_of(records(found), arguments.layers, [about(found[0], arguments)], folder)


def reproduce(arguments: Arguments, seed: int, folder: Path, progress: Progress) -> dict[str, Any]:
    """As `train_all`, with readings at the depths of each model, and of the original as it is when it is lifted.

    **Arguments:** `seed`, of all that is drawn.
    """
    import jax

    from diffeqformer.model.lift import lift
    from diffeqformer.runs.compare import at_depths_of

    def read(result: "TrainResult", role: dict[str, Any]) -> dict[str, Any]:
        found = {"readings": at_depths_of(result, role["depths"], progress)}
        if role["kind"] != "dedicated" or role["depths"] != [arguments.layers]:
            return found
        lifted = lift(result.model, key=jax.random.key(seed)).model
        own = replace(result, model=lifted, config=replace(result.config, model=lifted.config))
        return {**found, "lifted": at_depths_of(own, arguments.depths, progress)}

    planned = len(arguments.depths) + 1 + len(list(_starts(arguments)))
    return train_all(
        "From lifted to elastic", _runs(arguments, seed, folder, progress), planned, folder, progress, read
    )


def _runs(arguments: Arguments, seed: int, folder: Path, progress: Progress) -> Iterator[tuple[Config, dict[str, Any]]]:
    """The config of each run, and what it is for; those of fine-tuning open the pretrained run, trained by then."""
    from diffeqformer.runs.finetune import finetune_config
    from diffeqformer.runs.lifting import lift_run
    from diffeqformer.runs.opening import load_run

    vanilla = with_length(read_yaml(shipped_configs()[f"quickstart-{arguments.family}"]), arguments.pretraining, seed)
    own: dict[str, Any] = {"source": "files", "train": arguments.data} if arguments.data else {}
    data = replace(vanilla.data, **own, cache=arguments.cache)
    for depth in sorted(arguments.depths, key=lambda depth: depth != arguments.layers):  # L first: it is lifted
        model = replace(vanilla.model, steps=depth)
        config = replace(vanilla, run=str(folder / f"dedicated-{depth}"), model=model, data=data)
        yield config, {"kind": "dedicated", "depths": [depth]}
    original = load_run(folder / f"dedicated-{arguments.layers}", progress=progress)
    lifted = _once(folder / "lifted", lambda to: lift_run(original, to, progress=progress)[0])

    def tuned(base: "Run", name: str, method: Literal["full", "continuous"], **more: Any) -> Config:
        optimizer = replace(vanilla.optimizer, learning_rate=RATE * vanilla.optimizer.learning_rate)
        trainer = with_length(vanilla, arguments.finetuning, seed).trainer
        settings = {"method": method, "optimizer": optimizer, "trainer": trainer, **more}
        return finetune_config(base, str(folder / name), **settings)

    drawn = DepthConfig(arguments.depths, jitter=JITTER, distill=DISTILL, teacher="base")
    config = tuned(lifted, "elastic", "continuous", depth=drawn)
    yield config, {"kind": "elastic", "depths": list(arguments.depths)}
    for kind, depth, rows in _starts(arguments):
        base = lifted if rows is None else _selected(original, rows, folder / f"from-{kind}-{depth}")
        config = tuned(base, f"{kind}-{depth}", "full", steps=depth)
        yield config, {"kind": kind, "depths": [depth]}


def _starts(arguments: Arguments) -> Iterator[tuple[Start, int, list[int] | None]]:
    """The models of one depth that are fine-tuned: their kind, depth, and the layers of L that they begin with."""
    layers = arguments.layers
    for depth in (depth for depth in arguments.depths if depth != layers):
        spread = [int((2 * row + 1) * layers / (2 * depth)) for row in range(depth)]
        starts: dict[Start, list[int] | None] = {"alone": None}
        if depth < layers:
            starts["dropped"] = spread
        else:
            starts |= {"repeated": spread, "stacked": [row % layers for row in range(depth)]}
        for kind in arguments.rivals:
            if kind in starts:
                yield kind, depth, starts[kind]


def selected(model: "Transformer", rows: Sequence[int]) -> "Transformer":
    """The table of some of a table's layers, each as often as `rows` names it; every layer does what it did."""
    import jax
    import numpy as np

    layers = jax.tree.map(lambda leaf: leaf[np.asarray(rows)], model.weights.layers)  # pyright: ignore
    config = replace(model.config, steps=len(rows), horizon="steps")
    return model.replace(weights=replace(model.weights, layers=layers), config=config)  # pyright: ignore


def _selected(original: "Run", rows: Sequence[int], to: Path) -> "Run":
    from diffeqformer.runs.lifting import write_derived

    return _once(to, lambda to: write_derived(original, to, selected(original.model, rows)))


def _once(to: Path, make: Any) -> "Run":
    """The run in a folder, made if it is not there."""
    from diffeqformer.runs.folder import CONFIG
    from diffeqformer.runs.opening import load_run

    return load_run(to) if (to / CONFIG).is_file() else make(to)


def records(found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The documents of `reproduce`, one per seed, as rows: `kind`, `steps`, `seed`, `loss` (nats)."""
    return [
        {"kind": kind, "steps": point["steps"], "seed": entry["config"]["trainer"]["seed"], "loss": point["loss"]}
        for one in found
        for entry in one["models"]
        for kind, points in ((entry["role"]["kind"], entry["readings"]), ("lifted", entry.get("lifted", ())))
        for point in points
    ]


def means(rows: Sequence[Mapping[str, Any]], kind: str) -> dict[int, float]:
    """Mean loss over seeds of a kind, by number of steps."""
    depths = sorted({row["steps"] for row in rows if row["kind"] == kind})
    of = lambda depth: [row["loss"] for row in rows if (row["kind"], row["steps"]) == (kind, depth)]
    return {depth: statistics.fmean(of(depth)) for depth in depths}


def result_of(
    rows: Sequence[Mapping[str, Any]], layers: int, about: Sequence[str] = (), folder: Path = Path()
) -> Result:
    """Perplexities by depth, and marks that were written before the runs.

    **Arguments:** `rows`, of `records`; `layers`, L; `about`, what else is to be told; `folder`, where the page goes.
    """
    depths = sorted({row["steps"] for row in rows})
    losses = {kind: means(rows, kind) for kind in NAMES if means(rows, kind)}
    cell = lambda kind, depth: f"{math.exp(losses[kind][depth]):.2f}" if depth in losses[kind] else "–"
    table = Table(
        "Perplexity of the validation split, by number of steps",
        ("model", *map(str, depths)),
        tuple((NAMES[kind], *(cell(kind, depth) for depth in depths)) for kind in losses),
    )
    marks = []
    for depth in depths:
        most = SAME if depth == layers else NEAR
        over = math.expm1(losses["elastic"][depth] - losses["dedicated"][depth])
        name = "the original" if depth == layers else f"a model of {depth} layers"
        mark = f"at {depth} steps at most {100 * most:g} % above {name}"
        marks.append((mark, f"{100 * over:+.2f} %".replace("-", "−"), "holds" if over <= most else "fails"))
    hold = sum(mark[-1] == "holds" for mark in marks)
    headline = (
        f"{hold} of {len(marks)} marks hold for a lifted model of {layers} layers, fine-tuned once at all depths."
    )
    judged = Table("Marks", ("mark", "found", "verdict"), tuple(marks))
    return Result("lift", "From lifted to elastic", (headline, *about), (judged, table), document=rows, folder=folder)


def about(found: Mapping[str, Any], arguments: Arguments) -> str:
    """What was trained on what, in one paragraph."""
    config, corpus = found["models"][0]["config"], found["corpus"]
    m, t = config["model"], config["trainer"]
    tokens = t["batch_size"] * m["context"]
    return (
        f"{corpus['name']}: {corpus['train_tokens']:,} training tokens of {m['vocabulary']:,} kinds. Width "
        f"{m['width']}, {m['heads']} heads, context {m['context']}. Pretraining: {arguments.pretraining:,} updates of "
        f"{tokens:,} tokens; each fine-tuning: {arguments.finetuning:,}. Means over {len(arguments.seeds)} seeds."
    )
