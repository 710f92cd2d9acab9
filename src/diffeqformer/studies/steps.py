"""`diffeqformer analyze steps`: what each step of depth does, for any model."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import tyro

from diffeqformer.config.bounds import SIZES, setting
from diffeqformer.progress import Progress
from diffeqformer.report.table import Table
from diffeqformer.report.text import MISSING, counted_steps, depths, digits, percent, probability
from diffeqformer.studies import inputs
from diffeqformer.studies.study import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from diffeqformer.analysis.participation import Participation

UPDATES = 100_000
"""Most updates of a tuned lens."""
USUAL = 64
"""Default number of texts."""
SAME = 1e-6
"""Share of the weights' squared norm that may vary over depth through rounding alone."""
VARIES = (
    " What varies over depth is the share of a matrix's squared size over the steps that its mean does not account "
    "for, averaged over matrices. The effective rank over depth runs from 1, weights that are constant up to a factor, "
    "to the number of weights that the steps use, one or more for each."
)
Probes = tuple[np.ndarray, np.ndarray]
"""Loss and KL divergence of a tuned lens after every step."""
WORDS = {"attention.query_key_value": "query, key, value", "attention.output": "output"}


@dataclass(frozen=True, kw_only=True)
class Arguments(inputs.OfText):
    """What each step does: the loss of the prediction after it, how far it moves the state, how weights change.

    Example: diffeqformer analyze steps runs/quickstart/elastic --steps 12
    """

    texts: inputs.Number = setting(None, least=1, most=SIZES)
    """Windows of the text of --data, evenly spread over it, each as long as the context; if not given, 64, or as many
    as there are."""
    text: Annotated[str | None, tyro.conf.arg(metavar="TEXT")] = None
    """A text whose predictions after every step are also shown token by token."""
    tuned: int = setting(0, least=0, most=UPDATES)
    """Updates of a tuned lens, an affine probe per step (Belrose et al. 2023), shown beside the plain one; 0: none."""


def study(arguments: Arguments, progress: Progress) -> Result:
    """Read the predictions of the run's model after every step.

    **Raises:** `BadInput` for fewer than one text, or more than there are; `RunFailed` for a model whose states or
    losses are not finite.
    """
    from diffeqformer.analysis.participation import participation

    opened, folder = arguments.open("steps", progress)
    grid = opened.model.grid(arguments.steps)
    ids = inputs.ids_of(opened, arguments.text) if arguments.text is not None else None
    length = opened.config.model.context + 1
    sets = 2 if arguments.tuned else 1
    data = arguments.data
    texts, counted = inputs.evaluation_windows(opened, data, arguments.texts, length, progress, USUAL, sets=sets)
    texts, others, counted = texts[::sets], texts[1::sets], counted[::sets, 1:]
    found = participation(opened.model, texts, counted, steps=grid, progress=progress)
    probes = None
    if arguments.tuned:
        from diffeqformer.analysis.tuned_lens import tuned_lens

        lens_of = tuned_lens(opened.model, others[:, :-1], updates=arguments.tuned, steps=grid, progress=progress)
        probes = lens_of.read(opened.model, texts, counted, steps=grid)
    about = f"{inputs.described(opened)}, {counted_steps(grid.steps)}; "
    about += f"{len(texts)} text{'s' * (len(texts) > 1)} of {length - 1} tokens"
    about += "" if counted.all() else f", of which {counted.sum()} count as targets"
    about += f" from {inputs.whose(data)}." if data else f".{inputs.whole_split(opened, grid.steps)}"
    made = result(found, about, opened.which, folder, probes)
    if ids is None:
        return made
    from diffeqformer.analysis.reading import lens, walk

    # No token follows the last one: the 0 is a placeholder, and `log_next` is not used.
    read = lens(walk(opened.model, ids, steps=grid), np.append(ids[1:], 0))
    top = [inputs.pieces_of(opened, row) for row in read.top]
    arrays = {"ids": ids, "lens_top": read.top, "lens_probability": read.probability, "lens_kl": read.kl}
    return replace(
        made,
        tables=(*made.tables, by_token(inputs.pieces_of(opened, ids), top, read.probability)),
        arrays={**made.arrays, **arrays},
        document={**made.document, **{name: values.tolist() for name, values in arrays.items()}},
    )


def by_token(tokens: Sequence[str], top: Sequence[Sequence[str]], chances: np.ndarray) -> Table:
    """Tabulate, one row per token, the most likely next token after every step and its probability.

    The page's address with `#token=K` leads to the row of token K; the page of all analyses uses such links.
    """
    columns = ("token", "depth 0", *(f"step {step}" for step in range(1, len(top))))
    said = lambda i: (f"{pieces[i]} {probability(float(p[i]))}" for pieces, p in zip(top, chances, strict=True))
    rows = tuple((f"{i} {token}", *said(i)) for i, token in enumerate(tokens))
    return Table("What would come next after every step, and its probability", columns, rows, anchor="token=")


def result(
    found: "Participation", about: str, document: dict, folder: Path = Path(), tuned: Probes | None = None
) -> Result:
    """Build the result: sentences, tables and figures; `about` states what was read, `tuned` is the tuned lens's."""
    from diffeqformer.report.page import both_widths

    arrays, varies = found.arrays(), not same_weights(found)
    caption = losses_caption(found)
    if tuned is not None:
        arrays |= {"tuned_loss": tuned[0], "tuned_kl": tuned[1]}
    return Result(
        "steps",
        "What does each step do?",
        (
            headline(found),
            about,
            "The prediction after a step is the final norm and the head applied to the state there (the logit lens): a "
            "stop partway through these steps, not the model run in fewer, longer ones (`analyze depth`)."
            + (VARIES if varies else ""),
            *([tuned_finding(found, tuned)] if tuned else []),
        ),
        (by_step(found, tuned=tuned), *((by_matrix(found),) if varies else ())),
        (
            both_widths("steps-loss", caption, loss_by_step, found, tuned),
            both_widths("steps-movement", moves_caption(found), movement_by_step, found),
        ),
        arrays=arrays,
        document={**document, **{name: value.tolist() for name, value in arrays.items()}, "settled": found.settled},
        folder=folder,
    )


def headline(found: "Participation") -> str:
    """State after which step the prediction has settled, and how much weights vary over depth."""
    from diffeqformer.analysis.participation import NEAR

    steps, settled = len(found.loss) - 1, found.settled
    energy = sum(found.energy.values()) / len(found.energy)
    falls = -np.diff(found.loss)
    most = int(falls.argmax())
    # More than 1 where other steps raise the loss.
    share = falls[most] / (found.loss[0] - found.loss[-1]) if found.loss[0] > found.loss[-1] else 0.0
    alone = (
        f", and step {most + 1} alone makes {100 * min(share, 1.0):.0f} % of the loss's fall from {found.loss[0]:.3f}, "
        "that of the bare embedding"
    )
    alone = alone if share > 0.5 and steps > 1 else ""
    if steps == 1:
        used = f"The one step changes the loss of the prediction from {found.loss[0]:.3f} nats to {found.loss[1]:.3f}"
    elif settled >= steps:
        used = f"All {steps} steps change the prediction: its loss is {found.loss[-1]:.3f} nats after the last"
        used += f" and {found.loss[-2]:.3f} after the one before"
    else:
        used = (
            f"After {settled} of {steps} steps the prediction has settled: its loss is {found.loss[settled]:.3f} nats "
            f"there and {found.loss[-1]:.3f} at the end, never further than {NEAR:g} from it"
        )
    # The mean of orthogonal rows accounts for at most the longest step's share of depth; 1 / steps if all are equal.
    apart = 100 * (1 - np.diff(found.times).max())
    scale = f" (0 % if all steps had the same, at least {apart:.0f} % if they had nothing in common)"
    varies = f"{100 * energy:.0f} % of the weights' squared size varies over depth{scale if steps > 1 else ''}."
    if same_weights(found):
        varies = "All steps have the same weights." if steps > 1 else ""
    return f"{used}{alone}. {spelling(found)}{varies}".rstrip()


def same_weights(found: "Participation") -> bool:
    """Whether weights are constant over depth: shared ones, or those of a single step."""
    return max(found.energy.values()) < SAME


def spelling(found: "Participation") -> str:
    """State how many first steps predict worse than guessing and, if most of them predict the token just read, how
    often they do."""
    last = found.worse_than_even
    if not last:
        return ""
    first = "step 1 is" if last == 1 else f"the first {last} are"
    said = (
        f"Read this way, {first} worse than uniform guessing among {math.exp(found.even):,.0f} tokens "
        f"({found.even:.2f} nats)"
    )
    if found.echo.size and found.echo[1] > 0.5:
        said += (
            f": the state still predicts the token just read, at {100 * found.echo[1]:.0f} % of the positions after "
            f"step 1, {100 * found.echo[last]:.0f} % after step {last} and {100 * found.echo[-1]:.0f} % at the end"
        )
    return f"{said}. "


def losses_caption(found: "Participation") -> str:
    """Write the caption of the losses: where the loss begins and ends."""
    return (
        f"The loss goes from {found.loss[0]:.3f} nats per token before the first step to {found.loss[-1]:.3f} after "
        "the last. Shown are the loss of the prediction after every step and its KL divergence from the last one."
        + (" Dotted: uniform guessing." if found.worse_than_even else "")
    )


def moves_caption(found: "Participation") -> str:
    """Write the caption of the movements: which step moves the state most, by which half."""
    halves = {"attention": found.attention, "the feed-forward block": found.feed_forward}
    most = max(halves, key=lambda name: halves[name].max())
    step = int(halves[most].argmax())
    return (
        f"Step {step + 1} moves the state most, by {most} ({digits(halves[most][step])}; the state then has size "
        f"{digits(found.length[step + 1])}). Shown is the root mean square (RMS) of what attention and the "
        "feed-forward block add in each step, and of the state after it."
    )


def tuned_finding(found: "Participation", tuned: Probes) -> str:
    """Compare the divergence from the last prediction by a tuned lens with that by the plain lens."""
    near, far = tuned[1][:-1].mean(), found.kl[:-1].mean()
    why = (
        "the difference is what these states express in another basis than the head's"
        if near < far
        else "these probes found nothing that the head misses"
    )
    return (
        "With a tuned lens, an affine probe per step trained on as many other texts, the mean divergence from the last "
        f"prediction, over the states before the last, is {near:.3f} nats. The plain lens has {far:.3f}: {why}."
    )


def by_step(found: "Participation", caption: str = "After every step", tuned: Probes | None = None) -> Table:
    """Tabulate one row per state."""
    columns = (
        "step", "depth", "loss (nats per token)", "KL to the end", "state size (RMS)", "attention", "feed-forward"
    )  # fmt: skip
    at = depths(found.times.tolist())
    echoed = ("still the token read",) if found.echo.size else ()
    probed = ("tuned loss", "tuned KL") if tuned else ()
    rows = [
        (
            str(i), at[i], f"{found.loss[i]:.3f}", f"{found.kl[i]:z.3f}", digits(found.length[i]),
            *((digits(part[i - 1]) for part in (found.attention, found.feed_forward)) if i else (MISSING, MISSING)),
            *([percent(found.echo[i])] if echoed else []),
            *(f"{values[i]:z.3f}" for values in tuned or ()),
        )
        for i in range(len(found.loss))
    ]  # fmt: skip
    return Table(caption, (*columns, *echoed, *probed), tuple(rows))


def by_matrix(found: "Participation") -> Table:
    """Tabulate one row per matrix of a block."""
    rows = [
        (WORDS.get(name, name.rpartition(".")[2]), f"{100 * found.energy[name]:.1f} %", f"{found.rank[name]:.2f}")
        for name in found.energy
    ]
    return Table("Weights over depth", ("matrix", "varies over depth", "effective rank"), tuple(rows))


def loss_by_step(found: "Participation", tuned: Probes | None = None, *, width: float) -> "Figure":
    """Plot loss and KL divergence of the prediction after every step, from depth 0; also by a tuned lens, if given.

    The loss of uniform guessing is dotted, if some step is worse.
    """
    from diffeqformer.report.figures import INK, drawing, from_zero, is_narrow, legend, look

    steps = np.arange(len(found.loss))
    with drawing(width, *((6.4, 2, 1) if is_narrow(width) else (3.4, 1, 2))) as (figure, axes):
        names = ("loss (nats per token)", "KL to the last prediction (nats per token)")
        lines = []
        for index, (axis, values, name) in enumerate(zip(axes.flat, (found.loss, found.kl), names, strict=True)):
            lines = axis.plot(steps, values, **look(0))
            if tuned is not None:
                lines += axis.plot(steps, tuned[index], **look(1))
            axis.set(xlabel="steps taken", ylabel=name)
            from_zero(axis)
            if index == 0 and found.worse_than_even:
                axis.axhline(found.even, color=INK, linewidth=0.8, linestyle=":")
            axis.xaxis.get_major_locator().set_params(integer=True)
        if tuned is not None:
            legend(figure, list(zip(lines, ("logit lens", "tuned lens"), strict=True)), width)
    return figure


def movement_by_step(found: "Participation", *, width: float) -> "Figure":
    """Plot the root mean square of what each half adds in each step, and of the state after it."""
    from diffeqformer.report.figures import drawing, from_zero, legend, look

    steps = np.arange(1, len(found.loss))
    parts = {"attention": found.attention, "feed-forward": found.feed_forward, "state": found.length[1:]}
    with drawing(width, 3.7) as (figure, axes):
        (axis,) = axes.flat
        for index, values in enumerate(parts.values()):
            axis.plot(steps, values, **look(index))
        axis.set(xlabel="step", ylabel="root mean square")
        from_zero(axis)
        axis.xaxis.get_major_locator().set_params(integer=True)
        legend(figure, list(zip(axis.lines, parts, strict=True)), width)
    return figure
