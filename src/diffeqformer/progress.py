"""Progress of long work, seen by whoever wants to look: a Rich display, or nobody."""

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, runtime_checkable

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as RichProgress


@runtime_checkable
class Stage(Protocol):
    """One piece of work of known length."""

    def advance(self, amount: int = 1, note: str = "") -> None:
        """Count `amount` more units as done and show `note` beside the bar."""
        ...


@runtime_checkable
class Progress(Protocol):
    """Where stages are shown and lines are said."""

    def stage(self, name: str, total: int, done: int = 0) -> AbstractContextManager[Stage]:
        """Open a stage of `total` units, of which `done` are behind us already."""
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


class _RichStage:
    def __init__(self, bars: RichProgress, task):
        self.bars, self.task = bars, task

    def advance(self, amount: int = 1, note: str = "") -> None:
        self.bars.update(self.task, advance=amount, note=note)


class Terminal:
    """Live bars on standard error; plain lines when standard error is not a terminal."""

    def __init__(self):
        self.console = Console(stderr=True, highlight=False)

    @contextmanager
    def stage(self, name: str, total: int, done: int = 0) -> Iterator[Stage]:
        bars = RichProgress(
            SpinnerColumn(finished_text="[green]✓[/]"),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
            refresh_per_second=4,
            disable=not sys.stderr.isatty(),
        )
        if not sys.stderr.isatty():
            self.say(f"{name} …")
        with bars:
            yield _RichStage(bars, bars.add_task(name, total=total, completed=done, note=""))

    def say(self, line: str) -> None:
        self.console.print(line, markup=False, soft_wrap=True)
