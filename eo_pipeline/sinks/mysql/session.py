"""One pipeline's connection to MySQL or MariaDB."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pymysql
from pymysql.cursors import SSCursor

from eo_pipeline.errors import CommitUnknownError, EoPipelineError, SinkUnavailableError
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.sinks.mysql import errors
from eo_pipeline.sinks.mysql.connect import Connection, connect
from eo_pipeline.sinks.mysql.ledger import ONE_PIPELINE, ensure_ledger
from eo_pipeline.sinks.mysql.load import Loader
from eo_pipeline.sinks.mysql.sink import MySqlSink
from eo_pipeline.sinks.mysql.tables import Table
from eo_pipeline.sinks.mysql.upsert import Upsert
from eo_pipeline.sinks.sql.frame import SqlSession
from eo_pipeline.sinks.sql.going_back import condition_of, refuse_upserted
from eo_pipeline.sinks.sql.ledger import LEDGER_TABLE, LedgerStatements, row_of
from eo_pipeline.sinks.sql.lineage import read_lineage
from eo_pipeline.sinks.sql.owner import Target, refuse_lost_table
from eo_pipeline.staging.rows import StagedOutput, StagedTable

log = logging.getLogger(__name__)

#: How long the server waits for whoever reads a long answer, which may be slow to look at it.
_PATIENCE = "SET SESSION net_write_timeout = 3600"

_DURABLE = "SELECT @@innodb_flush_log_at_trx_commit"


class MySqlSession(SqlSession):
    """See :class:`~eo_pipeline.sinks.sql.frame.SqlSession` for the protocol.

    Here the loser of two publishers waits at the ledger's primary key until the winner has
    committed, and is then told of a duplicate; a parent that is not in the ledger is told by the
    foreign key. Both roll back: MySQL itself rolls back no more than the statement that failed,
    and a later COMMIT would publish the rest.
    """

    driver_error = pymysql.MySQLError

    def __init__(self, sink: MySqlSink, pipeline: str) -> None:
        super().__init__(pipeline)
        self._sink = sink
        self._table = sink.target.within(sink.database)
        self._dead_letters = sink.dead_letters.within(sink.database)
        ledger = self._table.sibling(LEDGER_TABLE)
        self._statements = LedgerStatements(ledger.sql)
        self._target = Target(pipeline, str(self._table), self._statements)
        self._may_load = sink.load_data
        self._connection = self._connect()
        try:
            ensure_ledger(self._connection, ledger)
            self._target.check(self._rows)
            for name in (self._table, self._dead_letters):
                Table(self._connection, name).exists()
            self._warn_of_weak_durability()
        except pymysql.MySQLError as error:
            self.close()
            raise errors.while_opening(error, str(self._table)) from error
        except EoPipelineError:
            self.close()
            raise

    def close(self) -> None:
        if self._connected():
            self._connection.close()

    def _connect(self) -> Connection:
        return connect(self._sink, f"eo-pipeline {self.pipeline}")

    def _warn_of_weak_durability(self) -> None:
        if self._answer(_DURABLE)[0][0] != 1:
            log.warning(
                "%s: innodb_flush_log_at_trx_commit is not 1: after a power cut the server may "
                "come back without its last checkpoints; they are then published again.",
                self._table,
            )

    def check_going_back(self, entry: LedgerEntry) -> None:
        condition_of(entry)
        if self._sink.rule:
            refuse_upserted(self._table, entry)

    def lineage(self, since: int = 0) -> Iterator[pa.RecordBatch]:
        """On a connection of its own; one query, which InnoDB answers from one snapshot."""
        try:
            with closing(self._connect()) as connection:
                columns = {name.lower() for name in Table(connection, self._table).columns()}
                with closing(connection.cursor(SSCursor)) as cursor:  # rows as they come
                    cursor.execute(_PATIENCE)
                    yield from read_lineage(cursor, self._table.sql, columns, since)
        except pymysql.MySQLError as error:
            raise errors.while_opening(error, str(self._table)) from error

    # The protocol's steps.

    @property
    def _ledger(self) -> LedgerStatements:
        return self._statements

    def _connected(self) -> bool:
        return self._connection.open

    def _alive(self) -> Connection:
        """The connection, or a new one in place of one that died."""
        if not self._connected():
            log.info("%s: connection to MySQL lost, connecting again", self.pipeline)
            self._connection = self._connect()
        return self._connection

    def _rows(self, statement: str, *parameters: Any) -> list[Any]:
        try:
            return self._answer(statement, *parameters)
        except pymysql.MySQLError as error:
            if self._connected():
                raise errors.while_opening(error, str(self._table)) from error
        # a connection shows that it died only when it is used; a question can be asked twice
        try:
            return self._answer(statement, *parameters)
        except pymysql.MySQLError as error:
            raise errors.while_opening(error, str(self._table)) from error

    def _answer(self, statement: str, *parameters: Any) -> list[Any]:
        with self._alive().cursor() as cursor:
            cursor.execute(statement, parameters or None)
            return list(cursor.fetchall())

    def _run(self, statement: str, *parameters: Any) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(statement, parameters or None)

    def _prepare(self, entry: LedgerEntry, staged: StagedOutput) -> None:
        """Tables are made and widened outside the transaction, which that would commit."""
        connection = self._alive()
        if staged.rows is not None:
            self._prepare_target(entry, Table(connection, self._table), staged.rows)
        if staged.dead_letters is not None:
            Table(connection, self._dead_letters).prepare(staged.dead_letters.schema)

    def _prepare_target(self, entry: LedgerEntry, table: Table, rows: StagedTable) -> None:
        if not table.exists():
            refuse_lost_table(entry, table.name)
        rule = self._sink.rule
        if rule:
            rule.check_columns(rows.schema.names)
        table.prepare(rows.schema, rule.key if rule else ())

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        connection = self._alive()
        # a process that sleeps or is gone must not hold locks: a silent connection is ended
        self._run("SET SESSION wait_timeout = %s", math.ceil(self._sink.lock_timeout))
        self._run("START TRANSACTION READ WRITE")
        try:
            yield
        finally:
            _roll_back(connection)

    def _write(self, entry: LedgerEntry, staged: StagedOutput) -> None:
        loader = Loader(self._connection, self._may_load)
        table = Table(self._connection, self._table)
        dead_letters = Table(self._connection, self._dead_letters)
        self._take_back(entry, table, dead_letters)
        if staged.rows is not None and self._sink.rule:
            Upsert(self._sink.rule, table).apply(loader, staged.rows)
        elif staged.rows is not None:
            _append(table, loader, staged.rows)
        if staged.dead_letters is not None:
            _append(dead_letters, loader, staged.dead_letters)
        self._may_load = loader.may_load

    def _take_back(self, entry: LedgerEntry, *tables: Table) -> None:
        """Remove the rows that a rewind or a replay takes back."""
        if condition := condition_of(entry):
            for table in tables:
                table.delete(condition)

    def _check_open(self) -> None:
        """Nothing from here on may be committed by itself, statement by statement."""
        if not self._connection.in_transaction:
            raise SinkUnavailableError(
                f"{self._table}: the transaction was ended by something else. Nothing was written."
            )

    def _insert(self, entry: LedgerEntry) -> None:
        self._check_open()
        row = [_naive(value) for value in row_of(entry, str(self._table))]
        self._run(self._statements.insert, *row)

    def _commit(self, entry: LedgerEntry) -> None:
        self._check_open()
        try:
            self._run("COMMIT")
        except pymysql.MySQLError as error:
            _roll_back(self._connection)
            if self._connected():
                raise  # the transaction is over one way or the other, and the ledger tells which
            raise CommitUnknownError(
                f"{self._table}: the connection was lost after COMMIT of version {entry.version} "
                f"was sent; it may have landed. Transaction {entry.transaction_id} is tried again."
            ) from error

    def _explained(self, error: pymysql.MySQLError) -> EoPipelineError:
        found = errors.Diagnosis.of(error)
        if found.number == errors.DUPLICATE and ONE_PIPELINE in found.message:
            self._target.refuse_owner(self._rows)
        return errors.while_publishing(found, str(self._table))


def _append(table: Table, loader: Loader, staged: StagedTable) -> None:
    loader.load(table.name, table.bind(staged.schema), staged)


def _naive(value: Any) -> Any:
    """Times as the session understands them: in UTC, without saying so."""
    return value.astimezone(UTC).replace(tzinfo=None) if isinstance(value, datetime) else value


def _roll_back(connection: Connection) -> None:
    """End what is open. A connection that cannot do that is closed: the server then ends it."""
    if not connection.open:
        return
    try:
        with connection.cursor() as cursor:
            cursor.execute("ROLLBACK")
            cursor.execute("SET SESSION wait_timeout = DEFAULT")
    except pymysql.MySQLError:
        if connection.open:
            connection.close()
