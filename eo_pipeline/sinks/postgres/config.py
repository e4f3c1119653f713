"""The configuration of a PostgreSQL table that follows Kafka topics."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, PositiveFloat, SecretStr

from eo_pipeline.sinks.columns import ColumnLimits, is_scalar, project
from eo_pipeline.sinks.postgres.types import NAMES
from eo_pipeline.sinks.sql.config import SqlSink, TableName

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType


def conninfo_parts(dsn: str) -> dict[str, Any]:
    """The settings in a connection string, a URI or ``key=value`` pairs.

    Raises:
        ValueError: it is malformed. The message never shows any of it: a password with a
            character that should have been escaped can end up in any part.
    """
    from psycopg import ProgrammingError, conninfo

    try:
        parts = conninfo.conninfo_to_dict(dsn)
    except ProgrammingError:
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


def _checked_dsn(dsn: SecretStr) -> SecretStr:
    conninfo_parts(dsn.get_secret_value())
    return dsn


#: Years that PostgreSQL's dates and times have, its first one (of Julian day 0) aside.
_YEARS = (-4712, 5_874_896)


class PostgresSink(SqlSink):
    """A table in PostgreSQL 12 or newer, with the ledger ``eo_ledger`` beside it.

    Args:
        dsn: ``postgresql://user:password@host:port/database`` or ``key=value`` pairs, as libpq
            takes them. Never shown.
        table: ``table`` or ``schema.table``, exactly as written, case included.
        mode: ``append`` every row, or ``upsert`` by ``key``.
        key: columns that identify a row; for upsert, and only there.
        sequence_by: upsert only: columns that tell which of two rows with one key is the newer, as
            SEQUENCE BY does in Delta Live Tables' APPLY CHANGES. An older row never overwrites a
            newer one, whatever the order they arrive in. Without it the later record in Kafka is
            the newer one, and a key that moves to another Kafka partition is refused.
        dead_letter_table: table of unreadable records; default ``<table>_dead_letters``.
        lock_timeout: seconds to wait for another transaction's lock, and the longest a transaction
            of ours may be silent before the server ends it.
        transaction_timeout: seconds one checkpoint's transaction may take (PostgreSQL 17 and
            newer; before, each of its statements).
        connect_timeout: seconds to wait for the server to answer.
    """

    session_class: ClassVar[str] = "eo_pipeline.sinks.postgres.session:PostgresSession"

    type: Literal["postgres"] = "postgres"
    dsn: Annotated[SecretStr, AfterValidator(_checked_dsn)]
    transaction_timeout: PositiveFloat = 3600.0
    connect_timeout: PositiveFloat = 10.0

    @classmethod
    def _refuse_name(cls, table: TableName) -> None:
        for part in (table.schema, table.name):
            if part is not None:
                NAMES.check(part)

    @property
    def qualified_name(self) -> str:
        """In ``public`` where the table is written without a schema: PostgreSQL's own default."""
        parts = [self.describe()["dbname"], self.target.schema or "public", self.target.name]
        return ".".join(part for part in parts if part)

    def describe(self) -> dict[str, str]:
        """``kind``, ``host``, ``port``, ``dbname``, ``table``; libpq's defaults where unset."""
        parts = conninfo_parts(self.dsn.get_secret_value())
        return {
            "kind": "postgres",
            "host": _text(parts, "host", os.environ.get("PGHOST", "localhost")),
            "port": _text(parts, "port", os.environ.get("PGPORT", "5432")),
            "dbname": _text(parts, "dbname", os.environ.get("PGDATABASE", "")),
            "table": self.table_name,
        }

    def gives_back(self, data_type: DataType) -> bool:
        """Scalars; of nested values PostgreSQL keeps a form of its own."""
        return is_scalar(data_type)

    def project(self, df: DataFrame) -> DataFrame:
        """Nested columns become JSON; see :mod:`eo_pipeline.sinks.postgres.types`.

        Raises:
            SchemaChangeError: a column has a type PostgreSQL has nothing for.
            RefusedError: a column's name cannot be used.
            ConfigError: a column that an upsert goes by is not there.
        """
        if rule := self.upsert_rule:
            rule.check_columns(df.columns)
        NAMES.check_columns(df.columns)
        return project(df, NAMES.product, has_arrays=True)

    def column_limits(self) -> ColumnLimits:
        """No text with U+0000, no time before Julian day 0; and a value in columns that decide an
        upsert.
        """
        rule = self.upsert_rule
        return ColumnLimits(years=_YEARS, nul=False, needed=rule.never_null if rule else ())


def _text(parts: dict[str, Any], key: str, default: str) -> str:
    return str(parts.get(key) or default)
