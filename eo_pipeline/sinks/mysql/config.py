"""The configuration of a MySQL or MariaDB table that follows Kafka topics."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import (
    AfterValidator,
    Field,
    PositiveFloat,
    SecretStr,
    ValidationInfo,
    field_validator,
)

from eo_pipeline.sinks.columns import ColumnLimits, project
from eo_pipeline.sinks.mysql.types import NAMES
from eo_pipeline.sinks.sql.config import SqlSink, TableName

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def _checked_database(name: str) -> str:
    NAMES.check(name)
    return name


class MySqlSink(SqlSink):
    """A table in MySQL 8 or MariaDB 10.5 (or newer), with the ledger ``eo_ledger`` beside it.

    Args:
        host: name or address of the server.
        port: its TCP port.
        user: who connects.
        password: never shown.
        database: where the table and the ledger are. It must exist.
        table: name of the table, exactly as written. InnoDB; created when absent.
        mode: ``append`` every row, or ``upsert`` by ``key``.
        key: columns that identify a row; for upsert, and only there.
        sequence_by: upsert only: columns that tell which of two rows with one key is the newer. An
            older row never overwrites a newer one, whatever the order they arrive in. Without it
            the later record in Kafka is the newer one, and a key that moves to another Kafka
            partition is refused.
        dead_letter_table: table of unreadable records; default ``<table>_dead_letters``.
        ssl_mode: as in MySQL's own clients: ``preferred`` encrypts if the server can,
            ``required`` insists, ``verify_ca`` checks the certificate against ``ssl_ca`` (or the
            system's authorities), ``verify_identity`` the host's name too.
        ssl_ca: file with the certificates of trusted authorities.
        ssl_cert: file with this client's certificate.
        ssl_key: file with its key.
        load_data: send rows by LOAD DATA LOCAL INFILE, which is several times faster. Where the
            server does not allow it (``local_infile = OFF``), or this is false, by INSERT
            statements of many rows.
        lock_timeout: seconds to wait for another transaction's lock, and the longest a transaction
            of ours may be silent before the server ends it. Whole seconds, rounded up.
        statement_timeout: seconds after which the reply to one statement is given up.
        connect_timeout: seconds to wait for the server to answer.
    """

    session_class: ClassVar[str] = "eo_pipeline.sinks.mysql.session:MySqlSession"
    extra: ClassVar[str | None] = "mysql"

    type: Literal["mysql", "mariadb"] = "mysql"
    host: str = "localhost"
    port: Annotated[int, Field(gt=0, lt=65536)] = 3306
    user: str
    password: SecretStr | None = None
    database: Annotated[str, AfterValidator(_checked_database)]
    ssl_mode: Literal["disabled", "preferred", "required", "verify_ca", "verify_identity"] = (
        "preferred"
    )
    ssl_ca: Path | None = None
    ssl_cert: Path | None = None
    ssl_key: Path | None = Field(default=None, validate_default=True)
    load_data: bool = True
    statement_timeout: PositiveFloat = 3600.0
    connect_timeout: PositiveFloat = 10.0

    @classmethod
    def _refuse_name(cls, table: TableName) -> None:
        if table.schema is not None:
            raise ValueError(
                "give the table name without a database; sink.database names the database"
            )
        NAMES.check(table.name)

    @field_validator("ssl_key")
    @classmethod
    def _comes_with_a_certificate(cls, key: Path | None, info: ValidationInfo) -> Path | None:
        if "ssl_cert" in info.data and (key is None) != (info.data["ssl_cert"] is None):
            raise ValueError("set both ssl_cert and ssl_key, or neither")
        return key

    @property
    def table_name(self) -> str:
        return str(self.target.within(self.database))

    @property
    def qualified_name(self) -> str:
        return f"{self.target.schema or self.database}.{self.target.name}"

    def describe(self) -> dict[str, str]:
        """``kind``, ``host``, ``port``, ``dbname``, ``table``."""
        return {
            "kind": "mysql",
            "host": self.host,
            "port": str(self.port),
            "dbname": self.database,
            "table": self.table_name,
        }

    def project(self, df: DataFrame) -> DataFrame:
        """Nested columns become JSON; see :mod:`eo_pipeline.sinks.mysql.types`.

        Raises:
            SchemaChangeError: a column has a type MySQL has nothing for.
            RefusedError: a column's name cannot be used.
            ConfigError: a column that an upsert goes by is not there.
        """
        if rule := self.upsert_rule:
            rule.check_columns(df.columns)
        NAMES.check_columns(df.columns)
        return project(df, NAMES.product)

    def column_limits(self) -> ColumnLimits:
        """No NaN or infinity, which MySQL lacks; and a value in columns that decide an upsert."""
        rule = self.upsert_rule
        return ColumnLimits(not_finite=False, needed=rule.never_null if rule else ())
