"""`diffeqformer analyze lyapunov`: exponents of every input token for chosen output tokens."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from diffeqformer.config.bounds import SIZES, UINT32, setting
from diffeqformer.plain import clean
from diffeqformer.progress import Progress
from diffeqformer.report.text import counted, counted_steps, factor, join
from diffeqformer.studies import inputs
from diffeqformer.studies.study import Result

if TYPE_CHECKING:
    from diffeqformer.analysis.end_to_end import EndToEnd
    from diffeqformer.analysis.lyapunov import Pairwise


@dataclass(frozen=True, kw_only=True)
class Arguments(inputs.OfRun):
    """How sensitive an output token is to each input token, as Lyapunov exponents along the model's own trajectory.

    Example: diffeqformer analyze lyapunov runs/quickstart/diffeqformer --text "def main(argv):" --output-token 3
    """

    text: str
    """Text to analyse, at most as long as the model's context."""
    output_token: inputs.Number = setting(None, least=0, most=SIZES)
    """Position whose output is analysed, from 0; if not given, the last 32 of the text, to choose from in the page."""
    method: Literal["both", "pairwise", "end-to-end"] = "both"
    """`pairwise`, the paper's: the field at the output against one input at a time; `end-to-end`: the derivative of the
    final state w.r.t. the embedding, through all tokens."""
    tangents: inputs.Number = setting(None, least=1, most=SIZES)
    """Number of leading exponents (pairwise); 4 if not given, at most the model's width, which gives the whole
    spectrum."""
    iterations: int = setting(30, least=0, most=10_000)
    """Most iterations from random first tangents to those that grow most (pairwise), until the error of the largest
    exponent is below 0.01; 0: random ones, as in the paper."""
    probes: inputs.Number = setting(None, least=1, most=SIZES)
    """Vector-Jacobian products per output (end-to-end); if not given, 16 or the model's width if smaller; the width
    gives exact exponents."""
    seed: int = setting(0, least=0, most=UINT32)
    """Seed of first tangents and probes."""


MEANING = {
    "end-to-end": "End-to-end exponents are logarithms of how much a small change of an input grows up to the output's "
    "final state, through all tokens and layers: at 0 it stays as large as it was, below 0 it shrinks. Growth is that "
    "of a change in a random direction. Leading is a lower bound for the direction that grows most.",
    "pairwise": "Pairwise exponents, the paper's, follow the output's own reaction to one input, without what happens "
    "to the tokens between. They are 0 if that input does not act on the output at all, so their scale differs from "
    "that of the others. Leading is the largest; mean is the mean of all that were computed.",
}
"""How to read the exponents of each method."""


@dataclass(frozen=True)
class Part:
    """The part of the result that one method contributes."""

    scores: dict[str, np.ndarray]
    """Scores by name, of shape (output, input)."""
    descriptions: dict[str, str]
    """One line for each of these names."""
    panel: tuple[np.ndarray, np.ndarray | None]
    """Scores of the last output's inputs, and their errors."""
    arrays: dict[str, np.ndarray]


def study(arguments: Arguments, progress: Progress) -> Result:
    """Compute exponents by one method or both, as a token map, and a figure and a table of the last output.

    **Raises:** `RunFailed` for a model whose weights or states are not finite.
    """
    import equinox as eqx
    import jax.numpy as jnp

    from diffeqformer.analysis.end_to_end import end_to_end
    from diffeqformer.analysis.finite import require_finite
    from diffeqformer.analysis.lyapunov import pairwise
    from diffeqformer.analysis.tables import scores_table
    from diffeqformer.report.page import Figure, TokenMap, both_widths
    from diffeqformer.studies.lyapunov_figures import exponents_over_depth, token_exponents

    unread = {"pairwise": ("probes",), "end-to-end": ("tangents", "iterations"), "both": ()}[arguments.method]
    inputs.require_usual(arguments, unread, f"--method {arguments.method} does not read it")
    opened, folder = arguments.open("lyapunov", progress)
    model, ids = opened.model, inputs.ids_of(opened, arguments.text)
    outputs = inputs.outputs_of(len(ids), arguments.output_token)
    last, tokens = outputs[-1], inputs.pieces_of(opened, ids)
    tangents, probes = inputs.directions(arguments.tangents, arguments.probes, model.config.width)
    settings: dict[str, Any] = {"steps": arguments.steps, "seed": arguments.seed, "progress": progress}
    grid = f"{counted_steps(arguments.steps or model.config.steps)} of scheme {model.config.scheme}"
    states = eqx.filter_jit(lambda model, ids: model.trajectory(ids, steps=arguments.steps))(model, ids[None])
    require_finite(states)
    parts: dict[str, Part] = {}
    drawn: tuple[Figure, ...] = ()
    if arguments.method != "end-to-end":
        found = pairwise(
            model, jnp.asarray(ids), outputs, tangents=tangents, iterations=arguments.iterations, **settings
        )
        parts["pairwise, leading"] = of_pairwise(found, grid)
        pieces = {f"{i} {clean(tokens[i])[:14]}": found.over_depth[-1, i] for i in most_sensitive(found)}
        times = np.asarray(model.grid(arguments.steps).edges)
        said = over_depth_caption(tokens, last, len(pieces))
        drawn = (both_widths("over_depth", said, exponents_over_depth, times, pieces, output=last),)
    probed = None
    if arguments.method != "pairwise":
        probed = end_to_end(model, jnp.asarray(ids), outputs, probes=probes, **settings)
        parts["end-to-end, growth"] = of_end_to_end(probed, model.config.width, grid)
    merged = lambda name: {k: v for part in parts.values() for k, v in getattr(part, name).items()}
    scores, arrays = merged("scores"), {"ids": ids, "outputs": np.asarray(outputs), **merged("arrays")}
    captions = tuple(f"Exponents of every input for the output at token {at}, “{tokens[at]}”" for at in outputs)
    columns = {name: rows[-1] for name, rows in scores.items()}
    whiskers = f"{captions[-1]}; bars: a bound on the error of pairwise ones, the standard error of end-to-end ones."
    first, *_, end = np.sqrt(np.square(np.asarray(states, np.float64)).mean((1, 2, 3)))
    panels = {name: part.panel for name, part in parts.items()}
    name = [*parts][-1]
    errors = [None] * len(outputs) if probed is None else probed.error
    leading = [None] * len(outputs) if probed is None else probed.exponents[..., 0]
    rows = zip(outputs, scores[name], errors, leading, strict=True)
    headlines = tuple(headline(tokens, at, name, row, error, end / first, most) for at, row, error, most in rows)
    return Result(
        "lyapunov",
        "Which tokens is an output's state sensitive to?",
        (
            headlines[-1],
            f"{inputs.described(opened)}: a text of {counted(len(ids), 'token')}. The chosen output is most "
            f"sensitive to the dark inputs, by the method chosen below; the sentence above always uses {name}.",
            *(MEANING[part.split(",")[0]] for part in reversed(parts)),
            "Exponents measure sensitivity, not importance: `analyze attribution --faithfulness` tests what "
            "they explain.",
        ),
        (scores_table(captions[-1], last, columns, tokens),),
        (both_widths("exponents", whiskers, token_exponents, tokens[: last + 1], panels, output=last), *drawn),
        (TokenMap(tokens, outputs, {name: scores[name]} | scores, merged("descriptions"), headlines, captions),),
        arrays=arrays,
        document={
            **opened.which,
            "tokens": list(tokens),
            "outputs": list(outputs),
            "scores": {name: inputs.finite_rows(values) for name, values in scores.items()},
        },
        folder=folder,
    )


def headline(
    tokens: tuple[str, ...],
    output: int,
    name: str,
    exponents: np.ndarray,
    error: np.ndarray | None,
    growth: float,
    leading: np.ndarray | None = None,
) -> str:
    """State to which earlier token an output's state is most sensitive, and how much a small change there grows.

    **Arguments:** `error`, standard errors of the `exponents`: tokens within two of these of the first are tied with
    it; `growth` of the states themselves; `leading`, a lower bound of the exponents in the direction that grows most.
    """
    method = name.replace(", ", " ")
    if not output:
        return f"The output at token 0, “{tokens[0]}”, has no token before it ({method} {exponents[0]:.2g})."
    token = lambda place: f"token {place}, “{tokens[place]}”"
    before = np.nan_to_num(exponents[:output], nan=-np.inf)
    best = int(np.argmax(before))
    near = 0.0 if error is None else 2 * np.nan_to_num(np.hypot(error[:output], error[best]))
    tied = [int(place) for place in np.flatnonzero(before >= before[best] - near) if place != best]
    named = f"{len(tied)} others" if len(tied) > 2 else join(list(map(token, tied)) or [""])
    beside = f"; {named} within two standard errors" if tied else ""
    grown = lambda exponent: factor(float(np.exp(exponent)))
    worst = lambda place: "" if leading is None else f" (at least {grown(leading[place])} in the worst direction)"
    arrives = (
        f"A small change there in a random direction arrives {grown(before[best])} times as large{worst(best)}, "
        f"and one at token {output} itself"
        if "pairwise" not in name
        else f"By that alone, a small change there grows {grown(before[best])} times, one at token {output} itself"
    )
    return (
        f"Of the tokens before it, the state at {token(output)}, is most sensitive to {token(best)} "
        f"({method}{beside}). {arrives} {grown(exponents[output])} times{worst(output)}; the states themselves "
        f"become {factor(float(growth))} times as large over depth (root mean square)."
    )


def over_depth_caption(tokens: tuple[str, ...], last: int, shown: int) -> str:
    """Write the caption of the exponents over depth; `shown`, of how many inputs."""
    whose = "each of its inputs" if shown > last else "the five inputs whose exponents are largest at the end"
    return f"The last output, token {last}, “{tokens[last]}”: its pairwise exponents up to each time, for {whose}."


def of_pairwise(found: "Pairwise", grid: str) -> Part:
    """Collect the paper's exponents, and the Kaplan-Yorke dimension if the exponents determine it everywhere."""
    number, leading = found.exponents.shape[-1], "Largest exponent of"
    how = f"{number} of {found.width} exponents, {grid}"
    if np.isfinite(found.error).any():
        whose = f"error at most {np.nanmax(found.error):.3f}"
    elif number == found.width:
        whose = "from the unit vectors as first tangents"
    else:
        whose = "from random first tangents, as in the paper, so they depend on the seed"
        which = "a random direction" if number == 1 else f"the fastest of {number} random directions"
        leading = f"Growth of {which} by"
    scores = {"pairwise, leading": found.leading, "pairwise, mean": found.mean}
    descriptions = {
        "pairwise, leading": f"{leading} dQ/dt = J Q over the whole depth, with J the derivative of the field at "
        f"the output with respect to the state of one input; {whose}; {how}.",
        "pairwise, mean": f"Mean of the exponents of the same equation; {how}.",
    }
    if (np.isfinite(found.dimension) | np.isnan(found.leading)).all():
        scores["pairwise, Kaplan-Yorke dimension"] = found.dimension
        descriptions["pairwise, Kaplan-Yorke dimension"] = f"That of the exponents of the same equation; {how}."
    seen = slice(found.outputs[-1] + 1)
    return Part(
        scores,
        descriptions,
        (found.leading[-1, seen], None if np.isnan(found.error).all() else found.error[-1, seen]),
        {f"pairwise_{name}": values for name, values in found.arrays().items() if name != "outputs"},
    )


def most_sensitive(found: "Pairwise") -> list[int]:
    """Return the five inputs with the largest exponents for the last output, largest first."""
    seen = found.leading[-1, : found.outputs[-1] + 1]
    return np.argsort(-np.nan_to_num(seen, nan=-np.inf, neginf=-np.inf), kind="stable")[:5].tolist()


def of_end_to_end(found: "EndToEnd", width: int, grid: str) -> Part:
    """Collect the growth of perturbations through all tokens."""
    probes = found.exponents.shape[-1]
    how = f"{f'{probes} random probes of' if probes < width else 'all'} {width} directions, {grid}"
    seen = slice(found.outputs[-1] + 1)
    return Part(
        {"end-to-end, growth": found.growth, "end-to-end, leading": found.exponents[..., 0]},
        {
            "end-to-end, growth": "How much a perturbation in a random direction at an input's embedding grows up to "
            f"the output's final state, through all tokens (log of the root mean square); {how}; standard error "
            f"{np.nanmedian(found.error):.3f} (median).",
            "end-to-end, leading": f"Lower bound on the largest exponent of the same derivative; {how}.",
        },
        (found.growth[-1, seen], found.error[-1, seen]),
        {f"end_to_end_{name}": values for name, values in found.arrays().items() if name != "outputs"},
    )
