"""Ctrl-C and SIGTERM as a request that is answered between two updates."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """Inside the `with` block, the first SIGINT or SIGTERM only makes the yielded function return true.

    The first signal puts the earlier handlers back, so a second one ends the program at once. Outside the main thread,
    where Python allows no handlers, nothing is caught.
    """
    asked = False
    earlier: dict[signal.Signals, Any] = {}

    def restore() -> None:
        while earlier:
            number, handler = earlier.popitem()
            # `None` is a handler from outside Python, which Python cannot put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        restore()

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            earlier[number] = signal.signal(number, note)
    try:
        yield lambda: asked
    finally:
        restore()
