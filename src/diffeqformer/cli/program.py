"""The command line as a program of its own: how a request to end is answered, and how the process ends."""

import os
import signal
import sys
from contextlib import suppress
from typing import NoReturn

from diffeqformer.cli import INTERRUPTED, command, say_interrupted

SOON = 0.01
"""Seconds until an interruption that was dropped comes again."""


def program() -> NoReturn:
    """Run the command of `sys.argv` and end the process with its status.

    Interrupted, it ends without the teardown of the interpreter: what JAX was compiling or computing then still runs in
    threads of its own, and crashes on memory that is gone. By then every `with` block has closed its files and waited
    for its checkpoints.
    """
    sys.unraisablehook = _again
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        status = command()
    except KeyboardInterrupt:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):  # nothing is left that a second one could stop
            signal.signal(number, signal.SIG_IGN)
        say_interrupted()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # nobody may be reading
                stream.flush()
        os._exit(INTERRUPTED)
    sys.exit(status)


def _again(dropped: "sys.UnraisableHookArgs") -> None:
    """Let an interruption come again that Python has dropped, as it does in a callback of the garbage collector."""
    if dropped.exc_type is KeyboardInterrupt:
        signal.setitimer(signal.ITIMER_REAL, SOON)
    else:
        sys.__unraisablehook__(dropped)
