"""`diffeqformer bench train`"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from diffeqformer.cli.output import human, print_json, print_table
from diffeqformer.cli.parse import parse
from diffeqformer.errors import BadInput
from diffeqformer.progress import Terminal


@dataclass(frozen=True)
class Arguments:
    """Time a training update of DiffEqFormer and of the vanilla transformer of its size (and PyTorch's, if installed).

    Example: diffeqformer bench train --rounds 15
    """

    what: Annotated[Literal["train"], tyro.conf.Positional, tyro.conf.arg(metavar="train")]
    """What is measured."""
    rounds: int = 9
    """Timed updates of each model; the models take turns."""


def run(words: Sequence[str], as_json: bool) -> None:
    """Print a row a model: median time, ratio to the vanilla one, compiled temporary memory."""
    arguments = parse(Arguments, words, "diffeqformer bench")
    if arguments.rounds < 7:
        raise BadInput(f"--rounds is {arguments.rounds}, but must be at least 7 for a median worth reading.")
    from diffeqformer.training.speed import STANDARD, compare_updates

    rows = compare_updates(STANDARD, arguments.rounds, Terminal())
    if as_json:
        return print_json({"rounds": arguments.rounds, "rows": rows})
    m = STANDARD.model
    print_table(
        f"training update: width {m.width}, {m.steps} steps, {m.heads} heads, context {m.context}, "
        f"batch {STANDARD.trainer.batch_size}, d_emb {m.time.d_emb}, vocabulary {m.vocabulary}; "
        f"{arguments.rounds} rounds",
        ["model", "median", "quartiles", "ratio to vanilla", "median of rounds' ratios", "temporary memory"],
        [
            [
                row["model"],
                f"{row['median_seconds'] * 1e3:.0f} ms",
                "{:.0f} to {:.0f} ms".format(*(1e3 * q for q in row["quartile_seconds"])),
                f"{row['ratio_of_medians']:.3f}",
                f"{row['median_of_ratios']:.3f}",
                "" if row["temporary_bytes"] is None else human(row["temporary_bytes"], "B"),
            ]
            for row in rows
        ],
    )
