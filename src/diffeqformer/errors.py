"""Errors that the command line shows as one sentence."""

from diffeqformer.plain import brief, clean


class DiffEqFormerError(Exception):
    """Base of every error that is shown as one sentence, without a traceback."""

    exit_code = 1


class BadInput(DiffEqFormerError):
    """The request cannot be carried out as written; the message names the item, its value and what would be right."""

    exit_code = 2


class Missing(BadInput):
    """A file that the request needs does not exist."""


class RunFailed(DiffEqFormerError):
    """The request was sound but the work could not be finished; the message names the step and what is safe."""


class Diverged(RunFailed):
    """A number in training stopped being finite; the message names it."""


class Damaged(RunFailed):
    """A file differs from what was written; the message names it."""


class Interrupted(DiffEqFormerError):
    """Ctrl-C, SIGTERM or a callback ended the work; it is saved, and this has been reported."""

    exit_code = 130


def named(error: OSError) -> str:
    """Return `reason`, preceded by the file that the system's error names, if any."""
    return reason(error) if error.filename is None else f"{str(error.filename)!r}: {reason(error)}"


def reason(error: BaseException, most: int = 300) -> str:
    """Return a system or library error's text as one line of at most `most` characters, without its full stop."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split())[:most].rstrip(".") or type(error).__name__


def said_of(error: Exception) -> str:
    """Say why something failed, for a page that goes on without it."""
    if isinstance(error, DiffEqFormerError):
        return str(error)
    return f"failed with {type(error).__name__}: {brief(clean(str(error)))[:300]}"
