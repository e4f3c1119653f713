"""Several tables of each store that can, against the contract."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any, ClassVar

import psycopg
import pymysql
import pytest
import redis
from psycopg.rows import dict_row
from pyiceberg.table import StaticTable

from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.errors import RefusedError
from eo_pipeline.sinks.iceberg import IcebergSink
from eo_pipeline.sinks.kafka import KafkaSink
from eo_pipeline.sinks.mysql import MySqlSink
from eo_pipeline.sinks.postgres import PostgresSink
from eo_pipeline.sinks.redis import RedisSink
from eo_pipeline.sinks.session import SinkSession
from eo_pipeline.sinks.tables import TablesSink
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.testing.contract import COMMITTED
from eo_pipeline.testing.staging import dead_letters
from eo_pipeline.testing.tables import TablesContract
from tests.sinks.redis.redis_world import command, tables_in
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


class TestRedis(TablesContract):
    """Hashes in one table, JSON in the other."""

    goes_back: ClassVar[bool] = False
    forms: ClassVar[Mapping[str, str]] = {"orders": "hash", "order_lines": "json"}
    url: str

    @pytest.fixture
    def sink(self, redis_url: str) -> TablesSink:
        self.url = redis_url
        return self.together(
            lambda name: RedisSink.model_validate(
                {"url": redis_url, "key": "{id}", "prefix": name, "as": self.forms[name]}
            )
        )

    def read_tables(self, sink: TablesSink) -> Tables:
        return tables_in(self.url, self.pipeline, self.forms)

    def with_origin(self, staged: StagedOutput) -> StagedOutput:
        """The rows as of one partition, and a dead letter for each table."""
        tables = {}
        for name, output in staged.tables.items():
            assert output.rows is not None
            assert output.rows.table is not None
            rows = output.rows.table
            for column, value in {"_eo_topic": "t", "_eo_partition": 0}.items():
                rows = rows.append_column(column, [[value] * rows.num_rows])
            tables[name] = StagedOutput(StagedTable.in_memory(rows), dead_letters(2, [b"{"]))
        return StagedOutput(tables=tables)

    @pytest.mark.parametrize(
        ("spoil", "words"),
        [
            (["RPUSH", "{contract}:order_lines:2003", "mine"], "lines:2003' holds a list"),
            (["RPUSH", "{contract}:eo_dead_letters:order_lines", "mine"], "lines' holds a list"),
            (
                ["XADD", "{contract}:eo_dead_letters:order_lines", f"{2**64 - 1}-1", "f", "v"],
                "lines' holds a full stream",
            ),
            (
                ["SET", "{contract}:order_lines:2003", '{"_eo_topic":"t","_eo_partition":1}'],
                "lines:2003' came from t partition 1, the new one from t partition 0",
            ),
        ],
    )
    def test_what_the_last_table_refuses_is_written_to_none(
        self, sink: TablesSink, session: SinkSession, spoil: Sequence[str], words: str
    ) -> None:
        """Redis takes nothing of a script back: it asks for all tables before it writes."""
        head = self.forward(session, self.start(session))
        before = self.visible(sink)
        staged = self.with_origin(self.staged(2, self.names))
        entry = self.entry(head, session, staged)
        with redis.Redis.from_url(self.url) as client:
            command(client, *spoil)
            with pytest.raises(RefusedError, match=words):
                session.publish(entry, staged)
            assert client.exists("{contract}:orders:2000", "{contract}:eo_dead_letters:orders") == 0
            client.delete(spoil[1])
        assert self.visible(sink) == before
        assert session.publish(entry, staged) is COMMITTED
        first, last = self.names
        assert self.visible(sink) == self.expected(**{first: [1, 2], last: [1, 2]})

    def test_a_reader_in_multi_sees_one_version_of_all_tables(
        self, sink: TablesSink, session: SinkSession
    ) -> None:
        seen: list[tuple[int, int]] = []
        ended = Event()

        def read() -> None:
            with redis.Redis.from_url(self.url) as client:
                while not ended.is_set():
                    transaction = client.pipeline(transaction=True)
                    transaction.hget("{contract}:eo_ledger", "head").dbsize()
                    head, keys = transaction.execute()
                    seen.append((int(head.split()[0]), keys))

        head = self.forward(session, self.start(session))
        with ThreadPoolExecutor() as pool:
            reader = pool.submit(read)
            try:
                for _ in range(30):
                    head = self.forward(session, head)
            finally:
                ended.set()
            reader.result()
        beside = 3  # the ledger, and the columns of each table
        rows = len(self.names) * self.rows
        assert len({version for version, _ in seen}) > 5
        assert all(keys == beside + version * rows for version, keys in seen)
