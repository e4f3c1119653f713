"""A transform unit-tested without Kafka: the frame is the one a real run gives it."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest

from eo_pipeline import BadRecordError, ConfigError
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.spark import SparkSettings
from eo_pipeline.testing import records_frame
from tests.runs.transforms import only_small_ids, shouting
from tests.support.engine import Bench

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "id BIGINT NOT NULL, name STRING"


@pytest.fixture
def spark(spark_server: EmbeddedSpark) -> SparkSession:
    return SparkSettings(remote=spark_server.remote).session()


@pytest.mark.core
def test_a_transform_is_tested_with_plain_dicts(spark: SparkSession) -> None:
    frame = records_frame(spark, [{"id": 1, "name": "ada"}, {"id": 70, "name": "bob"}], SCHEMA)
    rows = shouting(only_small_ids(frame)).collect()
    assert [(row.id, row.name, row._kafka.offset) for row in rows] == [(1, "ADA", 0)]


@pytest.mark.core
def test_the_frame_has_the_types_of_a_real_run(spark: SparkSession, bench: Bench) -> None:
    seen: list[DataFrame] = []

    def keep(df: DataFrame) -> DataFrame:
        seen.append(df)
        return df

    bench.topic.write(1)
    bench.pipeline(transform=keep).run()
    schema = bench.config["source"]["value_schema"]
    frame = records_frame(spark, [{"id": 1, "name": "ada"}], schema, topic=bench.topic.name)
    assert frame.schema.simpleString() == seen[0].schema.simpleString()
    assert [f.nullable for f in frame.schema if f.name != "_kafka"] == [
        f.nullable for f in seen[0].schema if f.name != "_kafka"
    ]


def test_a_record_may_say_where_it_came_from(spark: SparkSession) -> None:
    at = datetime(2026, 3, 1, 12, tzinfo=UTC)
    coordinates = {"partition": 3, "offset": 41, "key": b"k", "timestamp": at}
    headers = [("trace", b"1")]
    record = {"id": 1, "_kafka": {**coordinates, "headers": headers}}
    [row] = records_frame(spark, [record], SCHEMA, topic="orders").collect()
    kafka = row._kafka
    assert (kafka.topic, kafka.partition, kafka.offset) == ("orders", 3, 41)
    assert (bytes(kafka.key), kafka.headers[0].key) == (b"k", "trace")
    assert row.name is None
    with pytest.raises(ValueError, match="no field ofset"):
        records_frame(spark, [{"id": 1, "_kafka": {"ofset": 1}}], SCHEMA)


def test_dates_times_decimals_and_nested_values_are_written_as_producers_do(
    spark: SparkSession,
) -> None:
    schema = "on DATE, at TIMESTAMP, price DECIMAL(10, 2), who STRUCT<name: STRING>"
    record = {
        "on": date(2026, 3, 1),
        "at": datetime(2026, 3, 1, 12, tzinfo=UTC),
        "price": Decimal("9.90"),
        "who": {"name": "ada"},
    }
    frame = records_frame(spark, [record], schema)
    [row] = frame.selectExpr("on", "unix_seconds(at) as at", "price", "who.name").collect()
    assert row.asDict() == {
        "on": date(2026, 3, 1),
        "at": int(record["at"].timestamp()),  # type: ignore[attr-defined]
        "price": Decimal("9.90"),
        "name": "ada",
    }


def test_a_record_the_pipeline_would_not_take_is_named(spark: SparkSession) -> None:
    with pytest.raises(BadRecordError, match=r"offset 1 .*'id' is missing.*bob"):
        records_frame(spark, [{"id": 1}, {"name": "bob"}], SCHEMA)
    with pytest.raises(BadRecordError, match="'id' is no whole number"):
        records_frame(spark, [{"id": "one"}], SCHEMA)
    with pytest.raises(ConfigError):
        records_frame(spark, [{"id": 1}], "id BIGNIT")


def test_raw_values_are_bytes(spark: SparkSession) -> None:
    [row] = records_frame(spark, [{"value": b"\x00\x01"}], None).collect()
    assert bytes(row.value) == b"\x00\x01"
