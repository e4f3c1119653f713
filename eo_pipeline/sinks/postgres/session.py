"""One pipeline's connection to PostgreSQL."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pyarrow as pa
from psycopg.pq import TransactionStatus

from eo_pipeline.errors import CommitUnknownError, EoPipelineError, SinkUnavailableError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, LedgerEntry
from eo_pipeline.sinks.postgres import errors
from eo_pipeline.sinks.postgres.connect import connect
from eo_pipeline.sinks.postgres.ledger import ONE_PIPELINE, ensure_ledger, schema_of
from eo_pipeline.sinks.postgres.load import append
from eo_pipeline.sinks.postgres.sink import PostgresSink
from eo_pipeline.sinks.postgres.tables import Connection, Table
from eo_pipeline.sinks.sql.dead_letters import DeadLetters
from eo_pipeline.sinks.sql.frame import SqlSession
from eo_pipeline.sinks.sql.going_back import condition_of, refuse_upserted
from eo_pipeline.sinks.sql.ledger import LEDGER_TABLE, LedgerStatements, row_of
from eo_pipeline.sinks.sql.lineage import read_lineage
from eo_pipeline.sinks.sql.names import TableName, quoted
from eo_pipeline.sinks.sql.owner import Target, refuse_lost_table
from eo_pipeline.staging.rows import StagedOutput

log = logging.getLogger(__name__)

#: The first version of the server that can end a transaction by its age.
_TRANSACTION_TIMEOUT_SINCE = 170000

#: A transaction that stops sending belongs to a process that sleeps or is gone; it may hold the
#: ledger's key, so it is ended. A server before 17 has only a limit on each statement.
_LIMITS = """
SELECT set_config('lock_timeout', %(lock)s, true),
       set_config('idle_in_transaction_session_timeout', %(lock)s, true),
       set_config('statement_timeout', %(transaction)s, true),
       set_config('synchronous_commit', CASE current_setting('synchronous_commit')
                  WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, true)
"""
_TRANSACTION_LIMIT = "SELECT set_config('transaction_timeout', %s, true)"


class PostgresSession(SqlSession):
    """See :class:`~eo_pipeline.sinks.sql.frame.SqlSession` for the protocol.

    Here the loser of two publishers waits at the ledger's primary key until the winner has
    committed, and is then told of a unique violation; a parent that is not in the ledger is told
    by the foreign key. Both roll back.
    """

    driver_error = psycopg.Error

    def __init__(self, sink: PostgresSink, pipeline: str) -> None:
        super().__init__(pipeline)
        self._sink = sink
        self._connection = self._connect()
        try:
            schema = schema_of(self._connection, sink.target)
            self._table = sink.target.within(schema)
            self._dead_letters = sink.dead_letters.within(schema)
            ledger = self._table.sibling(LEDGER_TABLE)
            self._statements = LedgerStatements(ledger.sql)
            ensure_ledger(self._connection, ledger, _milliseconds(sink.lock_timeout))
            self._target = Target(pipeline, str(self._table), self._statements)
            self._target.check(self._rows)
        except psycopg.Error as error:
            self.close()
            raise errors.while_opening(error, str(sink.target)) from error
        except EoPipelineError:
            self.close()
            raise

    def close(self) -> None:
        self._connection.close()

    def _connect(self) -> Connection:
        sink = self._sink
        application = f"eo-pipeline {self.pipeline}"
        return connect(sink.dsn.get_secret_value(), application, sink.connect_timeout)

    def check_going_back(self, entry: LedgerEntry) -> None:
        condition_of(entry)
        if self._sink.upsert:
            refuse_upserted(self._table, entry)

    def reset(self, *, dry_run: bool) -> tuple[str, ...]:
        """In one transaction. The tables stay, and with them any row that carries no checkpoint."""
        drops = []
        try:
            with self._transaction():
                for name in (self._table, self._dead_letters):
                    if CHECKPOINT_COLUMN in Table(self._connection, name).columns():
                        where = f"{quoted(CHECKPOINT_COLUMN)} IS NOT NULL"
                        drops.append(f"{self._drop(name, where, dry_run):,} rows of {name}")
                ledger = self._table.sibling(LEDGER_TABLE)
                versions = self._drop(ledger, "pipeline = %s", dry_run, self.pipeline)
                drops.append(f"{versions:,} versions of the ledger in {ledger}")
                self._connection.execute("COMMIT")
        except psycopg.Error as error:
            raise errors.while_opening(error, str(self._table)) from error
        return tuple(drops)

    def _drop(self, table: TableName, condition: str, dry_run: bool, *parameters: Any) -> int:
        """How many rows were deleted, or would be."""
        act = "SELECT count(*)" if dry_run else "DELETE"
        done = self._connection.execute(
            f"{act} FROM {table.sql} WHERE {condition}".encode(), parameters or None
        )
        return int(done.fetchall()[0][0]) if dry_run else done.rowcount

    def lineage(self, since: int = 0) -> Iterator[pa.RecordBatch]:
        """On a connection of its own, in one snapshot; rows wait on the server until asked for."""
        try:
            with closing(self._connect()) as connection:
                connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                columns = Table(connection, self._table).columns()
                cursor = connection.cursor("lineage")  # named: kept by the server
                yield from read_lineage(cursor, self._table.sql, columns, since)
        except psycopg.Error as error:
            raise errors.while_opening(error, str(self._table)) from error

    # The protocol's steps.

    @property
    def _ledger(self) -> LedgerStatements:
        return self._statements

    def _connected(self) -> bool:
        return not self._connection.closed

    def _alive(self) -> Connection:
        """The connection, or a new one in place of one that died."""
        if not self._connected():
            log.info("%s: connection to PostgreSQL lost, connecting again", self.pipeline)
            self._connection = self._connect()
        return self._connection

    def _rows(self, statement: str, *parameters: Any) -> list[Any]:
        try:
            return self._answer(statement, *parameters)
        except psycopg.Error as error:
            if self._connected():
                raise errors.while_opening(error, str(self._table)) from error
        # a connection shows that it died only when it is used; a question can be asked twice
        try:
            return self._answer(statement, *parameters)
        except psycopg.Error as error:
            raise errors.while_opening(error, str(self._table)) from error

    def _answer(self, statement: str, *parameters: Any) -> list[Any]:
        return self._alive().execute(statement.encode(), parameters).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        connection = self._alive()
        connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
        try:
            self._limit(connection)
            yield
        finally:
            _roll_back(connection)

    def _limit(self, connection: Connection) -> None:
        """Bound what this transaction can hold up, and for how long."""
        lock = f"{_milliseconds(self._sink.lock_timeout)}ms"
        whole = f"{_milliseconds(self._sink.transaction_timeout)}ms"
        connection.execute(_LIMITS, {"lock": lock, "transaction": whole})
        if connection.info.server_version >= _TRANSACTION_TIMEOUT_SINCE:
            connection.execute(_TRANSACTION_LIMIT, (whole,))

    def _write(self, entry: LedgerEntry, staged: StagedOutput) -> None:
        table = Table(self._connection, self._table)
        dead_letters = Table(self._connection, self._dead_letters)
        self._take_back(entry, table, dead_letters)
        if staged.rows is not None and not table.exists():
            refuse_lost_table(entry, table.name)
        if staged.rows is not None and self._sink.upsert:
            self._sink.upsert.apply(table, staged.rows)
        elif staged.rows is not None:
            append(table, staged.rows)
        if staged.dead_letters is not None:
            append(dead_letters, DeadLetters.of(staged.dead_letters))

    def _take_back(self, entry: LedgerEntry, *tables: Table) -> None:
        """Remove the rows that a rewind or a replay takes back."""
        if condition := condition_of(entry):
            for table in tables:
                table.delete(condition)

    def _insert(self, entry: LedgerEntry) -> None:
        row = row_of(entry, str(self._table))
        self._connection.execute(self._statements.insert.encode(), row)

    def _commit(self, entry: LedgerEntry) -> None:
        try:
            tag = self._connection.execute("COMMIT").statusmessage
        except psycopg.Error as error:
            if self._connected():
                raise  # the server says what went wrong (a deferred constraint) and rolled back
            raise CommitUnknownError(
                f"{self._table}: the connection was lost after COMMIT of version {entry.version} "
                f"was sent; it may have landed. Transaction {entry.transaction_id} is tried again."
            ) from error
        if tag != "COMMIT":
            # COMMIT of a failed transaction raises nothing and answers ROLLBACK
            raise SinkUnavailableError(
                f"{self._table}: the server answered {tag} to COMMIT of version {entry.version}. "
                "Nothing was written."
            )

    def _explained(self, error: psycopg.Error) -> EoPipelineError:
        if error.diag.constraint_name == ONE_PIPELINE:
            self._target.refuse_owner(self._rows)
        return errors.while_publishing(error, str(self._table))


def _roll_back(connection: Connection) -> None:
    """End what is open. A connection that cannot do that is closed: the server then ends it."""
    if connection.closed or connection.info.transaction_status == TransactionStatus.IDLE:
        return
    try:
        connection.execute("ROLLBACK")
    except psycopg.Error:
        connection.close()


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
