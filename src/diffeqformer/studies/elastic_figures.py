"""Records of `reproduce elastic` as a figure, a table and sentences."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure as Drawing

from diffeqformer.report.figures import WIDE, color, drawing, key, legend, look, perplexity_scale, steps_axis
from diffeqformer.report.page import both_widths
from diffeqformer.report.table import Table
from diffeqformer.report.text import MISSING, compact, finite, join, perplexity
from diffeqformer.studies.adapt_figures import Record, mean_and_spread, with_spread
from diffeqformer.studies.study import Result

KINDS = {
    "elastic": "one elastic checkpoint, read at every depth",
    "dedicated": "DiffEqFormer, trained at that depth alone",
    "vanilla": "GPT of that depth",
    "fixed": "DiffEqFormer of one depth, read elsewhere",
}
"""The kinds of records, in order, and how they are written."""
MOST = 3
"""The axis ends at as many times the highest perplexity of a model at a depth that it was trained at."""


COLUMNS = ("steps", "elastic", "rise", "DiffEqFormer", "against it", "GPT", "against it", "fixed depth, read here")


def result_of(records: Sequence[Record], about: Sequence[str] = (), folder: Path = Path()) -> Result:
    """Sentences computed from the records of `studies.elastic`, the figure and the table.

    **Arguments:** `about`, what else is to be told, such as sizes and texts; `folder`, where the page goes.
    """
    caption = (
        "Validation perplexity against the number of steps run, without any fine-tuning. Hollow marks: a model of its "
        "own for each depth, trained with the same compute."
    )
    names = ("steps", "seed", "updates", "compute", "loss", "perplexity")
    arrays = {name: np.asarray([np.nan if r[name] is None else r[name] for r in records]) for name in names}
    return Result(
        "elastic", "One checkpoint, every depth", (*findings(records), *about, _terms(records)),
        (Table("Perplexity at every depth", COLUMNS, rows(records)),),
        (both_widths("every-depth", caption, every_depth, records),),
        arrays={"kind": np.asarray([r["kind"] for r in records]), **arrays}, document=list(records), folder=folder,
    )  # fmt: skip


def means(records: Sequence[Record], kind: str) -> dict[int, float]:
    """Mean perplexity over seeds by number of steps, where any is finite."""
    found = {}
    for steps in sorted({r["steps"] for r in records if r["kind"] == kind}):
        mean = mean_and_spread(values(records, kind, steps))
        if mean is not None:
            found[steps] = mean[0]
    return found


def values(records: Sequence[Record], kind: str, steps: int) -> list[Any]:
    """The perplexities of all seeds."""
    return [r["perplexity"] for r in records if (r["kind"], r["steps"]) == (kind, steps)]


def every_depth(records: Sequence[Record], *, width: float = WIDE) -> Drawing:
    """Perplexity against the number of steps: lines for what one checkpoint reads, hollow marks for dedicated models.

    Points are means over seeds, small ones seeds. Readings above `MOST` times what any trained depth has leave the top.
    """
    with drawing(width, 4.0 if width >= 5 else 4.4) as (figure, axes):
        axis = axes[0, 0]
        trained = [y for kind in ("elastic", "dedicated", "vanilla") for y in means(records, kind).values()]
        most = MOST * max(trained, default=1.0)
        handles, names, drawn = [], [], []
        for index, (kind, name) in enumerate(KINDS.items()):
            curve = means(records, kind)
            if not curve:
                continue
            if kind == "fixed":  # its own depth is one of the dedicated ones
                curve |= {s: y for s, y in means(records, "dedicated").items() if s in _middle(records)}
            axis.plot(*zip(*sorted(curve.items()), strict=True), **_look(index, kind))
            for steps in curve:
                seeds = [y for y in values(records, kind, steps) if finite(y)]
                if len(seeds) > 1:
                    axis.plot([steps] * len(seeds), seeds, linestyle="None", marker=".", color=color(index), alpha=0.6)
            drawn += [min(y, most) for y in curve.values()]
            handles.append(key(**_look(index, kind)))
            names.append(name)
        steps_axis(axis, {r["steps"] for r in records}, _middle(records), width, logarithmic=True)
        perplexity_scale(axis, drawn)
        if any(y > most for y in means(records, "fixed").values()):
            axis.set_ylim(top=most)
        axis.set_ylabel("validation perplexity")
        legend(figure, handles, names, width)
    return figure


def _middle(records: Sequence[Record]) -> set[int]:
    """The depth of the dedicated model that was read elsewhere: the only reference that has no reading as fixed."""
    fixed = {r["steps"] for r in records if r["kind"] == "fixed"}
    elastic = {r["steps"] for r in records if r["kind"] == "elastic"}
    return elastic - fixed if fixed else set()


def _look(index: int, kind: str) -> dict[str, Any]:
    """What one checkpoint reads is a line, what was trained for a depth a hollow mark."""
    if kind in ("elastic", "fixed"):
        return look(index, linestyle="--", markersize=4) if kind == "fixed" else look(index, zorder=3)
    return look(index, linestyle="None", markerfacecolor="none", markersize=7, markeredgewidth=1.4)


def findings(records: Sequence[Record]) -> list[str]:
    """How the elastic model stands against dedicated models, against GPTs, and against itself with fewer steps."""
    elastic, said = means(records, "elastic"), []
    for kind, name in (("dedicated", "a DiffEqFormer"), ("vanilla", "a GPT")):
        ratios = against(elastic, means(records, kind))
        if not ratios:
            continue
        worst = max(ratios, key=lambda steps: ratios[steps])
        better = [steps for steps, ratio in ratios.items() if ratio < 1]
        said.append(
            f"Against {name} trained at the same depth with the same compute, one elastic checkpoint is better at "
            f"{len(better)} of {len(ratios)} depths ({join([str(steps) for steps in ratios])}); the least favourable "
            f"is {worst} steps, where its perplexity is {_change(ratios[worst])}."
        )
    rises = rises_of(elastic)
    if rises:
        most = max(rises, key=lambda steps: rises[steps])
        lowest, highest = (perplexity(pick(elastic.values())) for pick in (min, max))
        said.append(
            f"From {min(elastic)} to {max(elastic)} steps its perplexity stays between {lowest} and {highest}; at "
            f"{most} steps, the least favourable, it is {_change(rises[most])} than the lowest at fewer."
        )
    return said


def against(elastic: Mapping[int, float], others: Mapping[int, float]) -> dict[int, float]:
    """Perplexity of the elastic model over that of another kind, at the depths that both have."""
    return {steps: elastic[steps] / others[steps] for steps in elastic if steps in others}


def rises_of(elastic: Mapping[int, float]) -> dict[int, float]:
    """Perplexity over the lowest at any smaller number of steps."""
    steps = sorted(elastic)
    return {step: elastic[step] / min(elastic[fewer] for fewer in steps[:i]) for i, step in enumerate(steps) if i}


def rows(records: Sequence[Record]) -> tuple[tuple[str, ...], ...]:
    """One row for each depth that the elastic model was read at; numbers are means and spreads over seeds."""
    elastic = means(records, "elastic")
    changes = {kind: against(elastic, means(records, kind)) for kind in ("dedicated", "vanilla")}
    columns: list[tuple[str, dict[int, float]]] = [("elastic", rises_of(elastic)), *changes.items()]

    def row(steps: int) -> tuple[str, ...]:
        cells = [(with_spread(values(records, kind, steps)), _change(ratio.get(steps))) for kind, ratio in columns]
        return (str(steps), *(cell for pair in cells for cell in pair), with_spread(values(records, "fixed", steps)))

    return tuple(map(row, elastic))


def _change(ratio: float | None) -> str:
    """A ratio as a change: `1.2 % higher`; a dash for `None`."""
    if ratio is None:
        return MISSING
    return f"{abs(ratio - 1):.1%} {'higher' if ratio >= 1 else 'lower'}".replace("%", " %")


def _terms(records: Sequence[Record]) -> str:
    compute = {kind: [r["compute"] for r in records if r["kind"] == kind] for kind in KINDS}
    updates = {r["steps"]: r["updates"] for r in records if r["kind"] == "dedicated"}
    seeds = len({r["seed"] for r in records if r["kind"] == "elastic"})
    once = "Each was trained once, so a small difference can be chance."
    spread = f"The elastic model was trained with {seeds} seeds; numbers are means and, after ±, standard deviations."
    amounts = join([f"{number:,} at {steps} steps" for steps, number in sorted(updates.items())])
    spent = compact(compute["elastic"][0]) if compute["elastic"] else MISSING
    own = next((f"{r['updates']:,}" for r in records if r["kind"] == "elastic"), MISSING)
    return (
        f"All spend the same compute, {spent} evaluations of the field for the tokens of an update. The elastic model "
        f"makes {own} updates of it, a dedicated model {amounts}. {spread if seeds > 1 else once} Rise: "
        "against the lowest perplexity of the elastic model at fewer steps."
    )
