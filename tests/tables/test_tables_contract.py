"""Several tables of each store that can, against the contract."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import pymysql
import pytest
from psycopg.rows import dict_row
from pyiceberg.table import StaticTable

from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.sinks.iceberg import IcebergSink
from eo_pipeline.sinks.kafka import KafkaSink
from eo_pipeline.sinks.mysql import MySqlSink
from eo_pipeline.sinks.postgres import PostgresSink
from eo_pipeline.sinks.tables import TablesSink
from eo_pipeline.testing.tables import TablesContract
from tests.support.servers import MakeTopic
from tests.support.stores import MySqlDatabase
from tests.tables.test_kafka_tables import committed_values

Tables = Mapping[str, Sequence[Mapping[str, Any]]]


class TestPostgres(TablesContract):
    @pytest.fixture
    def sink(self, database: str) -> TablesSink:
        return self.together(
            lambda name: PostgresSink.model_validate({"dsn": database, "table": name})
        )

    def read_tables(self, sink: TablesSink) -> Tables:
        member = sink.members[self.names[0]]
        assert isinstance(member, PostgresSink)
        with psycopg.connect(member.dsn.get_secret_value(), row_factory=dict_row) as reader:
            reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            there = reader.execute(
                "select tablename as name from pg_tables where tablename = any(%s)",
                [[*sink.members]],
            )
            return {
                t["name"]: reader.execute(f"select * from {t['name']}".encode()).fetchall()
                for t in there.fetchall()
            }


class TestMySql(TablesContract):
    database: MySqlDatabase

    @pytest.fixture
    def sink(self, mysql_database: MySqlDatabase) -> TablesSink:
        self.database = mysql_database
        settings = mysql_database.settings()
        del settings["type"]
        return self.together(lambda name: MySqlSink.model_validate({**settings, "table": name}))

    def read_tables(self, sink: TablesSink) -> Tables:
        found: dict[str, Sequence[Mapping[str, Any]]] = {}
        with self.database.connect() as reader, reader.cursor(pymysql.cursors.DictCursor) as cursor:
            cursor.execute("start transaction with consistent snapshot")
            for name in sink.members:
                with contextlib.suppress(pymysql.ProgrammingError):  # no such table
                    cursor.execute(f"select * from {name}")
                    found[name] = cursor.fetchall()
        return found


class TestIceberg(TablesContract):
    #: what differs from a database
    short_tier: ClassVar[frozenset[str]] = frozenset(
        {
            "test_a_kill_shows_all_tables_or_none_and_a_retry_lands_once",
            "test_one_rewind_and_one_replay_are_of_all_tables",
        }
    )
    warehouse: Path

    @pytest.fixture
    def sink(self, tmp_path: Path) -> TablesSink:
        self.warehouse = tmp_path
        shared = {"warehouse": str(tmp_path), "ledger_table": "sales.contract_eo_ledger"}
        return self.together(
            lambda name: IcebergSink.model_validate({**shared, "table": f"sales.{name}"})
        )

    def read_tables(self, sink: TablesSink) -> Tables:
        with contextlib.closing(sqlite3.connect(self.warehouse / "catalog.db")) as catalog:
            places = dict(
                catalog.execute(
                    "select table_name, metadata_location from iceberg_tables"
                ).fetchall()
            )
        return {
            name: StaticTable.from_metadata(places[name]).scan().to_arrow().to_pylist()
            for name in sink.members
            if name in places
        }


class TestKafka(TablesContract):
    short_tier: ClassVar[frozenset[str]] = frozenset(
        {"test_a_kill_shows_all_tables_or_none_and_a_retry_lands_once"}
    )
    whole: ClassVar[bool] = False
    goes_back: ClassVar[bool] = False
    kafka: str

    @pytest.fixture
    def sink(self, kafka: EmbeddedKafka, make_topic: MakeTopic) -> TablesSink:
        self.kafka = kafka.start().bootstrap_servers
        topics = {name: make_topic() for name in self.names}
        ledger = f"{next(iter(topics.values()))}._eo_ledger"
        shared = {"bootstrap_servers": self.kafka, "ledger_topic": ledger}
        return self.together(
            lambda name: KafkaSink.model_validate({**shared, "topic": topics[name]})
        )

    def read_tables(self, sink: TablesSink) -> Tables:
        topics = {name: member.table_name for name, member in sink.members.items()}
        return {name: committed_values(self.kafka, topic) for name, topic in topics.items()}
