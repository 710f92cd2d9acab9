"""`diffeqformer analyze [WHAT ...]`: look inside a model; without words, what there is to look at."""

import os
from collections.abc import Sequence

from diffeqformer.cli.analyses import ANALYSES
from diffeqformer.cli.subcommands import Subcommands

CHOICE = Subcommands(
    "analyze",
    "Look inside a model: numbers, figures, and a page to read, in RUN/analysis/WHAT unless --to names a folder.",
    ("analysis", "analyses"),
    ANALYSES,
    "diffeqformer.cli.analyses",
    "analyze clusters --run runs/quickstart/diffeqformer",
)


def run(words: Sequence[str], as_json: bool) -> None:
    """List the analyses, or hand the words to the one that is named."""
    # Analyses hand LAPACK many small matrices. Its own threads only get in each other's way there: on a busy machine
    # a batch of 128 x 128 singular values took a hundred times longer with two than with one.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    CHOICE.run(words, as_json)
