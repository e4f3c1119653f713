"""Steps 3 to 5 of a checkpoint: read, transform, stage, in one Spark job."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql.types import StructType

from eo_pipeline.batch.checksum import HashedRows
from eo_pipeline.batch.code_version import code_version
from eo_pipeline.batch.counting import (
    NAMES_IN_MEMORY,
    NAMES_OF_FILES,
    ReadCounts,
    RowCounter,
    SourceCounter,
    counts,
    refuse_other_rows,
)
from eo_pipeline.batch.decode import KAFKA_COLUMN, Decoded, decode, gives_utf8
from eo_pipeline.batch.decoded_source import (
    IS_UTF8,
    CountedRows,
    DecodedSource,
    JudgeNeededError,
    Parts,
    has_decoded_source,
)
from eo_pipeline.batch.fast_path import FastPath
from eo_pipeline.batch.native_decode import (
    NativeDecoder,
    Recently,
    is_of_one_record,
    judged,
    needs_judge,
)
from eo_pipeline.batch.output import (
    PARQUET,
    added_columns,
    check_names,
    marked,
    materialize,
    own_columns,
    types_of,
    with_coordinates_alone,
)
from eo_pipeline.batch.read import frame_of, matching, read_ranges
from eo_pipeline.batch.schemas import SchemaResolvers, read_with
from eo_pipeline.batch.spark_schema import typed_source
from eo_pipeline.batch.validation import (
    InvalidRows,
    Why,
    found,
    mark_of,
    refuse_bad,
    refused,
    set_aside,
    why_unfit,
)
from eo_pipeline.errors import EoPipelineError, SparkJobError, TransformError
from eo_pipeline.formats.wire_format import NOTHING, ReadSchemas
from eo_pipeline.kafka.fetch import Fetched, fetched, fetched_alone, is_of_odd_times
from eo_pipeline.kafka.planner import Tasks
from eo_pipeline.kafka.source import KafkaSource
from eo_pipeline.ledger.entry import REFUSED, Checksum, Counts, LedgerEntry
from eo_pipeline.ledger.offsets import OffsetRange, TopicPartition
from eo_pipeline.sinks.columns import Bound
from eo_pipeline.sinks.config import Sink
from eo_pipeline.spark import (
    SPARK_ERRORS,
    job_error,
    keep_staging_settings,
    send_modules,
    server_is_lost,
    staging_settings,
    text_of,
    with_known_schema,
    with_schema_asked_once,
)
from eo_pipeline.spark.interrupts import cores
from eo_pipeline.spark.origins import origins
from eo_pipeline.staging.attempt import Attempt
from eo_pipeline.staging.rows import StagedOutput, StagedTable

Transform = Callable[[DataFrame], DataFrame]
Ranges = Sequence[OffsetRange]

#: How often a job is run of which Spark does not say how many rows it made.
STAGING_TRIES = 3

#: Ranges of few records for which a consumer each, of Spark's, is no more than one of this process.
_CONSUMERS = 16
#: Where there may be files already, Spark removes them: a bucket may list folders long emptied.
_AGAIN = "overwrite"

#: Tables whose plans do not go task by task.
_not_split = Recently()

#: Error of the dead letter of a record that no table takes.
NO_TABLE = "no table takes it"

log = logging.getLogger(__name__)


@contextmanager
def _calling_the_users_code() -> Iterator[None]:
    """The one place where any exception is taken: a transform may raise whatever it likes.

    Raises:
        TransformError: instead, unless the error is one of ours already.
    """
    try:
        yield
    except EoPipelineError:
        raise
    except Exception as error:
        # Spark puts its whole plan below the first line
        first, *plan = str(error).splitlines() or [""]
        if plan:
            log.debug("the transform raised %s: %s", type(error).__name__, error)
        raise TransformError(
            f"the transform raised {type(error).__name__}: {first}{_users_line(error)}"
        ) from error


@contextmanager
def table_named(name: str) -> Iterator[None]:
    """Within the block, of one of several tables, an error of a transform names the table.

    Raises:
        TransformError: instead.
    """
    try:
        yield
    except TransformError as error:
        raise TransformError(f"table {name}: {error}") from error


def _users_line(error: Exception) -> str:
    """Return the line of the user's file that raised ``error``, as part of a message."""
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not any(folder in frame.filename for folder in _LIBRARIES)
    ]
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""


#: Folders without files of a user.
_LIBRARIES = (str(Path(__file__).parents[1]), "site-packages", "dist-packages")


class ReadRows(NamedTuple):
    """Rows that Spark makes of the records of ``source``, to be staged by ``stager``, whose sink
    has agreed to them.
    """

    source: DecodedSource
    stager: Stager
    result: CountedRows


@dataclass(frozen=True)
class Stager:
    """Stages the batches of one pipeline."""

    source: KafkaSource
    sink: Sink
    transform: Transform | None
    lineage: bool
    #: the table's columns that take no null
    never_null: Collection[str] = frozenset()
    #: what the types of others would cut in silence
    bounds: Mapping[str, Bound] = field(default_factory=dict)
    #: mean size of a record, in bytes, if it was measured
    record_bytes: float | None = None
    #: offsets of a batch that is fetched by this process although its rows go to files
    fetched_max: int = 0
    #: which schemas records are read with, if a registry knows them
    resolvers: SchemaResolvers | None = None
    #: ``SinkSession.agree``, if the sink needs it
    agree: Callable[[StructType], object] | None = None
    #: ``SinkSession.as_staged``, if files are marked
    as_staged: Callable[[StructType], StructType] | None = None
    #: the checkpoint before had dead letters or unknown fields
    had_bad_records: bool = False
    #: fetches a small batch in place of :func:`fetched`, for several tables
    fetch: Callable[[KafkaSource, Ranges, str], Fetched | None] | None = None
    #: whether this process fetches the batch, whatever its size: Spark's connector gives up at it
    reads_alone: bool = False
    #: which records are the table's, an SQL expression; see :mod:`eo_pipeline.batch.tables`
    where: str | None = None
    #: whether it takes what no other table does, and each record is a dead letter
    refuses_all: bool = False

    @property
    def code_version(self) -> str | None:
        """See :func:`eo_pipeline.batch.stage.code_version`."""
        return code_version(self.source, self.transform, lineage=self.lineage)

    def stage(
        self, spark: SparkSession, entry: LedgerEntry, attempt: Attempt | None
    ) -> tuple[StagedOutput, Counts]:
        """Read ``entry.ranges`` and stage the result under the number ``entry.checkpoint``.

        One Spark job, and a second small one only if there are dead letters. Rows go to Parquet in
        ``attempt``'s folder, or, in small batches, where it is None, to the driver as Arrow. Few
        records come from the driver, too, if it can have them at once.

        Raises:
            TransformError: the transform raised, or its result cannot be written.
            BadRecordError: by the source's policy.
            SparkJobError: the job failed.
            SparkUnavailableError: the Spark Connect server, or this process's JVM, was lost.
            SetupError: a disk is full, or Spark may not write there.
            SchemaChangeError: the sink cannot store a column's type.
            RegistryUnavailableError: the schema registry was needed and did not answer.
        """
        job = f"Pipeline {entry.pipeline!r}, checkpoint {entry.version}: the Spark job"
        try:
            with staging_settings(spark), origins(enabled=False):
                try:
                    return self._staged(spark, entry, attempt)
                except SPARK_ERRORS as error:
                    if not is_of_odd_times(text_of(error)):
                        raise
                    alone = replace(self, reads_alone=True)
                    return alone._staged(spark, entry, attempt)
        except SPARK_ERRORS as error:
            details = (spark, error, job, attempt.data if attempt else None)
            raise job_error(*details, transformed=self.transform is not None) from error
        except TransformError as error:
            cause = error.__cause__  # a transform may use Spark itself, and lose it
            if isinstance(cause, SPARK_ERRORS) and server_is_lost(spark):
                raise job_error(spark, cause, job) from error
            raise

    def _staged(
        self, spark: SparkSession, entry: LedgerEntry, attempt: Attempt | None
    ) -> tuple[StagedOutput, Counts]:
        """Once, and once more if there are records of schemas that nobody thought of: with those;
        and if the sink would refuse some of the rows: without their records.
        """
        schemas = self.resolvers.of(entry) if self.resolvers else None
        few = self.is_few(entry, attempt)
        fast_path = self.fast_path(entry, few=few)
        if fast_path and (
            staged_fast := fast_path.stage(
                spark, entry, attempt, self._tasks, had_bad_records=self.had_bad_records
            )
        ):
            return staged_fast
        by_tasks = not (fast_path or few) and self._native_decoder(spark, entry, attempt, schemas)
        native: tuple[StagedOutput, Counts] | InvalidRows | None = None
        if by_tasks and attempt:
            native, schemas = self._stage_by_tasks(spark, by_tasks, entry, attempt)
        if isinstance(native, tuple):
            return native
        fetch = fetched_alone if self.reads_alone else self.fetch or fetched
        small = fetch(self.source, entry.ranges, entry.pipeline) if few else None
        ranges = entry.ranges if small is None else small.runs
        decoded = self._decoded(spark, entry, small, schemas)
        ready = self._agreed(decoded)
        first = _AGAIN if fast_path or by_tasks or self.reads_alone else "error"
        staged = native or ready._stage(decoded, ranges, entry, attempt, first)
        while isinstance(staged, ReadSchemas):
            decoded = self._decoded(spark, entry, small, staged)
            staged = ready._stage(decoded, ranges, entry, attempt, _AGAIN)
        if isinstance(staged, InvalidRows):
            decoded = set_aside(staged, decoded, self.result, self.source, self.sink, ready._why)
            staged = ready._stage(decoded, ranges, entry, attempt, _AGAIN)
        if isinstance(staged, tuple):
            return staged
        assert isinstance(staged, InvalidRows)
        remedy = "The transform made other rows of the same records the second time"
        raise refused(staged, self.source, self.sink, remedy)

    def is_few(self, entry: LedgerEntry, attempt: Attempt | None) -> bool:
        """Return whether this process fetches the records of ``entry``, if it can at once."""
        span = sum(offset_range.span for offset_range in entry.ranges)
        return attempt is None or self.reads_alone or span <= self.fetched_max

    def fast_path(self, entry: LedgerEntry, *, few: bool) -> FastPath | None:
        """Return the fast path if it may stage the batch; ``few``: this process could fetch it."""
        needs_plan = self.transform or self.resolvers or self.bounds or self.reads_alone
        if needs_plan or self._needs_plan(entry):
            return None
        if few and len(entry.ranges) > _CONSUMERS:
            return None
        return FastPath.of(
            typed_source(self.source),
            self.sink,
            lineage=self.lineage,
            never_null=self.never_null,
            record_bytes=self.record_bytes,
            as_staged=self.as_staged,
            where=self.where,
        )

    def _needs_plan(self, entry: LedgerEntry) -> bool:
        """Return whether records are set apart by more than each one's content."""
        return REFUSED in entry.details or self.refuses_all or not is_of_one_record(self.where)

    def _native_decoder(
        self,
        spark: SparkSession,
        entry: LedgerEntry,
        attempt: Attempt | None,
        schemas: ReadSchemas | None,
    ) -> NativeDecoder | None:
        """Return what decodes the batch in the tasks that read it, if they may."""
        if self._needs_plan(entry) or not has_decoded_source(spark):
            return None
        source, sink = self.source, self.sink
        judges = needs_judge(entry, source, sink, attempt, had_bad=self.had_bad_records)
        return NativeDecoder.of(
            spark, source, sink, judges=judges, schemas=schemas, where=self.where
        )

    def _stage_by_tasks(
        self, spark: SparkSession, decoder: NativeDecoder, entry: LedgerEntry, attempt: Attempt
    ) -> tuple[tuple[StagedOutput, Counts] | InvalidRows | None, ReadSchemas | None]:
        """Stage the records that ``decoder`` decodes; again with a judge if some are not ordinary,
        unless that is Python, and with schemas that nobody thought of. Return
        :meth:`_stage_decoded`, and the schemas.
        """
        try:
            staged = self._stage_decoded(spark, decoder, entry, attempt)
        except JudgeNeededError:
            log.info("%s: version %d has records to judge", entry.pipeline, entry.version)
            judged.note(entry, self.sink)
            # only of ordinary JSON is there no judge at first
            staged = NOTHING if decoder.can_judge else None
        while isinstance(staged, ReadSchemas):
            decoder = decoder.reading(spark, self.sink, staged)
            staged = self._stage_decoded(spark, decoder, entry, attempt, _AGAIN)
        return staged, decoder.schemas

    def _stage_decoded(
        self,
        spark: SparkSession,
        decoder: NativeDecoder,
        entry: LedgerEntry,
        attempt: Attempt,
        mode: str = "error",
    ) -> tuple[StagedOutput, Counts] | InvalidRows | ReadSchemas | None:
        """Stage the records that ``decoder`` decodes; None if Spark's plan must. Return the rows
        that do not fit, if there are some; the schemas to read with, if others were met.

        Raises:
            JudgeNeededError: a record does, and there is none.
        """
        tasks = self._tasks(spark, entry.ranges, entry.offsets)
        options = decoder.options(spark, entry, attempt, tasks, self.record_bytes)
        source = DecodedSource.of(spark, decoder, options)
        with source.as_far_as_it_was_read():
            return self._stage_read(source, entry, attempt, mode)

    def _stage_read(
        self, source: DecodedSource, entry: LedgerEntry, attempt: Attempt, mode: str
    ) -> tuple[StagedOutput, Counts] | InvalidRows | ReadSchemas | None:
        read = self._read_rows(source, entry, attempt)
        layout, result = read.stager.sink.partition_columns, read.result
        staged = result.stage(attempt, layout, source.totals, mode)
        if staged is None:
            return None
        rows, parts = staged
        if source.seen(parts) is None and not result.unfit:
            parts = source.counted()
        return self._outcome(read, rows, parts, entry, attempt)

    def _read_rows(
        self, source: DecodedSource, entry: LedgerEntry, attempt: Attempt | None
    ) -> ReadRows:
        transformed = self.result(source.frame)
        ready = self if self.agree is None else self._agreed_on(transformed)
        hashed = HashedRows.of_result(transformed, ready.sink, lineage=self.lineage)
        schema = transformed.schema
        result = CountedRows(
            transformed,
            lambda rows: ready._columns(with_known_schema(rows, schema), entry),
            hashed,
            ready._why_by(IS_UTF8)(transformed),
            self.as_staged if attempt else None,
        )
        return ReadRows(source, ready, result)

    def _outcome(
        self,
        read: ReadRows,
        rows: StagedTable,
        parts: Parts,
        entry: LedgerEntry,
        attempt: Attempt | None,
    ) -> tuple[StagedOutput, Counts] | InvalidRows | ReadSchemas:
        """Return what came of ``rows``, which are staged, by the totals ``parts``."""
        decoder, result, spark = read.source.decoder, read.result, read.source.frame.sparkSession
        seen, schemas = read.source.seen(parts), decoder.schemas
        if self.resolvers and schemas and seen:
            then = schemas
            schemas = self.resolvers.with_unknown_writers(
                entry, then, seen, lambda: self._decoded(spark, entry, None, then).all
            )
            if schemas.writers != then.writers:
                return schemas
        if result.unfit:
            return result.unfit
        assert seen is not None, "an action without a transform reads all"
        refuse_bad(seen, self.source)
        refuse_other_rows(result.rows, rows, entry.checkpoint)
        dead, dead_checksum = decoder.dead_letters(parts, seen, attempt)
        output = StagedOutput(rows=rows, dead_letters=dead)
        counted = counts(seen, output, entry, result.checksum(), dead_checksum)
        return output, replace(counted, **read_with(schemas, seen.metrics, entry))

    def to_split(
        self,
        spark: SparkSession,
        entry: LedgerEntry,
        attempt: Attempt | None,
        of_split: Mapping[str, str],
        takes: str,
    ) -> ReadRows | None:
        """Return the rows to stage where records are read for several tables, see
        :mod:`eo_pipeline.batch.split`, whose options ``of_split`` name the table and its job;
        ``takes``: the condition on which it takes a record. None if they are not staged so.

        Raises:
            TransformError: the transform raised, or its result cannot be written.
            SchemaChangeError: the sink cannot store a column's type.
        """
        has_many_ranges = len(entry.ranges) > _CONSUMERS and self.is_few(entry, attempt)
        if self.sink.partition_columns or has_many_ranges or _not_split.has(entry, self.sink):
            return None
        schemas = self.resolvers.of(entry) if self.resolvers else None
        decoder = self._native_decoder(spark, entry, attempt, schemas)
        if decoder is None or (decoder.judges and attempt is None):  # letters are files
            return None
        decoder = replace(decoder, where=takes)
        tasks = self._tasks(spark, entry.ranges, entry.offsets)
        options = decoder.options(spark, entry, attempt, tasks, self.record_bytes)
        source = DecodedSource.of(spark, decoder, {**options, **of_split})
        read = self._read_rows(source, entry, attempt)
        return read if read.result.kind == PARQUET else None

    def of_split(
        self,
        read: ReadRows,
        results: Sequence[Row],
        entry: LedgerEntry,
        attempt: Attempt | None,
    ) -> tuple[StagedOutput, Counts] | None:
        """Return what a job staged of :meth:`to_split`, of the ``results`` of its tasks; None if
        the rows must be staged otherwise. What that needs is remembered.

        Raises:
            BadRecordError: by the source's policy.
        """
        staged = read.result.collected(results, attempt)
        if staged is None:
            _not_split.note(entry, self.sink)
            return None
        rows, parts = staged
        parts.append({"parts": sum("records" in part for part in parts)})
        try:
            outcome = self._outcome(read, rows, parts, entry, attempt)
        except JudgeNeededError:
            judged.note(entry, self.sink)
            return None
        return outcome if isinstance(outcome, tuple) else None

    def _tasks(
        self, spark: SparkSession, ranges: Ranges, partitions: Collection[TopicPartition]
    ) -> Tasks:
        return Tasks.of(ranges, cores(spark), self.record_bytes, partitions)

    def _agreed(self, decoded: Decoded) -> Stager:
        """With the sink as it takes rows of what the transform makes."""
        if self.agree is None:
            return self
        return self._agreed_on(self.result(decoded.good(decoded.all)))

    def _agreed_on(self, result: DataFrame) -> Stager:
        assert self.agree is not None
        return replace(self, sink=self.sink.agreed(self.agree(own_columns(result))))

    def _decoded(
        self,
        spark: SparkSession,
        entry: LedgerEntry,
        small: Fetched | None,
        schemas: ReadSchemas | None,
    ) -> Decoded:
        read = (spark, entry.pipeline, entry.ranges, entry.topic_ids)
        if small is None:
            decoded = self.read(*read, partitions=entry.offsets, schemas=schemas)
        else:
            decoded = self._decoded_here(spark, small, schemas)
        return decoded.marked(entry.details.get(REFUSED, ()))

    def _decoded_here(
        self, spark: SparkSession, small: Fetched, schemas: ReadSchemas | None
    ) -> Decoded:
        records = frame_of(spark, small.records, cores(spark) or 1)
        return self._judged(decode(self._taken(records), typed_source(self.source), schemas))

    def _judged(self, decoded: Decoded) -> Decoded:
        return decoded.all_bad(NO_TABLE) if self.refuses_all else decoded

    def _taken(self, records: DataFrame) -> DataFrame:
        """Return the records that :attr:`where` selects."""
        return records if self.where is None else matching(records, self.where)

    def _stage(
        self,
        decoded: Decoded,
        ranges: Sequence[OffsetRange],
        entry: LedgerEntry,
        attempt: Attempt | None,
        mode: str = "error",
    ) -> tuple[StagedOutput, Counts] | InvalidRows | ReadSchemas:
        reading = SourceCounter(decoded, ranges, transformed=self.transform is not None)
        transformed = self.result(
            reading.good if self.transform else self._typed(decoded, reading.good)
        )
        hashed = HashedRows.of_result(transformed, self.sink, lineage=self.lineage)
        marks = [mark for mark in (mark_of(transformed, self._why), hashed and hashed.mark) if mark]
        schema = transformed.schema
        result = RowCounter(
            reading.rows or with_coordinates_alone(transformed),
            lambda rows: self._columns(with_known_schema(rows, schema), entry),
            marks,
            NAMES_IN_MEMORY if attempt is None else NAMES_OF_FILES,
        )
        rows = self._rows(result, entry, attempt, mode)
        seen = reading.seen(result)
        schemas = (
            self.resolvers.with_unknown_writers(entry, decoded.schemas, seen, lambda: decoded.all)
            if self.resolvers
            else None
        )
        if schemas and schemas.writers != decoded.writers:
            return schemas
        if unfit := found(result):
            return unfit
        dead, dead_checksum = self._dead_letters(decoded, seen, entry, attempt, mode)
        output = StagedOutput(rows=rows, dead_letters=dead)
        hashes = hashed.checksum(result) if hashed else None
        counted = counts(seen, output, entry, hashes, dead_checksum)
        return output, replace(counted, **read_with(schemas, seen.metrics, entry))

    def read(
        self,
        spark: SparkSession,
        pipeline: str,
        ranges: Sequence[OffsetRange],
        topic_ids: Mapping[str, str],
        *,
        partitions: Collection[TopicPartition] = (),
        schemas: ReadSchemas | None = None,
    ) -> Decoded:
        """The records of ``ranges``, decoded; lazy. ``topic_ids`` are their topics' UUIDs, which
        have these ``partitions`` partitions, and those of ``ranges``. ``schemas`` are those of a
        registry, if there is one.
        """
        if self.reads_alone:
            return self._decoded_here(spark, fetched_alone(self.source, ranges, pipeline), schemas)
        raw = read_ranges(
            spark,
            self.source,
            ranges,
            pipeline=pipeline,
            topic_ids=topic_ids,
            partition_count=len(partitions),
            tasks=self._tasks(spark, ranges, partitions),
            record_bytes=self.record_bytes,
        )
        taken = self._taken(raw)
        return self._judged(decode(taken, typed_source(self.source), schemas, native=True))

    def _typed(self, decoded: Decoded, good: DataFrame) -> DataFrame:
        """Return the untransformed frame with the column types of every batch."""
        return with_schema_asked_once(good, decoded.decides)

    def result(self, good: DataFrame) -> DataFrame:
        """The user's transform, applied to ``Decoded.good``; lazy. Raises as :meth:`stage`."""
        # on a classic session a function knows only of what was there when it was made, and over
        # Spark Connect a plan tells whether there is one
        send_modules(good, self.transform)
        with _calling_the_users_code(), origins(enabled=True):
            result = self.transform(good) if self.transform else good
        if not isinstance(result, DataFrame):
            raise TransformError(
                f"the transform returned {type(result).__name__}, a DataFrame is needed"
            )
        if self.transform is not None:
            keep_staging_settings(good.sparkSession)
        check_names(result.columns, lineage=self.lineage)
        send_modules(result, self.transform)
        return result

    def _rows(
        self, result: RowCounter, entry: LedgerEntry, attempt: Attempt | None, first: str
    ) -> StagedTable:
        """The rows, staged, as many as the job made; again if Spark did not say how many.

        Raises:
            SparkJobError: it does not say.
            SetupError: it made another number of rows.
        """
        layout, kind = self.sink.partition_columns, PARQUET
        if attempt is not None and self.as_staged:
            result.frame, kind = marked(result.frame, self.as_staged)
        for mode in (first, *(_AGAIN,) * (STAGING_TRIES - 1)):
            rows = materialize(result.frame, attempt, Attempt.rows_folder, layout, mode, kind)
            if result.was_counted():
                refuse_other_rows(result.rows, rows, entry.checkpoint)
                return rows
            log.warning(
                "%s: Spark did not say how many rows version %d has", entry.pipeline, entry.version
            )
        raise SparkJobError(
            f"Pipeline {entry.pipeline!r}, checkpoint {entry.version}: {STAGING_TRIES} times the "
            "Spark job ended without reporting its number of rows. Nothing was committed. The "
            "Spark Connect server is overloaded; run again when it has less load."
        )

    def why_unfit(self, result: DataFrame) -> Column | None:
        """Return the reason column of unfit rows of ``result``, null for a good row; None if every
        row fits.
        """
        keeps_bad = self.source.on_bad_record == "dead_letter" and KAFKA_COLUMN in result.columns
        return self._why(result) if keeps_bad else None

    @property
    def _why(self) -> Why:
        return self._why_by(by_function=False)

    def _why_by(self, by_function: str | bool) -> Why:
        """Return what tells rows that do not fit; of texts of a transform ``by_function``."""
        is_utf8 = self.transform is None and gives_utf8(self.source)
        return why_unfit(self.sink, self.never_null, self.bounds, utf8=is_utf8 or by_function)

    def _columns(self, result: DataFrame, entry: LedgerEntry) -> DataFrame:
        """The user's columns, the checkpoint's number, and where each row came from."""
        added = added_columns(entry.checkpoint, lineage=self.lineage)
        columns = result.withColumns(added).drop(KAFKA_COLUMN)
        return self.sink.project(with_known_schema(columns, types_of(result.schema, added)))

    def _dead_letters(
        self,
        decoded: Decoded,
        seen: ReadCounts,
        entry: LedgerEntry,
        attempt: Attempt | None,
        mode: str,
    ) -> tuple[StagedTable | None, Checksum | None]:
        bad = seen.bad
        if not bad:
            return None, None
        refuse_bad(seen, self.source)
        letters = decoded.dead_letters(entry.checkpoint)
        hashed = HashedRows.of_dead_letters(letters, self.sink)
        result = RowCounter(letters, lambda rows: rows, [hashed.mark]) if hashed else None
        frame = result.frame if result else letters
        table = materialize(frame, attempt, Attempt.dead_letters_folder, mode=mode)
        row_count = result.rows if result and result.was_counted() else bad
        if row_count == bad and (result or not table.rows):
            refuse_other_rows(row_count, table, entry.checkpoint)
        if table.rows != bad:
            raise SparkJobError(
                f"{bad} bad records were counted and {table.rows} found on the second look: the "
                "topic lost records in between. Nothing was committed; run again."
            )
        if hashed and result and result.rows == bad:
            return table, hashed.checksum(result)
        return table, None
