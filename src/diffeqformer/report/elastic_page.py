"""The page and the table of one checkpoint for every depth; records are `experiments.elastic`'s."""

from collections.abc import Mapping, Sequence

import numpy as np

from diffeqformer.report.adapt_figures import with_spread
from diffeqformer.report.elastic_figures import KINDS, Record, every_depth, means, values
from diffeqformer.report.figures import NARROW
from diffeqformer.report.page import Figure, Page, Table
from diffeqformer.report.text import MISSING, compact, join, perplexity

COLUMNS = ("steps", "elastic", "rise", "DiffEqFormer", "against it", "GPT", "against it", "fixed depth, read here")


def elastic_page(records: Sequence[Record], says: Sequence[str] = ()) -> Page:
    """Sentences computed from the records, the figure and the table.

    **Arguments:** `records`; `says`, what else is to be told, such as sizes and texts.
    """
    return Page(
        "One checkpoint, every depth",
        (*findings(records), *says, _terms(records)),
        (
            Figure(
                "every-depth",
                "Validation perplexity against the number of steps run, without any fine-tuning. Hollow marks: a model "
                "of its own for each depth, trained with the same compute.",
                every_depth(records),
                every_depth(records, width=NARROW),
            ),
        ),
        (Table("Perplexity at every depth", COLUMNS, rows(records)),),
    )


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
    """A row for each depth that the elastic model was read at; numbers are means and spreads over seeds."""
    elastic = means(records, "elastic")
    rises = rises_of(elastic)
    found = []
    for steps in elastic:
        cells = [str(steps), with_spread(values(records, "elastic", steps)), _change(rises.get(steps))]
        for kind in ("dedicated", "vanilla"):
            others = means(records, kind)
            cells += [with_spread(values(records, kind, steps)), _change(against(elastic, others).get(steps))]
        found.append((*cells, with_spread(values(records, "fixed", steps))))
    return tuple(found)


def elastic_markdown(records: Sequence[Record]) -> str:
    """The same table in Markdown."""
    lines = [COLUMNS, ("---",) * len(COLUMNS), *rows(records)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def elastic_arrays(records: Sequence[Record]) -> dict[str, np.ndarray]:
    """All numbers of the records by name, for `write_page`: one row a record."""
    numbers = {
        name: np.asarray([np.nan if r[name] is None else r[name] for r in records]) for name in ("loss", "perplexity")
    }
    whole = {name: np.asarray([r[name] for r in records]) for name in ("steps", "seed", "updates", "compute")}
    return {"kind": np.asarray([r["kind"] for r in records]), **whole, **numbers}


def _change(ratio: float | None) -> str:
    """A ratio as a change: `1.2 % higher`; a dash for none."""
    if ratio is None:
        return MISSING
    return f"{abs(ratio - 1):.1%} {'higher' if ratio >= 1 else 'lower'}".replace("%", " %")


def _terms(records: Sequence[Record]) -> str:
    compute = {kind: [r["compute"] for r in records if r["kind"] == kind] for kind in KINDS}
    updates = {r["steps"]: r["updates"] for r in records if r["kind"] == "dedicated"}
    seeds = len({r["seed"] for r in records if r["kind"] == "elastic"})
    once = "Each was trained once, so a small difference can be chance."
    spread = f"The elastic model was trained with {seeds} seeds; numbers are means and, behind ±, standard deviations."
    amounts = join([f"{number:,} at {steps} steps" for steps, number in sorted(updates.items())])
    spent = compact(compute["elastic"][0]) if compute["elastic"] else MISSING
    own = next((f"{r['updates']:,}" for r in records if r["kind"] == "elastic"), MISSING)
    return (
        f"All spend the same compute, {spent} evaluations of the field for the tokens of an update. The elastic model "
        f"makes {own} updates of it, a dedicated model {amounts}. {spread if seeds > 1 else once} Rise: "
        "against the lowest perplexity of the elastic model at fewer steps."
    )
