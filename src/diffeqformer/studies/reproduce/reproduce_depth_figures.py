"""Records of `reproduce depth` as figures, tables and a judgement by rules written before the runs."""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure as Drawing

from diffeqformer.evaluation.accuracy import reach
from diffeqformer.plain import Values
from diffeqformer.report.figures import WIDE, color, drawing, is_narrow, legend, look, steps_axis
from diffeqformer.report.page import both_widths
from diffeqformer.report.table import Table
from diffeqformer.report.text import MISSING, finite, join, number, percent, signed, with_spread
from diffeqformer.studies.reproduce.experiments import Rates, rates_table
from diffeqformer.studies.reproduce.reproduce_depth import ALONE, FIRST_PART, SAME_COMPUTE, SHARED_FIRST
from diffeqformer.studies.study import Result

Record = Values
Row = tuple[str, str, str]
"""A criterion, what was found, and the verdict."""
NAMES = {
    "elastic": "elastic: one checkpoint",
    "gpt": "GPT of that depth",
    f"gpt{SAME_COMPUTE}": "GPT of that depth, same compute",
    "diffeqformer": "DiffEqFormer of that depth",
    f"diffeqformer{SAME_COMPUTE}": "DiffEqFormer of that depth, same compute",
    "layerdrop": "LayerDrop",
    "exits": "early exits, all depths from one pass",
    "landings": "early exits with last layers of their own",
    "loop": "LoopFormer-style",
    "shared": "shared weights",
    "nested": "nested layers, all depths in every update",
    "corrected": "elastic, corrected by the length of steps",
    "dyadic": "elastic, corrected, with dyadic steps",
    "sharing": "steps share weights, a third of the updates",
    "tables": "shared first, then a table for each of ten depths",
    "drawn": "elastic, drawn depths",
    "first-recipe": "the first elastic recipe",
}
"""The kinds of records, in order, and their names in words."""
RIGHT = 0.9
"""A difficulty is reached if at least this fraction of its answers is correct."""
DEEP, SHALLOW = 16, 4
GAIN, NEAR, RISE, ENERGY = 0.05, 0.02, 0.005, 0.2
"""Marks: the gain in perplexity of 16 steps over 4; its distance from the best model of that depth; its largest rise as
steps are added; and the fraction of the weights' energy that is change over depth."""


def result_of(
    records: Sequence[Record], about: Sequence[str] = (), folder: Path = Path(), rates: Rates | None = None
) -> Result:
    """Build figures, tables and sentences from the records of `reproduce_depth`.

    **Arguments:** `about`, further sentences; `rates`, searches for learning rates.
    """
    figures = [both_widths("depth-loss", caption_of(records), by_steps, records, "loss")]
    judged = [table] if (table := judgement(records)).rows else []
    losses = _table("Loss (nats) by number of steps", records, "loss")
    reaches = [_table("Most hops answered", records, "reach")] if puzzle(records) else []
    if puzzle(records):
        reached = f"The most hops up to which {percent(RIGHT)} of all answers are correct."
        figures.insert(0, both_widths("depth-reach", reached, by_steps, records, "reach"))
    names = ("steps", "seed", "updates", "compute", "loss", "perplexity", "energy")
    arrays = {name: np.asarray([np.nan if r[name] is None else r[name] for r in records]) for name in names}
    return Result(
        "depth", "Where depth pays", (headline(records), *about, _terms(records)),
        (*judged, *reaches, losses, *_equivalent(records), _compute(records),
         *([rates_table(rates, records[0]["seed"])] if rates else [])),
        tuple(figures),
        arrays={"kind": np.asarray([r["kind"] for r in records]), **arrays}, document=list(records), folder=folder,
    )  # fmt: skip


def caption_of(records: Sequence[Record]) -> str:
    """Write the caption, which says what is drawn."""
    said = "Validation loss against the number of steps run, without any fine-tuning. Lines: one checkpoint."
    said += " Hollow marks: a separate model for each depth." if any(r["kind"] in ALONE for r in records) else ""
    said += " Small dots are seeds." if len({r["seed"] for r in records}) > 1 else ""
    top = _frame(records)[1]
    beyond = lambda kind: [f"{number(y, 2)} at {n}" for n, y in means(records, kind).items() if y > top]
    above = "; ".join(f"{NAMES[kind]}, {join(read)}" for kind in kinds(records) if (read := beyond(kind)))
    return said + (f" Above the frame: {above}." if above else "")


def _frame(records: Sequence[Record]) -> tuple[float, float]:
    """Return the range of losses to draw: a reading far from the trained depths would hide the rest."""
    best = min(min(means(records, kind).values(), default=math.inf) for kind in kinds(records))
    seen = [y for kind in kinds(records) for steps, y in means(records, kind).items() if steps > 1 and finite(y)]
    top = min(max(seen, default=1.0), best + 1.5) * 1.02
    return best - 0.05 * (top - best), top


def puzzle(records: Sequence[Record]) -> bool:
    """Whether the task has answers of several difficulties."""
    return any(r["accuracy"] for r in records)


def reach_of(record: Record) -> float:
    """Return the largest difficulty up to which at least `RIGHT` of the answers are correct."""
    return float(reach(record["accuracy"], RIGHT))


def values(records: Sequence[Record], kind: str, what: str = "loss") -> dict[int, list[float]]:
    """Return the `loss` (nats) or `reach` of all seeds by number of steps, where finite."""
    found: dict[int, list[float]] = {}
    for r in sorted(records, key=lambda r: r["steps"]):
        value = reach_of(r) if what == "reach" else r["loss"]
        if r["kind"] == kind and finite(value):
            found.setdefault(r["steps"], []).append(float(value))
    return found


def means(records: Sequence[Record], kind: str, what: str = "loss") -> dict[int, float]:
    """Return means over seeds by number of steps; that of losses is infinite where one is not finite."""
    found = {steps: statistics.fmean(of) for steps, of in values(records, kind, what).items()}
    lost = {r["steps"]: math.inf for r in records if r["kind"] == kind and what == "loss" and not finite(r["loss"])}
    return dict(sorted((found | lost).items()))


def kinds(records: Sequence[Record]) -> list[str]:
    """List the kinds among the records, in order."""
    return [kind for kind in NAMES if any(r["kind"] == kind for r in records)]


def by_steps(records: Sequence[Record], what: str, *, width: float = WIDE) -> Drawing:
    """Draw loss or reach against the number of steps: lines for one checkpoint, hollow marks for one-depth models."""
    with drawing(width, 4.8 if is_narrow(width) else 4.0) as (figure, axes):
        axis, shown = axes[0, 0], []
        for index, kind in enumerate(kinds(records)):
            found = values(records, kind, what)
            own = _look(index, kind)
            axis.plot(*zip(*means(records, kind, what).items(), strict=True), **own)
            for steps, of in found.items():
                if len(of) > 1:
                    axis.plot([steps] * len(of), of, linestyle="None", marker=".", color=color(index), alpha=0.5)
            shown.append((own, NAMES[kind]))
        alone = {r["steps"] for r in records if r["kind"] in ALONE}
        steps_axis(axis, {r["steps"] for r in records}, alone, width, logarithmic=True)
        axis.set_ylabel("validation loss (nats)" if what == "loss" else "hops answered")
        axis.set_ylim(*(_frame(records) if what == "loss" else (0, max(1.0, axis.get_ylim()[1]))))
        legend(figure, shown, width)
    return figure


def _look(index: int, kind: str) -> dict[str, Any]:
    if kind.removesuffix(SAME_COMPUTE) not in ALONE:
        return look(index, zorder=3 if kind == "elastic" else 2)
    same = kind.endswith(SAME_COMPUTE)
    return look(index, linestyle="None", markerfacecolor="none", markersize=5 if same else 8, markeredgewidth=1.4)


def judgement(records: Sequence[Record]) -> Table:
    """Build the table of marks: each with what was found, and whether it holds."""
    criteria = (_reaches, _deeper, _near, _rises, _changes, _rivals)
    rows = tuple(row for criterion in criteria for row in criterion(records))
    return Table("Criteria set before the runs", ("criterion", "found", "verdict"), rows)


def _reaches(records: Sequence[Record]) -> Iterator[Row]:
    """Judge, for a puzzle, whether more steps answer more hops, and as many as models of that depth do."""
    if not puzzle(records) or len(elastic := means(records, "elastic", "reach")) < 2:
        return
    shallow, deep = (elastic.get(steps, math.nan) for steps in (SHALLOW // 2, DEEP // 2))
    found = f"{shallow:.1f} at {SHALLOW // 2}, {deep:.1f} at {DEEP // 2}"
    yield _row(f"{DEEP // 2} steps answer more hops than {SHALLOW // 2}", found, deep > shallow)
    if best := _of_one_depth(records, elastic, "reach", max):
        found = join([f"{elastic[n]:.1f} against {best[n]:.1f} at {n}" for n in best])
        yield _row("as many hops as models of that depth", found, all(elastic[n] >= best[n] for n in best))


def _of_one_depth(
    records: Sequence[Record], depths: Iterable[int], what: str, best: Callable[[Iterable[float]], float]
) -> dict[int, float]:
    """Return the value of the best model of one depth, at those of `depths` where there is one."""
    alone = [{n: y for n, y in means(records, kind, what).items() if finite(y)} for kind in ALONE]
    return {n: best(of[n] for of in alone if n in of) for n in depths if any(n in of for of in alone)}


def _deeper(records: Sequence[Record]) -> Iterator[Row]:
    elastic = [r for r in records if r["kind"] == "elastic"]
    deep, shallow = ({r["seed"]: r["loss"] for r in elastic if r["steps"] == steps} for steps in (DEEP, SHALLOW))
    mark = f"{DEEP} steps at least {percent(GAIN)} below {SHALLOW}, by more than two standard deviations"
    pairs = [(deep[seed], shallow[seed]) for seed in deep if seed in shallow]
    if not pairs:
        return
    found, holds = "not finite with each seed", False
    if all(map(finite, sum(pairs, ()))):
        gains = [below - above for below, above in pairs]
        gain, spread = statistics.fmean(gains), statistics.stdev(gains) if len(gains) > 1 else None
        # In the unit of what it is beside, per cent of perplexity; the mark is in nats.
        points = None if spread is None else statistics.stdev(100 * math.expm1(one) for one in gains)
        found = f"{_percent(gain)}{', one seed' if points is None else f' ± {points:.1f}'}"
        # False if the mean misses the mark; else, with one seed, None: there is no deviation to compare with.
        holds = math.exp(gain) <= 1 - GAIN and (None if spread is None else -gain > 2 * spread)
    yield _row(mark, found, holds)


def _near(records: Sequence[Record]) -> Iterator[Row]:
    elastic = means(records, "elastic")
    best = _of_one_depth(records, elastic, "loss", min)
    if gaps := {steps: elastic[steps] - best[steps] for steps in best}:
        found = join([f"{_percent(gap)} at {steps}" for steps, gap in gaps.items()])
        mark = f"within {percent(NEAR)} of the best model of that depth"
        yield _row(mark, found, math.exp(max(gaps.values())) <= 1 + NEAR)


def _rises(records: Sequence[Record]) -> Iterator[Row]:
    elastic = {steps: y for steps, y in means(records, "elastic").items() if steps <= 2 * DEEP}
    depths = sorted(elastic)
    if len(depths) < 2:
        return
    rises = {n: elastic[n] - min(elastic[m] for m in depths[:i]) for i, n in enumerate(depths) if i}
    worst = max(rises, key=lambda n: rises[n])
    mark = f"never rises by more than {100 * RISE:.1f} % up to {2 * DEEP} steps"
    yield _row(mark, f"{_percent(rises[worst])} at {worst}", math.exp(rises[worst]) <= 1 + RISE)


def _changes(records: Sequence[Record]) -> Iterator[Row]:
    if energies := {r["seed"]: r["energy"] for r in records if r["kind"] == "elastic"}:
        energy, mark = statistics.fmean(energies.values()), "of the weights' energy is change over depth"
        yield _row(f"at least {percent(ENERGY)} {mark}", percent(energy), energy >= ENERGY)


def _rivals(records: Sequence[Record]) -> Iterator[Row]:
    elastic = means(records, "elastic")
    no_rivals = {"elastic", FIRST_PART}
    for kind in (one for one in NAMES if one not in no_rivals and one.removesuffix(SAME_COMPUTE) not in ALONE):
        other = means(records, kind)
        both = [steps for steps in elastic if steps in other]
        if both:
            worse = [str(steps) for steps in both if elastic[steps] >= other[steps]]
            found = f"not at {join(worse)}" if worse else f"at all {len(both)} depths"
            yield _row(f"better than {NAMES[kind]} at every depth", found, not worse)


def _row(mark: str, found: str, holds: bool | None) -> Row:
    """Build a row of the table; `holds` is `None` for what one seed cannot settle."""
    return mark, found, {True: "holds", False: "fails", None: "untested"}[holds]


def _percent(nats: float) -> str:
    """Format a difference of losses as a change of perplexity."""
    return f"{signed(100 * math.expm1(nats), 1)} %" if finite(nats) else number(nats)


def equivalent_depths(records: Sequence[Record]) -> dict[int, float]:
    """Return, for each number of steps of the elastic model, the depth of the GPT that has the same loss.

    It is read on the line through the GPTs' losses over the logarithm of depth, as far as these fall; no depth is given
    beyond them. Source: arXiv:2604.21106, for models that repeat blocks.
    """
    gpt = means(records, "gpt")
    falling = [n for i, n in enumerate(gpt) if all(gpt[n] < gpt[m] for m in list(gpt)[:i])]
    if len(falling) < 2:
        return {}
    # Reversed, since `np.interp` needs the losses to rise.
    losses, depths = [gpt[n] for n in reversed(falling)], [math.log(n) for n in reversed(falling)]
    inside = {n: y for n, y in means(records, "elastic").items() if losses[0] <= y <= losses[-1]}
    return {n: math.exp(float(np.interp(y, losses, depths))) for n, y in inside.items()}


def exponent(records: Sequence[Record]) -> float | None:
    """Fit the slope of the logarithm of equivalent depth over that of the number of steps: 1 if a step is a layer."""
    found = equivalent_depths(records)
    return float(np.polyfit(np.log([*found]), np.log([*found.values()]), 1)[0]) if len(found) > 1 else None


def _equivalent(records: Sequence[Record]) -> list[Table]:
    found, slope = equivalent_depths(records), exponent(records)
    if slope is None:
        return []
    caption = f"Steps, and the depth of a GPT with the same loss, which grows as steps to the power {slope:.2f}"
    return [Table(caption, ("steps", "equivalent depth"), tuple((str(n), f"{d:.1f}") for n, d in found.items()))]


def headline(records: Sequence[Record]) -> str:
    """Say what the harshest reader would grant: where the elastic model stands, which criteria hold and which fail."""
    if not (judged := judgement(records).rows):
        best = min((r for r in records if finite(r["loss"])), key=lambda r: r["loss"], default=None)
        lowest = f"{best['loss']:.3f} nats, of {NAMES[best['kind']]} at {best['steps']} steps" if best else "not finite"
        return f"The lowest loss is {lowest}."
    said = _verdicts(judged)
    what = "reach" if puzzle(records) else "loss"
    elastic = means(records, "elastic", what)  # criteria are about it, so some are there
    if what == "reach":
        ends = join([f"{elastic[steps]:.1f} hops at {steps}" for steps in (2, 4, 8, 16) if steps in elastic])
        most = max(elastic, key=lambda steps: elastic[steps])
        return f"One checkpoint answers {ends} steps, most at {most}. {said}"
    best = min(elastic, key=lambda steps: elastic[steps])
    ends = join([f"{elastic[steps]:.3f} at {steps}" for steps in (1, 2, 4, 8, 16) if steps in elastic])
    flat = min(
        steps for steps in elastic if all(elastic[n] <= elastic[best] + RISE for n in elastic if steps <= n <= best)
    )
    lowest = f"lowest at {best}" + (f", from {flat} on within {RISE:g} nats of that" if flat < best else "")
    return f"One checkpoint has a loss of {ends} steps, {lowest}. {said}"


def _verdicts(rows: Sequence[Sequence[Any]]) -> str:
    """Say how many criteria hold, and which fail, with what was found."""
    of = lambda word: [row for row in rows if row[2] == word]
    said = [f"{len(of('holds'))} hold{'s' * (len(of('holds')) == 1)}"]
    if failed := of("fails"):
        why = "; ".join(f"{mark}: {found}" for mark, found, _ in failed)
        said.append(f"{len(failed)} fail{'s' * (len(failed) == 1)} ({why})")
    if untested := of("untested"):
        said.append(f"{len(untested)} {'is' if len(untested) == 1 else 'are'} untested")
    return f"Of {len(rows)} criteria set before the runs, {join(said)}."


def _table(caption: str, records: Sequence[Record], what: str) -> Table:
    """Build a table with a row per number of steps, a column per kind; means and standard deviations over seeds."""
    columns = kinds(records)
    write = lambda value: number(value, 1 if what == "reach" else 3)
    spread = lambda kind: {n: with_spread(of, write) for n, of in values(records, kind, what).items()}
    lost = lambda kind: {n: write(mean) for n, mean in means(records, kind, what).items() if not finite(mean)}
    cells = {kind: spread(kind) | lost(kind) for kind in columns}
    rows = [(str(n), *(cells[kind].get(n, MISSING) for kind in columns)) for n in sorted({r["steps"] for r in records})]
    return Table(caption, ("steps", *(NAMES[kind] for kind in columns)), tuple(rows))


def _compute(records: Sequence[Record]) -> Table:
    """Build the table of what each model cost, for one seed."""
    rows = {}
    for r in records:
        alone = r["kind"].removesuffix(SAME_COMPUTE) in ALONE
        name = f"{NAMES[r['kind']]}: {r['steps']}" if alone else NAMES[r["kind"]]
        rows[name] = (name, number(r["updates"], 0), number(r["compute"], 0))
    return Table("Updates and compute of one seed", ("model", "updates", "NFE"), tuple(rows.values()))


def _terms(records: Sequence[Record]) -> str:
    seeds = len({r["seed"] for r in records})
    same = (
        "; those called `same compute` see more or fewer, so that their NFE (evaluations of the field on the tokens of "
        "an update, summed over all updates) equals that of the elastic model"
        if any(r["kind"].endswith(SAME_COMPUTE) for r in records)
        else ""
    )
    freed = any(r["kind"] == SHARED_FIRST for r in records)
    again = ", one with tables of its own again from the first batch once it has them" if freed else ""
    of_seeds = "" if seeds == 1 else f", with {seeds} seeds"
    return (
        f"All models see the same batches in the same order{again}{of_seeds}{same}. "
        "Criteria refer to perplexity, the exponential of the loss. Energy is the share of the weights' squared norm "
        "over depth that is not that of their mean."
    )
