"""Rows that Spark's tasks put into the form of PostgreSQL's binary COPY: the same bytes as those
that the commit makes of Parquet columns, and the same values in the table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from eo_pipeline.batch.output import materialize, packed
from eo_pipeline.crashpoints import CrashPoint, reaching
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.ledger.entry import EntryId
from eo_pipeline.sinks.postgres import PostgresSink
from eo_pipeline.sinks.postgres import session as rows_module
from eo_pipeline.sinks.postgres.binary_copy import HEADER, TRAILER, bytes_of
from eo_pipeline.sinks.postgres.session import _encoded
from eo_pipeline.sinks.postgres.types import ColumnType, wire_type
from eo_pipeline.sinks.sql.table import Column
from eo_pipeline.spark import SparkSettings, staging_settings
from eo_pipeline.staging.attempt import Attempt
from eo_pipeline.staging.rows import PACKED_COLUMN, StagedTable
from tests.sinks.postgres.postgres_world import World, world
from tests.support.engine import Bench

__all__ = ["world"]

#: Each of a type, in SQL of Spark's.
VALUES = {
    "boolean": ["true", "false"],
    "tinyint": ["-128Y", "0Y", "127Y"],
    "smallint": ["-32768S", "32767S"],
    "int": ["-2147483647 - 1", "2147483647"],
    "bigint": ["-9223372036854775807L - 1", "9223372036854775807L"],
    "float": ["float('-1.5')", "float('nan')", "float('-infinity')", "float('1e-45')"],
    "double": ["-0.0D", "double('nan')", "double('infinity')", "4.9e-324D"],
    "string": ["''", "'a b'", "'é\U0001f600'", "repeat('x', 70000)"],
    "binary": ["x''", "x'00ff'", "cast(repeat('y', 70000) as binary)"],
    "date": ["date'0001-01-01'", "date'1999-12-31'", "date'2000-01-01'", "date'9999-12-31'"],
    "timestamp": [
        "timestamp'0001-01-01 00:00:00Z'",
        "timestamp'1999-12-31 23:59:59.999999Z'",
        "timestamp'9999-12-31 23:59:59.999999Z'",
    ],
    "timestamp_ntz": ["timestamp_ntz'1582-10-04 12:00:00'", "timestamp_ntz'2026-01-01 00:00:00'"],
    "decimal(1,0)": ["0BD", "9BD", "-9BD"],
    "decimal(9,3)": ["0.001BD", "-999999.999BD", "10000BD", "0.1BD", "20.000BD"],
    "decimal(38,0)": ["9" * 38 + "BD", "-1BD", "100000000BD"],
    "decimal(38,38)": ["0." + "9" * 38 + "BD", "0." + "0" * 37 + "1BD", "-0.0001BD"],
    "struct<a: int, b: string>": ["struct(1, 'x')", "struct(null, null)"],
    "map<string, int>": ["map('k', 1, 'l', null)", "map()"],
    "array<struct<a: int>>": ["array(struct(1), null)"],
}


@pytest.fixture(scope="module")
def spark(spark_server: EmbeddedSpark) -> Iterator[SparkSession]:
    session = SparkSettings(remote=spark_server.remote).session()
    with staging_settings(session):
        yield session
    session.stop()


def a_frame(spark: SparkSession, kind: str, sink: PostgresSink) -> DataFrame:
    """One column of a ``kind`` with all its values and a null, as ``sink`` stages it."""
    values = [*VALUES[kind], "null"]
    rows = ", ".join(f"({n}, cast({value} as {kind}))" for n, value in enumerate(values))
    frame = (
        spark.sql(f"select * from values {rows} as t(n, x)").coalesce(1).sortWithinPartitions("n")
    )
    return sink.project(frame)


def an_attempt(folder: Path) -> Attempt:
    folder.mkdir(exist_ok=True)
    return Attempt(folder, EntryId(1, "of-nobody"), ledger_id=None, data=folder)


def as_columns(frame: DataFrame, folder: Path) -> StagedTable:
    """Staged as any sink has them that has no form of its own."""
    return materialize(frame, an_attempt(folder), Attempt.rows_folder)


def as_packed(frame: DataFrame, folder: Path, sink: PostgresSink) -> StagedTable:
    """The same in the sink's form."""
    form = packed(frame, sink.row_form(frame.schema))
    assert form is not None
    return materialize(form.frame, an_attempt(folder), Attempt.rows_folder, packed=form)


def copied(staged: StagedTable) -> bytes:
    """What COPY is sent."""
    some = ColumnType("", "", "")
    columns = [Column(field.name, wire_type(field), some) for field in staged.schema]
    return b"".join(bytes(part) for _, part in _encoded(columns, staged))


@pytest.mark.parametrize("kind", VALUES)
def test_a_row_is_the_same_bytes_whoever_made_them(
    spark: SparkSession, kind: str, tmp_path: Path
) -> None:
    sink = PostgresSink(dsn="host=nowhere", table="t")
    frame = a_frame(spark, kind, sink)
    columns = as_columns(frame, tmp_path / "columns")
    rows = as_packed(frame, tmp_path / "packed", sink)
    assert rows.form is not None
    assert rows.schema == columns.schema
    assert rows.rows == columns.rows == len(VALUES[kind]) + 1
    # of a number pgpq sends zeros that PostgreSQL drops, and these rows others
    assert kind.startswith("decimal") or copied(rows) == copied(columns)


@pytest.mark.core(only=["bigint", "decimal(9,3)", "timestamp", "string"])
@pytest.mark.parametrize("kind", VALUES)
def test_a_table_holds_the_same_values(
    spark: SparkSession, world: World, kind: str, tmp_path: Path
) -> None:
    frame = a_frame(spark, kind, world.sink())
    world.publish(world.sink(), as_columns(frame, tmp_path / "columns"))
    other = world.sink(table="other")
    world.publish(other, as_packed(frame, tmp_path / "packed", other), pipeline="other")
    shown = "SELECT n, x::text, pg_typeof(x)::text FROM {} ORDER BY n"
    assert world.rows(shown.format("other")) == world.rows(shown.format("t"))


def test_arrays_are_staged_as_columns(spark: SparkSession) -> None:
    sink = PostgresSink(dsn="host=nowhere", table="t")
    frame = sink.project(spark.sql("select array(1, null) as x"))
    assert packed(frame, sink.row_form(frame.schema)) is None


def test_a_spark_without_the_function_stages_columns(spark: SparkSession) -> None:
    sink = PostgresSink(dsn="host=nowhere", table="t")
    frame = sink.project(spark.range(1))
    form = sink.row_form(frame.schema)
    assert form is not None
    assert packed(frame, form) is not None
    assert packed(frame, form._replace(function="no_such")) is None


def test_rows_in_the_middle_of_a_batch_are_sent_alone() -> None:
    rows = pa.array([b"a", b"bc", b"", b"def"], pa.binary())
    assert bytes(bytes_of(rows)) == b"abcdef"
    assert bytes(bytes_of(rows.slice(1, 2))) == b"bc"
    assert bytes(bytes_of(rows.slice(2, 0))) == b""


def test_no_rows_are_a_header_and_a_trailer(spark: SparkSession, tmp_path: Path) -> None:
    sink = PostgresSink(dsn="host=nowhere", table="t")
    frame = sink.project(spark.range(1).where("id > 5"))
    staged = as_packed(frame, tmp_path, sink)
    assert staged.schema.names == ["id"]
    assert copied(staged) == HEADER + TRAILER


def staged_files(bench: Bench) -> list[Path]:
    return sorted(Path(bench.config["staging"]).rglob("*.parquet"))


def promised(bench: Bench) -> Path:
    """The manifest of a run that was killed as it had promised its first checkpoint."""
    run = bench.run_in_a_process("--crash-at", "pre_committed", "1")
    run.communicate(timeout=240)
    [manifest] = Path(bench.config["staging"]).rglob("manifest.json")
    return manifest


@pytest.mark.core
def test_what_waits_is_one_column_and_whoever_comes_next_commits_it(bench: Bench) -> None:
    bench.topic.write(50)
    manifest = promised(bench)
    assert json.loads(manifest.read_text())["format"] == 2, "an older release must not read it"
    assert [pq.read_schema(path).names for path in staged_files(bench)] == [[PACKED_COLUMN]]
    head = bench.pipeline().recover()
    assert head is not None
    assert head.counts.rows == 50
    bench.table.assert_holds_once(bench.topic.written)
    assert bench.table.query("select count(*), min(name) from events") == [(50, "record 0")]


def test_a_form_of_another_release_is_refused_and_the_records_are_read_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench.topic.write(50)
    promised(bench)
    with monkeypatch.context() as patched:
        patched.setattr(rows_module, "FORM", "postgres-copy-9")
        bench.pipeline().recover()
    assert "staged in the form postgres-copy-1, and this release reads" in caplog.text
    assert bench.table.coordinates().total() == 0
    assert bench.pipeline().run().rows == 50
    bench.table.assert_holds_once(bench.topic.written)


def test_columns_that_an_earlier_release_promised_are_committed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.topic.write(50)

    def die(point: CrashPoint) -> None:
        if point is CrashPoint.PRE_COMMITTED:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(PostgresSink, "row_form", lambda *_: None)
        with reaching(die), pytest.raises(KeyboardInterrupt):
            bench.pipeline().run()
    [manifest] = Path(bench.config["staging"]).rglob("manifest.json")
    assert json.loads(manifest.read_text())["format"] == 1
    assert PACKED_COLUMN not in pq.read_schema(staged_files(bench)[0]).names
    bench.pipeline().recover()
    bench.table.assert_holds_once(bench.topic.written)


def test_a_number_too_long_for_the_tables_column_widens_it(bench: Bench) -> None:
    """Its digits are looked at, so it is staged beside the row as well."""
    source: dict[str, Any] = {"value_schema": "id BIGINT NOT NULL, price DECIMAL(12,2)"}
    bench.table.execute("create table events (id bigint, price numeric(6,2))")
    bench.topic.write_value(b'{"id": 1, "price": 1234.50}')
    bench.pipeline(source=source).run()
    bench.topic.write_value(b'{"id": 2, "price": 1234567890.25}')
    bench.pipeline(source=source).run()
    kept = bench.table.query("select id, price::text from events order by id")
    assert kept == [(1, "1234.50"), (2, "1234567890.25")]


def test_columns_of_other_types_take_what_is_sent(bench: Bench) -> None:
    """By a temporary table, where PostgreSQL must make something else of the bytes."""
    source: dict[str, Any] = {
        "value_schema": "id INT NOT NULL, kind STRING, seen TIMESTAMP, more STRUCT<a: INT>"
    }
    bench.table.execute("create type kind as enum ('new', 'old')")
    bench.table.execute(
        "create table events (id bigint, kind kind, seen timestamptz(3), more json)"
    )
    bench.topic.write_value(
        b'{"id": 1, "kind": "old", "seen": "2026-01-31T08:30:00.123Z", "more": {"a": 7}}'
    )
    bench.pipeline(source=source).run()
    found = bench.table.query(
        "select id, kind::text, extract(epoch from seen)::text, more from events"
    )
    assert found == [(1, "old", "1769848200.123000", {"a": 7})]


def test_an_upsert_takes_packed_rows(bench: Bench) -> None:
    sink = {"mode": "upsert", "key": ["id"]}
    for name in (b"a", b"b"):
        bench.topic.write_value(b'{"id": 1, "name": "%s"}' % name)
        bench.pipeline(sink=sink).run()
    assert bench.table.query("select id, name from events") == [(1, "b")]


def test_text_that_cannot_be_stored_is_set_aside_as_ever(bench: Bench) -> None:
    bench.topic.write_value(b'{"id": 1, "name": "a\\u0000b"}')
    bench.topic.write(3)
    report = bench.pipeline(source={"on_bad_record": "dead_letter"}).run()
    assert report.head.counts.dead_letters == 1
    assert bench.table.query("select count(*) from events") == [(3,)]
    with psycopg.connect(bench.table.dsn) as connection:
        assert connection.execute("select count(*) from events_dead_letters").fetchone() == (1,)
