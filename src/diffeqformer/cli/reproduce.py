"""`diffeqformer reproduce [WHAT ...]`: experiments, from training to the page; without words, which there are."""

from collections.abc import Sequence

from diffeqformer.cli.experiments import EXPERIMENTS
from diffeqformer.cli.subcommands import Subcommands

CHOICE = Subcommands(
    "reproduce",
    "Experiments at small scale, from training to a page; runs that are finished are kept when one is started again.",
    ("experiment", "experiments"),
    EXPERIMENTS,
    "diffeqformer.cli.experiments",
    "reproduce elastic",
)


def run(words: Sequence[str], as_json: bool) -> None:
    """List the experiments, or hand the words to the one that is named."""
    CHOICE.run(words, as_json)
