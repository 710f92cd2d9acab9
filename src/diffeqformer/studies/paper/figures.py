"""The figures of `reproduce paper`: the effects of an item's claims, and its own figures in the paper's layout.

An item's own figures are functions `(runs, models) -> figures of the page`, none where nothing is finished yet. Where
not said otherwise, what is random in them is of one seed, the first.
"""

import math
from collections.abc import Mapping, Sequence
from textwrap import fill

import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import FixedLocator, Locator, MaxNLocator, NullLocator

from diffeqformer.analysis.clusters import simulate
from diffeqformer.analysis.lyapunov import pairwise
from diffeqformer.errors import BadInput
from diffeqformer.interop.comparing import compare_runs
from diffeqformer.report.figures import VERDICTS, WIDE, drawing, log_axis, look
from diffeqformer.report.page import Figure, both_widths, visible
from diffeqformer.report.run_figures import loss_curves
from diffeqformer.report.text import finite, join, signed
from diffeqformer.studies.clusters_figures import cloud_of, trajectories
from diffeqformer.studies.compare import accuracies, findings
from diffeqformer.studies.compare_figures import task_figure
from diffeqformer.studies.induction_figures import induction_maps, induction_scatter
from diffeqformer.studies.lyapunov_figures import shaded_text
from diffeqformer.studies.paper.adaptation import adapted_runs
from diffeqformer.studies.paper.claims import Finished, Verdict
from diffeqformer.studies.paper.measures import TASKS, grown, heads_of, planned_memory, spectra_of
from diffeqformer.studies.paper.runs import BATCHES, Runs
from diffeqformer.studies.paper.tables import BATCH_SIZES
from diffeqformer.studies.reproduce import reproduce_adapt_figures as adapt
from diffeqformer.studies.reproduce.reproduce_adapt import records
from diffeqformer.studies.spectra_figures import real_parts

Names = tuple[str, ...]

LINEAR = 0.1
"""Effects of at most this size are drawn on a linear part of the axis."""
SHADED = 64
"""Tokens of the text that is shaded."""
DRAWN = 1
"""Seed of the particles that are drawn: the first system of seed 0 gathers least of 20, that of seed 1 as most do."""


def effects(rows: Sequence[tuple[str, Verdict]], *, width: float = WIDE) -> Drawing:
    """Draw every measured claim as a row: its seeds, mean and interval, on an axis that is linear near zero."""
    line, across = (44, 70) if width >= WIDE else (24, 34)
    names = [fill(f"{claim} ({verdict.word})", line) for claim, verdict in rows]
    heights = [0.14 + 0.125 * (name.count("\n") + 1) for name in names]  # in inches: lines of 7 points, and a gap
    places = np.cumsum(heights) - np.array(heights) / 2
    with drawing(width, sum(heights) + 1.2) as (figure, grid):
        axes = grid[0, 0]
        # The first file saved fixes the axes' place, and letters in another format are some per cent wider.
        figure.set_layout_engine("constrained", w_pad=0.15)
        axes.set_xscale("symlog", linthresh=LINEAR, linscale=0.5)
        for place, (_, verdict) in zip(places, rows, strict=True):
            colour = VERDICTS[verdict.word]
            axes.plot(
                list(verdict.effects.values()), np.full(len(verdict.effects), place), "|", color=colour, markersize=7
            )
            axes.plot([verdict.mean], [place], "o", color=colour, markersize=5)
            axes.plot([verdict.low, verdict.high], [place, place], "-", color=colour)
        axes.axvline(0, color="#888888", linewidth=0.8)
        axes.xaxis.set_major_locator(_ticks(axes, 4.5 / across))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_yticks(places, names)
        axes.tick_params(axis="y", labelsize=7)
        axes.tick_params(axis="x", top=True, labeltop=True)
        said = f"effect, in the claim's unit; linear up to ±{LINEAR:g}, logarithmic beyond"
        axes.set(ylim=(sum(heights), 0), xlabel=fill(said, across))
    return figure


def _ticks(axes: Axes, least: float) -> Locator:
    """Return round ticks for the x axis as it is drawn, beyond its linear part too, so that sizes can be read there.

    **Arguments:** `least`, how far apart ticks are at least, as a part of the axis.
    """
    low, high = axes.get_xlim()
    if max(-low, high) <= LINEAR:
        return MaxNLocator(4)
    place = axes.transData + axes.transAxes.inverted()
    sizes = [LINEAR * size * 10**power for size in (1, 5, 2) for power in range(6)]
    kept: dict[float, float] = {}
    # In order of preference, zero and powers of ten first: a tick too near one that is kept is left out.
    for tick in (0.0, *(sign * size for size in sizes for sign in (-1, 1))):
        where = place.transform((tick, 0.0))[0]
        if low <= tick <= high and all(abs(where - other) >= least for other in kept.values()):
            kept[tick] = where
    return FixedLocator(sorted(kept))


def _there(runs: Runs, names: Names) -> dict[str, Finished]:
    """Return those of the models that are trained with the first seed."""
    found = {name: runs.trained(name, runs.arguments.seeds[0]) for name in names}
    return {name: one for name, one in found.items() if one is not None}


def _seed(runs: Runs) -> str:
    return f"with seed {runs.arguments.seeds[0]}"


def curves(runs: Runs, names: Names) -> list[Figure]:
    """Draw losses over training."""
    there = _there(runs, names)
    if not there:
        return []
    models = [{**one.entry, "name": name} for name, one in there.items()]
    ends = join([f"{one.entry['validation']['loss']:.3f} in {name}" for name, one in there.items()])
    said = (
        f"Validation loss on the whole split is {ends}, in nats per token, {_seed(runs)}. Lines: training loss; "
        f"points: validation loss on {BATCHES} batches."
    )
    if missing := [name for name in names if name not in there]:
        said += f" Not among these runs: {join(missing)}."
    return [both_widths(f"curves-{names[0]}", said, loss_curves, models)]


def sizes(runs: Runs, names: Names) -> list[Figure]:
    """Draw quality, parameters and memory against d_emb. Throughput is in the table `costs`, measured in turns: that of
    runs depends on what else was running."""
    there = _there(runs, names)
    if len(there) < len(names):  # a line through some of the sizes would be taken for one through all
        return []
    d_emb = [float(one.entry["config"]["model"]["weights"]["d_emb"]) for one in there.values()]
    several = [[one for seed in runs.arguments.seeds if (one := runs.trained(name, seed))] for name in there]
    losses = [[one.entry["validation"]["loss"] for one in seeds] for seeds in several]
    planned = lambda one, size: (planned_memory(one.config, size) or math.nan) / 1e6
    panels = {
        "loss (nats per token)": {"": losses},
        "parameters stored (millions)": {"": [[one.entry["parameters"]["stored"] / 1e6] for one in there.values()]},
        "memory of an update (MB)": {
            f"{size} sequences": [[planned(one, size)] for one in there.values()] for size in BATCH_SIZES
        },
    }
    best = min(range(len(losses)), key=lambda place: np.mean(losses[place]))
    said = (
        f"d_emb {d_emb[best]:g} has the lowest validation loss, {np.mean(losses[best]):.3f} nats per token. Against "
        "d_emb: validation loss, stored parameters, and the memory of an update as compiled. Points: seeds."
    )
    return [both_widths(f"sizes-{names[0]}", said, against, "d_emb", d_emb, panels)]


def against(
    label: str, places: Sequence[float], panels: Mapping[str, Mapping[str, Sequence[Sequence[float]]]], *,
    width: float = WIDE,
) -> Drawing:  # fmt: skip
    """Draw panels against a size, on a logarithmic axis: each line, by name, has all seeds' numbers at every place."""
    across = 1 if width < WIDE else 2
    down = -(-len(panels) // across)
    with drawing(width, 2.4 * down, down, across, panels=len(panels)) as (figure, grid):
        for axes, (quantity, lines) in zip(grid.flat, panels.items(), strict=False):
            for index, (name, values) in enumerate(lines.items()):
                axes.plot(places, [np.mean(seeds) for seeds in values], label=name, **look(index))
                for place, seeds in zip(places, values, strict=True):
                    axes.plot([place] * len(seeds), seeds, linestyle="", **look(index, markersize=3))
            log_axis(axes, "x", places)
            axes.set(xlabel=label, ylabel=quantity)
            if len(lines) > 1:
                axes.legend()
    return figure


def spectra(runs: Runs, names: Names) -> list[Figure]:
    """Draw a model's eigenvalues at the start, in the middle and at the end of training."""
    figures = []
    for name, one in _there(runs, names).items():
        moments = [(f"{name}, update {step}", found) for step, found in spectra_of(one).items()]
        for pair in ("QK", "OV", "FF"):
            ratio = math.exp(grown(moments[-1][1], pair))
            said = (
                f"In {name}, {_seed(runs)}, the spectral radius of {pair} in the last third of depth is in the "
                f"end {ratio:.2f} times that in the first. Real parts of its eigenvalues over depth, in the course of "
                "training."
            )
            figures.append(both_widths(f"{name}-{pair.lower()}", said, real_parts, moments, pair))
    return figures


def words(runs: Runs, names: Names) -> list[Figure]:
    """Shade the tokens of a text by the exponents of its last output, as the paper does."""
    figures = []
    for name, one in _there(runs, names).items():
        opened = one.open()
        ids = np.asarray(opened.tokens.validation[:SHADED], np.int32)
        tokens = [visible(opened.tokens.tokenizer.decode([int(token)], skip_special_tokens=False)) for token in ids]
        scores = pairwise(opened.model, jnp.asarray(ids), (SHADED - 1,)).leading[0]
        said = (
            f"In {name}, {_seed(runs)}: the first {SHADED} tokens of the validation split, shaded by their pairwise "
            "exponents for the output at the last one, whose own sets no scale: the darker, the larger."
        )
        figures.append(both_widths(f"words-{name}", said, shaded_text, tokens, scores))
    return figures


def induction(runs: Runs, names: Names) -> list[Figure]:
    """Draw what heads do on repeated sequences, and what their spectra say."""
    figures = []
    for name, one in _there(runs, names).items():
        found = heads_of(one, runs.arguments.seeds[0])
        best, rho = found.behaviours["prefix matching"].max(), found.inference.rho
        own = f"{name}, {_seed(runs)}"
        heads = f"{own}: prefix matching of the best head is {best:.2f}. Every head at every step, and its spectra."
        ranked = f"have a rank correlation of {signed(rho, 2)}" if finite(rho) else "cannot be ranked"
        test = (
            f"{own}: over heads, prefix matching and positive eigenvalues of both pairs {ranked}. What heads do "
            "against their spectra."
        )
        figures += [
            both_widths(f"heads-{name}", heads, induction_maps, found),
            both_widths(f"heads-test-{name}", test, induction_scatter, found),
        ]
    return figures


def particles(runs: Runs, names: Names) -> list[Figure]:
    """Draw where particles of one system go if weights are shared, and if they grow with depth; tell the median of all
    systems, since systems differ by more than orders of growth do."""
    moved = [simulate("particles", order, seed=DRAWN) for order in (0, 1, 4)]
    clouds = [cloud_of(one, 0.1) for one in moved]
    medians = [f"{np.median(one.measures.clusters(0.1, of='now')[-1]):g}" for one in moved]
    said = (
        f"{'; '.join(cloud.title for cloud in clouds)} at the end of the paths (from ring to dot) of 40 particles. "
        f"Over 20 such systems, of which this is the first, the medians are {join(medians)} clusters. "
        "f is the factor by which weights grow, τ the time from 0 at the start to 1 at the end. Particles of one "
        "colour end in one cluster: 10 % of the mean distance, or less, joins them. Dark ones end alone, or in one of "
        "more clusters than there are colours."
    )
    return [both_widths("particles", said, trajectories, clouds)]


def adaptation(runs: Runs, names: Names) -> list[Figure]:
    """Draw fine-tuning at other depths, of all seeds that are finished."""
    found = (adapted_runs(runs.folder, seed, runs.arguments.other) for seed in runs.arguments.seeds)
    rows = records([one for one in found if one is not None])
    systems = adapt.systems_of(rows)
    return [
        both_widths(f"adaptation-{number}", said, adapt.adaptation, rows, direction, systems)
        for number, direction in enumerate(sorted({row["direction"] for row in rows}))
        for said in (" ".join(adapt.findings(rows, [direction])[-len(adapt.TUNED) :]),)
    ]


def tasks(runs: Runs, names: Names) -> list[Figure]:
    """Draw accuracies on tasks that both models were evaluated on."""
    there = _there(runs, names)
    if len(there) < 2:
        return []
    try:
        compared = compare_runs(*(one.config.run for one in there.values()))
    except BadInput:
        return []
    *_, found = ("", *findings(compared))  # the last, if there is one
    said = f"{found} Accuracies with standard errors, and differences with 95 % intervals over items."
    there = {row.task for row in compared.rows}
    if lacking := [name for name in TASKS if name not in there]:
        said += f" Not evaluated here: {join(lacking)}."
    return [both_widths("tasks", said.strip(), task_figure, compared)] if accuracies(compared) else []
