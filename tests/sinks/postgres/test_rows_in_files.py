"""Rows in files that go into PostgreSQL: as columns, and as an earlier release encoded them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from eo_pipeline.errors import RefusedError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.sinks.postgres import session as rows_module
from eo_pipeline.sinks.postgres.session import FORM, HEADER, TRAILER, _encoded, _Encoder, bytes_of
from eo_pipeline.sinks.postgres.types import ColumnType, wire_type
from eo_pipeline.sinks.sql.table import Column
from eo_pipeline.staging.manifest import Manifest
from eo_pipeline.staging.rows import PACKED_COLUMN, StagedFile, StagedOutput, StagedTable
from eo_pipeline.testing import child_of, first_entry
from tests.sinks.postgres.postgres_world import World, world
from tests.support.engine import Bench

__all__ = ["world"]

ROWS = pa.table(
    {
        "id": pa.array([1, 2, None], pa.int64()),
        "name": ["a", "é\U0001f600", None],
        "price": pa.array([0.5, -0.0, None]),
        CHECKPOINT_COLUMN: [1, 1, 1],
    }
)


def columns_of(table: pa.Table) -> list[Any]:
    some = ColumnType("", "", "")
    return [Column(field.name, wire_type(field), some) for field in table.schema]


def encoded_rows(table: pa.Table, folder: Path) -> StagedTable:
    """Staged as the earlier release did: each row one value, in PostgreSQL's form."""
    rows = []
    for number in range(table.num_rows):
        [batch] = table.slice(number, 1).combine_chunks().to_batches()
        encoder = _Encoder.of(columns_of(table))
        encoder.pgpq.write_header()
        row = encoder.pgpq.write_batch(encoder.encodable(batch)) + encoder.pgpq.finish()
        rows.append(bytes(row).removesuffix(TRAILER))
    file = folder / "rows.parquet"
    pq.write_table(pa.table({PACKED_COLUMN: pa.array(rows, pa.binary())}), file)
    files = (StagedFile(file.name, file.stat().st_size, len(rows)),)
    return StagedTable(table.schema, folder, files if rows else (), form=FORM)


def test_rows_that_an_earlier_release_encoded_are_committed(world: World, tmp_path: Path) -> None:
    world.publish(world.sink(), StagedTable.in_memory(ROWS))
    world.publish(world.sink(table="other"), encoded_rows(ROWS, tmp_path), pipeline="other")
    shown = "SELECT id, name, price::text FROM {} ORDER BY id"
    assert len(world.rows(shown.format("t"))) == 3
    assert world.rows(shown.format("other")) == world.rows(shown.format("t"))


def test_their_manifest_says_so(tmp_path: Path) -> None:
    """By its format, so that an older release does not read it."""
    staged = StagedOutput(encoded_rows(ROWS, tmp_path))
    manifest = Manifest(child_of(first_entry("p"), staged), staged)
    written = manifest.to_json()
    assert written["format"] == 2
    read = Manifest.from_json(written, tmp_path)
    assert read.output.rows is not None
    assert read.output.rows.form == FORM


def test_a_form_of_another_release_is_refused(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_module, "FORM", "postgres-copy-9")
    with pytest.raises(RefusedError, match="in the form postgres-copy-1, and this release reads"):
        world.publish(world.sink(), encoded_rows(ROWS, tmp_path))
    assert world.is_untouched()


def test_rows_in_the_middle_of_a_batch_are_sent_alone() -> None:
    rows = pa.array([b"a", b"bc", b"", b"def"], pa.binary())
    assert bytes(bytes_of(rows)) == b"abcdef"
    assert bytes(bytes_of(rows.slice(1, 2))) == b"bc"
    assert bytes(bytes_of(rows.slice(2, 0))) == b""


def test_no_rows_are_a_header_and_a_trailer(tmp_path: Path) -> None:
    none = encoded_rows(ROWS.slice(0, 0), tmp_path)
    sent = b"".join(bytes(part) for _, part in _encoded(columns_of(ROWS), none))
    assert sent == HEADER + TRAILER


def test_a_number_too_long_for_the_tables_column_widens_it(bench: Bench) -> None:
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


def test_an_upsert_takes_rows_from_files(bench: Bench) -> None:
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
