"""The ledger's table in PostgreSQL, and the constraints that make inserting a compare-and-swap."""

from __future__ import annotations

from eo_pipeline.errors import ConfigError
from eo_pipeline.sinks.postgres.tables import Connection
from eo_pipeline.sinks.sql.names import TableName, quoted

#: Two entries at one version: the second is fenced.
PRIMARY_KEY = "eo_ledger_pkey"

#: Two pipelines that start on one table.
ONE_PIPELINE = "eo_ledger_one_pipeline_per_table"

# A foreign key with a null column is not checked (MATCH SIMPLE), so the check leaves no way for an
# entry after the first to have a parent of null; and "IS NOT NULL" because a check whose value is
# unknown passes.
_CREATE = """
CREATE TABLE IF NOT EXISTS {ledger} (
    pipeline text NOT NULL,
    ledger_id text NOT NULL,
    version bigint NOT NULL,
    transaction_id text NOT NULL,
    parent_version bigint,
    parent_transaction_id text,
    operation text NOT NULL,
    target bigint,
    target_table text NOT NULL,
    offsets jsonb NOT NULL,
    ranges jsonb NOT NULL,
    topic_ids jsonb NOT NULL,
    counts jsonb NOT NULL,
    run_id text NOT NULL,
    started_at timestamptz NOT NULL,
    committed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    details jsonb NOT NULL,
    CONSTRAINT {primary_key} PRIMARY KEY (pipeline, version),
    CONSTRAINT eo_ledger_id UNIQUE (pipeline, version, transaction_id),
    CONSTRAINT eo_ledger_parent
        FOREIGN KEY (pipeline, parent_version, parent_transaction_id)
        REFERENCES {ledger} (pipeline, version, transaction_id),
    CONSTRAINT eo_ledger_step CHECK (
        (version = 0 AND parent_version IS NULL AND parent_transaction_id IS NULL)
        OR (version > 0 AND parent_version IS NOT NULL AND parent_transaction_id IS NOT NULL
            AND version = parent_version + 1))
);
CREATE UNIQUE INDEX IF NOT EXISTS {one_pipeline} ON {ledger} (target_table) WHERE version = 0;
COMMENT ON TABLE {ledger} IS
    'eo-pipeline: one row a checkpoint, committed together with its rows. Do not change by hand.';
"""

_EXISTS = "SELECT to_regclass(%s) IS NOT NULL"

#: Runs that start together on an empty database create the ledger one after the other.
_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))"

_SCHEMA_OF = """
SELECT coalesce((SELECT nspname::text FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
                 WHERE c.oid = to_regclass(%s)),
                current_schema()::text)
"""
_SCHEMA_NAMED = "SELECT nspname::text FROM pg_namespace WHERE nspname = %s"


def schema_of(connection: Connection, table: TableName) -> str:
    """The schema ``table`` is in, or would be created in.

    Raises:
        ConfigError: that schema does not exist.
    """
    query, name = (_SCHEMA_NAMED, table.schema) if table.schema else (_SCHEMA_OF, table.sql)
    row = connection.execute(query.encode(), (name,)).fetchone()
    if row and row[0]:
        return str(row[0])
    remedy = (
        f"the database has no schema {table.schema!r}: CREATE SCHEMA {quoted(table.schema)}"
        if table.schema
        else "the role's search_path holds no schema: write the table as schema.table"
    )
    raise ConfigError(f"sink.table: {remedy}")


def ensure_ledger(connection: Connection, ledger: TableName, lock_timeout_ms: int) -> None:
    """Create the ledger unless it is there. Safe with any number of runs doing so at once.

    A role that may not create tables can use a ledger that somebody else made.
    """
    row = connection.execute(_EXISTS, (ledger.sql,)).fetchone()
    if row and row[0]:
        return
    with connection.transaction():
        connection.execute("SELECT set_config('lock_timeout', %s, true)", (f"{lock_timeout_ms}ms",))
        connection.execute(_LOCK, (str(ledger),))
        create = _CREATE.format(
            ledger=ledger.sql, primary_key=PRIMARY_KEY, one_pipeline=ONE_PIPELINE
        )
        connection.execute(create.encode())
