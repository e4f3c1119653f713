"""PostgreSQL against the contract, in the ways its rows can travel."""

from __future__ import annotations

import struct
from typing import Any, ClassVar

import psycopg
import pytest
from psycopg.rows import dict_row

from eo_pipeline.errors import TableReplacedError
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.postgres import PostgresSink
from eo_pipeline.testing.exactly_once import ExactlyOnceContract
from eo_pipeline.testing.going_back import GoingBackContract
from eo_pipeline.testing.identity import MannerContract
from eo_pipeline.testing.odd import RARELY_KEPT
from eo_pipeline.testing.pruning import PruningContract
from eo_pipeline.testing.upsert import UpsertContract

FLOATS = {"negative_zero_in_four_bytes", "largest_and_smallest_in_four_bytes"}


def read_table(sink: Sink, table: str) -> list[dict[str, Any]]:
    """What another connection sees of ``table``; nothing if it is not there."""
    assert isinstance(sink, PostgresSink)
    with psycopg.connect(sink.dsn.get_secret_value(), row_factory=dict_row) as reader:
        try:
            rows = reader.execute(f"SELECT * FROM {table}".encode()).fetchall()
        except psycopg.errors.UndefinedTable:
            return []
    return [{n: _written(v) if n in FLOATS else v for n, v in row.items()} for row in rows]


def _written(value: float | None) -> Any:
    """It is shown in the few digits that tell it from other numbers of four bytes."""
    return value if value is None else struct.unpack("f", struct.pack("f", value))[0]


REPLACED = "DROP TABLE flights; CREATE TABLE flights (id bigint, _eo_checkpoint bigint)"
READDED = (
    "ALTER TABLE flights DROP COLUMN _eo_checkpoint; "
    "ALTER TABLE flights ADD COLUMN _eo_checkpoint bigint"
)


class OnPostgres(ExactlyOnceContract):
    refused_values: ClassVar[frozenset[str]] = RARELY_KEPT | {"the character of no character"}
    refused_names: ClassVar[frozenset[str]] = frozenset(
        {
            "more than sixty-three bytes",
            "more bytes than characters",
            "two hundred characters",
            "no character",
            "the character of no character",
        }
    )

    @pytest.fixture
    def sink(self, database: str) -> Sink:
        return PostgresSink.model_validate({"dsn": database, "table": "flights"})

    def read_rows(self, sink: Sink) -> list[dict[str, Any]]:
        return read_table(sink, "flights")

    def read_dead_letters(self, sink: Sink) -> list[dict[str, Any]]:
        return read_table(sink, "flights_dead_letters")

    def lose_ledger(self, sink: Sink) -> None:
        self.execute(sink, "DROP TABLE eo_ledger")

    def lose_newest_entry(self, sink: Sink) -> None:
        newest = "(SELECT max(version) FROM eo_ledger)"
        self.execute(sink, f"DELETE FROM eo_ledger WHERE version = {newest}")

    def lose_table(self, sink: Sink) -> None:
        self.execute(sink, "DROP TABLE flights")

    def execute(self, sink: Sink, statement: str) -> None:
        assert isinstance(sink, PostgresSink)
        with psycopg.connect(sink.dsn.get_secret_value()) as admin:
            admin.execute(statement.encode())


class TestAppend(PruningContract, GoingBackContract, OnPostgres, MannerContract):
    """Rows straight into the table."""

    def in_another_manner(self, sink: Sink) -> Sink:
        assert isinstance(sink, PostgresSink)
        changes = {"dsn": sink.dsn, "table": sink.table, "mode": "upsert", "key": ["id"]}
        return PostgresSink.model_validate(changes | {"sequence_by": ["_eo_checkpoint"]})

    @pytest.mark.parametrize("anew", [REPLACED, READDED], ids=["table", "column"])
    def test_a_table_made_anew_is_another(self, sink: Sink, anew: str) -> None:
        """Found before: the column was added again in silence, null in every row."""
        with sink.open(self.pipeline) as session:
            self.written(session)
        self.execute(sink, anew)
        with pytest.raises(TableReplacedError, match="made anew"):
            self.look(sink)

    @pytest.mark.parametrize(
        "change",
        [
            "TRUNCATE flights",
            "ALTER TABLE flights RENAME TO f; ALTER TABLE f RENAME TO flights",
            "CREATE TABLE f (LIKE flights INCLUDING ALL); INSERT INTO f SELECT * FROM flights; "
            "DROP TABLE flights; ALTER TABLE f RENAME TO flights",
        ],
        ids=["emptied", "renamed", "copied"],
    )
    def test_what_is_done_to_a_table_leaves_it_the_table(self, sink: Sink, change: str) -> None:
        with sink.open(self.pipeline) as session:
            head = self.written(session)
        self.execute(sink, change)
        found = self.look(sink)
        assert found is not None
        assert found.id == head.id


class TestUpsert(UpsertContract, OnPostgres):
    """Rows by way of a temporary table, in a schema of their own."""

    #: what differs from rows that are appended
    short_tier: ClassVar[frozenset[str]] = frozenset(
        {
            "test_every_type_comes_back_equal",
            "test_what_is_published_is_as_much_as_the_entry_says",
            "test_of_two_runs_at_once_only_the_winners_rows_are_there",
            "test_a_kill_leaves_nothing_and_a_retry_lands_once",
            "test_what_is_refused_leaves_nothing",
            *(name for name in vars(UpsertContract) if name.startswith("test_")),
        }
    )

    @pytest.fixture
    def sink(self, database: str) -> Sink:
        with psycopg.connect(database) as admin:
            admin.execute("CREATE SCHEMA ops")
        settings = {"mode": "upsert", "key": ["id"], "sequence_by": ["_eo_checkpoint"]}
        return PostgresSink.model_validate({"dsn": database, "table": "ops.flights", **settings})

    def read_rows(self, sink: Sink) -> list[dict[str, Any]]:
        return read_table(sink, "ops.flights")

    def read_dead_letters(self, sink: Sink) -> list[dict[str, Any]]:
        return read_table(sink, "ops.flights_dead_letters")
