"""Steps 3 to 5 of a checkpoint that fills several tables.

Each table takes the records of its topics that fulfil its ``where``, by a stager of its own. A
record may be taken by several tables; one that no table takes is the ``rest``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import Literal, NamedTuple

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from eo_pipeline.batch.code_version import code_version_of_tables
from eo_pipeline.batch.read import condition_columns, read_ranges
from eo_pipeline.batch.stage import Stager
from eo_pipeline.errors import BadRecordError
from eo_pipeline.kafka.source import KafkaSource
from eo_pipeline.ledger.entry import REFUSED, Counts, LedgerEntry
from eo_pipeline.ledger.offsets import OffsetRange
from eo_pipeline.spark import interruptible
from eo_pipeline.staging.attempt import Attempt
from eo_pipeline.staging.rows import StagedOutput

Rest = Literal["fail", "ignore"]


class ReadTotals(NamedTuple):
    """Records that were read, each counted once, and those of them that no table takes."""

    records: int
    bytes: int
    key_bytes: int
    rest: int


@dataclass(frozen=True)
class TablesStager:
    """The stagers of all tables, by name. ``source`` has the topics of all of them."""

    source: KafkaSource
    tables: Mapping[str, Stager]
    rest: Rest

    @property
    def code_version(self) -> str | None:
        """Changes when the schema or the transform of a table is edited; None if nobody can tell
        for one of them.
        """
        return code_version_of_tables(
            {name: stager.code_version for name, stager in self.tables.items()}
        )

    def stage(
        self, spark: SparkSession, entry: LedgerEntry, attempt: Attempt | None
    ) -> tuple[StagedOutput, Counts]:
        """Stage each table, see :meth:`Stager.stage`, whose errors these are.

        Raises:
            BadRecordError: also of a record that no table takes, if ``rest`` is ``fail``.
        """
        outputs, counts = {}, {}
        for name, stager in self.tables.items():
            part = self._part(name, entry)
            if not part.ranges:
                counts[name] = Counts(rows_total=part.counts.rows_total)
                continue
            files = attempt.of_table(name) if attempt else None
            outputs[name], counts[name] = stager.stage(spark, part, files)
        totals = self._disjoint_totals(entry, counts) or self._counted(spark, entry)
        rows = sum(of_table.rows for of_table in counts.values())
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
            rest=totals.rest,
            tables=counts,
        )

    def _part(self, name: str, entry: LedgerEntry) -> LedgerEntry:
        """Return the entry as that of one table: its ranges, and the records that it refused."""
        part, stager = entry.of_table(name), self.tables[name]
        details = dict(part.details)
        refused = details.pop(REFUSED, ())
        if ours := [record for record in refused if record.get("table") == name]:
            details[REFUSED] = ours
        return replace(part, ranges=entry.ranges_of(stager.source.topics), details=details)

    def _disjoint_totals(
        self, entry: LedgerEntry, counts: Mapping[str, Counts]
    ) -> ReadTotals | None:
        """Return the sums over tables that together take each record of ``entry`` once; None if it
        has no such tables.
        """
        by_topics: dict[tuple[OffsetRange, ...], Counts] = {}
        for name, stager in self.tables.items():
            if stager.where is None and (ranges := entry.ranges_of(stager.source.topics)):
                by_topics.setdefault(ranges, counts[name])
        covered = [offset_range for ranges in by_topics for offset_range in ranges]
        if sorted(covered) != sorted(entry.ranges):
            return None
        parts = by_topics.values()
        return ReadTotals(
            sum(part.records for part in parts),
            sum(part.bytes for part in parts),
            sum(part.key_bytes or 0 for part in parts),
            0,
        )

    def _counted(self, spark: SparkSession, entry: LedgerEntry) -> ReadTotals:
        """Count the records by a Spark job of its own.

        Raises:
            BadRecordError: see :meth:`stage`.
        """
        totals, first = self.count(spark, entry.pipeline, entry.ranges, entry.topic_ids)
        if totals.rest and self.rest == "fail":
            topic, partition, offset = first
            raise BadRecordError(
                f"Pipeline {entry.pipeline!r}: no table takes {totals.rest:,} records, the first "
                f"one {topic}[{partition}] offset {offset}. Nothing was committed. Let a table "
                "take them (its topics and where), or leave them out: rest: ignore.",
                count=totals.rest,
            )
        return totals

    def count(
        self,
        spark: SparkSession,
        pipeline: str,
        ranges: Sequence[OffsetRange],
        topic_ids: Mapping[str, str],
    ) -> tuple[ReadTotals, tuple[str, int, int]]:
        """Count the records of ``ranges``; return also the coordinates of the first record that no
        table takes, if there is one.
        """
        raw = read_ranges(spark, self.source, ranges, pipeline=pipeline, topic_ids=topic_ids)
        sizes = {"_eo_bytes": F.length("value"), "_eo_key_bytes": F.length("key")}
        records = raw.withColumns(sizes | condition_columns())
        is_taken = reduce(or_, (self._takes(stager) for stager in self.tables.values()))
        is_rest = ~F.coalesce(is_taken, F.lit(False))
        place = F.struct("topic", "partition", "offset")
        totals = records.agg(
            F.count(F.lit(1)).alias("records"),
            F.coalesce(F.sum("_eo_bytes"), F.lit(0)).alias("bytes"),
            F.coalesce(F.sum("_eo_key_bytes"), F.lit(0)).alias("key_bytes"),
            F.count(F.when(is_rest, 1)).alias("rest"),
            F.min(F.when(is_rest, place)).alias("first"),
        )
        row = interruptible(spark, totals.first)
        assert row is not None, "an aggregation without groups has one row"
        counted = ReadTotals(row["records"], row["bytes"], row["key_bytes"], row["rest"])
        return counted, row["first"] or ("", 0, 0)

    def _takes(self, stager: Stager) -> Column:
        """Return the condition on which a table takes a record."""
        names = stager.source.topics
        is_ours = F.col("topic").isin(*names) if names else F.lit(True)
        is_ours &= F.lit(True) if stager.where is None else F.expr(stager.where)
        return F.coalesce(is_ours, F.lit(False))
