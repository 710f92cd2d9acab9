"""`reproduce lift`: a pretrained table of layers, lifted and fine-tuned for a few more tokens, at every depth.

A GPT or a Llama of L layers is pretrained, lifted to knots, and fine-tuned once at five drawn depths with itself as the
frozen teacher. It is compared with a model of each depth with the whole budget, and, with the same few tokens each,
with models of one depth that begin from the pretrained layers: some left out, each repeated, the whole stacked, or
those of the lifted model; with two that go on with layers left out, at random and by how little the loss needs them;
and with a table for each depth, all trained in every update.
"""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from diffeqformer.config import Config, DataConfig, DepthConfig, read_shipped, with_values
from diffeqformer.config.bounds import INT32, MOST_STEPS, UINT32, require_once, setting
from diffeqformer.plain import Document, Values
from diffeqformer.progress import Progress
from diffeqformer.report.table import Table
from diffeqformer.report.text import MISSING, finite, signed
from diffeqformer.studies.inputs import Files, Folder, Seeds, folder_for
from diffeqformer.studies.reproduce.experiments import listed, on_text, require_own, train_all, with_length
from diffeqformer.studies.study import Result

if TYPE_CHECKING:
    from diffeqformer.runs.opening import Run
    from diffeqformer.runs.trainer import TrainResult

NEAR, SAME = 0.02, 0.005
"""Marks: how far perplexity may be above a model of that depth with the whole budget, and at L above the original."""
DISTILL = 0.5
"""The teacher's share of the loss in fine-tuning at several depths."""
RATE = 0.3
"""Learning rate of fine-tuning, as a fraction of pretraining's peak; not tuned."""
Rival = Literal["alone", "dropped", "repeated", "stacked", "layerdrop", "kept", "levels"]
NAMES = {
    "dedicated": "a model of that depth, whole budget",
    "lifted": "lifted, as it is",
    "elastic": "lifted, fine-tuned once at all depths",
    "alone": "lifted, fine-tuned at that depth alone",
    "dropped": "layers left out, fine-tuned",
    "repeated": "each layer repeated, fine-tuned",
    "stacked": "layers stacked, fine-tuned",
    "layerdrop": "layers left out at random, fine-tuned once at all depths",
    "kept": "layers left out by their loss, fine-tuned once at all depths",
    "levels": "a table for each depth, fine-tuned together, each on all tokens",
}
"""The kinds of records, in order, and their names in words."""


@dataclass(frozen=True)
class Arguments:
    """Lift a pretrained model and fine-tune it for a fraction of its tokens; compare at five depths.

    Runs that are finished are kept when it is started again, and runs that were stopped go on.

    Example: diffeqformer reproduce lift --family llama --layers 12
    """

    family: Literal["gpt", "llama"] = "gpt"
    """Blocks of the models that are pretrained and lifted."""
    layers: int = setting(6, least=4, most=MOST_STEPS // 2)
    """Layers of the pretrained model, L."""
    to: Folder = "runs/lift"
    """Folder of all runs and of the page, which is in a folder of the family's name and L there."""
    seeds: Seeds = setting((0,), least=0, most=UINT32)
    """Everything is trained once with each."""
    pretraining: int = setting(5000, least=1, most=INT32)
    """Updates of pretraining, 2,048 tokens each."""
    finetuning: int = setting(250, least=1, most=INT32)
    """Updates of each fine-tuning."""
    rivals: tuple[Rival, ...] = ("alone", "dropped", "repeated", "stacked", "layerdrop", "kept", "levels")
    """Other models to fine-tune, at one depth each except the last three."""
    list: bool = False
    """Train nothing: list the runs, those that are finished, and how long the rest takes."""
    data: Files = ()
    """Text files or globs; the source of Python's standard library if not given."""
    cache: str = DataConfig.cache
    """Folder of packed tokens."""

    @property
    def depths(self) -> tuple[int, ...]:
        """L/2, 2L/3, L, 4L/3 and 2L, rounded."""
        return tuple(round(share * self.layers) for share in (1 / 2, 2 / 3, 1, 4 / 3, 2))


def study(arguments: Arguments, progress: Progress) -> Result:
    """Train what is missing, and compare over all seeds."""
    require_once("--seeds", arguments.seeds)
    require_once("--rivals", arguments.rivals)
    folder = folder_for("lift", arguments.to) / f"{arguments.family}-{arguments.layers}"
    if arguments.list:
        runs = ((NAMES[run.kind], folder / f"seed-{seed}" / run.name, _known(arguments, run, seed),
                 statistics.fmean(run.depths))
                for seed in arguments.seeds for run in planned(arguments))  # fmt: skip
        return listed("lift", "From lifted to elastic", runs, folder)
    require_own(
        _dedicated(arguments, run, seed, folder / f"seed-{seed}")
        for seed in arguments.seeds for run in planned(arguments) if run.kind == "dedicated"
    )  # fmt: skip
    found = [reproduce(arguments, seed, folder / f"seed-{seed}", progress) for seed in arguments.seeds]
    return result_of(records(found), arguments.layers, [about(found[0], arguments)], folder)


def reproduce(arguments: Arguments, seed: int, folder: Path, progress: Progress) -> Document:
    """Train all runs of one seed as `train_all` does, with readings of each model and of the original just lifted."""
    import jax

    from diffeqformer.model.lift import aligned, lift
    from diffeqformer.runs.readings import at_depths_of

    def read(result: "TrainResult", role: Document) -> Document:
        found = {"readings": at_depths_of(result, role["depths"], progress)}
        if role["kind"] != "dedicated" or role["depths"] != [arguments.layers]:
            return found
        lifted = lift(aligned(result.model), key=jax.random.key(seed)).model
        own = replace(result, model=lifted, config=replace(result.config, model=lifted.config))
        return {**found, "lifted": at_depths_of(own, arguments.depths, progress)}

    runs, count = _runs(arguments, seed, folder, progress), len([*planned(arguments)])
    return train_all("From lifted to elastic", runs, count, folder, progress, read)


class Planned(NamedTuple):
    """A run of one seed."""

    kind: str
    depths: tuple[int, ...]
    rows: tuple[int, ...] | None = None
    """The layers, of the L pretrained ones, that it begins with, if it begins with a choice of them."""

    @property
    def name(self) -> str:
        """Name of the run's folder."""
        return f"{self.kind}-{self.depths[0]}" if len(self.depths) == 1 else self.kind


def planned(arguments: Arguments) -> Iterator[Planned]:
    """Yield all runs of one seed, in order: first the one to lift, then a model of each depth with the whole budget."""
    layers, rivals = arguments.layers, arguments.rivals
    others = [depth for depth in arguments.depths if depth != layers]
    yield from (Planned("dedicated", (depth,)) for depth in (layers, *others))
    yield Planned("elastic", arguments.depths)
    fewer = tuple(depth for depth in arguments.depths if depth <= layers)
    yield from (Planned(kind, fewer) for kind in ("layerdrop", "kept") if kind in rivals)
    if "levels" in rivals:
        yield Planned("levels", arguments.depths)
    for depth in others:
        # For each new step, the layer that applies at its middle.
        spread = tuple(int((2 * row + 1) * layers / (2 * depth)) for row in range(depth))
        starts: dict[str, tuple[int, ...] | None] = {"alone": None}
        if depth < layers:
            starts["dropped"] = spread
        else:
            starts |= {"repeated": spread, "stacked": tuple(row % layers for row in range(depth))}
        yield from (Planned(kind, (depth,), starts[kind]) for kind in rivals if kind in starts)


def _vanilla(arguments: Arguments, updates: int, seed: int) -> Config:
    """Return the config of a pretrained model, trained for this many updates."""
    config = with_length(read_shipped(f"quickstart-{arguments.family}"), updates, seed)
    return on_text(config, arguments.data, arguments.cache)


def _dedicated(arguments: Arguments, run: Planned, seed: int, folder: Path) -> Config:
    """Return the config of a run with the whole budget."""
    own = {"run": str(folder / run.name), "model.steps": run.depths[0]}
    return with_values(_vanilla(arguments, arguments.pretraining, seed), own)


def _known(arguments: Arguments, run: Planned, seed: int) -> Values:
    """Return the settings of a run's text and length, which are known before there is a base to fine-tune from."""
    from diffeqformer.runs.folder import settings_of

    updates = arguments.pretraining if run.kind == "dedicated" else arguments.finetuning
    settings = settings_of(_vanilla(arguments, updates, seed))
    return {name: value for name, value in settings.items() if name.startswith(("data.", "trainer."))}


def _runs(arguments: Arguments, seed: int, folder: Path, progress: Progress) -> Iterator[tuple[Config, Document]]:
    """Yield the config of each run, and its role; those of fine-tuning open the pretrained run, trained by then."""
    from diffeqformer.data.cache import prepare
    from diffeqformer.model.lift import left_out, levelled, of_rows
    from diffeqformer.runs.finetune import finetune_config
    from diffeqformer.runs.lifting import lift_run, require_made_of, without_layers, write_derived
    from diffeqformer.runs.opening import load_run

    vanilla = _vanilla(arguments, arguments.pretraining, seed)
    optimizer = replace(vanilla.optimizer, learning_rate=RATE * vanilla.optimizer.learning_rate)
    trainer = _vanilla(arguments, arguments.finetuning, seed).trainer
    original = cache(lambda: load_run(folder / f"dedicated-{arguments.layers}", progress=progress))
    # The order of layers, which takes L (L + 1) / 2 passes, serves two runs.
    kept = cache(lambda: without_layers(original().model, prepare(vanilla.data, progress).train, progress))

    def base_of(run: Planned) -> "Run":
        """Open the run to fine-tune from, made from the pretrained run if it does not exist."""
        from diffeqformer.runs.folder import CONFIG

        name = f"from-{run.name}" if run.rows or run.kind in ("layerdrop", "kept", "levels") else "lifted"
        if (folder / name / CONFIG).is_file():
            require_made_of(folder / name, original())
            return load_run(folder / name)
        if name == "lifted":
            return lift_run(original(), folder / name, align=True, progress=progress)[0]
        model = original().model
        if run.kind == "kept":
            made = kept().model
        elif run.kind == "levels":
            made = levelled(model, run.depths, kept().order)
        else:
            made = of_rows(model, run.rows) if run.rows else left_out(model)
        return write_derived(original(), folder / name, made)

    for run in planned(arguments):
        role, to = {"kind": run.kind, "depths": list(run.depths)}, str(folder / run.name)
        if run.kind == "dedicated":
            yield _dedicated(arguments, run, seed, folder), role
            continue
        elastic = DepthConfig(run.depths, together="rows", distill=DISTILL, teacher="base")
        depth = {
            "elastic": elastic,
            "kept": elastic,
            "layerdrop": replace(elastic, jitter=1.0),  # which layers are left out
            "levels": DepthConfig(run.depths[-1:], always=run.depths[:-1]),
        }.get(run.kind)
        method = {"method": "continuous", "depth": depth} if depth else {"method": "full", "steps": run.depths[0]}
        yield finetune_config(base_of(run), to, optimizer=optimizer, trainer=trainer, **method), role  # pyright: ignore


def records(found: Sequence[Values]) -> list[Document]:
    """Convert the documents of `reproduce`, one per seed, to rows: `kind`, `steps`, `seed`, `loss` (nats)."""
    return [
        {"kind": kind, "steps": point["steps"], "seed": entry["config"]["trainer"]["seed"], "loss": point["loss"]}
        for one in found
        for entry in one["models"]
        for kind, points in ((entry["role"]["kind"], entry["readings"]), ("lifted", entry.get("lifted", ())))
        for point in points
    ]


def means(rows: Sequence[Values], kind: str) -> dict[int, float]:
    """Return the mean loss over seeds of a kind, by number of steps."""
    depths = sorted({row["steps"] for row in rows if row["kind"] == kind})
    of = lambda depth: [row["loss"] for row in rows if (row["kind"], row["steps"]) == (kind, depth)]
    return {depth: statistics.fmean(losses) for depth in depths if all(map(finite, losses := of(depth)))}


def result_of(rows: Sequence[Values], layers: int, about: Sequence[str] = (), folder: Path = Path()) -> Result:
    """Report perplexities by depth, and the marks set before the runs; `about` has further sentences."""
    depths = sorted({row["steps"] for row in rows})
    losses = {kind: found for kind in NAMES if (found := means(rows, kind))}
    cell = lambda kind, depth: f"{math.exp(losses[kind][depth]):.2f}" if depth in losses[kind] else MISSING
    table = Table(
        "Validation perplexity by number of steps",
        ("model", *map(str, depths)),
        tuple((NAMES[kind], *(cell(kind, depth) for depth in depths)) for kind in losses),
    )
    marks = []
    for depth in depths:
        most = SAME if depth == layers else NEAR
        name = "the original" if depth == layers else f"a model of {depth} layers"
        mark = f"at {depth} steps at most {100 * most:g} % above {name}"
        own, alone = (losses.get(kind, {}).get(depth) for kind in ("elastic", "dedicated"))
        if own is None or alone is None:  # not finite with every seed
            marks.append((mark, MISSING, "untested"))
            continue
        over = math.expm1(own - alone)
        marks.append((mark, f"{signed(100 * over, 2)} %", "holds" if over <= most else "fails"))
    hold, lifted = sum(mark[-1] == "holds" for mark in marks), f"a lifted model of {layers} layers"
    headline = f"{hold} of {len(marks)} marks hold for {lifted}, fine-tuned once at all depths."
    judged = Table("Marks", ("mark", "found", "verdict"), tuple(marks))
    return Result("lift", "From lifted to elastic", (headline, *about), (judged, table), document=rows, folder=folder)


def about(found: Values, arguments: Arguments) -> str:
    """Describe in one paragraph what was trained on what."""
    config, corpus = found["models"][0]["config"], found["corpus"]
    m, t = config["model"], config["trainer"]
    tokens, seeds = t["batch_size"] * m["context"], len(arguments.seeds)
    trained = f"Means over {seeds} seeds." if seeds > 1 else "One seed, so a small difference may be due to chance."
    return (
        f"{corpus['name']}: {corpus['train_tokens']:,} training tokens, vocabulary of {m['vocabulary']:,}. Width "
        f"{m['width']}, {m['heads']} heads, context {m['context']}. Pretraining: {arguments.pretraining:,} updates of "
        f"{tokens:,} tokens; each fine-tuning: {arguments.finetuning:,}. {trained}"
    )
