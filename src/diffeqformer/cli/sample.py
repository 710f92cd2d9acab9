"""`diffeqformer sample RUN --prompt "..."`"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from diffeqformer.cli.eval import solved_by
from diffeqformer.cli.output import print_json, print_text
from diffeqformer.cli.parse import parse
from diffeqformer.config import Which
from diffeqformer.config.bounds import MOST_ENTRIES, MOST_STEPS, SIZES, UINT32, setting
from diffeqformer.errors import BadInput
from diffeqformer.progress import Terminal
from diffeqformer.report.text import counted_steps, percent


@dataclass(frozen=True)
class Arguments:
    """Continue a prompt with a run's model.

    Example: diffeqformer sample runs/quickstart/diffeqformer --prompt "def main(" --temperature 0.8 --top-k 40
    """

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    prompt: str
    """Text to continue."""
    tokens: Annotated[int | None, tyro.conf.arg(metavar="INT")] = setting(None, least=1, most=SIZES)
    """New tokens; 100, or as many as fit into the context."""
    count: int = setting(1, least=1, most=1 << 12)
    """Number of continuations."""
    steps: Annotated[int | None, tyro.conf.arg(metavar="INT")] = setting(None, least=1, most=MOST_STEPS)
    """Depth steps; the trained number if not given. Sampling never takes adaptive steps."""
    draft_steps: Annotated[int | None, tyro.conf.arg(metavar="INT")] = setting(None, least=1, most=MOST_STEPS)
    """Draft tokens at this smaller number of steps, verified at --steps: greedy text is the same, drawn text has the
    same distribution. For models trained at several depths; `bench drafts` measures whether it is faster."""
    draft_length: Annotated[int | None, tyro.conf.arg(metavar="INT")] = setting(None, least=1, most=1 << 10)
    """Tokens per draft (4)."""
    scheme: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Another scheme than the run's own, such as heun, rk4 or diffrax:Tsit5; not for a table of layers of one depth."""
    temperature: float = setting(1.0, not_negative=True)
    """0 takes the most likely token."""
    top_k: Annotated[int | None, tyro.conf.arg(metavar="INT")] = setting(None, least=1, most=MOST_ENTRIES)
    """Draw from the k most likely tokens only."""
    top_p: Annotated[float | None, tyro.conf.arg(metavar="FLOAT")] = setting(None, positive=True, most=1)
    """Draw from the fewest tokens whose probability reaches p."""
    seed: int = setting(0, least=0, most=UINT32)
    """Equal seeds draw equal text."""
    checkpoint: Which = "latest"
    """Newest checkpoint, the one of lowest validation loss, or the newest that is not damaged."""


def run(words: Sequence[str], as_json: bool) -> None:
    """Print the prompt and its continuations."""
    arguments = parse(Arguments, words, "diffeqformer sample")
    if arguments.draft_length is not None and arguments.draft_steps is None:
        raise BadInput(f"--draft-length is {arguments.draft_length}, but without --draft-steps nothing is drafted.")
    from diffeqformer.data.encode import LostText
    from diffeqformer.data.tokenizer import encode
    from diffeqformer.runs.opening import load_run
    from diffeqformer.runs.sampling import continue_text, continue_text_with_drafts

    progress = Terminal()
    opened = load_run(arguments.run, arguments.checkpoint, progress)
    model = solved_by(opened.model, arguments.scheme)
    lost = LostText(opened.prompts, special=True)
    lost.see(arguments.prompt, encode(opened.prompts, arguments.prompt))
    if lost.share:
        progress.say(f"The tokenizer loses or changes {percent(lost.share, 1)} of the characters of the prompt")
    names = ("count", "seed", "steps", "temperature", "top_k", "top_p")
    settings = {
        "new_tokens": arguments.tokens,
        "start": opened.start,
        "stops": opened.stops,
        **{name: getattr(arguments, name) for name in names},
    }
    drafts, found = {}, None
    with progress.stage("Generating", 1) as stage:
        if arguments.draft_steps is None:
            texts = continue_text(model, opened.prompts, arguments.prompt, **settings)
        else:
            length = 4 if arguments.draft_length is None else arguments.draft_length
            settings |= {"draft_steps": arguments.draft_steps, "draft_length": length}
            texts, found = continue_text_with_drafts(model, opened.prompts, arguments.prompt, **settings)
        stage.advance(1)
    if found is not None and arguments.draft_steps is not None:
        any_drafted = bool(found.drafted.any())  # none is for a single token, which reading the prompt gives
        acceptance, each = (found.acceptance, found.tokens_per_verification) if any_drafted else (None, None)
        drafts = {"drafts": {"acceptance": acceptance, "tokens_per_verification": each}}
        progress.say(
            f"{percent(acceptance)} of the tokens drafted at {counted_steps(arguments.draft_steps)} were accepted; "
            f"{each:.2f} tokens per verification at {counted_steps(model.grid(arguments.steps).steps)}"
            if any_drafted
            else "Nothing was drafted: a single new token comes from reading the prompt."
        )
    if as_json:
        return print_json({"prompt": arguments.prompt, "continuations": texts, **drafts, **opened.which})
    for number, text in enumerate(texts):
        print_text(("\n" + "-" * 40 + "\n" if number else "") + arguments.prompt + text)
