"""Steps 3 to 5 of a checkpoint that fills several tables.

Each table takes the records of its topics that fulfil its ``where``, by a stager of its own. A
record may be taken by several tables; one that no table takes is the ``rest``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NamedTuple, Self, TypeVar

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from eo_pipeline.batch.code_version import code_version_of_tables
from eo_pipeline.batch.read import condition_columns, frame_of, read_ranges
from eo_pipeline.batch.split import read_together
from eo_pipeline.batch.stage import Stager, table_named
from eo_pipeline.batch.unknown_fields import NAMES_MAX
from eo_pipeline.errors import BadRecordError, ConfigError, EoPipelineError, TransformError
from eo_pipeline.kafka.fetch import Fetched, fetched, fetched_alone, is_of_odd_times
from eo_pipeline.kafka.source import KafkaSource
from eo_pipeline.ledger.entry import REFUSED, Counts, LedgerEntry
from eo_pipeline.ledger.offsets import OffsetRange
from eo_pipeline.sinks.tables import Appearing, TablesAppearedError
from eo_pipeline.spark import (
    SPARK_ERRORS,
    interruptible,
    job_error,
    staging_settings,
    text_of,
)
from eo_pipeline.spark.errors import error_text
from eo_pipeline.spark.interrupts import cores
from eo_pipeline.spark.origins import origins
from eo_pipeline.staging.attempt import Attempt
from eo_pipeline.staging.rows import StagedOutput

Rest = Literal["fail", "ignore", "dead_letter"]
T = TypeVar("T")

log = logging.getLogger(__name__)


class ReadTotals(NamedTuple):
    """Records that were read, each counted once, those of them that no table takes, and how many
    each table takes, by its name.
    """

    records: int
    bytes: int
    key_bytes: int
    rest: int
    taken: Mapping[str, int]
    #: coordinates of the first record that no table takes, if there is one
    first: tuple[str, int, int] = ("", 0, 0)

    @classmethod
    def of(cls, parts: Iterable[Counts]) -> Self:
        """Return the sums over ``parts``, which have no record twice."""
        records, size, keys = 0, 0, 0
        for part in parts:
            records, size = records + part.records, size + part.bytes
            keys += part.key_bytes or 0
        return cls(records, size, keys, rest=0, taken={})


@dataclass(frozen=True)
class TablesStager:
    """The stagers of all tables, by name. ``source`` has the topics of all of them."""

    source: KafkaSource
    tables: Mapping[str, Stager]
    rest: Rest
    #: given if more tables appear
    appearing: Appearing | None = None

    @property
    def code_version(self) -> str | None:
        """Changes when the schema or the transform of a table is edited; None if nobody can tell
        for one of them. Tables that appear have the same.
        """
        if self.appearing:
            return next((stager.code_version for stager in self._takers.values()), None)
        return code_version_of_tables(
            {name: stager.code_version for name, stager in self.tables.items()}
        )

    def stage(
        self, spark: SparkSession, entry: LedgerEntry, attempt: Attempt | None
    ) -> tuple[StagedOutput, Counts]:
        """Stage each table, see :meth:`Stager.stage`, whose errors these are.

        Raises:
            BadRecordError: also of a record that no table takes, if ``rest`` is ``fail``.
            TablesAppearedError: a table is missing.
        """
        if self.appearing and (self.appearing.new is None or not self._takers):
            self._refuse_new(spark, self.appearing, entry)
        parts = {name: self._part(name, entry) for name in self.tables}
        covering = self._covering(parts, entry)
        counted, staged_together = self._together(spark, entry, attempt, parts)
        is_split = covering is None or any(stager.where for stager in self._takers.values())
        if counted is None and is_split:
            counted = self.count(spark, entry.pipeline, entry.ranges, entry.topic_ids)
        if counted:
            if self.appearing and counted.rest:
                self._refuse_new(spark, self.appearing, entry)
            self._refuse_rest(entry, counted)
        outputs, counts = {}, {}
        small: dict[tuple[OffsetRange, ...], Fetched | None] = {}

        def fetch_once(
            source: KafkaSource, ranges: Sequence[OffsetRange], pipeline: str
        ) -> Fetched | None:
            key = tuple(ranges)
            if key not in small:
                small[key] = fetched(source, ranges, pipeline)
            return small[key]

        for name, part in parts.items():
            taken = counted.taken[name] if counted else name in self._takers
            if not part.ranges or not taken:
                counts[name] = Counts(rows_total=part.counts.rows_total)
                continue
            if name in staged_together:
                outputs[name], counts[name] = staged_together[name]
                continue
            files = attempt.of_table(name) if attempt else None
            with table_named(name):
                stager = replace(self.tables[name], fetch=fetch_once)
                outputs[name], counts[name] = stager.stage(spark, part, files)
            if name not in self._takers:
                outputs[name] = StagedOutput(dead_letters=outputs[name].dead_letters)
        totals = counted or ReadTotals.of(counts[name] for name in covering or ())
        rows = sum(of_table.rows for of_table in counts.values())
        names = {name for of_table in counts.values() for name in of_table.unknown_fields}
        staged = StagedOutput(tables=outputs)
        return staged, Counts(
            records=totals.records,
            bytes=totals.bytes,
            key_bytes=totals.key_bytes,
            tombstones=sum(of_table.tombstones for of_table in counts.values()),
            rows=rows,
            dead_letters=sum(of_table.dead_letters for of_table in counts.values()),
            rows_total=entry.counts.rows_total + rows,
            unknown=sum(of_table.unknown or 0 for of_table in counts.values()),
            unknown_fields=tuple(sorted(names)[:NAMES_MAX]),
            rest=totals.rest,
            # those that left the document keep their rows
            tables={**entry.counts.tables, **counts},
        )

    @property
    def _takers(self) -> Mapping[str, Stager]:
        """The tables without that of the rest."""
        return {name: stager for name, stager in self.tables.items() if not stager.refuses_all}

    def _part(self, name: str, entry: LedgerEntry) -> LedgerEntry:
        """Return the entry as that of one table: its ranges, and the records that it refused."""
        part, stager = entry.of_table(name), self.tables[name]
        details = dict(part.details)
        refused = details.pop(REFUSED, ())
        if ours := [record for record in refused if record.get("table") == name]:
            details[REFUSED] = ours
        return replace(part, ranges=entry.ranges_of(stager.source.topics), details=details)

    def _covering(
        self, parts: Mapping[str, LedgerEntry], entry: LedgerEntry
    ) -> Sequence[str] | None:
        """Return names of tables that together take each record of ``entry`` once; None if it has
        no such tables.
        """
        by_ranges: dict[tuple[OffsetRange, ...], str] = {}
        for name, part in parts.items():
            if self.tables[name].where is None and part.ranges:  # which the rest's never is
                by_ranges.setdefault(part.ranges, name)
        covered = [offset_range for ranges in by_ranges for offset_range in ranges]
        return [*by_ranges.values()] if sorted(covered) == sorted(entry.ranges) else None

    def _together(
        self,
        spark: SparkSession,
        entry: LedgerEntry,
        attempt: Attempt | None,
        parts: Mapping[str, LedgerEntry],
    ) -> tuple[ReadTotals | None, Mapping[str, tuple[StagedOutput, Counts]]]:
        """Stage what one read can stage of all tables, and count what each takes; None and nothing
        if it cannot, or need not. A table that takes no record costs nothing.

        Raises:
            ConfigError: the ``where`` of a table fails.
            EoPipelineError: another error of :meth:`stage`.
        """
        try:
            with staging_settings(spark), origins(enabled=False):
                together = read_together(spark, self.source, self._takers, parts, entry, attempt)
        except SPARK_ERRORS as error:
            if is_of_odd_times(text_of(error)):
                return None, {}
            job = f"Pipeline {entry.pipeline!r}, checkpoint {entry.version}: the Spark job"
            transformed = any(stager.transform for stager in self._takers.values())
            ours = self._error(spark, error, entry.pipeline, job, transformed=transformed)
            if not isinstance(ours, TransformError):
                raise ours from error
            log.info("%s: a transform fails, tables are staged one by one: %s", job, ours)
            together = None
        if together is None:
            return None, {}
        counted = dict(together.counted)
        counted["taken"] |= dict.fromkeys(self.tables.keys() - {*self._takers}, counted["rest"])
        return ReadTotals(**counted), together.staged

    def _error(
        self,
        spark: SparkSession,
        error: Exception,
        pipeline: str,
        job: str,
        *,
        transformed: bool = False,
    ) -> EoPipelineError:
        """Return the error of ours for Spark's ``error``, which is of a condition perhaps."""
        ours = self._of_condition(error, pipeline)
        return ours or job_error(spark, error, job, transformed=transformed)

    def _refuse_new(self, spark: SparkSession, appearing: Appearing, entry: LedgerEntry) -> None:
        """Return if each value of ``entry`` has its table; a job tells, unless topics are values.

        Raises:
            TablesAppearedError: one has none.
        """
        value = appearing.new

        def values(raw: DataFrame) -> list[str]:
            assert value is not None
            column = raw.withColumns(condition_columns()).select(F.expr(value).alias("value"))
            distinct = column.where("value IS NOT NULL").distinct().limit(appearing.limit + 1)
            return [row["value"] for row in interruptible(spark, distinct.collect)]

        if value is None:
            topics = {r.topic for r in entry.ranges_of(appearing.topics)}
            new = topics - {*appearing.names.values()}
        else:
            of = entry.pipeline, entry.ranges, entry.topic_ids
            new = {*self._of_records(spark, *of, values)}
        if new:
            raise TablesAppearedError(new)

    def _refuse_rest(self, entry: LedgerEntry, totals: ReadTotals) -> None:
        """Return if no record is left, or may be.

        Raises:
            BadRecordError: see :meth:`stage`.
        """
        if totals.rest and self.rest == "fail":
            topic, partition, offset = totals.first
            raise BadRecordError(
                f"Pipeline {entry.pipeline!r}: no table takes {totals.rest:,} records, the first "
                f"one {topic}[{partition}] offset {offset}. Nothing was committed. Let a table "
                "take them (its topics and where), or set them aside or leave them out: rest: "
                "dead_letter, or ignore.",
                count=totals.rest,
            )

    def count(
        self,
        spark: SparkSession,
        pipeline: str,
        ranges: Sequence[OffsetRange],
        topic_ids: Mapping[str, str],
    ) -> ReadTotals:
        """Count the records of ``ranges``, by Spark's plan.

        Raises:
            ConfigError: the ``where`` of a table fails.
            EoPipelineError: another error of :meth:`Stager.stage`.
        """
        return self._of_records(spark, pipeline, ranges, topic_ids, partial(self._count, spark))

    def _of_records(
        self,
        spark: SparkSession,
        pipeline: str,
        ranges: Sequence[OffsetRange],
        topic_ids: Mapping[str, str],
        ask: Callable[[DataFrame], T],
    ) -> T:
        """Return what ``ask`` returns of the records of ``ranges``; errors as of :meth:`count`."""
        job = f"Pipeline {pipeline!r}: the Spark job that counts what each table takes"
        try:
            try:
                raw = read_ranges(
                    spark, self.source, ranges, pipeline=pipeline, topic_ids=topic_ids
                )
                return ask(raw)
            except SPARK_ERRORS as error:
                if not is_of_odd_times(text_of(error)):
                    raise
                alone = fetched_alone(self.source, ranges, pipeline)
                return ask(frame_of(spark, alone.records, cores(spark) or 1))
        except SPARK_ERRORS as error:
            raise self._error(spark, error, pipeline, job) from error

    def _of_condition(self, error: Exception, pipeline: str) -> ConfigError | None:
        """Return the error of a ``where`` that failed, with the name of its table; None if it is of
        something else.
        """
        conditions = {n: s.where for n, s in self._takers.items() if s.where is not None}
        fragments = []
        if isinstance(error, PySparkException):
            with suppress(*SPARK_ERRORS):  # the JVM has them, and may have ended
                fragments = [context.fragment() for context in error.getQueryContext()]
        failed = [n for n, where in conditions.items() if any(f in where for f in fragments if f)]
        what = f"where of table {', '.join(failed)}"
        if self.appearing and any(f in (self.appearing.new or "") for f in fragments if f):
            what = "each (or where) of tables"
        elif not failed:
            return None
        return ConfigError(
            f"Pipeline {pipeline!r}: {what} fails: "
            f"{error_text(error, 1)} Nothing was committed. Correct it; try_cast and the like give "
            "null for a value that does not fit, and the table does not take that record."
        )

    def _count(self, spark: SparkSession, raw: DataFrame) -> ReadTotals:
        sizes = {"_eo_bytes": F.length("value"), "_eo_key_bytes": F.length("key")}
        names = [*self._takers]
        conditions = [s.source.takes(s.where) for s in self._takers.values()]
        # one text: of hundreds of columns Spark's analysis takes seconds
        numbers = ", ".join(f"if({taken}, {at}, null)" for at, taken in enumerate(conditions))
        taken = F.expr(f"posexplode_outer(array_compact(CAST(array({numbers}) AS ARRAY<INT>)))")
        place = F.struct("topic", "partition", "offset").alias("place")
        routed = raw.withColumns(sizes | condition_columns()).select(
            *sizes, place, taken.alias("turn", "number")
        )
        is_first = F.coalesce("turn", F.lit(0)) == 0
        grouped = routed.groupBy("number").agg(
            F.count(F.lit(1)).alias("taken"),
            F.count(F.when(is_first, 1)).alias("records"),
            F.coalesce(F.sum(F.when(is_first, F.col("_eo_bytes"))), F.lit(0)).alias("bytes"),
            F.coalesce(F.sum(F.when(is_first, F.col("_eo_key_bytes"))), F.lit(0)).alias("keys"),
            F.min("place").alias("first"),
        )
        rows = {row["number"]: row for row in interruptible(spark, grouped.collect)}
        rest = rows.get(None)
        left = rest["taken"] if rest else 0
        return ReadTotals(
            records=sum(row["records"] for row in rows.values()),
            bytes=sum(row["bytes"] for row in rows.values()),
            key_bytes=sum(row["keys"] for row in rows.values()),
            rest=left,
            taken={name: rows[at]["taken"] if at in rows else 0 for at, name in enumerate(names)}
            | dict.fromkeys(self.tables.keys() - {*names}, left),
            first=tuple(rest["first"]) if rest else ("", 0, 0),
        )
