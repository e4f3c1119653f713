"""A table in a SQLite file that follows Kafka topics: the example of docs/writing-a-sink.md.

Its parts, each of which may be a file of its own: configuration, types, store, rows, session.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, Literal

import pyarrow as pa

from eo_pipeline.errors import CommitUnknownError, RefusedError, SchemaChangeError
from eo_pipeline.sinks.arrow import (
    Kind,
    bounded_batches,
    check_all_sent,
    json_array,
    kind_of,
    refusing,
)
from eo_pipeline.sinks.sql.config import NameRules, SqlSink, TableName, columns_list, quoted
from eo_pipeline.sinks.sql.connection import Diagnosis, SqlStore
from eo_pipeline.sinks.sql.ledger import ONE_PIPELINE_INDEX, LedgerTypes
from eo_pipeline.sinks.sql.session import SqlSession
from eo_pipeline.sinks.sql.table import AnyColumnType, Column, SqlTable
from eo_pipeline.staging.rows import StagedTable

# Configuration: fields only. It needs neither a driver nor the classes below.


class SqliteSink(SqlSink):
    """A table in the SQLite file ``path``, on a local disk, created if it does not exist.

    Dead letters go to ``<table>_dead_letters``. ``lock_timeout`` is how many seconds to wait for
    another process's transaction. Rows are appended.
    """

    type: Literal["sqlite"] = "sqlite"
    mode: Literal["append"] = "append"
    path: Path

    session_class: ClassVar[str] = f"{__name__}:SqliteSession"

    @classmethod
    def _refuse_name(cls, table: TableName) -> None:
        if table.schema is not None:
            raise ValueError("write the table alone; a file is one database")


# Types: what is stored as what. What SQLite would change in silence is refused, or kept as text
# under a declared type that says so.

#: SQLite goes by what a declared type contains: INT, TEXT, REAL, BLOB.
_DECLARED = {
    Kind.BOOLEAN: "BOOLEAN_INT",
    Kind.INT8: "INTEGER",
    Kind.INT16: "INTEGER",
    Kind.INT32: "INTEGER",
    Kind.INT64: "INTEGER",
    Kind.FLOAT: "REAL",
    Kind.DOUBLE: "REAL",
    Kind.TEXT: "TEXT",
    Kind.BINARY: "BLOB",
    Kind.DECIMAL: "DECIMAL_TEXT",
    Kind.DATE: "DATE_TEXT",
    Kind.TIMESTAMP: "TIMESTAMP_TEXT",
    Kind.TIMESTAMP_NTZ: "TIMESTAMP_TEXT",
    Kind.NESTED: "JSON_TEXT",
}


@dataclass(frozen=True)
class SqliteType(AnyColumnType):
    """A declared type: of a staged column, which a new column gets, and of a table's column."""

    declared: str
    is_computed: bool = False

    def takes(self, wire: SqliteType) -> bool:
        return self.declared == wire.declared

    def __str__(self) -> str:
        return self.declared


def sqlite_type(field: pa.Field) -> SqliteType:
    kind = kind_of(field.type)
    if kind is None:
        raise SchemaChangeError(f"SQLite has no type for {field.name!r} ({field.type})")
    return SqliteType(_DECLARED[kind])


def _check_name(name: str) -> None:
    if not name or "\0" in name:
        raise ValueError(f"{name!r} cannot be a name in SQLite")


# Store: connecting, transactions, what errors mean.


class SqliteStore(SqlStore):
    """A connection that opens and closes transactions where it is told to."""

    product = "SQLite"
    driver_error = sqlite3.Error
    mark = "?"
    ledger_types: ClassVar[LedgerTypes] = LedgerTypes(
        text=lambda _: "TEXT",
        json="TEXT",
        time="TEXT",
        now="(strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))",
    )
    sink: SqliteSink
    connection: sqlite3.Connection

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.sink.path, self.sink.lock_timeout, isolation_level=None)

    @property
    def is_open(self) -> bool:
        return True  # a file does not hang up

    @property
    def is_in_transaction(self) -> bool:
        return self.connection.in_transaction

    def diagnose(self, error: sqlite3.Error) -> Diagnosis:
        # locked, disk full, read-only; or no database at all, which another path would mend
        passes = isinstance(error, sqlite3.OperationalError) or type(error) is sqlite3.DatabaseError
        return Diagnosis(f"{self.sink.path}: {error}", is_transient=passes)

    def is_violation(self, error: sqlite3.Error, constraint: str) -> bool:  # noqa: ARG002
        # it names the column of the index, which no other constraint is on alone
        return str(error).endswith("UNIQUE constraint failed: eo_ledger.target_table")

    def make_ledger(self, ledger: TableName) -> None:
        self.execute("PRAGMA journal_mode = WAL")  # readers do not wait for us
        self.execute("PRAGMA synchronous = FULL")  # a commit is on the disk
        self.execute("PRAGMA foreign_keys = ON")  # off unless asked for
        super().make_ledger(ledger)
        self.execute(ONE_PIPELINE_INDEX.format(ledger=ledger.sql))

    def parameters(self, values: Sequence[Any]) -> list[Any]:
        return [str(value) if isinstance(value, datetime) else value for value in values]

    def begin(self) -> None:
        # IMMEDIATE: wait for a rival here, not with the rows already written
        self.execute("BEGIN IMMEDIATE")

    def send_commit(self) -> None:
        try:
            self.execute("COMMIT")
        except sqlite3.Error as error:
            if self.is_in_transaction:
                raise  # it said no, and the transaction is still ours to roll back
            raise CommitUnknownError(f"COMMIT failed: {error}") from error


# Rows: the table, and staged rows into it.


class SqliteTable(SqlTable[SqliteType, SqliteType]):
    names: ClassVar[NameRules] = NameRules("SQLite", _check_name, str.lower)
    wire_type = staticmethod(sqlite_type)
    store: SqliteStore

    def exists(self) -> bool:
        return bool(self.columns())

    def columns(self) -> dict[str, SqliteType]:
        rows = self.store.rows("SELECT name, type FROM pragma_table_info(?)", self.name.name)
        return {self.names.fold(name): SqliteType(declared) for name, declared in rows}

    def create(self, wires: Mapping[str, SqliteType], key: Sequence[str]) -> None:  # noqa: ARG002
        columns = ", ".join(f"{quoted(name)} {wire.declared}" for name, wire in wires.items())
        self.store.execute(f"CREATE TABLE {self.name.sql} ({columns})")

    def add(self, wires: Mapping[str, SqliteType]) -> None:
        for name, wire in wires.items():
            column = f"{quoted(name)} {wire.declared}"
            self.store.execute(f"ALTER TABLE {self.name.sql} ADD COLUMN {column}")

    def insert(self, columns: Sequence[Column[SqliteType, SqliteType]], staged: StagedTable) -> int:
        names, marks = columns_list(c.name for c in columns), ", ".join("?" * len(columns))
        statement = f"INSERT INTO {self.name.sql} ({names}) VALUES ({marks})"
        sent = taken = 0
        for batch in bounded_batches(staged):
            values = [_values(c.name, c.wire.declared, batch.column(c.name)) for c in columns]
            cursor = self.store.connection.executemany(statement, zip(*values, strict=True))
            sent, taken = sent + batch.num_rows, taken + cursor.rowcount
        check_all_sent(self.name, sent, staged)
        return taken


def _values(name: str, declared: str, column: pa.Array) -> list[Any]:
    """Python values as the driver takes them. What it would change in silence is refused."""
    if declared == "REAL" and any(v is not None and math.isnan(v) for v in column.to_pylist()):
        raise RefusedError(f"column {name!r} holds NaN, which SQLite would store as NULL")
    with refusing(name, "SQLite"):
        if not declared.endswith("_TEXT"):
            return list(column.to_pylist())
        texts = json_array(column).to_pylist()
    return texts if declared == "JSON_TEXT" else [text and text.strip('"') for text in texts]


# Session: the steps of the protocol are SqlSession's.


class SqliteSession(SqlSession):
    store_class = SqliteStore
    table_class = SqliteTable
