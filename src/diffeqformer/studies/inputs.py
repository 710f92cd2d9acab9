"""Shared preparation of studies: checks of arguments, a run's text, and where files go."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import tyro

from diffeqformer.config import Config, Which, read_shipped, with_values
from diffeqformer.config.bounds import INT32, MOST_STEPS, require_bounds, setting
from diffeqformer.errors import BadInput, Missing
from diffeqformer.plain import finite_or_none, shown
from diffeqformer.progress import Progress
from diffeqformer.store.paths import path_of, require_writable

if TYPE_CHECKING:
    from diffeqformer.runs.opening import Run

ANALYSES_FOLDER = "analysis"
"""Folder of a run's analyses, inside the run's folder."""
TANGENTS, PROBES = 4, 16
"""Default numbers of first tangents (pairwise exponents) and of probes (end-to-end exponents)."""
LAST_OUTPUTS = 32
"""Number of last outputs of a text that are analysed if none is named."""
Folder = Annotated[str, tyro.conf.arg(metavar="DIR")]
File = Annotated[str, tyro.conf.arg(metavar="FILE")]
Files = Annotated[tuple[str, ...], tyro.conf.arg(metavar="FILES")]
Number = Annotated[int | None, tyro.conf.arg(metavar="INT")]
Seeds = Annotated[tuple[int, ...], tyro.conf.arg(metavar="SEED")]
"""Types of options that several studies share, with the name of the value in the help."""


def require_usual(arguments: Any, names: Sequence[str], why: str) -> None:
    """Check that options that have no meaning here are at their defaults.

    **Raises:** `BadInput` naming the first that is not.
    """
    usual = {one.name: one.default for one in fields(arguments)}
    for name in names:
        if (value := getattr(arguments, name)) != usual[name]:
            given = " ".join(map(str, value)) if isinstance(value, tuple) else value
            raise BadInput(f"--{name.replace('_', '-')} is {given}, but {why}.")


@dataclass(frozen=True, kw_only=True)
class OfRun:
    """Arguments of the analyses of a run."""

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    steps: Number = setting(None, least=1, most=MOST_STEPS)
    """Depth steps; the trained number if not given."""
    checkpoint: Which = "latest"
    """Newest checkpoint, the one of lowest validation loss, or the newest that is not damaged."""
    to: Folder = ""
    """Folder of the page and its files; RUN/analysis/NAME if not given."""

    def open(self, name: str, progress: Progress) -> "tuple[Run, Path]":
        """Open the run; returns it and the folder of the analysis `name`.

        **Raises:** `BadInput` for arguments out of bounds; also as `load_run` and `folder_for`.
        """
        require_bounds(self, "--")
        from diffeqformer.runs.opening import load_run

        opened = load_run(self.run, self.checkpoint, progress)
        return opened, folder_for(name, self.to, opened.folder)


@dataclass(frozen=True, kw_only=True)
class OfText(OfRun):
    """Arguments of the analyses of a run on a long text."""

    data: Files = ()
    """Text files or globs; the run's validation split if not given."""


def positive_numbers(text: str, name: str) -> tuple[float, ...]:
    """Parse `"0.05,0.1"` into numbers.

    **Raises:** `BadInput` if a part is not a positive number of at most `INT32`.
    """
    try:
        parts = tuple(float(part) for part in text.split(","))
    except ValueError:
        parts = ()
    if not parts or not all(0 < part <= INT32 for part in parts):
        must = "must be positive numbers, such as 0.1 or 0.05,0.1"
        raise BadInput(f"{name} is {shown(text)}, but {must}, of at most {INT32}.")
    return parts


def directions(tangents: int | None, probes: int | None, width: int) -> tuple[int, int]:
    """Return the numbers of first tangents and of probes: those given, else `TANGENTS` and `PROBES`, at most `width`.

    **Raises:** `BadInput` for more directions than a state has, or too few for what is computed from them.
    """
    tangents = min(TANGENTS, width) if tangents is None else tangents
    probes = min(PROBES, width) if probes is None else probes
    for name, value, least in (("--tangents", tangents, 1), ("--probes", probes, min(2, width))):
        if not least <= value <= width:
            raise BadInput(f"{name} is {value}, but must be from {least} to the model's width, {width}.")
    return tangents, probes


def shipped(name: str) -> Config:
    """Read a shipped config, with its vocabulary set to the size that its tokenizer is trained to."""
    config = read_shipped(name)
    known = config.model.vocabulary or config.data.tokenizer_vocabulary
    return with_values(config, {"model.vocabulary": known})


def folder_for(name: str, to: str | None, run: Path = Path()) -> Path:
    """Return the folder an analysis writes to: `to` if given, else `analysis/NAME` in the run's folder or, without a
    run, in the current one.

    **Raises:** `BadInput` if that is a file, or cannot be written.
    """
    folder = path_of(to) if to else run / ANALYSES_FOLDER / name
    for place in (folder,) if to else (run / ANALYSES_FOLDER, folder):  # the first holds the page that links all
        require_writable(place, "--to")
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"--to is {str(folder)!r}, but that is a file; name a folder.")
    return folder


def described(run: "Run") -> str:
    """Name a run and its update and, if a tolerance chooses the model's steps, state that fixed ones are used here."""
    tolerance = run.config.model.tolerance
    fixed = "" if tolerance is None else f", at fixed steps in place of adaptive ones (rtol {tolerance.rtol:g})"
    return f"{run.folder}, update {run.step}{fixed}"


def ids_of(run: "Run", text: str, name: str = "--text") -> np.ndarray:
    """Encode a text by the run's tokenizer, shape (tokens,); `name` is the option that error messages give.

    **Raises:** `BadInput` if it is empty or longer than the model's context.
    """
    from diffeqformer.data.tokenizer import encode

    ids = encode(run.tokenizer, text)  # as the training text was encoded
    if not ids:
        raise BadInput(f"{name} is {text!r}, which has no tokens; give some text.")
    context = run.config.model.context
    if len(ids) > context:
        raise BadInput(f"{name} has {len(ids)} tokens, but the model's context is {context}; give a shorter text.")
    return np.asarray(ids, np.int32)


def of_one_document(run: "Run", tokens: np.ndarray) -> np.ndarray:
    """Return the longest stretch without special tokens, which do not survive decoding and re-encoding."""
    special = [number for number, token in run.tokenizer.get_added_tokens_decoder().items() if token.special]
    parts = np.split(tokens, np.flatnonzero(np.isin(tokens, special)))  # all but the first begin with one
    return max((part[~np.isin(part, special)] for part in parts), key=len)


def pieces_of(run: "Run", ids: np.ndarray) -> tuple[str, ...]:
    """Return the pieces of a text as displayed; see `visible`."""
    from diffeqformer.report.page import visible

    return tuple(visible(run.tokenizer.decode([int(one)], skip_special_tokens=False)) for one in ids)


def outputs_of(positions: int, given: int | None) -> tuple[int, ...]:
    """Return the outputs to analyse: the one given, or the last ones of the text.

    **Raises:** `BadInput` if the one given is not a position of the text.
    """
    if given is None:
        return tuple(range(max(0, positions - LAST_OUTPUTS), positions))
    if not 0 <= given < positions:
        raise BadInput(f"--output-token is {given}, but the text has {positions} tokens, 0 to {positions - 1}.")
    return (given,)


def evaluation_text(
    run: "Run", data: Sequence[str], progress: Progress, text_field: str | None = None
) -> tuple[np.ndarray, int | None, np.ndarray | None]:
    """Return the tokens of some files by the run's tokenizer or, without files, of the run's own validation split.

    If the run's text no longer exists, its tokens are read from the cache.

    **Arguments:** `data`, paths or globs; `text_field`, of JSON lines and tables, the run's own if not given.

    **Returns:** tokens (tokens,); the number of UTF-8 bytes of the text; a mask of the tokens that count as targets,
    (tokens,). If all tokens count, the mask is `None`; otherwise, the number of bytes is.

    **Raises:** `BadInput` for files that cannot be used, an imported model without files, or a run whose text has
    changed since.
    """
    from diffeqformer.data.cache import cached_by_content, prepare, tokens_of
    from diffeqformer.data.tokenizer_files import load_tokenizer
    from diffeqformer.runs.folder import TOKENIZER, require_same_text, text_digest_of

    if data:
        own = replace(run.config.data, text_field=text_field or run.config.data.text_field)
        return tokens_of(data, own, load_tokenizer(run.folder / TOKENIZER), progress)
    advice = "name a text to evaluate on with --data"
    if run.origin == "imported":
        holds = "holds an imported model, which has no text of its own"
        raise BadInput(f"run folder {str(run.folder)!r} {holds}; {advice}.")
    try:
        cached = prepare(
            run.config.data, progress, lambda tokens: require_same_text(run.folder, tokens.content, advice)
        )
    except Missing as error:
        if (cached := cached_by_content(run.config.data, text_digest_of(run.folder), progress)) is None:
            raise
        progress.say(f"{error} The run's own tokens are read from the cache, {cached.folder}.")
    return cached.validation, cached.validation_bytes, cached.validation_mask


def require_comparable(opened: "Run", other: "Run") -> None:
    """Check that runs are comparable. **Raises:** `BadInput` for another tokenizer, or a run without its own depth."""
    if other.tokenizer.to_str() != opened.tokenizer.to_str():
        raise BadInput(
            f"run {str(other.folder)!r} has another tokenizer than {str(opened.folder)!r}, so that their perplexities "
            "cannot be compared; `diffeqformer eval --data` gives the bits per byte of each, which can."
        )
    if other.config.model.tolerance:
        raise BadInput(
            f"run {str(other.folder)!r} chooses its steps by a tolerance, so it has no depth to be drawn at; "
            "leave it out of --against."
        )


def owner_of_text(opened: "Run", others: "Sequence[Run]") -> "Run":
    """Return the run whose validation text all are evaluated on: one of the others if any has a text, else this one.

    **Raises:** `BadInput` if the others were validated on different texts.
    """
    from diffeqformer.runs.folder import text_digest_of

    owners: dict[str, Run] = {}
    for other in others:
        if (content := text_digest_of(other.folder)) is not None:  # an imported model has no text
            owners.setdefault(content, other)
    if len(owners) > 1:
        first, second, *_ = (str(owner.folder) for owner in owners.values())
        raise BadInput(
            f"the runs of --against do not share one validation text ({first!r} and {second!r} have different ones); "
            "name a text for all with --data."
        )
    return next(iter(owners.values()), opened)


def evaluation_windows(
    run: "Run",
    data: Sequence[str],
    count: int | None,
    length: int,
    progress: Progress,
    usual: int = 0,
    *,
    sets: int = 1,
) -> tuple[np.ndarray, np.ndarray]:
    """Return `count` windows of a text, evenly spread over it, and which of their tokens count as targets.

    **Arguments:** `data`, as for `evaluation_text`; `usual`, the number of windows if `count` is `None`, or as many as
    the text has if it has fewer; `sets`, a factor by which the number of windows is multiplied.

    **Returns:** tokens and booleans, both (sets * count, length).

    **Raises:** `BadInput` if the text has too few tokens; also as `evaluation_text`.
    """
    tokens, _, mask = evaluation_text(run, data, progress)
    most = len(tokens) // (length * sets)
    if not most:
        needed = f"{sets} texts take {sets * length}" if sets > 1 else f"one text takes {length}"
        raise BadInput(f"{whose(data)} has {len(tokens)} tokens, but {needed}.")
    count = min(usual, most) if count is None else count
    if not 1 <= count <= most:
        are = f"as many texts of {length} tokens as there are{f', {sets} times' if sets > 1 else ''}"
        raise BadInput(f"--texts is {count}, but must be from 1 to {most}: {are}.")
    return spread_texts(tokens, mask, sets * count, length, problem_length(run, data))


def whose(data: Sequence[str]) -> str:
    """State in words which text is read."""
    return f"the text of {', '.join(data)}" if data else "the run's validation split"


def problem_length(run: "Run", data: Sequence[str]) -> int:
    """Return the tokens of each problem, if the text is the run's own and of a puzzle; 1 otherwise.

    A model of a puzzle has only seen whole problems, from their beginning.
    """
    puzzle = None if data else run.config.data.puzzle
    return puzzle.context if puzzle else 1


def spread_texts(
    tokens: np.ndarray, mask: np.ndarray | None, count: int, length: int, unit: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return `count` windows, evenly spread over a text, and which of their tokens are targets: all if no `mask`.

    **Arguments:** `unit`, as for `spread_windows`.
    """
    from diffeqformer.data.loader import spread_windows

    counts = np.ones(len(tokens), np.int8) if mask is None else mask.astype(np.int8)
    return spread_windows(tokens, count, length, unit), spread_windows(counts, count, length, unit).astype(bool)


def whole_split(run: "Run", steps: int) -> str:
    """State what the run's own evaluation found on its whole validation split, to compare with losses on a sample.

    **Returns:** a sentence; empty if the run's evaluation was not of this model at this number of steps, such as when a
    tolerance chose the steps.
    """
    from diffeqformer.report.text import finite, nats, perplexity
    from diffeqformer.runs.results import results_of

    entry = ((results_of(run.folder) or {}).get("models") or [{}])[0]
    found = entry.get("validation") or {}
    evaluated = (entry.get("updates"), entry.get("steps")) == (run.step, steps) and not run.config.model.tolerance
    if not evaluated or not finite(found.get("loss")):
        return ""
    return (
        f" On its whole validation split the run has {nats(found['loss'])} nats per token, perplexity "
        f"{perplexity(found['perplexity'])}."
    )


def finite_rows(values: Any) -> list[list[float | None]]:
    """Convert scores for JSON: `None` for values that are not finite."""
    return [[finite_or_none(float(v)) for v in row] for row in values]
