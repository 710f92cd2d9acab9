"""`diffeqformer lift RUN --to RUN2 [--weights knots|time|layerdrop|levels] [--levels N ...] [--data FILES]`"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import tyro

from diffeqformer.cli.output import human, print_json, print_table
from diffeqformer.cli.parse import parse
from diffeqformer.config import Which
from diffeqformer.config.bounds import MOST_STEPS, SIZES, require_once, setting
from diffeqformer.errors import BadInput
from diffeqformer.plain import shown
from diffeqformer.progress import Terminal


@dataclass(frozen=True)
class Arguments:
    """Make a table of layers, such as an imported GPT-2 or Llama, run at other depths, without training.

    The new run is the same model at its own number of steps; as a function of depth it runs at any other, and with
    layers left out at any smaller one.

    Example: diffeqformer lift runs/gpt2 --to runs/gpt2-lifted
    """

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run, of a vanilla, an imported or a fine-tuned model."""
    to: Annotated[str, tyro.conf.arg(metavar="RUN")]
    """Folder of the new run, new or empty."""
    weights: Literal["knots", "time", "layerdrop", "levels"] = "knots"
    """Interpolated between knots; given by small networks of time; the table's own, with layers left out at fewer
    steps: those that the loss on --data can best do without; or a table for each of --levels, of which deeper readings
    divide some steps."""
    levels: Annotated[tuple[int, ...], tyro.conf.arg(metavar="N")] = setting((), least=1, most=MOST_STEPS)
    """Numbers of steps that get a table each, besides the model's own; those below it leave layers out by --data."""
    knots: Annotated[int | None, tyro.conf.arg(metavar="K")] = setting(None, least=1, most=MOST_STEPS)
    """Number of knots, as many as layers if not given; fewer or more make the model smaller or larger, and another."""
    align: bool = False
    """Write neighbouring layers alike first, as permutations and rotations that change nothing at their own depth."""
    data: tuple[str, ...] = ()
    """Text files or globs, by whose activations the least squares of fewer knots are weighted, or by whose loss layers
    are left out (layerdrop, and levels below the model's own depth)."""
    d_emb: Annotated[int | None, tyro.conf.arg(metavar="N")] = setting(None, least=1, most=SIZES)
    """Width of the time networks, at least the number of layers; twice that if not given."""
    checkpoint: Which = "latest"
    """Newest checkpoint, the one of lowest validation loss, or the newest that is not damaged."""


def run(words: Sequence[str], as_json: bool) -> None:
    """Lift, and print how near the new model is to the old one."""
    given = parse(Arguments, words, "diffeqformer lift")
    own = (("knots", given.knots, "knots"), ("d-emb", given.d_emb, "time"), ("levels", given.levels, "levels"))
    for name, value, kind in own:
        if value not in (None, ()) and given.weights != kind:
            raise BadInput(f"--{name} is {shown(value)}, but only --weights {kind} reads it.")
    require_once("--levels", given.levels)
    if given.data and given.knots is None and given.weights not in ("layerdrop", "levels"):
        raise BadInput(
            f"--data is {shown(given.data[0])}, but only --weights layerdrop, --levels below the model's own depth and "
            "fewer --knots than layers read it."
        )
    if given.weights == "layerdrop" and (not given.data or given.align):
        wrong = "--align is given" if given.align else "--data is not given"
        raise BadInput(f"{wrong}, but --weights layerdrop leaves layers out by their loss on --data, as they are.")
    from diffeqformer.config import to_dict
    from diffeqformer.model.count import count
    from diffeqformer.runs.lifting import lift_run
    from diffeqformer.runs.opening import load_run

    progress = Terminal()
    opened = load_run(given.run, given.checkpoint, progress)
    names = ("knots", "d_emb", "levels", "align", "data", "checkpoint")
    settings: dict[str, Any] = {name: getattr(given, name) for name in names}
    made, found = lift_run(opened, given.to, given.weights, **settings, progress=progress)
    stored, m = count(made.model), made.config.model
    if as_json:
        sizes = {"parameters": stored, "model": to_dict(m)}
        measured: dict[str, Any] = {"condition": found.condition, "difference": found.difference}
        losses = [{"steps": n, "loss": loss} for n, loss in sorted(found.losses.items())]
        measured |= {"losses": losses} if losses else {}
        return print_json({"run": str(made.folder), "base": opened.which, **sizes, **measured})
    columns = ["weights", "parameters", "steps", "condition number", "largest difference of a logit"]
    difference = f"{found.difference:.1e}" if found.difference else "0, to the bit"
    print_table(
        str(made.folder), columns, [[m.weights.kind, human(stored), str(m.steps), f"{found.condition:.3g}", difference]]
    )
    if found.losses:
        kept = lambda n: " ".join(map(str, sorted(found.order[:n])))
        rows = [[str(n), f"{loss:.4f}", kept(n)] for n, loss in found.losses.items()]
        print_table("on --data", ["steps", "loss (nats)", "layers kept, from 0"], rows)
