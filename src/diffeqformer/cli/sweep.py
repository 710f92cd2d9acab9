"""`diffeqformer sweep CONFIG --over KEY=VALUES ... [--trials N]`"""

from collections.abc import Sequence

from diffeqformer.cli.output import print_json, print_text
from diffeqformer.cli.parse import parse
from diffeqformer.cli.study import write_page
from diffeqformer.progress import Terminal
from diffeqformer.studies.sweep import Arguments, study

__all__ = ["Arguments", "run"]


def run(words: Sequence[str], as_json: bool) -> None:
    """Train all trials, write the page, print the ranking."""
    arguments = parse(Arguments, words, "diffeqformer sweep")
    result = study(arguments, Terminal())
    written = write_page(result, arguments)
    if as_json:
        return print_json({**result.document, **written})
    result.show()
    print_text(f"\n{written['page']}")
