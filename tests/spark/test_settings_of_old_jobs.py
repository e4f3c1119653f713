"""A row does not depend on the session's settings: those that people carry along from older jobs,
and those that a transform sets.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.sinks.delta import DeltaSink
from eo_pipeline.spark import SparkSettings
from eo_pipeline.spark.clients import is_connect
from eo_pipeline.spark.connect import apply_settings, settings_of
from eo_pipeline.spark.launch import SPARKS_DEFAULTS, STAGING_SETTINGS
from tests.batch.test_fast_path import World
from tests.support.engine import Topic, spark_jars
from tests.support.servers import STATE

#: As they stand in guides to migration, and in configurations that nobody dares to touch.
CARRIED_ALONG = {
    **{
        f"spark.sql.{name}": value
        for name, value in {
            "session.timeZone": "America/New_York",
            "timestampType": "TIMESTAMP_NTZ",
            "legacy.timeParserPolicy": "LEGACY",
            "legacy.json.allowEmptyString.enabled": "true",
            "legacy.allowNegativeScaleOfDecimal": "true",
            "legacy.charVarcharAsString": "true",
            "legacy.sizeOfNull": "false",
            "legacy.castComplexTypesToString.enabled": "true",
            "legacy.followThreeValuedLogicInArrayExists": "false",
            "legacy.createEmptyCollectionUsingStringType": "true",
            "legacy.parquet.nanosAsLong": "true",
            "legacy.interval.enabled": "true",
            "legacy.typeCoercion.datetimeToString.enabled": "true",
            "ansi.enabled": "false",
            "ansi.enforceReservedKeywords": "true",
            "ansi.doubleQuotedIdentifiers": "true",
            "storeAssignmentPolicy": "LEGACY",
            "caseSensitive": "true",
            "parser.escapedStringLiterals": "true",
            "parser.quotedRegexColumnNames": "true",
            "function.concatBinaryAsString": "true",
            "function.eltOutputAsString": "true",
            "decimalOperations.allowPrecisionLoss": "false",
            "mapKeyDedupPolicy": "LAST_WIN",
            "json.enablePartialResults": "false",
            "json.enableExactStringParsing": "false",
            "jsonGenerator.ignoreNullFields": "false",
            "avro.datetimeRebaseModeInRead": "LEGACY",
            "avro.datetimeRebaseModeInWrite": "LEGACY",
            "parquet.datetimeRebaseModeInRead": "LEGACY",
            "parquet.datetimeRebaseModeInWrite": "LEGACY",
            "parquet.int96RebaseModeInWrite": "LEGACY",
            "parquet.outputTimestampType": "INT96",
            "parquet.writeLegacyFormat": "true",
            "parquet.binaryAsString": "true",
            "parquet.mergeSchema": "true",
            "parquet.compression.codec": "gzip",
            "files.ignoreCorruptFiles": "true",
            "files.ignoreMissingFiles": "true",
            "files.maxRecordsPerFile": "1",
            "sources.partitionOverwriteMode": "dynamic",
            "sources.partitionColumnTypeInference.enabled": "false",
            "execution.arrow.useLargeVarTypes": "true",
            "execution.arrow.maxRecordsPerBatch": "1",
            "adaptive.enabled": "false",
            "codegen.wholeStage": "false",
            "columnNameOfCorruptRecord": "s",
            "stableDerivedColumnAlias.enabled": "true",
        }.items()
    },
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}
#: What Spark 3 does with a time that older ones took.
EXCEPTION = {**CARRIED_ALONG, "spark.sql.legacy.timeParserPolicy": "EXCEPTION"}

#: A column each, and what JSON writes for it; some of it good, some bad.
VALUES = {
    "s STRING": ['"a"', '""', '{"a": 1, "b": null}', "[1, 2]"],
    "b BIGINT": ["1", '""', "1.0"],
    "ok BOOLEAN": ["true", '""'],
    "m DECIMAL(10,2)": ["1.5", "1.005", '""'],
    "d DATE": ['"2024-02-29"', '"2026-02-30"', '"26-01-31"', '"2026-01-31abc"', '"1492-10-12"'],
    "at TIMESTAMP": [
        *('"2026-01-31T12:00:00"', '"2026-01-31T12:00:00Z"', '"2026-02-30T00:00:00Z"'),
        *('"1492-10-12T00:00:00Z"', '""'),
    ],
    "wall TIMESTAMP_NTZ": ['"2026-01-31T12:00:00"', '"1492-10-12T00:00:00"'],
    "st STRUCT<a: INT NOT NULL, b: STRING, c: DATE>": [
        *('{"a": 1, "b": null}', '{"a": 1, "c": "2026-02-30"}', '{"a": 1, "b": ""}', '""'),
    ],
    "ar ARRAY<INT>": ["[1]", '[""]', "[null]", '""'],
    "mp MAP<STRING, DECIMAL(5,2)>": ['{"a": 1.5, "b": null}', '{"a": 1.555}', '""'],
    # a word of SQL's own, and a text with a backslash
    "end STRING COMMENT 'it\\'s'": ['"x"'],
}
SCHEMA = ", ".join(["id BIGINT", *VALUES])

AVRO = {
    "type": "record",
    "name": "r",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "s", "type": "string"},
        {"name": "d", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "mp", "type": {"type": "map", "values": "int"}},
    ],
}


def records() -> Iterator[bytes]:
    """The last one is a row that the table does not take: its ``id`` is null."""
    values = [(kind.split()[0], value) for kind, values in VALUES.items() for value in values]
    for number, (name, value) in enumerate(values):
        yield f'{{"id": {number}, "{name}": {value}}}'.encode()
    yield from [b'{"id": 1, "new": {"a": null}}', b'{"id": 2, "id": 3}', b"{", b'{"s": "a"}']


def avro_records() -> Iterator[bytes]:
    old = {"d": date(1492, 10, 12), "at": datetime(1492, 10, 12, tzinfo=UTC), "mp": {"a": 1}}
    for number, name in enumerate(["a", "b"]):
        written = io.BytesIO()
        record = {"id": number, "s": name, **old}
        fastavro.schemaless_writer(written, fastavro.parse_schema(AVRO), record)
        yield written.getvalue()
    yield b"\x01"


def in_files(world: World, **source: Any) -> Any:
    """What is staged of the records, in a layout by ``s``: rows, dead letters and counts."""
    sink = DeltaSink(path=str(world.folder / "t"), partition_by=("s",))
    stager = world.stager(**{"schema": SCHEMA, "sink": sink, **source})
    attempt = world._attempt()
    stager = replace(stager, never_null=("id",), had_bad_records=True)
    output, counts = stager.stage(world.spark, world.entry(), attempt)
    assert output.rows is not None
    assert output.dead_letters is not None
    files = [pq.ParquetFile(path) for path in output.rows.paths()]
    schemas = {str(file.schema_arrow.remove_metadata()) for file in files}
    rows = [row for file in files for row in file.read().to_pylist()]
    bad = [r for path in output.dead_letters.paths() for r in pq.read_table(path).to_pylist()]
    return schemas, *map(sorted, (map(repr, rows), map(repr, bad))), counts


def in_memory(world: World, transform: Callable[[DataFrame], DataFrame] | None) -> Any:
    """The same of a small batch."""
    stager = world.stager(SCHEMA, on_bad_record="dead_letter", unknown_fields="keep")
    stager = replace(stager, transform=transform, had_bad_records=True)
    output, counts = stager.stage(world.spark, world.entry(), None)
    assert output.rows is not None
    table = output.rows.table
    assert isinstance(table, pa.Table)
    return str(table.schema), sorted(map(repr, table.to_pylist())), counts


def setting(settings: dict[str, str]) -> Callable[[DataFrame], DataFrame]:
    """A transform that changes its session, as jobs do."""

    def transform(df: DataFrame) -> DataFrame:
        set_all(df.sparkSession, settings)
        return df

    return transform


@pytest.fixture
def spark(spark_server: EmbeddedSpark) -> Iterator[SparkSession]:
    session = SparkSettings(remote=spark_server.remote).session()
    yield session
    session.stop()


def set_all(session: SparkSession, settings: dict[str, str]) -> None:
    if is_connect(session):
        apply_settings(session, settings)  # in one request
        return
    for key, value in settings.items():
        session.conf.set(key, value)


@pytest.fixture
def world(spark: SparkSession, events: Topic, tmp_path: Path) -> World:
    return World(spark, events, tmp_path)


def test_rows_and_dead_letters_are_the_same_under_settings_of_older_jobs(world: World) -> None:
    world.write(records())
    source = {"on_bad_record": "dead_letter", "unknown_fields": "keep"}
    expected = in_files(world, **source), in_memory(world, lambda df: df)
    assert len(expected[0][2]) > 10, "some are bad"
    for settings in (CARRIED_ALONG, EXCEPTION):
        set_all(world.spark, settings)
        found = in_files(world, **source), in_memory(world, setting(settings))
        assert found == expected
        assert settings_of(world.spark, settings) == settings, "the caller has what was set"


def test_days_of_old_in_avro_are_the_same_under_settings_of_older_jobs(world: World) -> None:
    world.write(avro_records())
    source = {
        "on_bad_record": "dead_letter",
        "value_format": "avro",
        "schema": json.dumps(AVRO),
    }
    expected = in_files(world, **source)
    assert "datetime.date(1492, 10, 12)" in expected[1][0]
    set_all(world.spark, CARRIED_ALONG)
    assert in_files(world, **source) == expected


CLASSIC = """
import json, sys
from pyspark.sql import functions as F
from eo_pipeline.batch.stage import Stager
from eo_pipeline.sinks.delta import DeltaSink
from eo_pipeline.kafka.source import KafkaSource
from eo_pipeline.batch.decode import decode
from eo_pipeline.spark import SparkSettings, staging_settings
from tests.batch.frames import kafka_frame
from tests.spark.test_settings_of_old_jobs import (
    CARRIED_ALONG, EXCEPTION, SCHEMA, records, set_all, setting
)

spark = SparkSettings(master="local[2]", warm=False, driver_memory="1g").session()
source = KafkaSource(bootstrap_servers="h:1", topics=["t"], value_schema=SCHEMA)

def table(transform):
    stager = Stager(source, DeltaSink(path="t"), transform, lineage=True)
    with staging_settings(spark):
        decoded = decode(kafka_frame(spark, list(records())), source)
        made = stager.result(decoded.good(decoded.all)).orderBy("_kafka.offset").drop("_kafka")
        return made.toArrow()

expected = table(lambda df: df)
for settings in (CARRIED_ALONG, EXCEPTION):
    for before in ({}, settings):
        set_all(spark, before)
        assert table(setting(settings)).equals(expected), "other rows"
        now = {key: spark.conf.get(key, None) for key in before}
        assert now == before, "not given back"
assert len(expected) > 10
print("the same rows")
"""


@pytest.mark.slow
def test_a_spark_of_this_process_gives_the_same_rows_too(tmp_path: Path) -> None:
    jars = tmp_path / "jars"
    jars.mkdir()
    for jar in spark_jars():
        (jars / jar.name).symlink_to(jar)
    environment = {**os.environ, "EO_SPARK_JARS": str(jars)}
    environment.pop("SPARK_REMOTE", None)
    run = subprocess.run(
        [sys.executable, "-c", CLASSIC],
        capture_output=True,
        text=True,
        env=environment,
        cwd=STATE.parent,
        timeout=300,
        check=False,
    )
    assert run.stdout.splitlines()[-1:] == ["the same rows"], run.stderr[-3000:]


def test_what_is_pinned_is_pinned_once_and_named_with_its_reason() -> None:
    assert STAGING_SETTINGS.keys().isdisjoint(SPARKS_DEFAULTS)
    pinned = STAGING_SETTINGS.keys() | SPARKS_DEFAULTS.keys()
    assert len(pinned & CARRIED_ALONG.keys()) > 20
    assert all(CARRIED_ALONG[key] != _ALL[key] for key in pinned & CARRIED_ALONG.keys())


_ALL = {**STAGING_SETTINGS, **SPARKS_DEFAULTS}
