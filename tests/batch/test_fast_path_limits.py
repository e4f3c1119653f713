"""Sinks whose limits the fast path keeps. Without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql.types import LongType, StructType

from eo_pipeline.batch.fast_path import FastPath
from eo_pipeline.kafka.source import KafkaSource
from eo_pipeline.sinks.columns import ColumnLimits
from eo_pipeline.sinks.console import ConsoleSink
from eo_pipeline.sinks.delta import DeltaSink
from eo_pipeline.sinks.kafka import KafkaSink
from eo_pipeline.sinks.mysql import MySqlSink
from eo_pipeline.sinks.parquet import ParquetSink
from eo_pipeline.sinks.postgres import PostgresSink
from eo_pipeline.sinks.redis import RedisSink


def fast_path(sink: object, never_null: tuple[str, ...] = ()) -> FastPath | None:
    schema = StructType().add("id", LongType()).json()
    return FastPath.of(
        KafkaSource(bootstrap_servers="n:1", topics=("t",), value_schema=schema),
        sink,  # type: ignore[arg-type]
        lineage=True,
        never_null=never_null,
        record_bytes=None,
        as_staged=None,
    )


class LimitedSink(ParquetSink):
    """A table with the years that a test sets."""

    years: tuple[int, int]

    def column_limits(self) -> ColumnLimits:
        return ColumnLimits(years=self.years)


@pytest.mark.parametrize(
    ("years", "is_fast"), [((1600, 9999), True), ((1, 9999), True), ((1601, 9999), False)]
)
def test_a_store_of_fewer_years_is_left_to_sparks_plan(
    tmp_path: Path, years: tuple[int, int], is_fast: bool
) -> None:
    sink = LimitedSink(path=str(tmp_path), years=years)
    assert (fast_path(sink) is not None) is is_fast


def test_columns_that_need_a_value_are_those_of_the_table_and_of_the_sink(tmp_path: Path) -> None:
    upsert = {"mode": "upsert", "key": ("Id",)}
    for sink in (
        DeltaSink(path=str(tmp_path), **upsert),
        PostgresSink(dsn="host=n", table="t", **upsert),
        MySqlSink(user="u", database="d", table="t", **upsert),
        RedisSink(url="redis://n", key="t:{Id}"),
    ):
        fast = fast_path(sink, never_null=("N",))
        assert fast is not None, sink
        assert {"id", "n"} <= fast.needed


def test_sinks_with_other_conditions_than_limits_are_left_to_sparks_plan(tmp_path: Path) -> None:
    kafka = {"bootstrap_servers": "n:1", "topic": "t"}
    assert fast_path(KafkaSink(**kafka, key="id")) is not None
    for sink in (
        ConsoleSink(),
        DeltaSink(path=str(tmp_path), partition_by=("id",)),
        KafkaSink(**kafka, timestamp="id"),
        KafkaSink(**kafka, value="id"),
    ):
        assert fast_path(sink) is None, sink
