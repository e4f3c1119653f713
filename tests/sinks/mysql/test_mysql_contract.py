"""MariaDB and MySQL against the contract, in the ways rows can travel."""

from __future__ import annotations

import json
import struct
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, ClassVar

import pymysql
import pytest
from pymysql.cursors import DictCursor

from eo_pipeline.errors import TableReplacedError
from eo_pipeline.ledger.entry import Operation
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.mysql import MySqlSink
from eo_pipeline.testing.exactly_once import ExactlyOnceContract
from eo_pipeline.testing.going_back import GoingBackContract
from eo_pipeline.testing.identity import MannerContract
from eo_pipeline.testing.odd import RARELY_KEPT
from eo_pipeline.testing.pruning import PruningContract
from eo_pipeline.testing.upsert import UpsertContract
from tests.support.stores import ON_BOTH_SERVERS, MySqlDatabase, on_both_servers_by_chaos

#: Columns of the contract's tables that MySQL keeps as JSON, or without saying that it is UTC.
ARRAYS = {
    *("words", "numbers", "prices", "instants"),
    *("structs", "maps", "maps_of_numbers", "structs_in_lists", "lists_in_structs"),
}
FLOATS = {"negative_zero_in_four_bytes", "largest_and_smallest_in_four_bytes"}


def read_table(sink: Sink, table: str) -> list[dict[str, Any]]:
    """What another connection sees of ``table``; nothing if it is not there."""
    assert isinstance(sink, MySqlSink)
    with (
        pymysql.connect(
            host=sink.host,
            port=sink.port,
            user=sink.user,
            database=sink.database,
            charset="utf8mb4",
        ) as reader,
        reader.cursor(DictCursor) as cursor,
    ):
        if not cursor.execute("SHOW TABLES LIKE %s", (table,)):
            return []
        cursor.execute(f"SELECT * FROM `{table}`")
        return [as_written(row) for row in cursor.fetchall()]


def as_written(row: dict[str, Any]) -> dict[str, Any]:
    for name in ARRAYS & row.keys():
        row[name] = json.loads(row[name] or "null", parse_float=Decimal)
    for name in FLOATS & row.keys():
        # written in the few digits that tell it from other numbers of four bytes
        row[name] = row[name] and struct.unpack("f", struct.pack("f", row[name]))[0]
    if row.get("instant"):
        row["instant"] = row["instant"].replace(tzinfo=UTC)
    if row.get("instants"):
        row["instants"] = [text and datetime.fromisoformat(text) for text in row["instants"]]
    return row


class OnMySql(ExactlyOnceContract):
    #: they hold NaN and infinity, which MySQL has not
    unstorable: ClassVar[frozenset[str]] = frozenset({"single", "double"})
    keeps_negative_zero: ClassVar[bool] = False
    refused_values: ClassVar[frozenset[str]] = RARELY_KEPT | {"nothing but decimals"}
    refused_names: ClassVar[frozenset[str]] = frozenset(
        {"only spaces", "two hundred characters", "no character", "the character of no character"}
    )

    @pytest.fixture
    def sink(self, mysql_database: MySqlDatabase) -> Sink:
        return MySqlSink(**mysql_database.settings(table="flights"))

    def read_rows(self, sink: Sink) -> list[dict[str, Any]]:
        return read_table(sink, "flights")

    def read_dead_letters(self, sink: Sink) -> list[dict[str, Any]]:
        return read_table(sink, "flights_dead_letters")


@ON_BOTH_SERVERS
class TestAppend(MannerContract, PruningContract, GoingBackContract, OnMySql):
    """Rows by LOAD DATA, straight into the table."""

    def lose_ledger(self, sink: Sink) -> None:
        execute(sink, "DROP TABLE eo_ledger")

    def lose_newest_entry(self, sink: Sink) -> None:
        execute(sink, "DELETE FROM eo_ledger ORDER BY version DESC LIMIT 1")

    def lose_table(self, sink: Sink) -> None:
        execute(sink, "DROP TABLE flights")

    def in_another_manner(self, sink: Sink) -> Sink:
        rule = {"mode": "upsert", "key": ("id",), "sequence_by": ("_eo_checkpoint",)}
        return sink.model_copy(update=rule)

    def test_a_column_that_was_added_again_is_another(self, sink: Sink) -> None:
        """Found before: in silence, and null in every row."""
        with sink.open(self.pipeline) as session:
            self.written(session)
        execute(sink, "ALTER TABLE flights DROP COLUMN _eo_checkpoint")
        execute(sink, "ALTER TABLE flights ADD COLUMN _eo_checkpoint bigint")
        with pytest.raises(TableReplacedError, match="made anew"):
            self.look(sink)


def execute(sink: Sink, statement: str) -> None:
    assert isinstance(sink, MySqlSink)
    with (
        pymysql.connect(
            host=sink.host,
            port=sink.port,
            user=sink.user,
            database=sink.database,
            autocommit=True,
        ) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(statement)


@on_both_servers_by_chaos(but="mysql")  # which takes no LOAD DATA if nobody allowed it
class TestAppendByInsert(OnMySql):
    """Where LOAD DATA is not allowed. Rows are taken back as everywhere."""

    going_back: ClassVar[tuple[Operation, ...]] = (Operation.REWIND, Operation.REPLAY)

    @pytest.fixture
    def sink(self, mysql_database: MySqlDatabase) -> Sink:
        return MySqlSink(**mysql_database.settings(table="flights", load_data=False))


@on_both_servers_by_chaos(but="mariadb")  # tests/sinks/sql/test_sql_upsert.py is on both
class TestUpsert(UpsertContract, OnMySql):
    """Rows by way of a temporary table."""

    @pytest.fixture
    def sink(self, mysql_database: MySqlDatabase) -> Sink:
        rule = {"mode": "upsert", "key": ["id"], "sequence_by": ["_eo_checkpoint"]}
        return MySqlSink(**mysql_database.settings(table="flights", **rule))
