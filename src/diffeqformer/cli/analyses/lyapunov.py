"""`diffeqformer analyze lyapunov RUN --text "..." [--output-token j] [--method NAME] [--tangents k]`"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import tyro

from diffeqformer.cli.output import print_json, print_table
from diffeqformer.cli.parse import parse
from diffeqformer.progress import Terminal


@dataclass(frozen=True)
class Arguments:
    """How sensitive an output token is to each input token, as Lyapunov exponents along the model's own trajectory.

    Example: diffeqformer analyze lyapunov runs/quickstart/diffeqformer --text "def main(argv):" --output-token 3
    """

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    text: str
    """Text to analyse, at most as long as the model's context."""
    output_token: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Position whose output is analysed, from 0; if not given, the last 32 of the text, to choose from in the page."""
    method: Literal["both", "pairwise", "end-to-end"] = "both"
    """`pairwise`, the paper's: the field at the output against one input at a time; `end-to-end`: the derivative of the
    final state by the embedding, through all tokens."""
    tangents: int = 4
    """k of the k leading exponents (pairwise); the model's width for the whole spectrum."""
    probes: int = 16
    """Vector-Jacobian products an output (end-to-end); the model's width for exact exponents."""
    steps: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Depth steps; the trained number if not given."""
    seed: int = 0
    """Of the random first tangents and probes."""
    checkpoint: Literal["latest", "best"] = "latest"
    """Newest checkpoint, or the one of lowest validation loss."""
    to: Annotated[str, tyro.conf.arg(metavar="DIR")] = ""
    """Folder for the page; RUN/analysis/lyapunov if not given."""


def run(words: Sequence[str], as_json: bool) -> None:
    """Analyse, write the page, and print the scores of the last output."""
    arguments = parse(Arguments, words, "diffeqformer analyze lyapunov")
    import jax.numpy as jnp
    import numpy as np

    from diffeqformer.analysis.end_to_end import end_to_end
    from diffeqformer.analysis.lyapunov import pairwise
    from diffeqformer.cli.analyses import common
    from diffeqformer.report.figures import NARROW
    from diffeqformer.report.page import Figure, Page, Table, TokenMap, write_page
    from diffeqformer.report.sensitivity_figures import token_exponents
    from diffeqformer.runs.opening import load_run

    common.require_seed(arguments.seed)
    progress = Terminal()
    opened = load_run(arguments.run, arguments.checkpoint, progress)
    model, ids = opened.model, common.ids_of(opened, arguments.text)
    folder = common.folder_for("lyapunov", arguments.to, opened)
    outputs = common.outputs_of(len(ids), arguments.output_token)
    width, last, tokens = model.config.width, outputs[-1], common.pieces_of(opened, ids)
    common.require_directions(arguments.tangents, arguments.probes, width)
    settings: dict[str, Any] = {"steps": arguments.steps, "seed": arguments.seed, "progress": progress}
    methods: dict[str, np.ndarray] = {}
    says: dict[str, str] = {}
    arrays: dict[str, np.ndarray] = {"ids": ids, "outputs": np.asarray(outputs)}
    panels: dict[str, tuple[np.ndarray, np.ndarray | None]] = {}
    columns: dict[str, np.ndarray] = {}
    steps = arguments.steps or model.config.steps
    if arguments.method != "end-to-end":
        found = pairwise(model, jnp.asarray(ids), outputs, tangents=arguments.tangents, **settings)
        how = f"{arguments.tangents} of {width} exponents, {steps} steps of scheme {model.config.scheme}"
        methods["pairwise, leading"] = found.leading
        says["pairwise, leading"] = (
            f"Largest exponent of dQ/dt = J Q, J the derivative of the field at the output by the state of one input, "
            f"summed over all of depth; {how}."
        )
        methods["pairwise, mean"] = found.mean
        says["pairwise, mean"] = f"Mean of the exponents of the same equation; {how}."
        if (np.isfinite(found.dimension) | np.isnan(found.leading)).all():
            methods["pairwise, Kaplan-Yorke dimension"] = found.dimension
            says["pairwise, Kaplan-Yorke dimension"] = f"Of the exponents of the same equation; {how}."
        arrays |= {f"pairwise_{name}": values for name, values in found.arrays().items() if name != "outputs"}
        panels["pairwise, leading"] = found.leading[-1, : last + 1], None
        columns |= {"pairwise, leading": found.leading[-1], "mean": found.mean[-1]}
    if arguments.method != "pairwise":
        probed = end_to_end(model, jnp.asarray(ids), outputs, probes=arguments.probes, **settings)
        how = f"{arguments.probes} random probes of {width} directions, {steps} steps of scheme {model.config.scheme}"
        methods["end-to-end, growth"] = probed.growth
        says["end-to-end, growth"] = (
            "How much a perturbation of random direction at an input's embedding grows until the output's final state, "
            f"through all tokens (log of the root mean square); {how}; standard error "
            f"{np.nanmedian(probed.error):.3f} (median)."
        )
        methods["end-to-end, leading"] = probed.exponents[..., 0]
        says["end-to-end, leading"] = f"Lower bound of the largest exponent of the same derivative; {how}."
        arrays |= {f"end_to_end_{name}": values for name, values in probed.arrays().items() if name != "outputs"}
        panels["end-to-end, growth"] = probed.growth[-1, : last + 1], probed.error[-1, : last + 1]
        columns |= {"end-to-end, growth": probed.growth[-1], "± error": probed.error[-1]}
    rows = common.input_rows(tokens, last, columns)
    caption = f"Exponents of every input for output {last}, {tokens[last]}"
    page = Page(
        title="Lyapunov sensitivity",
        says=(
            f"Output {last}, “{tokens[last]}”, is most sensitive to the inputs "
            + "; ".join(f"{common.highest(tokens, one[0])} by {name}" for name, one in panels.items())
            + ".",
            f"{opened.folder}, update {opened.step}: a text of {len(ids)} tokens. Dark inputs are those that the "
            "chosen output is most sensitive to.",
            "Exponents are natural logarithms of growth over the whole of depth: zero neither grows nor shrinks. "
            "They measure sensitivity, not importance: `analyze attribution --faithfulness` tests what they explain.",
        ),
        maps=(TokenMap(tokens, outputs, methods, says),),
        figures=(
            Figure("exponents", caption, token_exponents(tokens[: last + 1], panels),
                   token_exponents(tokens[: last + 1], panels, width=NARROW)),
        ),
        tables=(Table(caption, ("input", *columns), rows),),
    )  # fmt: skip
    path = write_page(folder, "lyapunov", page, arrays)
    if as_json:
        numbers = {name: common.finite_rows(values) for name, values in methods.items()}
        return print_json(
            {"run": str(opened.folder), "update": opened.step, "tokens": list(tokens), "outputs": list(outputs),
             "scores": numbers, "page": str(path), "arrays": str(folder / "lyapunov.npz")}
        )  # fmt: skip
    print_table(caption, ["input", *columns], rows)
    print(path)
