"""`diffeqformer analyze attribution`: explanations of a prediction, and a test of which of them to trust."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import tyro

from diffeqformer.config.bounds import MOST_STEPS, SIZES, UINT32, setting
from diffeqformer.errors import BadInput
from diffeqformer.progress import Progress
from diffeqformer.report.table import Table
from diffeqformer.report.text import counted, join, number, probability
from diffeqformer.studies import inputs
from diffeqformer.studies.study import Result

if TYPE_CHECKING:
    from diffeqformer.analysis.attribution import Attributions
    from diffeqformer.analysis.faithfulness import Faithfulness
    from diffeqformer.runs.opening import Run


@dataclass(frozen=True, kw_only=True)
class Arguments(inputs.OfText):
    """Explanations of a prediction side by side, and a test of which of them to trust on this model.

    Example: diffeqformer analyze attribution runs/quickstart/diffeqformer --text "def main(argv):" --faithfulness 200
    """

    text: str | None = None
    """Text to explain, at most as long as the model's context; may be left out with --faithfulness."""
    output_token: inputs.Number = setting(None, least=0, most=SIZES)
    """Position whose prediction is explained, from 0; if not given, the last 32 of the text, to choose from in the
    page."""
    faithfulness: Annotated[int, tyro.conf.arg(metavar="N")] = setting(0, least=0, most=SIZES)
    """Contexts, drawn from all of the text of --data, on which the explanations are tested; 0 for no test."""
    context_tokens: int = setting(64, least=2, most=SIZES)
    """Tokens of each of these contexts; the model's context if that is shorter."""
    draws: int = setting(4, least=1, most=MOST_STEPS)
    """Replacements drawn for each token of these contexts."""
    tangents: inputs.Number = setting(None, least=1, most=SIZES)
    """Tangents of pairwise Lyapunov exponents; if not given, 4 or the model's width if smaller."""
    probes: inputs.Number = setting(None, least=1, most=SIZES)
    """Probes of end-to-end Lyapunov exponents; if not given, 16 or the model's width if smaller."""
    points: int = setting(32, least=1, most=MOST_STEPS)
    """Quadrature points of integrated gradients."""
    seed: int = setting(0, least=0, most=UINT32)
    """Seed of all random draws."""


TOO_MUCH = 0.1
"""Error in the sum of integrated gradients, in nats, above which the user is warned."""
DESCRIPTIONS = {
    "Lyapunov, pairwise, random direction": "Growth of a random direction at one input under the field at the output "
    "(paper): the fastest of as many as there are tangents.",
    "Lyapunov, end-to-end growth": "Growth of a random perturbation of an input's embedding up to the output's final "
    "state.",
    "attention": "Attention weight of the input in the output's row, averaged over heads and the whole depth.",
    "attention, last step": "The same, in the last step alone.",
    "attention rollout": "The output's row of the product over depth of (A + I) / 2, where A is the mean over heads.",
    "gradient x input": "Derivative of the predicted token's log p with respect to the input's embedding, times that "
    "embedding.",
    "integrated gradients": "Mean of that derivative along the line from the mean embedding, times the distance; "
    "adds up.",
    "occlusion": "Fall of log p, in nats, when the mean embedding replaces the input's.",
    "random": "Drawn at random: what a chance ranking looks like.",
}


def study(arguments: Arguments, progress: Progress) -> Result:
    """Explain a text, test the explanations, or both; the test comes first."""
    _check(arguments)
    import jax.numpy as jnp

    from diffeqformer.analysis.faithfulness import explain, faithfulness

    opened, folder = arguments.open("attribution", progress)
    model = opened.model
    tangents, probes = inputs.directions(arguments.tangents, arguments.probes, model.config.width)
    ids = inputs.ids_of(opened, arguments.text) if arguments.text is not None else np.zeros(0, np.int32)
    outputs = inputs.outputs_of(len(ids), arguments.output_token) if len(ids) else ()
    split = inputs.evaluation_text(opened, arguments.data, progress)[0] if arguments.faithfulness else ids
    settings: dict[str, Any] = {
        "tangents": tangents, "probes": probes, "points": arguments.points,
        "steps": arguments.steps, "seed": arguments.seed, "progress": progress,
    }  # fmt: skip
    title, said = "What does a prediction rest on?", (f"{inputs.described(opened)}.",)
    shown = Result("attribution", title, said, document=opened.which, folder=folder)
    if outputs:
        shown = with_text(shown, explain(model, jnp.asarray(ids), outputs, **settings), ids, opened)
    if arguments.faithfulness:
        length = min(arguments.context_tokens, model.config.context)
        found = faithfulness(
            model, split, contexts=arguments.faithfulness, length=length, draws=arguments.draws, **settings
        )
        shown = with_test(shown, found, length, inputs.whose(arguments.data))
    return shown


def with_text(shown: Result, explained: "Attributions", ids: np.ndarray, opened: "Run") -> Result:
    """Show the explanations of a text: its token map, and a figure and a table of its last output."""
    from diffeqformer.analysis.attribution import SIGNED
    from diffeqformer.analysis.tables import scores_table
    from diffeqformer.report.page import TokenMap, both_widths
    from diffeqformer.studies.attribution_figures import occluded

    outputs, scores, last = explained.outputs, explained.scores, max(explained.outputs)
    tokens, predicted = inputs.pieces_of(opened, ids), inputs.pieces_of(opened, explained.targets)
    expected = [
        f"“{piece}” (probability {probability(float(np.exp(log_p)))})"
        for piece, log_p in zip(predicted, explained.log_probabilities, strict=True)
    ]
    captions = tuple(
        f"Scores of every input for {what}, expected after {at}, {tokens[at]}"
        for at, what in zip(outputs, expected, strict=True)
    )
    headlines = tuple(
        headline(tokens, at, what, {name: rows[row] for name, rows in scores.items()})
        for row, (at, what) in enumerate(zip(outputs, expected, strict=True))
    )
    said = [
        headlines[-1],
        f"{inputs.described(opened)}: a text of {counted(len(ids), 'token')}. It is the log-probability of the model's "
        "own prediction that is explained.",
    ]
    missed = float(np.abs(explained.incompleteness).max())
    if missed > TOO_MUCH:
        said.append(f"Integrated gradients miss {missed:.2f} nats of what they should add up to; use more --points.")
    seen = (
        f"After token {last}, “{tokens[last]}”, the model expects {expected[-1]}. Shown is how far its log p falls "
        "when the mean embedding replaces each input, one at a time (occlusion). Blue supports the prediction, "
        "orange opposes it."
    )
    falls = scores["occlusion"][-1, : last + 1]
    methods = leading(("occlusion",), scores)  # without a test: the one method that perturbs the input
    return replace(
        shown,
        findings=tuple(said),
        tables=(scores_table(captions[-1], last, {name: rows[-1] for name, rows in scores.items()}, tokens),),
        figures=(both_widths("occlusion", seen, occluded, tokens[: last + 1], falls, output=last),),
        maps=(TokenMap(tokens, outputs, methods, DESCRIPTIONS, headlines, captions, signed=SIGNED),),
        arrays={"ids": ids, **explained.arrays()},
        document={
            **shown.document,
            "tokens": list(tokens),
            "outputs": list(outputs),
            "predicted": list(predicted),
            "log_probabilities": explained.log_probabilities.tolist(),
            "incompleteness": explained.incompleteness.tolist(),
            "scores": {name: inputs.finite_rows(values) for name, values in scores.items()},
        },
    )


def with_test(shown: Result, found: "Faithfulness", length: int, over: str) -> Result:
    """Put the test of the explanations before what is shown, and the methods of its token map in the test's order.

    **Arguments:** `length` of the contexts in tokens; `over`, what they were drawn from.
    """
    from diffeqformer.report.page import both_widths
    from diffeqformer.studies.attribution_figures import correlations, curves

    ranking = found.ranking("strength")
    ranked = "Rank correlation of scores with what replacing a token changes"
    replaced = "Replacing the tokens with the highest scores, and putting them back"
    tested = {
        "contexts": len(found.starts),
        "length": length,
        "verdict": found.verdict(),
        "ranking": list(ranking),
        **{m: {k: [e.mean, e.low, e.high] for k, e in found.estimates(m).items()} for m in found.measures()},
    }
    return replace(
        shown,
        findings=(
            found.headline(),
            found.verdict(),
            *shown.findings,
            "Occlusion replaces single tokens, as the rank correlations do, though with another vector, so its good "
            "rank there is partly by construction. Deletion and insertion replace many.",
        ),
        tables=(trust(found, length, over), *shown.tables),
        figures=(
            both_widths("correlations", ranked, correlations, found),
            both_widths("deletion-insertion", replaced, curves, found),
            *shown.figures,
        ),
        maps=tuple(replace(one, methods=leading(ranking, one.methods)) for one in shown.maps),
        arrays={**shown.arrays, **found.arrays()},
        document={**shown.document, "faithfulness": tested},
    )


def leading(names: Sequence[str], scores: "Mapping[str, np.ndarray]") -> "dict[str, np.ndarray]":
    """Put the methods that are named first, in that order."""
    return {name: scores[name] for name in (*names, *scores)}  # a dictionary keeps a name's first position


def _check(arguments: Arguments) -> None:
    if arguments.text is None and not arguments.faithfulness:
        raise BadInput("there is nothing to do: give a --text, or a number of contexts with --faithfulness, or both.")
    if arguments.faithfulness == 1:
        raise BadInput("--faithfulness is 1, but an interval needs at least 2 contexts; hundreds are better.")
    if not arguments.faithfulness:
        inputs.require_usual(arguments, ("data", "context_tokens", "draws"), "only --faithfulness reads it")
    if arguments.text is None:
        inputs.require_usual(arguments, ("output_token",), "there is no --text that it would be of")


def headline(tokens: Sequence[str], at: int, expected: str, scores: "Mapping[str, np.ndarray]") -> str:
    """State what an output predicts, and which token it rests on most by occlusion and by two other methods."""
    token, occlusion = lambda place: f"token {place}, “{tokens[place]}”", scores["occlusion"]
    best, worst = int(np.nanargmax(occlusion)), int(np.nanargmin(occlusion))
    fall, rise = occlusion[best], -occlusion[worst]
    rests = (
        f"By occlusion, that rests most on {token(best)}: with the mean embedding in its place, log p falls by "
        f"{fall:.3g} nats"
        if fall > 0
        else "By occlusion, it rests on no single token: with the mean embedding in place of any one, log p does not "
        "fall"
    )
    more = f"; {token(worst)}, counts against it by more ({rise:.3g})" if rise > fall > 0 else ""
    said = f"After {token(at)}, the model expects {expected}. {rests}{more}."
    if not at:
        return said + _disagreement(scores, [best])
    first = int(np.nanargmax(occlusion[:at]))
    names = {"Lyapunov, end-to-end growth": "end-to-end exponents", "attention": "mean attention"}
    places: dict[int, list[str]] = {}
    for name, words in names.items():
        places.setdefault(int(np.nanargmax(scores[name][:at])), []).append(words)
    before = [] if first == best else [f"occlusion puts {token(first)}, first ({occlusion[first]:.2g} nats)"]
    for place, methods in places.items():
        effect = occlusion[place]
        does = f"raises log p by {-effect:.2g}" if effect < 0 else f"lowers log p by {effect:.2g}"
        put = f"{join(methods)} {'puts' if methods == [names['attention']] else 'put'}"
        if place == first:
            before.append(f"{put} token {place} first")
        else:
            against = ", so by occlusion it counts against the prediction" if effect < 0 else ""
            before.append(f"{put} {token(place)}, first: replacing it {does}{against}")
    named = [best, first, *places]
    return f"{said} Of the tokens before token {at}, {'; '.join(before)}.{_disagreement(scores, named)}"


def _disagreement(scores: "Mapping[str, np.ndarray]", named: Sequence[int]) -> str:
    """State at which named tokens integrated gradients have the opposite sign and at least a tenth of a nat."""
    one, other = scores["occlusion"], scores["integrated gradients"]
    opposed = [place for place in dict.fromkeys(named) if one[place] * other[place] < 0 and abs(other[place]) >= 0.1]
    if not opposed:
        return ""
    where = f"token{'s' * (len(opposed) > 1)} {join([f'{place} ({number(other[place], 2)})' for place in opposed])}"
    return f" Integrated gradients say the opposite of {where}."


def trust(found: "Faithfulness", length: int, over: str) -> Table:
    """Tabulate which explanation to trust, the best first; `over` names what the contexts were drawn from."""
    caption = (
        f"Which explanation to trust: {len(found.starts)} contexts of {length} tokens drawn from all of "
        f"{over}; means and 95 % bootstrap intervals; in every column, higher is better"
    )
    columns = ("method", "rank correlation, strength", "with signs", "deletion (nats)", "insertion (nats)")
    return Table(caption, columns, found.rows())
