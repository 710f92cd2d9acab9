"""The command line as a program of its own: how a request to end is answered, and how the process ends."""

import math
import os
import signal
import sys
import time
from contextlib import suppress
from types import FrameType
from typing import NoReturn

from diffeqformer.runs.signals import BURST

INTERRUPTED = 130
"""Exit status after Ctrl-C or SIGTERM."""
SOON = 0.01
"""Seconds until an interruption that was dropped comes again."""


class Interruption:
    """The handler of signals that ask to end."""

    came = False
    at = -math.inf

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Raise `KeyboardInterrupt`, of which an extension that is just being imported may make an `ImportError`."""
        now = time.monotonic()
        if now - self.at < BURST and number != signal.SIGALRM:
            return
        self.came, self.at = True, now
        raise KeyboardInterrupt


def program() -> NoReturn:
    """Run the command of `sys.argv` and end the process with its status.

    Interrupted, it ends without the teardown of the interpreter: what JAX was compiling or computing then still runs in
    threads of its own, and crashes on memory that is gone. By then every `with` block has closed its files and waited
    for its checkpoints.
    """
    # SIGALRM is that of `_again`.
    interruption, signals = Interruption(), (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
    sys.unraisablehook = _again
    for number in signals:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as a shell has it for jobs in the background
            signal.signal(number, interruption)  # training answers the first two in its own way
    try:
        from diffeqformer.cli import command  # takes a while, in which Ctrl-C is answered already

        status = command(interrupted=lambda: interruption.came)
    except (KeyboardInterrupt, ImportError):
        if not interruption.came:
            raise
        for number in signals:  # nothing is left that a second one could stop
            signal.signal(number, signal.SIG_IGN)
        say_interrupted()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # nobody may be reading
                stream.flush()
        os._exit(INTERRUPTED)
    sys.exit(status)


def say_interrupted() -> None:
    """Report that Ctrl-C or SIGTERM has ended the command."""
    with suppress(OSError):
        print("diffeqformer: interrupted.", file=sys.stderr)


def _again(dropped: "sys.UnraisableHookArgs") -> None:
    """Let an interruption come again that Python has dropped, as it does in a callback of the garbage collector."""
    if dropped.exc_type is KeyboardInterrupt:
        signal.setitimer(signal.ITIMER_REAL, SOON)
    else:
        sys.__unraisablehook__(dropped)
