"""`diffeqformer analyze induction RUN`"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Literal

import tyro

from diffeqformer.cli.output import print_json, print_table
from diffeqformer.cli.parse import parse
from diffeqformer.progress import Terminal


@dataclass(frozen=True)
class Arguments:
    """Which heads match prefixes and copy, measured on repeated random sequences, beside their spectra.

    Example: diffeqformer analyze induction runs/quickstart/diffeqformer
    """

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    sequences: int = 32
    """How many sequences are drawn."""
    length: int = 25
    """Different tokens in each."""
    repeats: int = 4
    """How often each follows itself; length times repeats must fit the context."""
    steps: int | None = None
    """Depth steps; the trained number if not given."""
    seed: int = 0
    """Of the draw."""
    checkpoint: Literal["latest", "best"] = "latest"
    """Newest checkpoint, or the one of lowest validation loss."""
    to: Annotated[str, tyro.conf.arg(metavar="DIR")] = ""
    """Where the files go; RUN/analysis/induction if not given."""


def run(words: Sequence[str], as_json: bool) -> None:
    """Measure, draw, write, and print the test of the paper's inference."""
    arguments = parse(Arguments, words, "diffeqformer analyze induction")
    from diffeqformer.analysis.induction import measure_induction
    from diffeqformer.cli.analyses.common import folder_for
    from diffeqformer.report.page import write_page
    from diffeqformer.report.spectra_page import induction_page
    from diffeqformer.runs.opening import load_run

    progress = Terminal()
    opened = load_run(arguments.run, arguments.checkpoint, progress)
    folder = folder_for("induction", arguments.to, opened)
    special = opened.tokenizer.get_added_tokens_decoder()
    found = measure_induction(
        opened.model,
        candidates=[token for token in range(opened.tokenizer.get_vocab_size()) if token not in special],
        sequences=arguments.sequences,
        length=arguments.length,
        repeats=arguments.repeats,
        steps=arguments.steps,
        seed=arguments.seed,
        progress=progress,
    )
    written = write_page(folder, "induction", induction_page(str(opened.folder), found), found.arrays())
    if as_json:
        return print_json(
            {
                "page": str(written),
                "verdict": found.verdict(),
                "loss_first": found.loss_first,
                "loss_later": found.loss_later,
                "chance": found.chance,
                "behaviours": {name: values.tolist() for name, values in found.behaviours.items()},
                "spectra": {name: values.tolist() for name, values in found.summaries.items()},
                "correlations": [asdict(c) for c in found.correlations],
            }
        )
    columns, rows = found.table()
    print_table(
        f"{opened.folder}: {found.verdict()}",
        [f"{columns[0]} ~ {columns[1]}", *columns[2:]],
        [[f"{row[0]} ~ {row[1]}", *row[2:]] for row in rows],
    )
    print(f"\n{written}")
