"""Errors that the command line shows as one sentence."""

from diffeqformer.plain import brief, clean


class DiffEqFormerError(Exception):
    """Base of every error that is shown as one sentence, without a traceback."""

    exit_code = 1


class BadInput(DiffEqFormerError):
    """The request cannot be carried out as written: names the thing, its value and what would be right."""

    exit_code = 2


class Missing(BadInput):
    """A file that the request needs is not there."""


class RunFailed(DiffEqFormerError):
    """The request was sound but the work could not be finished: names the step and what is safe."""


class Diverged(RunFailed):
    """A number of the training stopped being finite: names it."""


class Damaged(RunFailed):
    """A file is not what was written: names it."""


class Interrupted(DiffEqFormerError):
    """Ctrl-C or SIGTERM ended the work; it is saved, and a line has reported so."""

    exit_code = 130


def named(error: OSError) -> str:
    """`reason`, after the file that the system's error is about, if it says one."""
    return reason(error) if error.filename is None else f"{str(error.filename)!r}: {reason(error)}"


def reason(error: BaseException, most: int = 300) -> str:
    """What an error of the system or a library says: one line of at most `most` characters, without its full stop."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split())[:most].rstrip(".") or type(error).__name__


def said_of(error: Exception) -> str:
    """Why something failed, where a page goes on."""
    if isinstance(error, DiffEqFormerError):
        return str(error)
    return f"failed with {type(error).__name__}: {brief(clean(str(error)))[:300]}"
