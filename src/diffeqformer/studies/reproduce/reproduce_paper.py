"""`reproduce paper`: the paper's tables and figures, item by item, each claim with its effect and a verdict.

Its parts are in `studies/paper`: the items in `items`, the models that they need in `models`, the rule of the verdicts
in `claims`, the runs in `runs`, the page in `article`.
"""

import re
from collections import Counter
from collections.abc import Sequence

from diffeqformer.config.bounds import require_once
from diffeqformer.data.documents import find_files
from diffeqformer.errors import BadInput, Damaged
from diffeqformer.plain import Document
from diffeqformer.progress import Progress
from diffeqformer.report.table import Table
from diffeqformer.report.text import MISSING, duration, join
from diffeqformer.store.digests import file_digest
from diffeqformer.store.files import read_sealed, write_output, write_sealed
from diffeqformer.store.paths import path_of
from diffeqformer.studies.paper import record as paper_record
from diffeqformer.studies.paper.claims import FINE_TUNED, Claim, Trained, Verdict, judge, models_of
from diffeqformer.studies.paper.record import Record
from diffeqformer.studies.paper.runs import Arguments, Runs
from diffeqformer.studies.study import Result

__all__ = ["Arguments", "study", "write"]


def study(arguments: Arguments, progress: Progress) -> Result:
    """Train what is missing, measure every claim, and judge.

    **Raises:** `BadInput` for an unknown item, or a scale that this machine cannot run; whatever training raises,
    except `Diverged`: such a model has no effect; `Damaged` for a damaged record.
    """
    from diffeqformer.studies.paper.article import contradictions, result_of
    from diffeqformer.studies.paper.items import ITEMS
    from diffeqformer.studies.paper.models import GPU_MODELS, MODELS

    require_once("--seeds", arguments.seeds)
    require_once("`reproduce paper`", arguments.items)
    names = arguments.items or tuple(ITEMS)
    for name in names:
        if name not in ITEMS:
            raise BadInput(f"there is no item {name!r}; the items are {', '.join(ITEMS)}.")
    record = paper_record.read(path_of(arguments.record), arguments.of) if arguments.record else Record(arguments.of)
    runs = Runs(arguments, GPU_MODELS if arguments.scale == "gpu" else MODELS, progress, record.rates)
    if arguments.list:
        return listed(names, runs, record)
    if arguments.scale == "gpu" and not arguments.finished:
        _require_gpu(arguments)
    found: dict[str, list[Verdict]] = {name: [] for name in names}
    claims = [(name, claim) for name in names for claim in ITEMS[name].claims]
    for number, (name, claim) in enumerate(claims, 1):
        progress.say(f"{number}/{len(claims)} {name}: {claim.sentence}")
        seeds = arguments.seeds[:1] if claim.exact else arguments.seeds
        found[name].append(judge({seed: _effect(claim, runs, seed) for seed in seeds}, exact=claim.exact))
        record.require_texts(runs.contents)  # after the first models, not after hours
    for sentence in contradictions(found, record):  # not on the page: once written, the record says the same
        progress.say(sentence)
    return result_of(found, runs, record)


def _require_gpu(arguments: Arguments) -> None:
    import jax

    if (device := jax.default_backend()) != "gpu":
        raise BadInput(f"--scale is gpu, but JAX finds no GPU here, only {device}; --scale laptop runs on any machine.")
    if not arguments.data:
        raise BadInput("--scale gpu needs a text of its size: give files with --data, such as OpenWebText's.")


def _effect(claim: Claim, runs: Runs, seed: int) -> float | None:
    models = {name: runs.trained(name, seed) for name in claim.models}
    known = {name: result for name, result in models.items() if result is not None}
    if len(known) < len(models):
        return None
    a = runs.arguments
    rates = {
        name.removeprefix(FINE_TUNED): rate for name, (rate, _) in runs.rates.items() if name.startswith(FINE_TUNED)
    }
    trained = Trained(known, seed, runs.folder, runs.progress, a.other, not a.finished, a.include_path, rates)
    return _kept(claim, trained) if claim.slow else claim.measure(trained)


def _kept(claim: Claim, trained: Trained) -> float | None:
    """Return the effect measured on these runs and files before; if there is none, measure and keep it."""
    path = trained.folder / "effects" / f"{re.sub('[^a-z0-9]+', '-', claim.sentence.lower())}-{trained.seed}.json"
    # Where nothing is trained, the other text may be elsewhere.
    texts = find_files(trained.other, "--other") if trained.other and trained.train else []
    of: Document = {
        "claim": claim.sentence, "seed": trained.seed, "other": list(trained.other),
        "content": [file_digest(text.path) for text in texts],
        "losses": {name: one.entry["validation"]["loss"] for name, one in sorted(trained.models.items())},
    }  # fmt: skip
    if path.is_file():
        document = read_sealed(path)
        unnamed = {} if trained.other else {"other": []}  # matches whatever the other text was
        unread = {} if texts else {"content": []}
        if document["of"] | unnamed | unread == of:
            return document["effect"]
    if not trained.train:
        return None
    if (effect := claim.measure(trained)) is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_sealed(path, {"of": of, "effect": effect})
    return effect


def listed(names: Sequence[str], runs: Runs, record: Record) -> Result:
    """List items, the runs that each needs and has, its verdicts if there is a record, and how long the rest takes."""
    from diffeqformer.studies.paper.article import counted
    from diffeqformer.studies.paper.items import ITEMS
    from diffeqformer.studies.paper.measures import OURS

    seeds, other = runs.arguments.seeds, runs.arguments.other
    there = {(name, seed) for name, _, seed in runs.ended}
    rows, items, needed, longest = [], [], {}, 0.0
    runs.progress.say("Counting the operations of what is left …")
    for name in names:
        models = [one for one in runs.models if one in models_of(ITEMS[name]) and runs.has_text(one)]
        sources = dict.fromkeys(runs.models[one].rate_of or one for one in models)
        wanted = {(model, f"seed-{seed}"): runs.seconds(model) for model in models for seed in seeds}
        left = {run: seconds for run, seconds in wanted.items() if run not in there}
        own = {(name, f"own-{seed}"): ITEMS[name].length * runs.seconds(OURS)
               for seed in seeds if ITEMS[name].length and other and not _is_adapted(runs, seed)}  # fmt: skip
        # The search's run at the best rate is the first seed's.
        searched = {(model, "search"): max(0, runs.searches(model) - ((model, f"seed-{seeds[0]}") in left))
                    * runs.seconds(model) for model in sources}  # fmt: skip
        needed |= left | own | searched
        first = sum(seconds for run, seconds in (left | own).items() if run[1].endswith(f"-{seeds[0]}"))
        alone = first + sum(searched.values(), 0.0)
        longest = max(longest, alone)
        verdicts = [record.claims.get((name, claim.sentence), judge({})) for claim in ITEMS[name].claims]
        times = {"seconds_left": sum((left | own).values(), 0.0),
                 "seconds_of_searches": sum(searched.values(), 0.0), "seconds_of_first_seed": alone}  # fmt: skip
        done, words = len(wanted) - len(left), Counter(verdict.word for verdict in verdicts) if record.claims else None
        rows.append((name, ITEMS[name].where, f"{done} of {len(wanted)}",
                     *(duration(seconds or None) for seconds in times.values()),
                     counted(verdicts) if record.claims else MISSING))  # fmt: skip
        items.append({"item": name, "where": ITEMS[name].where, "finished": done, "runs": len(wanted), **times,
                      "on_record": words, "models": models})  # fmt: skip
    columns = ("item", "in the paper", "runs", "runs left", "searches", f"with --seeds {seeds[0]} alone", "on record")
    ended = len(runs.ended)
    said = f"{len(names)} item{'s' * (len(names) != 1)}; {ended} {'run is' if ended == 1 else 'runs are'} finished"
    if total := sum(needed.values()):
        said += (
            f"; all that is left takes about {duration(total)}, judging by {runs.pace[1]}; what items share is counted "
            f"once. A single item with --seeds {seeds[0]} takes at most {duration(longest)}; a stopped run resumes "
            "where it left off"
        )
    for text, files in runs.arguments.files.items():
        if not files and (lacking := [name for name in names if text in ITEMS[name].texts]):
            said += f". Without --{text}, claims of {join(lacking)} stay untested, and their runs are not counted"
    used = [(one["item"], ", ".join(one["models"]) or MISSING) for one in items]
    tables = (Table("Items", columns, rows), Table("Models", ("item", "models"), used))
    return Result("paper", "The paper's items", (f"{said}.",), tables, document={"items": items}, folder=runs.folder)


def _is_adapted(runs: Runs, seed: int) -> bool:
    """Whether the training that figure 5 does itself with a seed is finished; damaged results count as unfinished."""
    from diffeqformer.studies.paper.adaptation import adapted_runs

    try:
        return adapted_runs(runs.folder, seed, runs.arguments.other) is not None
    except Damaged as error:
        runs.progress.say(str(error))
        return False


def write(result: Result, arguments: Arguments) -> dict[str, str]:
    """Write the page and, if asked for, its Markdown with figures in a folder of the same name, and the record."""
    from diffeqformer.report.figures import save
    from diffeqformer.studies.paper.article import markdown

    written = {"page": str(result.write())}
    if arguments.markdown:
        path = path_of(arguments.markdown)
        for figure in result.figures:
            write_output(path.with_suffix("") / f"{figure.name}.png", save(figure.figure, "png"), "figure")
        write_output(path, markdown(result, path.with_suffix("")).encode(), "page")
        written["markdown"] = str(path)
    if arguments.record:
        path = path_of(arguments.record)
        paper_record.write(path, result.document, arguments.of)
        written["record"] = str(path)
    return written
