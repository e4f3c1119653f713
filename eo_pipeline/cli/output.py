"""What goes to the terminal: tables or JSON on stdout, progress and errors on stderr."""

from __future__ import annotations

import json
import logging
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from eo_pipeline.errors import (
    ConfigError,
    DataLossError,
    EoPipelineError,
    SetupError,
    printable,
    scrubbed,
)
from eo_pipeline.progress import Phase

_ENGINE = "eo_pipeline"
#: What librdkafka says by itself; silent unless somebody sets its level.
_KAFKA = "eo_pipeline.kafka"

#: A line with ``-v``.
_VERBOSE = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


def note(text: str) -> None:
    """A sentence on stderr."""
    console = Console(stderr=True, markup=False, highlight=False, emoji=False)
    console.print(printable(text), soft_wrap=True)


class _Lines(logging.Handler):
    """A line for each record; where something live shows the phases, only of the others."""

    def __init__(self, *, verbose: bool) -> None:
        super().__init__(logging.DEBUG)
        self.setFormatter(logging.Formatter(_VERBOSE if verbose else None))
        self._from = logging.DEBUG if verbose else logging.INFO
        self._verbose = verbose
        #: that go on, the one that spoke last at the end
        self.phases: list[Phase] = []
        self.shows_phases = False
        self.is_muted = False

    def emit(self, record: logging.LogRecord) -> None:
        phase: Phase | None = getattr(record, "phase", None)
        if phase is not None:
            going_on = [each for each in self.phases if each is not phase and not each.has_ended]
            self.phases = [*going_on, phase]
        shown = self.shows_phases and hasattr(record, "phase") and not self._verbose
        if record.levelno >= self._from and not shown and not self.is_muted:
            note(self.format(record))


_lines: _Lines | None = None


@contextmanager
def telling(*, verbose: bool) -> Iterator[None]:
    """Within, stderr has what the engine logs; with ``verbose`` all of it, librdkafka's too."""
    global _lines
    logger, kafka, _lines = logging.getLogger(_ENGINE), logging.getLogger(_KAFKA), None
    levels = logger.level, kafka.level
    _lines = _Lines(verbose=verbose)
    logger.addHandler(_lines)
    logger.setLevel(logging.DEBUG)
    kafka.setLevel(logging.DEBUG if verbose else logging.NOTSET)
    try:
        yield
    finally:
        logger.removeHandler(_lines)
        logger.setLevel(levels[0])
        kafka.setLevel(levels[1])


@contextmanager
def phases_are_shown() -> Iterator[None]:
    """Within, something live shows :func:`now`."""
    if _lines is not None:
        _lines.shows_phases = True
    try:
        yield
    finally:
        if _lines is not None:
            _lines.shows_phases = False


@contextmanager
def muted() -> Iterator[None]:
    """Within, nothing is said."""
    if _lines is not None:
        _lines.is_muted = True
    yield


def now() -> str:
    """What goes on just now, and how far it is; empty if nothing does."""
    phases = _lines.phases if _lines else []
    return next((str(each) for each in reversed(phases) if not each.has_ended), "")


def causes(error: EoPipelineError) -> list[str]:
    """What an error came from, the nearest first, a line each and without secrets."""
    found, cause = [], error.__cause__
    while cause is not None:
        found.append(
            scrubbed(f"because of {type(cause).__module__}.{type(cause).__qualname__}: {cause}")
        )
        cause = cause.__cause__ or cause.__context__
    return found


#: Wide enough that a table which is piped is never folded or cut.
_PIPED_WIDTH = 10_000

#: What a cell may hold; a Text has a colour, which only a terminal shows.
Cell = str | Text

#: Columns whose cells stand at the right.
NUMBERS = frozenset(
    {
        "version",
        "target",
        "lag",
        "rows",
        "rows/s",
        "records",
        "from",
        "to",
        "offset",
        "offsets",
        "partition",
    }
    | {"rows then", "changed", "added", "removed"}
    | {"moved", "checkpoint", "missing", "duplicated", "foreign", "unproved"}
)


class _Now(ProgressColumn):
    """What goes on; before anything does, the task's title."""

    def render(self, task: Task) -> Text:
        return Text(now() or task.description)


class Output:
    """One command's output. With ``as_json`` stdout holds JSON alone."""

    def __init__(self, as_json: bool = False) -> None:
        self.as_json = as_json
        self._stdout = sys.stdout

    def is_live(self) -> bool:
        """Whether stdout is a terminal that may be drawn on."""
        return not self.as_json and _console().is_terminal

    def document(self, value: Any) -> None:
        """The one JSON document of a command."""
        self._write(json.dumps(value, indent=2))

    def line(self, value: Any) -> None:
        """One JSON line of a command that prints several, at once."""
        self._write(json.dumps(value))

    def say(self, text: str = "", style: str = "") -> None:
        """A sentence on stdout, never folded; nothing with ``--json``."""
        self.styled(Text(printable(text), style))

    def styled(self, text: Text) -> None:
        """The same with colours of its own."""
        if not self.as_json:
            _console().print(_shown(text), soft_wrap=True)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        """A table without a frame; nothing with ``--json``."""
        if self.as_json:
            return
        table = as_table(columns, rows)
        console = _console()
        if console.is_terminal:
            console.print(table)
            return
        with console.capture() as printed:
            console.print(table)
        # the last column is padded too
        for line in printed.get().splitlines():
            sys.stdout.write(line.rstrip() + "\n")

    @contextmanager
    def progress(self, title: str, total: int | None) -> Iterator[Progress]:
        """A bar on stderr if that is a terminal, and what goes on; its one task counts records.

        Where it is none the log's lines say what goes on.
        """
        notes = Console(stderr=True)
        quiet = self.as_json or not notes.is_terminal
        with (
            Progress(
                *(BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), _Now()),
                console=notes,
                transient=True,
                disable=quiet,
                # above the bar on a terminal; into its own file where stdout is one
                redirect_stdout=sys.stdout.isatty(),
            ) as progress,
            nullcontext() if quiet else phases_are_shown(),
        ):
            progress.add_task(title, total=total)
            yield progress

    @contextmanager
    def busy(self, title: str) -> Iterator[None]:
        """What goes on just now, on stderr if that is a terminal."""
        notes = Console(stderr=True)
        if self.as_json or not notes.is_terminal:
            yield
            return
        columns = SpinnerColumn(), TimeElapsedColumn(), _Now()
        with (
            Progress(*columns, console=notes, transient=True, redirect_stdout=False) as progress,
            phases_are_shown(),
        ):
            progress.add_task(title, total=None)
            yield

    @contextmanager
    def nothing_else_on_stdout(self) -> Iterator[None]:
        """With ``--json``: what others print (a console sink its rows) goes to stderr."""
        with redirect_stdout(sys.stderr) if self.as_json else nullcontext():
            yield

    def _write(self, text: str) -> None:
        self._stdout.write(text + "\n")
        self._stdout.flush()


def as_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Table:
    """A table without a frame."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        number = column in NUMBERS
        table.add_column(printable(column), justify="right" if number else "left", no_wrap=number)
    for row in rows:
        table.add_row(*(_shown(cell, in_a_line=True) for cell in row))
    return table


def _shown(cell: Cell, *, in_a_line: bool = False) -> Text:
    """``cell`` with nothing that a terminal obeys: it may be of a record."""
    text = cell if isinstance(cell, Text) else Text("")
    plain = printable(cell.plain if isinstance(cell, Text) else cell)
    if in_a_line:
        plain = plain.replace("\n", "\\n").replace("\t", "\\t")
    return text if plain == text.plain else Text(plain, text.style)


def number(value: int) -> str:
    """``336,776``."""
    return f"{value:,}"


def counted(count: int, noun: str) -> str:
    """``1 row``, ``2 rows``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def size(count: int) -> str:
    """``1.2 MB``: powers of ten, as disks and clouds are sold."""
    left = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if left < 1_000:
            return f"{left:.0f} {unit}" if unit == "B" else f"{left:.1f} {unit}"
        left /= 1_000
    return f"{left:,.1f} TB"


def instant(moment: datetime | None) -> str:
    """``2026-01-31 12:00:00Z``; a dash for None."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z" if moment else "-"


def duration(spent: timedelta | float | None) -> str:
    """In the two largest units that count: ``0.4 s``, ``3 min 20 s``, ``2 d 4 h``; a dash for
    None. A number is seconds.
    """
    if spent is None:
        return "-"
    seconds = spent.total_seconds() if isinstance(spent, timedelta) else spent
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def _console() -> Console:
    console = Console(markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = _PIPED_WIDTH
    return console


class ExitCode(IntEnum):
    """How a command ended. docs/cli.md and ``eo --help`` list them."""

    FINE = 0
    FAILED = 1
    USAGE = 2
    DIFFERENCES = 3
    TRY_AGAIN = 4
    DATA_LOSS = 5


EPILOG = (
    "Exit codes: 0 done; 1 failed, or declined; 2 usage, configuration or environment error; "
    "3 audit or doctor found problems, or no warm Spark responds; 4 temporary failure, try again "
    "(a server is unreachable, or another run committed first); 5 Kafka no longer has the next "
    "records; "
    "130 interrupted (143 by SIGTERM, 129 by a closed terminal)."
)


def exit_code(error: EoPipelineError) -> ExitCode:
    """The code a command ends with that met ``error``."""
    if isinstance(error, ConfigError | SetupError):
        return ExitCode.USAGE
    if isinstance(error, DataLossError):
        return ExitCode.DATA_LOSS
    return ExitCode.TRY_AGAIN if error.retryable else ExitCode.FAILED


class Signalled(KeyboardInterrupt):
    """A signal that ends a command as Ctrl-C does: libraries know what to do with that."""

    def __init__(self, number: int) -> None:
        self.number = number


def end_by_signal(number: int, _: object) -> NoReturn:
    """The handler of signals that shall end a command."""
    raise Signalled(number)


def interrupted_code(interruption: KeyboardInterrupt) -> int:
    """128 and the signal's number, as shells have it: 130 after Ctrl-C."""
    number = interruption.number if isinstance(interruption, Signalled) else signal.SIGINT
    return 128 + number


def error_json(error: EoPipelineError) -> dict[str, Any]:
    """``{"error": {"kind", "message", "retryable"}}``."""
    return {
        "error": {
            "kind": type(error).__name__,
            "message": str(error),
            "retryable": error.retryable,
        }
    }


def approve(output: Output, question: str, *, yes: bool) -> None:
    """Return if it was approved; the plan was shown before.

    Raises:
        ConfigError: there is nobody to ask.
        typer.Exit: the answer was no.
    """
    if yes:
        return
    if output.as_json or not sys.stdin.isatty():
        raise ConfigError(
            "Not a terminal, cannot ask for confirmation. Nothing was changed. Use --yes to "
            "confirm, or --dry-run to see what would change."
        )
    if not typer.confirm(question):
        note("Nothing was changed.")
        raise typer.Exit(ExitCode.FAILED)


def reason_for(output: Output, reason: str) -> str:
    """The reason, asked for on a terminal if it was not given.

    Raises:
        ConfigError: there is none.
    """
    if not reason and not output.as_json and sys.stdin.isatty():
        reason = typer.prompt("Why is that acceptable?")
    if not reason.strip():
        raise ConfigError("--reason is required: it is stored in the ledger.")
    return reason
