"""The command line as its own process: how it answers requests to end, and how it exits."""

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
"""Seconds until a dropped interruption is raised again."""


class Interruption:
    """The handler of signals that ask to end."""

    came = False
    at = -math.inf

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Raise `KeyboardInterrupt`; an extension being imported at that moment may turn it into an `ImportError`."""
        now = time.monotonic()
        # A SIGALRM is within the burst of the interruption that it repeats (`_again`).
        if now - self.at < BURST and number != signal.SIGALRM:
            return
        self.came, self.at = True, now
        raise KeyboardInterrupt


def program() -> NoReturn:
    """Run the command of `sys.argv` and end the process with its status.

    When interrupted, the process ends without interpreter teardown: what JAX was compiling or computing still runs in
    its own threads, and would crash on freed memory. By then every `with` block has closed its files and waited for its
    checkpoints.
    """
    interruption, signals = Interruption(), (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
    sys.unraisablehook = _again
    for number in signals:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as shells set it for background jobs
            signal.signal(number, interruption)  # training handles the first two itself
    try:
        from diffeqformer.cli import command  # takes a while, during which Ctrl-C already works

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
    """Raise an interruption again, soon, that Python has dropped, as it does in a garbage collector callback."""
    if dropped.exc_type is KeyboardInterrupt:
        signal.setitimer(signal.ITIMER_REAL, SOON)
    else:
        sys.__unraisablehook__(dropped)
