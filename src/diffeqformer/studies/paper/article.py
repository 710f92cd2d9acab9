"""The page of `reproduce paper`: what was claimed, what is found, and how it was made comparable."""

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from diffeqformer.plain import Values
from diffeqformer.report.page import both_widths
from diffeqformer.report.table import Table
from diffeqformer.report.text import MISSING, join, number, percent, signed, with_spread
from diffeqformer.studies.paper import tables as paper_tables
from diffeqformer.studies.paper.adaptation import adapted_runs
from diffeqformer.studies.paper.claims import (
    FINE_TUNED,
    LEVEL,
    SEARCHED_WITH,
    SEEDS,
    Claim,
    Finished,
    Model,
    Verdict,
    judge,
    models_of,
)
from diffeqformer.studies.paper.figures import effects
from diffeqformer.studies.paper.items import ITEMS
from diffeqformer.studies.paper.measures import planned_memory
from diffeqformer.studies.paper.record import MODEL_COLUMNS, SEEDS_COLUMN, Record, of_claim
from diffeqformer.studies.paper.reported import REPORTED
from diffeqformer.studies.paper.runs import Runs
from diffeqformer.studies.reproduce.experiments import Rates, losses_document, rates_table, searches
from diffeqformer.studies.study import Result

Found = Mapping[str, Sequence[Verdict]]
FORMS = {
    "holds": ("holds", "hold"), "fails": ("fails", "fail"), "within noise": ("is within noise", "are within noise"),
    "untested": ("is untested", "are untested"),
}  # fmt: skip
"""Wording of verdicts, for one claim and for several."""
KEPT = ("trainer.checkpoint_every", "trainer.keep_last")
"""Settings of which checkpoints are kept."""
TEXTS = {"other": "the other text", "web": "the text of the web"}
"""Texts besides the first, in words."""
CAPTION = "Effects for its claims: seeds (small), mean and confidence interval. Right of zero supports the claim."
ANSWERS = {"holds": "Yes", "fails": "No, the opposite", "within noise": "Not beyond noise"}
SIZES = {
    "laptop": "the quickstart's size (width 128, 6 steps, 2,048 tokens per update)",
    "gpu": "GPT-small's size (width 768, 12 steps, context 1,024, 65,536 tokens per update)",
}


def result_of(measured: Found, runs: Runs, record: Record) -> Result:
    """Build the page: a summary, each item with its claims and figures, and the search for learning rates.

    **Arguments:** `measured`, the verdicts of each item's claims; `record`, whose verdicts and models are used where it
    has more seeds.
    """
    known = {name for name, _ in record.claims}
    found = {name: [record.verdict(name, claim, verdict) for claim, verdict in _with_verdicts(name, measured)]
             for name in ITEMS if name in measured or name in known}  # fmt: skip
    rows = [(name, claim, verdict) for name in found for claim, verdict in _with_verdicts(name, found)]
    models, tables = model_rows(measured, runs, record), tables_of(measured, runs, record)
    figures = []
    for name in found:
        drawn = [(claim.sentence, verdict) for claim, verdict in _with_verdicts(name, found) if verdict.seeds]
        own = [both_widths("effects", CAPTION, effects, drawn)] if drawn else []
        if name in measured:
            theirs = f" The paper's: {ITEMS[name].layout}" if ITEMS[name].layout else ""
            own += [replace(figure, caption=f"{figure.caption}{theirs}")
                    for draw, models in ITEMS[name].figures for figure in draw(runs, models)]  # fmt: skip
        figures += [replace(figure, name=f"{name}-{figure.name}", caption=f"{_title(name)}. {figure.caption}")
                    for figure in own]  # fmt: skip
    return Result(
        "paper", "The paper, item by item", tuple(findings(rows, runs, record)),
        (summary(found), *(table for name in found for table in item_tables(name, found[name], tables, runs.diverged)),
         *models_tables(models, runs)),
        tuple(figures),
        document={
            "claims": [of_claim(name, claim.sentence, claim.unit, verdict) for name, claim, verdict in rows],
            "rates": {name: {"best": best, "losses": losses_document(tried)}
                      for name, (best, tried) in searched(runs).items()},
            "models": models,
            "tables": tables,
            "texts": {**record.texts, **runs.contents},
            "figures": {**record.figures, **{figure.name: figure.caption for figure in figures}},
        },
        folder=runs.folder,
    )  # fmt: skip


def _with_verdicts(name: str, found: Found) -> list[tuple[Claim, Verdict]]:
    """Pair an item's claims with their verdicts, untested where nothing is found."""
    claims = ITEMS[name].claims
    return list(zip(claims, found.get(name) or [judge({}) for _ in claims], strict=True))


def contradictions(measured: Found, record: Record) -> list[str]:
    """Return a sentence if these runs change verdicts of the record."""
    others = [f"{claim.sentence} ({record.verdict(name, claim, verdict).word} now, {other.word} there)"
              for name in measured
              for claim, verdict in _with_verdicts(name, measured)
              if (other := record.other(name, claim, verdict))]  # fmt: skip
    return [f"Different from the record: {'; '.join(others)}."] if others else []


def findings(rows: Sequence[tuple[str, Claim, Verdict]], runs: Runs, record: Record) -> list[str]:
    """Return the main questions with answers, how many claims hold, what was trained, and the rule of verdicts."""
    a = runs.arguments
    texts = "".join(f" {_capital(TEXTS[one])} is {record.of[one]}." for one in TEXTS if one in record.of)
    seeds = sorted({*a.seeds, *(seed for _, _, verdict in rows for seed in verdict.effects)})
    asked = [(claim, verdict) for _, claim, verdict in rows if claim.question and verdict.word in ANSWERS]
    answers = {
        claim: f"{claim.question} {ANSWERS[verdict.word]}: {_shown(verdict)}{_nats(claim)}." for claim, verdict in asked
    }
    joined = (
        "Effects on record come from earlier runs. Trained again on another machine, which rounds differently, the "
        "same model with the same seed has a slightly different loss, so effects of the same two models may differ a "
        "little between items."
    )
    losses = [answer for claim, answer in answers.items() if _nats(claim)]  # one without the other would flatter
    return [
        *([" ".join(losses)] if losses else []),
        *(answer for claim, answer in answers.items() if not _nats(claim)),
        f"Of {len(rows)} claims, {counted([verdict for _, _, verdict in rows])}.",
        f"Models of {SIZES[a.scale]}, {a.length:,} updates on {a.text}, seeds {', '.join(map(str, seeds))}, "
        f"of which claims have as many as they say.{texts} "
        "The verdicts are about models of this size and length of training, not about the paper's.",
        f"The rule was written before the runs: a claim holds if the {percent(LEVEL)} confidence interval of its mean "
        f"effect over at least {SEEDS} seeds lies above zero, and fails if it lies below; otherwise the effect is "
        "within noise. Claims without randomness (counts, causality, planned memory) are measured once and hold if the "
        "effect is positive. A positive effect always supports the claim. Models that are compared saw the same "
        "batches in the same order. Each claim is judged on its own, without a correction for multiple comparisons: of "
        "effects that are truly zero, one in twenty is decided by chance, and more where seeds are added after the "
        "first verdict, because claims are judged again with each seed.",
        *([joined] if a.record else []),
    ]


def summary(found: Found) -> Table:
    """Build a table with one row for each item: its main claim, how many claims hold, and its command."""
    rows = []
    for name, verdicts in found.items():
        main, verdict = _with_verdicts(name, found)[ITEMS[name].main]
        command = f"diffeqformer reproduce paper {name}{''.join(f' --{text} FILES' for text in ITEMS[name].texts)}"
        rows.append((_title(name), main.sentence, verdict.word, _shown(verdict), counted(verdicts), command))
    columns = ("in the paper", "main claim", "verdict", f"effect, mean [{percent(LEVEL)}]", "all claims", "command")
    return Table("Items", columns, rows)


def tables_of(measured: Found, runs: Runs, record: Record) -> dict[str, Values]:
    """Return the items' tables of the module `tables`, from these runs or else from the record."""
    ours = [one for name in measured for one in ITEMS[name].tables if runs.arguments.scale == "laptop"]
    found = {one.__name__: asdict(table) for one in ours if (table := paper_tables.measured(one, runs)) is not None}
    return {**record.tables, **found}


def item_tables(
    name: str, verdicts: Sequence[Verdict], tables: Mapping[str, Values], diverged: Mapping[str, Iterable[int]]
) -> tuple[Table, ...]:
    """Build an item's tables: its verdicts, under what the paper reports and which models are compared; the paper's
    numbers; and ours.

    **Arguments:** `tables`, as from `tables_of`; `diverged`, as in `Runs`.
    """
    item, reported = ITEMS[name], REPORTED.get(name)
    cells = [
        (claim.sentence, verdict.word, _shown(verdict), _seeds(verdict), claim.unit)
        for claim, verdict in zip(item.claims, verdicts, strict=True)
    ]
    said = [f"The paper: {item.reported}" if "not in" not in item.where else item.reported]
    said += [f"{_capital(place)}: {there}" for place, there in (reported.places if reported else ())]
    said += [f"Its figure: {item.layout}"] if item.layout else []
    said += [f"Models: {', '.join(models)}."] if (models := models_of(item)) else []
    lost = [f"{one} with seed {seed}" for one in models for seed in sorted(diverged.get(one, ()))]
    said += [f"Training diverged, so these are left out of the effects: {join(lost)}."] if lost else []
    said += [item.missing] if item.missing else []
    columns = ("claim", "verdict", f"effect, mean [{percent(LEVEL)}]", "seeds", "unit of the effect")
    claims = Table("\n".join((_title(name), *said)), columns, cells)
    ours = [Table(**tables[one.__name__]) for one in item.tables if one.__name__ in tables]
    return claims, *(reported.numbers if reported else ()), *ours


def searched(runs: Runs) -> Rates:
    """Return, for each model with a searched rate, the best rate and all losses, infinite where training diverged."""
    tuned = adapted_runs(runs.folder, SEARCHED_WITH, runs.arguments.other)
    rates = runs.rates | {FINE_TUNED + name: one for name, one in (searches(tuned) if tuned else {}).items()}
    return {name: one for name, one in rates.items() if any(map(math.isfinite, one[1].values()))}


def model_rows(measured: Found, runs: Runs, record: Record) -> list[tuple[str, ...]]:
    """Return a row for each model behind the claims, from these runs or the record, whichever had more seeds."""
    named = {one for name in measured for one in models_of(ITEMS[name])}
    rows = dict(record.models)
    for name in (one for one in runs.models if one in named):
        ended = [one for seed in runs.arguments.seeds if (one := runs.trained(name, seed)) is not None]
        if not ended or (name in rows and int(rows[name][SEEDS_COLUMN]) > len(ended)):
            continue
        losses = [one.entry["validation"]["loss"] for one in ended]
        model = runs.models[name]
        rows[name] = (
            name, f"{ended[0].entry['parameters']['stored'] / 1e6:.2f}", f"{runs.rate(name):g}",
            model.rate_of or ("given" if model.rate else "its own"), with_spread(losses, lambda loss: number(loss, 4)),
            str(len(losses)), *_machine(ended, runs),
        )  # fmt: skip
    return [rows[name] for name in runs.models if name in rows]


def models_tables(models: Sequence[tuple[str, ...]], runs: Runs) -> list[Table]:
    """Build the tables of the models behind the claims, and of the search for their learning rates."""
    columns = (*MODEL_COLUMNS, *(("tokens per second", "MFU", "memory (GB)") if runs.arguments.scale == "gpu" else ()))
    said = (
        "Models\nLosses on the whole validation split, mean and standard deviation over seeds, of which some claims "
        "have more. Of models that are trained on random tokens (section 5.1) they say nothing."
    )
    names = [row[0] for row in models]
    tables = [Table(said, columns, models), configs_table(names, runs.models)] if models else []
    return [*tables, *([rates_table(tried, SEARCHED_WITH)] if (tried := searched(runs)) else [])]


def configs_table(names: Sequence[str], models: Mapping[str, Model]) -> Table:
    """Build the table of what each model is: a shipped config, and what differs from it."""
    rows = [(name, models[name].config, "; ".join(_differences(models[name])) or MISSING) for name in names]
    said = (
        "Configs\nThe shipped config of each model, and what differs from it besides rate, seed, and the text and "
        "updates of the page."
    )
    return Table(said, ("model", "config", "differences"), rows)


def _differences(model: Model) -> list[str]:
    """Say what differs from a model's shipped config; which checkpoints are kept changes no number."""
    shown = {name: value for name, value in model.settings.items() if name not in KEPT}
    said = [f"{name} {value if isinstance(value, str) else json.dumps(value)}" for name, value in shown.items()]
    said += [f"{model.length:g} times the updates"] if model.length != 1 else []
    said += [TEXTS[model.text]] if model.text != "own" else []
    own = {"built by": model.build, "trained on": model.batches}
    return said + [f"{how} {part.__module__}.{part.__name__}" for how, part in own.items() if part is not None]


def _machine(ended: Sequence[Finished], runs: Runs) -> tuple[str, ...]:
    """Return speed, utilisation and memory of a GPU; nothing at laptop scale, where other work distorts them."""
    if runs.arguments.scale != "gpu":
        return ()
    from diffeqformer.runs.utilization import utilization
    from diffeqformer.training.depths import Pass

    config = ended[0].config
    speed = statistics.median(one.entry["tokens_per_second"] for one in ended)
    t, model = config.trainer, config.model
    seconds = t.batch_size * model.context / speed
    used, memory = utilization(config, [Pass(model.steps, t.batch_size)], seconds), planned_memory(config)
    return f"{speed:,.0f}", percent(used, 1), number(None if memory is None else memory / 1e9, 1)


def markdown(result: Result, folder: Path) -> str:
    """Render the page as Markdown, with the figures that are files in its `folder`, from these or earlier runs."""
    parts = [f"# {result.title}"]
    parts += [
        "`diffeqformer reproduce paper --markdown FILE` (`make repro-paper`) writes this page and its figures from its "
        "runs, and an `index.html` with all of it beside the runs. `make repro-paper ITEMS=figure-7 ARGS='--seeds 4'` "
        "adds a seed of an item to what is on record.",
        *result.findings,
    ]
    there = {name: said for name, said in result.document["figures"].items() if (folder / f"{name}.png").is_file()}
    titles = {_title(name): name for name in ITEMS}
    for table in result.tables:
        title, _, under = table.caption.partition("\n")
        parts += [f"## {title}", *filter(None, under.split("\n")), replace(table, caption="").to_markdown()]
        item = titles.get(title, "")
        if item:
            parts += [f"![{said}]({folder.name}/{name}.png)" for name, said in there.items() if _item_of(name) == item]
    return "\n\n".join(parts) + "\n"


def _item_of(figure: str) -> str:
    """Return the item of a figure: the longest that the figure's name begins with, since `figure-2` begins others."""
    return max((name for name in ITEMS if figure.startswith(f"{name}-")), key=len, default="")


def _title(name: str) -> str:
    return _capital(ITEMS[name].where)


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def counted(verdicts: Sequence[Verdict]) -> str:
    """Say how many verdicts there are of each kind."""
    words = [verdict.word for verdict in verdicts]
    return join([f"{words.count(word)} {form[words.count(word) > 1]}" for word, form in FORMS.items() if word in words])


def _nats(claim: Claim) -> str:
    return " nats" if claim.unit.startswith("nats") else ""


def _seeds(verdict: Verdict) -> str:
    """Say how many seeds there are; without kept effects, no seeds can be added and the interval cannot be checked."""
    return f"{verdict.seeds} (not kept)" if verdict.seeds and not verdict.effects else str(verdict.seeds)


def _shown(verdict: Verdict) -> str:
    if not verdict.seeds:
        return MISSING
    values = [value for value in (verdict.mean, verdict.low, verdict.high) if math.isfinite(value)]
    # Write no end as zero that is not zero: the verdict depends on its sign.
    digits = next((digits for digits in range(3, 6) if all(not value or round(value, digits) for value in values)), 6)
    mean, *ends = (signed(value, digits) for value in values)
    return f"{mean} [{', '.join(ends)}]" if ends else mean
