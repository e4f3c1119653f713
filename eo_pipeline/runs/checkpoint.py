"""The steps of a checkpoint that every operation shares: a run, a replay, an accepted loss.

The numbers are those of :mod:`eo_pipeline.runs.runner`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import InitVar, dataclass, field, replace
from functools import cached_property, partial
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from eo_pipeline.batch.entry_cache import EntryCache
from eo_pipeline.crashpoints import CrashPoint, reach
from eo_pipeline.errors import (
    EoPipelineError,
    FencedError,
    RefusedError,
    SetupError,
    SourceUnavailableError,
    SparkJobError,
)
from eo_pipeline.kafka.admin import KafkaAdmin
from eo_pipeline.kafka.losses import refuse_lost_ranges
from eo_pipeline.kafka.partitions import Cluster, positions_of
from eo_pipeline.kafka.planner import lag
from eo_pipeline.kafka.source import KafkaSource
from eo_pipeline.ledger.entry import (
    CODE_VERSION,
    REFUSED,
    Counts,
    LedgerEntry,
    Operation,
    new_transaction_id,
)
from eo_pipeline.progress import Phase, phase, say
from eo_pipeline.runs.recovery import Recovery
from eo_pipeline.runs.report import NOBODY, CheckpointReport, Meter, Observer, Stopwatch, Timing
from eo_pipeline.runs.transaction import SinkTransaction, Stage
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.session import CommitOutcome, SinkSession
from eo_pipeline.spark import SparkProvider
from eo_pipeline.spark.startup import Workload, work
from eo_pipeline.staging.rows import StagedOutput
from eo_pipeline.storage.backend import StoreUnreachableError
from eo_pipeline.storage.paths import passes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from eo_pipeline.batch.schemas import SchemaResolvers
    from eo_pipeline.batch.stage import Stager, Transform
    from eo_pipeline.runs.background import BackgroundStaging
    from eo_pipeline.staging.attempt import Attempt

log = logging.getLogger(__name__)

#: The most that is little: offsets, and bytes of their values. A cold run of 300,000 records of 200
#: bytes took a quarter less processor time with the first compiler alone, one of a million 5 %.
LITTLE_OFFSETS = 300_000
LITTLE_BYTES = 200_000_000
#: The most for which Spark is to compile nothing: a cold run of 8,000 records took 5.1 s so and 5.7
#: by itself, one of 30,000 the same 5.7 s.
LEAST_OFFSETS = 10_000
LEAST_BYTES = 10_000_000

#: A record's bytes, where none was measured yet: so many offsets are little in a first run.
_ASSUMED_BYTES = LITTLE_BYTES // LITTLE_OFFSETS

#: Records of a batch that may go to the driver as Arrow instead of through files, in bytes.
INLINE_BYTES = 64 * 1024 * 1024

#: What a transform does nobody knows, but how long it took the last time; seconds, with Spark's own
#: start if it was started then.
_LITTLE_S = 30.0
_LEAST_S = 10.0
_ABOUT_AS_MANY = 2


def amount_of(
    entry: LedgerEntry, lag: int | None, measured: Counts, *, transformed: bool
) -> Workload:
    """Return the size of the work: the ranges of ``entry`` and ``lag`` offsets that wait after it.
    ``measured`` are the counts of a checkpoint like it; ``transformed``: the user's own code takes
    part.
    """
    if entry.operation is not Operation.FORWARD or lag is None:
        return Workload.LARGE  # of a replay nobody here knows how many checkpoints follow
    offsets = sum(offset_range.span for offset_range in entry.ranges) + lag
    size = offsets * (measured.bytes / measured.records if measured.records else _ASSUMED_BYTES)
    took_s = _took_s(measured, offsets) if transformed else 0.0
    if offsets <= LEAST_OFFSETS and size <= LEAST_BYTES and took_s <= _LEAST_S:
        return Workload.TINY
    if offsets <= LITTLE_OFFSETS and size <= LITTLE_BYTES and took_s <= _LITTLE_S:
        return Workload.SMALL
    return Workload.LARGE


def record_bytes(counts: Counts) -> float | None:
    """Mean size of a value and its key, in bytes, if any record was read."""
    size = counts.bytes + (counts.key_bytes or 0)
    return size / counts.records if counts.records else None


def fits_memory(entry: LedgerEntry, measured: Counts, offsets_max: int) -> bool:
    """Return whether the ranges of ``entry`` are few enough to be staged in memory, and their
    records small enough. The size of records that were never ``measured`` is unknown.
    """
    size, span = record_bytes(measured), sum(offset_range.span for offset_range in entry.ranges)
    return size is not None and span <= offsets_max and span * size <= INLINE_BYTES


def _took_s(measured: Counts, offsets: int) -> float:
    """Seconds that staging about as many records took; infinite if that is unknown."""
    staged_ms = measured.costs.phases_ms.get("stage") if measured.costs else None
    like_it = measured.records * _ABOUT_AS_MANY >= offsets
    return staged_ms / 1000 if staged_ms is not None and like_it else inf


def without_refused(
    transaction: SinkTransaction,
    error: RefusedError,
    session: SinkSession,
    source: KafkaSource,
    sink: Sink,
) -> LedgerEntry:
    """The entry of ``transaction`` to be staged once more, without the records whose rows were
    refused with ``error``.

    Raises:
        RefusedError: ``error`` itself, if it is not of rows that the store can name, or if they
            were set aside already.
        BadRecordError: by the source's policy, with one of the records.
    """
    entry = transaction.entry
    if not entry.ranges or REFUSED in entry.details:
        raise error
    lenient = source.on_bad_record == "dead_letter"
    most = source.dead_letter_limit if lenient else 0
    records = session.refused_records(error, transaction.output, most + 1)
    if not records:
        raise error
    if len(records) > most:
        # only now, because it takes pyspark
        from eo_pipeline.batch.validation import InvalidRows, refused

        remedy = f"More than source.dead_letter_limit ({most})" if lenient else ""
        example = {**records[0], "reason": records[0]["error"]}
        raise refused(InvalidRows(len(records), example), source, sink, remedy) from error
    return replace(
        entry,
        transaction_id=new_transaction_id(),
        counts=Counts(rows_total=entry.counts.rows_total - entry.counts.rows),
        details={**entry.details, REFUSED: records},
    )


def reading(entry: LedgerEntry) -> str:
    """Describe the read that goes on, for a log."""
    offsets = sum(offset_range.span for offset_range in entry.ranges)
    return f"version {entry.version}: reading {offsets:,} offsets and staging their rows"


def staged(entry: LedgerEntry) -> str:
    """Describe the staged rows, for a log."""
    counts = entry.counts
    dead = f" and {counts.dead_letters:,} dead letters" if counts.dead_letters else ""
    return (
        f"version {entry.version}: staged {counts.rows:,} rows{dead} of {counts.records:,} records"
    )


class PreparedCheckpoint(NamedTuple):
    """A checkpoint that anyone may commit, and the offsets that waited before it and after it."""

    transaction: SinkTransaction
    lag_before: int
    lag_after: int


@dataclass
class RunContext:
    """One process's work on one pipeline, over one connection to its sink."""

    pipeline: str
    source: KafkaSource
    sink: Sink
    transform: Transform | None
    lineage: bool
    session: SinkSession
    recovery: Recovery
    spark: SparkProvider
    #: ``SparkSettings.begin``, unless there is a session already
    begin_spark: Callable[[], None]
    run_id: str
    inline_records: int
    on_checkpoint: Callable[[CheckpointReport], None]
    observer: Observer = NOBODY
    #: a client that was asked something ahead
    prepared_admin: InitVar[KafkaAdmin | None] = None
    admin: KafkaAdmin = field(init=False)
    reports: list[CheckpointReport] = field(init=False, default_factory=list)
    #: the session of the last job, if there was one
    spark_in_use: SparkSession | None = field(init=False, default=None)
    stopwatch: Stopwatch = field(init=False)
    _meter: Meter = field(init=False, default_factory=Meter)

    def __post_init__(self, prepared_admin: KafkaAdmin | None) -> None:
        self.admin = prepared_admin or KafkaAdmin(self.source)
        self.stopwatch = Stopwatch(self.observer.phase)

    @cached_property
    def stager(self) -> Stager:
        """The stager, which makes rows of a batch."""
        # here, because it takes pyspark, and a run that finds nothing new stages nothing
        from eo_pipeline.batch.stage import Stager

        return Stager(self.source, self.sink, self.transform, self.lineage)

    @cached_property
    def entries(self) -> EntryCache:
        """Those of the ledger that hold the texts of schemas."""
        return EntryCache(self.session.entry)

    @cached_property
    def books(self) -> SchemaResolvers | None:
        """The schemas that records are read with; None if there is no registry."""
        if self.source.registry is None:
            return None
        # here for the same reason
        from eo_pipeline.batch.schemas import SchemaResolvers

        return SchemaResolvers.of_source(self.pipeline, self.source, self.entries)

    def recover(self) -> LedgerEntry | None:
        """Step 1. Returns the ledger's head."""
        with (
            self.stopwatch.timed("recover"),
            self._phase("asking the sink for the ledger", short=True),
        ):
            self.recovery.staging.check()
            head, committed = self.recovery.recover()
        for entry in committed:
            self._committed(entry, recovered=True)
        reach(CrashPoint.RECOVERED)
        return head

    def knowing_stager(self, measured: Counts | None = None) -> Stager:
        """The stager, with what the table takes now, and how large records are that were
        ``measured``.
        """
        size = record_bytes(measured) if measured else None
        return replace(
            self.stager,
            never_null=self.session.never_null(),
            bounds=self.session.bounds(),
            record_bytes=size,
            # few records of which nobody knows the size: their number bounds what is tried
            fetched_max=self.inline_records if size is None else 0,
            books=self.books,
            tries_directly=measured is None or not (measured.dead_letters or measured.unknown),
            agree=self.session.agree if self.sink.needs_agreement else None,
            as_staged=self.session.as_staged if self.sink.marks_files else None,
        )

    def publish_alone(self, entry: LedgerEntry) -> LedgerEntry:
        """Commit an entry that brings no rows: start, accepted loss, rewind."""
        entry = self.session.identified(entry)
        transaction = SinkTransaction(self.session, entry, None)
        transaction.write(lambda draft, _: (StagedOutput(), draft.counts))
        transaction.pre_commit()
        outcome = self._commit(transaction)
        self._committed(entry, outcome=outcome)
        return entry

    def cluster(self) -> Cluster:
        """Ask Kafka for partitions, topic ids and offsets."""
        with self._phase(f"asking Kafka at {self.source.bootstrap_servers}", short=True):
            return self.admin.cluster()

    def checkpoint(
        self, head: LedgerEntry, entry: LedgerEntry, cluster: Cluster, measured: Counts
    ) -> LedgerEntry:
        """Steps 3 to 8; see :meth:`promised` and :meth:`kept`."""
        return self.kept(self.promised(head, entry, cluster, measured))

    def promised(
        self,
        head: LedgerEntry,
        entry: LedgerEntry,
        cluster: Cluster,
        measured: Counts,
        ahead: BackgroundStaging | None = None,
    ) -> PreparedCheckpoint:
        """Steps 3 to 6 for ``entry``, a child of ``head`` that has ranges to read.

        ``measured`` are the counts of a checkpoint like it: they tell the size of a record.
        ``ahead``: its rows, if they are being staged already.
        """
        before = lag(positions_of(head, cluster), cluster)
        self._meter.lag = after = lag(positions_of(entry, cluster), cluster)
        # before the first look at the stager, which imports pyspark
        with work(self._amount_of(entry, measured)):
            self.begin_spark()
        if made_by := self.stager.code_version:
            entry = replace(entry, details={**entry.details, CODE_VERSION: made_by})
        entry = self.session.identified(entry)
        if ahead is None:
            return PreparedCheckpoint(self._promised(entry, measured), before, after)
        transaction = SinkTransaction(self.session, ahead.identified(entry), ahead.attempt)
        self._promise(transaction, partial(self._take_staged, ahead))
        return PreparedCheckpoint(transaction, before, after)

    def kept(self, promised: PreparedCheckpoint) -> LedgerEntry:
        """Steps 7 and 8. Returns the entry as it was committed, with its own counts."""
        transaction = promised.transaction
        reach(CrashPoint.PRE_COMMITTED)
        try:
            outcome = self._commit(transaction)
        except RefusedError as error:
            shared = (self.session, self.source, self.sink)
            entry = without_refused(transaction, error, *shared)
            self.say(f"staging again without {len(entry.details[REFUSED])} records")
            transaction = self._promised(entry, transaction.entry.counts)
            outcome = self._commit(transaction)
        self._committed(
            transaction.entry,
            promised.lag_before,
            promised.lag_after,
            outcome=outcome,
            columns=transaction.columns,
        )
        reach(CrashPoint.REPORTED)
        return transaction.entry

    def _commit(self, transaction: SinkTransaction) -> CommitOutcome:
        """Step 7, and what staging remembers of it."""
        entry = transaction.entry
        rows = f" with {entry.counts.rows:,} rows" if entry.ranges else ""
        kind = f" ({entry.operation.value})" if not entry.ranges else ""
        message = f"version {entry.version}: committing{rows}{kind} to {self.sink.table_name}"
        with self.stopwatch.timed("commit"), self._phase(message):
            outcome = transaction.commit()
        self.recovery.staging.witnesses.remember(transaction.entry)
        return outcome

    def _promised(self, entry: LedgerEntry, measured: Counts) -> SinkTransaction:
        """Steps 3 to 6, with the rows in memory or in files; in files also if memory failed.

        What a transform makes of small records is not known before, and the next run would plan
        the same again.
        """
        stage = partial(self._stage_now, measured)
        if self.fits_inline(entry, measured):
            try:
                return self._promise(SinkTransaction(self.session, entry, None), stage)
            except SparkJobError as error:
                log.warning(
                    "%s: version %d could not be read into memory and goes through files: %s",
                    self.pipeline,
                    entry.version,
                    error,
                )
        attempt = self.recovery.staging.begin(entry)
        return self._promise(SinkTransaction(self.session, entry, attempt), stage)

    def _promise(
        self, transaction: SinkTransaction, stage: Callable[[SinkTransaction], None]
    ) -> SinkTransaction:
        try:
            stage(transaction)
            self.say(staged(transaction.entry))
            reach(CrashPoint.STAGED)
            with self.stopwatch.timed("pre_commit"):
                transaction.pre_commit()
        except (EoPipelineError, OSError) as error:
            self._refuse_if_fenced(transaction.entry, error)
            if isinstance(error, EoPipelineError | StoreUnreachableError) or passes(error):
                raise
            raise SetupError(
                f"Pipeline {self.pipeline!r}: staging version {transaction.entry.version} failed: "
                f"{error}. Nothing was committed. Free space, or set Pipeline.staging to a folder "
                "this process may write."
            ) from error
        return transaction

    def _refuse_if_fenced(self, entry: LedgerEntry, error: Exception) -> None:
        """A faster run takes the version and rightly deletes our folder, also while Spark writes
        there: whatever fails then, we were fenced.

        Raises:
            FencedError: so it was.
        """
        try:
            held = self.session.entry(entry.version)
        except EoPipelineError:
            return  # the first error says more
        if held is not None and held.id != entry.id:
            raise FencedError(self.pipeline, entry.version, held.transaction_id) from error

    def _stage_now(self, measured: Counts, transaction: SinkTransaction) -> None:
        reach(CrashPoint.STAGING)
        with self.stopwatch.timed("stage"), self._phase(reading(transaction.entry)):
            self._stage(transaction, partial(self._staged_and_metered, measured))

    def _take_staged(self, ahead: BackgroundStaging, transaction: SinkTransaction) -> None:
        def taken(*_: object) -> tuple[StagedOutput, Counts]:
            try:
                staged = ahead.result()
            finally:
                self.stopwatch.count(ahead.timing)
            return self._metered(ahead.spark, ahead.timing, *staged)

        self._stage(transaction, taken)

    def _stage(self, transaction: SinkTransaction, stage: Stage) -> None:
        """Steps 3 to 5, and the check that the topics are still those that were planned. Whatever
        stops it, an interrupt too, the transaction is aborted.
        """
        with ExitStack() as unless_staged:
            unless_staged.callback(transaction.abort)
            try:
                transaction.write(stage)
                self._refuse_replaced_topics(transaction.entry)
            except SparkJobError:
                # a job that found records gone says so in Spark's words; the bounds say it better
                refuse_lost_ranges(transaction.entry, self.admin.cluster())
                raise
            unless_staged.pop_all()

    def _staged_and_metered(
        self, measured: Counts, entry: LedgerEntry, attempt: Attempt | None
    ) -> tuple[StagedOutput, Counts]:
        with Timing("stage") as timing:
            with work(self._amount_of(entry, measured)):
                spark = self._spark_for(entry)
            staged = self.knowing_stager(measured).stage(spark, entry, attempt)
        return self._metered(spark, timing, *staged)

    def _metered(
        self, spark: SparkSession, timing: Timing, output: StagedOutput, counts: Counts
    ) -> tuple[StagedOutput, Counts]:
        seconds = {**self.stopwatch.seconds, timing.phase: timing.seconds}
        return output, replace(counts, costs=self._meter.lap(spark, seconds, output))

    def _amount_of(self, entry: LedgerEntry, measured: Counts) -> Workload:
        transformed = self.transform is not None
        return amount_of(entry, self._meter.lag, measured, transformed=transformed)

    def _spark_for(self, entry: LedgerEntry) -> SparkSession:
        """Spark, without what killed runs left it to do for this ledger."""
        from eo_pipeline.spark import end_left_job

        self.spark_in_use = spark = self.spark()
        for name, session in self.recovery.staging.left_jobs(entry.ledger_id):
            end_left_job(spark, session, name)
        return spark

    def _refuse_replaced_topics(self, entry: LedgerEntry) -> None:
        """A topic recreated between plan and read has other records under the same offsets."""
        now = self.admin.topic_ids()
        if any(now.get(r.topic) != entry.topic_ids.get(r.topic) for r in entry.ranges):
            refuse_lost_ranges(entry, self.admin.cluster())

    def _committed(
        self,
        entry: LedgerEntry,
        lag_before: int | None = None,
        lag_after: int | None = None,
        *,
        outcome: CommitOutcome = CommitOutcome.COMMITTED,
        recovered: bool = False,
        columns: Mapping[str, str] | None = None,
    ) -> None:
        """Step 8: tell the caller, then Kafka."""
        report = CheckpointReport(
            entry=entry,
            outcome=outcome,
            recovered=recovered,
            lag_before=lag_before,
            lag_after=lag_after,
            seconds=self.stopwatch.taken(),
            columns=columns,
        )
        self.reports.append(report)
        self.observer.committed(report)
        self.on_checkpoint(report)
        self._commit_back(entry)

    def _commit_back(self, entry: LedgerEntry) -> None:
        """For lag tools only: that Kafka did not take them changes nothing, so it is a warning."""
        if self.source.commit_group is None:
            return
        try:
            self.admin.commit_back(self.source.commit_group, entry.offsets)
        except SourceUnavailableError as error:
            log.warning("offsets of version %d not told to Kafka: %s", entry.version, error)

    def fits_inline(self, entry: LedgerEntry, measured: Counts) -> bool:
        """Return whether its rows go through memory, and not through files."""
        return fits_memory(entry, measured, self.inline_records)

    def say(self, text: str) -> None:
        """Tell people who wait."""
        say(f"{self.pipeline}: {text}")

    def _phase(self, text: str, *, short: bool = False) -> AbstractContextManager[Phase]:
        return phase(f"{self.pipeline}: {text}", usually_short=short)
