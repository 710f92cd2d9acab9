"""`diffeqformer analyze spectra RUN`"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import tyro

from diffeqformer.cli.output import print_json, print_table
from diffeqformer.cli.parse import parse, whole_numbers
from diffeqformer.progress import Terminal

AUTHORS_RANKS = (100, 500)


@dataclass(frozen=True)
class Arguments:
    """Complex eigenvalues of every head's QK and OV pair and of the feed-forward pair, over depth.

    Example: diffeqformer analyze spectra runs/quickstart/diffeqformer --against runs/quickstart/gpt
    """

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    against: Annotated[str, tyro.conf.arg(metavar="RUN2")] = ""
    """A second run, such as a vanilla one, drawn beside the first."""
    times: int = 100
    """Equally spaced times between 0 and 1, besides those of the steps, if weights are functions of time."""
    steps: int | None = None
    """Depth steps whose times are taken; the trained number if not given."""
    ranks: Annotated[str, tyro.conf.arg(metavar="R,R,...")] = ""
    """Sizes of random subsets of the feed-forward's hidden units; of the authors' 100 and 500 those that fit."""
    seed: int = 0
    """Of the draw of these subsets."""
    fold_norm: bool = False
    """Multiply the norms' scales into the matrices that follow them; the paper does not."""
    checkpoint: Literal["latest", "best"] = "latest"
    """Newest checkpoint, or the one of lowest validation loss."""
    to: Annotated[str, tyro.conf.arg(metavar="DIR")] = ""
    """Where the files go; RUN/analysis/spectra if not given."""


def run(words: Sequence[str], as_json: bool) -> None:
    """Compute, draw, write, and print the summaries."""
    arguments = parse(Arguments, words, "diffeqformer analyze spectra")
    asked = whole_numbers(arguments.ranks, "--ranks") if arguments.ranks else None
    from diffeqformer.analysis.spectra import hidden_of, hidden_subsets, spectra
    from diffeqformer.cli.analyses.common import folder_for
    from diffeqformer.report.page import write_page
    from diffeqformer.report.spectra_page import spectra_page
    from diffeqformer.runs.opening import load_run

    progress = Terminal()
    folders = [folder for folder in (arguments.run, arguments.against) if folder]
    runs = [load_run(folder, arguments.checkpoint, progress) for folder in folders]
    folder = folder_for("spectra", arguments.to, runs[0])
    models = []
    ranks = [asked or tuple(r for r in AUTHORS_RANKS if r <= hidden_of(one.model.config)) for one in runs]
    for one, some in zip(runs, ranks, strict=True):  # all are refused before any is computed
        one.model.depth(arguments.steps)
        hidden_subsets(hidden_of(one.model.config), some)
    for one, some in zip(runs, ranks, strict=True):
        found = spectra(
            one.model,
            times=arguments.times,
            steps=arguments.steps if one is runs[0] or one.model.config.weights != "layer" else None,
            ranks=some,
            seed=arguments.seed,
            fold_norm=arguments.fold_norm,
            progress=progress,
        )
        models.append((str(one.folder), found))
    with progress.stage("Drawing", 1) as stage:
        page = spectra_page(models, fold_norm=arguments.fold_norm, seed=arguments.seed)
        arrays = dict(models[0][1].arrays())
        if len(models) > 1:
            arrays |= {f"against_{key}": value for key, value in models[1][1].arrays().items()}
        written = write_page(folder, "spectra", page, arrays)
        stage.advance(1)
    if as_json:
        return print_json({"page": str(written), "models": [_numbers(name, found) for name, found in models]})
    for name, found in models:
        columns, rows = found.table()
        print_table(name, [" ".join(columns[:2]), *columns[2:]], [[f"{r[0]} {r[1]}", *r[2:]] for r in rows])
    print(f"\n{written}")


def _numbers(name: str, found: Any) -> dict[str, Any]:
    return {
        "run": name,
        "times": found.times.tolist(),
        "pairs": {
            pair: {what: values.tolist() for what, values in spectrum.summaries().items()}
            for pair, spectrum in found.pairs.items()
        },
    }
