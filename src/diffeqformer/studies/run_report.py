"""The report of a run, or of a comparison of several: `results.json` as sentences, tables, figures, and one page."""

import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from diffeqformer.plain import Document
from diffeqformer.report import run_figures, run_text, text
from diffeqformer.report.page import Figure, both_widths, drawn, from_template
from diffeqformer.report.run_text import Model
from diffeqformer.report.table import Table
from diffeqformer.runs.settings import flat
from diffeqformer.store.files import write_output
from diffeqformer.store.paths import path_of
from diffeqformer.studies import steps
from diffeqformer.studies.inputs import ANALYSES_FOLDER
from diffeqformer.studies.study import Result

NATS = "nats per token"


@dataclass(frozen=True)
class RunReport(Result):
    """A `Result` whose page also has samples, settings and an explanation of the terms."""

    sections: dict[str, Any] = field(default_factory=dict)
    """Values for the template `report.html`, by name."""

    def page(self) -> str:
        """Render one self-contained HTML page: no scripts, nothing fetched, light and dark."""
        return from_template("report.html", name=self.name, title=self.title, findings=self.findings, **self.sections)


def write_report(results: Document, path: Path) -> None:
    """Write the report of a run, or of a comparison, atomically as one HTML file.

    Equal results give equal bytes.

    **Arguments:** `results`, what `results.json` holds; `path`, the file to write.

    **Raises:** `RunFailed` if the file cannot be written.
    """
    write_output(Path(path), run_report(results).page().encode())


def write_linked_report(results: Document, path: Path) -> None:
    """Write a report as `write_report`, linked to the contents page of each run's analyses, which is written too.

    **Raises:** `RunFailed` if a page cannot be written.
    """
    from diffeqformer.runs.folder import CONFIG
    from diffeqformer.studies.all import write_index

    runs = [str(model["config"]["run"]) for model in results["models"]]
    # The runs of a comparison lie next to its report, wherever that has been moved or copied to.
    beside = [path.parent / Path(run).name for run in runs]
    runs = [str(own) if (own / CONFIG).is_file() else run for own, run in zip(beside, runs, strict=True)]
    if (path.parent / CONFIG).is_file():  # a run's own report, wherever the run has been moved to
        runs = [str(path.parent)]
    folders = [path_of(run) / ANALYSES_FOLDER for run in runs]
    addresses = [quote(Path(os.path.relpath(folder, path.parent)).as_posix()) for folder in folders]
    inside = [(shlex.quote(run), f"{address}/index.html") for run, address in zip(runs, addresses, strict=True)]
    write_output(path, run_report(results, inside).page().encode())
    for run, folder in zip(runs, folders, strict=True):
        write_index(folder, run)


def run_report(results: Document, inside: Sequence[tuple[str, str]] = ()) -> RunReport:
    """Build the report of what `results.json` holds.

    **Arguments:** `inside`, for each model its run and the address of the page of its analyses; no links if empty.

    Sections whose numbers are missing (an empty `depth`, an empty `curve`, a null `sample`) are left out, as are
    columns without a single number.
    """
    models = results["models"]
    curves, depth = _curves(models), _depth(models, results)
    main, best = _main_table(models)
    depths = [(i, table) for i, m in enumerate(models) if (table := _drawn_table(m))]
    by_depth = _depth_table(models)
    by_step = [(i, *_by_step(m)) for i, m in enumerate(models) if m.get("participation")]
    every, differing = settings_tables(models)
    sections = {
        "created": _date(results["created"]),
        "main": main,
        "best": best,
        "curves": list(map(drawn, curves)),
        "drawn": depths,
        "depth": depth and drawn(depth),
        "by_depth": by_depth,
        "by_step": by_step,
        "samples": [sample for i, m in enumerate(models) for sample in _samples(i, m)],
        "inside": [(i, m["name"], *link) for i, (m, link) in enumerate(zip(models, inside, strict=False))],
        "corpus": _corpus(results["corpus"]),
        "every": every,
        "differing": differing,
        "made": [
            *((f"{name} version", value) for name, value in results["versions"].items()),
            ("device", results["device"]),
        ],
    }
    claim = run_text.claim(models, results.get("depth_part", 1.0))
    said = (claim, run_text.headline(models, results["corpus"].get("vocabulary")), run_text.comparison(models))
    return RunReport(
        name="report", title=results["title"],
        findings=tuple(filter(None, said)),
        tables=(*(t for t, *_ in by_depth), main, *(table for _, table in depths), *(t for *_, t in by_step)),
        figures=(*([depth] if depth else []), *curves), document=results, sections=sections,
    )  # fmt: skip


def _date(created: str) -> dict[str, str]:
    try:
        moment = datetime.fromisoformat(created)
    except ValueError:
        return {"machine": created, "human": created}
    zone = "" if moment.tzinfo is None else " UTC"
    moment = moment if moment.tzinfo is None else moment.astimezone(UTC)
    return {"machine": created, "human": f"{moment.day} {moment:%B %Y, %H:%M}{zone}"}


def _main_table(models: Sequence[Model]) -> tuple[Table, set[tuple[int, int]]]:
    """Tabulate one row per model; returns also the row and column of each column's best cells, ties included."""
    columns, best = [("model", [m["name"] for m in models])], set()

    def add(title: str, read: Callable[[Model], Any], write: Callable, better: Callable | None = None) -> None:
        values = [read(m) for m in models]
        cells, known = [write(v) for v in values], [v for v in values if text.finite(v)]
        if set(cells) == {text.MISSING}:
            return
        # Cells that print alike are tied: a digit that is not shown does not decide.
        if better and known and len(set(cells)) > 1:
            best.update((row, len(columns)) for row, cell in enumerate(cells) if cell == write(better(known)))
        columns.append((title, cells))

    add(f"validation loss ({NATS})", lambda m: m["validation"]["loss"], text.nats, min)
    add("perplexity", lambda m: m["validation"]["perplexity"], text.perplexity, min)
    add("bits per byte", lambda m: m["validation"]["bits_per_byte"], text.nats, min)
    add("steps", lambda m: m, _steps)
    add("NFE", lambda m: m.get("evaluations"), text.evaluations)
    add("parameters", lambda m: m["parameters"]["stored"], text.compact)
    add("effective parameters", lambda m: m["parameters"].get("effective"), text.compact)
    add("tokens per second", lambda m: m["tokens_per_second"], text.speed)  # not ranked: depends on the machine's load
    add("training time", lambda m: m["seconds"], text.duration)
    names, cells = zip(*columns, strict=True)
    return Table("Results", names, tuple(zip(*cells, strict=True))), best


def _steps(model: Model) -> str:
    """Format the number of steps and the depths trained at, if others too, or the tolerance that chose the steps."""
    rtol = (model["config"].get("model", {}).get("tolerance") or {}).get("rtol")
    if rtol is not None:
        return f"adaptive (rtol {rtol:g})"
    trained = run_text.depths_trained_at(model)
    more = "" if trained == [model["steps"]] else f" (trained at {text.ranges(trained)})"
    return f"{text.number(model['steps'])}{more}"


def _curves(models: Sequence[Model]) -> list[Figure]:
    """Plot losses against updates or, for several models, whose updates may differ in number and depth, compute."""
    trains = [text.finite_points(m["curve"]["train"]) for m in models]
    everything = [p for m in models for kind in ("train", "validation") for p in m["curve"][kind]]
    shown = text.finite_points(everything)
    if not shown:
        return []
    notes = list(filter(None, [_learned(models)]))
    if any(trains):
        window = max(map(run_figures.smooth_window, trains))
        average = f" and as a moving average over up to {window} of its points" if window > 1 else ""
        faint = "faint; " if average else ""
        notes.append(f"Lines: training loss ({faint}means of a few updates in long runs){average}.")
    if any(m["curve"]["validation"] for m in models):
        some = sorted({n for m in models if (n := m["config"].get("trainer", {}).get("evaluate_batches"))})
        batches = f"{text.join(list(map(str, some)))} batch{'' if some == [1] else 'es'}" if some else ""
        way = f", estimated during training on at most {batches}" if some else ""
        notes.append(f"Points: validation loss{way}.")
    if missing := len(everything) - len(shown):
        notes.append(f"Points that are not finite, and so cannot be drawn: {missing}.")
    if several := len(models) > 1:
        notes.append("Compute is the number of steps of depth, summed over the updates so far.")
        if len({m["steps"] * m["updates"] == m.get("compute") for m in models}) > 1:
            notes.append("Where depth was drawn, an update counts by its own.")
    curves = partial(run_figures.loss_curves, against_compute=several)
    return [both_widths("loss", " ".join(notes), curves, models)]


def _depth(models: Sequence[Model], results: Document) -> Figure | None:
    run, vocabulary = [m for m in models if run_text.at_several(m)], results["corpus"].get("vocabulary")
    if not run:
        return None
    said = list(filter(None, [run_text.depth_finding(*run) if len(run) == 1 else _best_depth(run)]))
    if (part := results.get("depth_part", 1.0)) < 1:
        whole = [m["name"] for m in models if not m["depth"]]
        besides = f"; {text.join(whole)} on all of it" if whole else ""
        amount = f"{text.number(100 * part)} % of the validation text, evenly spread"
        said.append(f"All of this was read on {amount}{besides}.")
    if any(m["weights"].startswith("time") and run_text.poor_elsewhere(m) for m in run):
        said.append(
            "A DiffEqFormer can be run at any number of steps, but its training only ever asked for the weights at "
            "the times of its own steps: at a depth it was not trained at, it is poor until it is fine-tuned there."
        )
    if references := [m["name"] for m in models if not run_text.at_several(m)]:
        said.append(f"Dashed: {', '.join(references)}, at the trained depth.")
    if (guess := run_figures.uniform_loss(models, vocabulary)) is not None:
        said.append(f"Dotted: guessing every token uniformly, {text.nats(guess)} nats.")
    return both_widths("depth", " ".join(said), run_figures.depth_curve, models, vocabulary)


def _learned(models: Sequence[Model]) -> str:
    """State the last estimates of the validation loss, or of the training loss if there are none."""
    for kind in ("validation", "train"):
        ends = {m["name"]: points[-1][1] for m in models if (points := text.finite_points(m["curve"][kind]))}
        if ends:
            what = "Validation" if kind == "validation" else "Training"
            where = [f"{text.nats(loss)} in {name}" for name, loss in ends.items()]
            said = text.join(where) if len(models) > 1 else text.nats(next(iter(ends.values())))
            return f"{what} loss ends at {said} ({NATS})."
    return ""


def _best_depth(run: Sequence[Model]) -> str:
    """State which model has the lowest loss, and at which depth."""
    points = [(p["loss"], m["name"], p["steps"]) for m in run for p in run_text.depth_points(m)]
    known = [point for point in points if text.finite(point[0])]
    if not known:
        return ""
    loss, name, depth = min(known)
    return f"The lowest loss, {text.nats(loss)} nats, is that of {name} at {text.counted_steps(depth)}."


def _drawn_table(model: Model) -> Table | None:
    """Tabulate the depths drawn in training, one per row; `None` if none were."""
    rows = run_text.drawn_rows(model)
    columns = ("steps", "updates", f"training loss ({NATS}, last tenth)", "tokens per second")
    return Table(f"{model['name']}: depths drawn for its updates", columns, rows) if rows else None


def _by_step(model: Model) -> tuple[str, Table]:
    """State after which step the prediction has settled, and tabulate one row per step."""
    from diffeqformer.analysis.participation import Participation

    found = Participation.of(model["participation"])
    return f"{model['name']}: {steps.headline(found)}", steps.by_step(found, f"{model['name']} after every step")


def _depth_table(models: Sequence[Model]) -> list[tuple[Table, list[int], set[tuple[int, int]]]]:
    """Tabulate losses by depth, one column per model that was run at several; returns also the models' indices and the
    cells at trained depths."""
    run = [
        (i, {p["steps"]: p["loss"] for p in run_text.depth_points(m)})
        for i, m in enumerate(models)
        if run_text.at_several(m)
    ]
    if not run:
        return []
    depths = sorted({depth for _, losses in run for depth in losses})
    rows = [
        (text.number(depth), *(text.nats(losses[depth]) if depth in losses else text.MISSING for _, losses in run))
        for depth in depths
    ]
    trained = {
        (depths.index(depth), column)
        for column, (i, losses) in enumerate(run, 1)
        for depth in run_text.depths_trained_at(models[i])
        if depth in losses
    }
    columns = ("steps run", *(models[i]["name"] for i, _ in run))
    return [(Table(f"Validation loss ({NATS}) by depth", columns, rows), [i for i, _ in run], trained)]


def _corpus(corpus: Document) -> tuple[str, Table]:
    """Describe the corpus in a sentence, and tabulate documents, bytes and tokens of both splits."""
    kinds = (("Documents", "documents", text.number), ("Text", "bytes", text.size), ("Tokens", "tokens", text.number))
    rows = [
        (title, *(write(corpus.get(f"{split}_{key}")) for split in ("train", "validation")))
        for title, key, write in kinds
    ]
    known = [row for row in rows if row[1:] != (text.MISSING, text.MISSING)]
    said = f"{corpus['name']}, as tokens of a vocabulary of {text.number(corpus.get('vocabulary'))}."
    return said, Table("Corpus", ("", "training", "validation"), known)


def _samples(index: int, model: Model) -> list[tuple[int, str, Document, list[tuple[str, str]]]]:
    """List a model's samples, those from training first: the model's index, a title, prompt and text, settings."""
    on_the_way = [(index, f"{model['name']}, update {s['step']}", s, []) for s in model.get("samples", ())]
    if not (last := model["sample"]):
        return on_the_way
    given = {name: value for name, value in (last.get("settings") or {}).items() if value is not None}
    settings = [(name.replace("_", " "), _setting(value)) for name, value in given.items()]
    return [*on_the_way, (index, model["name"], last, settings)]


def settings_tables(models: Sequence[Model]) -> tuple[tuple[Table, set[int]], Table]:
    """Tabulate every model's settings by dotted name, with the rows that differ; and these rows in a second table."""
    # On the command line a section's kind goes by the name of the section.
    shown = [{name.removesuffix(".kind"): _setting(value) for name, value in flat(m["config"]).items()} for m in models]
    names = list(dict.fromkeys(name for one in shown for name in one))
    rows = [(name, *(one.get(name, text.MISSING) for one in shown)) for name in names]
    columns = ("setting", *(m["name"] for m in models))
    differ = {i for i, row in enumerate(rows) if len(set(row[1:])) > 1}
    own = Table("Settings that differ", columns, [rows[i] for i in sorted(differ)])
    return (Table("Every setting", columns, rows), differ), own


def _setting(value: Any) -> str:
    """Format a setting approximately as YAML would."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_setting, value))}]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value) if value != "" else '""'
