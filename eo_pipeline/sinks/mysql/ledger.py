"""The ledger's table in MySQL, and the constraints that make inserting a compare-and-swap."""

from __future__ import annotations

from eo_pipeline.errors import ConfigError
from eo_pipeline.sinks.mysql.connect import Connection
from eo_pipeline.sinks.mysql.names import for_people
from eo_pipeline.sinks.sql.names import TableName

#: Two pipelines that start on one table.
ONE_PIPELINE = "eo_ledger_one_pipeline_per_table"

# The stored version must be exactly one smaller, and its transaction the parent: the primary key
# lets one transaction take a version, the foreign key lets it do so only on top of its parent. A
# foreign key with a null column is not checked, so the check leaves no way for an entry after the
# first to have a parent of null. There are no partial indexes: a generated column is null, and so
# not compared, but for the first entry. Names are compared byte by byte.
_CREATE = """
CREATE TABLE IF NOT EXISTS {ledger} (
    pipeline varchar(128) NOT NULL,
    ledger_id varchar(64) NOT NULL,
    version bigint NOT NULL,
    transaction_id varchar(64) NOT NULL,
    parent_version bigint,
    parent_transaction_id varchar(64),
    operation varchar(32) NOT NULL,
    target bigint,
    target_table varchar(255) NOT NULL,
    offsets json NOT NULL,
    ranges json NOT NULL,
    topic_ids json NOT NULL,
    counts json NOT NULL,
    run_id text NOT NULL,
    started_at datetime(6) NOT NULL,
    committed_at datetime(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    details json NOT NULL,
    started_table varchar(255) GENERATED ALWAYS AS (IF(version = 0, target_table, NULL)) STORED,
    PRIMARY KEY (pipeline, version),
    UNIQUE KEY eo_ledger_id (pipeline, version, transaction_id),
    UNIQUE KEY {one_pipeline} (started_table),
    CONSTRAINT eo_ledger_parent
        FOREIGN KEY (pipeline, parent_version, parent_transaction_id)
        REFERENCES {ledger} (pipeline, version, transaction_id),
    CONSTRAINT eo_ledger_step CHECK (
        (version = 0 AND parent_version IS NULL AND parent_transaction_id IS NULL)
        OR (version > 0 AND parent_version IS NOT NULL AND parent_transaction_id IS NOT NULL
            AND version = parent_version + 1))
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT 'eo-pipeline: a row a checkpoint, committed with its rows. Do not change by hand.'
"""

_ENGINE = """
SELECT engine FROM information_schema.tables WHERE table_schema = %s AND table_name = %s
"""


def ensure_ledger(connection: Connection, ledger: TableName) -> None:
    """Create the ledger unless it is there. Safe with any number of runs doing so at once.

    A user who may not create tables can use a ledger that somebody else made.

    Raises:
        ConfigError: it is there and not transactional.
    """
    engine = _engine(connection, ledger)
    if engine is None:
        with connection.cursor() as cursor:
            cursor.execute(_CREATE.format(ledger=ledger.sql, one_pipeline=ONE_PIPELINE))
        engine = _engine(connection, ledger)
    if engine != "InnoDB":
        raise ConfigError(
            f"sink.database: the ledger {ledger} is kept by {engine}, which has no transactions. "
            f"ALTER TABLE {for_people(ledger)} ENGINE = InnoDB"
        )


def _engine(connection: Connection, table: TableName) -> str | None:
    with connection.cursor() as cursor:
        cursor.execute(_ENGINE, (table.schema, table.name))
        row = cursor.fetchone()
    return str(row[0]) if row else None
