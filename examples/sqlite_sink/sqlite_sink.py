"""A table in a SQLite file that follows Kafka topics: the example of docs/writing-a-sink.md."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal

import pyarrow as pa
from pydantic import PositiveFloat

from eo_pipeline import errors
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.sinks.arrow import json_array
from eo_pipeline.sinks.config import Guarantee, Sink
from eo_pipeline.sinks.rows import bounded_batches, check_all_sent
from eo_pipeline.sinks.sql.frame import SqlSession
from eo_pipeline.sinks.sql.going_back import condition_of
from eo_pipeline.sinks.sql.ledger import LEDGER_TABLE, LedgerStatements, row_of
from eo_pipeline.sinks.sql.lineage import read_lineage
from eo_pipeline.sinks.sql.names import quoted
from eo_pipeline.sinks.sql.owner import Target
from eo_pipeline.staging.rows import StagedOutput, StagedTable

# The primary key lets one transaction take a version; the foreign key lets it do so only on top of
# the very entry it was planned from. Together they are the compare-and-swap.
_SETUP = f"""
PRAGMA journal_mode = WAL;  -- readers do not wait for us
PRAGMA synchronous = FULL;  -- a commit is on the disk
PRAGMA foreign_keys = ON;   -- off unless asked for
CREATE TABLE IF NOT EXISTS {LEDGER_TABLE} (
    pipeline TEXT NOT NULL, ledger_id TEXT NOT NULL, version INTEGER NOT NULL,
    transaction_id TEXT NOT NULL, parent_version INTEGER, parent_transaction_id TEXT,
    operation TEXT NOT NULL, target INTEGER, target_table TEXT NOT NULL, offsets TEXT NOT NULL,
    ranges TEXT NOT NULL, topic_ids TEXT NOT NULL, counts TEXT NOT NULL, run_id TEXT NOT NULL,
    started_at TEXT NOT NULL, details TEXT NOT NULL,
    committed_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    PRIMARY KEY (pipeline, version),
    UNIQUE (pipeline, version, transaction_id),
    FOREIGN KEY (pipeline, parent_version, parent_transaction_id)
        REFERENCES {LEDGER_TABLE} (pipeline, version, transaction_id),
    CHECK ((version = 0) = (parent_version IS NULL))
)
"""

# SQLite goes by what a declared type contains: INT, TEXT, REAL, BLOB.
_DECLARED: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (pa.types.is_boolean, "BOOLEAN_INT"),
    (pa.types.is_integer, "INTEGER"),
    (pa.types.is_floating, "REAL"),
    (pa.types.is_string, "TEXT"),
    (pa.types.is_binary, "BLOB"),
    (pa.types.is_decimal, "DECIMAL_TEXT"),
    (pa.types.is_date, "DATE_TEXT"),
    (pa.types.is_timestamp, "TIMESTAMP_TEXT"),
    (pa.types.is_nested, "JSON_TEXT"),
)


class SqliteSink(Sink):
    """A table in the SQLite file ``path``, on a local disk, created if it does not exist.

    Dead letters go to ``<table>_dead_letters``. ``lock_timeout`` is how many seconds to wait for
    another process's transaction.
    """

    type: Literal["sqlite"] = "sqlite"
    path: Path
    table: str
    lock_timeout: PositiveFloat = 30.0

    guarantee: ClassVar[Guarantee] = Guarantee.EXACTLY_ONCE
    session_class: ClassVar[str] = f"{__name__}:SqliteSession"

    @property
    def table_name(self) -> str:
        return self.table


class SqliteSession(SqlSession):
    """The steps of the protocol, in SQLite's words; SqlSession keeps their order."""

    driver_error = sqlite3.Error

    def __init__(self, sink: SqliteSink, pipeline: str) -> None:
        super().__init__(pipeline)
        self._sink = sink
        try:
            # isolation_level=None: transactions begin and end where we say so
            self._connection = sqlite3.connect(sink.path, sink.lock_timeout, isolation_level=None)
            self._connection.executescript(_SETUP)
            Target(pipeline, sink.table, self._ledger).check(self._rows)
        except sqlite3.Error as error:
            raise errors.SinkUnavailableError(f"{sink.path} cannot be opened: {error}") from error

    def close(self) -> None:
        self._connection.close()

    def check_going_back(self, entry: LedgerEntry) -> None:
        condition_of(entry)  # any rows can be deleted; without a target it refuses

    def lineage(self, since: int = 0) -> Iterator[pa.RecordBatch]:
        table, columns = quoted(self._sink.table), self._columns(self._sink.table)
        try:  # one query, one snapshot; on a connection of its own, since this one may publish
            with closing(sqlite3.connect(self._sink.path)) as reader:
                yield from read_lineage(reader.cursor(), table, columns, since)
        except sqlite3.Error as error:
            raise self._explained(error) from error

    @property
    def _ledger(self) -> LedgerStatements:
        return LedgerStatements(LEDGER_TABLE, mark="?")

    def _rows(self, statement: str, *parameters: Any) -> list[Any]:
        try:
            return self._connection.execute(statement, parameters).fetchall()
        except sqlite3.Error as error:
            raise self._explained(error) from error

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        # IMMEDIATE: wait for a rival here, not with the rows already written
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def _write(self, entry: LedgerEntry, staged: StagedOutput) -> None:
        letters = f"{self._sink.table}_dead_letters"
        taken_back = condition_of(entry)
        for name, rows in ((self._sink.table, staged.rows), (letters, staged.dead_letters)):
            if taken_back and self._columns(name):
                self._connection.execute(f"DELETE FROM {quoted(name)} WHERE {taken_back}")
            if rows is not None:
                self._append(name, rows)

    def _append(self, name: str, staged: StagedTable) -> None:
        wanted = {field.name: _declared(field) for field in staged.schema}
        self._fit(name, wanted)
        columns, marks = ", ".join(map(quoted, wanted)), ", ".join("?" * len(wanted))
        insert = f"INSERT INTO {quoted(name)} ({columns}) VALUES ({marks})"
        sent = 0
        for piece in bounded_batches(staged):
            values = [_values(field, piece.column(field.name)) for field in piece.schema]
            self._connection.executemany(insert, zip(*values, strict=True))
            sent += piece.num_rows
        check_all_sent(name, sent, staged)

    def _fit(self, name: str, wanted: dict[str, str]) -> None:
        """Make the table, or widen it. In SQLite that is part of the transaction."""
        there = self._columns(name)
        for column, declared in wanted.items():
            if column in there and there[column] != declared:
                raise errors.SchemaChangeError(f"{name}.{column} was {there[column]}: {declared}")
        absent = [f"{quoted(c)} {declared}" for c, declared in wanted.items() if c not in there]
        changes = [f"ALTER TABLE {quoted(name)} ADD COLUMN {column}" for column in absent]
        for change in changes if there else [f"CREATE TABLE {quoted(name)} ({', '.join(absent)})"]:
            self._connection.execute(change)

    def _columns(self, name: str) -> dict[str, str]:
        rows = self._connection.execute("SELECT name, type FROM pragma_table_info(?)", (name,))
        return dict(rows.fetchall())

    def _insert(self, entry: LedgerEntry) -> None:
        row = row_of(entry, self._sink.table)
        texts = [str(v) if v is entry.started_at else v for v in row]
        self._connection.execute(self._ledger.insert, texts)

    def _commit(self, entry: LedgerEntry) -> None:
        try:
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            if self._connection.in_transaction:
                raise  # it said no, and the transaction is still ours to roll back
            raise errors.CommitUnknownError(f"COMMIT of {entry.id} failed: {error}") from error

    def _explained(self, error: sqlite3.Error) -> errors.EoPipelineError:
        if isinstance(error, sqlite3.OperationalError):  # locked, disk full, read-only
            return errors.SinkUnavailableError(f"{self._sink.path}: {error}. Nothing was written.")
        return errors.RefusedError(f"{self._sink.table}: {error}. Nothing was written.")


def _declared(field: pa.Field) -> str:
    declared = next((name for test, name in _DECLARED if test(field.type)), None)
    if declared is None:
        raise errors.SchemaChangeError(f"SQLite has no type for {field.name!r} ({field.type})")
    return declared


def _values(field: pa.Field, column: pa.Array) -> list[Any]:
    """Python values as the driver takes them. What it would change in silence is refused."""
    declared = _declared(field)
    if declared == "REAL" and any(v is not None and math.isnan(v) for v in column.to_pylist()):
        raise errors.RefusedError(
            f"column {field.name!r} holds NaN, which SQLite would store as NULL"
        )
    if not declared.endswith("_TEXT"):
        return list(column.to_pylist())
    texts = json_array(column).to_pylist()
    return texts if declared == "JSON_TEXT" else [text and text.strip('"') for text in texts]
