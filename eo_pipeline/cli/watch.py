"""`eo watch`: one screen of all pipelines, live."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.text import Text

from eo_pipeline.cli.codes import error_json, exit_code
from eo_pipeline.cli.options import AsJson, Files, Name
from eo_pipeline.cli.output import Cell, Output, as_table, duration, instant, number
from eo_pipeline.cli.selection import documents, load
from eo_pipeline.cli.telling import muted
from eo_pipeline.documents import Document
from eo_pipeline.errors import EoPipelineError
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.run.status import Status
from eo_pipeline.source.transactions import said_of

if TYPE_CHECKING:
    from rich.live import Live

_Every = Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")]
_Once = Annotated[bool, typer.Option("--once", help="One look, and the end.")]

COLUMNS = ("pipeline", "version", "kind", "lag", "rows", "rows/s", "committed", "age", "state")

#: How often a screen is drawn anew, a second: ages grow while nothing else happens.
_DRAWN_A_SECOND = 2

#: Characters of a sentence in a cell; `eo status` has all of it.
_SENTENCE = 160


def watch(
    every: _Every = 2.0,
    once: _Once = False,
    files: Files = None,
    name: Name = None,
    as_json: AsJson = False,
) -> None:
    """All pipelines on one screen, live: version, lag, last commit and its speed, what is wrong.

    Where stdout is no terminal a plain table each time; with --json one JSON line each time.
    Ctrl-C ends it. --once looks once, with the exit code of the first pipeline that fails.
    """
    output = Output(as_json)
    watched = [_Watched(document) for document in documents(files, name)]
    with muted():  # what is wrong has a place of its own
        if not once:
            _go_on(output, watched, every)
        for looking in [each.begin_look() for each in watched]:
            looking.join()
        _show(output, watched)
    failed = next((each.error for each in watched if each.error), None)
    if failed:
        raise typer.Exit(exit_code(failed))


@dataclass
class _Watched:
    """One pipeline, and what the last look at it found. One look at a time."""

    document: Document
    status: Status | None = None
    #: What the last look failed with; None if it did not.
    error: EoPipelineError | None = None
    #: What an earlier one failed with, and when.
    last_error: str = ""
    _pipeline: Pipeline | None = None
    _looking: threading.Thread | None = None
    _asked_at: float = field(default_factory=time.monotonic)

    def begin_look(self) -> threading.Thread:
        """Begin the next look, unless one is under way. In a thread of its own: one whose store is
        away holds up no other, and not the end of the command either.
        """
        if self._looking is None or not self._looking.is_alive():
            self._asked_at = time.monotonic()
            self._looking = threading.Thread(target=self._look, daemon=True)
            self._looking.start()
        return self._looking

    def _look(self) -> None:
        try:
            self._pipeline = self._pipeline or load(self.document)
            self.status, self.error = self._pipeline.status(), None
        except EoPipelineError as error:
            self.error = error
            self.last_error = f"{instant(datetime.now(UTC))}: {_sentence(str(error))}"

    def row(self) -> list[Cell]:
        """Below :data:`COLUMNS`."""
        state = self._state()
        if self.status is None:
            return [self.document.name, *["-"] * 7, state]
        head, lag = self.status.head, self.status.lag
        waiting = Text(number(lag), "yellow" if lag else "")
        if head is None:
            return [self.status.pipeline, "-", "never ran", waiting, *["-"] * 4, state]
        speed = _speed(self.status)
        return [
            self.status.pipeline,
            str(head.version),
            head.operation.value,
            waiting,
            number(head.counts.rows_total),
            "-" if speed is None else number(round(speed)),
            instant(head.committed_at),
            duration(self.status.age),
            state,
        ]

    def to_json(self) -> dict[str, Any]:
        """As `eo status` has it, and the speed of the last commit, and the last error."""
        found: dict[str, Any] = {"pipeline": self.document.name}
        if self.status is not None:
            found = {**self.status.to_json(), "rows_per_second": _speed(self.status)}
        now = error_json(self.error) if self.error else {"error": None}
        return {**found, **now, "last_error": self.last_error or None}

    def _state(self) -> Text:
        if self.error is not None:
            return Text(_sentence(str(self.error)), "red")
        waited = time.monotonic() - self._asked_at
        if self.status is None:
            return Text(f"asking for {waited:.0f} s", "dim")
        if obstacle := next(iter((*self.status.blocked, *self.status.losses)), None):
            return Text(f"stopped: {_sentence(str(obstacle))}", "red")
        state = Text("behind", "yellow") if self.status.lag else Text("up to date", "green")
        if transactions := self.status.transactions:
            state.append(f"; {said_of(transactions)}", "yellow")
        if self.last_error:
            state.append(f"; was not: {self.last_error}", "dim")
        return state


def _speed(status: Status) -> float | None:
    """Rows a second of the last commit, if it made rows and the ledger knows its times."""
    head = status.head
    if head is None or not head.counts.rows or not (head.committed_at and head.started_at):
        return None
    seconds = (head.committed_at - head.started_at).total_seconds()
    return head.counts.rows / seconds if seconds > 0 else None


def _sentence(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SENTENCE else f"{line[: _SENTENCE - 3]}..."


def _go_on(output: Output, watched: Sequence[_Watched], every: float) -> NoReturn:
    """Look every so many seconds, until somebody interrupts."""
    with _screen(output) as screen:
        while True:
            for each in watched:
                each.begin_look()
            until = time.monotonic() + every
            while screen is not None and time.monotonic() < until:
                screen.update(as_table(COLUMNS, [each.row() for each in watched]), refresh=True)
                time.sleep(min(every, 1 / _DRAWN_A_SECOND))
            if screen is None:
                time.sleep(every)
                _show(output, watched)


@contextmanager
def _screen(output: Output) -> Iterator[Live | None]:
    """The terminal's other screen; None where there is no terminal."""
    if not output.is_live():
        yield None
        return
    from rich.live import Live  # only a terminal needs it

    with Live(screen=True, auto_refresh=False) as screen:
        yield screen


def _show(output: Output, watched: Sequence[_Watched]) -> None:
    if output.as_json:
        at = datetime.now(UTC).isoformat()
        output.line({"at": at, "pipelines": [each.to_json() for each in watched]})
        return
    output.say(f"{instant(datetime.now(UTC))}")
    output.table(COLUMNS, [each.row() for each in watched])
