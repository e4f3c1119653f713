"""PostgreSQL: how it is connected, what it says, and what its errors mean for a checkpoint.

Errors are told by SQLSTATE (PostgreSQL manual, appendix A).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import psycopg
import tenacity
from psycopg import pq
from psycopg.conninfo import make_conninfo
from psycopg.pq import TransactionStatus

from eo_pipeline.errors import ConfigError, EoPipelineError, SinkUnavailableError
from eo_pipeline.sinks.postgres.config import PostgresSink, conninfo_parts
from eo_pipeline.sinks.postgres.types import NAMES
from eo_pipeline.sinks.sql.config import TableName, quoted
from eo_pipeline.sinks.sql.connection import Diagnosis, Question, SqlStore
from eo_pipeline.sinks.sql.ledger import ONE_PIPELINE_INDEX, LedgerTypes

Connection = psycopg.Connection[tuple[Any, ...]]

#: A peer that vanished is noticed within a minute, also in the middle of a COMMIT; the operating
#: system's own defaults take hours.
_KEEPALIVES = {
    "keepalives_idle": "20",
    "keepalives_interval": "10",
    "keepalives_count": "4",
    "tcp_user_timeout": "60000",
}

#: A ping waits for this long where a link is cut as soon as it is made. The least libpq knows.
_PING_SECONDS = 2

#: How long a change of a table waits for its readers, who wait behind it, before it lets them pass.
_ALTER_SECONDS = 0.1

#: How long a question may take that an index is to answer, unless it must be answered.
_INDEX_SECONDS = 0.1

_OUT_OF_TIME = (psycopg.errors.QueryCanceled, psycopg.errors.LockNotAvailable)

#: How a server says that it has no connection left (SQLSTATE 53300). libpq keeps the code of a
#: failed login to itself; this is the only such failure that passes by itself.
_FULL = ("too many", "connection slots")

#: The first version of the server that reads a range of pages of a table by their numbers.
_PAGE_RANGES_SINCE = 140000

#: The first version of the server with MERGE.
_MERGE_SINCE = 150000

#: The first version of the server that can end a transaction by its age.
_TRANSACTION_TIMEOUT_SINCE = 170000

#: A transaction that stops sending belongs to a process that sleeps or is gone; it may hold the
#: ledger's key, so it is ended. A server before 17 has only a limit on each statement. A policy
#: that would hide rows from this role is an error.
_LIMITS = """
SELECT set_config('row_security', 'off', true),
       set_config('lock_timeout', %s, true),
       set_config('idle_in_transaction_session_timeout', %s, true),
       set_config('statement_timeout', %s, true),
       set_config('synchronous_commit', CASE current_setting('synchronous_commit')
                  WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, true)
"""
_TRANSACTION_LIMIT = "SELECT set_config('transaction_timeout', %s, true)"

_EXISTS = "SELECT to_regclass(%s) IS NOT NULL"

#: Runs that start together on an empty database create the ledger one after the other.
_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))"

_SCHEMA_OF = """
SELECT coalesce((SELECT nspname::text FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
                 WHERE c.oid = to_regclass(%s)),
                current_schema()::text)
"""
_SCHEMA_NAMED = "SELECT nspname::text FROM pg_namespace WHERE nspname = %s"

_COMMENT = """
COMMENT ON TABLE {ledger} IS
    'eo-pipeline: one row a checkpoint, committed together with its rows. Do not change by hand.'
"""

#: Classes that say nothing against the rows: the same transaction may succeed later. Connection,
#: transaction state (read-only standby, timeouts), serialization and deadlocks, resources, locks,
#: operator (shutdown, cancel), system, internal.
_LATER = frozenset({"08", "25", "40", "53", "55", "57", "58", "XX"})

#: ... except these: a malformed binary value is reported as a protocol violation; and what an
#: object lacks (a replica identity), or how a server was started, is no moment's state.
_FOR_GOOD = frozenset({"08P01", "55000", "55P02", "55P04"})

#: Somebody else created the table since it was found absent.
_JUST_CREATED = "42P07"
_CATALOG = "pg_catalog"

#: Codes and classes, the longer first; what a person can do about it.
_REMEDIES = {
    "22021": "Text in PostgreSQL cannot hold the NUL character or bytes that are not UTF-8: "
    "remove them in the transform.",
    "22P05": "The text has characters that the database's encoding, or JSON in it, cannot hold: "
    "remove them in the transform.",
    "22": "Correct the values in the transform, or widen the column.",
    "23": "Filter or repair the rows in the transform, or change the constraint.",
    "42501": "Grant the role what it lacks.",
    "25006": "This server takes no writes: it is a standby, or set to read-only.",
    "25P04": "Raise sink.transaction_timeout, or make checkpoints smaller.",
    "53100": "Free disk space on the database server.",
    "53300": "Raise max_connections, or close connections.",
    "55000": "If it is published without a replica identity, its owner can give it one: "
    "ALTER TABLE ... REPLICA IDENTITY FULL",
    "55P03": "Another transaction holds the table longer than sink.lock_timeout; "
    "pg_stat_activity and pg_locks show which.",
    "57014": "A timeout or a person cancelled it.",
}

#: What COPY says about the place: ``COPY flights, line 3, column tailnum: "N1"``.
_COPY_COLUMN = re.compile(r"^COPY .+, line \d+, column ([^:]+)", re.MULTILINE)

#: Errors whose detail names a key, not a whole row.
_SHORT_DETAIL = frozenset({"23503", "23505", "23P01"})


class PostgresStore(SqlStore):
    """A connection in autocommit mode: transactions are opened and closed in so many words."""

    product = NAMES.product
    driver_error = psycopg.Error
    ledger_types: ClassVar[LedgerTypes] = LedgerTypes(
        text=lambda _: "text", json="jsonb", time="timestamptz", now="clock_timestamp()"
    )
    sink: PostgresSink
    connection: Connection

    @property
    def unreadable(self) -> tuple[type[Exception], ...]:
        """See :class:`SqlStore`; and what psycopg cannot make of bytes."""
        return (*super().unreadable, psycopg.DataError)

    def connect(self) -> Connection:
        """Statements are not prepared: a prepared one fails once the table has gained a column, and
        poolers that hand out a connection per transaction do not know it.
        """
        dsn = self.sink.dsn.get_secret_value()
        return connect(dsn, f"eo-pipeline {self.pipeline}", self.sink.connect_timeout)

    @property
    def is_open(self) -> bool:
        return not self.connection.closed

    @property
    def is_in_transaction(self) -> bool:
        return self.connection.info.transaction_status != TransactionStatus.IDLE

    def diagnose(self, error: psycopg.Error) -> Diagnosis:
        code = error.sqlstate or ""
        remedy = _REMEDIES.get(code) or _REMEDIES.get(code[:2], "")
        return Diagnosis(_in_words(error), _is_transient(error), remedy)

    def is_violation(self, error: psycopg.Error, constraint: str) -> bool:
        return error.diag.constraint_name == constraint

    def located(self, table: TableName) -> TableName:
        named = table.schema
        query, name = (_SCHEMA_NAMED, named) if named else (_SCHEMA_OF, table.sql)
        rows = self.rows(query, name)
        if not (rows and rows[0][0]):
            remedy = (
                f"the database has no schema {named!r}: CREATE SCHEMA {quoted(named)}"
                if named
                else "the role's search_path holds no schema: write the table as schema.table"
            )
            raise ConfigError(f"sink.table: {remedy}")
        return table.within(str(rows[0][0]))

    def answers(self, questions: Sequence[Question]) -> list[list[tuple[Any, ...]]]:
        with self.connection.pipeline():
            cursors = [self.execute(statement, *of) for statement, of in questions]
        return [cursor.fetchall() for cursor in cursors]

    def make_ledger(self, ledger: TableName) -> None:
        """A role that may not create tables can use a ledger that somebody else made."""
        if self.rows(_EXISTS, ledger.sql)[0][0]:
            return
        with self.connection.transaction():
            timeout = _ms(self.sink.lock_timeout)
            self.execute("SELECT set_config('lock_timeout', %s, true)", timeout)
            self.execute(_LOCK, str(ledger))
            super().make_ledger(ledger)
            for statement in (ONE_PIPELINE_INDEX, _COMMENT):
                self.execute(statement.format(ledger=ledger.sql))

    def begin(self) -> None:
        self.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
        lock = _ms(self.sink.lock_timeout)
        whole = _ms(self.sink.transaction_timeout)
        self.execute(_LIMITS, lock, lock, whole)
        if self.connection.info.server_version >= _TRANSACTION_TIMEOUT_SINCE:
            self.execute(_TRANSACTION_LIMIT, whole)

    def send_commit(self) -> None:
        tag = self.execute("COMMIT").statusmessage
        if tag != "COMMIT":
            # COMMIT of a failed transaction raises nothing and answers ROLLBACK
            raise SinkUnavailableError(
                f"{self.table}: the server answered {tag} to COMMIT. Nothing was written."
            )

    @property
    def reads_page_ranges(self) -> bool:
        """True if the server reads a range of a table's pages without the others."""
        return self.connection.info.server_version >= _PAGE_RANGES_SINCE

    @property
    def has_merge(self) -> bool:
        """True if the server has MERGE."""
        return self.connection.info.server_version >= _MERGE_SINCE

    def ask_index(self, question: str, *parameters: Any, thorough: bool) -> bool:
        """The planner, which does not know that nothing will be found, would rather look through
        the table. What was written last an index of ranges (BRIN) may not know yet: then those
        pages are looked through, if there is time.
        """
        seconds = self.sink.transaction_timeout if thorough else _INDEX_SECONDS
        # the newest pages are read by their numbers, and not by BRIN
        by_index = "on" if thorough or not self.reads_page_ranges else "off"
        statement = (
            "BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY; SET LOCAL enable_seqscan = off; "
            f"SET LOCAL enable_bitmapscan = {by_index}; "
            f"SET LOCAL lock_timeout = '{_ms(self.sink.lock_timeout)}'; "
            f"SET LOCAL statement_timeout = '{_ms(seconds)}'; SELECT {question}; COMMIT"
        )
        self.reconnect()
        try:
            cursor = psycopg.ClientCursor(self.connection)
            cursor.execute(statement.encode(), parameters)
            while cursor.description is None:
                cursor.nextset()
            return bool(cursor.fetchall()[0][0])
        except psycopg.Error as error:
            if not thorough and isinstance(error, _OUT_OF_TIME):
                return False
            raise self.while_opening(error) from error
        finally:
            self.roll_back()

    def alter(self, change: Callable[[], object]) -> None:
        """In a transaction of its own. Whoever waits for a table lets nobody pass who comes later,
        so that behind one slow reader all would wait: it waits for a moment only, and tries again.
        """
        if self.is_in_transaction:
            change()
            return
        again = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(psycopg.errors.LockNotAvailable),
            stop=tenacity.stop_after_delay(self.sink.lock_timeout),
            wait=tenacity.wait_random(0, 4 * _ALTER_SECONDS),
            reraise=True,
        )
        again(self._alter_once, change)

    def _alter_once(self, change: Callable[[], object]) -> None:
        with self.transaction():
            self.execute("SELECT set_config('lock_timeout', %s, true)", _ms(_ALTER_SECONDS))
            change()
            self.send_commit()

    def begin_snapshot(self) -> None:
        self.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        # in another zone the first and the last day of all are in years that Python has not
        self.execute("SET LOCAL TIME ZONE 'UTC'")

    def streaming_cursor(self) -> psycopg.ServerCursor[tuple[Any, ...]]:
        """Rows wait on the server until they are asked for."""
        return self.connection.cursor("lineage")


def connect(dsn: str, application: str, timeout: float) -> Connection:
    """A connection in autocommit mode.

    Raises:
        SinkUnavailableError: the server does not answer, is starting, stopping, or full.
        ConfigError: the server answers and refuses the login or the database.
    """
    given = conninfo_parts(dsn)
    defaults = {
        "application_name": application,
        "connect_timeout": max(_PING_SECONDS, math.ceil(timeout)),
    }
    absent: dict[str, Any] = {k: v for k, v in (_KEEPALIVES | defaults).items() if k not in given}
    conninfo = make_conninfo(dsn, **absent, client_encoding="utf8")
    try:
        return _connect(conninfo)
    except psycopg.OperationalError as error:
        if not _answers(conninfo):
            raise _unavailable(error) from error
    try:
        # the server may have come up between the two
        return _connect(conninfo)
    except psycopg.OperationalError as error:
        raise _refused(error) from error


def _connect(conninfo: str) -> Connection:
    connection = psycopg.connect(conninfo, autocommit=True, prepare_threshold=None)
    # by these, psycopg reads times, and the catalog names types
    connection.execute("SET DateStyle = 'ISO, MDY'; SET quote_all_identifiers = off")
    return connection


def _answers(conninfo: str) -> bool:
    """True if a server accepts connections there, whatever it thinks of this login."""
    brief = make_conninfo(conninfo, connect_timeout=_PING_SECONDS)
    return pq.PGconn.ping(brief.encode()) == pq.Ping.OK


def _unavailable(error: psycopg.Error) -> EoPipelineError:
    return SinkUnavailableError(f"PostgreSQL does not answer: {error}")


def _refused(error: psycopg.Error) -> EoPipelineError:
    if any(word in str(error) for word in _FULL):
        return SinkUnavailableError(f"PostgreSQL has no connection left: {error}")
    return ConfigError(f"sink.dsn: PostgreSQL refused the connection: {error}")


def _is_transient(error: psycopg.Error) -> bool:
    """True if ``error`` says nothing about the rows or the configuration."""
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    if error.sqlstate == _JUST_CREATED or error.diag.schema_name == _CATALOG:
        return True
    return error.sqlstate[:2] in _LATER and error.sqlstate not in _FOR_GOOD


def _in_words(error: psycopg.Error) -> str:
    """The parts of a database error worth showing."""
    diag = error.diag
    place = _COPY_COLUMN.search(diag.context or "")
    detail = f": {diag.message_detail}" if error.sqlstate in _SHORT_DETAIL else ""
    message = " ".join((diag.message_primary or str(error)).split()).rstrip(".") + detail
    named = {
        "SQLSTATE": error.sqlstate,
        "column": diag.column_name or (place[1] if place else None),
        "constraint": diag.constraint_name,
    }
    details = [f"{name} {value}" for name, value in named.items() if value]
    return f"{message} ({', '.join(details)})" if details else message


def _ms(seconds: float) -> str:
    return f"{round(seconds * 1000)}ms"
