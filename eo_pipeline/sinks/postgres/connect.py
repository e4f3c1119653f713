"""Connections: how they are opened, and what it means when they cannot be."""

from __future__ import annotations

import math
from typing import Any

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from eo_pipeline.errors import ConfigError, EoPipelineError, SinkUnavailableError
from eo_pipeline.sinks.postgres.tables import Connection

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

#: How a server says that it has no connection left (SQLSTATE 53300). libpq keeps the code of a
#: failed login to itself; this is the only such failure that passes by itself.
_FULL = ("too many", "connection slots")


def conninfo_parts(dsn: str) -> dict[str, Any]:
    """The settings in a connection string, a URI or ``key=value`` pairs.

    Raises:
        ValueError: it is malformed. The message never shows any of it: a password with a
            character that should have been escaped can end up in any part.
    """
    try:
        parts = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        parts = None
    if parts is None or _is_torn(parts):
        raise ValueError(
            "not a connection string: write postgresql://user:password@host:port/database, with "
            "special characters of the password percent-encoded (@ is %40, / is %2F, : is %3A)"
        )
    return parts


def _is_torn(parts: dict[str, Any]) -> bool:
    """True if an unescaped ``@``, ``:`` or ``/`` of a password has torn the URI apart."""
    ports = str(parts.get("port") or "0").split(",")
    places = f"{parts.get('host') or ''}{parts.get('dbname') or ''}"
    return "@" in places or not all(port.isdigit() or not port for port in ports)


def connect(dsn: str, application: str, timeout: float) -> Connection:
    """A connection in autocommit mode: transactions are opened and closed in so many words.

    Statements are not prepared: a prepared one fails once the table has gained a column, and
    poolers that hand out a connection per transaction do not know it.

    Raises:
        SinkUnavailableError: the server does not answer, is starting, stopping, or full.
        ConfigError: the server answers and refuses the login or the database.
    """
    given = conninfo_parts(dsn)
    own = {
        "application_name": application,
        "connect_timeout": max(_PING_SECONDS, math.ceil(timeout)),
    }
    absent: dict[str, Any] = {k: v for k, v in (_KEEPALIVES | own).items() if k not in given}
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
    return psycopg.connect(conninfo, autocommit=True, prepare_threshold=None)


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
