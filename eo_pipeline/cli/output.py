"""Terminal output: tables or JSON on stdout, progress and errors on stderr."""

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
#: Logger of librdkafka's own messages; silent by default.
_KAFKA = "eo_pipeline.kafka"

#: Format of a line with ``-v``.
_VERBOSE = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


def note(text: str) -> None:
    """Print a sentence on stderr."""
    console = Console(stderr=True, markup=False, highlight=False, emoji=False)
    console.print(printable(text), soft_wrap=True)


class _StderrHandler(logging.Handler):
    """Prints log records on stderr; records of phases are left out while a live display
    shows them.
    """

    def __init__(self, *, verbose: bool) -> None:
        super().__init__(logging.DEBUG)
        self.setFormatter(logging.Formatter(_VERBOSE if verbose else None))
        self._level = logging.DEBUG if verbose else logging.INFO
        self.is_verbose = verbose
        #: Running phases; the last element logged last.
        self.phases: list[Phase] = []
        self.shows_phases = False
        self.is_muted = False

    def emit(self, record: logging.LogRecord) -> None:
        phase: Phase | None = getattr(record, "phase", None)
        if phase is not None:
            running = [other for other in self.phases if other is not phase and not other.has_ended]
            self.phases = [*running, phase]
        shown = self.shows_phases and hasattr(record, "phase") and not self.is_verbose
        if record.levelno >= self._level and not shown and not self.is_muted:
            note(self.format(record))


_handler: _StderrHandler | None = None


@contextmanager
def engine_log(*, verbose: bool) -> Iterator[None]:
    """Print the engine's log on stderr; with ``verbose`` all levels, including librdkafka's."""
    global _handler
    logger, kafka, _handler = logging.getLogger(_ENGINE), logging.getLogger(_KAFKA), None
    levels, propagates = (logger.level, kafka.level), logger.propagate
    _handler = _StderrHandler(verbose=verbose)
    logger.addHandler(_handler)
    logger.setLevel(logging.DEBUG)
    # py4j and transforms may give the root logger a handler, which would print all levels, too
    logger.propagate = False
    kafka.setLevel(logging.DEBUG if verbose else logging.NOTSET)
    try:
        yield
    finally:
        logger.removeHandler(_handler)
        logger.propagate = propagates
        logger.setLevel(levels[0])
        kafka.setLevel(levels[1])


@contextmanager
def showing_phases() -> Iterator[None]:
    """Mark that a live display shows :func:`current_phase`."""
    if _handler is not None:
        _handler.shows_phases = True
    try:
        yield
    finally:
        if _handler is not None:
            _handler.shows_phases = False


@contextmanager
def muted() -> Iterator[None]:
    """Suppress the log lines."""
    if _handler is not None:
        _handler.is_muted = True
    yield


def current_phase() -> str:
    """Return the running phase and its progress; empty if there is none."""
    phases = _handler.phases if _handler else []
    return next((str(phase) for phase in reversed(phases) if not phase.has_ended), "")


def show_error(error: EoPipelineError, *, as_json: bool) -> None:
    """Print an error, in verbose mode with its causes."""
    if as_json:
        Output(as_json=True).line(error_json(error))
    else:
        note(str(error))
    if _handler is not None and _handler.is_verbose:
        for cause in causes(error):
            note(cause)


def causes(error: EoPipelineError) -> list[str]:
    """Return the causes of an error, nearest first, one line each and without secrets."""
    lines, cause = [], error.__cause__
    while cause is not None:
        lines.append(
            scrubbed(f"because of {type(cause).__module__}.{type(cause).__qualname__}: {cause}")
        )
        cause = cause.__cause__ or cause.__context__
    return lines


#: Width of a piped table, wide enough never to fold or cut it.
_PIPED_WIDTH = 10_000

#: Content of a cell; a Text has a colour, which only a terminal shows.
Cell = str | Text

#: Right-aligned columns.
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


class _PhaseColumn(ProgressColumn):
    """Column of the current phase; before the first one, of the task's title."""

    def render(self, task: Task) -> Text:
        return Text(current_phase() or task.description)


class Output:
    """Output of one command. With ``as_json`` stdout holds JSON alone."""

    def __init__(self, as_json: bool = False) -> None:
        self.as_json = as_json
        self._stdout = sys.stdout

    def is_live(self) -> bool:
        """Return whether stdout is a terminal that can be drawn on."""
        return not self.as_json and _console().is_terminal

    def document(self, value: Any) -> None:
        """Print the only JSON document of a command."""
        self._write(json.dumps(value, indent=2))

    def line(self, value: Any) -> None:
        """Print one JSON line of a command that prints several, immediately."""
        self._write(json.dumps(value))

    def say(self, text: str = "", style: str = "") -> None:
        """Print a sentence on stdout, never folded; nothing with ``--json``."""
        self.styled(Text(printable(text), style))

    def styled(self, text: Text) -> None:
        """Print a text with its own colours on stdout; nothing with ``--json``."""
        if not self.as_json:
            _console().print(_shown(text), soft_wrap=True)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        """Print a table without a frame; nothing with ``--json``."""
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
        """Show a bar and the current phase on stderr, if that is a terminal; its one task counts
        records.

        Otherwise log lines report the phases.
        """
        notes = Console(stderr=True)
        quiet = self.as_json or not notes.is_terminal
        with (
            Progress(
                *(BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), _PhaseColumn()),
                console=notes,
                transient=True,
                disable=quiet,
                # above the bar on a terminal; into its own file where stdout is one
                redirect_stdout=sys.stdout.isatty(),
            ) as progress,
            nullcontext() if quiet else showing_phases(),
        ):
            progress.add_task(title, total=total)
            yield progress

    @contextmanager
    def busy(self, title: str) -> Iterator[None]:
        """Show the current phase on stderr, if that is a terminal."""
        notes = Console(stderr=True)
        if self.as_json or not notes.is_terminal:
            yield
            return
        columns = SpinnerColumn(), TimeElapsedColumn(), _PhaseColumn()
        with (
            Progress(*columns, console=notes, transient=True, redirect_stdout=False) as progress,
            showing_phases(),
        ):
            progress.add_task(title, total=None)
            yield

    @contextmanager
    def nothing_else_on_stdout(self) -> Iterator[None]:
        """With ``--json``, redirect prints of others (the rows of a console sink) to stderr."""
        with redirect_stdout(sys.stderr) if self.as_json else nullcontext():
            yield

    def _write(self, text: str) -> None:
        self._stdout.write(text + "\n")
        self._stdout.flush()


def as_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Table:
    """Return a table without a frame."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        number = column in NUMBERS
        table.add_column(printable(column), justify="right" if number else "left", no_wrap=number)
    for row in rows:
        table.add_row(*(_shown(cell, in_a_line=True) for cell in row))
    return table


def _shown(cell: Cell, *, in_a_line: bool = False) -> Text:
    """Return ``cell`` without terminal control characters, which a record may contain."""
    text = cell if isinstance(cell, Text) else Text("")
    plain = printable(cell.plain if isinstance(cell, Text) else cell)
    if in_a_line:
        plain = plain.replace("\n", "\\n").replace("\t", "\\t")
    return text if plain == text.plain else Text(plain, text.style)


def number(value: int) -> str:
    """Format as ``336,776``."""
    return f"{value:,}"


def counted(count: int, noun: str) -> str:
    """Format as ``1 row``, ``2 rows``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def size(count: int) -> str:
    """Format as ``1.2 MB``, in powers of ten as disks and clouds are sold."""
    left = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if left < 1_000:
            return f"{left:.0f} {unit}" if unit == "B" else f"{left:.1f} {unit}"
        left /= 1_000
    return f"{left:,.1f} TB"


def instant(moment: datetime | None) -> str:
    """Format as ``2026-01-31 12:00:00Z``; a dash for None."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z" if moment else "-"


def duration(spent: timedelta | float | None) -> str:
    """Format in the two largest units that count: ``0.4 s``, ``3 min 20 s``, ``2 d 4 h``; a dash
    for None. A number is seconds.
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
    """Exit codes, as listed by docs/cli.md and ``eo --help``."""

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
    """Return the exit code of a command that failed with ``error``."""
    if isinstance(error, ConfigError | SetupError):
        return ExitCode.USAGE
    if isinstance(error, DataLossError):
        return ExitCode.DATA_LOSS
    return ExitCode.TRY_AGAIN if error.retryable else ExitCode.FAILED


class Signalled(KeyboardInterrupt):
    """Interruption by a signal that ends a command as Ctrl-C does, since libraries handle that."""

    def __init__(self, number: int) -> None:
        self.number = number


def end_by_signal(number: int, _: object) -> NoReturn:
    """Handle a signal that ends a command."""
    raise Signalled(number)


def interrupted_code(interruption: KeyboardInterrupt) -> int:
    """Return 128 plus the signal's number, as shells do: 130 after Ctrl-C."""
    number = interruption.number if isinstance(interruption, Signalled) else signal.SIGINT
    return 128 + number


def error_json(error: EoPipelineError) -> dict[str, Any]:
    """Return ``{"error": {"kind", "message", "retryable"}}``."""
    return {
        "error": {
            "kind": type(error).__name__,
            "message": str(error),
            "retryable": error.retryable,
        }
    }


def approve(output: Output, question: str, *, yes: bool) -> None:
    """Ask for approval of the plan that was shown before.

    Raises:
        ConfigError: there is no terminal to ask on.
        typer.Exit: the user declined.
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
    """Return the reason; ask for it on a terminal if it is missing.

    Raises:
        ConfigError: there is none.
    """
    if not reason and not output.as_json and sys.stdin.isatty():
        reason = typer.prompt("Why is that acceptable?")
    if not reason.strip():
        raise ConfigError("--reason is required: it is stored in the ledger.")
    return reason
