"""`diffeqformer analyze depth`: one model at several depths without fine-tuning, next to other models at theirs."""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from diffeqformer.config.bounds import SIZES, setting, whole_numbers
from diffeqformer.plain import Document, Values
from diffeqformer.progress import Progress
from diffeqformer.report.table import Table
from diffeqformer.report.text import (
    MISSING,
    counted,
    counted_steps,
    evaluations,
    finite,
    join,
    nats,
    number,
    perplexity,
    signed,
)
from diffeqformer.studies import inputs
from diffeqformer.studies.study import Result

if TYPE_CHECKING:
    from diffeqformer.evaluation.depth import DepthCurve, Mark
    from diffeqformer.evaluation.perplexity import Evaluation
    from diffeqformer.runs.opening import Run

METHODS = {"lora": "LoRA", "full": "full", "continuous": "continuous", "levels": "levels"}
EARLY = (
    "With early exit, a token stops at the step that moves its prediction by less than a threshold: the prediction "
    "after a step is the end of the straight line through it, after the final norm. The token then continues along "
    "that line, without evaluations of its own, where others attend to it. The figure shows the mean number of steps "
    "per token; a batch is as slow as its slowest token, so time is saved only where all have settled."
)
NEAR = 0.02
"""Relative rise of perplexity up to which a depth counts as near: the 2 % required of one checkpoint for all depths."""


@dataclass(frozen=True, kw_only=True)
class Arguments(inputs.OfRun):
    """Quality against depth and compute: perplexity and speed at several depths without fine-tuning, beside others.

    Example: diffeqformer analyze depth runs/quickstart/diffeqformer --against runs/quickstart/gpt
    """

    steps: Annotated[str, tyro.conf.arg(metavar="N,N,...")] = ""
    """Numbers of depth steps, besides the run's own; if not given, those from half to twice its own and those of
    --against, where possible."""
    early_exit: Annotated[str, tyro.conf.arg(metavar="T,T,...")] = ""
    """Also run the deepest of these grids, each token stopped at the step that moves its prediction by less than this
    (root mean square of the normalised state, such as 0.05,0.1,0.2)."""
    against: tuple[str, ...] = ()
    """Other runs, drawn at their own depth: fine-tuned from this one, or trained separately."""
    data: tuple[str, ...] = ()
    """Text files or globs; if not given, the validation text of the runs of --against, or else the run's own."""
    batch_size: int = setting(16, least=1, most=SIZES)
    """Sequences at a time."""


def study(arguments: Arguments, progress: Progress) -> Result:
    """Evaluate the run at every depth and the others at their own, taking turns."""
    given = whole_numbers(arguments.steps, "--steps") if arguments.steps else ()
    thresholds = inputs.positive_numbers(arguments.early_exit, "--early-exit") if arguments.early_exit else ()
    from diffeqformer.data.loader import EvaluationBatches
    from diffeqformer.evaluation.depth import Adaptive, DepthCurve, Mark, possible_depths, require_depths, usual_depths
    from diffeqformer.evaluation.perplexity import evaluate_in_turns
    from diffeqformer.ode.early_exit import EarlyExit
    from diffeqformer.runs.opening import load_run
    from diffeqformer.runs.results import name_of_run

    opened, folder = arguments.open("depth", progress)
    others = [load_run(other, arguments.checkpoint, progress) for other in arguments.against]
    for other in others:
        inputs.require_comparable(opened, other)
    own, trained = opened.config.model.steps, opened.config.trained_at
    usual = (*usual_depths(own, trained), *(other.config.model.steps for other in others))
    depths = sorted({own, *(given or possible_depths(opened.model, usual))})
    require_depths(opened.model, depths)
    source = opened if arguments.data else inputs.owner_of_text(opened, others)
    tokens, text_bytes, mask = inputs.evaluation_text(source, arguments.data, progress)
    context = min(one.config.model.context for one in (opened, *others))
    exits = [EarlyExit(depths[-1], threshold) for threshold in sorted(set(thresholds))]
    tolerance = opened.config.model.tolerance
    # With adapters unmerged, their products would be timed too.
    turns = [(opened.model.merge(), steps) for steps in (*depths, *exits)]
    turns += [(one.model.merge(), None) for one in (*others, *([opened] if tolerance else []))]
    evaluated = evaluate_in_turns(
        turns,
        EvaluationBatches(tokens, context, arguments.batch_size, mask),
        bytes_=text_bytes,
        block=opened.config.trainer.loss_block,
        progress=progress,
        name=f"Evaluating at {counted(len(depths), 'depth')}" + (f", and {len(others)} more" if others else ""),
    )
    found = iter(evaluated)  # in the order of the turns
    points = {steps: next(found) for steps in depths}
    settled = {one.threshold: next(found) for one in exits}
    marks = [Mark(*_group(opened, one), str(one.folder), one.config.model.steps, next(found)) for one in others]
    adaptive = Adaptive(tolerance.rtol, next(found)) if tolerance else None
    curve = DepthCurve(name_of_run(opened.config), own, points, tuple(marks), settled, trained, adaptive)
    name = ", ".join(arguments.data) if arguments.data else f"the validation text of {source.folder}"
    said = (
        f"{name}, {number(evaluated[0].tokens)} tokens in batches of {arguments.batch_size} x {context}; "
        f"{opened.folder} at update {number(opened.step)}"
    )
    known = {**opened.which, "against": [one.which for one in others], "text": name}
    return result(curve, said, {**known, "own_steps": own, "trained_at": list(trained)}, folder)


def result(curve: "DepthCurve", text: str, known: Values, folder: Path = Path()) -> Result:
    """Build the result: sentences, figures and tables of a model at several depths, all evaluated on `text`."""
    from diffeqformer.report.page import both_widths
    from diffeqformer.studies import depth_figures as draw

    plain = f"{lowest(curve)}: perplexity against the number of steps run, without fine-tuning. " + (
        f"Dotted: {curve.adaptive.name}." if curve.adaptive else "Rings: depths at which it was trained."
    )
    measured = (
        f"{speeds(curve)}: perplexity against its cost, as measured tokens per second and as evaluations of the vector "
        "field for the whole text (mean of its attention and feed-forward halves). Numbers at the points are steps."
    )
    others = [table(curve) for table, there in ((exits_table, curve.exits), (marks_table, curve.marks)) if there]
    return Result(
        "depth",
        "How good is it at other depths?",
        (
            finding(curve),
            *comparisons(curve),
            f"The text: {text}. {'All depths' if not curve.marks else 'All depths and models'} took turns, one batch "
            "each, so that their speeds can be compared. Speeds are those of evaluation; the time includes computing "
            "the steps' weights, but not compiling.",
            *((EARLY,) if curve.exits else ()),
        ),
        (depths_table(curve), *others),
        (
            both_widths("perplexity-steps", plain, draw.quality_over_depth, curve),
            both_widths("perplexity-compute", measured, draw.quality_over_compute, curve),
        ),
        arrays=curve.arrays(),
        document={"finding": finding(curve), **known, **_numbers_of(curve)},
        folder=folder,
    )


def _numbers_of(curve: "DepthCurve") -> Document:
    from diffeqformer.runs.results import measured

    every = lambda found: {**asdict(found), **measured(found)}
    exits = [
        {"threshold": threshold, "grid": max(curve.points), "mean_steps": curve.mean_steps(one), **every(one)}
        for threshold, one in curve.exits.items()
    ]
    against = [
        {"run": mark.run, "group": mark.group, "fine_tuned": mark.tuned, "steps": mark.steps, **every(mark.found)}
        for mark in curve.marks
    ]
    depths = [{"steps": steps, **every(one)} for steps, one in curve.points.items()]
    own = curve.adaptive and {"rtol": curve.adaptive.rtol, **every(curve.adaptive.found)}
    return {"depths": depths, "adaptive": own, "early_exit": exits, "against": against}


def finding(curve: "DepthCurve") -> str:
    """State what the curve shows."""
    own = curve.reference.perplexity
    if not finite(own):
        where = f"with {curve.adaptive.name}" if curve.adaptive else f"at its own {counted_steps(curve.own)}"
        return f"{curve.name} has no finite perplexity {where}."
    if curve.adaptive:
        fixed = _beside({steps: found.perplexity / own for steps, found in curve.points.items()})
        return (
            f"{curve.name}, trained with {curve.adaptive.name}, has perplexity {perplexity(own)} with them; with fixed "
            f"steps, with which it was not trained, it is {fixed}."
        )
    alone = curve.trained_at == (curve.own,)
    trained = f"{counted_steps(curve.own)} alone" if alone else _list(list(curve.trained_at))
    place = "there" if alone else f"at {curve.own}"
    start = f"{curve.name}, trained at {trained}, has perplexity {perplexity(own)} {place}"
    others = {steps: found.perplexity / own for steps, found in curve.points.items() if steps != curve.own}
    seen = {steps: ratio for steps, ratio in others.items() if steps in curve.trained_at}
    unseen = {steps: ratio for steps, ratio in others.items() if steps not in seen}
    if alone:
        return f"{start}; without fine-tuning it is {_beside(unseen)}." if unseen else f"{start}."
    end = f" At depths at which it was not trained, it is {_beside(unseen)}." if unseen else ""
    return f"{start}; it is {_beside(seen, each=True)}.{end}" if seen else f"{start}.{end}"


def _beside(others: dict[int, float], *, each: bool = False) -> str:
    """State how much higher perplexity is at other depths, from its ratios to that at the model's own; for `each` depth
    that is not near, or for the lowest and highest alone."""
    ratios = {steps: ratio for steps, ratio in others.items() if finite(ratio)}
    near, parts = [steps for steps, ratio in ratios.items() if ratio <= 1 + NEAR], []
    far = sorted((steps for steps in ratios if steps not in near), key=ratios.__getitem__)
    if near:
        rise, fall = (end(ratios[steps] for steps in near) - 1 for end in (max, min))
        # Rounded up, as `within` requires; 1e-6 keeps rounding noise from adding a tenth of a per cent.
        up = lambda part: _percent(math.ceil(1000 * part - 1e-6) / 1000)
        within = f"within {up(max(rise, -fall))}" if fall > -NEAR else f"at most {up(rise)} higher"
        if rise < 0 and fall <= -NEAR:
            within = " to ".join(dict.fromkeys(map(_percent, (-rise, -fall)))) + " lower"
        parts.append(f"{within if max(rise, -fall) >= 0.0005 else 'no higher'} at {_list(near)}")
    if far:
        told = far if each or len(far) < 3 else [far[0], far[-1]]
        between = " and up to " if len(told) < len(far) else ", " if each else " and "
        parts.append(between.join(f"{_higher(ratios[steps])} at {counted_steps(steps)}" for steps in told))
    if failed := [steps for steps in others if steps not in ratios]:
        parts.append(f"not finite at {_list(failed)}")
    return join(parts)


def lowest(curve: "DepthCurve") -> str:
    """State at which depth the perplexity is lowest."""
    known = {steps: found.perplexity for steps, found in curve.points.items() if finite(found.perplexity)}
    if not known:
        return "No depth has a finite perplexity"
    best = min(known, key=known.__getitem__)
    if len(curve.points) == 1:
        return f"Perplexity {perplexity(known[best])} at {counted_steps(best)}, the one depth that was evaluated"
    own = " (its own)" if best == curve.own and curve.trained_at == (best,) else ""
    has = f"{counted_steps(best)}{own} {'have' if best > 1 else 'has'}"
    return f"Of {len(curve.points)} depths, {has} the lowest perplexity, {perplexity(known[best])}"


def speeds(curve: "DepthCurve") -> str:
    """State the speeds at the shallowest and the deepest depth."""
    speed = lambda steps: f"{number(curve.points[steps].tokens_per_second)} tokens per second at {counted_steps(steps)}"
    ends = sorted({min(curve.points), max(curve.points)})
    return f"{curve.name} reads {join([speed(steps) for steps in ends])}"


def groups_of(curve: "DepthCurve") -> "dict[tuple[bool, str], list[Mark]]":
    """Group a curve's marks by whether they were fine-tuned and by group, fine-tuned ones first."""
    groups: dict[tuple[bool, str], list[Mark]] = {}
    for mark in sorted(curve.marks, key=lambda mark: (not mark.tuned, mark.group, mark.steps)):
        groups.setdefault((mark.tuned, mark.group), []).append(mark)
    return groups


def group_name(tuned: bool, group: str) -> str:
    """Name a group of marks in words."""
    return f"fine-tuned: {group}" if tuned else f"{group}, trained at that depth"


def comparisons(curve: "DepthCurve") -> list[str]:
    """Write a sentence for each group of other models."""
    said = []
    for (tuned, group), marks in groups_of(curve).items():
        parts = []
        for mark in marks:
            before = curve.points.get(mark.steps)
            beside = f" ({'before' if tuned else curve.name}: {perplexity(before.perplexity)})" if before else ""
            parts.append(f"{perplexity(mark.found.perplexity)} at {counted_steps(mark.steps)}{beside}")
        name = group_name(tuned, group)
        said.append(f"{name[0].upper()}{name[1:]}: perplexity {join(parts)}.")
    return said


def depths_table(curve: "DepthCurve") -> Table:
    """Tabulate the model at every depth."""
    own = curve.reference
    columns = (
        "steps", "trained", "perplexity", f"against {'adaptive' if curve.adaptive else counted_steps(curve.own)}",
        "loss (nats)", "bits/byte", "evaluations", "tokens/s",
    )  # fmt: skip
    called = "own" if curve.trained_at == (curve.own,) else "reference"
    name = lambda steps, found: f"{steps} ({called})" if found is own else str(steps)
    ratio = lambda found: MISSING if found is own else _against(found.perplexity / own.perplexity)
    cells = lambda name, trained, found: (
        name, "yes" if trained else "no", perplexity(found.perplexity), ratio(found), *_numbers(found)
    )  # fmt: skip
    rows = [cells(name(steps, found), steps in curve.trained_at, found) for steps, found in curve.points.items()]
    if curve.adaptive:
        rows.insert(0, cells(curve.adaptive.name, True, own))
    return Table(f"{curve.name} without fine-tuning", columns, rows)


def exits_table(curve: "DepthCurve") -> Table:
    """Tabulate early exit at every threshold."""
    whole = curve.points[max(curve.points)].perplexity
    columns = ("settled within", "mean steps", "perplexity", "against all steps", "loss (nats)", "bits/byte")
    rows = [
        (f"{threshold:g}", number(curve.mean_steps(found), 2), perplexity(found.perplexity),
         _times(found.perplexity / whole), *_numbers(found)[:2])
        for threshold, found in curve.exits.items()
    ]  # fmt: skip
    return Table(f"Early exit from {max(curve.points)} steps", columns, rows)


def marks_table(curve: "DepthCurve") -> Table:
    """Tabulate the other models, and this one at their depths."""
    columns = (
        "model", "run", "steps", "perplexity", "here, not tuned", "loss (nats)", "bits/byte", "evaluations", "tokens/s",
    )  # fmt: skip
    name = lambda tuned, group: f"{curve.name}, {group_name(tuned, group)}" if tuned else group
    here = lambda steps: perplexity(curve.points[steps].perplexity) if steps in curve.points else MISSING
    rows = [
        (name(*group), mark.run, str(mark.steps), perplexity(mark.found.perplexity), here(mark.steps),
         *_numbers(mark.found))
        for group, marks in groups_of(curve).items() for mark in marks
    ]  # fmt: skip
    return Table("Other models, each at its own depth", columns, rows)


def _numbers(found: "Evaluation") -> tuple[str, ...]:
    halves = {"attention": found.attention_evaluations, "feed_forward": found.feed_forward_evaluations}
    return nats(found.loss), nats(found.bits_per_byte), evaluations(halves), number(found.tokens_per_second)


def _list(steps: list[int]) -> str:
    return f"{join([str(one) for one in steps])} step{'' if steps == [1] else 's'}"


def _percent(part: float) -> str:
    return f"{100 * part:.1f}\u00a0%"


def _higher(ratio: float) -> str:
    """State how much higher a ratio is: in per cent below 2, else as a factor."""
    rise = 100 * (ratio - 1)
    return f"{rise:.{1 if rise < 9.95 else 0}f}\u00a0% higher" if ratio < 2 else f"{_times(ratio)} as high"


def _against(ratio: float) -> str:
    """Format a ratio as a change: `+0.8 %`, `−1.2 %`; as a factor from 2 on: `131 times`."""
    return f"{signed(100 * (ratio - 1), 1)}\u00a0%" if ratio < 2 else _times(ratio)


def _times(ratio: float) -> str:
    """Format a ratio of perplexities: `1.05 times`; without decimals from 10 on."""
    return f"{number(ratio, 2 if ratio < 10 else 0)}\u00a0times" if finite(ratio) else number(ratio)


def _group(opened: "Run", other: "Run") -> tuple[str, bool]:
    """Return the name of the group that another run is drawn in, and whether it was fine-tuned from this one."""
    from diffeqformer.runs.results import name_of_run

    base = other.config.base
    if base.method and Path(base.run).expanduser().resolve() == opened.folder.resolve():
        return METHODS[base.method], True
    return name_of_run(other.config), False
