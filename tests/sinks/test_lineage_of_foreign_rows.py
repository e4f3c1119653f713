"""Rows that belong to no checkpoint are told too, in tables that others write to or made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pymysql
import pytest
from deltalake import write_deltalake

from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.delta import DeltaSink
from eo_pipeline.sinks.iceberg import IcebergSink
from eo_pipeline.sinks.mysql import MySqlSink
from eo_pipeline.sinks.parquet import ParquetSink
from eo_pipeline.sinks.postgres import PostgresSink
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.testing import child_of, first_entry
from tests.sinks.iceberg.test_iceberg_contract import catalog_of
from tests.support.servers import MakeDatabase
from tests.support.stores import MySqlDatabase

FOREIGN = pa.table({"id": pa.array([1, 2], pa.int64())})


class OnAnyStore:
    """``others`` writes :data:`FOREIGN`, and makes the table if it is not there."""

    @pytest.fixture
    def sink(self) -> Sink:
        raise NotImplementedError

    def others(self, sink: Any) -> None:
        raise NotImplementedError

    def told(self, sink: Sink, since: int = 0) -> list[dict[str, Any]]:
        with sink.open("p") as session:
            batches = list(session.lineage(since))
        return [row for batch in batches for row in batch.to_pylist()]

    def publish(self, sink: Sink) -> None:
        rows = pa.table({"id": [3], CHECKPOINT_COLUMN: [1]})
        with sink.open("p") as session:
            session.publish(start := first_entry("p"), StagedOutput())
            session.publish(child_of(start, 1), StagedOutput(StagedTable.in_memory(rows)))

    def test_rows_of_no_checkpoint_are_told(self, sink: Sink) -> None:
        none, first = {CHECKPOINT_COLUMN: None}, {CHECKPOINT_COLUMN: 1}
        self.others(sink)
        assert self.told(sink) == [none, none]
        self.publish(sink)
        self.others(sink)
        assert sorted(self.told(sink), key=str) == [first, *[none] * 4]
        assert self.told(sink, since=2) == [none] * 4


class TestPostgres(OnAnyStore):
    @pytest.fixture
    def sink(self, make_database: MakeDatabase) -> Sink:
        return PostgresSink.model_validate({"dsn": make_database(), "table": "t"})

    def others(self, sink: PostgresSink) -> None:
        with psycopg.connect(sink.dsn.get_secret_value()) as writer:
            writer.execute("CREATE TABLE IF NOT EXISTS t (id bigint)")
            writer.execute("INSERT INTO t (id) VALUES (1), (2)")


class TestMariaDb(OnAnyStore):
    @pytest.fixture
    def sink(self, mysql_database: MySqlDatabase) -> Sink:
        return MySqlSink(**mysql_database.settings(table="t"))

    def others(self, sink: MySqlSink) -> None:
        with (
            pymysql.connect(
                host=sink.host,
                port=sink.port,
                user=sink.user,
                database=sink.database,
                autocommit=True,
            ) as writer,
            writer.cursor() as cursor,
        ):
            cursor.execute("CREATE TABLE IF NOT EXISTS t (id bigint)")
            cursor.execute("INSERT INTO t (id) VALUES (1), (2)")


class TestDelta(OnAnyStore):
    @pytest.fixture
    def sink(self, tmp_path: Path) -> Sink:
        return DeltaSink(path=str(tmp_path / "t"))

    def others(self, sink: DeltaSink) -> None:
        write_deltalake(str(sink.root), FOREIGN, mode="append", schema_mode="merge")


class TestIceberg(OnAnyStore):
    @pytest.fixture
    def sink(self, tmp_path: Path) -> Sink:
        return IcebergSink(table="ops.t", warehouse=tmp_path / "warehouse")

    def others(self, sink: IcebergSink) -> None:
        sink.warehouse.mkdir(exist_ok=True)
        catalog = catalog_of(sink)
        catalog.create_namespace_if_not_exists("ops")
        place = sink.root.as_uri()
        catalog.create_table_if_not_exists(sink.table, FOREIGN.schema, location=place)
        catalog.load_table(sink.table).append(FOREIGN)


def test_a_file_that_was_put_into_a_checkpoints_folder_is_told(tmp_path: Path) -> None:
    sink = ParquetSink(path=str(tmp_path / "t"))
    any_store = OnAnyStore()
    assert any_store.told(sink) == []
    any_store.publish(sink)
    pq.write_table(FOREIGN, sink.root / "checkpoint=1" / "foreign.parquet")
    none = {CHECKPOINT_COLUMN: None}
    assert any_store.told(sink) == [none, none, {CHECKPOINT_COLUMN: 1}]
    assert any_store.told(sink, since=2) == [none, none]
