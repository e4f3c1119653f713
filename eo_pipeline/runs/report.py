"""Reports of runs, as values, for Dagster's metadata and the demo's summary; and their recorder."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

from eo_pipeline._process import cpu_seconds
from eo_pipeline.kafka.source import KafkaSource
from eo_pipeline.ledger.entry import Costs, LedgerEntry
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.session import CommitOutcome
from eo_pipeline.staging.attempt import StagingArea
from eo_pipeline.staging.rows import StagedOutput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class CheckpointReport:
    """One ledger entry this run committed.

    ``recovered``: staged by a run that died, committed by this one. ``lag_before`` and
    ``lag_after`` are offsets (an upper bound on records), ``None`` where Kafka was not asked.
    ``seconds`` is per phase: recover, plan, stage, pre_commit, commit. ``columns`` is the table's
    columns as staged, name to the store's type, ``None`` for an entry without rows.
    """

    entry: LedgerEntry
    outcome: CommitOutcome
    recovered: bool
    lag_before: int | None
    lag_after: int | None
    seconds: Mapping[str, float]
    columns: Mapping[str, str] | None = None

    @property
    def records_per_second(self) -> float | None:
        """Records read, over the seconds from plan to commit; None if nothing was timed."""
        total = sum(self.seconds.values())
        return self.entry.counts.records / total if total else None


@dataclass(frozen=True)
class RunReport:
    """One run: the ``head`` it left, its checkpoints in order, and the ``lag`` that remains
    (offsets that arrived while it ran, or that ``max_checkpoints`` left).
    """

    pipeline: str
    run_id: str
    head: LedgerEntry
    checkpoints: tuple[CheckpointReport, ...]
    lag: int

    @property
    def records(self) -> int:
        return sum(report.entry.counts.records for report in self.checkpoints)

    @property
    def rows(self) -> int:
        return sum(report.entry.counts.rows for report in self.checkpoints)


@dataclass(frozen=True)
class ObservedRun:
    """A run that begins. ``operation`` is what the ledger calls it: forward, replay, rewind ...;
    ``transformed`` tells whether a transform stands between topic and table.
    """

    pipeline: str
    run_id: str
    operation: str
    source: KafkaSource
    sink: Sink
    staging: StagingArea
    transformed: bool


class PhaseTimes(NamedTuple):
    """A phase that ended, in nanoseconds since 1970 by this machine's clock."""

    name: str
    began_ns: int
    ended_ns: int
    failed: bool


class Observer:
    """Receive the events of one run, in its thread; this one does nothing."""

    def phase(self, times: PhaseTimes) -> None:
        """Called after each phase of a checkpoint."""

    def committed(self, report: CheckpointReport) -> None:
        """Called after each commit."""

    def ended(self, error: BaseException | None) -> None:
        """Called at the run's end, with the error or the interruption that ended it."""


class Starter(NamedTuple):
    """A scheduler's job that the runs of this context belong to, and its run's id."""

    job: str
    run_id: str


STARTER: ContextVar[Starter | None] = ContextVar("eo_pipeline.runs.report", default=None)


@contextmanager
def started_by(starter: Starter) -> Iterator[None]:
    """Name ``starter`` as the scheduler of the runs within the block."""
    token = STARTER.set(starter)
    try:
        yield
    finally:
        STARTER.reset(token)


#: Observer that does nothing.
NOBODY = Observer()

#: Called after each commit.
OnCheckpoint = Callable[[CheckpointReport], None]

#: Makes an observer for a run that begins.
MakeObserver = Callable[[ObservedRun], Observer]


class Timing:
    """Time a ``with`` block; ``seconds`` and ``times`` are set at its end."""

    def __init__(self, phase: str) -> None:
        self.phase = phase
        self.seconds = 0.0
        self.times: PhaseTimes | None = None

    def __enter__(self) -> Self:
        self._began, self._began_ns = time.perf_counter(), time.time_ns()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.seconds = time.perf_counter() - self._began
        self.times = PhaseTimes(self.phase, self._began_ns, time.time_ns(), exc is not None)


class Recorder:
    """Seconds, costs and reports of the checkpoints of one context.

    Processor time is of whole processes, this one and a JVM of its own: pipelines that one process
    runs at the same time are measured together.
    """

    def __init__(self, on_checkpoint: OnCheckpoint, observer: Observer = NOBODY) -> None:
        self.on_checkpoint = on_checkpoint
        self.reports: list[CheckpointReport] = []
        #: offsets that wait after the ranges being read
        self.lag: int | None = None
        #: session of the newest job, if there was one
        self.spark: SparkSession | None = None
        self._observer = observer
        self._seconds: dict[str, float] = {}
        self._cpu_s = time.process_time()
        self._spark_s = _sparks_cpu_s() or 0.0

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Count the seconds of the block."""
        timing = Timing(phase)
        try:
            with timing:
                yield
        finally:
            self.count(timing)

    def count(self, timing: Timing) -> None:
        """Count a phase that is over; one that failed is reported to the observer alone."""
        if timing.times is None:
            return
        if not timing.times.failed:
            self._seconds[timing.phase] = self._seconds.get(timing.phase, 0.0) + timing.seconds
        self._observer.phase(timing.times)

    def costs(self, spark: SparkSession, timing: Timing, output: StagedOutput) -> Costs:
        """Return the costs since the last call; ``spark`` staged ``output`` in ``timing``."""
        cpu_s, self._cpu_s = time.process_time() - self._cpu_s, time.process_time()
        seconds = {**self._seconds, timing.phase: timing.seconds}
        return Costs(
            cpu_ms=_ms(cpu_s),
            spark_cpu_ms=self._spark_ms(spark),
            phases_ms={phase: _ms(spent) for phase, spent in seconds.items()},
            bytes_out=output.size,
            lag=self.lag,
        )

    def taken(self) -> dict[str, float]:
        """Return the seconds for a report and reset them."""
        seconds, self._seconds = self._seconds, {}
        return seconds

    def report(self, report: CheckpointReport) -> None:
        """Keep the report, and hand it to observer and caller."""
        self.reports.append(report)
        self._observer.committed(report)
        self.on_checkpoint(report)

    def _spark_ms(self, spark: SparkSession) -> int | None:
        """None on a server that others may use as well, and on a cluster's executors: neither
        measures our job alone.
        """
        from eo_pipeline.spark.clients import is_connect

        if is_connect(spark) or not (spark.conf.get("spark.master") or "").startswith("local"):
            return None
        now = _sparks_cpu_s()
        if now is None:
            return None
        spent, self._spark_s = now - self._spark_s, now
        # a JVM that was restarted meanwhile has used less
        return _ms(spent if spent >= 0 else now)


def _sparks_cpu_s() -> float | None:
    """Processor time of the JVM that this process started for Spark, since its start."""
    if "pyspark.core.context" not in sys.modules:
        return None  # the import takes a sixth of a second
    from eo_pipeline.spark.driver import driver_pid

    pid = driver_pid()
    return None if pid is None else cpu_seconds(pid)


def _ms(seconds: float) -> int:
    return round(seconds * 1_000)
