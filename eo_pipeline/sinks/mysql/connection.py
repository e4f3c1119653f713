"""MySQL and MariaDB: how they are connected, what every session is set to, and how rows are
streamed.
"""

from __future__ import annotations

import logging
import math
import socket
import ssl
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, ClassVar

import pymysql
from pymysql.connections import MySQLResult
from pymysql.cursors import SSCursor

from eo_pipeline.errors import ConfigError, EoPipelineError, SinkUnavailableError
from eo_pipeline.sinks.mysql.config import MySqlSink
from eo_pipeline.sinks.mysql.errors import diagnosis_of, number_of
from eo_pipeline.sinks.mysql.types import NAMES, for_people
from eo_pipeline.sinks.sql.config import TableName
from eo_pipeline.sinks.sql.connection import Diagnosis, SqlStore
from eo_pipeline.sinks.sql.ledger import ONE_PIPELINE, LedgerTypes

log = logging.getLogger(__name__)

#: A value that does not fit is an error and is not bent until it fits; zero is a value and not a
#: request for the next number; double quotes enclose names, as in standard SQL.
_SQL_MODE = (
    "ANSI_QUOTES,STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,ERROR_FOR_DIVISION_BY_ZERO,"
    "NO_AUTO_VALUE_ON_ZERO,NO_ENGINE_SUBSTITUTION"
)

#: Whatever the server or the account has as defaults.
_SETTINGS = """
SET SESSION sql_mode = '{sql_mode}', time_zone = '+00:00', foreign_key_checks = 1,
    unique_checks = 1, sql_notes = 1, sql_safe_updates = 0,
    sql_select_limit = 18446744073709551615, sql_big_selects = 1, sql_auto_is_null = 0,
    completion_type = 'NO_CHAIN', innodb_lock_wait_timeout = {lock}, lock_wait_timeout = {lock},
    net_read_timeout = {lock}
"""
_ISOLATION = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"

#: A limit on every statement that an administrator may have set; MySQL has it for queries only.
_MARIADB_SETTINGS = "SET SESSION max_statement_time = 0"
_MYSQL_SETTINGS = "SET SESSION max_execution_time = 0"

#: Whether a table may have no primary key: of MySQL, and of MariaDB.
_NEEDS_KEY = """
SHOW VARIABLES WHERE variable_name IN ('sql_require_primary_key', 'innodb_force_primary_key')
"""

#: Whether nodes take writes of their own, and a commit may be lost that was confirmed (Galera).
_GALERA = "SHOW VARIABLES LIKE 'wsrep_on'"

#: A peer that vanished is noticed within a minute, also in the middle of a COMMIT; the operating
#: system's own defaults take hours. Not every system knows every option.
_KEEPALIVES = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 60000}

#: Failed logins that pass by themselves.
_FULL = frozenset({1040, 1203, 1226})

#: Rows are sent in packets of at most this many bytes; every server takes them.
PACKET_BYTES = 64 * 1024

#: How long the server waits for whoever reads a long answer, which may be slow to look at it.
_PATIENCE = "SET SESSION net_write_timeout = 3600"

_DURABLE = "SELECT @@innodb_flush_log_at_trx_commit"

_FOLDS = "SELECT @@lower_case_table_names"

_ENGINE = """
SELECT engine FROM information_schema.tables WHERE table_schema = %s AND table_name = %s
"""

# There are no partial indexes: a generated column is null, and so not compared, but for the first
# entry. Names are compared byte by byte.
_LEDGER_TYPES = LedgerTypes(
    text=lambda length: f"varchar({length})",
    json="json",
    time="datetime(6)",
    now="CURRENT_TIMESTAMP(6)",
    more=f"""started_table varchar(255)
        GENERATED ALWAYS AS (IF(version = 0, target_table, NULL)) STORED,
    CONSTRAINT {ONE_PIPELINE} UNIQUE (started_table),""",
    options="""ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
    COMMENT 'eo-pipeline: a row a checkpoint, committed with its rows. Do not change by hand.'""",
)

#: Numbers by which LOAD DATA LOCAL says that it is switched off (MySQL 5.7, MySQL 8, MariaDB).
NOT_ALLOWED = frozenset({1148, 3948, 4166})

#: Somebody else added the column, or made the table, since it was found absent.
COLUMN_EXISTS = 1060

_DUPLICATE = 1062

#: A table, or a column of it.
_MAY_NOT_READ = frozenset({1142, 1143})


class Connection(pymysql.Connection):
    """A connection that gives the server, when it asks for a local file, rows and no file.

    LOAD DATA LOCAL is a request by the server to send it a file by name, and the driver would send
    whatever a malicious server names. Here the name is ignored: rows are sent if there are any to
    be sent, and otherwise the connection is closed.
    """

    #: What LOAD DATA LOCAL reads, while it runs.
    rows: Iterable[bytes | memoryview] | None = None

    def load(self, statement: str, rows: Iterable[bytes | memoryview]) -> int:
        """Run LOAD DATA LOCAL on ``rows``; how many it inserted."""
        self.rows = rows
        try:
            return int(self.query(statement))
        finally:
            self.rows = None

    @property
    def in_transaction(self) -> bool:
        """The transaction's state by the server's last answer."""
        return bool(self.server_status & pymysql.constants.SERVER_STATUS.SERVER_STATUS_IN_TRANS)

    @property
    def warnings(self) -> int:
        """Of how many the server told with its last answer, also if it keeps no list of them."""
        return int(getattr(self._result, "warning_count", 0) or 0)

    def _read_query_result(self, unbuffered: bool = False) -> Any:
        """As the driver's own, but that rows come from here."""
        self._result = None
        result = _Result(self)
        if unbuffered:
            result.init_unbuffered_query()
        else:
            result.read()
        self._result = result
        if result.server_status is not None:
            self.server_status = result.server_status
        return result.affected_rows


class _Result(MySQLResult):
    connection: Connection

    def _read_load_local_packet(self, first_packet: object) -> None:  # noqa: ARG002
        connection = self.connection
        try:
            if connection.rows is None:
                raise pymysql.OperationalError(2014, "the server asked for a file unasked")
            for chunk in connection.rows:
                connection.write_packet(chunk)
        except BaseException:
            # half of the rows are there: nothing but losing the connection stops the statement
            connection.close()
            raise
        connection.write_packet(b"")
        self._read_ok_packet(connection._read_packet())  # type: ignore[attr-defined,no-untyped-call]


class MySqlStore(SqlStore):
    """A connection in autocommit mode: transactions are opened and closed in so many words.

    MySQL itself rolls back no more than the statement that failed, and a later COMMIT would publish
    the rest: whatever fails is rolled back in so many words, too.
    """

    product = NAMES.product
    driver_error = pymysql.MySQLError
    has_ddl_in_transactions = False
    newest_first = " ORDER BY version DESC"
    held = "LOCK IN SHARE MODE"
    ledger_types: ClassVar[LedgerTypes] = _LEDGER_TYPES
    sink: MySqlSink
    connection: Connection

    def __init__(self, sink: MySqlSink, pipeline: str) -> None:
        super().__init__(sink, pipeline)
        #: false once the server has said that it does not allow LOAD DATA
        self.may_load = sink.load_data

    def connect(self) -> Connection:
        return connect(self.sink, f"eo-pipeline {self.pipeline}")

    @property
    def is_open(self) -> bool:
        return self.connection.open

    @property
    def is_in_transaction(self) -> bool:
        return self.connection.in_transaction

    def literal(self, text: str) -> str:
        """``text`` in a statement that takes no parameters there."""
        return str(self.connection.escape(text))

    def diagnose(self, error: pymysql.MySQLError) -> Diagnosis:
        return diagnosis_of(error)

    def is_violation(self, error: pymysql.MySQLError, constraint: str) -> bool:
        return number_of(error) == _DUPLICATE and constraint in str(error)

    def located(self, table: TableName) -> TableName:
        return table.within(self.sink.database)

    def make_ledger(self, ledger: TableName) -> None:
        """A user who may not create tables can use a ledger that somebody else made."""
        place = (ledger.schema, ledger.name)
        if not self.rows(_ENGINE, *place):
            super().make_ledger(ledger)
        engine = self.rows(_ENGINE, *place)[0][0]
        if engine != "InnoDB":
            raise ConfigError(
                f"sink.database: the ledger {ledger} is kept by {engine}, which has no "
                f"transactions. ALTER TABLE {for_people(ledger)} ENGINE = InnoDB"
            )

    @property
    def folds_names(self) -> bool:
        return bool(self.rows(_FOLDS)[0][0] != 0)

    @cached_property
    def needs_primary_keys(self) -> bool:
        """True if the server takes no table without one, a temporary one neither."""
        return any(value == "ON" for _, value in self.rows(_NEEDS_KEY))

    def check_server(self) -> None:
        if any(value == "ON" for _, value in self.rows(_GALERA)):
            raise ConfigError(
                "sink.host: this server is a node of a Galera cluster (wsrep_on), which loses "
                "transactions that it confirmed, rows and ledger, if nodes fail or are "
                "partitioned: it cannot be exactly once. Nothing was read or written. Use a server "
                "with a replica, or MySQL's group replication; docs/sinks/mysql.md says why."
            )
        if self.rows(_DURABLE)[0][0] != 1:
            log.warning(
                "%s: innodb_flush_log_at_trx_commit is not 1: after a power cut the server may "
                "come back without its last checkpoints; they are then published again.",
                self.table,
            )

    def parameters(self, values: Sequence[Any]) -> list[Any]:
        """Times as the session understands them: in UTC, without saying so."""
        return [
            value.astimezone(UTC).replace(tzinfo=None) if isinstance(value, datetime) else value
            for value in values
        ]

    def begin(self) -> None:
        # a process that sleeps or is gone must not hold locks: a silent connection is ended
        self.execute("SET SESSION wait_timeout = %s", math.ceil(self.sink.lock_timeout))
        self.execute("START TRANSACTION READ WRITE")

    def send_rollback(self) -> None:
        self.execute("ROLLBACK")
        self.execute("SET SESSION wait_timeout = DEFAULT")

    def ask_index(self, question: str, *parameters: Any, thorough: bool) -> bool:
        """Of a user who may write a table and not read it nothing is asked."""
        try:
            return super().ask_index(question, *parameters, thorough=thorough)
        except ConfigError as error:
            cause = error.__cause__
            if isinstance(cause, pymysql.MySQLError) and number_of(cause) in _MAY_NOT_READ:
                return False
            raise

    def begin_snapshot(self) -> None:
        """One query is answered from one snapshot."""
        self.execute(_PATIENCE)

    def streaming_cursor(self) -> SSCursor:
        return self.connection.cursor(SSCursor)


def connect(sink: MySqlSink, application: str) -> Connection:
    """A connection in autocommit mode: transactions are opened and closed in so many words.

    Raises:
        SinkUnavailableError: the server does not answer, is starting, stopping, or full.
        ConfigError: the server answers and refuses the login or the database; or its certificate
            does not verify.
    """
    try:
        connection = _connect(sink, application)
        _set(connection, math.ceil(sink.lock_timeout))
    except pymysql.MySQLError as error:
        raise _explained(error) from error
    except (RuntimeError, ssl.SSLError, OSError) as error:
        # the driver: a package that an authentication method needs; files of certificates
        raise ConfigError(f"sink: no connection to MySQL can be made: {error}") from error
    return connection


def _connect(sink: MySqlSink, application: str) -> Connection:
    connection = Connection(
        host=sink.host,
        port=sink.port,
        user=sink.user,
        password=sink.password.get_secret_value().encode() if sink.password else b"",
        database=sink.database,
        charset="utf8mb4",
        autocommit=True,
        connect_timeout=sink.connect_timeout,
        read_timeout=sink.statement_timeout,
        write_timeout=sink.statement_timeout,
        local_infile=sink.load_data,
        program_name=application,
        defer_connect=True,
        **_tls(sink),
    )
    connection.connect(_socket(sink))
    return connection


def _socket(sink: MySqlSink) -> socket.socket:
    try:
        sock = socket.create_connection((sink.host, sink.port), sink.connect_timeout)
    except OSError as error:
        raise pymysql.OperationalError(
            2003, f"{sink.host}:{sink.port} does not answer: {error}"
        ) from error
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVES.items():
        if option := getattr(socket, name, None):
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
    return sock


def _tls(sink: MySqlSink) -> dict[str, Any]:
    if sink.ssl_mode == "disabled":
        return {"ssl_disabled": True}
    if sink.ssl_mode == "preferred" and not (sink.ssl_ca or sink.ssl_cert):
        return {}
    context = ssl.create_default_context(cafile=str(sink.ssl_ca) if sink.ssl_ca else None)
    context.check_hostname = sink.ssl_mode == "verify_identity"
    verified = sink.ssl_mode in ("verify_ca", "verify_identity")
    context.verify_mode = ssl.CERT_REQUIRED if verified else ssl.CERT_NONE
    if sink.ssl_cert:
        context.load_cert_chain(sink.ssl_cert, sink.ssl_key)
    return {"ssl": context}


def _set(connection: Connection, lock_seconds: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(_SETTINGS.format(sql_mode=_SQL_MODE, lock=lock_seconds))
        cursor.execute(_ISOLATION)
        cursor.execute(_MARIADB_SETTINGS if is_mariadb(connection) else _MYSQL_SETTINGS)


def is_mariadb(connection: Connection) -> bool:
    """True for MariaDB, false for MySQL itself."""
    version: str = connection.get_server_info()  # type: ignore[no-untyped-call]
    return "mariadb" in version.lower()


def _explained(error: pymysql.MySQLError) -> EoPipelineError:
    number, diagnosis = number_of(error), diagnosis_of(error)
    cause = getattr(error, "original_exception", None)
    if isinstance(cause, ssl.SSLError):
        return ConfigError(f"sink.ssl_mode: no encrypted connection to MySQL: {cause}")
    text = f"{diagnosis.says}. {diagnosis.remedy}".rstrip()
    if diagnosis.is_transient or number in _FULL:
        return SinkUnavailableError(f"MySQL does not answer: {text}")
    return ConfigError(f"sink: MySQL refused the connection: {text}")
