"""Context and checkpoints of every operation: a run, a replay, an accepted loss.

Steps have the numbers of :mod:`eo_pipeline.runs.runner`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import inf
from operator import methodcaller
from typing import TYPE_CHECKING, NamedTuple, cast

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
from eo_pipeline.runs.report import CheckpointReport, Recorder, Timing
from eo_pipeline.runs.transaction import SinkTransaction, Stage
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.session import CommitOutcome, SinkSession
from eo_pipeline.sinks.tables import TablesAppearedError, TablesSink, TableView
from eo_pipeline.spark import SparkProvider
from eo_pipeline.spark.startup import Workload, work
from eo_pipeline.staging.rows import StagedOutput
from eo_pipeline.storage.backend import StoreUnreachableError
from eo_pipeline.storage.paths import passes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from eo_pipeline.batch.schemas import SchemaResolvers
    from eo_pipeline.batch.stage import Stager, Transform
    from eo_pipeline.batch.tables import Rest, TablesStager
    from eo_pipeline.runs.background import BackgroundStaging
    from eo_pipeline.staging.attempt import Attempt, StagingArea

log = logging.getLogger(__name__)

#: Upper bounds of a small workload: offsets, and bytes of their values. A cold run of 300,000
#: records of 200 bytes took a quarter less processor time with the first compiler alone, one of a
#: million 5 %.
SMALL_OFFSETS = 300_000
SMALL_BYTES = 200_000_000
#: Upper bounds of a workload for which Spark compiles nothing: a cold run of 8,000 records took
#: 5.1 s without compilation and 5.7 s with it, one of 30,000 took 5.7 s either way.
TINY_OFFSETS = 10_000
TINY_BYTES = 10_000_000

#: Bytes of a record, before any was measured: so many offsets are small in a first run.
_ASSUMED_BYTES = SMALL_BYTES // SMALL_OFFSETS

#: Records of a batch that may go to the driver as Arrow instead of through files, in bytes.
INLINE_BYTES = 64 * 1024 * 1024

#: Seconds that the last staging took, with Spark's start if it was started then: the only known
#: measure of a transform's work.
_SMALL_S = 30.0
_TINY_S = 10.0
_ABOUT_AS_MANY = 2


def workload_of(
    entry: LedgerEntry, lag: int | None, measured: Counts, *, transformed: bool
) -> Workload:
    """Return the size of the work: the ranges of ``entry`` and ``lag`` offsets that wait after it.
    ``measured`` are the counts of a checkpoint like it; ``transformed``: the user's own code takes
    part.
    """
    if entry.operation is not Operation.FORWARD or lag is None:
        return Workload.LARGE  # how many checkpoints follow in a replay is not known here
    offsets = sum(offset_range.span for offset_range in entry.ranges) + lag
    size = offsets * (measured.bytes / measured.records if measured.records else _ASSUMED_BYTES)
    took_s = _took_s(measured, offsets) if transformed else 0.0
    if offsets <= TINY_OFFSETS and size <= TINY_BYTES and took_s <= _TINY_S:
        return Workload.TINY
    if offsets <= SMALL_OFFSETS and size <= SMALL_BYTES and took_s <= _SMALL_S:
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


def describe_read(entry: LedgerEntry) -> str:
    """Describe the read that goes on, for a log."""
    offsets = sum(offset_range.span for offset_range in entry.ranges)
    return f"version {entry.version}: reading {offsets:,} offsets and staging their rows"


def _describe_staged(entry: LedgerEntry) -> str:
    """Describe the staged rows, for a log."""
    counts = entry.counts
    dead = f" and {counts.dead_letters:,} dead letters" if counts.dead_letters else ""
    return (
        f"version {entry.version}: staged {counts.rows:,} rows{dead} of {counts.records:,} records"
    )


class TableInput(NamedTuple):
    """Input of one of several tables: the records of ``source`` that fulfil ``where``."""

    source: KafkaSource
    transform: Transform | None
    where: str | None
    takes_rest: bool = False


class Filled(NamedTuple):
    """Tables that a pipeline fills, and their inputs; ``staging`` has folders of each."""

    sink: Sink
    tables: Mapping[str, TableInput]
    staging: StagingArea


@dataclass(kw_only=True)
class RunContext:
    """Settings and connections of one operation on one pipeline, over one session of its sink.

    Only its ``recorder`` changes, and what it fills by :meth:`grow`.
    """

    pipeline: str
    source: KafkaSource
    sink: Sink
    transform: Transform | None
    lineage: bool
    inline_records: int
    run_id: str
    session: SinkSession
    recovery: Recovery
    admin: KafkaAdmin
    spark: SparkProvider
    #: ``SparkSettings.begin``, unless there is a session already
    begin_spark: Callable[[], None]
    recorder: Recorder
    #: of a pipeline that fills several tables what each is made of, and the policy for records that
    #: no table takes
    tables: Mapping[str, TableInput] = field(default_factory=dict)
    rest: Rest = "fail"
    #: where tables appear: makes those of the values
    filled: Callable[[Collection[str]], Filled] | None = None
    #: of one of several tables; see :meth:`of_table`
    where: str | None = None
    takes_rest: bool = False

    @property
    def is_transformed(self) -> bool:
        """True if the user's own code takes part."""
        transforms = (self.transform, *(table.transform for table in self.tables.values()))
        return any(transform is not None for transform in transforms)

    @cached_property
    def stager(self) -> Stager | TablesStager:
        """The stager, which makes rows of a batch."""
        # here, because it takes pyspark, and a run that finds nothing new stages nothing
        from eo_pipeline.batch.stage import Stager

        if not isinstance(self.sink, TablesSink):
            return Stager(
                *(self.source, self.sink, self.transform, self.lineage),
                where=self.where,
                refuses_all=self.takes_rest,
            )
        from eo_pipeline.batch.tables import TablesStager

        stagers = {
            name: Stager(
                table.source,
                self.sink.members[name],
                table.transform,
                self.lineage,
                where=table.where,
                refuses_all=table.takes_rest,
            )
            for name, table in self.tables.items()
        }
        return TablesStager(self.source, stagers, self.rest, self.sink.appearing)

    def grow(self, values: Collection[str]) -> None:
        """Fill the tables of ``values``, too, which appeared.

        Raises:
            ConfigError: they are too many, or one of them makes no name of a table.
        """
        assert self.filled is not None
        assert isinstance(self.sink, TablesSink)
        earlier = self.sink.appearing.names.values() if self.sink.appearing else ()
        self.sink, self.tables, staging = self.filled([*earlier, *values])
        self.session.take_in(self.sink)
        self.recovery = replace(self.recovery, staging=staging)
        for derived in ("stager", "_books_of_tables"):
            self.__dict__.pop(derived, None)

    @cached_property
    def entries(self) -> EntryCache:
        """The ledger's entries that hold the texts of schemas."""
        return EntryCache(self.session.entry)

    @cached_property
    def resolvers(self) -> SchemaResolvers | None:
        """The schemas that records are read with; None if there is no registry."""
        return self._books_of(self.source, self.entries)

    @cached_property
    def _books_of_tables(self) -> Mapping[str, SchemaResolvers | None]:
        return {
            name: self._books_of(table.source, partial(self._entry_of_table, name))
            for name, table in self.tables.items()
        }

    def carried(self, entry: LedgerEntry, head: LedgerEntry) -> Counts:
        """Return what is known of schemas at ``entry``, for a ledger that begins there; ``head`` is
        that of this one.
        """
        counts = self.resolvers.carried(entry, head) if self.resolvers else Counts()
        of_tables = {
            name: books.carried(entry.of_table(name), head.of_table(name))
            for name, books in self._books_of_tables.items()
            if books
        }
        return replace(counts, tables=of_tables)

    def _entry_of_table(self, name: str, version: int) -> LedgerEntry | None:
        entry = self.entries(version)
        return entry and entry.of_table(name)

    def _books_of(
        self, source: KafkaSource, entry_at: Callable[[int], LedgerEntry | None]
    ) -> SchemaResolvers | None:
        if source.registry is None:
            return None
        # here for the same reason
        from eo_pipeline.batch.schemas import SchemaResolvers

        return SchemaResolvers.of_source(self.pipeline, source, entry_at)

    def current_stager(self, measured: Counts | None = None) -> Stager | TablesStager:
        """Return the stager with the table's present limits, and with the size of the records that
        were ``measured``.
        """
        from eo_pipeline.batch.stage import Stager

        if isinstance(self.stager, Stager):
            return self._current(self.stager, self.session, self.resolvers, measured)
        with self.session.asked_at_once(methodcaller("never_null"), methodcaller("bounds")):
            stagers = {
                name: self._current(
                    stager,
                    self.session.members[name],
                    self._books_of_tables[name],
                    measured and measured.tables.get(name),
                )
                for name, stager in self.stager.tables.items()
            }
        return replace(self.stager, tables=stagers)

    def of_table(self, name: str) -> RunContext:
        """Return the context of one of several tables, as if it were the only one; to read."""
        assert isinstance(self.sink, TablesSink)
        table = self.tables[name]
        return replace(
            self,
            session=cast("SinkSession", TableView(self.session, name, table.source.topics)),
            sink=self.sink.members[name],
            source=table.source,
            transform=table.transform,
            where=table.where,
            takes_rest=table.takes_rest,
            tables={},
            filled=None,
        )

    def stager_of_one_table(self, measured: Counts | None = None) -> Stager:
        """See :meth:`current_stager`, of :meth:`of_table`, or of a pipeline with one table."""
        from eo_pipeline.batch.stage import Stager

        stager = self.current_stager(measured)
        assert isinstance(stager, Stager)
        return stager

    def _current(
        self,
        stager: Stager,
        session: SinkSession,
        resolvers: SchemaResolvers | None,
        measured: Counts | None,
    ) -> Stager:
        size = record_bytes(measured) if measured else None
        return replace(
            stager,
            never_null=session.never_null(),
            bounds=session.bounds(),
            record_bytes=size,
            # records of unknown size: their number bounds what is tried
            fetched_max=self.inline_records if size is None else 0,
            resolvers=resolvers,
            had_bad_records=bool(measured and (measured.dead_letters or measured.unknown)),
            agree=session.agree if stager.sink.needs_agreement else None,
            as_staged=session.as_staged if stager.sink.marks_files else None,
        )

    def say(self, text: str) -> None:
        """Log a progress message of the pipeline."""
        say(f"{self.pipeline}: {text}")

    def phase(self, text: str, *, short: bool = False) -> AbstractContextManager[Phase]:
        """Run the block as a phase of the pipeline."""
        return phase(f"{self.pipeline}: {text}", usually_short=short)


class PreparedCheckpoint(NamedTuple):
    """A checkpoint that anyone may commit, and the offsets that waited before it and after it."""

    transaction: SinkTransaction
    lag_before: int
    lag_after: int


def recover(context: RunContext) -> LedgerEntry | None:
    """Checkpoint step 1. Returns the ledger's head."""
    with (
        context.recorder.timed("recover"),
        context.phase("asking the sink for the ledger", short=True),
    ):
        context.recovery.staging.check()
        head, committed = context.recovery.recover()
    for entry in committed:
        _report(context, entry, CommitOutcome.COMMITTED, recovered=True)
    reach(CrashPoint.RECOVERED)
    return head


def prepare(
    context: RunContext,
    head: LedgerEntry,
    entry: LedgerEntry,
    cluster: Cluster,
    measured: Counts,
    ahead: BackgroundStaging | None = None,
) -> PreparedCheckpoint:
    """Steps 3 to 6 for ``entry``, a child of ``head`` that has ranges to read.

    ``measured`` are the counts of a checkpoint like it, for the size of a record. ``ahead`` is the
    staging of its rows, if that has begun already.
    """
    before = lag(positions_of(head, cluster), cluster)
    context.recorder.lag = after = lag(positions_of(entry, cluster), cluster)
    # before the first access to the stager, which imports pyspark
    with work(_workload(context, entry, measured)):
        context.begin_spark()
    if version := context.stager.code_version:
        entry = replace(entry, details={**entry.details, CODE_VERSION: version})
    try:
        transaction = _transaction(context, entry, measured, ahead)
    except TablesAppearedError as appeared:
        context.say(f"tables appear, of {', '.join(appeared.values)}; reading again for them")
        context.grow(appeared.values)
        again = replace(entry, transaction_id=new_transaction_id())
        return prepare(context, head, again, cluster, measured)
    return PreparedCheckpoint(transaction, before, after)


def _transaction(
    context: RunContext, entry: LedgerEntry, measured: Counts, ahead: BackgroundStaging | None
) -> SinkTransaction:
    entry = context.session.identified(entry)
    if ahead is None:
        return _prepared(context, entry, measured)
    transaction = SinkTransaction(context.session, ahead.identified(entry), ahead.attempt)
    return _pre_commit(context, transaction, partial(_take_staged, context, ahead))


def commit(context: RunContext, prepared: PreparedCheckpoint) -> LedgerEntry:
    """Steps 7 and 8. Returns the entry as it was committed, with its own counts."""
    transaction = prepared.transaction
    reach(CrashPoint.PRE_COMMITTED)
    try:
        outcome = _commit(context, transaction)
    except RefusedError as error:
        entry = _without_refused(context, transaction, error)
        context.say(f"staging again without {len(entry.details[REFUSED])} records")
        transaction = _prepared(context, entry, transaction.entry.counts)
        outcome = _commit(context, transaction)
    lags = prepared.lag_before, prepared.lag_after
    _report(context, transaction.entry, outcome, *lags, columns=transaction.columns)
    reach(CrashPoint.REPORTED)
    return transaction.entry


def commit_alone(context: RunContext, entry: LedgerEntry) -> LedgerEntry:
    """Commit an entry that brings no rows: start, accepted loss, rewind."""
    entry = context.session.identified(entry)
    transaction = SinkTransaction(context.session, entry, None)
    transaction.write(lambda draft, _: (StagedOutput(), draft.counts))
    transaction.pre_commit()
    _report(context, entry, _commit(context, transaction))
    return entry


def _prepared(context: RunContext, entry: LedgerEntry, measured: Counts) -> SinkTransaction:
    """Steps 3 to 6, with the rows in memory or in files; in files also if memory failed: a
    transform may make large rows of small records, and the next run would plan the same again.
    """
    stage = partial(_stage_now, context, measured)
    if fits_memory(entry, measured, context.inline_records):
        try:
            return _pre_commit(context, SinkTransaction(context.session, entry, None), stage)
        except SparkJobError as error:
            log.warning(
                "%s: version %d could not be read into memory and goes through files: %s",
                context.pipeline,
                entry.version,
                error,
            )
    attempt = context.recovery.staging.begin(entry)
    return _pre_commit(context, SinkTransaction(context.session, entry, attempt), stage)


def _pre_commit(
    context: RunContext, transaction: SinkTransaction, stage: Callable[[SinkTransaction], None]
) -> SinkTransaction:
    try:
        stage(transaction)
        context.say(_describe_staged(transaction.entry))
        reach(CrashPoint.STAGED)
        with context.recorder.timed("pre_commit"):
            transaction.pre_commit()
    except (EoPipelineError, OSError) as error:
        _refuse_if_fenced(context.session, transaction.entry, error)
        if isinstance(error, EoPipelineError | StoreUnreachableError) or passes(error):
            raise
        raise SetupError(
            f"Pipeline {context.pipeline!r}: staging version {transaction.entry.version} failed: "
            f"{error}. Nothing was committed. Free space, or set Pipeline.staging to a folder "
            "this process may write."
        ) from error
    return transaction


def _refuse_if_fenced(session: SinkSession, entry: LedgerEntry, error: Exception) -> None:
    """A faster run takes the version and rightly deletes our folder, also while Spark writes
    there: whatever fails then, we were fenced.

    Raises:
        FencedError: so it was.
    """
    try:
        held = session.entry(entry.version)
    except EoPipelineError:
        return  # the first error says more
    if held is not None and held.id != entry.id:
        raise FencedError(session.pipeline, entry.version, held.transaction_id) from error


def _stage_now(context: RunContext, measured: Counts, transaction: SinkTransaction) -> None:
    def stage(entry: LedgerEntry, attempt: Attempt | None) -> tuple[StagedOutput, Counts]:
        with Timing("stage") as timing:
            with work(_workload(context, entry, measured)):
                spark = _spark_for(context, entry)
            output, counts = context.current_stager(measured).stage(spark, entry, attempt)
        return output, replace(counts, costs=context.recorder.costs(spark, timing, output))

    reach(CrashPoint.STAGING)
    with context.recorder.timed("stage"), context.phase(describe_read(transaction.entry)):
        stage_checked(context.admin, transaction, stage)


def _take_staged(
    context: RunContext, ahead: BackgroundStaging, transaction: SinkTransaction
) -> None:
    def take(*_: object) -> tuple[StagedOutput, Counts]:
        try:
            output, counts = ahead.result()
        finally:
            context.recorder.count(ahead.timing)
        costs = context.recorder.costs(ahead.spark, ahead.timing, output)
        return output, replace(counts, costs=costs)

    stage_checked(context.admin, transaction, take)


def stage_checked(admin: KafkaAdmin, transaction: SinkTransaction, stage: Stage) -> None:
    """Steps 3 to 5, and the check that the topics are still those that were planned. Whatever
    stops it, an interrupt too, the transaction is aborted.
    """
    with ExitStack() as unless_staged:
        unless_staged.callback(transaction.abort)
        try:
            transaction.write(stage)
            _refuse_replaced_topics(admin, transaction.entry)
        except SparkJobError:
            # records that are gone fail the job with an error of Spark's; the bounds name them
            refuse_lost_ranges(transaction.entry, admin.cluster())
            raise
        unless_staged.pop_all()


def _refuse_replaced_topics(admin: KafkaAdmin, entry: LedgerEntry) -> None:
    """A topic recreated between plan and read has other records under the same offsets."""
    now = admin.topic_ids()
    if any(now.get(r.topic) != entry.topic_ids.get(r.topic) for r in entry.ranges):
        refuse_lost_ranges(entry, admin.cluster())


def _workload(context: RunContext, entry: LedgerEntry, measured: Counts) -> Workload:
    transformed = context.is_transformed
    return workload_of(entry, context.recorder.lag, measured, transformed=transformed)


def _spark_for(context: RunContext, entry: LedgerEntry) -> SparkSession:
    """Spark, after the end of the jobs that killed runs left for this ledger."""
    from eo_pipeline.spark import end_left_job

    context.recorder.spark = spark = context.spark()
    for name, session in context.recovery.staging.left_jobs(entry.ledger_id):
        end_left_job(spark, session, name)
    return spark


def _without_refused(
    context: RunContext, transaction: SinkTransaction, error: RefusedError
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
    sources = {None: context.source} | {name: of.source for name, of in context.tables.items()}
    most = max(map(_dead_letters_max, sources.values()))
    records = context.session.refused_records(error, transaction.output, most + 1)
    if not records:
        raise error
    for name, source in sources.items():
        refused_here = [record for record in records if record.get("table") == name]
        if len(refused_here) > (most := _dead_letters_max(source)):
            # only now, because it takes pyspark
            from eo_pipeline.batch.validation import InvalidRows, refused

            remedy = f"More than source.dead_letter_limit ({most})" if most else ""
            example = {**refused_here[0], "reason": refused_here[0]["error"]}
            tables = context.sink.members if isinstance(context.sink, TablesSink) else {}
            sink = tables.get(name or "", context.sink)
            invalid = InvalidRows(len(refused_here), example)
            raise refused(invalid, source, sink, remedy) from error
    return replace(
        entry,
        transaction_id=new_transaction_id(),
        counts=entry.counts.totals(entry.counts),
        details={**entry.details, REFUSED: records},
    )


def _dead_letters_max(source: KafkaSource) -> int:
    """Return how many records of a checkpoint may become dead letters."""
    return source.dead_letter_limit if source.on_bad_record == "dead_letter" else 0


def _commit(context: RunContext, transaction: SinkTransaction) -> CommitOutcome:
    """Checkpoint step 7, and its receipt in staging."""
    entry = transaction.entry
    rows = f" with {entry.counts.rows:,} rows" if entry.ranges else ""
    kind = f" ({entry.operation.value})" if not entry.ranges else ""
    message = f"version {entry.version}: committing{rows}{kind} to {context.sink.table_name}"
    with context.recorder.timed("commit"), context.phase(message):
        outcome = transaction.commit()
    context.recovery.staging.witnesses.remember(transaction.entry)
    return outcome


def _report(
    context: RunContext,
    entry: LedgerEntry,
    outcome: CommitOutcome,
    lag_before: int | None = None,
    lag_after: int | None = None,
    *,
    recovered: bool = False,
    columns: Mapping[str, str] | None = None,
) -> None:
    """Checkpoint step 8: report to the caller, then give the offsets back to Kafka, for lag tools
    alone: a failure there changes nothing and is a warning.
    """
    seconds = context.recorder.taken()
    context.recorder.report(
        CheckpointReport(entry, outcome, recovered, lag_before, lag_after, seconds, columns)
    )
    if context.source.commit_group is None:
        return
    try:
        context.admin.commit_back(context.source.commit_group, entry.offsets)
    except SourceUnavailableError as error:
        log.warning(
            "version %d: its offsets were not committed to the consumer group: %s",
            entry.version,
            error,
        )
