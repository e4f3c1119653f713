"""What the demo shows: alive on a terminal, plain lines anywhere else."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

#: Where nobody reports a width, as in a log: what our tables need.
PLAIN_WIDTH = 110
_LINE_EVERY_S = 15.0

Tell = Callable[[str], None]
Count = Callable[[int], None]


class Screen:
    """Steps with their seconds, counts that grow, and whatever rich can print."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        if not self.console.is_terminal:
            self.console.width = PLAIN_WIDTH

    def ok(self, text: str, seconds: float | None = None) -> None:
        """Something is done."""
        took = "" if seconds is None else f"  [dim]{seconds:.1f} s[/]"
        self.console.print(f"[green]✔[/] {escape(text)}{took}", soft_wrap=True)

    def note(self, text: str) -> None:
        """Something that goes on."""
        self.console.print(f"  [dim]{escape(text)}[/]", soft_wrap=True)

    def problem(self, text: str) -> None:
        """Why it ends here, and what to do."""
        self.console.print(f"[bold red]✘[/] {escape(text)}", soft_wrap=True)

    def show(self, paragraph: RenderableType) -> None:
        """Whatever rich can print, below an empty line."""
        self.console.print()
        self.console.print(paragraph)

    def waiting_for(self, name: str) -> None:
        """Something still runs in the folder ``name``."""
        self.note(f"Waiting for the processes that use {name} to end ...")

    @contextlib.contextmanager
    def step(self, text: str) -> Iterator[Tell]:
        """Something that takes a while; call what this yields to say how it went."""
        started = time.monotonic()

        def done(result: str) -> None:
            self.ok(result, time.monotonic() - started)

        with self.busy(text):
            yield done

    @contextlib.contextmanager
    def busy(self, text: str) -> Iterator[None]:
        """Say what is being waited for."""
        if self.console.is_terminal:
            with self.console.status(f"{text} ..."):
                yield
        else:
            self.note(f"{text} ...")
            yield

    @contextlib.contextmanager
    def live(self, text: str) -> Iterator[Tell]:
        """A last line that changes; call what this yields with the newest. Only on a terminal."""
        if self.console.is_terminal:
            with self.console.status(text) as status:
                yield status.update
        else:
            yield lambda _: None

    @contextlib.contextmanager
    def counting(self, text: str, total: int, unit: str) -> Iterator[Count]:
        """A number on its way to ``total``; call what this yields with the newest."""
        if not self.console.is_terminal:
            yield self._lines(text, total, unit)
            return
        columns = (
            TextColumn("  {task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(unit),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self.console, transient=True) as progress:
            task = progress.add_task(text, total=total)
            yield lambda count: progress.update(task, completed=count)

    def _lines(self, text: str, total: int, unit: str) -> Count:
        self.note(f"{text} ...")
        due = time.monotonic() + _LINE_EVERY_S

        def count(now: int) -> None:
            nonlocal due
            if time.monotonic() >= due:
                due = time.monotonic() + _LINE_EVERY_S
                self.note(f"{text}: {now:,} of {total:,} {unit}")

        return count
