"""The page of quality against depth and compute."""

from diffeqformer.evaluation.depth import DepthCurve
from diffeqformer.evaluation.perplexity import Evaluation
from diffeqformer.report.depth_figures import group_name, groups_of, quality_over_compute, quality_over_depth
from diffeqformer.report.figures import NARROW
from diffeqformer.report.page import Figure, Page, Table
from diffeqformer.report.text import MISSING, evaluations, finite, join, nats, number, perplexity

EARLY = (
    "With early exit a token stops at the step that moves its prediction by less than a threshold: the prediction "
    "after a step is the end of the straight line through it, after the final norm. The token then goes on along that "
    "line, without evaluations of its own, where others attend to it. What is drawn is the mean number of steps of a "
    "token; a batch is as slow as its slowest token, so that time is only saved where all have settled."
)
NEAR = 0.02
"""A rise of perplexity that is called near: the two per cent that one checkpoint for all depths has to keep."""


def depth_page(curve: DepthCurve, text: str) -> Page:
    """Sentences, figures and tables of a model at several depths; `text` says what all were evaluated on."""
    others = (Table("Other models, each at its own depth", *marks_table(curve)),) if curve.marks else ()
    early = (Table(f"Early exit from {max(curve.points)} steps", *exits_table(curve)),) if curve.exits else ()
    return Page(
        "Quality against depth and compute",
        (
            finding(curve),
            *comparisons(curve),
            f"All are evaluated on the same text: {text}. They take turns, one batch each, so that their speeds can be "
            "compared; making the weights of the steps is part of the time, compiling is not. Low-rank adapters are "
            "added into their matrices first.",
            *((EARLY,) if curve.exits else ()),
        ),
        tuple(
            Figure(name, caption, draw(curve), draw(curve, width=NARROW))
            for name, caption, draw in (
                ("perplexity-steps", "Perplexity against the number of steps run.", quality_over_depth),
                (
                    "perplexity-compute",
                    "Perplexity against what it costs: measured tokens a second, and evaluations of the vector field "
                    "for the whole text (mean of its attention and feed-forward halves). Numbers at the points: steps.",
                    quality_over_compute,
                ),
            )
        ),
        (Table(f"{curve.name} without fine-tuning", *depths_table(curve)), *early, *others),
    )


def finding(curve: DepthCurve) -> str:
    """What the curve shows, in one sentence computed from it."""
    own = curve.points[curve.own].perplexity
    if not finite(own):
        return f"{curve.name} has no finite perplexity at its own {curve.own} steps."
    start = f"At its own {_steps(curve.own)} {curve.name} has perplexity {perplexity(own)}"
    others = {steps: found.perplexity / own for steps, found in curve.points.items() if steps != curve.own}
    if not others:
        return f"{start}."
    ratios = {steps: ratio for steps, ratio in others.items() if finite(ratio)}
    near = [steps for steps, ratio in ratios.items() if ratio <= 1 + NEAR]
    far = {steps: ratio for steps, ratio in ratios.items() if steps not in near}
    failed = [steps for steps in others if steps not in ratios]
    parts = []
    if near:
        parts.append(f"at {_list(near)} it is at most {NEAR:.0%} above that".replace("%", " %"))
    if far:
        least, most = min(far, key=far.__getitem__), max(far, key=far.__getitem__)
        span = f"{_times(far[least])} ({_steps(least)})"
        span += f" to {_times(far[most])} ({_steps(most)})" if most != least else ""
        parts.append(f"{'elsewhere' if near else 'it is'} {span} as high")
    if failed:
        parts.append(f"it is not finite at {_list(failed)}")
    return f"{start}; run at other depths without fine-tuning, {join(parts)}."


def comparisons(curve: DepthCurve) -> list[str]:
    """A sentence for each group of other models."""
    said = []
    for (tuned, group), marks in groups_of(curve).items():
        parts = []
        for mark in marks:
            before = curve.points.get(mark.steps)
            beside = f" ({'before' if tuned else curve.name}: {perplexity(before.perplexity)})" if before else ""
            parts.append(f"{perplexity(mark.found.perplexity)} at {_steps(mark.steps)}{beside}")
        name = group_name(tuned, group)
        said.append(f"{name[0].upper()}{name[1:]}: perplexity {join(parts)}.")
    return said


def depths_table(curve: DepthCurve) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Columns and rows: the model at every depth."""
    own = curve.points[curve.own].perplexity
    columns = ("steps", "perplexity", "against its own", "loss (nats)", "bits/byte", "evaluations", "tokens/s")
    rows = tuple(
        (
            f"{steps} (own)" if steps == curve.own else str(steps),
            perplexity(found.perplexity),
            MISSING if steps == curve.own else _times(found.perplexity / own),
            *_numbers(found),
        )
        for steps, found in curve.points.items()
    )
    return columns, rows


def exits_table(curve: DepthCurve) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Columns and rows: early exit at every threshold."""
    whole = curve.points[max(curve.points)].perplexity
    columns = ("settled within", "mean steps", "perplexity", "against all steps", "loss (nats)", "bits/byte")
    rows = tuple(
        (
            f"{threshold:g}",
            number(curve.mean_steps(found), 2),
            perplexity(found.perplexity),
            _times(found.perplexity / whole),
            *_numbers(found)[:2],
        )
        for threshold, found in curve.exits.items()
    )
    return columns, rows


def marks_table(curve: DepthCurve) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Columns and rows: the other models, and this one at their depth."""
    columns = (
        "model", "run", "steps", "perplexity", "here, not tuned", "loss (nats)", "bits/byte", "evaluations", "tokens/s",
    )  # fmt: skip
    rows = []
    for (tuned, group), marks in groups_of(curve).items():
        for mark in marks:
            here = curve.points.get(mark.steps)
            rows.append(
                (
                    f"{curve.name}, {group_name(tuned, group)}" if tuned else group,
                    mark.run,
                    str(mark.steps),
                    perplexity(mark.found.perplexity),
                    MISSING if here is None else perplexity(here.perplexity),
                    *_numbers(mark.found),
                )
            )
    return columns, tuple(rows)


def _numbers(found: Evaluation) -> tuple[str, ...]:
    halves = {"attention": found.attention_evaluations, "feed_forward": found.feed_forward_evaluations}
    bits = nats(found.bits_per_byte)
    return number(found.loss, 4), bits, evaluations(halves), number(found.tokens_per_second)


def _steps(steps: int) -> str:
    return f"{steps} step{'' if steps == 1 else 's'}"


def _list(steps: list[int]) -> str:
    return f"{join([str(one) for one in steps])} step{'' if steps == [1] else 's'}"


def _times(ratio: float) -> str:
    """A ratio of perplexities at three digits: `1.05 times`."""
    return f"{number(ratio, 2 if ratio < 10 else 0)} times" if finite(ratio) else number(ratio)
