"""Rows that nothing transforms: counted on one way with the records they were read from, looked at
no more than they need be, written without dictionaries that would be given up.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from eo_pipeline.batch.counting import RowCounter, SourceCounter
from eo_pipeline.batch.decode import decode
from eo_pipeline.batch.stage import Stager, Transform
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.kafka.source import KafkaSource
from eo_pipeline.sinks.delta import DeltaSink
from eo_pipeline.spark import SparkSettings, parquet_options
from eo_pipeline.spark.observation import explained
from tests.batch.frames import kafka_frame

AVRO = '{"type": "record", "name": "r", "fields": [{"name": "name", "type": "string"}]}'


@pytest.fixture(scope="module")
def spark(spark_server: EmbeddedSpark) -> Iterator[SparkSession]:
    session = SparkSettings(remote=spark_server.remote).session()
    yield session
    session.stop()


def a_source(**settings: Any) -> KafkaSource:
    settings = {"value_schema": "id BIGINT NOT NULL, name STRING", **settings}
    return KafkaSource(bootstrap_servers="nowhere:9092", topics=["t"], **settings)


def test_records_and_rows_are_counted_by_one_step(spark: SparkSession) -> None:
    source = a_source(on_bad_record="dead_letter", tombstones="skip", unknown_fields="keep")
    values = [
        b'{"id": 1, "name": "a"}',
        b"not json",
        None,
        b'{"id": 2, "more": [1]}',
        # as a map of all its fields it would be an error of Spark's, and no bad record
        b'{"id": 3, "more": 1, "more": 2}',
        b'{"name": "of nobody"}',
    ]
    reading = SourceCounter(decode(kafka_frame(spark, values), source), [], transformed=False)
    assert reading.rows is not None
    result = RowCounter(reading.rows, lambda rows: rows.drop("_kafka"), names=1)
    assert explained(result.frame).count("CollectMetrics") == 1
    table = result.frame.toArrow().to_pylist()
    assert [(row["id"], row["_unknown_fields"]) for row in table] == [
        (1, None),
        (2, '{"more":[1]}'),
    ]
    assert result.was_counted()
    seen = reading.seen(result)
    assert (seen.records, seen.good, seen.bad, seen.skipped) == (6, 2, 3, 1)
    assert (result.rows, seen.unknown, seen.unknown_fields) == (2, 1, ("more",))
    assert "not json" in str(seen.first_bad)


@pytest.mark.core(only=["settings4-1-3-0"])
@pytest.mark.parametrize(
    ("settings", "rows", "bad", "skipped"),
    [
        ({"value_format": "raw", "value_schema": None}, 3, 1, 0),
        ({"value_format": "raw", "value_schema": None, "tombstones": "skip"}, 3, 0, 1),
        ({"value_format": "avro", "value_schema": AVRO}, 1, 3, 0),
        ({"key_format": "text"}, 1, 3, 0),
        ({"key_format": "json", "key_schema": "k STRING"}, 1, 3, 0),
    ],
)
def test_so_they_are_whatever_the_format_of_value_and_key(
    spark: SparkSession, settings: dict[str, Any], rows: int, bad: int, skipped: int
) -> None:
    values = [b'{"id": 1}', None, b"x", b"\x02a"]
    decoded = decode(kafka_frame(spark, values), a_source(**settings))
    reading = SourceCounter(decoded, [], transformed=False)
    assert reading.rows is not None
    result = RowCounter(reading.rows, lambda kept: kept.drop("_kafka"), names=1)
    assert result.frame.toArrow().num_rows == rows
    assert result.was_counted()
    seen = reading.seen(result)
    assert (seen.records, seen.good, seen.bad, seen.skipped) == (4, rows, bad, skipped)


@pytest.mark.core(only=["settings1-None-False"])
@pytest.mark.parametrize(
    ("settings", "transform", "looked_at"),
    [
        ({}, None, False),
        ({"key_format": "text"}, None, False),
        ({}, lambda frame: frame, True),
        ({"value_format": "avro", "value_schema": AVRO}, None, True),
    ],
)
def test_text_that_a_json_parser_made_is_not_looked_at_again(
    spark: SparkSession,
    tmp_path: Path,
    settings: dict[str, Any],
    transform: Transform | None,
    looked_at: bool,
) -> None:
    source = a_source(**settings)
    stager = Stager(source, DeltaSink(path=str(tmp_path)), transform, lineage=True)
    decoded = decode(kafka_frame(spark, [b"{}"]), source)
    why = stager._why(decoded.good(decoded.all))
    assert ("is_valid_utf8" in str(why)) is looked_at


def test_a_dictionary_is_given_up_before_it_is_large(spark: SparkSession, tmp_path: Path) -> None:
    """Of 12,000 texts of ten bytes Parquet would keep it, by itself."""
    rows = spark.range(0, 60_000, 1, 1).select(
        F.format_string("text-%05d", F.col("id") % 12_000).alias("many"),
        F.format_string("text-%05d", F.col("id") % 20).alias("few"),
    )
    for folder, options in (("ours", parquet_options(spark)), ("by-default", {})):
        rows.write.options(**options).parquet(str(tmp_path / folder))
    assert dictionaries(tmp_path / "ours") == ["few"]
    assert dictionaries(tmp_path / "by-default") == ["many", "few"]


def dictionaries(folder: Path) -> list[str]:
    """The columns whose values are all in one."""
    [file] = folder.glob("*.parquet")
    group = pq.read_metadata(file).row_group(0)
    columns = [group.column(n) for n in range(group.num_columns)]
    return [column.path_in_schema for column in columns if "PLAIN" not in column.encodings]


@pytest.mark.core
def test_a_users_own_limit_of_dictionaries_stays(spark_server: EmbeddedSpark) -> None:
    mine = {"spark.hadoop.parquet.dictionary.page.size": "1048576"}
    session = SparkSettings(remote=spark_server.remote, config=mine).session()
    assert parquet_options(session) == {}
