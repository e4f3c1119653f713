"""Runs of a pipeline in Dagster: their state, retries, and the events they report."""

from __future__ import annotations

import dataclasses
import logging
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from types import TracebackType
from typing import Any, Self

import dagster as dg

from eo_pipeline._process import sent_again
from eo_pipeline.dagster import mirror
from eo_pipeline.dagster.metadata import Columns, in_dagster, table_of
from eo_pipeline.dagster.naming import LEDGER_KEEPING, OPERATION_TAG, PIPELINE_TAG, DagsterPipeline
from eo_pipeline.errors import (
    BadRecordError,
    DataLossError,
    EoPipelineError,
    Loss,
    RangesGoneError,
)
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.runs.interruption import notes
from eo_pipeline.runs.report import CheckpointReport, Starter, started_by

#: Statuses of runs that may be committing.
WORKING = (
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
)

#: Pause after the first failure in a row; each further one doubles it.
FIRST_PAUSE = timedelta(seconds=30)
FAILURES_COUNTED = 8  # the longest pause is a little over an hour
RUNS_LOOKED_AT = 30


def working_run(instance: dg.DagsterInstance, declared: DagsterPipeline) -> dg.DagsterRun | None:
    """Return a run of this pipeline that works, however it was started."""
    return _first(instance, _filter(declared, *WORKING))


def unfinished_run(instance: dg.DagsterInstance, declared: DagsterPipeline) -> dg.DagsterRun | None:
    """Return a run of this pipeline that waits or works.

    A run queued by the UI's Materialize button is only visible once it works: its own step sets its
    tag.
    """
    return _first(instance, _filter(declared, dg.DagsterRunStatus.QUEUED, *WORKING))


def unfinished_runs(
    instance: dg.DagsterInstance, pipelines: Iterable[str], *, working: bool = False
) -> dict[str, dg.DagsterRun]:
    """Return the newest unfinished run of each of many pipelines, by name, in one query.
    ``working``: without queued runs.
    """
    statuses = WORKING if working else (dg.DagsterRunStatus.QUEUED, *WORKING)
    wanted = dg.RunsFilter(statuses=statuses, tags={PIPELINE_TAG: [*pipelines]})
    runs = [run for run in instance.get_runs(wanted) if _may_move(run)]
    return {run.tags[PIPELINE_TAG]: run for run in reversed(runs)}  # the newest of each


def pause_after_failures(
    instance: dg.DagsterInstance, declared: DagsterPipeline, now: float
) -> timedelta | None:
    """Return the remaining pause of a sensor after failed runs; None without one.

    A recreated topic, for example, fails every run until a person decides. Without a growing pause
    a level-triggered sensor would start one run after the other.
    """
    newest = instance.get_run_records(_filter(declared), limit=RUNS_LOOKED_AT)
    # a refused rewind is no evidence about forward runs
    forward = [record for record in newest if OPERATION_TAG not in record.dagster_run.tags]
    records = forward[:FAILURES_COUNTED]
    failures = 0
    for record in records:
        if record.dagster_run.status is not dg.DagsterRunStatus.FAILURE:
            break
        failures += 1
    if not failures or records[0].end_time is None:
        return None
    until = records[0].end_time + (FIRST_PAUSE * 2 ** (failures - 1)).total_seconds()
    return timedelta(seconds=round(until - now)) if until > now else None


def _first(instance: dg.DagsterInstance, wanted: dg.RunsFilter) -> dg.DagsterRun | None:
    """Return the newest matching run that may move the ledger; an audit only reads."""
    runs = instance.get_runs(wanted)
    return next(filter(_may_move, runs), None)


def _may_move(run: dg.DagsterRun) -> bool:
    return run.tags.get(OPERATION_TAG) not in LEDGER_KEEPING


def _filter(declared: DagsterPipeline, *statuses: dg.DagsterRunStatus) -> dg.RunsFilter:
    return dg.RunsFilter(statuses=statuses or None, tags=declared.identity_tags)


#: Parent of all loggers of the engine.
ENGINE = "eo_pipeline"

LoggedContext = dg.OpExecutionContext | dg.AssetExecutionContext | dg.AssetCheckExecutionContext


class _RunLogHandler(logging.Handler):
    def __init__(self, context: LoggedContext) -> None:
        super().__init__(logging.INFO)
        self._context = context

    def emit(self, record: logging.LogRecord) -> None:
        self._context.log.log(record.levelno, self.format(record))


@contextmanager
def into_run_log(context: LoggedContext) -> Iterator[None]:
    """Copy the engine's log records (level INFO and above) to the log of the run.

    Does nothing if the instance already captures them by its ``managed_python_loggers``.
    """
    if {ENGINE, "root"} & {*context.instance.managed_python_loggers}:
        yield
        return
    logger, handler = logging.getLogger(ENGINE), _RunLogHandler(context)
    level = logger.level
    logger.addHandler(handler)
    if logger.getEffectiveLevel() > logging.INFO:
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


StepContext = dg.OpExecutionContext | dg.AssetExecutionContext

#: Losses listed in a failure: a topic may have 10,000 partitions, and an event is kept for ever.
LOSSES_SHOWN = 100


@contextmanager
def retried(context: StepContext, declared: DagsterPipeline) -> Iterator[None]:
    """Retry temporary failures of the step, as often as the automation allows.

    The ops have no retry policy: Dagster would apply it to an interruption, too, so that a
    terminated run would start again and commit. The delay is part of the failed step: between two
    attempts Dagster's in-process executor sleeps and ignores signals.
    """
    retries = declared.automation.retries
    with failing(context, declared):
        try:
            yield
        except EoPipelineError as error:
            if not error.retryable or context.retry_number >= retries:
                raise
            _wait(context, declared, error)
            raise dg.RetryRequested(retries, seconds_to_wait=0) from error


@contextmanager
def failing(
    context: StepContext | dg.AssetCheckExecutionContext, declared: DagsterPipeline
) -> Iterator[None]:
    """Translate errors of a step, and copy the engine's log to the run's. An engine error fails the
    step with its message. An interruption goes on to Dagster, after its notes about unfinished work
    were logged.
    """
    try:
        starter = Starter(context.run.job_name, context.run.run_id)
        with sent_again(), into_run_log(context), started_by(starter):
            yield
    except EoPipelineError as error:
        # Spark's plan and the Java stacks of the causes fill the screen
        context.log.debug("".join(traceback.format_exception(error)))
        raise dg.Failure(
            description=in_dagster(declared, str(error)),
            metadata=failure_metadata(error),
            allow_retries=False,
        ) from None
    except (KeyboardInterrupt, dg.DagsterExecutionInterruptedError) as interruption:
        for note in notes(interruption):
            context.log.warning(note)
        if OPERATION_TAG not in context.run.tags and declared.automation.lag_threshold:
            context.log.warning(
                f"While the sensor {declared.lag_sensor} is on, it starts the next run when "
                "records wait. To keep the pipeline stopped, switch the sensor off (Automation)."
            )
        raise


def failure_metadata(error: EoPipelineError) -> dict[str, Any]:
    """Return the error's fields as metadata, for tables and for programs that query Dagster."""
    shared: dict[str, Any] = {"error": type(error).__name__, "retryable": error.retryable}
    if isinstance(error, DataLossError | RangesGoneError):
        return shared | {"losses": len(error.losses), "lost": _losses(error.losses)}
    if isinstance(error, BadRecordError) and error.example is not None:
        record = error.example
        return shared | {
            "bad_records": error.count,
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "reason": record.reason,
        }
    return shared


def _losses(losses: Sequence[Loss]) -> dg.MetadataValue:
    columns: Columns = {
        "topic": "string",
        "partition": "int",
        "expected": ("int", "next offset to read"),
        "beginning": ("int", "the first offset that Kafka holds now"),
        "end": ("int", "offset after the last record in Kafka"),
        "cause": "string",
    }
    return table_of(columns, losses[:LOSSES_SHOWN])


def _wait(context: StepContext, declared: DagsterPipeline, error: EoPipelineError) -> None:
    automation, retry = declared.automation, context.retry_number + 1
    seconds = automation.seconds_before_retry(retry)
    message = in_dagster(declared, str(error))
    context.log.warning(f"{message} Retry {retry} of {automation.retries} in {seconds:g} s")
    try:
        time.sleep(seconds)
    except (KeyboardInterrupt, dg.DagsterExecutionInterruptedError) as interruption:
        interruption.add_note(f"interrupted before retry {retry}, after: {error}")
        raise


#: Newest ledger entries among which a step looks for unreported ones.
ENTRIES_LOOKED_AT = 200


@dataclass
class EventReporter:
    """Logs every event at once, for a step whose assets are not its outputs."""

    declared: DagsterPipeline
    context: StepContext

    def catch_up(self) -> None:
        """Report unreported entries before this step's own events: events follow the ledger's
        order.
        """
        for entry in unreported(self.declared, self.context.instance):
            version = entry.version
            self.context.log.info(
                f"Version {version} had been committed but not reported to Dagster; "
                "reporting it now."
            )
            self._report(entry, mirror.of_entry(self.declared, entry))

    def committed(self, report: CheckpointReport) -> None:
        """Report a commit; the engine calls this after each."""
        self.context.log.info(summary_line(report))
        if report.entry.counts.dead_letters:
            self.context.log.warning(dead_letters_line(self.declared, report.entry))
        self._report(report.entry, mirror.of_report(self.declared, report))

    def _report(self, entry: LedgerEntry, events: Sequence[mirror.EntryEvent]) -> None:
        mirror.update_keys(self.declared, self.context.instance, entry)
        for event in events:
            self._log(event)

    def _log(self, event: mirror.EntryEvent) -> None:
        self.context.log_event(event.event())


@dataclass
class HoldingEventReporter(EventReporter):
    """Logs an event once its asset has a newer one, for the forward step.

    Dagster takes one result per asset and step. So the newest event of each asset is held back:
    a successful step yields it, a step that fails for good logs it. A step that is retried leaves
    it to the next attempt, which finds the entry in the ledger; after a kill the reconciler
    reports it.
    """

    _held: dict[dg.AssetKey, mirror.EntryEvent] = field(default_factory=dict)
    _entries: list[LedgerEntry] = field(default_factory=list)
    _live_before: list[Mapping[str, Any]] = field(default_factory=list)

    def _report(self, entry: LedgerEntry, events: Sequence[mirror.EntryEvent]) -> None:
        if not self._entries:
            self._live_before = mirror.live_rows(self.declared, self.context.instance)
        now = datetime.now(UTC)  # the store's time is not known before the entry is read again
        self._entries.append(dataclasses.replace(entry, committed_at=entry.committed_at or now))
        super()._report(entry, events)

    def _log(self, event: mirror.EntryEvent) -> None:
        earlier = self._held.pop(event.key, None)
        if earlier is not None:
            super()._log(earlier)
        self._held[event.key] = event  # as the last key: events follow the ledger's order

    def results(self, selected: Set[dg.AssetKey]) -> Iterator[dg.MaterializeResult[None]]:
        """Yield the results of the ``selected`` assets at the end of the step. Other events are
        logged: those of an unselected asset and of the checkpoints.
        """
        for event in self._held.values():
            if event.key in selected and not event.observed:
                yield event.result()
            elif event.key == self.declared.checkpoints:
                shown = mirror.with_live_rows(event, self._live_before, self._entries)
                self.context.log_event(shown.event())
            else:
                self.context.log_event(event.event())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc is not None and not isinstance(exc, dg.RetryRequested):
            for event in self._held.values():
                self.context.log_event(event.event())


def unreported(declared: DagsterPipeline, instance: dg.DagsterInstance) -> list[LedgerEntry]:
    """Return entries that earlier attempts and killed runs committed without reporting, oldest
    first.

    Entries older than the last few hundred are left to the reconciler.
    """
    page = instance.fetch_materializations(declared.offsets, limit=ENTRIES_LOOKED_AT)
    events = [record.asset_materialization for record in page.records]
    reported = {mirror.reported_id(event) for event in events if event}
    head = declared.pipeline.head()
    if head is None or head.id in reported:
        return []
    entries = declared.pipeline.newest(ENTRIES_LOOKED_AT)
    newest_first = takewhile(lambda entry: entry.id not in reported, reversed(entries))
    return list(newest_first)[::-1]


#: Reasons named in the log; further dead letters are counted.
REASONS_NAMED = 3


def dead_letters_line(declared: DagsterPipeline, entry: LedgerEntry) -> str:
    """Return a line for the run's log: how many dead letters ``entry`` has, the first reasons, and
    the command that lists all.
    """
    rows = declared.pipeline.dead_letter_rows(entry.checkpoint)
    try:
        of_entry = (row.error.split("\n")[0] for row in rows if row.checkpoint == entry.checkpoint)
        reasons = dict.fromkeys(islice(of_entry, REASONS_NAMED))
    except EoPipelineError:  # this store cannot read them back
        reasons = {}
    named = f", for example: {'; '.join(reasons)}" if reasons else ""
    return (
        f"version {entry.version}: {entry.counts.dead_letters:,} dead letters{named}. "
        f"`eo dead-letters show {entry.checkpoint}` lists them."
    )


def summary_line(report: CheckpointReport) -> str:
    """Return one line about a commit, for the run's log."""
    entry, counts = report.entry, report.entry.counts
    if not entry.ranges:
        aim = f" to {entry.target}" if entry.target is not None else ""
        return f"version {entry.version}: {entry.operation.value}{aim}, no rows"
    replayed = f"replay of {entry.target}, " if entry.target is not None else ""
    recovered = ", staged by a run that died" if report.recovered else ""
    dead = f", {counts.dead_letters:,} dead letters" if counts.dead_letters else ""
    holes = entry.offsets_without_record
    empty = f"; {holes:,} offsets without a record" if holes else ""
    lag = f"; lag {report.lag_after:,}" if report.lag_after is not None else ""
    return (
        f"version {entry.version}: {replayed}{counts.records:,} records, {counts.rows:,} rows"
        f"{dead} in {sum(report.seconds.values()):.1f} s{recovered}{empty}{lag}"
    )
