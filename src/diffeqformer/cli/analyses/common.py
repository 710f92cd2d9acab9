"""What the analyses of a run have in common: its text, and where their files go."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from diffeqformer.cli.text import evaluation_text
from diffeqformer.errors import BadInput
from diffeqformer.progress import Progress
from diffeqformer.runs.opening import Run


def folder_for(what: str, to: str, run: Run | None) -> Path:
    """Where an analysis writes: `to` if given, else `analysis/WHAT` in the run's folder, or in the current one.

    **Raises:** `BadInput` if that is a file.
    """
    folder = Path(to).expanduser() if to else (run.folder if run else Path()) / "analysis" / what
    for part in (folder, *folder.parents):
        if part.exists() and not part.is_dir():
            raise BadInput(f"--to is {str(folder)!r}, but {str(part)!r} is a file; name a folder.")
    return folder


def ids_of(run: Run, text: str, name: str = "--text") -> np.ndarray:
    """A text as the run's tokens, shape (tokens,).

    **Raises:** `BadInput` if it is empty or longer than the model's context.
    """
    ids = run.tokenizer.encode(text, add_special_tokens=False).ids  # as the training text was
    if not ids:
        raise BadInput(f"{name} is {text!r}, which has no tokens; give some text.")
    context = run.config.model.context
    if len(ids) > context:
        raise BadInput(f"{name} has {len(ids)} tokens, but the model's context is {context}; give a shorter text.")
    return np.asarray(ids, np.int32)


def validation_tokens(run: Run, progress: Progress) -> np.ndarray:
    """All tokens of the run's own validation split, shape (tokens,).

    **Raises:** `BadInput` if the run is an imported model, or if its text has changed since.
    """
    return evaluation_text(run, (), progress, advice="give a text with --text")[0]


def validation_windows(run: Run, count: int, length: int, progress: Progress, name: str = "--texts") -> np.ndarray:
    """`count` stretches of the validation split, evenly spread over it, shape (count, length).

    **Raises:** `BadInput` if the split has not that many tokens, and as `validation_tokens`.
    """
    tokens = validation_tokens(run, progress)
    most = len(tokens) // length
    if not 1 <= count <= most:
        raise BadInput(
            f"{name} is {count}, but must be from 1 to {most}: as many texts of {length} tokens as there are."
        )
    starts = np.linspace(0, len(tokens) - length, count).astype(int)
    return np.stack([np.asarray(tokens[start : start + length], np.int32) for start in starts])


def pieces_of(run: Run, ids: np.ndarray) -> tuple[str, ...]:
    """The pieces of a text as a reader is to see them."""
    from diffeqformer.report.page import visible

    return tuple(visible(run.tokenizer.decode([int(one)], skip_special_tokens=False)) for one in ids)


LAST_OUTPUTS = 32
"""Outputs of a text that are analysed if none is named."""


def outputs_of(positions: int, asked: int | None, name: str = "--output-token") -> tuple[int, ...]:
    """The outputs to analyse: the one asked for, or the last ones of the text.

    **Raises:** `BadInput` for one that is not a position of the text.
    """
    if asked is None:
        return tuple(range(max(0, positions - LAST_OUTPUTS), positions))
    if not 0 <= asked < positions:
        raise BadInput(f"{name} is {asked}, but the text has {positions} tokens, 0 to {positions - 1}.")
    return (asked,)


def require_seed(seed: int) -> None:
    """**Raises:** `BadInput` for a seed that is out of range."""
    if not 0 <= seed < 1 << 32:
        raise BadInput(f"--seed is {seed}, but must be at least 0 and below {1 << 32}.")


def require_directions(tangents: int, probes: int, width: int) -> None:
    """**Raises:** `BadInput` for more directions than a state has, or too few for what is made of them."""
    for name, value, least in (("--tangents", tangents, 1), ("--probes", probes, min(2, width))):
        if not least <= value <= width:
            raise BadInput(f"{name} is {value}, but must be from {least} to the model's width, {width}.")


def input_rows(tokens: tuple[str, ...], last: int, columns: Mapping[str, np.ndarray]) -> tuple[tuple[str, ...], ...]:
    """Rows of a table: every input up to position `last`, and its scores, each of shape (input,)."""
    from diffeqformer.report.text import number

    return tuple((f"{i} {tokens[i]}", *(number(scores[i], 4) for scores in columns.values())) for i in range(last + 1))


def finite_rows(values: Any) -> list[list[float | None]]:
    """Scores as JSON takes them: nothing for what is not a finite number."""
    return [[float(v) if np.isfinite(v) else None for v in row] for row in values]


def highest(tokens: tuple[str, ...], scores: np.ndarray, count: int = 3) -> str:
    """The inputs of highest scores in words: `33 “·in” (3.03), 30 “⏎” (1.56)`."""
    order = np.argsort(-np.nan_to_num(scores, nan=-np.inf), kind="stable")[: min(count, np.isfinite(scores).sum())]
    return ", ".join(f"{i} “{tokens[i]}” ({scores[i]:.3g})" for i in order)
