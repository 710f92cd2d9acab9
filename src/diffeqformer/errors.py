"""The ways a command ends badly, told in one sentence each."""


class DiffEqFormerError(Exception):
    """Base of every error that is shown to the user as one sentence, without a traceback."""

    exit_code = 1


class BadInput(DiffEqFormerError):
    """The request cannot be carried out as written: names the thing, its value and what would be right."""

    exit_code = 2


class RunFailed(DiffEqFormerError):
    """The request was sound but the work could not be finished: names the step and what is safe."""

    exit_code = 1


class Damaged(RunFailed):
    """A file is not what was written: names it."""


class Interrupted(DiffEqFormerError):
    """Ctrl-C or SIGTERM was answered: the work so far is saved and a line has said so; nothing is left to say."""

    exit_code = 130
