"""`diffeqformer report compare RUN_A RUN_B [--to DIR]`"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from diffeqformer.cli.output import print_json, print_table
from diffeqformer.cli.parse import parse
from diffeqformer.progress import Terminal


@dataclass(frozen=True)
class Arguments:
    """Two runs side by side: loss, size and speed, and the tasks of lm-evaluation-harness that both were evaluated on.

    Accuracies are compared item by item, with p-values. The page shows them as figures 9 to 12 of the paper.

    Example: diffeqformer report compare runs/quickstart/diffeqformer runs/quickstart/gpt
    """

    what: Annotated[Literal["compare"], tyro.conf.Positional, tyro.conf.arg(metavar="compare")]
    """The report."""
    first: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_A")]
    """Folder of a run."""
    second: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_B")]
    """Folder of the run to compare it with."""
    to: Annotated[str | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder of the page; RUN_A/analysis/compare-NAME-OF-B if not given."""


def run(words: Sequence[str], as_json: bool) -> None:
    """Compare, write the page, and print both tables."""
    asked = parse(Arguments, words, "diffeqformer report")
    from diffeqformer.interop.comparing import compare_runs
    from diffeqformer.report.compare_page import (
        compare_arrays,
        compare_document,
        compare_page,
        findings,
        remarks,
        runs_table,
        tasks_table,
    )
    from diffeqformer.report.page import write_page

    found = compare_runs(asked.first, asked.second)
    other = re.sub(r"[^\w.-]+", "-", found.sides[1].folder.resolve().name)
    folder = Path(asked.to).expanduser() if asked.to else found.sides[0].folder / "analysis" / f"compare-{other}"
    page = write_page(folder, "compare", compare_page(found), compare_arrays(found))
    Terminal().say(f"page: {page}")
    if as_json:
        return print_json({**compare_document(found), "page": str(page)})
    print_table("The two runs", *runs_table(found))
    if found.rows:
        print_table("\nTasks evaluated in both", *tasks_table(found))
    print("", *findings(found), *remarks(found), sep="\n")
