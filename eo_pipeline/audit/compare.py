"""Audit step 3: count expected and found rows of every record, in one Spark job.

The driver receives a bounded amount: a line per checkpoint and kind, and examples. Tasks are
bounded, too; the aggregation spills.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from eo_pipeline.audit.ranges import Region
from eo_pipeline.audit.report import Example
from eo_pipeline.batch.decode import KAFKA_COLUMN
from eo_pipeline.batch.stage import Stager
from eo_pipeline.formats.wire_format import ReadSchemas
from eo_pipeline.kafka.fetch import is_of_odd_times
from eo_pipeline.ledger.offsets import OffsetRange
from eo_pipeline.spark import (
    SPARK_ERRORS,
    interruptible,
    job_error,
    options_of,
    path_to_read,
    staging_settings,
    text_of,
)
from eo_pipeline.storage.paths import Place

#: Buckets of examples of a checkpoint and kind; each gives at most two.
_BUCKETS = 10

_COORDINATES = ("topic", "partition", "offset")
_KEY = (*_COORDINATES, "checkpoint")
_COUNTED = ("expected", "found", "records", "bad", "skipped", "unfit")


class RowKind(StrEnum):
    """Kind of a record by its expected and found rows."""

    FINE = "fine"
    MISSING = "missing"
    DUPLICATED = "duplicated"
    DROPPED = "dropped"  # rows of a record that the transform leaves out
    BAD = "bad"  # rows of a bad record
    TOMBSTONE = "tombstone"  # rows of a record that is skipped
    NO_RECORD = "no_record"  # rows of an offset at which Kafka holds nothing
    COMPACTED = "compacted"  # as NO_RECORD, in a compacted topic
    OUTSIDE = "outside"  # rows of an offset that their checkpoint did not read
    GONE = "gone"  # rows of a range that Kafka no longer holds
    UNTRACED = "untraced"  # rows of a checkpoint without coordinates
    NO_CHECKPOINT = "no_checkpoint"  # rows with coordinates and no checkpoint
    NOT_OURS = "not_ours"  # rows with neither


#: Kinds of which examples are kept.
_SHOWN = [
    *(RowKind.MISSING, RowKind.DUPLICATED, RowKind.DROPPED, RowKind.BAD, RowKind.TOMBSTONE),
    *(RowKind.NO_RECORD, RowKind.OUTSIDE, RowKind.NO_CHECKPOINT),
]

#: Kinds that depend on which records the transform saw together.
BY_TRANSFORM = frozenset({RowKind.MISSING, RowKind.DUPLICATED, RowKind.DROPPED})


@dataclass
class Tally:
    """Counts of one kind in one checkpoint: records (``keys``), rows ``expected`` and ``found``,
    and Kafka ``records``, ``bad`` and ``skipped`` ones. ``unfit`` are rows the sink would refuse:
    their records are bad, and no row is expected.
    """

    keys: int = 0
    expected: int = 0
    found: int = 0
    records: int = 0
    bad: int = 0
    skipped: int = 0
    unfit: int = 0
    examples: list[Example] = field(default_factory=list)


#: By checkpoint, then kind. Checkpoint None: rows without one; -1: below 0.
Tallies = dict[int | None, dict[RowKind, Tally]]


@dataclass(frozen=True)
class Comparison:
    """Settings of an audit's Spark jobs.

    ``rows`` and ``ranges`` are Parquet files, ``block`` is the size of a block of offsets in
    ``ranges``. Rows of versions above ``head`` up to ``newest`` are left out; higher ones count as
    ``newest + 1``. Without ``expected`` the transform is not applied, and only counts are compared.
    """

    spark: SparkSession
    stager: Stager
    pipeline: str
    topic_ids: Mapping[str, str]
    rows: Place
    ranges: Place
    block: int
    head: int
    newest: int
    expected: bool
    schemas: Callable[[int | None], ReadSchemas] | None = None
    #: Records of which the store refused a row: they are bad in any case.
    refused: Sequence[Mapping[str, Any]] = ()

    def everything(self, spans: Sequence[OffsetRange]) -> Tallies:
        """Compare all checkpoints at once; the transform sees all records together.

        Raises:
            SparkJobError: the job failed, possibly because records were deleted meanwhile.
            SparkUnavailableError: the Spark Connect server was lost.
            TransformError: the transform raised, now or while Spark ran it.
            SetupError: see :func:`eo_pipeline.kafka.fetch.fetched_alone`.
        """
        return self._counted([spans] if spans else [], None)

    def one_by_one(self, spans: Mapping[int, Sequence[OffsetRange]]) -> Tallies:
        """Compare these checkpoints again in one job; the transform sees each one's records alone,
        as their run did.
        """
        return self._counted(list(spans.values()), list(spans))

    def _counted(
        self, batches: Sequence[Sequence[OffsetRange]], only: Collection[int] | None
    ) -> Tallies:
        try:
            with staging_settings(self.spark):
                summary = self._summary(batches, only)
                lines = interruptible(self.spark, summary.toArrow).to_pylist()
        except SPARK_ERRORS as error:
            if is_of_odd_times(text_of(error)) and not self.stager.reads_alone:
                alone = replace(self, stager=replace(self.stager, reads_alone=True))
                return alone._counted(batches, only)
            job = f"Pipeline {self.pipeline!r}: the audit's Spark job"
            raise job_error(self.spark, error, job) from error
        return _tallies(lines)

    def _summary(
        self, batches: Sequence[Sequence[OffsetRange]], only: Collection[int] | None
    ) -> DataFrame:
        ranges = self._ranges(only)
        both = self._rows(ranges, only)
        versions: Iterable[int | None] = only or [None]
        if batches:
            both = both.union(self._kafka(zip(batches, versions, strict=False), ranges))
        keys = both.groupBy(*_KEY)
        sums = [F.sum(name).alias(name) for name in _COUNTED]
        summed = keys.agg(F.max("region").alias("region"), *sums)
        judged = _set_refused_aside(summed).withColumn("kind", self._kind())
        return _with_examples(_merge_unshown(judged))

    def _read(self, file: Place) -> DataFrame:
        return self.spark.read.options(**options_of(file)).parquet(path_to_read(file))

    def _ranges(self, only: Collection[int] | None) -> DataFrame:
        frame = self._read(self.ranges)
        return frame if only is None else frame.where(F.col("checkpoint").isin(*only))

    def _rows(self, ranges: DataFrame, only: Collection[int] | None) -> DataFrame:
        """Return the table's rows, each with the region of its checkpoint's range."""
        number = F.col("_eo_checkpoint")
        capped = F.when(number < 0, -1).when(number > self.newest, self.newest + 1)
        rows = self._read(self.rows).select(
            *(F.col(f"_eo_{name}").alias(name) for name in _COORDINATES),
            capped.otherwise(number).cast("bigint").alias("checkpoint"),
        )
        number = F.col("checkpoint")
        meanwhile = (number > self.head) & (number <= self.newest)
        kept = rows.where(number.isNull() | ~meanwhile)
        kept = kept if only is None else kept.where(number.isin(*only))
        placed = self._with_ranges(kept, ranges, [*_KEY], "left")
        return _counting(placed, *_KEY, "region", found=F.lit(1))

    def _kafka(
        self, batches: Iterable[tuple[Sequence[OffsetRange], int | None]], ranges: DataFrame
    ) -> DataFrame:
        """Return the records that each checkpoint read, and the rows expected of each batch."""
        sides = [side for batch in batches for side in self._records_and_rows(*batch)]
        readable = ranges.where(F.col("region") != Region.GONE)
        placed = self._with_ranges(
            reduce(DataFrame.union, sides), readable, [*_COORDINATES], "inner"
        )
        return placed.select(*_KEY, "region", *_COUNTED)

    def _records_and_rows(
        self, spans: Sequence[OffsetRange], version: int | None
    ) -> Iterator[DataFrame]:
        schemas = self.schemas(version) if self.schemas else None
        decoded = self.stager.read(
            self.spark, self.pipeline, spans, self.topic_ids, schemas=schemas
        )
        decoded = decoded.marked(self.refused)
        marks = {name: F.col(name).cast("int") for name in ("bad", "skipped")}
        yield _counting(decoded.marks(), *_COORDINATES, records=F.lit(1), **marks)
        if self.expected:
            result = self.stager.result(decoded.good(decoded.all))
            reason = self.stager.why_unfit(result)
            unfit = F.lit(0) if reason is None else reason.isNotNull().cast("int")
            coordinates = (F.col(KAFKA_COLUMN)[name].alias(name) for name in _COORDINATES)
            result_rows = result.select(*coordinates, unfit.alias("unfit"))
            yield _counting(result_rows, *_COORDINATES, expected=F.lit(1), unfit=F.col("unfit"))

    def _with_ranges(
        self, frame: DataFrame, ranges: DataFrame, on: list[str], how: str
    ) -> DataFrame:
        """Return ``frame`` with ``region``, and with ``checkpoint`` unless ``on`` contains it."""
        block = F.expr(f"offset div {self.block}").alias("block")
        equal = [*(name for name in on if name != "offset"), "block"]
        left, right = frame.select("*", block).alias("l"), ranges.alias("r")
        matches = [F.col(f"l.{name}") == F.col(f"r.{name}") for name in equal]
        inside = (F.col("l.offset") >= F.col("r.start")) & (F.col("l.offset") < F.col("r.end"))
        joined = left.join(right, reduce(Column.__and__, matches, inside), how)
        number = [] if "checkpoint" in on else [F.col("r.checkpoint")]
        return joined.select(*(f"l.{name}" for name in frame.columns), *number, "r.region")

    def _kind(self) -> Column:
        """Return the column of :class:`RowKind`."""
        number, offset, region = (F.col(name) for name in ("checkpoint", "offset", "region"))
        expected, found, records = (F.col(name) for name in ("expected", "found", "records"))
        untraced = offset.isNull() | F.col("topic").isNull() | F.col("partition").isNull()
        kind = (
            F.when(number.isNull() & untraced, RowKind.NOT_OURS)
            .when(number.isNull(), RowKind.NO_CHECKPOINT)
            .when(untraced, RowKind.UNTRACED)
            .when(region.isNull(), RowKind.OUTSIDE)
            .when(region == Region.GONE, RowKind.GONE)
        )
        if self.expected:
            kind = (
                kind.when(expected > found, RowKind.MISSING)
                .when((found > expected) & (expected > 0), RowKind.DUPLICATED)
                .when(
                    (found > 0) & (records == 0) & (region == Region.COMPACTED), RowKind.COMPACTED
                )
                .when((found > 0) & (records == 0), RowKind.NO_RECORD)
                .when((found > expected) & (F.col("bad") > 0), RowKind.BAD)
                .when((found > expected) & (F.col("skipped") > 0), RowKind.TOMBSTONE)
                .when(found > expected, RowKind.DROPPED)
            )
        return kind.otherwise(RowKind.FINE)


def _set_refused_aside(summed: DataFrame) -> DataFrame:
    """Count a record with a refused row as bad, and expect none of its rows."""
    aside = F.col("unfit") > 0
    changed = {
        "expected": F.when(aside, 0).otherwise(F.col("expected")),
        "bad": F.when(aside, F.col("records")).otherwise(F.col("bad")),
    }
    return summed.withColumns(changed)


def _merge_unshown(judged: DataFrame) -> DataFrame:
    """Merge the records of a checkpoint whose kind has no examples; keep the others apart."""
    shown = F.col("kind").isin(*map(str, _SHOWN))
    coordinates = [F.when(shown, F.col(name)).alias(name) for name in _COORDINATES]
    sums = [F.sum(name).alias(name) for name in _COUNTED]
    return judged.groupBy("checkpoint", "kind", *coordinates).agg(
        F.count(F.lit(1)).alias("keys"), *sums
    )


def _with_examples(lines: DataFrame) -> DataFrame:
    """Reduce to a bounded number of lines per checkpoint and kind: sums and two examples."""
    example = F.struct("topic", "partition", "offset", "checkpoint", "expected", "found")
    bucket = F.pmod(F.hash("topic", "partition", "offset"), F.lit(_BUCKETS)).alias("bucket")
    return (
        lines.groupBy("checkpoint", "kind", bucket)
        .agg(
            *(F.sum(name).alias(name) for name in ("keys", *_COUNTED)),
            F.min(example).alias("first"),
            F.max(example).alias("last"),
        )
        .drop("bucket")
    )


def _counting(frame: DataFrame, *kept: str, **counted: Column) -> DataFrame:
    """Return the columns ``kept`` and the counts ``counted``; all other counts are 0."""
    counts = [counted.get(name, F.lit(0)).cast("bigint").alias(name) for name in _COUNTED]
    return frame.select(*kept, *counts)


def _tallies(summary: list[dict[str, Any]]) -> Tallies:
    tallies: Tallies = defaultdict(dict)
    for line in summary:
        kind = RowKind(line["kind"])
        tally = tallies[line["checkpoint"]].setdefault(kind, Tally())
        for name in ("keys", *_COUNTED):
            setattr(tally, name, getattr(tally, name) + line[name])
        if kind in _SHOWN:
            tally.examples += {Example(**line["first"]), Example(**line["last"])}
    return tallies
