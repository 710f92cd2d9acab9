"""`diffeqformer sweep CONFIG --over KEY=VALUES ... [--trials N]`"""

from collections.abc import Sequence

from diffeqformer.cli.parse import parse
from diffeqformer.cli.study import show, write_page
from diffeqformer.progress import Terminal
from diffeqformer.studies.sweep import Arguments, study

__all__ = ["Arguments", "run"]


def run(words: Sequence[str], as_json: bool) -> None:
    """Train all trials, write the page, print the ranking."""
    arguments = parse(Arguments, words, "diffeqformer sweep")
    result = study(arguments, Terminal())
    show(result, write_page(result, arguments), as_json)
