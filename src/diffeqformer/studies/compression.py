"""`diffeqformer analyze compression`: a table of layers compressed in several ways, loss against size."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from diffeqformer.config.bounds import SIZES, setting
from diffeqformer.errors import BadInput
from diffeqformer.plain import Values, finite_or_none
from diffeqformer.progress import Progress
from diffeqformer.report.table import Table
from diffeqformer.report.text import finite, join, percent, perplexity
from diffeqformer.studies import inputs
from diffeqformer.studies.study import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 8
"""Most sizes tried, evenly spread."""
OF_USE = 0.25
"""Relative rise of perplexity up to which a compressed model is still called useful."""
LEVEL = 0.01
"""Relative difference of perplexity below which two ways are called level."""
WAYS = {
    "knots-as-is": "knots",
    "knots": "knots, aligned",
    "knots-weighted": "knots, aligned, weighted by activations",
    "modes": "fewer directions over depth, aligned",
    "mean-rank": "mean layer, low rank per layer, aligned",
    "rank": "low rank per layer",
    "rank-weighted": "low rank per layer, weighted by activations",
}
"""Ways to compress, in order, with their display names; the last two share nothing over depth."""


@dataclass(frozen=True, kw_only=True)
class Arguments(inputs.OfText):
    """Compression over depth beside that within layers, without training: perplexity against numbers stored.

    Example: diffeqformer analyze compression runs/quickstart/gpt
    """

    texts: int = setting(256, least=2, most=SIZES)
    """Windows of the text, evenly spread over it, each as long as the context: every other one for activations, the
    rest for loss."""
    batch_size: int = setting(16, least=1, most=SIZES)
    """Windows at a time."""


def study(arguments: Arguments, progress: Progress) -> Result:
    """Compress the run's table of layers in every way, and evaluate each result at the run's depth.

    **Raises:** `BadInput` for a model that is no table or has one layer, or a text too short for two windows;
    `RunFailed` for weights that are not finite.
    """
    from diffeqformer.analysis import compression as make
    from diffeqformer.analysis.finite import require_finite
    from diffeqformer.evaluation.perplexity import evaluate
    from diffeqformer.model.count import count
    from diffeqformer.model.lift import aligned, table_of

    opened, folder = arguments.open("compression", progress)
    original = opened.model.merge().populate(arguments.steps)
    as_is, layers = table_of(original).layers, original.config.steps
    require_finite(as_is, "weights")
    if layers < 2:
        raise BadInput("the model has 1 layer, but needs at least 2 to be made smaller over depth.")
    tokens, _, mask = inputs.evaluation_text(opened, arguments.data, progress)
    model = aligned(original)
    length = model.config.context + 1
    unit = inputs.problem_length(opened, arguments.data)
    texts, counted = inputs.spread_texts(tokens, mask, arguments.texts, length, unit)
    if len(texts) < 2:
        raise BadInput(f"the text has {len(tokens)} tokens, but needs two times {length}.")
    read, judged, counted = texts[::2, :-1], texts[1::2], counted[1::2, 1:]
    moments = make.second_moments(model, read, batch=arguments.batch_size, progress=progress)
    pieces = [slice(at, at + arguments.batch_size) for at in range(0, len(judged), arguments.batch_size)]
    batches = [(judged[some], counted[some]) for some in pieces]
    weights = table_of(model)
    rows = weights.layers
    sizes = sorted({*np.linspace(1, layers - 1, min(MOST, layers - 1)).round().astype(int).tolist()})
    ways: dict[str, Iterable[make.Smaller]] = {
        "knots-as-is": (make.fewer_knots(as_is, size) for size in sizes),
        "knots": (make.fewer_knots(rows, size) for size in sizes),
        "knots-weighted": (make.fewer_knots(rows, size, moments) for size in sizes),
        "modes": make.depth_modes(rows, sizes),
        "mean-rank": make.low_rank(rows, sizes, around_mean=True),
        "rank": make.low_rank(rows, sizes),
        "rank-weighted": make.low_rank(rows, sizes, moments),
    }
    whole, found = evaluate(original, batches, progress=progress, name="Evaluating the original").loss, []
    with progress.stage("Evaluating smaller models", len(ways) * len(sizes)) as stage:
        for way, made in ways.items():
            for size, smaller in zip(sizes, made, strict=True):
                own = model.replace(weights=replace(weights, layers=smaller.rows))
                loss = evaluate(own, batches).loss
                found.append({"way": way, "size": size, "numbers": smaller.numbers, "loss": loss})
                stage.advance(1)
    text = ", ".join(arguments.data) if arguments.data else f"The validation text of {opened.folder}"
    about = (
        f"{text}: activations from {len(read)} text{'s' * (len(read) > 1)} of {model.config.context} tokens, losses on "
        f"{len(judged)} other{'s' * (len(judged) > 1)}; "
        f"{inputs.described(opened)}, {layers} layers."
        f"{'' if arguments.data else inputs.whole_split(opened, layers)}{made_of(opened.config.model.weights.kind)}"
    )
    known = {**opened.which, "layers": layers, "block_numbers": count(rows), "original": whole}
    return result(found, known, about, folder)


def made_of(kind: str) -> str:
    """Caution that layers of this kind of weights have much in common by construction, if they do; else empty."""
    if kind in ("layer", "layerdrop", "levels"):
        return ""
    return (
        f" Its layers come from weights of kind `{kind}`, functions of depth: where these are smooth, sharing over "
        "depth costs little by construction, which says nothing about models whose layers are independent."
    )


def result(found: Sequence[Values], known: Values, about: str, folder: Path = Path()) -> Result:
    """Build the result: sentences, the table and the figure.

    **Arguments:** `found`, one record per way and size: `way`, `size` (in layers), `numbers`, `loss` (nats); `known`,
    `layers`, `block_numbers` and `original` (the loss of the whole model), and more for the JSON document; `about`,
    which model was evaluated on which text.
    """
    from diffeqformer.report.page import both_widths

    caption = (
        "Perplexity against the share of the blocks' parameters kept, without training; the grey line is the whole "
        "model."
    )
    smaller = [{**row, "loss": finite_or_none(row["loss"])} for row in found]
    arrays = {name: np.asarray([row[name] for row in found]) for name in ("size", "numbers", "loss")}
    return Result(
        "compression",
        "Which loses less: layers that share their parameters, or layers of lower rank?",
        (
            headline(found, known),
            about,
            f"A share of K/{known['layers']} keeps as many of the blocks' parameters as K of the {known['layers']} "
            "layers have. Solid lines share over depth: layers are built from a few, or from their mean and "
            "corrections. Dashed lines keep every layer separate, each with matrices of lower rank.",
        ),
        (table(found, known),),
        (both_widths("compression-loss", caption, loss_against_size, found, known),),
        arrays={**arrays, "way": np.asarray([row["way"] for row in found]), "original": np.asarray(known["original"])},
        document={**known, "original": finite_or_none(known["original"]), "smaller": smaller},
        notes=notes(known["layers"]),
        folder=folder,
    )


def notes(layers: int) -> tuple[str, ...]:
    """Explain the ways to compress."""
    return (
        f"Knots: layers are interpolated linearly over depth between K knots, fitted to the {layers} layers "
        "by least squares.",
        "Fewer directions over depth: every layer is the mean layer plus a combination of K − 1 others (truncated "
        "singular value decomposition over depth), which is what time-dependent weights with d_emb = K − 1 hold.",
        "Mean layer, low rank per layer: every layer is the mean layer plus its own low-rank matrices.",
        f"Low rank per layer: each matrix becomes a product of two thin ones with K/{layers} of its numbers; biases "
        "and norms are kept.",
        "Aligned: first, each layer's hidden units and heads are put into the order in which they are most like those "
        "of the previous layer, which changes no output. Weighted by activations: the outputs on the text are fitted, "
        "not the matrices.",
    )


def headline(found: Sequence[Values], known: Values) -> str:
    """Compare the best way over depth with the best within layers, at the smallest size that is still useful.

    If no size is, the largest size that was tried is used instead, and the sentence says so.
    """
    loss = lambda row: row["loss"] if finite(row["loss"]) else np.inf
    of_use = {row["size"] for row in found if loss(row) <= known["original"] + np.log1p(OF_USE)}
    size = min(of_use) if of_use else max(row["size"] for row in found)
    within_reach = (
        f"the smallest size that keeps perplexity within {percent(OF_USE)}"
        if of_use
        else f"the largest size tried; none keeps perplexity within {percent(OF_USE)}"
    )
    sides = list(WAYS)[:-2], list(WAYS)[-2:]
    best = lambda size, ways: min((row for row in found if row["size"] == size and row["way"] in ways), key=loss)
    # Infinity minus infinity, where neither way has a finite loss, counts as level.
    lead = {one: float(np.nan_to_num(loss(best(one, sides[1])) - loss(best(one, sides[0]))))
            for one in sorted({row["size"] for row in found})}  # fmt: skip
    sign = 1 if lead[size] >= 0 else -1
    winner, loser = sides[::sign]
    names = ("sharing over depth", "low rank within layers")[::sign]
    said = lambda row: f"{perplexity(float(np.exp(loss(row))))} ({WAYS[row['way']]})"
    shares = lambda chosen: join([f"{one}/{known['layers']}" for one in chosen])
    level = [one for one in lead if abs(lead[one]) < LEVEL and one != size]
    turned = [one for one in lead if sign * lead[one] <= -LEVEL]
    alike = [one for one in lead if one not in (*level, *turned, size)]
    even = abs(lead[size]) < LEVEL
    everywhere = len(lead) > 1 and not (even or level or turned)
    where = f"at all {len(lead)} sizes" if everywhere else f"at {size}/{known['layers']}"
    if even:
        lesser = zip((alike, turned), names, strict=True)
        otherwise = "".join(f" At {shares(some)}, {name} loses less." for some, name in lesser if some)
    else:
        otherwise = f" The same holds at {shares(alike)}." if alike and (level or turned) else ""
        otherwise += f" At {shares(turned)}, it is the other way round." if turned else ""
    if level:
        by = " or ".join(dict.fromkeys(WAYS[best(one, sides[0])["way"]] for one in level))
        otherwise += f" At {shares(level)}, the two are within {percent(LEVEL)} of each other (over depth: {by})."
    loses = "loses as much as" if even else "loses less than"
    return (
        f"Of the best of each kind, {names[0]} {loses} {names[1]} {where}: with {size}/{known['layers']} of the "
        f"blocks' parameters ({within_reach}) and no training, perplexity {said(best(size, winner))} against "
        f"{said(best(size, loser))}; the whole model has {perplexity(float(np.exp(known['original'])))}.{otherwise}"
    )


def table(found: Sequence[Values], known: Values) -> Table:
    """Tabulate perplexity: one row per way, one column per size."""
    sizes = sorted({row["size"] for row in found})
    at = {(row["way"], row["size"]): perplexity(float(np.exp(row["loss"]))) for row in found}
    columns = ("way", *(f"{size}/{known['layers']}" for size in sizes))
    rows = tuple((name, *(at[way, size] for size in sizes)) for way, name in WAYS.items())
    return Table("Perplexity, by the share of the blocks' parameters", columns, rows)


def loss_against_size(found: Sequence[Values], known: Values, *, width: float) -> "Figure":
    """Plot every way's perplexity against the share of the blocks' numbers; dashed if nothing is shared over depth."""
    from diffeqformer.report.figures import COLORS, INK, drawing, is_narrow, legend, look, perplexity_scale

    looks = {way: look(i, linestyle="--" if way.startswith("rank") else "-") for i, way in enumerate(WAYS)}
    for way in list(WAYS)[len(COLORS) :]:  # there is one way more than colours
        looks[way] |= {"color": INK, "marker": "X"}
    layers, sizes = known["layers"], sorted({row["size"] for row in found})
    with drawing(width, 4.6 if is_narrow(width) else 3.9) as (figure, axes):
        axis, seen = axes[0, 0], [float(np.exp(known["original"]))]
        axis.axhline(seen[0], color=INK, linewidth=0.8, alpha=0.5)
        for way, own in looks.items():
            all_points = [(row["numbers"] / known["block_numbers"], float(np.exp(row["loss"])))
                          for row in found if row["way"] == way]  # fmt: skip
            points = [(share, y) for share, y in all_points if finite(y)]
            if points:
                axis.plot(*zip(*points, strict=True), **own)
            seen += [y for _, y in points]
        perplexity_scale(axis, seen, "perplexity")
        axis.set_xticks([size / layers for size in sizes], [f"{size}/{layers}" for size in sizes])
        axis.set_xlabel("share of the blocks' parameters kept")
        legend(figure, [(own, WAYS[way]) for way, own in looks.items()], width)
    return figure
