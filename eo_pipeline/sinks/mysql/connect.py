"""Connections: how they are opened, what every session is set to, and how rows are streamed."""

from __future__ import annotations

import math
import socket
import ssl
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pymysql
from pymysql.connections import MySQLResult

from eo_pipeline.errors import ConfigError, EoPipelineError, SinkUnavailableError
from eo_pipeline.sinks.mysql.errors import Diagnosis

if TYPE_CHECKING:
    from eo_pipeline.sinks.mysql.sink import MySqlSink

#: A value that does not fit is an error and is not bent until it fits; zero is a value and not a
#: request for the next number; double quotes enclose names, as in standard SQL.
_SQL_MODE = (
    "ANSI_QUOTES,STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,ERROR_FOR_DIVISION_BY_ZERO,"
    "NO_AUTO_VALUE_ON_ZERO,NO_ENGINE_SUBSTITUTION"
)

#: Whatever the server or the account has as defaults.
_SETTINGS = """
SET SESSION sql_mode = '{sql_mode}', time_zone = '+00:00', foreign_key_checks = 1,
    unique_checks = 1, sql_notes = 1, max_error_count = 64, sql_safe_updates = 0,
    completion_type = 'NO_CHAIN', innodb_lock_wait_timeout = {lock}, lock_wait_timeout = {lock},
    net_read_timeout = {lock}
"""
_ISOLATION = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"

#: A limit on every statement that an administrator may have set; MySQL has it for queries only.
_MARIADB_SETTINGS = "SET SESSION max_statement_time = 0"

#: A peer that vanished is noticed within a minute, also in the middle of a COMMIT; the operating
#: system's own defaults take hours. Not every system knows every option.
_KEEPALIVES = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 60000}

#: Failed logins that pass by themselves.
_FULL = frozenset({1040, 1203, 1226})

#: Rows are sent in packets of at most this many bytes; every server takes them.
PACKET_BYTES = 64 * 1024


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
        """What the server said with its last answer."""
        return bool(self.server_status & pymysql.constants.SERVER_STATUS.SERVER_STATUS_IN_TRANS)

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
        if is_mariadb(connection):
            cursor.execute(_MARIADB_SETTINGS)


def is_mariadb(connection: Connection) -> bool:
    """True for MariaDB, false for MySQL itself."""
    version: str = connection.get_server_info()  # type: ignore[no-untyped-call]
    return "mariadb" in version.lower()


def _explained(error: pymysql.MySQLError) -> EoPipelineError:
    found = Diagnosis.of(error)
    cause = getattr(error, "original_exception", None)
    if isinstance(cause, ssl.SSLError):
        return ConfigError(f"sink.ssl_mode: no encrypted connection to MySQL: {cause}")
    if found.is_transient or found.number in _FULL:
        return SinkUnavailableError(f"MySQL does not answer: {found}. {found.remedy}".rstrip())
    return ConfigError(f"sink: MySQL refused the connection: {found}. {found.remedy}".rstrip())
