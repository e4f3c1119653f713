"""Monitoring commands: `eo watch`, `eo metrics`, `eo costs` and `eo report`."""

from __future__ import annotations

import functools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.text import Text

from eo_pipeline.cli.options import AsJson, Files, Name, choose, documents, load, version_or_time
from eo_pipeline.cli.output import (
    Cell,
    Output,
    as_table,
    duration,
    error_json,
    exit_code,
    instant,
    muted,
    note,
    number,
    size,
)
from eo_pipeline.config.documents import Document
from eo_pipeline.errors import ConfigError, EoPipelineError, SetupError, to_install
from eo_pipeline.kafka.logs import said_of
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.ledger.history import Spent, day_of
from eo_pipeline.operations.status import Status
from eo_pipeline.pipeline import Pipeline

if TYPE_CHECKING:
    from rich.live import Live

_Every = Annotated[float, typer.Option(min=0.1, help="Polling interval in seconds.")]
_Once = Annotated[bool, typer.Option("--once", help="Show the state once and exit.")]

COLUMNS = ("pipeline", "version", "kind", "lag", "rows", "rows/s", "committed", "age", "state")

#: Redraws of the screen per second, because ages grow between polls.
_REDRAWS_A_SECOND = 2

#: Maximum number of characters of a sentence in a cell; `eo status` shows all of it.
_SENTENCE_MAX = 160


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
    watched = [_WatchedPipeline(document) for document in documents(files, name)]
    with muted():  # errors have a column of their own
        if not once:
            _poll_forever(output, watched, every)
        for thread in [pipeline.begin_poll() for pipeline in watched]:
            thread.join()
        _show(output, watched)
    failed = next((pipeline.error for pipeline in watched if pipeline.error), None)
    if failed:
        raise typer.Exit(exit_code(failed))


@dataclass
class _WatchedPipeline:
    """One pipeline and the result of its last poll. Polls do not overlap."""

    document: Document
    status: Status | None = None
    #: Error of the last poll; None if it succeeded.
    error: EoPipelineError | None = None
    #: Time and message of the latest error, kept after later successes.
    last_error: str = ""
    _pipeline: Pipeline | None = None
    _thread: threading.Thread | None = None
    _polled_at: float = field(default_factory=time.monotonic)

    def begin_poll(self) -> threading.Thread:
        """Begin the next poll, unless one is running. It has a thread of its own, so that an
        unreachable store delays neither other pipelines nor the end of the command.
        """
        if self._thread is None or not self._thread.is_alive():
            self._polled_at = time.monotonic()
            self._thread = threading.Thread(target=self._poll, daemon=True)
            self._thread.start()
        return self._thread

    def _poll(self) -> None:
        try:
            self._pipeline = self._pipeline or load(self.document)
            self.status, self.error = self._pipeline.status(), None
        except EoPipelineError as error:
            self.error = error
            self.last_error = f"{instant(datetime.now(UTC))}: {_sentence(str(error))}"

    def row(self) -> list[Cell]:
        """Return the cells below :data:`COLUMNS`."""
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
        """Return the fields of `eo status`, the speed of the last commit, and the last error."""
        fields: dict[str, Any] = {"pipeline": self.document.name}
        if self.status is not None:
            fields = {**self.status.to_json(), "rows_per_second": _speed(self.status)}
        error = error_json(self.error) if self.error else {"error": None}
        return {**fields, **error, "last_error": self.last_error or None}

    def _state(self) -> Text:
        if self.error is not None:
            return Text(_sentence(str(self.error)), "red")
        waited = time.monotonic() - self._polled_at
        if self.status is None:
            return Text(f"asking for {waited:.0f} s", "dim")
        if obstacle := next(iter((*self.status.blocked, *self.status.losses)), None):
            return Text(f"stopped: {_sentence(str(obstacle))}", "red")
        state = Text("behind", "yellow") if self.status.lag else Text("up to date", "green")
        if transactions := self.status.transactions:
            state.append(f"; {said_of(transactions)}", "yellow")
        if self.last_error:
            state.append(f"; last error: {self.last_error}", "dim")
        return state


def _speed(status: Status) -> float | None:
    """Return rows per second of the last commit; None without rows or without times in the
    ledger.
    """
    head = status.head
    if head is None or not head.counts.rows or not (head.committed_at and head.started_at):
        return None
    seconds = (head.committed_at - head.started_at).total_seconds()
    return head.counts.rows / seconds if seconds > 0 else None


def _sentence(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SENTENCE_MAX else f"{line[: _SENTENCE_MAX - 3]}..."


def _poll_forever(output: Output, watched: Sequence[_WatchedPipeline], every: float) -> NoReturn:
    """Poll every ``every`` seconds until interrupted."""
    with _screen(output) as screen:
        while True:
            for pipeline in watched:
                pipeline.begin_poll()
            until = time.monotonic() + every
            while screen is not None and time.monotonic() < until:
                screen.update(
                    as_table(COLUMNS, [pipeline.row() for pipeline in watched]), refresh=True
                )
                time.sleep(min(every, 1 / _REDRAWS_A_SECOND))
            if screen is None:
                time.sleep(every)
                _show(output, watched)


@contextmanager
def _screen(output: Output) -> Iterator[Live | None]:
    """Yield the terminal's alternate screen; None without a terminal."""
    if not output.is_live():
        yield None
        return
    from rich.live import Live  # only a terminal needs it

    with Live(screen=True, auto_refresh=False) as screen:
        yield screen


def _show(output: Output, watched: Sequence[_WatchedPipeline]) -> None:
    if output.as_json:
        at = datetime.now(UTC).isoformat()
        output.line({"at": at, "pipelines": [pipeline.to_json() for pipeline in watched]})
        return
    output.say(f"{instant(datetime.now(UTC))}")
    output.table(COLUMNS, [pipeline.row() for pipeline in watched])


_LOOPBACK = "127.0.0.1"

_Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to serve metrics on; 0: any.")]
_Host = Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0: every one.")]
_TextFile = Annotated[
    Path | None,
    typer.Option(
        "--textfile",
        help="Write this file once for the node exporter's textfile collector, and exit.",
    ),
]


def metrics(
    port: _Port = 9464,
    host: _Host = _LOOPBACK,
    every: _Every = 15.0,
    textfile: _TextFile = None,
    files: Files = None,
    name: Name = None,
) -> None:
    """Lag, rows, ages and counts of each pipeline for Prometheus, until interrupted.

    From the ledger and from Kafka, whoever ran the pipelines. A scrape looks at nothing itself.
    """
    try:
        from prometheus_client import CollectorRegistry, start_http_server, write_to_textfile

        from eo_pipeline.monitoring.prometheus import (
            Observed,
            PipelineMetrics,
            poll_all,
            poll_in_background,
        )
    except ImportError as error:
        raise SetupError(
            f"Metrics take a package that is not installed ({error}): {to_install('metrics')}"
        ) from error
    output = Output()
    listed = documents(files, name)
    observed = [Observed(doc.name, functools.partial(load, doc), note) for doc in listed]
    registry = CollectorRegistry(auto_describe=False)
    registry.register(PipelineMetrics(observed))
    if textfile is not None:
        poll_all(observed)
        try:
            write_to_textfile(str(textfile), registry)
        except OSError as error:
            raise SetupError(
                f"--textfile {textfile} cannot be written: {error.strerror}. Make its folder, or "
                "name another."
            ) from error
        return
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise SetupError(
            f"cannot listen on {host}:{port}: {error}. Choose another --port."
        ) from error
    for pipeline in observed:
        poll_in_background(pipeline, every)
    output.say(f"http://{host}:{server.server_port}/metrics")
    try:
        thread.join()
    finally:
        server.shutdown()


#: Maximum number of ledger entries per request.
_PER_REQUEST = 1_000


class By(StrEnum):
    """Grouping of the sums."""

    OPERATION = "operation"
    DAY = "day"
    RUN = "run"


_KEYS: dict[By, Callable[[LedgerEntry], str]] = {
    By.OPERATION: lambda entry: entry.operation.value,
    By.DAY: day_of,
    By.RUN: lambda entry: entry.run_id,
}
_COLUMNS = (
    *("versions", "records", "rows", "bytes in", "bytes out"),
    *("wall", "cpu", "spark cpu"),
)
_TOTAL = "total"

_By = Annotated[By, typer.Option("--by", help="Group the costs by this.")]
_Since = Annotated[
    str | None,
    typer.Option(help="Only what was committed since then, such as 2026-01-31T12:00Z."),
]


def costs(
    by: _By = By.OPERATION,
    since: _Since = None,
    files: Files = None,
    name: Name = None,
    as_json: AsJson = False,
) -> None:
    """Show the costs of each pipeline: records, bytes, wall and CPU time; by operation, day or run.

    From the ledger: what was rewound since was paid for all the same.
    """
    output, after = Output(as_json), _moment(since)
    by_pipeline = {
        document.name: _spent(load(document), _KEYS[by], after)
        for document in documents(files, name)
    }
    if as_json:
        output.document([_json(pipeline, by, sums) for pipeline, sums in by_pipeline.items()])
        return
    rows = [
        (pipeline, key, *_row(spent))
        for pipeline, sums in by_pipeline.items()
        for key, spent in sums.items()
    ]
    output.table(("pipeline", by.value, *_COLUMNS), rows)
    if any(
        spent.measured < spent.versions for sums in by_pipeline.values() for spent in sums.values()
    ):
        output.say("\n-, ≥: not all of these versions say it; see docs/monitoring.md, Costs")


def _moment(text: str | None) -> datetime | None:
    moment = None if text is None else version_or_time(text)
    if isinstance(moment, int):
        raise ConfigError(f"--since takes a time such as 2026-01-31T12:00Z, not {text}")
    return moment


def _spent(
    pipeline: Pipeline, key: Callable[[LedgerEntry], str], since: datetime | None
) -> dict[str, Spent]:
    """Return the sums by ``key``, in the ledger's order, and the total as the last one."""
    sums: defaultdict[str, Spent] = defaultdict(Spent)
    total = Spent()
    for entry in _entries(pipeline):
        if since is None or (entry.committed_at or entry.started_at) >= since:
            sums[key(entry)].add(entry)
            total.add(entry)
    return {**sums, _TOTAL: total}


def _entries(pipeline: Pipeline) -> Iterator[LedgerEntry]:
    last = None
    while entries := pipeline.following(last, _PER_REQUEST):
        yield from entries
        last = entries[-1].id


def _json(pipeline: str, by: By, sums: dict[str, Spent]) -> dict[str, Any]:
    parts = [{by.value: key, **spent.to_json()} for key, spent in sums.items()]
    total = parts.pop()
    del total[by.value]
    return {"pipeline": pipeline, "by": by.value, "parts": parts, "total": total}


def _row(spent: Spent) -> list[Cell]:
    """Return the cells below :data:`_COLUMNS`."""
    return [
        number(spent.versions),
        number(spent.records),
        number(spent.rows),
        size(spent.bytes_in),
        size(spent.bytes_out) if spent.measured else "-",
        duration(spent.wall),
        _measured_duration(spent.cpu.total_seconds(), spent.measured, spent.versions),
        _measured_duration(spent.spark_cpu.total_seconds(), spent.spark_measured, spent.versions),
    ]


def _measured_duration(seconds: float, measured: int, versions: int) -> str:
    if not measured:
        return "-"
    return f"{'' if measured == versions else '≥ '}{duration(seconds)}"


_Out = Annotated[Path | None, typer.Option("--out", "-o", help="The file. Default: NAME.html.")]
_Last = Annotated[int, typer.Option("--last", "-n", min=1, help="How many versions, the newest.")]


def report(out: _Out = None, last: _Last = 200, files: Files = None, name: Name = None) -> None:
    """One page of HTML: history as a tree, throughput, phases, lag, rows and costs.

    It is one file that asks for nothing else: mail it, or keep it beside an incident's report.
    """
    # here, because it imports a template engine
    from eo_pipeline.monitoring.report import page

    output = Output()
    pipeline = choose(files, name).pipeline
    entries = pipeline.newest(last)
    status, trouble = _status(pipeline)
    text = page(
        entries,
        pipeline=pipeline.name,
        reads=", ".join(pipeline.source.topics) or str(pipeline.source.topic_pattern),
        writes=pipeline.sink.qualified_name,
        status=status,
        failures=pipeline.failures(),
        trouble=trouble,
    )
    path = out or Path(f"{pipeline.name}.html")
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SetupError(
            f"{path} cannot be written: {error.strerror}. Name another file with --out."
        ) from error
    output.say(f"{path}: {len(entries)} versions")


def _status(pipeline: Pipeline) -> tuple[Status | None, str]:
    """Return the status, or the error: the history is shown even while Kafka is unreachable."""
    try:
        return pipeline.status(), ""
    except EoPipelineError as error:
        note(f"{pipeline.name}: {error}")
        return None, str(error)
