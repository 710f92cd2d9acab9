"""`diffeqformer analyze attribution RUN [--text "..."] [--output-token j] [--faithfulness N]`"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import tyro

from diffeqformer.cli.output import print_json, print_table
from diffeqformer.cli.parse import parse
from diffeqformer.errors import BadInput
from diffeqformer.progress import Terminal


@dataclass(frozen=True)
class Arguments:
    """Explanations of a prediction side by side, and a test of which of them to trust on this model.

    Example: diffeqformer analyze attribution runs/quickstart/diffeqformer --text "def main(argv):" --faithfulness 200
    """

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    text: str = ""
    """Text to explain, at most as long as the model's context; may be left out with --faithfulness."""
    output_token: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Position whose prediction is explained, from 0; if not given, the last 32 of the text, to choose from in the
    page."""
    faithfulness: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Contexts of the validation split, drawn over all of it, on which the explanations are tested; 0 for no test."""
    context_tokens: int = 64
    """Tokens of each of these contexts; the model's context if that is shorter."""
    draws: int = 4
    """Replacements that are drawn for each of their tokens."""
    tangents: int = 4
    """Of the pairwise Lyapunov exponents."""
    probes: int = 16
    """Of the end-to-end Lyapunov exponents."""
    points: int = 32
    """Of the quadrature of integrated gradients."""
    steps: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Depth steps; the trained number if not given."""
    seed: int = 0
    """Of everything that is drawn."""
    checkpoint: Literal["latest", "best"] = "latest"
    """Newest checkpoint, or the one of lowest validation loss."""
    to: Annotated[str, tyro.conf.arg(metavar="DIR")] = ""
    """Folder for the page; RUN/analysis/attribution if not given."""


SAYS = {
    "Lyapunov, pairwise": "Largest exponent of the field at the output by one input's state, over all of depth.",
    "Lyapunov, end-to-end": "Growth of a random perturbation of an input's embedding until the output's final state.",
    "attention": "Attention weight of the input in the output's row, mean over heads and all of depth.",
    "attention, last step": "The same in the last step alone.",
    "attention rollout": "The output's row of the product over depth of (A + I) / 2, A the mean over heads.",
    "gradient x input": "Derivative of log p of the predicted token by the input's embedding, times the embedding.",
    "integrated gradients": "Mean of that derivative on the way from the mean embedding, times the distance; adds up.",
    "occlusion": "Fall of log p, nats, when the input's embedding is replaced by the mean one.",
    "random": "Drawn at random: what a ranking by chance looks like.",
}


def run(words: Sequence[str], as_json: bool) -> None:
    """Explain and test, write the page, and print the table of trust, or else the scores of the last output."""
    arguments = parse(Arguments, words, "diffeqformer analyze attribution")
    if not arguments.text and not arguments.faithfulness:
        raise BadInput("there is nothing to do: give a --text, or a number of contexts with --faithfulness, or both.")
    least_values = {
        "--faithfulness": (arguments.faithfulness, 0),
        "--draws": (arguments.draws, 1),
        "--points": (arguments.points, 1),
        "--context-tokens": (arguments.context_tokens, 2),
    }
    for name, (value, least) in least_values.items():
        if value < least:
            raise BadInput(f"{name} is {value}, but must be at least {least}.")
    if arguments.faithfulness == 1:
        raise BadInput("--faithfulness is 1, but an interval needs at least 2 contexts; hundreds are better.")
    import jax.numpy as jnp
    import numpy as np

    from diffeqformer.analysis.faithfulness import END_TO_END, explain, faithfulness
    from diffeqformer.cli.analyses import common
    from diffeqformer.report.figures import NARROW
    from diffeqformer.report.page import Figure, Page, Table, TokenMap, write_page
    from diffeqformer.report.sensitivity_figures import correlations, curves
    from diffeqformer.runs.opening import load_run

    common.require_seed(arguments.seed)
    progress = Terminal()
    opened = load_run(arguments.run, arguments.checkpoint, progress)
    model, folder = opened.model, common.folder_for("attribution", arguments.to, opened)
    common.require_directions(arguments.tangents, arguments.probes, model.config.width)
    ids = common.ids_of(opened, arguments.text) if arguments.text else np.zeros(0, np.int32)
    outputs: tuple[int, ...] = common.outputs_of(len(ids), arguments.output_token) if arguments.text else ()
    split = common.validation_tokens(opened, progress) if arguments.faithfulness else ids
    settings: dict[str, Any] = {
        "tangents": arguments.tangents, "probes": arguments.probes, "points": arguments.points,
        "steps": arguments.steps, "seed": arguments.seed, "progress": progress,
    }  # fmt: skip
    arrays: dict[str, np.ndarray] = {}
    maps, tables, figures, says = [], [], [], []
    whose = f"{opened.folder}, update {opened.step}"
    result: dict[str, Any] = {"run": str(opened.folder), "update": opened.step}
    printed: list[tuple[str, list[str], Any]] = []
    if arguments.text:
        tokens, last = common.pieces_of(opened, ids), max(outputs)
        explained = explain(model, jnp.asarray(ids), outputs, **settings)
        scores = explained.scores
        maps.append(TokenMap(tokens, outputs, scores, SAYS))
        rows = common.input_rows(tokens, last, {name: row[-1] for name, row in scores.items()})
        caption = f"Scores of every input for the prediction behind {last}, {tokens[last]}"
        tables.append(Table(caption, ("input", *scores), rows))
        (target,) = common.pieces_of(opened, explained.targets[-1:])
        top = "; ".join(
            f"{name}: {common.highest(tokens, scores[name][-1], 1)}" for name in ("occlusion", END_TO_END, "attention")
        )
        says += [
            f"Behind token {last}, “{tokens[last]}”, the model expects “{target}” with probability "
            f"{np.exp(explained.log_probabilities[-1]):.2f}. The input of the highest score: {top}.",
            f"{whose}: a text of {len(ids)} tokens; explained is the log-probability of the model's own prediction.",
        ]
        arrays |= {"ids": ids, "outputs": np.asarray(outputs), **{name_of(k): v for k, v in scores.items()}}
        result |= {"tokens": list(tokens), "outputs": list(outputs)}
        result["predicted"] = list(common.pieces_of(opened, explained.targets))
        result["log_probabilities"] = explained.log_probabilities.tolist()
        result["scores"] = {name: common.finite_rows(values) for name, values in scores.items()}
        printed.append((caption, ["input", *scores], rows))
    if arguments.faithfulness:
        length = min(arguments.context_tokens, model.config.context)
        found = faithfulness(
            model, split, contexts=arguments.faithfulness, length=length, draws=arguments.draws, **settings
        )
        columns = ("method", "rank correlation, strength", "with signs", "deletion (nats)", "insertion (nats)")
        caption = (
            f"Which explanation to trust: {arguments.faithfulness} contexts of {length} tokens drawn over the whole "
            "validation split; means and 95% bootstrap intervals; of all columns, more is better"
        )
        says = [
            found.verdict(),
            *(says or [f"{whose}."]),
            "Occlusion replaces single tokens, as the rank correlations do, though by another vector: that it ranks "
            "well there is partly by construction. Deletion and insertion replace many.",
        ]
        tables.insert(0, Table(caption, columns, found.rows()))
        figures += [
            Figure("correlations", "Rank correlation of scores with what replacing a token changes",
                   correlations(found), correlations(found, width=NARROW)),
            Figure("deletion-insertion", "Replacing the tokens of highest scores, and putting them back",
                   curves(found), curves(found, width=NARROW)),
        ]  # fmt: skip
        arrays |= found.arrays()
        result["faithfulness"] = {
            "contexts": arguments.faithfulness, "length": length, "verdict": found.verdict(),
            "ranking": list(found.ranking("strength")),
            **{m: {k: [e.mean, e.low, e.high] for k, e in found.estimates(m).items()} for m in found.measures()},
        }  # fmt: skip
        printed.append((found.verdict(), list(columns), found.rows()))
    page = Page("Attribution", tuple(says), tuple(figures), tuple(tables), tuple(maps))
    path = write_page(folder, "attribution", page, arrays)
    if as_json:
        return print_json({**result, "page": str(path), "arrays": str(folder / "attribution.npz")})
    for title, columns, rows in printed:
        print_table(title, columns, rows)
    print(path)


def name_of(method: str) -> str:
    """A method's name as that of an array."""
    return method.lower().replace(",", "").replace(" ", "_").replace("-", "_")
