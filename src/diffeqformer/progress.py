"""Progress of long-running work, shown on the terminal or not at all."""

import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, runtime_checkable

from rich.console import Console
from rich.progress import (
    BarColumn,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as RichProgress
from rich.table import Column
from rich.text import Text

from diffeqformer.plain import clean

SECONDS_BETWEEN_LINES = 20.0
"""Seconds between two lines about one stage, where there is no terminal."""
SECONDS_WORTH_A_LINE = 2.0
"""Seconds after which the end of a stage is worth a line, where there is no terminal."""
COUNTED = 100_000
"""Total from which amounts (mostly bytes) are shown as a percentage."""
WIDE = 100
"""Width, in columns, of a terminal with room for everything."""


@runtime_checkable
class Stage(Protocol):
    """One piece of work of known length."""

    def advance(self, amount: int = 1, note: str = "") -> None:
        """Count `amount` more units as done and show `note` beside the bar."""
        ...


@runtime_checkable
class Progress(Protocol):
    """Where stages and lines are shown."""

    def stage(self, name: str, total: int, done: int = 0) -> AbstractContextManager[Stage]:
        """Open a stage of `total` units, `done` of which are already done."""
        ...

    def say(self, line: str) -> None:
        """Show one line that stays."""
        ...


class _SilentStage:
    def advance(self, amount: int = 1, note: str = "") -> None:
        pass


class Silent:
    """Shows nothing: for tests and for use as a library."""

    @contextmanager
    def stage(self, name: str, total: int, done: int = 0) -> Iterator[Stage]:
        yield _SilentStage()

    def say(self, line: str) -> None:
        pass


def _amount(done: float | int, total: float | int) -> str:
    # At most 100 %: a replaced byte counts as the three bytes of U+FFFD.
    return f"{done:.0f}/{total:.0f}" if total < COUNTED else f"{100 * min(done / total, 1):.0f}%"


class _AmountColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(_amount(task.completed, task.total or 0), style="progress.download", justify="right")


class _RichStage:
    def __init__(self, bars: RichProgress, task):
        self.bars, self.task = bars, task

    def advance(self, amount: int = 1, note: str = "") -> None:
        self.bars.update(self.task, advance=amount, note=clean(note))


class _LinesStage:
    """A quiet line now and then, for logs."""

    def __init__(self, terminal: "Terminal", name: str, total: int, done: int):
        self.terminal, self.name, self.total, self.done, self.note = terminal, name, total, done, ""
        self.began = self.reported = time.monotonic()
        terminal.say(f"{name} …")

    def advance(self, amount: int = 1, note: str = "") -> None:
        self.done, self.note = self.done + amount, note
        if time.monotonic() - self.reported >= SECONDS_BETWEEN_LINES:
            self.reported = time.monotonic()
            self.terminal.say(self._line())

    def end(self) -> None:
        seconds = time.monotonic() - self.began
        if seconds > SECONDS_WORTH_A_LINE:
            self.terminal.say(f"{self._line()} · {seconds:.0f} s")

    def _line(self) -> str:
        return " · ".join(part for part in (f"{self.name}: {_amount(self.done, self.total)}", self.note) if part)


class _Console(Console):
    """A console that falls silent once nobody reads it: the computation is worth more than its display."""

    def on_broken_pipe(self) -> None:
        self.quiet = True  # Rich would end the program here


class Terminal:
    """Live bars on standard error, or plain lines if it is not a terminal; control characters are made visible."""

    def __init__(self):
        self.console = _Console(stderr=True, highlight=False)

    @contextmanager
    def stage(self, name: str, total: int, done: int = 0) -> Iterator[Stage]:
        # Not `Console.is_terminal`: FORCE_COLOR makes that true for a log, too.
        if not sys.stderr.isatty():
            lines = _LinesStage(self, name, total, done)
            yield lines
            lines.end()  # not after an exception: the stage has not ended
            return
        with RichProgress(*_columns(self.console.width), console=self.console, refresh_per_second=4) as bars:
            yield _RichStage(bars, bars.add_task(clean(name), total=total, completed=done, note=""))

    def say(self, line: str) -> None:
        # Not wrapped: a line of a log stays one line, and a path in it can be copied.
        self.console.print(clean(line), markup=False, soft_wrap=True)


def _columns(width: int) -> list[ProgressColumn]:
    """Return the parts of a progress line: the bar takes the room that the words leave, and the note is cut first."""
    whole = Column(no_wrap=True)
    start = [
        SpinnerColumn(finished_text="[green]✓[/]"),
        TextColumn("{task.description}", markup=False, table_column=whole),
        BarColumn(bar_width=None, table_column=Column(max_width=24)),
        _AmountColumn(table_column=whole),
        TextColumn("{task.fields[note]}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
    ]
    if width < WIDE:
        return [*start, TimeRemainingColumn(compact=True, elapsed_when_finished=True, table_column=whole)]
    return [*start, TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()]
