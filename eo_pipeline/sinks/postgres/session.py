"""One pipeline's connection to PostgreSQL."""

from __future__ import annotations

import psycopg

from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.sinks.postgres.rows import DeadLetters, PostgresTable
from eo_pipeline.sinks.postgres.store import PostgresStore
from eo_pipeline.sinks.sql.names import TableName, quoted
from eo_pipeline.sinks.sql.session import SqlSession
from eo_pipeline.staging.rows import StagedTable


class PostgresSession(SqlSession):
    """See :class:`~eo_pipeline.sinks.sql.session.SqlSession`. The loser of two publishers is told
    of a unique violation; a parent that is not in the ledger is told by the foreign key.
    """

    store_class = PostgresStore
    table_class = PostgresTable

    def storable(self, dead_letters: StagedTable) -> StagedTable:
        return DeadLetters.of(dead_letters)

    def reset(self, *, dry_run: bool) -> tuple[str, ...]:
        """In one transaction. The tables stay, and with them any row that carries no checkpoint."""
        drops, ledger = [], self.store.ledger
        try:
            with self.store.transaction():
                for table in (self.table, self.dead_letters):
                    if CHECKPOINT_COLUMN in table.columns():
                        where = f"{quoted(CHECKPOINT_COLUMN)} IS NOT NULL"
                        rows = self._drop(table.name, where, dry_run)
                        drops.append(f"{rows:,} rows of {table.name}")
                versions = self._drop(ledger, "pipeline = %s", dry_run, self.pipeline)
                drops.append(f"{versions:,} versions of the ledger in {ledger}")
                self.store.send_commit()
        except psycopg.Error as error:
            raise self.store.while_opening(error) from error
        return tuple(drops)

    def _drop(self, table: TableName, condition: str, dry_run: bool, *parameters: str) -> int:
        """How many rows were deleted, or would be."""
        act = "SELECT count(*)" if dry_run else "DELETE"
        done = self.store.execute(f"{act} FROM {table.sql} WHERE {condition}", *parameters)
        return int(done.fetchall()[0][0]) if dry_run else int(done.rowcount)
