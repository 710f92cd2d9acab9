"""Ctrl-C and SIGTERM as a request to stop, which is answered between two updates."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

BURST = 1.0
"""Seconds in which further signals count as the same request, as from a supervisor that sends two: a second one that is
raised while the first is being answered would end that answer."""


@contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """Inside the `with` block, the first SIGINT or SIGTERM only makes the yielded function return true.

    Signals within `BURST` of it count as the same request; a later one goes to the earlier handlers, which end the
    program at once. A signal that is already ignored, as in a shell's background jobs, stays ignored. Outside the
    main thread, where Python allows no handlers, nothing is caught.
    """
    asked, at = False, 0.0
    earlier: dict[signal.Signals, Any] = {}

    def restore() -> None:
        while earlier:
            number, handler = earlier.popitem()
            # `None` is a handler from outside Python, which Python cannot put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal asked, at
        if not asked:
            asked, at = True, time.monotonic()
        elif time.monotonic() - at >= BURST:
            restore()
            signal.raise_signal(number)

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                earlier[number] = signal.signal(number, note)
    try:
        yield lambda: asked
    finally:
        restore()
